"""Studies: what tables and sentences say is what the run folders say, and nothing that they do not show."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
import yaml
from matplotlib.figure import Figure
from PIL import Image
from scipy import stats as scipy_stats
from typer.testing import CliRunner

import qnnkit
from benchmarks import settings as step_sizes
from qnnkit import cli, data, models, plots, recipes, report, runs, stats, workspace
from tests.showing import Batch, Page, log_epochs, log_test
from tests.toys import Digits, refused

ROOT = Path(__file__).parent.parent
SEEDS = 3
# seaborn.objects calls pandas with an argument that pandas 3 no longer needs
pytestmark = pytest.mark.filterwarnings("ignore:The copy keyword is deprecated")


def execute(folder, changed=()):
    """Executes the cells of 06_study on a batch that has been run, in this process; returns their names."""
    displayed = []
    names = {"run_dir": str(folder), "train": False, "recipe": "digits_quanv", "display": displayed.append}
    names |= {"epochs": 1, "n_seeds": 1, "fractions": [1.0], "data_dir": None, "pretrained": None}
    names |= {"workers": None}
    for cell in nbformat.read(ROOT / "notebooks" / "06_study.ipynb", as_version=4).cells:
        if cell.cell_type == "code" and not cell.metadata.get("tags"):
            source = cell.source
            for old, new in changed:
                source = source.replace(old, new)
            exec(compile(source, f"cell {cell.id}", "exec"), names)
    return names


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


class Workspace(Batch):
    """Real run folders, begun, trained in words, finished by the real report."""

    def begin(
        self, id_, recipe, fraction, scores, n_seeds=None, seed=0, name=None, controls=("classical",), **more
    ):
        """A run with an accuracy per net and seed: `scores` is net -> accuracies."""
        settings = {"recipe": name or recipe, "train_fraction": fraction}
        folder = self.plan(id_, settings)
        extra = {} if recipe == "cnn" else {"controls": list(controls)}
        extra |= more | ({"trainable": False} if "classical_trained" in controls else {})
        n_seeds = n_seeds or len(next(iter(scores.values())))
        run = runs.open_run(
            folder, TOYS[recipe], train_fraction=fraction, n_seeds=n_seeds, seed=seed, **extra
        )
        for net, accuracies in scores.items():
            for index, accuracy in enumerate(accuracies):
                log_epochs(run, net, seed + index, [accuracy - 0.1, accuracy - 0.05])
                row = {"validation_accuracy": accuracy - 0.05, "test_macro_f1": accuracy - 0.01}
                row |= {"test_loss": 0.5, "test_ece": 0.02, "classical": 1000, "frozen": 3}
                log_test(run, net, seed + index, accuracy, seconds_per_epoch=0.25, **row)
        return run

    def finish(self, *words, data="one", notes=(), **options):
        run = self.begin(*words, **options)
        run.note_provenance(data=data, notes=list(notes))
        report.finish(run)
        return run


WINE = """
import numpy as np
import pennylane as qml
import qnnkit
from qnnkit import data, tasks
from torch import nn


class Settings(qnnkit.Settings):
    epochs: int = 1
    threads: int = 1


def load(settings):
    labels = np.arange(60) % 3
    return data.arrays(settings, np.eye(3)[labels] + 0.01 * np.arange(60)[:, None], labels, name="wine")


def build(settings, splits, seed):
    def circuit(inputs, weights):
        qml.AngleEmbedding(inputs, wires=range(3))
        qml.BasicEntanglerLayers(weights, wires=range(3))
        return [qml.expval(qml.PauliZ(wire)) for wire in range(3)]

    qnode = qml.QNode(circuit, qml.device("default.qubit", wires=3))
    return qnnkit.QuantumLayer(qnode, {"weights": (1, 3)})


def task(settings):
    return tasks.Classification(label_smoothing=0.1)
"""


def test_pages_and_paper_of_a_recipe_of_arrays_speak_of_what_it_has(tmp_path):
    """No images, no quanvolution, and so few updates that noise is not measured."""
    (tmp_path / "wine.py").write_text(WINE)
    space = Batch(tmp_path, "wine.py")
    folder = space.plan("one", {"epochs": 1})
    run = runs.open_run(
        folder, tmp_path / "wine.py", n_seeds=2, controls=["no_entanglement", "frozen_random"]
    )
    list(runs.train_all(run))
    runs.launch(
        runs.find_notebook("04_analyze"),
        run.notebook("04_analyze"),
        {"run_dir": str(folder), "recipe": str(tmp_path / "wine.py")},
    )
    page, copy = Page(run.report.read_text()), nbformat.read(run.notebook("04_analyze"), as_version=4)
    sections = [
        line[3:] for cell in copy.cells for line in cell.source.splitlines() if line.startswith("## ")
    ]
    without = {
        "Find qnnkit",
        "Parameters",
        "Groups of the test split",
        "What the circuit sees",
        "Look inside",
    }
    shown = [name for name in sections if name not in without | {"Write the report"}]
    assert len(shown) == 7 and all(f"\n{name}\n" in page.text for name in shown)
    assert not [name for name in without if name in page.text]
    told = re.sub(r"\s+", " ", page.text).split("How it was made")[0]
    for word in ("image", "caption", "chord", "nan"):
        assert word not in told.lower(), word
    for sentence in (
        "24 test samples",
        "no_entanglement, the same circuit without entanglement; frozen_random, "
        "the same circuit left at random angles.",
        "Label smoothing of 0.1",
        "not corrected",
    ):
        assert sentence in told, sentence
    with Image.open(run.folder / "figures" / "10_gradients.png") as figure:
        assert figure.width < 700, "a panel of its own for noise that was not measured"
    execute(space.folder)
    report.write_batch_page(space.folder)
    report.write_paper(space.folder, tmp_path / "paper")
    methods = (tmp_path / "paper" / "methods.tex").read_text()
    assert "loaded by the recipe itself ('wine', inputs of shape 3, 3 classes)" in methods
    assert "train / validate / test: 24 / 12 / 24" in methods and run.splits.fingerprint()[:12] in methods


@pytest.fixture
def space(tmp_path, monkeypatch):
    """A workspace with two recipes: a hybrid net, and a reference without a circuit."""
    digits = runs.Run.splits.func(runs.Run(tmp_path, recipes.settings("digits_quanv")))
    monkeypatch.setattr(runs.Run, "splits", digits)  # fingerprints are the tests' own
    return Workspace(tmp_path, ["frozen", "cnn"])


@pytest.fixture
def undrawn(monkeypatch):
    """Figures of a study are empty, and quick: what is tested stands in its tables."""
    monkeypatch.setattr(plots, "stamped", lambda *given: Figure(figsize=(1, 1)))


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
    assert (found.planned, found.finished, found.left_out) == (4, 4, {})
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
    assert row[["accuracy", "macro_f1", "loss", "ece"]].tolist() == pytest.approx([0.712, 0.702, 0.5, 0.02])
    assert row[["quantum", "classical", "frozen", "seconds_per_epoch"]].tolist() == [24, 1000, 3, 0.25]
    assert math.isnan(row["circuits_per_image"]), "not recorded by these runs"
    assert row["run"] == "frozen-0.5" and row["data"] == "one"
    assert len(found.curves) == 2 * len(frame)
    curve = found.curves.query("net == 'hybrid' and train_fraction == 0.5 and seed == 1")
    assert curve["epoch"].tolist() == [1, 2] and curve["validation"].tolist() == pytest.approx([0.71, 0.76])


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
    told = found.left_out
    assert told["waiting"] == told["begun"] == "it has not finished."
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


@pytest.mark.parametrize(
    ("settings", "models"),
    [
        (
            [{"head": "full", "controls": []}, {"head": "linear", "controls": ["classical"]}],
            ["full", "linear"],
        ),
        ([{"controls": []}, {"controls": ["classical"]}], ["controls ", "controls classical"]),
    ],
)
def test_controls_are_in_the_name_only_where_nothing_else_tells_models_apart(space, settings, models):
    for id_, each in zip("ab", settings, strict=True):
        space.finish(id_, "frozen", HIGH, {"hybrid": [0.9], "classical": [0.8]})
        space.runs[-1]["settings"] = each
    space.plan("last", {})
    assert report.read_study(space.folder).frame["model"].unique().tolist() == models


# --- what it shows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epochs", "models"),
    [
        ({0.5: [6], 1.0: [3]}, ["frozen"]),  # as many updates at each fraction
        ({0.5: [6, 3], 1.0: [3, 6]}, ["frozen, epochs 6", "frozen, epochs 3"]),
        ({1.0: [6, 3]}, ["frozen, epochs 6", "frozen, epochs 3"]),
    ],
)
def test_epochs_that_go_with_the_fraction_are_no_other_model(space, epochs, models):
    for index, (share, each) in enumerate((share, n) for share, all_of in epochs.items() for n in all_of):
        scores = {"hybrid": [0.5, 0.6], "classical": [0.4, 0.5]}
        space.finish(f"r{index}", "frozen", share, scores, epochs=each)
        space.runs[-1]["settings"]["epochs"] = each
    space.plan("last", {})
    frame = report.read_study(space.folder).frame
    assert frame["model"].unique().tolist() == models
    assert len(frame) == 4 * sum(map(len, epochs.values()))


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
    assert table["result"].tolist() == ["better", "no difference shown", "no difference shown", "worse"]
    told = report.verdict(table)
    assert told.startswith("Of 4 comparisons over the same seeds and splits, 2 show a difference")
    assert "Against the classical control of equal size, the circuit did better in 1 of 2 cases" in told


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
    assert table["result"][4] == "better"
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
    told = report.verdict(report.comparisons(report.read_study(space.folder).frame)[0])
    assert told.splitlines()[0].endswith("for all of them); that holds for these data, settings and seeds.")
    assert (
        "Against the classical control that is as frozen as the circuit, the circuit did better in 1 of 1 "
        "case and worse in 0." in told.splitlines()
    )
    assert (
        "Against the classical control that is trained, though the circuit is frozen, the circuit did better "
        "in 0 of 1 case and worse in 1; where the data decide, the classical control wins." in told
    )
    assert "Against the classical control of equal size, the circuit did better in 0 of 1 case" in told


def test_notes_on_the_data_are_told_and_counted(space, undrawn):
    damaged, twice = "Left out 2 files that cannot be read.", "3 images stand in two splits."
    scores = {"hybrid": [0.9, 0.8, 0.7], "classical": [0.8, 0.75, 0.6]}
    space.finish("a", "frozen", HIGH, scores, notes=[damaged, twice])
    space.finish("b", "frozen", LOW, scores, notes=[twice])
    space.finish("c", "cnn", LOW, {"reference": [0.5, 0.6, 0.7]})
    (space.root / "runs" / "c" / "provenance.json").write_text('{"data": "one", "notes": 5}')
    expected = [f"Data of 1 of 3 runs: {damaged}", f"Data of 2 of 3 runs: {twice}"]
    execute(space.folder)
    assert list(report.read_study(space.folder).notes) == expected
    told, page = ((space.folder / name).read_text() for name in ("study/conclusions.txt", "report.html"))
    assert all(each in told and f"<li>{each}</li>" in page for each in expected)


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
    table, _ = report.comparisons(report.read_study(space.folder).frame)
    assert table[["low", "high", "effect_size", "p", "p_holm"]].isna().all().all()
    told = report.verdict(table)
    assert "0 show a difference" in told and "1 cannot be tested" in told and "did better than" not in told
    execute(space.folder)
    assert (space.folder / "study" / "costs.png").exists()


@pytest.mark.parametrize(("data", "why"), [("other", "saw different data"), (None, "keeps no fingerprint")])
def test_other_data_are_not_compared(space, data, why, undrawn):
    space.finish("a", "frozen", HIGH, {"hybrid": [0.9, 0.8], "classical": [0.8, 0.75]})
    space.finish("b", "cnn", HIGH, {"reference": [0.5, 0.6]}, data=data)
    table, notes = report.comparisons(report.read_study(space.folder).frame)
    assert table["other_net"].tolist() == ["classical"]
    assert len(notes) == 1 and "frozen hybrid and cnn reference, 100 %: not compared" in notes[0]
    assert why in notes[0]
    execute(space.folder)
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
    names = execute(space.folder)
    study, place = names["study"], space.folder / "study"
    assert study.score.name == "loss"
    [row] = names["means"].query("net == 'hybrid'").to_dict("records")
    assert row["loss"] == pytest.approx(2.5) and row["perplexity"] == pytest.approx(math.exp(2.5), rel=1e-4)
    told = report.verdict(names["compared"])
    assert "Against LoRA, which has no circuit, the circuit did better in 1 of 1 case and" in told
    head = (place / "means.tex").read_text()
    assert "test loss (nats / token)" in head and "test perplexity" in head and "accuracy" not in head
    assert "better" in (place / "comparisons.tex").read_text()
    assert "-0.100" in (place / "comparisons.tex").read_text()
    with Image.open(place / "scores.png") as image:
        assert image.text["Title"].startswith("Test loss")


def test_a_run_of_another_score_is_left_out(space, undrawn):
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
    assert study.left_out == {"image": "its nets are compared by accuracy, those of the batch by recall@1."}
    execute(space.folder)
    assert "test recall@1 (\\%)" in (space.folder / "study" / "means.tex").read_text()


# --- what is written ---------------------------------------------------------------------------------------


def test_every_file_names_the_runs_behind_it(study):
    found, place = execute(study.folder)["study"], study.folder / "study"
    assert re.fullmatch("[0-9a-f]{12}", found.stamp)
    drawn = {f"{name}.{kind}" for name in DRAWN for kind in ("png", "pdf")}
    assert {path.name for path in place.iterdir()} == TABLES | drawn
    for name in TABLES:
        content = (place / name).read_text()
        if name.endswith(".csv"):
            assert set(pd.read_csv(io.StringIO(content), dtype=str)["stamp"]) == {found.stamp}
        elif name.endswith(".tex"):
            assert content.splitlines()[0].startswith(f"% qnnkit study grid {found.stamp}; needs ")
        else:
            assert found.stamp in content and report.verdict(report.comparisons(found.frame)[0]) in content
    for name in DRAWN:
        with Image.open(place / f"{name}.png") as image:
            assert found.stamp in image.text["Stamp"] and image.text["Title"]
        assert found.stamp.encode() in (place / f"{name}.pdf").read_bytes()
    frame = pd.read_csv(place / "runs.csv")
    assert len(frame) == 18 and frame["accuracy"].sum() == pytest.approx(found.frame["accuracy"].sum())
    page = (study.folder / "report.html").read_text()
    assert 'href="study/means.tex"' in page and page.count("data:image/png;base64,") == len(DRAWN)
    (place / "old.pdf").write_bytes(b"qnnkit study grid 0123456789ab")
    assert "old.pdf" not in report.write_batch_page(study.folder).read_text(), "of other runs"


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


def test_latex_takes_every_name(space, undrawn):
    hostile = r"a_b & 50 % {c} $d$ #1 ^~\input{x}"
    scores = {"hybrid": [0.9, 0.8], "classical": [0.8, 0.75]}
    space.finish("a", "frozen", HIGH, scores, name=hostile)
    execute(space.folder)
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


def test_latex_of_words(space):
    space.finish("a", "frozen", HIGH, {"hybrid": [0.9], "classical": [0.8]})
    table = pd.DataFrame({"net": ["a"], "difference": ["−1.5 ± 0.2"], "p": ["< 0.001"], "seeds": [3]})
    report.read_study(space.folder).save(table.style.hide(axis="index"), "table", "50 % of it")
    text = (space.folder / "study" / "table.tex").read_text()
    assert "$-$1.5 $\\pm$ 0.2 & $<$ 0.001 & 3" in text and r"50 \% of it" in text and "{lllr}" in text


def test_nothing_to_study(space):
    with pytest.raises(FileNotFoundError, match="must hold a batch"):
        report.read_study(space.folder)
    space.begin("begun", "frozen", HIGH, {"hybrid": [0.5], "classical": [0.5]})
    assert report.read_study(space.folder).frame.empty
    with pytest.raises(RuntimeError, match="No run has finished"):
        execute(space.folder)
    assert not (space.folder / "study").exists()


def test_many_models_have_tables_and_eight_have_figures(space, undrawn):
    for index in range(9):
        scores = {"hybrid": [0.9, 0.8 - index / 100], "classical": [0.8, 0.75]}
        space.finish(f"run-{index}", "frozen", HIGH, scores, name=f"model {index}")
    names = execute(space.folder)
    assert set(names["rows"]["model"]) == {f"model {index}" for index in range(8)}
    assert len(names["means"]) == 18
    assert set(names["compared"]["other_net"]) == {"classical"}
    assert names["notes"][0].startswith("Hybrid nets are not compared with one another: of 9 models")


def test_a_name_is_no_mathematics_and_a_pdf_is_the_same_each_time(space):
    scores = {"hybrid": [0.9, 0.8], "classical": [0.8, 0.75]}
    space.finish("a", "frozen", HIGH, scores, name=r"$x_1$ \& <script>alert(1)</script>")
    first = [(execute(space.folder), (space.folder / "study" / "scores.pdf").read_bytes()) for _ in range(2)]
    assert first[0][1] == first[1][1] and first[0][1][:5] == b"%PDF-" and b"/Type3" not in first[0][1]
    style = first[0][0]["style"].to_html()
    assert "<script>" not in style and "&lt;script&gt;" in style


# --- the command and the page ------------------------------------------------------------------------------


def test_report_of_a_batch(study):
    """06_study beside the workspace is executed; a finished batch is only printed by `qnnkit batch`."""
    told = CliRunner().invoke(cli.app, ["report", str(study.folder)])
    assert told.exit_code == 0, told.output
    assert "Study of 4 of 4 runs:" in told.output and "2 show a difference" in told.output
    assert f"Study: {study.folder / 'study'}" in told.output
    assert f"Report: {study.folder / 'report.html'}" in told.output
    path = study.folder / "report.html"
    page, written = path.read_text(), path.stat().st_mtime_ns
    assert page.count("data:image/png;base64,") == len(DRAWN), "the figures of the notebook"
    assert "Paired comparisons</h2>" in page and 'href="06_study.ipynb"' in page
    assert "report.read_study" not in page, "code"
    report.analyze_batch(study.folder, again=False)
    assert path.stat().st_mtime_ns == written
    study.plan("waiting", {"recipe": "frozen"})
    report.write_batch_page(study.folder)
    assert path.read_text().count("data:image/png;base64,") == len(DRAWN), "of the last executed copy"
    refused = CliRunner().invoke(cli.app, ["report", "--verify", str(study.folder)])
    assert isinstance(refused.exception, ValueError) and "is a batch" in str(refused.exception)


def test_a_notebook_that_stops_costs_the_batch_a_sentence(study, monkeypatch, capsys):
    from qnnkit.cli_output import show_batch

    monkeypatch.setenv("QNNKIT_HOME", str(study.root))
    mine = nbformat.read(ROOT / "notebooks" / "06_study.ipynb", as_version=4)
    own = [cell for cell in mine.cells if cell.metadata.get("tags") == ["parameters"]]
    mine.cells = [*own, nbformat.v4.new_code_cell("raise ValueError('mine')")]
    (study.root / "notebooks").mkdir()
    nbformat.write(mine, study.root / "notebooks" / "06_study.ipynb")
    show_batch(study.folder, again=False)
    assert "The page of the batch could not be made: Notebook 06_study.ipynb stopped: mine" in (
        capsys.readouterr().out
    )
    page = (study.folder / "report.html").read_text()
    assert "2 show a difference" in page and "frozen-1.0" in page
    with pytest.raises(runs.NotebookError, match="mine"):
        show_batch(study.folder)


def test_the_settings_that_did_best_on_validation_are_named_for_every_net(space, monkeypatch):
    monkeypatch.setenv("QNNKIT_HOME", str(space.root))
    for rate, hybrid, classical in ((0.1, 0.7, 0.9), (0.2, 0.8, 0.6)):
        scores = {"hybrid": [hybrid, hybrid - 0.1], "classical": [classical, classical - 0.1]}
        rates = {"learning_rate": rate, "quantum_learning_rate": 5 * rate}
        space.finish(f"a{rate}", "frozen", HIGH, scores, name=f"rate {rate}", **rates)
    found = step_sizes.tried(str(space.folder)).set_index(["net", "learning_rate"])
    assert found["count"].tolist() == [2] * 4
    assert found.loc[found["chosen"]].index.tolist() == [("classical", 0.1), ("hybrid", 0.2)]
    assert found.loc[("hybrid", 0.2), "mean"] == pytest.approx(0.70)  # on validation images
    space.plan("waiting", {})
    with pytest.raises(ValueError, match=r"have not finished: waiting\. Run the batch again"):
        step_sizes.tried(str(space.folder))


def test_a_folder_for_a_paper_compiles(study, tmp_path):
    """Names of models as people choose them; nothing of other runs, and nothing of the user's is touched."""
    study.finish("odd", "frozen", HIGH, {"hybrid": [0.8, 0.7, 0.6]}, name="a_b & 100 % ~^#{", controls=())
    (study.folder / "study").mkdir()
    (study.folder / "study" / "old.pdf").write_bytes(b"qnnkit study grid 0123456789ab")
    place = tmp_path / "paper"
    place.mkdir()
    (place / "mine.tex").write_text("mine")
    execute(study.folder)  # as the command does it, in this process
    report.write_batch_page(study.folder)
    assert report.write_paper(study.folder, place) == place / "paper.tex"
    found = report.read_study(study.folder)
    made = {"methods.tex", "settings.tex", "paper.tex", "means.tex", "comparisons.tex", "mine.tex"}
    assert {path.name for path in place.iterdir()} == made | {f"{name}.pdf" for name in DRAWN}
    methods = (place / "methods.tex").read_text()
    for told in (
        "3 models",
        r"a\_b \& 100 \%",
        "50 and 100",
        "from 3 seeds",
        found.stamp,
    ):
        assert told in methods, told
    for name in ("methods", "settings", "paper"):
        assert found.stamp in (place / f"{name}.tex").read_text().splitlines()[0]
    if shutil.which("pdflatex") is None:
        pytest.skip("pdflatex is not at hand: what was written was not compiled")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "paper.tex"]
    told = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False, timeout=120)
    assert told.returncode == 0, told.stdout[-2000:]


def test_a_paper_is_of_a_batch_with_a_finished_run(space, tmp_path):
    space.plan("waiting", {})
    told = CliRunner().invoke(cli.app, ["report", str(space.folder), "--paper", str(tmp_path / "paper")])
    assert "must hold a finished run" in str(told.exception) and not (tmp_path / "paper").exists()
    run = space.finish("a", "frozen", HIGH, {"hybrid": [0.8], "classical": [0.7]})
    told = CliRunner().invoke(cli.app, ["report", str(run.folder), "--paper", str(tmp_path / "paper")])
    assert "Option --paper must be given a batch" in str(told.exception)
    (tmp_path / "file").write_text("")
    with refused("--paper"):
        report.write_paper(space.folder, tmp_path / "file")


def test_report_of_a_batch_without_results(space):
    space.plan("waiting", {})
    told = CliRunner().invoke(cli.app, ["report", str(space.folder)])
    assert told.exit_code == 0 and "Study" not in told.output
    assert "No run has finished yet." in (space.folder / "report.html").read_text()


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


# --- the verdict -------------------------------------------------------------------------------------------


def table_of(*rows):
    """(model, net it is compared with, result) as comparisons."""
    made = pd.DataFrame(rows, columns=["model", "other_net", "result"])
    return made.assign(other_model=made["model"])


def test_the_verdict_says_plainly_when_the_classical_control_wins():
    told = report.verdict(table_of(("a", "classical", "worse"), ("c", "classical", "no difference shown")))
    assert told.endswith("in 0 of 2 cases and worse in 1; where the data decide, the classical control wins.")


@pytest.mark.parametrize(
    ("net", "against"),
    [
        ("no_quantum", "the net without a circuit"),
        ("no_entanglement", "the same without entanglement"),
        ("frozen_random", "circuits that stay at random angles"),
        ("reference", "the classical reference"),
        ("vera", "VeRA, which has no circuit"),
        ("mine", "the control `mine`"),
    ],
)
def test_the_verdict_passes_no_rival_over(net, against):
    told = report.verdict(table_of(("a", "classical", "better"), ("a", net, "worse"), ("b", net, "worse")))
    assert f"Against {against}, the circuit did better in 0 of 2 cases and worse in 2; where the" in told


@pytest.mark.parametrize("p", [0.05, 0.3, 1.0, math.nan])
@pytest.mark.parametrize("gap", [-0.4, 0.0, 0.4])
def test_the_verdict_claims_nothing_that_the_corrected_test_does_not_show(space, monkeypatch, gap, p):
    """Also where p of the comparison alone, half of it here, would."""
    space.finish("a", "frozen", HIGH, {"hybrid": [0.5, 0.6 + gap], "classical": [0.5, 0.6]})
    monkeypatch.setattr(stats, "holm", lambda found: [p] * len(found))
    table, _ = report.comparisons(report.read_study(space.folder).frame)
    told = report.verdict(table)
    assert "better in 0 of 1" in told and "worse in 0" in told and "wins" not in told
    assert "no advantage of a circuit is shown" in told and ("1 cannot be tested" in told) == math.isnan(p)


def test_the_verdict_on_nothing():
    assert report.verdict(pd.DataFrame()) == (
        "No two nets could be compared, so nothing can be said of any difference."
    )
