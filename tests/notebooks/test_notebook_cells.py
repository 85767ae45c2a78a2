"""02 to 04b, cell by cell, for nets of every kind: what they show, and what they leave out."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import nbformat
import pandas
import pytest
import torch
from matplotlib import pyplot

from qnnkit import runs

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
TINY = {"n_seeds": 1, "train_fraction": 0.1, "controls": [], "threads": 1}
NETS = {
    "quanv": {},
    "frozen filters": {"filters": 2, "trainable": False, "circuit": "random"},
    "iqp": {"circuit": "hardware_efficient", "embedding": "iqp", "n_layers": 1},
    "amplitude": {"circuit": "strongly_entangling", "embedding": "amplitude"},
    "resnet": {"recipe": "resnet_circuit_trained", "dataset": "digits", "stem_stride": 1},
}
PLATEAUS = {"quanv": ({"2", "8"}, True), "iqp": ({"1", "4"}, False)}
"""Depths in the plateau scan of the run's own circuit, and whether a mirrored one is in it."""


@pytest.fixture(autouse=True)
def style():
    """Figures are not shown; what a notebook sets of matplotlib is put back."""
    with matplotlib.rc_context({"backend": "agg"}):
        yield
        pyplot.close("all")


def begun(folder, recipe="digits_quanv", **settings):
    return runs.open_run(folder, recipe, **TINY | settings)


def cells(name, run, **parameters):
    """Runs the cells of a run's notebook here; returns its variables."""
    return executed(name, **parameters, recipe=None, run_dir=str(run.folder))


def executed(name, **parameters):
    """Runs a notebook's cells here; returns its variables."""
    variables = {}
    for cell in nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells:
        tags = cell.metadata.get("tags", [])
        if cell.cell_type == "code" and "setup" not in tags:
            exec(compile(cell.source, f"{name}, {cell.source[:40]!r}", "exec"), variables)
            variables |= parameters if "parameters" in tags else {}
    return variables


def figures(run):
    return {path.stem for path in (run.folder / "figures").glob("*.png")}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Where the runs of this file are; that of a net goes from test to test, as through the notebooks."""
    return tmp_path_factory.mktemp("runs")


@pytest.mark.parametrize("name", NETS)
def test_the_gradient_check_of_every_kind_of_circuit(place, name):
    run, width = begun(place / name, **NETS[name], epochs=1), 4 if name in PLATEAUS else 2
    shown = cells("02_gradient_check", run, samples=1, plateau_qubits=width, plateau_starts=20)
    assert figures(run) >= {"02_circuit", "02_gates", "02_sizes"}
    fresh = runs.build(run, run.nets[0], 0).state_dict()
    assert all(torch.equal(value, fresh[key]) for key, value in shown["model"].state_dict().items())
    assert ("02_plateau" in figures(run)) == (name in PLATEAUS)
    if name in PLATEAUS:
        depths, mirrored = PLATEAUS[name]
        scan = shown["scan"]
        assert set(scan["depth"]) == depths and set(scan["n_qubits"]) == {2, 4}
        assert ("identity_block" in set(scan["initialisation"])) == mirrored


@pytest.mark.parametrize("name", ["quanv", "frozen filters", pytest.param("resnet", marks=pytest.mark.slow)])
def test_training_and_the_analysis_of_a_trained_net(place, name):
    run = begun(place / name, **NETS[name], epochs=1)
    tried = cells("03_train", run)["losses"]
    assert 0 < len(tried) <= 50 and tried[-1] < tried[0], "a batch that is not learnt"
    again = begun(place / f"{name}, again", **NETS[name], epochs=1)
    alike = ["net", "seed", "test_loss"]
    pandas.testing.assert_frame_equal(
        run.finals()[alike], pandas.DataFrame(runs.train_all(again))[alike], check_exact=True
    )
    shares = cells("04_analyze", run)["shares"]
    assert len(shares) == 3 and shares["as trained"] == pytest.approx(100 * run.finals()["test_accuracy"][0])
    shown = cells("04b_inside", run, hardware_images=0)
    saved = {"04_curves", "05_confusion", "08_circuit", "10_gradients"}
    assert saved <= figures(run) and ("03_comparison" in figures(run)) == (len(run.nets) > 1)
    trains = name != "frozen filters"  # training cannot move frozen angles, so 04 draws no line through them
    assert ("13_landscape" in figures(run)) == trains == bool(shown["lines"])
    circuits = shown["n_circuits"]
    assert not trains or shown["n"] == len(shown["batch"][0]) == max(8, min(64, 4096 // circuits))
    assert run.result is not None and run.result["robustness"] == []


def test_the_recorded_gradients_of_groups_and_layers_and_none_where_they_are_lost(tmp_path):
    run = begun(tmp_path / "run", epochs=1, quantum_clip_norm=1e-3, controls=["classical"])
    list(runs.train_all(run))
    groups = cells("04_analyze", run)["of_groups"]
    assert groups.loc["quantum", "n_weights"] == 24 and groups.loc["quantum", "clipped"] == 1
    assert groups["share"].sum() == pytest.approx(1, abs=0.02)
    last = cells("04b_inside", run, hardware_images=0)["last"]
    layers = last.groupby("layer").first()
    weights = runs.build(run, "hybrid", 0).parameters()
    assert layers["n_weights"].sum() == sum(weight.numel() for weight in weights)
    assert (layers["norm"] > 0).all() and (layers["ratio"] > 0).all()
    (run.folder / "gradients.jsonl").unlink()
    (run.folder / "result.json").unlink()
    cells("04_analyze", run)
    cells("04b_inside", run, hardware_images=0)
    assert run.result is not None and "No gradients are shown:" in run.report.read_text()
