"""What 02 and 04 say of whether circuits can learn, for nets of every kind."""

from __future__ import annotations

import pytest
import torch

from qnnkit import models, report, runs
from qnnkit.report import learning


def begun(folder, recipe="digits_quanv", **settings):
    """A run on few digits, an untrained net of it, and a batch."""
    run = runs.open_run(folder, recipe, **{"n_seeds": 1, "train_fraction": 0.1, "controls": [], **settings})
    model = runs.build(run, run.nets[0], 0)
    train = run.splits.train
    models.table(model, train.images[:1])  # as 02 does: a circuit is known once it has run
    return run, model, (train.images[:16], train.labels[:16])


NETS = {
    "quanv": {},
    "frozen filters": {"filters": 2, "trainable": False, "circuit": "random"},
    "iqp": {"circuit": "hardware_efficient", "embedding": "iqp", "n_layers": 1},
    "amplitude": {"circuit": "strongly_entangling", "embedding": "amplitude"},
    "identity_block": {"initialisation": "identity_block"},
    "resnet": {"recipe": "resnet_circuit_trained", "dataset": "digits", "stem_stride": 1},
}


@pytest.mark.parametrize("name", NETS)
def test_gates_and_expressivity_of_every_kind(tmp_path, capsys, name):
    run, model, batch = begun(tmp_path / "run", **NETS[name])
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert report.keep_gates(run, model, batch) is not None
    rows, figures = report.keep_expressivity(run, model)
    assert {row["circuit"] for row in rows} >= {"angle", run.config.circuit}
    kept = {path.stem for path in (run.folder / "figures").iterdir()}
    assert kept >= {"02_gates", "02_fidelities"} and len(figures) == len(kept) - 1
    told = capsys.readouterr().out
    assert ("02_spectrum" in kept) != told.startswith("Fourier spectrum: "), told
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize(
    "settings", [{}, {"circuit": "hardware_efficient", "n_layers": 3, "embedding": "iqp"}]
)
def test_the_plateau_scan_is_of_the_runs_own_circuit(tmp_path, capsys, settings):
    run, *_ = begun(tmp_path / "run", **settings)
    figure = report.keep_plateau(run, 4, 20)
    assert [axis.get_title() for axis in figure.axes] == ["local observable", "global observable"]
    lines = capsys.readouterr().out.splitlines()
    depth = 2 if not settings else 4  # identity blocks need an even number
    assert [line.split(", ")[:2] for line in lines] == [
        [f"- {observable} observable", f"depth {layers}"]
        for layers in (depth, 4 * depth)
        for observable in ("local", "global")
    ]
    assert report.keep_plateau(run, 3, 20) is None
    assert "plateau_qubits is below 4" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["quanv", "frozen filters", "resnet"])
def test_the_landscape_of_a_trained_net(tmp_path, capsys, name):
    run, *_ = begun(tmp_path / "run", **NETS[name], epochs=1, gradient_samples=0)
    list(runs.train_all(run))
    figures = report.keep_landscape(run)
    assert len(figures) == 2 and {path.stem for path in (run.folder / "figures").iterdir()} == {
        "13_lines",
        "14_plane",
    }
    assert capsys.readouterr().out.startswith("The loss of ")


def test_many_circuits_take_fewer_images(tmp_path, monkeypatch):
    run, *_ = begun(tmp_path / "run", epochs=1, gradient_samples=0)
    list(runs.train_all(run))
    seen = []
    lines = learning.gradients.lines
    monkeypatch.setattr(
        learning.gradients,
        "lines",
        lambda model, task, batch, **more: seen.append(len(batch[0])) or lines(model, task, batch, **more),
    )
    report.keep_landscape(run)
    monkeypatch.setattr(learning, "MOST_CIRCUITS", 49 * 10)  # a digit takes 49
    report.keep_landscape(run)
    assert seen == [64, 10]


def test_nets_without_a_circuit_say_so(tmp_path, capsys):
    run, model, batch = begun(tmp_path / "run", "cnn", width=4, hidden=4, epochs=1)
    assert report.keep_gates(run, model, batch) is None
    assert report.keep_expressivity(run, model) == ([], [])
    list(runs.train_all(run))
    capsys.readouterr()
    assert report.keep_landscape(run) == []
    assert capsys.readouterr().out == "This net has no circuit: there are no angles to move.\n"


def test_the_table_of_gradients(tmp_path, capsys):
    run, *_ = begun(tmp_path / "run", epochs=1, quantum_clip_norm=1e-3, controls=["classical"])
    assert report.gradient_table(run).empty and "must hold gradients" in capsys.readouterr().out
    list(runs.train_all(run))
    table = report.gradient_table(run)
    assert (
        table.loc[("quantum", "all"), "weights"] == 24 and table.loc[("quantum", "all"), "clipped (%)"] == 100
    )
    assert table.xs("all", level="layer")["share (%)"].sum() == pytest.approx(100, abs=2)
    layers = table.drop("all", level="layer")
    assert layers["weights"].sum() == sum(
        weight.numel() for weight in runs.build(run, "hybrid", 0).parameters()
    )
    assert (layers["norm"] > 0).all() and (layers["update / weights"] > 0).all()
