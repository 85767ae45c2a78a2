"""`make bench` at toy size: every peer is measured and checked, and wrong numbers are caught."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

from benchmarks import noisy, peers, placing, predicting, quanvolutions, run, torchlayer, workloads
from qnnkit import runs

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_a_quick_run_writes_checked_numbers_and_a_table(tmp_path):
    words = ["--only", "W1", "W2", "W3", "W4", "W5", "--rounds", "2"]
    words += ["--peers", *(set(peers.LABELS) - {"lightning.gpu"})]
    command = [sys.executable, "-m", "benchmarks.run", "--quick", "--out", str(tmp_path), *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "bench.csv")
    results = {(row["workload"], row["peer"]): row for row in table.to_dict("records")}
    every = {"W1", "W2", "W3-64", "W3-256", "W4-4", "W4-8", "W5"}
    for peer, keys in {"batched": every, "lightning.qubit": every, "classical": {"W5"}}.items():
        assert {key for key, other in results if other == peer} == keys
    for (key, _), row in results.items():
        assert 0 <= row["deviation"] <= run.TOLERANCE and 1 <= row["rounds"] <= 2
        assert 0 < row["min_ms"] <= row["median_ms"] <= row["max_ms"] and row["first_s"] > 0
        assert row["peak_mb"] >= row["before_mb"] > 50
        ratio = row["median_ms"] / results[key, "batched"]["median_ms"]
        assert row["x_batched"] == pytest.approx(ratio, rel=1e-4), "the table has six digits"
    assert table["machine"][0] in done.stdout and "W3-256 default.qubit" in " ".join(done.stdout.split())


# --- the check ------------------------------------------------------------------------------------

SMALL = workloads.Workload("W3-64", "strongly_entangling", 3, 1, 6)


@pytest.mark.parametrize("part", ["values", "gradient of inputs", "gradient of weights"])
def test_a_planted_wrong_number_is_reported(part):
    answer, right = peers.make("batched", SMALL, "cpu").answer(), peers.reference(SMALL, control=False)
    row = {"workload": "W1", "peer": "batched", "deviation": peers.deviation(answer, right)}
    assert run.problems([row]) == []
    answer[part] = answer[part].copy()
    answer[part].flat[-1] += 3e-3
    [sentence] = run.problems([row | {"deviation": peers.deviation(answer, right)}])
    assert sentence.startswith("W1: qnnkit, eager deviates from float64 by") and "0.0001" in sentence


# --- the workloads --------------------------------------------------------------------------------


def test_nets_moved_from_torchlayer_compute_the_same():
    """With one call for all patches and with a loop over them; on TorchLayer and on QuantumLayer."""
    for key in ("W6-basic", "W6-strong", "W6-gates"):
        workload = workloads.find(key, quick=True)
        right = peers.reference(workload, control=False)
        assert right["values"].shape == (4, 10) and right["gradient of quantum.weights"].any()
        for name in ("batched", "lightning.qubit"):
            peer = peers.make(name, workload, "cpu")
            peer.first()
            assert peer.samples == peer.total == 4
            assert peers.deviation(peer.answer(), right) < 1e-5
    with torch.random.fork_rng():
        at_once, loop = (kind(torch.nn.Tanh(), 4) for kind in (quanvolutions.QuanvNet, quanvolutions.LoopNet))
    images = torch.arange(32.0).reshape(2, 1, 4, 4)
    assert torch.equal(at_once.maps(images), loop.maps(images))


# --- measurements of the scripts, at toy size -----------------------------------------------------------


def test_rows_where_torchlayer_is_wrong():
    *rows, shots = torchlayer.rows()
    for row in rows:
        assert row["TorchLayer"] != row["Exact"]
        if row["what"] != torchlayer.returned.__doc__:
            assert float(row["QuantumLayer"]) == pytest.approx(float(row["Exact"]), abs=2e-4)
    # Within three standard errors of gradients from 100 shots, over five samples:
    assert float(shots["QuantumLayer"]) == pytest.approx(float(shots["Exact"]), abs=0.1)
    assert shots["TorchLayer"] == "raises NotImplementedError"
    table = torchlayer.table(pd.DataFrame([*rows, shots]))
    assert len(table.splitlines()) == 2 + len(torchlayer.CASES) and "| (4, 5, 1) | (5, 4) |" in table


# --- the speed of auto -------------------------------------------------------------------------------


def test_auto_is_compared_with_every_fixed_choice(monkeypatch):
    monkeypatch.setattr(placing, "CIRCUITS", 8)
    monkeypatch.setattr(placing.placement, "thread_counts", lambda: [1, 2])
    monkeypatch.setattr(placing.placement, "devices", lambda *asked: ["cpu"])
    rows = placing.compare("W1", backends := ["batched", "lightning.qubit"], 0.2, quick=True)
    fixed = [f"{name} on cpu, {n}" for name in backends for n in ("1 thread", "2 threads")]
    assert [row["choice"] for row in rows] == ["auto", *fixed]
    assert all(row["median_ms"] > 0 for row in rows) and rows[0]["chosen"].startswith("cpu, ")
    assert rows[-1]["samples"] == 8


# --- predicted and measured --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("peak", "seconds", "within"),
    [(1.0, 1.0, True), (1.14, 0.81, True), (0.84, 1.0, False), (1.16, 1.0, False), (1.0, 1.21, False)],
)
def test_a_prediction_is_judged_by_medians(peak, seconds, within):
    times = [(9, 9), (peak, seconds), (0.1, 0.1)]
    predictions = [{"peak": 100e6 * mb, "seconds_per_epoch": s, "n_weights": 7} for mb, s in times]
    measured = {"peak": 100e6, "seconds_per_epoch": 1.0}
    row = predicting.compared("digits_quanv", [(each, measured) for each in predictions])
    assert row["off_mb"] == pytest.approx(peak - 1) and row["measured_mb"] == 100
    assert predicting.within(pd.DataFrame([row])).tolist() == [within]


def test_noise_is_measured_for_the_best_seed_on_validation_images(tmp_path):
    small = {"n_seeds": 2, "epochs": 1, "controls": (), "train_fraction": 0.2, "stride": 4}
    run = runs.open_run(tmp_path / "run", "digits_quanv", **small)
    finals = list(runs.train_all(run))
    best = max(finals, key=lambda row: row["validation_accuracy"])
    frame = noisy.rows(run, 4)
    assert set(frame["seed"]) == {best["seed"]} and set(frame["test_accuracy"]) == {best["test_accuracy"]}
    assert frame["condition"].iloc[0] == "exact" and set(frame["images"]) == {4}
    assert {"shots", "depolarizing", "readout"} <= set(frame["condition"])
