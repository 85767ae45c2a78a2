"""What simulators take on this machine, forward and backward, over qubits and batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from qnnkit import circuits, words
from qnnkit import device as devices
from qnnkit.device import simulators
from qnnkit.layers import QuantumLayer
from qnnkit.measure import clock, held
from qnnkit.measure.device_figures import Row, row

CIRCUIT, LAYERS = "strongly_entangling", 2
QUBITS, BATCHES = (4, 8, 12, 16), (1, 64, 1024)
MORE_QUBITS = (18, 20, 22)
"""Where `lightning.gpu` runs: it is made for many."""
ONE_BY_ONE = ("lightning.qubit", "lightning.gpu")
GPU = torch.device("cuda:0")
CALLS = 5
"""That a measurement makes at least, two of them to warm up."""
KEPT = {"default.qubit": 100, "batched": 20}
"""States of the whole batch that a backward pass keeps, rather too many: what may not fit is not tried."""


def circuit_rows(seconds: float, *, quick: bool = False) -> tuple[list[Row], list[str]]:
    """Seconds of a batch of circuits, by simulator, device, qubits and batch; and which do not run here.

    The simulators of one size take turns. Those that run circuits one by one are timed on a few, and the time
    is scaled up. What would take too long, or too much memory, is left out and says so.

    Args:
        seconds: For all of it, about.
        quick: Four qubits and small batches.
    """
    runs, absent = _simulators()
    qubits = (4,) if quick else QUBITS + MORE_QUBITS * ("lightning.gpu" in dict(runs))
    batches = (1, 64) if quick else BATCHES
    share, end = seconds / (2 * len(qubits) * len(batches)), time.perf_counter() + seconds
    rows: list[Row] = []
    for n_qubits in qubits:
        for batch in batches:
            left = 60.0 if quick else end - time.perf_counter()
            rows += _cell(runs, n_qubits, batch, rows, left, share)
    return rows, absent


def _cell(
    runs: Sequence[tuple[str, torch.device]],
    n_qubits: int,
    batch: int,
    before: Sequence[Row],
    left: float,
    share: float,
) -> list[Row]:
    """All simulators at one size."""
    steps: dict[str, clock.Step] = {}
    rows: list[Row] = []
    for backend, device in runs:
        cell = row("circuits", device, None, "s", backend=backend, qubits=n_qubits, batch=batch)
        rows.append(cell)
        if why := _obstacle(cell, before, left):
            cell["why"] = why
            continue
        try:
            timed = batch
            if backend in ONE_BY_ONE:
                one = clock.spread(_run(backend, device, n_qubits, 1), device, rounds=1).median
                timed = max(1, min(batch, int(share / len(runs) / CALLS / one)))
            run = _run(backend, device, n_qubits, timed)
        except (RuntimeError, ValueError, NotImplementedError, MemoryError) as error:  # as a device may raise
            cell["why"] = words.error_line(error)
            continue
        cell["timed"] = timed
        steps[f"{backend} {device}"] = clock.Step(run, device, samples=timed / batch)
    try:
        laps = clock.race(steps, seconds=share)
    except (RuntimeError, ValueError, NotImplementedError) as error:  # none of them runs
        laps = dict.fromkeys(steps, clock.Lap(None, why=words.error_line(error)))
    for cell in rows:
        if lap := laps.get(f"{cell['backend']} {cell['device']}"):
            cell |= {"value": lap.seconds, "spread": lap.spread}
            cell |= {"why": lap.why} if lap.why else {}
    return rows


def _simulators() -> tuple[list[tuple[str, torch.device]], list[str]]:
    """Which simulators run where, and why others do not run."""
    usable = devices.usable_devices()
    runs, absent = [("batched", device) for device in usable], []
    for one in simulators.tried():
        if one.state != "runs":
            absent.append(f"{one.name} does not run here: {one.why}")
        elif one.name == "default.qubit":
            runs += [(one.name, device) for device in usable if device.type != "mps"]  # it wants float64
        else:
            runs.append((one.name, torch.device("cpu") if one.name == "lightning.qubit" else GPU))
    return runs, absent


def _obstacle(cell: Row, before: Sequence[Row], left: float) -> str | None:
    """Why a size is not tried: no time, or no memory, by what smaller ones took."""
    one_by_one, n_qubits = cell["backend"] in ONE_BY_ONE, cell["qubits"]
    batch = 1 if one_by_one else cell["batch"]
    states = 8 * batch * 2**n_qubits  # bytes of one state of the batch, complex numbers of 2 x 4 bytes
    needs, room = states * KEPT.get(cell["backend"], 4), held.free(torch.device(cell["device"])) / 4
    if needs > room:
        return f"It may need {needs / 1e9:.1f} GB, and a quarter of the free memory is {room / 1e9:.1f} GB."
    guesses = []
    for one in before:
        same = (one["backend"], one["device"]) == (cell["backend"], cell["device"])
        if same and one["value"] and one["batch"] <= cell["batch"] and one["qubits"] <= n_qubits:
            each = 1 / one["batch"] if one_by_one else max(1, batch / one["batch"])
            guesses.append(CALLS * one["value"] * each * 2 ** (n_qubits - one["qubits"]))
    guess = min(guesses, default=0.0)
    if left < 0:
        return "The time was up."
    if guess > left / 3:
        return f"It would take about {guess:.1f} s, too much of the {left:.1f} s that were left."
    return None


def _run(backend: str, device: torch.device, n_qubits: int, batch: int) -> Callable[[], Any]:
    """A call that runs the circuits forward and backward, for weights and inputs."""
    qnode, shapes = circuits.build(CIRCUIT, n_qubits=n_qubits, n_layers=LAYERS)
    layer = QuantumLayer(qnode, shapes, {"weights": torch.ones(shapes["weights"])}, backend=backend)
    near = torch.device("cpu") if backend in ONE_BY_ONE else device  # host memory is where lightning reads
    layer.to(near)
    inputs = torch.linspace(0, 3, batch * n_qubits, device=near).reshape(batch, n_qubits).requires_grad_()
    leaves = [inputs, *layer.parameters()]
    return lambda: torch.autograd.grad(layer(inputs).sum(), leaves)
