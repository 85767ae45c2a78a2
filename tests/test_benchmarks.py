"""`make bench` at toy size: every peer is there, measured and checked, and a wrong number is caught."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from benchmarks import (
    adapting,
    moving,
    noisy,
    overhead,
    peers,
    placing,
    predicting,
    quanvolutions,
    record,
    run,
    torchlayer,
    workloads,
)
from qnnkit import runs

ROOT = Path(__file__).resolve().parent.parent


def bench(out: Path, *options: str, script: str = "run") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"benchmarks.{script}", "--quick", "--out", str(out), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)


@pytest.mark.slow
def test_a_quick_run_writes_checked_numbers_a_table_and_a_plot(tmp_path):
    done = bench(tmp_path, "--only", "W1,W3", "--rounds", "2", "--peers", "batched,default.qubit")
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "bench.csv")
    found = {(row["workload"], row["peer"]): row for row in table.to_dict("records")}
    keys = ("W1", "W3-64", "W3-256")
    assert set(found) == {(key, peer) for key in keys for peer in ("batched", "default.qubit")}
    for (key, peer), row in found.items():
        assert 0 <= row["deviation"] <= run.TOLERANCE
        assert row["rounds"] == 2 and 0 < row["min_ms"] <= row["median_ms"] <= row["max_ms"]
        assert row["first_s"] > 0 and row["peak_mb"] >= row["before_mb"] > 50
        assert row["samples"] == row["total"] == workloads.find(key, quick=True).batch
        ratio = row["median_ms"] / found[key, "batched"]["median_ms"]
        assert row["x_batched"] == pytest.approx(ratio, rel=1e-4), "the table keeps six digits"
        assert peer != "batched" or row["x_batched"] == 1
    assert set(table["torch"]) == {torch.__version__} and set(table["device"]) == {"cpu"}
    assert table["machine"][0] in done.stdout and "W3-256 default.qubit" in done.stdout
    with Image.open(tmp_path / "bench.png") as image:
        assert min(image.size) > 200


@pytest.mark.slow
def test_the_other_workloads_and_peers(tmp_path):
    names = "batched,compiled,default.qubit,lightning.qubit,jax,classical"
    done = bench(tmp_path, "--only", "W2,W4,W5", "--rounds", "1", "--peers", names)
    assert done.returncode == 0, done.stderr
    rows = pd.read_csv(tmp_path / "bench.csv").to_dict("records")
    measured = {peer: {row["workload"] for row in rows if row["peer"] == peer} for peer in names.split(",")}
    assert measured["classical"] == {"W5"}
    for peer in ("batched", "default.qubit", "lightning.qubit"):
        assert measured[peer] == {"W2", "W4-4", "W4-8", "W5"}
    assert all(row["deviation"] <= run.TOLERANCE for row in rows)


@pytest.mark.parametrize("options", [["--only", "W9"], ["--peers", "cirq"], ["--rounds", "0"]])
def test_a_wrong_option_is_refused(tmp_path, monkeypatch, capsys, options):
    monkeypatch.setattr(sys, "argv", ["run", "--quick", "--out", str(tmp_path / "none"), *options])
    with pytest.raises(SystemExit, match="2"):
        run.main()
    assert options[1] in capsys.readouterr().err and not (tmp_path / "none").exists()


# --- the check ------------------------------------------------------------------------------------

SMALL = workloads.Workload("W3-64", "strongly_entangling", 3, 1, 6)


@pytest.mark.parametrize("name", ["batched", "default.qubit", "lightning.qubit"])
def test_peers_agree_with_float64(name):
    found = peers.make(name, SMALL, "cpu").answer()
    assert [found[part].shape for part in found] == [(4, 3), (4, 3), (1, 3, 3)]
    assert peers.deviation(found, peers.reference(SMALL, control=False)) < 1e-5


@pytest.mark.parametrize("part", ["values", "gradient of inputs", "gradient of weights"])
def test_a_planted_wrong_number_is_caught(part):
    found, right = peers.make("batched", SMALL, "cpu").answer(), peers.reference(SMALL, control=False)
    found[part] = found[part].copy()
    found[part].flat[-1] += 3e-3
    far = peers.deviation(found, right)
    assert 1e-3 < far < 4e-3
    row = {"workload": "W3-64", "peer": "batched", "deviation": far}
    [sentence] = run.problems([row])
    assert sentence.startswith("W3-64: qnnkit, eager deviates from float64 by") and "0.0001" in sentence
    assert run.problems([row | {"deviation": 9e-5}]) == []


def test_a_number_that_is_none_is_infinitely_far_and_large_ones_are_compared_as_shares():
    right = {"values": np.ones(2)}
    for wrong in (np.array([1.0, np.nan]), np.ones((2, 1))):
        assert peers.deviation({"values": wrong}, right) == np.inf
    with pytest.raises(ValueError, match=r"hold \['values'\]"):
        peers.deviation({}, right)
    assert peers.deviation({"a": np.array([101.0, 1])}, {"a": np.array([100.0, 1])}) == pytest.approx(0.01)
    assert peers.deviation({"a": np.array([0.2])}, {"a": np.array([0.1])}) == pytest.approx(0.1)
    row = {"workload": "W1", "peer": "jax"}
    assert len(run.problems([row | {"deviation": np.nan}])) == 1
    assert run.problems([row | {"failed": "no memory"}]) == ["W1: JAX jit(vmap) failed: no memory."]


def test_ratios_and_notes():
    rows = [
        {"peer": "batched", "rounds": 3, "median_ms": 2.0},
        {"peer": "compiled", "rounds": 1, "median_ms": 1.0},
        {"peer": "jax", "rounds": 0, "median_ms": math.nan, "failed": "no memory"},
    ]
    rows = run.complete(rows, rounds=3)
    assert (rows[0]["x_compiled"], rows[1]["x_batched"]) == (2, 0.5) and math.isnan(rows[2]["x_batched"])
    assert [row["notes"] for row in rows] == ["", "1 of 3 rounds", "no memory"]
    assert run.notes({"samples": 4, "total": 64, "dtype": "float64", "rounds": 1}, 3) == (
        "scaled up from 4 of 64; computes in float64; 1 of 3 rounds"
    )


# --- the workloads --------------------------------------------------------------------------------


def test_workloads_are_those_that_were_asked_for():
    sizes = {key: workload.total for key, workload in workloads.WORKLOADS.items()}
    widths = {f"W4-{wires}": 64 for wires in (4, 8, 10, 12, 14, 16)}
    steps = dict.fromkeys(("W6-basic", "W6-strong", "W6-gates"), 4)
    assert sizes == {"W1": 8192, "W2": 200_704, "W3-64": 64, "W3-256": 256, **widths, "W5": 3085, **steps}
    assert workloads.keys(["W3"], quick=False) == ["W3-64", "W3-256"]
    assert workloads.WORKLOADS["W2"].gradients is False
    for one, other in zip(SMALL.data(), SMALL.data(), strict=True):
        assert one.dtype == np.float32 and (one == other).all(), "the same every time"


def test_the_net_of_the_epoch_is_the_kits_own():
    model = peers.make("batched", workloads.find("W5", quick=True), "cpu").net
    assert sum(weight.numel() for weight in model.parameters()) == 87_936


def test_nets_that_are_moved_compute_what_they_did():
    """By one call for all patches and by a loop over them; on TorchLayer and on QuantumLayer."""
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
        whole, loop = (kind(torch.nn.Tanh(), 4) for kind in (quanvolutions.QuanvNet, quanvolutions.LoopNet))
    images = torch.arange(32.0).reshape(2, 1, 4, 4)
    assert torch.equal(whole.maps(images), loop.maps(images))


# --- what the loop costs ----------------------------------------------------------------------


def test_the_loops_share_is_a_share(monkeypatch):
    """Of digits alone: the other net is larger."""
    monkeypatch.setattr(overhead, "CASES", {"digits_quanv": (8, 67, 10)})
    monkeypatch.setattr(overhead, "ROUNDS", 1)
    [row] = overhead.rows()
    assert 0 < row["fit_parts_s"] < row["fit_s"] and 0 < row["plain_parts_s"] < row["plain_s"]
    assert row["outside"] == pytest.approx(1 - row["fit_parts_s"] / row["fit_s"]) and row["images"] == 67
    assert row["times_plain"] == pytest.approx(row["fit_s"] / row["plain_s"])


# --- what a move of the inspector costs --------------------------------------------------------------


def test_rows_are_kept_with_the_machine(tmp_path, capsys):
    rows = [{"net": "a", "ms": 1.5}, {"net": "b", "ms": 1 / 3}]
    record.keep("times", iter(rows), tmp_path / "results", jax="0.10")
    table = pd.read_csv(tmp_path / "results" / "times.csv")
    assert table["ms"].tolist() == [1.5, 0.333333] and set(table["torch"]) == {torch.__version__}
    assert set(table["threads"]) == {torch.get_num_threads()} and set(table["jax"]) == {0.1}
    assert table["machine"][0] in (told := capsys.readouterr().out) and "1.5" in told and "jax" not in told


def test_adapters_are_compared_with_lora(monkeypatch):
    monkeypatch.setattr(adapting, "SECONDS", 0.1)
    with torch.random.fork_rng():
        rows = adapting.compare(32, 1000, length=8)
    numbers = [value for row in rows for value in row.values() if isinstance(value, float)]
    assert len(rows) >= 2 and numbers and all(math.isfinite(number) for number in numbers)
    assert {row["adapter"]: row["times_lora"] for row in rows}["lora"] == 1


SHOTS = 0.1
"""Three standard errors of a gradient from 100 shots, over five samples."""


def test_where_torchlayer_is_wrong():
    *rows, shots = torchlayer.rows()
    for row in rows:
        assert row["TorchLayer"] != row["Exact"]
        if row["what"] != torchlayer.returned.__doc__:
            assert float(row["QuantumLayer"]) == pytest.approx(float(row["Exact"]), abs=2e-4)
    assert float(shots["QuantumLayer"]) == pytest.approx(float(shots["Exact"]), abs=SHOTS)
    assert shots["TorchLayer"] == "raises NotImplementedError"
    table = torchlayer.table(pd.DataFrame([*rows, shots]))
    assert len(table.splitlines()) == 2 + len(torchlayer.CASES) and "| (4, 5, 1) | (5, 4) |" in table


def test_every_answer_of_the_inspector_is_timed(monkeypatch):
    case = moving.CASES["digits_quanv"]
    monkeypatch.setattr(moving, "CASES", {"digits_quanv": case | {"train_fraction": 0.1}})
    monkeypatch.setattr(moving, "VALUES", {"shift": [1.0, 2.0], "weight": [3]})
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    rows = list(moving.rows())
    assert [row["set"] for row in rows] == ["shift", "weight"]
    assert all(0 < row["median_ms"] <= row["slowest_ms"] for row in rows)


# --- whether auto is fast ----------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "other"), [("W1", "lightning.qubit"), ("digits_quanv", "default.qubit")])
def test_every_fixed_choice_stands_beside_auto(key, other, monkeypatch):
    monkeypatch.setattr(placing, "CIRCUITS", 8)
    rows = placing.compare(key, ["batched", other], 0.2, quick=True, devices=["cpu"], threads=[1, 2])
    fixed = [f"{name} on cpu, {n}" for name in ("batched", other) for n in ("1 thread", "2 threads")]
    assert [row["choice"] for row in rows] == ["auto", *fixed]
    assert all(row["median_ms"] > 0 for row in rows) and rows[0]["chosen"].startswith("cpu, ")
    assert rows[-1]["samples"] == (8 if other == "lightning.qubit" else rows[0]["samples"])


@pytest.mark.parametrize(
    ("auto", "told"),
    [
        (1.0, []),
        (1.09, []),
        (1.2, ["W1: auto takes 1.20 times as long as a."]),
        (4.0, ["W1: auto takes 4.00 times as long as a.", "W1: auto is slower than b, the slowest."]),
        (None, ["W1: there is nothing to compare."]),
    ],
)
def test_a_slow_auto_is_told(auto, told):
    times = {"auto": auto, "a": 1.0, "b": 3.0, "c": None}
    table = pd.DataFrame({"choice": times.keys(), "median_ms": times.values()}).astype({"median_ms": float})
    assert placing.problems(table.assign(workload="W1", chosen="")) == told


def test_the_table_of_placements_is_that_of_its_file():
    found = {"choice": ["auto", "a"], "chosen": ["cpu, 1 thread", ""], "median_ms": [1.5, 2.0]}
    table = placing.markdown(pd.DataFrame(found).assign(workload="W1"))
    assert table.splitlines()[-1] == "| W1 | cpu, 1 thread | 1.5 | a | 2 | 0.75 |"
    if (kept := record.RESULTS / "placing.csv").exists():
        assert placing.markdown(pd.read_csv(kept)) in (ROOT / "docs" / "measure.md").read_text()


# --- predicted and measured --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("peak", "seconds", "within"),
    [(1.0, 1.0, True), (1.14, 0.81, True), (0.84, 1.0, False), (1.16, 1.0, False), (1.0, 1.21, False)],
)
def test_a_prediction_is_judged_by_medians(peak, seconds, within):
    found = [
        (
            {"peak": 100e6 * mb, "seconds_per_epoch": s, "n_weights": 7},
            {"peak": 100e6, "seconds_per_epoch": 1.0},
        )
        for mb, s in ((9, 9), (peak, seconds), (0.1, 0.1))
    ]
    row = predicting.compared("digits_quanv", found)
    assert row["off_mb"] == pytest.approx(peak - 1) and row["measured_mb"] == 100
    page = predicting.page(pd.DataFrame([row]).assign(machine="A machine", date="2026-01-01"))
    assert f"{int(within)} of 1 settings lie within" in page and ("**" in page) is not within


def test_the_page_of_predictions_is_that_of_its_file():
    table = pd.read_csv(record.RESULTS / "predicted.csv")
    assert list(table["setting"]) == list(predicting.SETTINGS) and len(table) >= 21
    assert predicting.page(table) in (ROOT / "docs" / "predicted.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits_quanv", "Llama tiny, batch 8"])
def test_predicted_memory_is_that_of_a_training(name):
    row = predicting.compared(
        name, [tuple(predicting.apart(what, name, "cpu") for what in ("predict", "train"))]
    )
    assert abs(row["off_mb"]) <= predicting.MEMORY


# --- placement, whole --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_auto_beside_fixed_choices(tmp_path):
    words = ("--only", "W3-64,ahcd_ten_epochs", "--backends", "batched", "--seconds", "1")
    done = bench(tmp_path, *words, script="placing")
    found = pd.read_csv(tmp_path / "placing.csv")
    kept = "on all" in done.stdout  # a busy machine may make it slow
    assert done.returncode == (not kept) and ("auto" in done.stderr.splitlines()[-1]) != kept, done.stderr
    assert found["choice"][0] == "auto" and (found["median_ms"] > 0).all()


def test_noise_is_asked_of_the_seed_that_did_best_on_validation_images(tmp_path):
    own = {"n_seeds": 2, "epochs": 1, "controls": ()}
    run = runs.open_run(tmp_path / "run", "digits_quanv", **own)
    finals = list(runs.train_all(run))
    best = max(finals, key=lambda row: row["validation_accuracy"])
    found = noisy.rows(run, 4)
    assert set(found["seed"]) == {best["seed"]} and set(found["test_accuracy"]) == {best["test_accuracy"]}
    assert found["condition"].iloc[0] == "exact" and set(found["images"]) == {4}
    assert {"shots", "depolarizing", "readout"} <= set(found["condition"])
