"""Live statistics: correct numbers, unchanged by a scaler or a kill, and how they are read back."""

import copy
import json
import math
from pathlib import Path

import numpy as np
import pennylane as qp
import pytest
import torch
from torch import nn

from qnnkit import gradients, train
from qnnkit.gradients import Watch
from qnnkit.gradients.watch import QUANTUM_SKETCH, signal_to_noise
from qnnkit.settings import Settings
from tests.same import At, raises
from tests.toys import linear, refused
from tests.watched import TASK, Turned, data, groups, layer, net, of, trained

DIGITS = 6e-4
"""Relative: four digits are recorded."""
ROUNDING = 2e-3
"""Relative: float32 sums in another order, rounded to four digits."""


# --- the numbers -------------------------------------------------------------------------------------------


def test_every_number_equals_one_computed_by_hand():
    """Gradients as backward leaves them, weights before and after a step of plain gradient descent."""
    model, seen = net(), []
    made = groups(model, 0.5, clip_norm=0.05)
    watch, optimizer = Watch(model, made, per_epoch=8), torch.optim.SGD(model.parameters(), lr=0.5)
    named = dict(model.named_parameters())
    for number, batch in enumerate(data()["train"]):
        optimizer.zero_grad()
        TASK(model, batch).loss.backward()
        step = {name: [weight.grad.clone(), weight.detach().clone()] for name, weight in named.items()}
        if wanted := watch.wants(1, number, 12):
            watch.before()
        for group in made:
            nn.utils.clip_grad_norm_(group.parameters, group.clip_norm or math.inf)
        optimizer.step()
        if wanted:
            watch.after(number + 1)
            seen.append({name: [*step[name], weight.detach().clone()] for name, weight in named.items()})
    record = of([watch.end(1, 12)])
    assert record.steps(1) == [2, 3, 5, 6, 8, 9, 11, 12] and record.quantum_layers == ["circuit"]

    def flat(names, which):  # 0: gradients, 1: weights before, 2: weights after; of shape (steps, entries)
        rows = [torch.cat([step[name][which].flatten() for name in names]) for step in seen]
        return torch.stack(rows).double().numpy()

    def norm(values):
        return np.linalg.norm(values, axis=1)

    owners = {each: [f"{each}.weight", f"{each}.bias"] for each in ("first", "last")}
    owners |= {"circuit": ["circuit.weights"], "classical": [*owners["first"], *owners["last"]]}
    frame, total = record.frame(), norm(flat(named, 0))
    for owner, names in owners.items():
        series = frame[(frame["layer"] == owner) | ((frame["layer"] == "all") & (frame["group"] == owner))]
        gradient, before, after = (flat(names, i) for i in range(3))
        expected = {"norm": norm(gradient), "mean": abs(gradient).mean(axis=1)}
        expected |= {"share": (norm(gradient) / total) ** 2, "ratio": norm(after - before) / norm(before)}
        for what, values in (expected | {"n_weights": gradient.shape[1]}).items():
            np.testing.assert_allclose(series[what], values, rtol=ROUNDING, err_msg=what)
        noise = signal_to_noise(gradient @ gradient.T)
        shown = series[["snr", "snr_low", "snr_high"]].iloc[0]
        np.testing.assert_allclose(shown.astype(float), noise, rtol=10 * ROUNDING, atol=1e-3)
        if owner == "circuit":
            stored = record.gradient(owner, 1, gradients.weight_names(model.circuit))
            assert stored.to_numpy() == pytest.approx(gradient, rel=ROUNDING, abs=1e-7)
            turn = np.sqrt(((after - before) ** 2).mean(axis=1)).tolist()
            assert watch.rows[0]["layers"][0]["step"] == pytest.approx(turn, rel=ROUNDING)
    quantum = frame[(frame["layer"] == "all") & (frame["group"] == "quantum")]
    assert set(quantum["clip_norm"]) == {0.05} and quantum["norm"].max() > 0.05
    assert quantum["clipped"].tolist() == (quantum["norm"] > 0.05).tolist()
    assert frame[frame["group"] == "classical"][["clip_norm", "clipped"]].isna().all(axis=None)


def test_large_parameters_are_sketched():
    """Norms stay exact; means and update ratios are right on average."""
    model, generator = linear(200, 300, bias=False), torch.Generator().manual_seed(1)
    model.weight.data.normal_(generator=generator)
    watch = Watch(model, [train.Group("classical", list(model.parameters()), 0.1)], per_epoch=4)
    model.weight.grad = torch.randn(300, 200, generator=generator)
    watch.before()
    with torch.no_grad():
        model.weight -= 0.1 * model.weight.grad
    watch.after(1)
    [row] = watch.end(1, 4)["layers"]
    assert row["norm"] == pytest.approx([float(model.weight.grad.norm())], rel=DIGITS)
    assert row["mean"] == pytest.approx([math.sqrt(2 / math.pi)], rel=0.25)
    assert row["ratio"] == pytest.approx([0.1], rel=0.3)
    assert "gradient" not in row and row["n_weights"] == 60_000


@pytest.mark.parametrize("steps", [8, 16])
@pytest.mark.parametrize("ratio", [0.0, 0.5, 2.0])
def test_the_interval_contains_the_true_ratio(steps, ratio):
    generator = np.random.default_rng(5)
    mean = np.eye(24)[0] * ratio * math.sqrt(24)
    seen = mean + generator.standard_normal((300, steps, 24))
    ratios = signal_to_noise(seen @ seen.transpose(0, 2, 1))
    assert ((ratios[:, 1] <= ratio) & (ratio <= ratios[:, 2])).mean() > 0.9
    assert np.median(ratios[:, 0]) == pytest.approx(ratio, abs=0.05)


def test_there_is_no_ratio_without_scatter_or_with_too_few_steps():
    for products in (np.ones((8, 8)), np.zeros((8, 8)), np.eye(7)):
        assert np.isnan(signal_to_noise(products)).all()
    seen = np.random.default_rng(0).standard_normal((8, 4)) + 1
    assert signal_to_noise(seen @ seen.T) == pytest.approx(signal_to_noise(1e-6 * seen @ seen.T))


def test_positions_in_a_circuit_with_more_weights_than_are_recorded():
    start = torch.zeros(2 * QUANTUM_SKETCH, 2)

    def circuit(inputs, weights):
        qp.RX(inputs[..., 0] + weights.sum(), wires=0)
        return [qp.expval(qp.PauliZ(0)), qp.expval(qp.PauliY(0))]

    rows = trained(Turned(layer(circuit, tuple(start.shape), start, n_qubits=1)), per_epoch=2, epochs=1)
    assert rows[0]["layers"][0]["places"] == [*range(0, start.numel(), 4)]
    every = of(rows).gradient("circuit", 1, range(start.numel())).to_numpy()
    assert np.isfinite(every[:, ::4]).all() and np.isnan(every).sum() == 0.75 * every.size


# --- the loop ----------------------------------------------------------------------------------------------


def test_watching_changes_nothing():
    alone, seen = net(), net()
    config = Settings(epochs=2, optimizer="sgd", schedule="constant")
    train.fit(alone, TASK, data(), config, groups=groups(alone, clip_norm=0.05))
    trained(seen, clip=0.05)
    assert all(map(torch.equal, alone.parameters(), seen.parameters()))


def test_statistics_are_the_same_with_a_gradient_scaler(monkeypatch):
    """As used for float16 on CUDA; a skipped step has no statistics."""
    plain, real = trained(net(), clip=0.05), torch.amp.GradScaler
    scaler = lambda kind, enabled: real(kind, init_scale=2.0**10, growth_interval=10**6)  # noqa: E731
    monkeypatch.setattr(torch.amp, "GradScaler", scaler)
    under = trained(net(), clip=0.05)
    for kind in ("layers", "groups"):
        for one, other in zip(plain[-1][kind], under[-1][kind], strict=True):
            for what in ("norm", "mean", "share", "ratio"):
                assert other[what] == pytest.approx(one[what], rel=ROUNDING), (kind, what)
    assert of(under).frame()["clipped"].sum() == of(plain).frame()["clipped"].sum() > 0
    model = net()
    model.last.register_forward_hook(lambda *args: setattr(model, "factor", 1.0))
    [row] = trained(model, epochs=1, task=At(5, lambda: setattr(model, "factor", 1e38)))
    assert row["steps"] == [1, 2, 3, 4, *range(6, 13)]


# --- killed and resumed ------------------------------------------------------------------------------------


def test_a_killed_and_resumed_training_records_the_same(tmp_path):
    settings = {"per_epoch": 5, "save_every_steps": 1, "optimizer": "adam"}
    straight = trained(net(), **settings)
    with pytest.raises(KeyboardInterrupt):
        trained(net(), folder=tmp_path, task=At(7, raises(), None), **settings)
    assert trained(net(), folder=tmp_path, **settings) == straight
    # the first two steps, which do the damage, then evenly spaced ones
    assert [row["steps"] for row in straight] == [[1, 2, 3, 5, 8, 10, 12], [15, 17, 20, 22, 24]]


# --- reading records back ----------------------------------------------------------------------------------


OLD = Path(__file__).with_name("gradients_of_before.jsonl")


@pytest.fixture
def rows() -> list[dict]:
    """Rows of an earlier version: two epochs of hybrid, one of a net whose gradient is cut."""
    return [json.loads(line) for line in OLD.read_text().splitlines()]


def test_a_file_of_an_earlier_version_is_read():
    """Its warnings are plain sentences, as in that version; its numbers are unchanged."""
    record = gradients.read(OLD)
    assert list(record.trainings) == [("hybrid", 0), ("cut", 0)] and record.damaged == 0
    training = record["hybrid", 0]
    assert training.epochs == [1, 2] and training.steps(2) == [16, 20, 24]
    assert training.frame("circuit")["norm"].tolist()[:2] == [0.05924, 0.05402]
    assert training.gradient("circuit", 1, range(8)).iloc[0, 7] == 0.04184
    assert set(training.frame().query("group == 'quantum'")["clip_norm"].dropna()) == {0.05}
    [warning] = record.warnings
    assert warning.startswith("cut, seed 0, epoch 1: No gradient in `circuit`: it was exactly zero")


def test_the_last_row_of_an_epoch_counts_and_warnings_are_listed_once(rows):
    first, second, again = *rows[:2], copy.deepcopy(rows[1])
    again["layers"][0] |= {"norm": [9.0, 1.0, None], "snr_high": 2.0}
    for row in (first, again):
        row["warnings"] = [f"Told in `circuit`: {row['epoch']}."]
    record = gradients.history([first, second, {"event": "plateau"}, again])
    frame = record["hybrid", 0].frame("circuit")
    assert frame["step"].tolist() == [1, 2, 4, 8, 12, 16, 20, 24] and frame["norm"].tolist()[5:7] == [9, 1]
    assert frame["norm"].isna().sum() == 1 and frame["snr"].isna().all() and frame["snr_high"].max() == 2
    assert record.warnings == ["hybrid, seed 0, epoch 1 and 1 more: Told in `circuit`: 1."]
    with refused("key"):
        _ = record["cut", 0]
    for argument, where in {"layer": ("p", 2), "epoch": ("circuit", 3), "names": ("circuit", 1)}.items():
        with refused(argument):
            record["hybrid", 0].gradient(*where, "ab")
    for none in ([], [{"event": "plateau", "epoch": 1}], [{"event": "epoch"}]):
        with refused("rows"):
            gradients.history(none)


def test_incomplete_rows_and_half_lines_are_skipped_and_counted(rows, tmp_path):
    path, short = tmp_path / "gradients.jsonl", copy.deepcopy(rows[1])
    short["layers"][0]["share"].pop()
    lacking = {name: value for name, value in rows[1].items() if name != "updates"}
    damaged = [short, lacking, rows[1] | {"groups": ["quantum"]}]
    content = "".join(json.dumps(each) + "\n" for each in (*damaged, rows[0])) + json.dumps(rows[0])[:50]
    path.write_text(content)
    for place in (path, tmp_path):
        record = gradients.read(place)
        assert record.damaged == 4 and record["hybrid", 0].epochs == [1] and path.read_text() == content
    with refused("path", FileNotFoundError):
        gradients.read(tmp_path / "elsewhere")
