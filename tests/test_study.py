"""Studies: what tables and sentences say is what the run folders say, and nothing that they do not show."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image
from scipy import stats as scipy_stats
from typer.testing import CliRunner

import qnnkit
from qnnkit import cli, data, models, plots, recipes, report, runs, stats, workspace
from qnnkit.plots.study import stamped
from qnnkit.report.tables import latex
from tests.toys import Digits

SEEDS = 3
TABLES = {"conclusions.txt", "runs.csv", "means.csv", "means.tex", "comparisons.csv", "comparisons.tex"}
DRAWN = {"scores", "curves", "fractions", "costs"}


class Frozen(Digits):
    """A hybrid net."""

    class Settings(data.Images, models.QuanvSettings, qnnkit.Settings):
        epochs: int = 12
        threads: int = 1

    @staticmethod
    def build(settings, splits, seed):
        return models.QuanvNet(settings, **splits.sizes, seed=seed)


class Reference(Digits):
    """A net without a circuit."""

    @staticmethod
    def build(splits, seed):
        config = models.CNNSettings(width=2, hidden=4)
        return models.SmallCNN(config, **splits.sizes, seed=seed)


Frozen.__name__, Reference.__name__ = "frozen", "cnn"
TOYS = {"frozen": Frozen, "cnn": Reference}


class Workspace:
    """Writes a batch: real run folders, begun, trained in words, finished by the real report."""

    def __init__(self, root):
        self.root, self.folder, self.runs = root, root / "batches" / "grid", []
        self.folder.mkdir(parents=True)

    def plan(self, id_, settings):
        self.runs.append({"id": id_, "folder": f"../../runs/{id_}", "settings": settings})
        content = {"name": "grid", "recipe": ["frozen", "cnn"], "runs": self.runs}
        (self.folder / "batch.json").write_text(json.dumps(content))
        return self.root / "runs" / id_

    def begin(self, id_, recipe, fraction, scores, n_seeds=None, seed=0, name=None, controls=("classical",)):
        """A run with an accuracy per net and seed: `scores` is net -> accuracies."""
        settings = {"recipe": name or recipe, "train_fraction": fraction}
        folder = self.plan(id_, settings)
        extra = {} if recipe == "cnn" else {"controls": list(controls)}
        extra |= {"trainable": False} if "classical_trained" in controls else {}
        n_seeds = n_seeds or len(next(iter(scores.values())))
        run = runs.open_run(
            folder, TOYS[recipe], train_fraction=fraction, n_seeds=n_seeds, seed=seed, **extra
        )
        for net, accuracies in scores.items():
            for index, accuracy in enumerate(accuracies):
                where = {"net": net, "seed": seed + index}
                for epoch in (1, 2):
                    row = {"event": "epoch", "epoch": epoch, "seconds": 0.5, "train_loss": 1.0}
                    row |= {"validation_loss": 1.0, "validation_accuracy": accuracy - 0.1 / epoch}
                    run.log("metrics", row | where)
                row = {"event": "test", **where, "best_epoch": 2, "validation_accuracy": accuracy - 0.05}
                row |= {"test_accuracy": accuracy, "test_loss": 0.5, "test_macro_f1": accuracy - 0.01}
                row |= {"test_ece": 0.02, "quantum": 24, "classical": 1000, "frozen": 3}
                run.log("metrics", row | {"seconds_per_epoch": 0.25})
        return run

    def finish(self, *words, data="one", notes=(), **options):
        run = self.begin(*words, **options)
        run.note_provenance(data=data, notes=list(notes))
        report.finish(run)
        return run


@pytest.fixture
def space(tmp_path, monkeypatch):
    """A workspace with two recipes: a hybrid net, and a reference without a circuit."""
    digits = runs.Run.splits.func(runs.Run(tmp_path, recipes.settings("digits_quanv")))
    monkeypatch.setattr(runs.Run, "splits", digits)  # fingerprints are the tests' own
    return Workspace(tmp_path)


LOW, HIGH = 0.5, 1.0
HYBRID = {LOW: [0.80, 0.81, 0.83], HIGH: [0.90, 0.92, 0.91]}
CLASSICAL = {LOW: [0.70, 0.712, 0.731], HIGH: [0.91, 0.90, 0.93]}
REFERENCE = {LOW: [0.75, 0.79, 0.78], HIGH: [0.95, 0.969, 0.961]}


@pytest.fixture
def study(space):
    """Two models at two fractions, three seeds each."""
    for fraction in (HIGH, LOW):  # in no order
        scores = {"hybrid": HYBRID[fraction], "classical": CLASSICAL[fraction]}
        space.finish(f"frozen-{fraction}", "frozen", fraction, scores)
        space.finish(f"cnn-{fraction}", "cnn", fraction, {"reference": REFERENCE[fraction]})
    return space


# --- reading -----------------------------------------------------------------------------------------------


def test_one_row_per_model_net_fraction_and_seed(study):
    found = report.read_study(study.folder)
    assert (found.planned, found.finished, found.left_out) == (4, 4, ())
    frame = found.frame
    assert len(frame) == 3 * 2 * SEEDS
    order = frame[["model", "net", "train_fraction", "seed"]].to_numpy().tolist()
    assert order[:4] == [
        ["frozen", "hybrid", LOW, 0],
        ["frozen", "hybrid", LOW, 1],
        ["frozen", "hybrid", LOW, 2],
        ["frozen", "hybrid", HIGH, 0],
    ]
    assert frame["model"].unique().tolist() == ["frozen", "cnn"]
    row = frame.query("net == 'classical' and train_fraction == 0.5 and seed == 1").iloc[0]
    assert row[["accuracy", "macro_f1", "nll", "ece"]].tolist() == pytest.approx([0.712, 0.702, 0.5, 0.02])
    assert row[["quantum", "classical", "frozen", "seconds_per_epoch"]].tolist() == [24, 1000, 3, 0.25]
    assert math.isnan(row["circuits_per_image"]), "not recorded by these runs"
    assert row["run"] == "frozen-0.5" and row["data"] == "one"
    assert found.curves["cnn", "reference"][HIGH].shape == (SEEDS, 2)
    assert found.curves["frozen", "hybrid"][LOW][1].tolist() == pytest.approx([0.71, 0.76])


def test_runs_that_are_not_whole_are_left_out_and_counted(study):
    study.plan("waiting", {"recipe": "frozen", "train_fraction": 0.1})
    study.begin("begun", "frozen", 0.1, {"hybrid": [0.5], "classical": [0.5]})
    for name, file, content in (
        ("broken", "result.json", b"half"),
        ("edited", "metrics.jsonl", None),
        ("foreign", "config.json", b"[]"),
        ("shapeless", "result.json", b"[1]"),
    ):
        run = study.finish(name, "frozen", 0.1, {"hybrid": [0.5, 0.6], "classical": [0.4, 0.5]})
        path = run.folder / file
        path.write_bytes(content or path.read_bytes().replace(b"0.6", b"0.9"))
    lost = study.finish("lost", "frozen", 0.1, {"hybrid": [0.5, 0.6], "classical": [0.4, 0.5]})
    (lost.folder / "SHA256SUMS").unlink(missing_ok=True)
    rows = (lost.folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (lost.folder / "metrics.jsonl").write_text("".join(rows[:-1]))
    found = report.read_study(study.folder)
    assert (found.planned, found.finished, len(found.frame)) == (11, 4, 18)
    told = {each.split()[1]: each for each in found.left_out}
    assert told["waiting"] == (
        "Run waiting (recipe frozen, train_fraction 0.1) is left out: it has not finished."
    )
    assert told["begun"].endswith("is left out: it has not finished.")
    assert told["broken"].endswith("its result.json is damaged.")
    assert told["shapeless"].endswith("its result.json is damaged.")
    assert told["edited"].endswith("its metrics.jsonl has changed since it finished.")
    assert told["foreign"].endswith("its config.json is damaged.")
    assert told["lost"].endswith("its metrics.jsonl tells no test accuracy of classical, seed 1.")


def test_seeds_in_runs_of_their_own_are_one_model(space):
    for seed in range(3):
        scores = {"hybrid": [0.9 + 0.01 * seed], "classical": [0.8]}
        space.finish(f"run-{seed}", "frozen", HIGH, scores, seed=seed)
        space.runs[-1]["settings"]["seed"] = seed
    space.finish("again", "frozen", HIGH, {"hybrid": [0.1], "classical": [0.1]}, seed=2)
    frame = report.read_study(space.folder).frame
    assert frame.query("net == 'hybrid'")["accuracy"].tolist() == pytest.approx([0.9, 0.91, 0.92])


def test_a_model_is_called_by_what_varies(space):
    for id_, settings in (("a", {"circuit": "random", "n_layers": 2}), ("b", {"train_fraction": 1.0})):
        space.finish(id_, "frozen", HIGH, {"hybrid": [0.9], "classical": [0.8]})
        space.runs[-1]["settings"] = settings
    space.plan("last", {})
    assert report.read_study(space.folder).frame["model"].unique().tolist() == [
        "random, n_layers 2",
        "frozen",
    ]


# --- what it shows -----------------------------------------------------------------------------------------


def test_means_by_hand(study):
    table = report.means(report.read_study(study.folder).frame)
    assert len(table) == 6
    row = table.query("net == 'hybrid' and train_fraction == 0.5").iloc[0]
    low, high = scipy_stats.t.interval(0.95, 2, np.mean(HYBRID[LOW]), scipy_stats.sem(HYBRID[LOW]))
    assert row["seeds"] == 3 and row["accuracy"] == pytest.approx(np.mean(HYBRID[LOW]))
    assert (row["accuracy_low"], row["accuracy_high"]) == pytest.approx((low, high))
    assert row["macro_f1"] == pytest.approx(row["accuracy"] - 0.01) and math.isnan(row["ece_low"]), (
        "the same on all seeds"
    )


def test_comparisons_are_paired_and_corrected_over_the_table(study):
    table, notes = report.comparisons(report.read_study(study.folder).frame)
    assert notes == []
    pairs = table[["model", "net", "other_model", "other_net", "train_fraction"]].to_numpy().tolist()
    assert pairs == [
        ["frozen", "hybrid", "frozen", "classical", LOW],
        ["frozen", "hybrid", "frozen", "classical", HIGH],
        ["frozen", "hybrid", "cnn", "reference", LOW],
        ["frozen", "hybrid", "cnn", "reference", HIGH],
    ]
    others = [CLASSICAL[LOW], CLASSICAL[HIGH], REFERENCE[LOW], REFERENCE[HIGH]]
    ours = [HYBRID[LOW], HYBRID[HIGH]] * 2
    tested = [scipy_stats.ttest_rel(a, b) for a, b in zip(ours, others, strict=True)]
    assert table["p"].tolist() == pytest.approx([each.pvalue for each in tested])
    first = tested[0].confidence_interval(0.95)
    assert table.loc[0, ["low", "high"]].tolist() == pytest.approx([first.low, first.high])
    by_size = sorted(each.pvalue for each in tested)
    expected = np.maximum.accumulate([(4 - k) * p for k, p in enumerate(by_size)]).clip(max=1)
    assert sorted(table["p_holm"]) == pytest.approx(expected.tolist())
    told = report.conclusions(table)
    assert told[0].startswith("Of 4 comparisons over the same seeds and splits, 2 show a difference")
    assert told[0].endswith("Percentages are shares of the training data.")
    assert told[1] == (
        "frozen hybrid did better than frozen classical at 50 %, by 9.9 points; no difference is shown at "
        "100 %."
    )
    assert told[2] == (
        "cnn reference did better than frozen hybrid at 100 %, by 5.0 points; no difference is shown at 50 %."
    )
    assert told[3].startswith("Beside the classical control of equal size, the circuit did better in 1 of 2")
    assert told[4].startswith("All seeds saw the same training, validation and test data at a fraction:")
    assert "not the choice of the training data or of the test data" in told[4] and len(told) == 5


def test_hybrid_nets_of_different_models_are_compared(space):
    other = {LOW: [0.70, 0.712, 0.731], HIGH: [0.91, 0.90, 0.93]}
    for fraction in (LOW, HIGH):
        for name, scores in (("frozen", HYBRID), ("trainable", other)):
            nets = {"hybrid": scores[fraction], "classical": CLASSICAL[fraction]}
            space.finish(f"{name}-{fraction}", "frozen", fraction, nets, name=name)
    table, notes = report.comparisons(report.read_study(space.folder).frame)
    pairs = table[["model", "net", "other_model", "other_net", "train_fraction"]].to_numpy().tolist()
    assert notes == [] and len(pairs) == 6
    assert pairs[4:] == [["frozen", "hybrid", "trainable", "hybrid", share] for share in (LOW, HIGH)]
    tested = scipy_stats.ttest_rel(HYBRID[LOW], other[LOW])
    assert table["p"][4] == pytest.approx(tested.pvalue)
    assert table["p_holm"][4] >= 4 * tested.pvalue, "corrected in the one family"
    assert "frozen hybrid did better than trainable hybrid at 50 %, by 9.9 points" in " ".join(
        report.conclusions(table)
    )
    assert report.told_comparisons(table)["beside"].tolist()[3:] == ["classical"] + ["trainable hybrid"] * 2
    space.finish("off", "frozen", LOW, {"hybrid": [0.9, 0.8], "classical": [0.8, 0.7]}, name="x", data="two")
    _, notes = report.comparisons(report.read_study(space.folder).frame)
    assert "trainable hybrid and x hybrid, 50 %: not compared, for they saw different data." in notes


def test_a_frozen_circuit_stands_beside_both_classical_controls(space):
    scores = {
        "hybrid": [0.80, 0.81, 0.83],
        "classical": [0.70, 0.712, 0.731],
        "classical_trained": [0.90, 0.912, 0.931],
    }
    nets = ("classical", "classical_trained")
    space.finish("a", "frozen", HIGH, scores, controls=nets)
    trained = {"hybrid": [0.5, 0.7, 0.6], "classical": [0.6, 0.5, 0.7]}
    space.finish("b", "frozen", HIGH, trained, name="trainable")
    told = report.conclusions(report.comparisons(report.read_study(space.folder).frame)[0])
    frozen, learned, equal = (each for each in told if each.startswith("Beside"))
    assert frozen == (
        "Beside the classical control that is as frozen as the circuit (frozen classical), the circuit did "
        "better in 1 of 1 case and worse in 0; in 0 no difference is shown. That holds for these data, these "
        "settings and these seeds."
    )
    assert learned == (
        "Beside the classical control that is trained, though the circuit is frozen (frozen "
        "classical_trained), the circuit did better in 0 of 1 case and worse in 1; in 0 no difference is "
        "shown. Where the data decide, the classical control wins; no advantage of a circuit over it is "
        "shown."
    )
    assert equal.startswith("Beside the classical control of equal size (trainable classical), the circuit")


def test_notes_on_the_data_are_told_and_counted(space):
    damaged, twice = "Left out 2 files that cannot be read.", "3 images stand in two splits."
    scores = {"hybrid": [0.9, 0.8, 0.7], "classical": [0.8, 0.75, 0.6]}
    space.finish("a", "frozen", HIGH, scores, notes=[damaged, twice])
    space.finish("b", "frozen", LOW, scores, notes=[twice])
    space.finish("c", "cnn", LOW, {"reference": [0.5, 0.6, 0.7]})
    (space.root / "runs" / "c" / "provenance.json").write_text('{"data": "one", "notes": 5}')
    expected = [f"Data of 1 of 3 runs: {damaged}", f"Data of 2 of 3 runs: {twice}"]
    study = report.write_study(space.folder)
    assert study is not None and list(study.notes) == expected
    place = space.folder / "study"
    assert json.loads((place / "index.json").read_text())["notes"][:2] == expected
    assert all(each in (place / "conclusions.txt").read_text() for each in expected)
    told = CliRunner().invoke(cli.app, ["report", str(space.folder)])
    page = (space.folder / "report.html").read_text()
    for each in expected:
        assert f"Note: {each}" in told.output and f"<li>{each}</li>" in page


def test_unequal_seeds_are_paired_by_seed(space):
    space.finish("a", "frozen", HIGH, {"hybrid": [0.9, 0.8, 0.85], "classical": [0.8, 0.7, 0.9]}, seed=1)
    space.finish("b", "cnn", HIGH, {"reference": [0.5, 0.82, 0.71]}, seed=0)
    table, notes = report.comparisons(report.read_study(space.folder).frame)
    row = table.query("other_net == 'reference'").iloc[0]
    tested = scipy_stats.ttest_rel([0.9, 0.8], [0.82, 0.71])  # seeds 1 and 2
    assert row["seeds"] == 2 and row["p"] == pytest.approx(tested.pvalue)
    assert notes == ["frozen hybrid and cnn reference, 100 %: compared over the 2 seeds that both have."]
    assert math.isnan(row["effect_size"])


def test_one_seed_shows_nothing(space):
    space.finish("a", "frozen", HIGH, {"hybrid": [0.99], "classical": [0.10]})
    assert report.write_study(space.folder) is not None
    table, _ = report.comparisons(report.read_study(space.folder).frame)
    assert table[["low", "high", "effect_size", "p", "p_holm"]].isna().all().all()
    told = " ".join(report.conclusions(table))
    assert "0 show a difference" in told and "1 cannot be tested" in told and "did better than" not in told
    assert (space.folder / "study" / "costs.png").exists()


@pytest.mark.parametrize(("data", "why"), [("other", "saw different data"), (None, "keeps no fingerprint")])
def test_other_data_are_not_compared(space, data, why):
    space.finish("a", "frozen", HIGH, {"hybrid": [0.9, 0.8], "classical": [0.8, 0.75]})
    space.finish("b", "cnn", HIGH, {"reference": [0.5, 0.6]}, data=data)
    table, notes = report.comparisons(report.read_study(space.folder).frame)
    assert table["other_net"].tolist() == ["classical"]
    assert len(notes) == 1 and "frozen hybrid and cnn reference, 100 %: not compared" in notes[0]
    assert why in notes[0]
    report.write_study(space.folder)
    assert why in (space.folder / "study" / "conclusions.txt").read_text()


def of_texts(space, id_, recipe, data="one", **losses):
    """A finished run as its folder tells it, with a loss per net and seed."""
    nets = list(losses)
    settings = {"n_seeds": 3, "epochs": 1, "controls": nets[1:]}
    folder = space.plan(id_, {"recipe": recipe})
    folder.mkdir(parents=True)
    digest = recipes.find(recipe).digest
    config = {"recipe_digest": digest, **recipes.settings(recipe, **settings).flat()}
    score = dataclasses.asdict(stats.SCORES["loss" if recipe.startswith("text") else "recall_1"])
    name = score["name"]
    watched = "validation_loss" if name == "loss" else "validation_accuracy"
    for net, values in losses.items():
        for seed, value in enumerate(values):
            row = {"net": net, "seed": seed, "best_epoch": 1, watched: value, "quantum": 3, "classical": 5}
            epoch = {"net": net, "seed": seed, "event": "epoch", "epoch": 1, watched: value}
            test = {"event": "test", f"test_{name}": value, "test_loss": value, "seconds_per_epoch": 0.5}
            for each in (epoch, row | test | {"test_perplexity": math.exp(value)}):
                workspace.append_line(folder / "metrics.jsonl", each)
    for file, content in (
        ("config", config),
        ("result", {"nets": []}),
        ("provenance", {"data": data, "nets": nets}),
    ):
        (folder / f"{file}.json").write_text(json.dumps(content))
    path = space.folder / "batch.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"recipe": [recipe], "score": score}))


ADAPTER, LORA = [2.500, 2.510, 2.490], [2.600, 2.613, 2.588]


def test_of_a_loss_the_least_is_better(space):
    of_texts(space, "text", "text_adapter", hybrid=ADAPTER, lora=LORA)
    study = report.write_study(space.folder)
    assert study is not None and study.score.name == "loss"
    [row] = report.means(study.frame, study.score).query("net == 'hybrid'").to_dict("records")
    assert row["loss"] == pytest.approx(2.5) and row["perplexity"] == pytest.approx(math.exp(2.5), rel=1e-4)
    told = report.conclusions(report.comparisons(study.frame, study.score)[0], study.score)
    assert told[1] == "text_adapter hybrid did better than text_adapter lora, by 0.100 nats per token less."
    assert told[2].startswith("Beside LoRA, which has no circuit, the circuit did better in 1 of 1 case and")
    means = report.told_means(report.means(study.frame, study.score), study.score)
    assert {"loss (nats / token)", "perplexity"} < set(means) and "accuracy (%)" not in means
    table = report.told_comparisons(report.comparisons(study.frame, study.score)[0], study.score)
    assert table["difference (nats per token)"].tolist() == ["−0.100"]
    place = space.folder / "study"
    assert "test loss of hybrid nets minus" in (place / "comparisons.tex").read_text()
    with Image.open(place / "scores.png") as image:
        assert image.text["Title"] == "Test loss"
    page = CliRunner().invoke(cli.app, ["report", str(space.folder)]).output
    assert "- text_adapter hybrid did better than text_adapter lora, by 0.100 nats per token less." in page


def test_a_run_of_another_score_is_left_out(space):
    scores = {"hybrid": [0.5, 0.6, 0.7], "classical": [0.4, 0.41, 0.45]}
    of_texts(space, "clip", "digits_clip", **scores)
    space.plan("image", {}).mkdir(parents=True)
    for name in ("config.json", "metrics.jsonl", "result.json", "provenance.json"):
        content = (space.root / "runs" / "clip" / name).read_text()
        (space.root / "runs" / "image" / name).write_text(content)
    place = space.root / "runs" / "image" / "provenance.json"
    own = {"score": dataclasses.asdict(stats.ACCURACY)}
    place.write_text(json.dumps(json.loads(place.read_text()) | own))
    path, score = space.folder / "batch.json", dataclasses.asdict(stats.SCORES["recall_1"])
    path.write_text(json.dumps(json.loads(path.read_text()) | {"score": score}))
    study = report.read_study(space.folder)
    assert study.score.name == "recall_1" and study.frame["recall_1"].tolist() == [
        *scores["hybrid"],
        *scores["classical"],
    ]
    [why] = study.left_out
    assert why.endswith("its nets are compared by accuracy, those of the batch by recall@1.")
    axes = report.figures(study)["costs"].axes[0]
    assert axes.get_ylabel() == "test recall@1 (%), 95 % interval" and axes.lines[0].get_ydata() == [60]


# --- what is written ---------------------------------------------------------------------------------------


def test_every_file_names_the_runs_behind_it(study):
    found = report.write_study(study.folder)
    assert found is not None and re.fullmatch("[0-9a-f]{12}", found.stamp)
    place = study.folder / "study"
    index = json.loads((place / "index.json").read_text())
    assert set(index["files"]) == TABLES | {f"{name}.{kind}" for name in DRAWN for kind in ("png", "pdf")}
    assert {path.name for path in place.iterdir()} == {*index["files"], "index.json"}
    assert index["stamp"] == found.stamp and index["left_out"] == [] and len(index["conclusions"]) == 5
    for name in TABLES:
        content = (place / name).read_text()
        if name.endswith(".csv"):
            assert set(pd.read_csv(io.StringIO(content), dtype=str)["stamp"]) == {found.stamp}
        elif name.endswith(".tex"):
            assert content.splitlines()[0].startswith(f"% qnnkit study grid {found.stamp}; needs ")
        else:
            assert found.stamp in content and index["conclusions"][1] in content
    for name in DRAWN:
        with Image.open(place / f"{name}.png") as image:
            assert found.stamp in image.text["Stamp"] and image.text["Title"] and image.text["Description"]
        assert found.stamp.encode() in (place / f"{name}.pdf").read_bytes()
    frame = pd.read_csv(place / "runs.csv")
    assert len(frame) == 18 and frame["accuracy"].sum() == pytest.approx(found.frame["accuracy"].sum())


def test_the_stamp_changes_with_a_result_and_with_nothing_else(study):
    before = report.read_study(study.folder).stamp
    run = runs.open_run(study.root / "runs" / "cnn-0.5")
    report.finish(run)  # writes report and result anew, at another time
    study.plan("waiting", {"recipe": "frozen"})
    study.runs.reverse()
    study.plan("also", {"recipe": "frozen"})
    assert report.read_study(study.folder).stamp == before
    run.log("metrics", run.rows("metrics")[-1] | {"test_accuracy": 0.5})
    (run.folder / "result.json").unlink()
    report.finish(run)
    assert report.read_study(study.folder).stamp != before


def test_the_stamp_knows_the_settings(space):
    stamps = []
    for id_, fraction in (("a", LOW), ("b", HIGH)):
        space.finish(id_, "frozen", fraction, {"hybrid": [0.9], "classical": [0.8]})
        stamps.append(report.read_study(space.folder).stamp)
        space.runs.clear()
    assert stamps[0] != stamps[1]


def test_latex_takes_every_name(space):
    hostile = r"a_b & 50 % {c} $d$ #1 ^~\input{x}"
    scores = {"hybrid": [0.9, 0.8], "classical": [0.8, 0.75]}
    space.finish("a", "frozen", HIGH, scores, name=hostile)
    report.write_study(space.folder)
    for name in ("means.tex", "comparisons.tex"):
        text = (space.folder / "study" / name).read_text()
        body = text.split("\n", 1)[1]
        assert r"a\_b \& 50 \% \{c\} \$d\$ \#1 \textasciicircum{}\textasciitilde{}" in body
        assert r"\textbackslash{}input\{x\}" in body and r"\input{x}" not in body
        assert r"\toprule" in body and r"\bottomrule" in body
        bare = re.sub(r"\\[&%$#_{}]", "", body)
        assert not re.search(r"[%#^~]", bare), "a special character without its backslash"
        assert bare.count("$") % 2 == 0 and bare.count("{") == bare.count("}")
        table_rows = [line for line in bare.splitlines() if line.rstrip().endswith(r"\\")]
        assert len({line.count("&") for line in table_rows}) == 1, "a name makes columns of its own"
    assert pd.read_csv(space.folder / "study" / "runs.csv")["model"].unique().tolist() == [hostile]


def test_latex_of_numbers():
    table = pd.DataFrame({"net": ["a"], "difference": ["−1.5 ± 0.2"], "p": ["< 0.001"]})
    text = latex(table, "50 % of it", "stamp\nwith a line")
    assert "$-$1.5 $\\pm$ 0.2 & $<$ 0.001" in text and r"50 \% of it" in text
    assert text.splitlines()[0] == r"% stamp with a line; needs \usepackage{booktabs}"


def test_nothing_to_study(space):
    with pytest.raises(FileNotFoundError, match="must hold a batch"):
        report.read_study(space.folder)
    space.begin("begun", "frozen", HIGH, {"hybrid": [0.5], "classical": [0.5]})
    assert report.write_study(space.folder) is None and not (space.folder / "study").exists()


def test_more_models_than_colours_are_tables_only(space):
    for index in range(8):
        scores = {"hybrid": [0.9, 0.8], "classical": [0.8, 0.75]}
        space.finish(f"run-{index}", "frozen", HIGH, scores, name=f"model {index}")
        if index == 6:
            report.write_study(space.folder)
            assert (space.folder / "study" / "scores.pdf").exists()
    report.write_study(space.folder)
    assert not list((space.folder / "study").glob("*.p[nd][gf]")), "figures of an earlier state"
    assert (space.folder / "study" / "means.csv").exists()
    why = "No figures are drawn: 8 models are more than the 7 that colours tell apart."
    assert why in (space.folder / "study" / "conclusions.txt").read_text()
    assert f"Note: {why}" in CliRunner().invoke(cli.app, ["report", str(space.folder)]).output
    study = report.read_study(space.folder)
    assert len(study.notes) == 1 and study.notes[0].startswith(why)
    table, notes = report.comparisons(study.frame)
    assert set(table["other_net"]) == {"classical"}
    assert notes[0].startswith("Hybrid nets are not compared with one another: of 8 models")


# --- the command and the page ------------------------------------------------------------------------------


def test_report_of_a_batch(study):
    told = CliRunner().invoke(cli.app, ["report", str(study.folder)])
    assert told.exit_code == 0, told.output
    assert "Study of 4 runs:" in told.output
    assert "- frozen hybrid did better than frozen classical at 50 %" in told.output
    assert f"Study: {study.folder / 'study'}" in told.output
    assert f"Report: {study.folder / 'report.html'}" in told.output
    page = (study.folder / "report.html").read_text()
    assert "frozen hybrid did better than frozen classical at 50 %" in page
    assert 'href="study/means.tex"' in page and 'href="study/scores.pdf"' in page
    refused = CliRunner().invoke(cli.app, ["report", "--verify", str(study.folder)])
    assert isinstance(refused.exception, ValueError) and "is a batch" in str(refused.exception)


def test_report_of_a_batch_without_results(space):
    space.plan("waiting", {})
    told = CliRunner().invoke(cli.app, ["report", str(space.folder)])
    assert told.exit_code == 0 and "Study" not in told.output
    assert "What the data show" not in (space.folder / "report.html").read_text()


@pytest.mark.parametrize("content", ["{", "[]", '{"conclusions": 5, "files": []}'])
def test_a_damaged_index_costs_the_page_nothing(study, content):
    report.write_study(study.folder)
    (study.folder / "study" / "index.json").write_text(content)
    assert "What the data show" not in report.write_batch_page(study.folder).read_text()


# --- figures -----------------------------------------------------------------------------------------------

NETS = ("hybrid", "classical", "no_entanglement", "frozen_random", "no_quantum")


def arrays(models_, fractions, n_seeds):
    """Made-up numbers of models with all nets, and of a reference."""
    keys = [(model, net) for model in models_ for net in NETS] + [("cnn", "reference")]
    seeds = {
        key: {
            share: [0.6 + 0.3 * share + 0.01 * i + 0.001 * s for s in range(n_seeds)] for share in fractions
        }
        for i, key in enumerate(keys)
    }
    spread = 0.01 if n_seeds > 1 else math.nan
    found = {
        key: {share: (values[0], values[0] - spread, values[0] + spread) for share, values in each.items()}
        for key, each in seeds.items()
    }
    curves = {key: {share: np.linspace(0.2, 0.9, 6).reshape(1, 6) for share in fractions} for key in keys}
    costs = {
        key: {"weights": 1e3 * 10**i, "circuits": math.nan, "seconds": 0.1 + i} for i, key in enumerate(keys)
    }
    return seeds, found, curves, costs


@pytest.mark.parametrize(
    ("models_", "fractions", "n_seeds"),
    [
        (["letters_frozen", "letters"], (0.1, 0.25, 0.5, 1.0), 10),
        (
            ["data_reuploading, n_layers 10, learning_rate 0.001", r"$x_1$ \&"],
            (0.01, 0.25, 0.5, 0.75, 1.0),
            2,
        ),
        ([], (1.0,), 1),
    ],
)
def test_nothing_overlaps(models_, fractions, n_seeds):
    """Names of panels, axes, ticks in view and legend, and the stamp below them."""
    seeds, found, curves, costs = arrays(models_, fractions, n_seeds)
    last = {key: each[1.0] for key, each in found.items()}
    for figure in (
        plots.study_scores(found, seeds),
        plots.study_curves(curves),
        plots.study_fractions(found),
        plots.study_costs(last, costs),
    ):
        stamped(figure, "qnnkit study a_study_of_some_name 0123456789ab")
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        texts = [*figure.texts, *(text for legend in figure.legends for text in legend.get_texts())]
        for axes in figure.axes:
            texts += [axes.title, axes.xaxis.label, axes.yaxis.label]
            for axis in (axes.xaxis, axes.yaxis) if axes.axison else ():
                low, high = sorted(axis.get_view_interval())
                shown = zip(axis.get_major_ticks(), axis.get_majorticklocs(), strict=True)
                texts += [tick.label1 for tick, at in shown if low <= at <= high]
        boxes = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text().strip()]
        for index, (one, a) in enumerate(boxes):
            assert a.x0 > -1 and a.x1 < figure.bbox.x1 + 1 and a.y0 > -1 and a.y1 < figure.bbox.y1 + 1, one
            for other, b in boxes[index + 1 :]:
                width, height = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
                assert width <= 1 or height <= 1, (one, other)


def test_models_have_colours_and_nets_have_markers():
    seeds, found, *_ = arrays(["a", "b"], (0.5, 1.0), 3)
    figure = plots.study_fractions(found)
    assert [axes.get_title() for axes in figure.axes] == ["a", "b"]
    for axes, colour in zip(figure.axes, plots.COLOURS, strict=False):
        looks = [(line.get_color(), line.get_marker()) for line in axes.lines]
        assert looks[:5] == [(colour, marker) for marker in ("o", "s", "^", "v", "D")]
        assert looks[5] == (plots.COLOURS[2], "P"), "the reference stands in every panel"
        assert axes.get_xscale() == "log" and axes.get_xticks().tolist() == [50, 100]
        assert [label.get_text() for label in axes.get_xticklabels()] == ["50", "100"]
    alone = plots.study_scores(*({k: v for k, v in each.items() if k[0] == "a"} for each in (found, seeds)))
    dots = [line for line in alone.axes[0].lines if line.get_marker() == "."]
    assert len({line.get_color() for line in dots}) == 5, "of one model, colour tells the nets"
    assert len(dots[0].get_xdata()) == 3


def test_costs_that_nobody_recorded_are_said_to_be_missing():
    _, found, _, costs = arrays(["a"], (1.0,), 3)
    last = {key: each[1.0] for key, each in found.items()}
    weights, circuits, seconds = plots.study_costs(last, costs).axes
    assert [text.get_text() for text in circuits.texts] == ["not recorded"] and circuits.lines[:] == []
    assert weights.get_xscale() == seconds.get_xscale() == "log"
    assert [axes.get_xlabel() for axes in (weights, circuits, seconds)] == [
        "trained weights",
        "circuits per sample",
        "training time of an epoch (s)",
    ]


def test_a_pdf_keeps_its_text_and_is_the_same_each_time():
    _, found, _, _ = arrays(["a"], (0.5, 1.0), 3)
    one, other = (plots.study_fractions(found).pdf(Title="Größe", Keywords="abc") for _ in range(2))
    assert one == other and one[:5] == b"%PDF-" and b"abc" in one and b"/Type3" not in one


def test_the_study_file_trains_as_many_as_it_says():
    """docs/study.yaml: recipes, nets, fractions and seeds."""
    path = Path(__file__).parent.parent / "docs" / "study.yaml"
    told, content = path.read_text(), yaml.safe_load(path.read_text())
    shares, seeds = content["grid"]["train_fraction"], content["settings"]["n_seeds"]
    nets = [len(recipes.settings(name).controls) + 1 for name in content["recipe"]]
    assert f"{len(shares) * len(nets)} runs train {len(shares)} fractions x {seeds} seeds" in told
    assert f"these {sum(nets)} nets" in told and f"{len(shares) * seeds} trainings of a net" in told
    for name in content["recipe"]:
        assert all(control in told for control in recipes.settings(name).controls)
    assert content["settings"]["epochs"] == 10
