"""Memory and time of a training, before it is begun."""

from __future__ import annotations

import functools
import gc

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from qnnkit import measure, train
from qnnkit.config import TrainingConfig
from qnnkit.device import machine
from qnnkit.models.blocks import seeded
from qnnkit.plan.prediction import HOST, Prediction, Work
from qnnkit.plan.trace import trace
from qnnkit.plan.workload import Workload
from qnnkit.tasks import Classification

SHARE = 0.5
"""Of the memory that is free: what would take more is not tried, only traced, or tried with fewer samples."""
MOST_WORK = {"cpu": 1e12, "cuda": 1e14}
"""Floating point operations of an update, by kind of device: one of more, which takes about half a minute
on a slow one, is timed with fewer samples."""
LONGEST = 50
"""Updates that are timed, at most."""


def predict(
    workload: Workload,
    device: torch.device | str = "cpu",
    *,
    measured: bool = True,
    seconds: float = 3.0,
    threads: int | None = None,
    framework: int | None = None,
) -> Prediction:
    """What a training will take on this machine.

    Memory is traced without being used (see `trace`), and on top comes what this process holds already: call
    it in a process like the one that will train. Time is that of a few updates by the training loop itself,
    at the full batch where it takes less than half of the memory that is free, else at a smaller one.

    Args:
        workload: What is to be trained.
        device: Where.
        measured: Whether to time updates; otherwise nothing is run, and the prediction has no time.
        seconds: About how long updates are timed.
        threads: CPU threads that train; None leaves torch's choice.
        framework: Bytes of that part, where it was looked at before: what has run since may have left some.
    """
    device, notes = torch.device(device), list(workload.notes)
    if device.type == "cpu" and workload.training.precision == "float16":
        measured = False
        notes.append("A CPU does not train in float16: nothing was timed.")
    with measure.threads(threads):
        if framework is None:
            _warm_up(device)
            gc.collect()
            framework = max(0, measure.resident() - workload.loaded_bytes)
        traced = trace(workload, foreach=device.type == "cuda")
        memory = {name: n for name, n in traced.memory.items() if n > 0}
        # Moments and weights are copied for each checkpoint, which is written while training goes on.
        memory["checkpoint"] = memory.get("weights", 0) + memory.get("optimizer", 0)
        memory |= {"data": workload.data_bytes, "framework": framework}
        spread, size = None, None
        if measured:
            spread, size = _timed(workload, device, memory, traced.work, seconds)
            n = torch.get_num_threads()
            notes.append(f"Timed on {device}, with {n} CPU thread{'s' * (n > 1)}.")
    config = workload.training
    return Prediction(
        name=workload.name,
        training=config,
        n_samples=workload.n_samples,
        sequence_length=workload.sequence_length,
        n_weights=traced.n_weights,
        n_trained=traced.n_trained,
        memory=memory,
        work=traced.work,
        at_update=traced.at_update,
        device=str(device),
        seconds=spread,
        notes=tuple(notes),
        scaled_from=size if size != config.batch_size else None,
    )


def _timed(
    workload: Workload, device: torch.device, memory: dict[str, int], work: Work, seconds: float
) -> tuple[measure.Spread | None, int | None]:
    """Times of one update, and the batch size that was run for them; (None, None) where not even one sample
    may be tried."""
    free = SHARE * free_memory(device)
    size = workload.training.batch_size
    while True:
        smaller = workload.change(batch_size=size)
        needed = sum(n for part, n in memory.items() if part not in HOST)
        if needed < free and work.flops < MOST_WORK.get(device.type, MOST_WORK["cuda"]):
            break
        if size == 1:
            return None, None
        size = max(1, size // 2)
        traced = trace(workload.change(batch_size=size), foreach=device.type == "cuda")
        memory, work = traced.memory, traced.work
    spread = _updates(smaller, device, seconds)
    scale = workload.training.batch_size / size
    scaled = measure.Spread(scale * spread.least, scale * spread.median, scale * spread.most, spread.rounds)
    return scaled, size


def _updates(workload: Workload, device: torch.device, seconds: float) -> measure.Spread:
    """Time per update, of short epochs of the training loop; the first, which warms up, does not count."""
    accumulation = workload.training.accumulation
    model = workload.build(workload, False)
    first = _epochs(workload, model, device, accumulation, 2)[-1]
    n = min(LONGEST, int(seconds / 3 / first))
    if n < 1:
        return measure.Spread.of([first])
    times = _epochs(workload, model, device, n * accumulation, 4)[1:]
    return measure.Spread.of([each / n for each in times])


def _epochs(
    workload: Workload, model: nn.Module, device: torch.device, n_batches: int, epochs: int
) -> list[float]:
    """Seconds of each epoch of so many batches."""
    config = workload.training.model_copy(update={"epochs": epochs, "patience": 0})
    loaders = {"train": workload.loader(workload, n_batches), "validation": workload.loader(workload, 1)}
    groups = workload.groups(model, config)
    progress = train.fit(model, workload.task, loaders, config, groups=groups, device=device)
    return progress.seconds


def free_memory(device: torch.device) -> int:
    """Bytes that a training could still take on a device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return machine.memory()[1]


@functools.cache
def _warm_up(device: torch.device) -> None:
    """Loads what the first step of any training loads: libraries, and kernels made when first used."""
    config = TrainingConfig(epochs=1, batch_size=8)
    with seeded(0):
        model = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(512, 2)
        )
    data = TensorDataset(torch.zeros(8, 1, 8, 8), torch.zeros(8, dtype=torch.long))
    loaders = {name: DataLoader(data, 8, generator=torch.Generator()) for name in ("train", "validation")}
    train.fit(model, Classification(), loaders, config, device=device)
