"""What simulators take on this machine, forward and backward, over qubits and batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from qnnkit import circuits
from qnnkit import device as devices
from qnnkit.device import accelerators, machine, simulators
from qnnkit.layers import QuantumLayer
from qnnkit.measure import placement
from qnnkit.survey import apart, words
from qnnkit.survey.clock import Budget, scaled, spread
from qnnkit.survey.form import Cell, Circuits, CircuitThreads

CIRCUIT, LAYERS = "strongly_entangling", 2
QUBITS, BATCHES = (4, 8, 12, 16), (1, 64, 1024)
MORE_QUBITS = (18, 20, 22)
"""Where `lightning.gpu` runs: it is made for many."""
QUICK_QUBITS, QUICK_BATCHES, QUICK_SECONDS = (4,), (1, 64), 30.0
ONE_BY_ONE = ("lightning.qubit", "lightning.gpu")
GPU = torch.device("cuda:0")
SMALL = {"lightning.qubit": (4, 16), "batched": (4, 1024)}
"""Backend -> qubits and circuits for the comparison of thread counts."""
CALLS = 5
"""That a measurement makes at least, two of them to warm up."""
KEPT = {"default.qubit": 100, "batched": 20}
"""States of the whole batch that a backward pass keeps, rather too many: what may not fit is not tried."""


def measured(seconds: float, *, quick: bool = False) -> Circuits:
    """Seconds of a batch of circuits, by simulator, device, qubits and batch; and what threads do to them.

    Simulators that run circuits one by one are timed on a few, and the time is scaled up. A cell that would
    take too long, or too much memory, is left out and says so.

    Args:
        seconds: For all of it, about; not counted if quick.
        quick: Few qubits, briefly, and no comparison of threads.
    """
    runs, absent = _simulators()
    budget = Budget(QUICK_SECONDS if quick else max(0.1, 0.6 * seconds))  # one measurement there always is
    qubits = QUICK_QUBITS if quick else QUBITS + MORE_QUBITS * ("lightning.gpu" in dict(runs))
    cells: list[Cell] = []
    batches = QUICK_BATCHES if quick else BATCHES
    share = 0.05 if quick else budget.seconds / (2 * len(runs) * len(qubits) * len(batches))
    for n_qubits in qubits:
        for batch in batches:
            for backend, device in runs:
                cells.append(_cell(backend, device, n_qubits, batch, cells, budget, share))
    threads = [] if quick else _threads(Budget(seconds - budget.seconds + max(0.0, budget.left)))
    return {
        "circuit": CIRCUIT,
        "n_layers": LAYERS,
        "cells": cells,
        "absent": absent,
        "threads": threads,
        "sentences": [*_fastest(cells), *_lightning_gpu(cells), *_best_threads(threads)],
    }


def here(question: dict[str, Any]) -> dict[str, Any]:
    """Seconds of the small circuits in this process, by backend; asked through `apart`."""
    cpu, share = torch.device("cpu"), question["seconds"] / len(SMALL)
    return {
        backend: spread(_run(backend, cpu, n_qubits, batch), cpu, seconds=share)
        for backend, (n_qubits, batch) in SMALL.items()
    }


def _simulators() -> tuple[list[tuple[str, torch.device]], dict[str, str]]:
    """Which simulators run where, and why others do not run."""
    usable = devices.usable_devices()
    runs, absent = [("batched", device) for device in usable], {}
    for name in simulators.PACKAGES:
        tried = simulators.probe(name)
        if tried.state != "runs":
            driver = next((version for _, version in accelerators.nvidia_smi()), None)
            tried = simulators.explain(tried, accelerators.accelerators()[0], driver)
            absent[name] = tried.why or tried.error or tried.state
        elif name == "default.qubit":
            runs += [(name, device) for device in usable if device.type != "mps"]  # it wants float64
        else:
            runs.append((name, torch.device("cpu") if name == "lightning.qubit" else GPU))
    return runs, absent


def _cell(
    backend: str,
    device: torch.device,
    n_qubits: int,
    batch: int,
    before: list[Cell],
    budget: Budget,
    share: float,
) -> Cell:
    """One measurement, or why there is none."""
    cell = Cell(backend=backend, device=str(device), n_qubits=n_qubits, batch=batch)
    smaller = [one for one in before if (one["backend"], one["device"]) == (backend, str(device))]
    one_by_one = backend in ONE_BY_ONE
    if why := _obstacle(cell, smaller, budget, one_by_one):
        return {**cell, "why": why}
    try:
        timed = _how_many(backend, device, n_qubits, batch, share) if one_by_one else batch
        times = spread(_run(backend, device, n_qubits, timed), device, seconds=share)
    except (RuntimeError, ValueError, NotImplementedError, MemoryError) as error:  # as a device may raise
        return {**cell, "why": machine.first_line(error)}
    return {**cell, "seconds": scaled(times, batch / timed), "circuits_timed": timed}


def _obstacle(cell: Cell, smaller: list[Cell], budget: Budget, one_by_one: bool) -> str | None:
    """Why a cell is not tried: no time, or no memory, by what smaller ones took."""
    n_qubits, batch = cell["n_qubits"], 1 if one_by_one else cell["batch"]
    states = 8 * batch * 2**n_qubits  # bytes of one state of the batch, complex numbers of 2 x 4 bytes
    needs, room = states * KEPT.get(cell["backend"], 4), _room(torch.device(cell["device"])) / 4
    if needs > room:
        return f"It may need {needs / 1e9:.1f} GB, and a quarter of the free memory is {room / 1e9:.1f} GB."
    guesses = []
    for one in smaller:
        if "seconds" in one and one["batch"] <= cell["batch"] and one["n_qubits"] <= n_qubits:
            each = 1 / one["batch"] if one_by_one else max(1, batch / one["batch"])
            guesses.append(CALLS * one["seconds"]["median"] * each * 2 ** (n_qubits - one["n_qubits"]))
    guess = min(guesses, default=0.0)
    if budget.left < 0:
        return "The time was up."
    if guess > budget.left / 3:
        return f"It would take about {guess:.1f} s, too much of the {budget.left:.1f} s that were left."
    return None


def _room(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else machine.memory()[1]


def _how_many(backend: str, device: torch.device, n_qubits: int, batch: int, share: float) -> int:
    """As many circuits as fit into the share of the time, one after the other."""
    one = spread(_run(backend, device, n_qubits, 1), device, seconds=0, rounds=1, least=0)["median"]
    return max(1, min(batch, int(share / CALLS / one)))


def _run(backend: str, device: torch.device, n_qubits: int, batch: int) -> Callable[[], Any]:
    """A call that runs the circuits forward and backward, for weights and inputs."""
    qnode, shapes = circuits.build(CIRCUIT, n_qubits=n_qubits, n_layers=LAYERS)
    layer = QuantumLayer(qnode, shapes, {"weights": torch.ones(shapes["weights"])}, backend=backend)
    near = torch.device("cpu") if backend in ONE_BY_ONE else device  # host memory is where lightning reads
    layer.to(near)
    inputs = torch.linspace(0, 3, batch * n_qubits, device=near).reshape(batch, n_qubits).requires_grad_()
    leaves = [inputs, *layer.parameters()]
    return lambda: torch.autograd.grad(layer(inputs).sum(), leaves)


# --- threads ------------------------------------------------------------------------------------------------


def _threads(budget: Budget) -> list[CircuitThreads]:
    """Small circuits on the numbers of threads that training chooses from, each in a process of its own.

    The most and one come first.
    """
    counts = placement.thread_counts()
    rows: list[CircuitThreads] = []
    for threads in sorted(counts, key=lambda n: (n not in (counts[0], counts[-1]), n)):
        if budget.left < apart.START:
            found: dict[str, Any] = {"why": "The time was up."}
        else:
            question = {"seconds": min(2.0, budget.seconds / (2 * len(counts)))}
            found = apart.ask("circuits", question, threads=threads, timeout=max(apart.PATIENCE, budget.left))
        for backend, (n_qubits, batch) in SMALL.items():
            row = CircuitThreads(backend=backend, threads=threads, n_qubits=n_qubits, batch=batch)
            if "why" in found:
                row["why"] = found["why"]
            else:
                row["seconds"] = found[backend]
            rows.append(row)
    return rows


# --- in words -----------------------------------------------------------------------------------------------


def _fastest(cells: list[Cell]) -> Iterable[str]:
    """For the fewest and the most qubits, at a batch of 64: which simulator wins, and by how much."""
    batch = 64 if any(cell["batch"] == 64 for cell in cells) else 1
    measured = [cell for cell in cells if "seconds" in cell and cell["batch"] == batch]
    sizes = [cell["n_qubits"] for cell in measured]
    for n_qubits in dict.fromkeys([min(sizes, default=0), max(sizes, default=0)]):
        times = {
            f"{cell['backend']} on {cell['device']}": cell["seconds"]["median"]
            for cell in measured
            if cell["n_qubits"] == n_qubits and "seconds" in cell
        }
        if len(times) > 1:
            first, told = words.slower(times)
            took = f"takes {words.figure(1000 * times[first])} ms"
            yield f"{batch} circuits of {n_qubits} qubits: {first} {took}, {told} as long."


def _lightning_gpu(cells: list[Cell]) -> Iterable[str]:
    """From how many qubits on it wins over the batched simulator on the same GPU, for each size of batch."""
    times = {
        (cell["backend"], cell["batch"], cell["n_qubits"]): cell["seconds"]["median"]
        for cell in cells
        if "seconds" in cell and cell["device"] == str(GPU)
    }
    for batch in sorted({cell["batch"] for cell in cells}):
        both = sorted(
            n
            for backend, size, n in times
            if (backend, size) == ("lightning.gpu", batch) and ("batched", batch, n) in times
        )
        wins = [times["lightning.gpu", batch, n] < times["batched", batch, n] for n in both]
        first = next((n for i, n in enumerate(both) if all(wins[i:])), None)
        what = f"{batch} circuit{'s' * (batch > 1)} on {GPU}"
        if first is not None:
            yield f"{what}: lightning.gpu is faster than the batched simulator from {first} qubits on."
        elif both:
            yield f"{what}: the batched simulator is faster than lightning.gpu up to {both[-1]} qubits."


def _best_threads(rows: list[CircuitThreads]) -> Iterable[str]:
    for backend in SMALL:
        mine = [row for row in rows if row["backend"] == backend and "seconds" in row]
        times = {row["threads"]: row["seconds"]["median"] for row in mine if "seconds" in row}
        if len(times) > 1:
            what = f"{mine[0]['batch']} circuits of {mine[0]['n_qubits']} qubits on {backend}"
            yield f"{what}: {words.threads(times)}"
