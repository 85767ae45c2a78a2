"""Studies: tables and sentences agree with the run folders and claim no more."""

import dataclasses
import math
import re

import pandas as pd
import pytest
from matplotlib.figure import Figure
from scipy import stats as scipy_stats
from typer.testing import CliRunner

from benchmarks import settings as step_sizes
from qnnkit import cli, plots, recipes, report, runs, stats, workspace
from qnnkit.stats.verdicts import holm
from tests.notebooks.test_notebook_cells import executed
from tests.same import raises

# seaborn.objects passes an argument that pandas 3 no longer needs
pytestmark = pytest.mark.filterwarnings("ignore:The copy keyword is deprecated")
TABLES = {"conclusions.txt", "runs.csv", "means.csv", "means.tex", "comparisons.csv", "comparisons.tex"}
DRAWN = {"scores", "curves", "fractions"}
LOW, HIGH = 0.5, 1.0
HYBRID = {LOW: [0.80, 0.81, 0.83], HIGH: [0.90, 0.92, 0.91]}
CLASSICAL = {LOW: [0.70, 0.712, 0.731], HIGH: [0.91, 0.90, 0.93]}
REFERENCE = {LOW: [0.75, 0.79, 0.78], HIGH: [0.95, 0.969, 0.961]}
TWICE = "3 images stand in two splits."
TWO = {"hybrid": [0.9, 0.8], "classical": [0.8, 0.75]}


class Workspace:
    """The folder of a batch, and the folders of its runs as finished runs write them."""

    def __init__(self, root):
        self.root, self.folder, self.runs, self.score = root, root / "batches" / "grid", [], stats.ACCURACY
        self.folder.mkdir(parents=True)

    def plan(self, id_, settings):
        """Plans a run that waits."""
        self.runs.append({"id": id_, "folder": f"../../runs/{id_}", "settings": settings})
        content = {"name": "grid", "recipe": "digits_quanv", "runs": self.runs}
        content |= {"score": dataclasses.asdict(self.score)}
        workspace.write_json(self.folder / "batch.json", content)
        return self.root / "runs" / id_

    def write(
        self, id_, scores, fraction=HIGH, recipe="digits_quanv", *, name=None, seed=0, data="one", notes=(),
        score=stats.ACCURACY, **varied,
    ):  # fmt: skip
        """Writes a run's folder with a score per net and seed: `scores` is net -> values."""
        nets = list(scores)
        settings = {"epochs": 2, "train_fraction": fraction, "seed": seed, "controls": nets[1:]} | varied
        self.score = self.score if self.runs else score
        folder = self.plan(id_, {"recipe": name or recipe, "train_fraction": fraction} | varied)
        config = recipes.settings(recipe, **settings, n_seeds=len(scores[nets[0]]))
        run = runs.Run(workspace.make_folder(folder), config)
        watched = f"validation_{score.on_validation}"
        for net, values in scores.items():
            for number, value in enumerate(values, start=seed):
                row = {"net": net, "seed": number, "epochs": config.epochs}
                for epoch in (1, 2):
                    learned = {"event": "epoch", "epoch": epoch, watched: value - 0.05 * (3 - epoch)}
                    run.log("metrics", row | learned)
                others = {"macro_f1": value - 0.01, "ece": 0.02, "perplexity": math.exp(value), "loss": 0.5}
                row |= {f"test_{each}": tested for each, tested in (others | {score.name: value}).items()}
                row |= {"quantum": 24, "classical": 1000, "frozen": 3, "seconds_per_epoch": 0.25}
                row |= {"n_test": 20} if "split_seed" in varied else {}
                run.log("metrics", row | {"event": "test", "best_epoch": 2, watched: value - 0.05})
        run.note_provenance(data=data, notes=notes, nets=nets, score=dataclasses.asdict(score))
        run.note_provenance(samples={"train": 60})
        workspace.write_json(folder / "config.json", {"recipe_digest": run.recipe.digest, **config.flat()})
        workspace.write_json(folder / "result.json", {"nets": []})
        return folder

    def read(self):
        return report.read_study(self.folder)

    def compared(self):
        return report.comparisons(self.read().frame)

    def execute(self):
        return executed("06_study", run_dir=str(self.folder), train=False)

    def models(self):
        return self.read().frame["model"].unique().tolist()


@pytest.fixture
def space(home):  # without a workspace, every read searches for one
    return Workspace(home)


@pytest.fixture
def study(space):
    """Two models at two fractions, three seeds each."""
    for fraction in (HIGH, LOW):  # in arbitrary order
        nets = {"hybrid": HYBRID[fraction], "classical": CLASSICAL[fraction]}
        space.write(f"frozen-{fraction}", nets, fraction, name="frozen", notes=[TWICE])
        space.write(f"cnn-{fraction}", {"reference": REFERENCE[fraction]}, fraction, "cnn", notes=5)
    return space


# --- reading -----------------------------------------------------------------------------------------------


def test_one_row_per_model_net_fraction_and_seed(study):
    data = study.read()
    assert (data.planned, data.finished, data.left_out) == (4, 4, {})
    frame = data.frame
    order = frame[["model", "net", "train_fraction", "seed"]].to_numpy().tolist()
    assert len(frame) == 18 and order[:4] == [["frozen", "hybrid", *each] for each in
                                              ((LOW, 0), (LOW, 1), (LOW, 2), (HIGH, 0))]  # fmt: skip
    assert frame["model"].unique().tolist() == ["frozen", "cnn"]
    row = frame.query("net == 'classical' and train_fraction == 0.5 and seed == 1").iloc[0]
    assert row[["accuracy", "macro_f1", "loss", "ece"]].tolist() == pytest.approx([0.712, 0.702, 0.5, 0.02])
    assert row[["quantum", "classical", "frozen", "seconds_per_epoch"]].tolist() == [24, 1000, 3, 0.25]
    assert math.isnan(row["circuits_per_image"]), "these runs do not record it"
    assert row["run"] == "frozen-0.5" and row["data"] == "one"
    assert len(data.curves) == 2 * len(frame)
    curve = data.curves.query("net == 'hybrid' and train_fraction == 0.5 and seed == 1")
    assert curve["epoch"].tolist() == [1, 2] and curve["validation"].tolist() == pytest.approx([0.71, 0.76])


HALF, WHOLE = {"train_fraction": LOW}, {"train_fraction": HIGH}


@pytest.mark.parametrize(
    ("settings", "models"),
    [
        ([{"circuit": "random", "n_layers": 2}, {"epochs": 2}], ["random, n_layers 2", "epochs 2"]),
        ([{"circuit": "random"}, WHOLE], ["random", "digits_quanv"]),
        # net names only if nothing else distinguishes models
        ([{"head": "a", "controls": []}, {"head": "b", "controls": ["classical"]}], ["a", "b"]),
        ([{"controls": []}, {"controls": ["classical"]}], ["controls none", "controls classical"]),
        # no epochs if each fraction has its own number, for equal updates
        ([HALF | {"epochs": 6}, WHOLE | {"epochs": 3}], ["digits_quanv"]),
        ([each | {"epochs": n} for each in (HALF, WHOLE) for n in (6, 3)], ["epochs 6", "epochs 3"]),
        ([WHOLE | {"epochs": 6}, WHOLE | {"epochs": 3}], ["epochs 6", "epochs 3"]),
    ],
)  # fmt: skip
def test_a_model_is_named_by_what_varies(space, settings, models):
    for number, each in enumerate(settings):
        options = {name: value for name, value in each.items() if name not in ("head", "train_fraction")}
        space.write(str(number), TWO, each.get("train_fraction", HIGH), **options)  # it has no `head`
        space.runs[-1]["settings"] = each
    space.plan("last", {})
    assert space.models() == models and space.read().finished == len(settings)


def test_a_run_that_differs_from_its_plan_is_named_by_its_settings(space):
    for id_, epochs in (("a", 1), ("b", 2)):
        space.write(id_, {"hybrid": [0.9], "classical": [0.8]}, epochs=epochs)
    space.runs[-1]["settings"] |= {"epochs": 1, "n_layers": 7}
    space.plan("last", {"train_fraction": 1.0, "epochs": 3})
    assert [each.split(", ")[1:] for each in space.models()] == [["epochs 1"], ["epochs 2", "n_layers 2"]]


def test_an_extended_seed_is_another_model(space):
    for seed in (0, 1):
        folder = space.write(str(seed), {"hybrid": [0.9], "classical": [0.8]}, seed=seed)
    config = recipes.settings("digits_quanv", epochs=2)
    runs.Run(folder, config).note_provenance(extended=[{"from": 1, "to": 2}])
    assert space.models() == ["digits_quanv", "digits_quanv, epochs 2"]


def test_recipes_of_one_name_are_two_models_and_seeds_in_separate_runs_are_one(space):
    for id_, seed in {"a": 0, "b": 0, "c": 1, "again": 1}.items():
        options = {"recipe": "cnn" if id_ == "b" else "digits_quanv", "data": "one" if seed else "other"}
        space.write(id_, {"hybrid": [0.9], "classical": [0.8]}, name="net", seed=seed, **options)
        space.runs[-1]["settings"]["seed"] = seed
    study = space.read()
    assert study.frame.groupby("model", sort=False)["run"].unique().map(list).tolist() == [["a", "c"], ["b"]]
    assert study.notes[-1].endswith(f"data (their fingerprints differ): {study.frame['model'].iloc[0]}.")


# --- contents ----------------------------------------------------------------------------------------------


def test_comparisons_are_paired_and_corrected_over_the_table(study):
    table, notes = study.compared()
    pairs = table[["model", "net", "other_model", "other_net", "train_fraction"]].to_numpy().tolist()
    others = [("frozen", "classical"), ("cnn", "reference")]
    assert pairs == [["frozen", "hybrid", *other, share] for other in others for share in (LOW, HIGH)]
    theirs = [CLASSICAL[LOW], CLASSICAL[HIGH], REFERENCE[LOW], REFERENCE[HIGH]]
    ours = [HYBRID[LOW], HYBRID[HIGH]] * 2
    tested = [scipy_stats.ttest_rel(a, b) for a, b in zip(ours, theirs, strict=True)]
    assert table["p"].tolist() == pytest.approx([each.pvalue for each in tested])
    first = tested[0].confidence_interval(0.95)
    assert table.loc[0, ["low", "high"]].tolist() == pytest.approx([first.low, first.high])
    assert table["p_holm"].tolist() == pytest.approx(holm(table["p"])) and notes == []
    assert table["verdict"].tolist() == ["better", "undecided", "undecided", "worse"]
    assert set(table["family"]) == {4} and set(table["min_difference"]) == {0.01}
    lines = report.verdict(table).splitlines()
    assert lines[0] == "All comparisons: 1 better, 1 worse, 0 equivalent, 2 undecided of 4."
    rival = "Against a classical layer of as many weights as the circuit"
    assert f"{rival}: 1 better, 0 worse, 0 equivalent, 1 undecided of 2." in lines
    assert "no verdict on any difference" in report.verdict(pd.DataFrame())


def test_hybrid_nets_of_two_models_are_compared_by_the_largest_margin(space):
    for name, scores, margin in (("frozen", HYBRID, 2.0), ("trainable", CLASSICAL, 50.0)):
        nets = {"hybrid": scores[LOW], "classical": CLASSICAL[LOW]}
        space.write(name, nets, LOW, name=name, min_difference=margin)
    data = space.read()
    table, notes = report.comparisons(data.frame, data.score, data.min_difference)
    assert notes == [] and len(table) == 3 and set(table["min_difference"]) == {0.5}
    assert table.loc[2, ["model", "other_model", "other_net"]].tolist() == ["frozen", "trainable", "hybrid"]
    assert table["p"][2] == pytest.approx(scipy_stats.ttest_rel(HYBRID[LOW], CLASSICAL[LOW]).pvalue)
    assert table["p_equivalent"].max() < 0.05


@pytest.mark.parametrize(
    ("options", "paired", "note"),
    [
        ({"seed": 0}, ([0.9, 0.8], [0.82, 0.71]), "compared over the seeds that both have (2)."),
        ({"seed": 1, "data": "other"}, None, "not compared, because their data differ."),
        ({"seed": 1, "data": None}, None, "not compared, because a run has no fingerprint of its data."),
        ({"seed": 7}, None, "not compared, because no finished run of the second has the same seeds."),
    ],
)
def test_which_nets_are_paired_by_seed_and_which_are_not_compared(space, options, paired, note):
    space.write("a", {"hybrid": [0.9, 0.8, 0.85], "classical": [0.8, 0.7, 0.9]}, seed=1)
    space.write("b", {"reference": [0.5, 0.82, 0.71]}, recipe="cnn", **options)
    table, notes = space.compared()
    assert notes == [f"digits_quanv hybrid and cnn reference, 100 %: {note}"]
    rows = table.query("other_net == 'reference'")
    if paired is None:
        assert not len(rows) and table["other_net"].tolist() == ["classical"]
    else:
        assert rows["seeds"].tolist() == [2] and math.isnan(rows["effect_size"].iloc[0])
        assert rows["p"].tolist() == pytest.approx([scipy_stats.ttest_rel(*paired).pvalue])


def test_a_smaller_loss_is_better_and_intervals_stay_in_range(space, monkeypatch):
    monkeypatch.setattr(plots, "stamped", lambda *args: Figure(figsize=(1, 1)))  # empty, for speed
    losses = {"hybrid": [2.500, 2.510, 2.490], "lora": [2.600, 2.613, 2.588], "vera": [0.2, 5.0, 9.0]}
    space.write("text", losses, recipe="text_adapter", score=stats.LOSS)
    names = space.execute()
    means = names["means"].set_index("net")
    scores = means.loc["hybrid", ["loss", "perplexity"]].tolist()
    assert scores == pytest.approx([2.5, math.exp(2.5)], rel=1e-4)
    assert means.loc["vera", "loss_low"] > 0 and means.loc["vera", "perplexity_low"] == 1
    text = report.verdict(names["compared"])
    assert "Against LoRA, which has no circuit: 1 better, 0 worse, 0 equivalent, 0 undecided of 1." in text
    head = (space.folder / "study" / "means.tex").read_text()
    assert "test loss (nats / token)" in head and "test perplexity" in head and "accuracy" not in head


def test_the_command_writes_the_page_and_study_of_its_runs(study):
    """`qnnkit report` executes 06_study; models may have any names."""
    damaged, odd = "Left out 2 files that cannot be read.", {"hybrid": [0.8, 0.7, 0.6]}
    study.write("odd", odd, name="a_b & 100 % ~^#{", data="other", notes=[damaged, TWICE])
    done = CliRunner().invoke(cli.app, ["report", str(study.folder)])
    assert done.exit_code == 0, done.output
    place, path = study.folder / "study", study.folder / "report.html"
    assert f"Study: {place}" in done.output and f"Report: {path}" in done.output
    data, page, executed = study.read(), path.read_text(), study.folder / "06_study.ipynb"
    before = executed.stat().st_mtime_ns
    drawn = {f"{name}.{kind}" for name in DRAWN for kind in ("png", "pdf")}
    assert {each.name for each in place.iterdir()} == TABLES | drawn
    assert all(data.stamp.encode() in each.read_bytes() for each in place.iterdir())
    assert set(pd.read_csv(place / "runs.csv", dtype=str)["stamp"]) == {data.stamp}
    notes = [f"Data of 3 of 5 runs: {TWICE}", f"Data of 1 of 5 runs: {damaged}"]
    lines = report.verdict(study.compared()[0]), *notes, "their data differ"
    assert all(each in (place / "conclusions.txt").read_text() for each in lines)
    assert all(f"<li>{each}</li>" in page for each in notes)
    assert page.count("data:image/png;base64,") == len(DRAWN), "figures come from the notebook"
    assert "Paired comparisons</h2>" in page and 'href="06_study.ipynb"' in page
    assert 'href="study/"' in page and data.stamp in page and "report.read_study" not in page, "code"
    report.analyze_batch(study.folder, again=False)
    assert executed.stat().st_mtime_ns == before and path.read_text() == page, "a file is rewritten"
    study.plan("waiting", {"recipe": "frozen"})
    page = report.write_batch_page(study.folder).read_text()
    assert page.count("data:image/png;base64,") == len(DRAWN), "figures come from the last executed copy"


def test_the_stamp_changes_only_with_results_and_settings(study):
    before = study.read().stamp
    study.plan("waiting", {"recipe": "frozen"})
    study.runs.reverse()
    study.plan("also", {"recipe": "frozen"})
    assert study.read().stamp == before
    place = study.root / "runs" / "cnn-0.5"
    for file, old, new in (("config.json", b'"batch_size": 128', b'"batch_size": 64'),
                           ("config.json", b'"min_difference": null', b'"min_difference": 3.0'),
                           ("metrics.jsonl", b"0.75", b"0.76"), ("result.json", b"[]", b"[1]")):  # fmt: skip
        content = (place / file).read_bytes()
        assert old in content
        (place / file).write_bytes(content.replace(old, new))
        assert study.read().stamp != before, file
        (place / file).write_bytes(content)
    assert study.read().stamp == before


def test_names_are_not_read_as_latex_html_or_mathematics(space):
    """Figures do not depend on the date. A single seed is drawn, though it shows nothing."""
    hostile = r"$a_b$ & 5 %{c}#^~\input{x}<b>, a name as long as those of several settings are"
    space.write("a", {"hybrid": [0.99], "classical": [0.10]}, name=hostile)
    names, drawn = space.execute(), space.folder / "study" / "scores.pdf"
    first, table = drawn.read_bytes(), names["compared"]
    figure = next(report.draw(names["study"], names["means"]))
    assert figure.get_tightbbox().x0 >= 0, "a name is truncated"
    assert first == drawn.read_bytes() and first[:5] == b"%PDF-" and b"/Type3" not in first
    assert table[["low", "high", "effect_size", "p", "p_holm"]].isna().all().all()
    assert "0 better, 0 worse, 0 equivalent, 1 undecided of 1." in report.verdict(table)
    style = names["style"].to_html()
    assert "<b>" not in style and "&lt;b&gt;" in style
    for name in ("means.tex", "comparisons.tex"):
        body = (space.folder / "study" / name).read_text().split("\n", 1)[1]
        words = r"\$a\_b\$ \& 5 \%\{c\}\#\textasciicircum \textasciitilde \textbackslash input\{x\}"
        assert words in body.replace("~", "") and r"\input{x}" not in body and r"\toprule" in body
        assert "nan" not in body
        bare = re.sub(r"\\[&%$#_{}]", "", body)
        assert not re.search(r"[%#^~]", bare), "a special character is not escaped"
        lines = [line for line in bare.splitlines() if line.rstrip().endswith(r"\\")]
        assert len({line.count("&") for line in lines}) == 1, "a name adds columns"
    assert pd.read_csv(space.folder / "study" / "runs.csv")["model"].unique().tolist() == [hostile]


def test_a_batch_with_nothing_to_study(space):
    space.plan("waiting", {})
    with pytest.raises(RuntimeError, match="No run has finished"):
        space.execute()
    assert "No run has finished yet." in report.analyze_batch(space.folder).read_text()
    assert not (space.folder / "study").exists()


def test_varied_splits_are_compared_by_the_corrected_test(space):
    """Three splits of two seeds: means per split, with 20 test samples for 60 training samples."""
    for split, (hybrid, classical) in enumerate([(0.90, 0.80), (0.86, 0.80), (0.88, 0.81)]):
        scores = {"hybrid": [hybrid - 0.01, hybrid + 0.01], "classical": [classical, classical]}
        space.write(f"run-{split}", scores, data=f"data {split}", split_seed=split)
    study = space.read()
    assert study.frame["model"].nunique() == 1 and len(study.frame) == 12
    compared, notes = report.comparisons(study.frame)
    [row] = compared.to_dict("records")
    expected = stats.compare([0.90, 0.86, 0.88], [0.80, 0.80, 0.81], ratio=1 / 3)
    assert not notes and (row["seeds"], row["unit"]) == (3, "splits")
    assert row["p"] == pytest.approx(expected["p"]) and row["low"] == pytest.approx(expected["low"])
    means, wide = report.means(study.frame), stats.ACCURACY.interval([0.90, 0.86, 0.88], [20] * 3, 1 / 3)
    assert means["seeds"].tolist() == [3, 3] and means["accuracy_low"][0] == pytest.approx(wide.low)
    page = report.write_batch_page(space.folder).read_text()
    assert "corrected resampled t-test" in page and "Paired by split" in page


def test_with_vary_split_every_seed_has_its_own_split(tmp_path):
    """In loaders, rows, comparison and page."""
    small = {"epochs": 1, "n_layers": 1, "hidden": 4, "controls": ["classical"], "train_fraction": 0.05}
    run = runs.open_run(tmp_path / "run", "digits_quanv", n_seeds=2, seed=3, vary_split=True, **small)
    runs.train_all(run)
    [row] = report.finish(run)["comparisons"]
    assert row["unit"] == "splits" and "corrected resampled t-test" in run.report.read_text()
    frame = report.frame_of(run)
    assert frame["split_seed"].tolist() == [3, 4] * 2 and frame["data"].nunique() == 2
    small |= {"controls": [], "n_seeds": 1, "seed": 4, "split_seed": 4}
    [alone] = runs.train_all(runs.open_run(tmp_path / "alone", "digits_quanv", **small))
    assert alone["test_accuracy"] == frame.query("net == 'hybrid' and seed == 4")["accuracy"].item()
    again = runs.open_run(run.folder)
    assert again.splits.fingerprint() == again.provenance["data"] != again.splits_of(4).fingerprint()


def test_many_models_get_tables_and_up_to_eight_get_figures(space):
    for index in range(9):
        nets = {"hybrid": [0.9, 0.8 - index / 100], "classical": [0.8, 0.75]}
        space.write(f"run-{index}", nets, 60, name=f"model {index}")
    study = space.read()
    means, (compared, notes) = report.means(study.frame), report.comparisons(study.frame)
    for shown in report.study.best(study, means):
        of_eight = {(f"model {index}", "60 samples") for index in range(8)}
        assert {*zip(shown["model"], shown["data"], strict=True)} == of_eight
    assert len(means) == 18 and set(compared["other_net"]) == {"classical"}
    assert notes[0].startswith("9 hybrid nets are not compared")


def test_a_batch_reports_a_notebook_that_stops(study, monkeypatch, capsys):
    from qnnkit.cli_output import show_batch

    stops = raises(runs.NotebookError("Notebook 06_study.ipynb stopped: mine."))
    monkeypatch.setattr("qnnkit.report.batch_page.launch", stops)
    show_batch(study.folder, again=False)
    message = "The page of the batch could not be made: Notebook 06_study.ipynb stopped: mine"
    assert message in capsys.readouterr().out
    page = (study.folder / "report.html").read_text()
    assert "1 better, 1 worse, 0 equivalent, 2 undecided of 4." in page and "frozen-1.0" in page


def test_the_best_settings_on_validation_are_named_for_every_net(space):
    for rate, hybrid, classical in ((0.1, 0.7, 0.9), (0.2, 0.8, 0.6)):
        nets = {"hybrid": [hybrid, hybrid - 0.1], "classical": [classical, classical - 0.1]}
        space.write(f"a{rate}", nets, learning_rate=rate, quantum_learning_rate=5 * rate)
    means = step_sizes.tried(str(space.folder)).set_index(["net", "learning_rate"])
    assert means.loc[means["chosen"]].index.tolist() == [("classical", 0.1), ("hybrid", 0.2)]
    assert means.loc[("hybrid", 0.2), "mean"] == pytest.approx(0.70)  # on validation images
    space.plan("waiting", {})
    with pytest.raises(ValueError, match=r"have not finished: waiting\. Run the batch again"):
        step_sizes.tried(str(space.folder))
