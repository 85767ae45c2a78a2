"""Live statistics: right numbers, the same under a scaler and after a kill; and what is read back."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

import numpy as np
import pennylane as qp
import pytest
import torch
from torch import nn

from qnnkit import gradients, runs, train, workspace
from qnnkit.checkpoint import Store
from qnnkit.gradients import Watch
from qnnkit.gradients.watch import QUANTUM_SKETCH, signal_to_noise
from qnnkit.settings import Settings
from qnnkit.tasks import Classification
from tests.toys import refused
from tests.watched import TASK, Turned, data, groups, layer, net, of, trained

DIGITS = 6e-4
"""Relative: four digits are told."""
ROUNDING = 2e-3
"""Relative, float32 sums in another order, after four digits."""


# --- which updates are looked at ---------------------------------------------------------------------------


@pytest.mark.parametrize(("per_epoch", "updates"), [(16, 45), (1, 7), (5, 5), (16, 3), (7, 100)])
def test_updates_are_evenly_spaced(per_epoch, updates):
    model = net()
    watch = Watch(model, groups(model), per_epoch=per_epoch)
    seen = [update for update in range(updates) if watch.wants(1, update, updates)]
    assert len(seen) == min(per_epoch, updates) and seen[-1] == updates - 1
    assert max(np.diff([-1, *seen])) <= math.ceil(updates / min(per_epoch, updates))
    with refused("per_epoch"):
        Watch(model, [], per_epoch=0)
    first = [update for update in range(updates) if watch.wants(0, update, updates)]
    assert first == sorted({0, 1, *seen})  # the first two of a training do the damage


# --- the numbers -------------------------------------------------------------------------------------------


def series_of(training: gradients.Training, owner: str):
    """The table of a layer, or of a group of layers."""
    frame = training.frame()
    return frame[(frame["layer"] == owner) | ((frame["layer"] == "all") & (frame["group"] == owner))]


@pytest.mark.parametrize("clip", [None, 0.05])
def test_every_number_by_hand(clip):
    """Gradients as backward leaves them, weights before and after a step of plain gradient descent."""
    rate, model, observed = 0.5, net(), []
    made = groups(model, rate, clip_norm=clip)
    watch = Watch(model, made, per_epoch=8)
    optimizer = torch.optim.SGD([{"params": list(group.parameters)} for group in made], lr=rate)
    loaders = data()
    loaders["train"].set_epoch(0)

    def copies(what, tensors):
        return {f"{what} {name}": each.detach().clone() for name, each in tensors}

    for number, batch in enumerate(loaders["train"]):
        optimizer.zero_grad()
        TASK(model, batch).loss.backward()
        wanted = watch.wants(1, number, 12)
        if wanted:
            watch.before()
            step = copies("gradient", ((name, weight.grad) for name, weight in model.named_parameters()))
            step |= copies("before", model.named_parameters())
        for group in made:
            nn.utils.clip_grad_norm_(group.parameters, group.clip_norm or math.inf)
        optimizer.step()
        if wanted:
            watch.after(number + 1)
            observed.append(step | copies("after", model.named_parameters()))
    found = of([watch.end(1, 12)])
    assert found.steps(1) == [2, 3, 5, 6, 8, 9, 11, 12]
    owners = {"first": ["first.weight", "first.bias"], "last": ["last.weight", "last.bias"]}
    owners |= {"circuit": ["circuit.weights"], "classical": [*owners["first"], *owners["last"]]}

    def flat(step, what, names):
        return torch.cat([step[f"{what} {name}"].flatten() for name in names]).double()

    whole = [flat(step, "gradient", [*owners["classical"], *owners["circuit"]]) for step in observed]
    for owner, names in owners.items():
        series = series_of(found, owner)
        each = [flat(step, "gradient", names) for step in observed]
        moved = [flat(step, "after", names) - flat(step, "before", names) for step in observed]
        lengths = [flat(step, "before", names).norm() for step in observed]
        assert set(series["n_weights"]) == {each[0].numel()}
        expected = {
            "norm": [g.norm() for g in each],
            "mean": [g.abs().mean() for g in each],
            "share": [(g.norm() / all_.norm()) ** 2 for g, all_ in zip(each, whole, strict=True)],
            "ratio": [m.norm() / length for m, length in zip(moved, lengths, strict=True)],
        }
        for what, values in expected.items():
            assert series[what].tolist() == pytest.approx(list(map(float, values)), rel=ROUNDING), what
        stacked = torch.stack(each).numpy()
        noise = signal_to_noise(stacked @ stacked.T)
        shown = series[["snr", "snr_low", "snr_high"]].to_numpy()[0]
        assert shown.tolist() == pytest.approx(noise.tolist(), rel=10 * ROUNDING, abs=1e-3, nan_ok=True)
    gradient = torch.stack([flat(step, "gradient", owners["circuit"]) for step in observed])
    names = gradients.weight_names(model.circuit)
    kept = found.gradient("circuit", 1, names)
    assert kept.columns.tolist() == names and kept.to_numpy() == pytest.approx(
        gradient.numpy(), rel=ROUNDING, abs=1e-7
    )
    quantum = series_of(found, "quantum")
    if clip:
        assert set(quantum["clip_norm"]) == {clip} and quantum["norm"].max() > clip
        assert quantum["clipped"].tolist() == (quantum["norm"] > clip).tolist()
    else:
        assert quantum[["clip_norm", "clipped"]].isna().all(axis=None)
    assert found.quantum_layers == ["circuit"]
    assert watch.rows[0]["layers"][0]["step"] == pytest.approx(
        [
            float((s["after circuit.weights"] - s["before circuit.weights"]).square().mean().sqrt())
            for s in observed
        ],
        rel=ROUNDING,
    )


def test_large_parameters_are_sketched():
    """Norms stay exact; means, and what updates are to weights, are met on average."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(200, 300, bias=False), nn.Linear(300, 3))
    watch = Watch(model, [train.Group("classical", list(model.parameters()), 0.1)], per_epoch=4)
    generator = torch.Generator().manual_seed(1)
    for step in range(4):
        for weight in model.parameters():
            weight.grad = torch.randn(weight.shape, generator=generator)
        watch.before()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 0.1 * weight.grad
        watch.after(step + 1)
    exact = [float(weight.grad.norm()) for weight in model.parameters()]
    row = watch.end(1, 4)
    assert row["layers"][0]["norm"][-1] == pytest.approx(exact[0], rel=DIGITS)
    assert row["layers"][1]["norm"][-1] == pytest.approx(math.hypot(*exact[1:]), rel=DIGITS)
    assert row["layers"][0]["mean"] == pytest.approx([math.sqrt(2 / math.pi)] * 4, rel=0.25)
    assert "gradient" not in row["layers"][0] and row["layers"][0]["n_weights"] == 60_000
    assert row["layers"][0]["ratio"][0] == pytest.approx(
        0.1 * exact[0] / (200 * 300 / 3 / 200) ** 0.5, rel=0.3
    )  # nn.Linear draws weights between -1 and 1 by sqrt(200)


@pytest.mark.parametrize("steps", [8, 16])
@pytest.mark.parametrize("ratio", [0.0, 0.5, 2.0])
def test_the_interval_holds_the_true_ratio(steps, ratio):
    generator = np.random.default_rng(5)
    mean = np.eye(24)[0] * ratio * math.sqrt(24)
    seen = mean + generator.standard_normal((300, steps, 24))
    found = signal_to_noise(seen @ seen.transpose(0, 2, 1))
    inside = (found[:, 1] <= ratio) & (ratio <= found[:, 2])
    assert inside.mean() > 0.9
    assert np.median(found[:, 0]) == pytest.approx(ratio, abs=0.05)
    assert (found[:, 1] <= found[:, 0]).all() and (found[:, 0] <= found[:, 2]).all()


def test_no_ratio_without_scatter_or_with_too_few_steps():
    same = np.ones((8, 7))
    assert np.isnan(signal_to_noise(same @ same.T)).all() and np.isnan(signal_to_noise(np.eye(7))).all()
    assert np.isnan(signal_to_noise(np.zeros((8, 8)))).all()
    seen = np.random.default_rng(0).standard_normal((8, 4)) + 1
    assert signal_to_noise(seen @ seen.T) == pytest.approx(signal_to_noise(1e-6 * seen @ seen.T))


def test_a_model_whose_circuit_is_frozen():
    model = net()
    model.circuit.requires_grad_(False)
    rows = trained(model, per_epoch=3)
    assert [group["group"] for group in rows[0]["groups"]] == ["classical"]
    assert of(rows).quantum_layers == [] and rows[0]["warnings"] == []
    assert rows[0]["groups"][0]["snr"] is None and of(rows).frame()["snr"].isna().all()


def test_places_of_a_circuit_with_more_weights_than_are_kept():
    start = torch.zeros(2 * QUANTUM_SKETCH, 2)

    def circuit(inputs, weights):
        qp.RX(inputs[..., 0] + weights.sum(), wires=0)
        return [qp.expval(qp.PauliZ(0)), qp.expval(qp.PauliY(0))]

    rows = trained(Turned(layer(circuit, tuple(start.shape), start, n_qubits=1)), per_epoch=2, epochs=1)
    assert rows[0]["layers"][0]["places"] == [*range(0, start.numel(), 4)]
    every = of(rows).gradient("circuit", 1, range(start.numel())).to_numpy()
    assert np.isfinite(every[:, ::4]).all() and np.isnan(every).sum() == 0.75 * every.size


def test_parameters_without_entries_are_left_out_and_a_batch_in_pieces_is_one_step():
    model, empty = net(), [nn.Parameter(torch.zeros(0, 3)) for _ in range(3)]
    made = groups(model)
    four = list(made[1].parameters)
    made[1] = train.Group("classical", [empty[0], *four[:2], empty[1], *four[2:], empty[2]], 0.01)
    watch = Watch(model, made, per_epoch=4)
    config = Settings(epochs=1, optimizer="sgd", schedule="constant")
    train.fit(model, TASK, data(), config, groups=made, watch=watch)
    assert watch.rows == trained(net(), per_epoch=4, epochs=1)
    [pieces] = trained(net(), per_epoch=4, epochs=1, micro_batch=2)
    assert all(pieces[what] == watch.rows[0][what] for what in ("steps", "updates"))


# --- the loop ----------------------------------------------------------------------------------------------


def test_looking_on_changes_nothing():
    alone, seen = net(), net()
    config = Settings(epochs=2, optimizer="sgd", schedule="constant")
    train.fit(alone, TASK, data(), config, groups=groups(alone, clip_norm=0.05))
    trained(seen, clip=0.05)
    assert all(map(torch.equal, alone.parameters(), seen.parameters()))


@contextlib.contextmanager
def scaled(monkeypatch, scale: float):
    """Training under torch's own gradient scaler, as float16 on CUDA has it."""
    real, seen = torch.amp.GradScaler, []

    def scaler(kind, enabled):
        seen.append(real(kind, init_scale=scale, growth_interval=10**6))
        return seen[-1]

    with monkeypatch.context() as patched:
        patched.setattr(torch.amp, "GradScaler", scaler)
        yield seen


def test_statistics_under_a_gradient_scaler_are_those_without(monkeypatch):
    plain = trained(net(), clip=0.05)
    with scaled(monkeypatch, 2.0**10) as scalers:
        under = trained(net(), clip=0.05)
    assert scalers[0].get_scale() == 2**10
    for kind in ("layers", "groups"):
        for one, other in zip(plain[-1][kind], under[-1][kind], strict=True):
            for what in ("norm", "mean", "share", "ratio"):
                assert other[what] == pytest.approx(one[what], rel=ROUNDING), (kind, what)
    assert of(under).frame()["clipped"].sum() == of(plain).frame()["clipped"].sum() > 0


def test_a_step_that_a_scaler_skips_is_not_told(monkeypatch):
    class Overflows(Classification):
        calls = 0

        def __call__(self, model, batch):
            step = super().__call__(model, batch)
            self.calls += model.training
            factor = 1e38 if self.calls == 5 and model.training else 1.0
            return type(step)(step.loss * factor, step.sums, step.count)

    with scaled(monkeypatch, 2.0**20):
        rows = trained(net(), epochs=1, task=Overflows())
    assert rows[0]["steps"] == [1, 2, 3, 4, *range(6, 13)]


# --- killed and resumed ------------------------------------------------------------------------------------


class Stops(Classification):
    """Breaks off at one of its calls."""

    def __init__(self, at: int):
        super().__init__()
        self.at, self.calls = at, 0

    def __call__(self, model, batch):
        self.calls += 1
        if self.calls == self.at:
            raise KeyboardInterrupt
        return super().__call__(model, batch)


# 12 batches and a validation batch an epoch.
@pytest.mark.parametrize(("at", "per_epoch"), [(2, 16), (7, 5), (13, 5), (20, 16)])
def test_killed_and_resumed_tells_the_same(tmp_path, at, per_epoch):
    settings = {"per_epoch": per_epoch, "save_every_steps": 1, "optimizer": "adam"}
    straight = trained(net(), **settings)
    with pytest.raises(KeyboardInterrupt):
        trained(net(), folder=tmp_path, task=Stops(at), **settings)
    resumed = trained(net(), folder=tmp_path, **settings)
    assert resumed == straight[-len(resumed) :] and len(resumed) == (2 if at <= 13 else 1)


def test_observations_of_other_weights_in_a_checkpoint_are_left_out(tmp_path, monkeypatch):
    save = Store.save

    def changed(self, state, **named):
        if state["part"]:
            state["part"]["watched"]["values"] = torch.zeros(7, 3)
        save(self, state, **named)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Store, "save", changed)
        trained(net(), folder=tmp_path, task=Stops(9), save_every_steps=1)
    rows = trained(net(), folder=tmp_path, save_every_steps=1)
    first = rows[0]["steps"][0]
    assert 1 < first < 10 and rows[0]["steps"] == [*range(first, 13)]
    assert rows[1]["steps"] == [*range(13, 25)]


# --- what is read back -------------------------------------------------------------------------------------


def rows_of(net: str, seed: int, epochs, size: float = 1.0) -> list[dict]:
    """Rows as a run writes them, by hand."""
    common = {"n_weights": 2, "snr": None, "snr_low": 0.0, "snr_high": 2.0}
    return [
        {
            "event": "epoch", "net": net, "seed": seed, "epoch": epoch, "updates": 2,
            "steps": [2 * epoch - 1, 2 * epoch], "warnings": [f"Told in `q`: {size}."],
            "layers": [{"layer": "q", "group": "quantum", **common, "gradient": [[size, 1.0], [2.0, 3.0]]}
                       | {what: [size, 2.0] for what in ("norm", "mean", "share", "ratio")}],
            "groups": [{"group": "quantum", **common, "clip_norm": 0.5}
                       | {what: [size, None] for what in ("norm", "mean", "share", "ratio")}],
        }
        for epoch in epochs
    ]  # fmt: skip


def test_rows_become_arrays_and_the_last_of_an_epoch_counts():
    rows = [*rows_of("hybrid", 1, [1, 2, 4]), {"event": "plateau"}, *rows_of("classical", 0, [1])]
    found = gradients.history([*rows, *rows_of("hybrid", 1, [2], size=9.0)])
    assert list(found.trainings) == [("hybrid", 1), ("classical", 0)] and found.damaged == 0
    training = found["hybrid", 1]
    assert training.epochs == [1, 2, 4] and training.steps(4) == [7, 8]
    of_layer, group = series_of(training, "q"), series_of(training, "quantum")
    assert of_layer.reset_index(drop=True).equals(training.frame("q"))
    assert of_layer["step"].tolist() == [1, 2, 3, 4, 7, 8] and of_layer["norm"].tolist() == [1, 2, 9, 2, 1, 2]
    assert group["norm"].isna().tolist() == [False, True] * 3 and group["snr"].isna().all()
    assert set(group["snr_high"]) == {2} and set(group["clip_norm"]) == {0.5}
    assert of_layer["clip_norm"].isna().all()
    assert training.gradient("q", 2, "ab").values.tolist() == [[9, 1], [2, 3]]
    assert set(found.frame()["net"]) == {"hybrid", "classical"} and len(found.frame()) == 16
    assert found.warnings == [
        "hybrid, seed 1, epoch 1 and 2 more: Told in `q`: 1.0.",
        "classical, seed 0, epoch 1: Told in `q`: 1.0.",
    ]
    for argument, wrong in [
        ("key", lambda: found["hybrid", 0]),
        ("layer", lambda: training.gradient("p", 2, "ab")),
        ("epoch", lambda: training.gradient("q", 3, "ab")),
    ]:
        with refused(argument):
            wrong()


@pytest.mark.parametrize(
    "damage",
    [
        lambda row: row.pop("updates"),
        lambda row: row["layers"][0].pop("norm"),
        lambda row: row["groups"][0].pop("group"),
        lambda row: row["layers"][0]["share"].pop(),
        lambda row: row.update(layers=None),
        lambda row: row.update(groups=["quantum"]),
    ],
)
def test_rows_that_lack_what_is_read_count_as_damaged(damage):
    rows = rows_of("hybrid", 0, [1, 2, 3])
    damage(rows[1])
    found = gradients.history(rows)
    assert found.damaged == 1 and found["hybrid", 0].epochs == [1, 3]


@pytest.mark.parametrize("rows", [[], [{"event": "plateau", "epoch": 1}], [{"event": "epoch"}]])
def test_a_run_without_gradients(tmp_path, rows):
    with refused("rows"):
        gradients.history(rows)
    with refused("path", FileNotFoundError):
        gradients.read(tmp_path)


@pytest.mark.parametrize("half", [False, True])
def test_damaged_lines_are_left_out_and_counted(tmp_path, half):
    path = tmp_path / "gradients.jsonl"
    for row in rows_of("hybrid", 0, [1, 2, 3]):
        workspace.append_line(path, row)
    lines = path.read_bytes().splitlines(keepends=True)
    content = lines[0] + lines[1][:50] + b"\n" + lines[2] + lines[1][: 70 * half]
    path.write_bytes(content)
    found = gradients.read(tmp_path)
    assert found.damaged == 1 + half and found["hybrid", 0].epochs == [1, 3]
    assert path.read_bytes() == content
    assert gradients.read(path)["hybrid", 0].epochs == [1, 3]


def test_a_file_of_an_earlier_version_is_read():
    """Its warnings are plain sentences of that version; its numbers are those that it holds."""
    found = gradients.read(Path(__file__).with_name("gradients_of_before.jsonl"))
    assert list(found.trainings) == [("hybrid", 0), ("cut", 0)] and found.damaged == 0
    training = found["hybrid", 0]
    assert training.epochs == [1, 2] and training.steps(2) == [16, 20, 24]
    assert training.frame("circuit")["norm"].tolist()[:2] == [0.05924, 0.05402]
    assert training.gradient("circuit", 1, range(8)).iloc[0, 7] == 0.04184
    assert set(training.frame().query("group == 'quantum'")["clip_norm"].dropna()) == {0.05}
    [warning] = found.warnings
    assert warning.startswith("cut, seed 0, epoch 1: No gradient in `circuit`: it was exactly zero")


# --- runs --------------------------------------------------------------------------------------------------


def test_the_main_job_is_told_nothing_wrong(tmp_path):
    """The recipe's own nets, for fewer epochs: no false alarm, and every net has its rows."""
    settings = {"epochs": 2, "n_seeds": 1, "controls": ["classical", "no_entanglement", "frozen_random"]}
    run = runs.open_run(tmp_path / "run", "digits_quanv", **settings)
    list(runs.train_all(run))
    found = gradients.read(run.folder)
    assert found.warnings == [] and list(found.trainings) == [(net, 0) for net in run.nets]
    groups = found.frame().query("layer == 'all'").groupby("net")["group"]
    assert {net: list(names.unique()) for net, names in groups} == {
        "hybrid": ["quantum", "classical"],
        "classical": ["stand_in", "classical"],
        "no_entanglement": ["quantum", "classical"],
        "frozen_random": ["classical"],
    }
    hybrid = found["hybrid", 0]
    assert hybrid.epochs == [1, 2] and len(hybrid.steps(2)) == 16
    assert hybrid.steps(2)[-1] == 2 * hybrid.rows[-1]["updates"]
    assert np.isfinite(hybrid.gradient("quanv.filters.0", 2, range(24)).to_numpy()).all()
    norms = run.epochs().query("net == 'hybrid'")["gradient_norm_quantum"].tolist()  # of all steps
    seen = series_of(hybrid, "quantum")["norm"].to_numpy()[2:].reshape(2, 16).mean(1)
    assert seen.tolist() == pytest.approx(norms, rel=0.5)
    rows = run.rows("gradients")
    assert list(runs.train_all(runs.open_run(run.folder))) and run.rows("gradients") == rows


def test_none_are_recorded_where_none_are_asked_for(tmp_path):
    settings = {"epochs": 1, "n_seeds": 1, "controls": [], "gradient_samples": 0, "train_fraction": 0.1}
    run = runs.open_run(tmp_path / "run", "digits_quanv", **settings)
    list(runs.train_all(run))
    assert not (run.folder / "gradients.jsonl").exists()
