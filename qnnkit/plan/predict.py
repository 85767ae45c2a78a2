"""Memory and time of a training, before it is begun."""

from __future__ import annotations

import functools
import gc
import math
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from qnnkit import measure, train
from qnnkit.device import machine
from qnnkit.models.blocks import seeded
from qnnkit.models.causal_lm import in_four_bits
from qnnkit.plan.prediction import HOST, Prediction, Work
from qnnkit.plan.trace import trace
from qnnkit.plan.workload import Workload
from qnnkit.settings import Settings
from qnnkit.tasks import Classification

SHARE = 0.5
"""Of the memory that is free: what would take more is not tried, only traced, or tried with fewer samples."""
MOST_WORK = {"cpu": 1e12, "cuda": 1e14}
"""Floating point operations of an update, by kind of device: one of more, which takes about half a minute
on a slow one, is timed with fewer samples."""
FOUR_BITS = 0.516
"""Bytes of a weight in 4 bits: the half, and what its blocks of 64 share (Dettmers et al. 2023,
arXiv:2305.14314, section 3: 0.127 bits with double quantisation)."""
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
    at the full batch where that takes less than half of the free memory and no more than MOST_WORK
    operations, else at a smaller one, scaled up.

    Args:
        workload: What is to be trained.
        device: Where.
        measured: Whether to time updates; otherwise nothing is run, and the prediction has no time.
        seconds: About how long updates are timed.
        threads: CPU threads that train; None leaves torch's choice.
        framework: Bytes of that part, where it was looked at before: what has run since may have left some.

    Returns:
        Bytes of memory by part at the peak, the work of an update and, if measured, its seconds.

    Raises:
        Exception: What building or training the net raises.
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
        at_update, less = traced.at_update, 0
        if workload.four_bit:
            # What is not packed, such as the embedding, is then kept in float32.
            others = traced.n_weights - traced.n_trained - traced.linear
            kept = workload.base_bytes
            less = round(traced.linear * (kept - FOUR_BITS) - others * (4 - kept))
            if in_four_bits(workload.name, device)[0] is not None:
                memory["weights"], at_update, less = memory["weights"] - less, at_update - less, 0
            elif device.type == "cuda":
                less = 0  # bitsandbytes is missing
        if workload.four_bit and (less or device.type == "cpu"):
            notes.append(f"With CUDA, {traced.linear:,} frozen weights are counted in 4 bits.")
        # Weights and moments are copied for each checkpoint, which is written while training goes on: but at
        # first where gradients have just been, and are again at the end of the next backward pass.
        copied = traced.kept + memory.get("optimizer", 0)
        memory["checkpoint"] = max(0, copied - memory.get("gradients", 0))
        memory |= {"data": workload.data_bytes, "framework": framework}
        spread, size = None, None
        if measured:
            measure.reset_peak(device)
            before = measure.peak_on(device) if device.type != "cpu" else measure.resident()
            spread, size = _timed(workload, device, memory, traced.work, seconds)
            expected = sum(n for part, n in memory.items() if part not in HOST)
            if size == workload.training.batch_size:
                memory["workspace"] = max(0, measure.peak_on(device) - before - expected)
        if spread is not None:
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
        at_update=at_update,
        less_on_cuda=less,
        checkpoint=copied,
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
    """Time per update, of short epochs of the training loop, after two updates that warm up.

    Memory is asked of the system in the first, and in the second still: the optimizer has come in between.
    An epoch that is short itself is run whole, with its last batch as small as it is, and its checkpoints.
    """
    config = workload.training
    whole = math.ceil(workload.n_samples / config.batch_size)
    model = workload.build(workload, False)
    first = _epochs(workload, model, device, 1, 3, whole)[-1]
    if first > 2 * seconds:
        return measure.Spread.of([first])
    n = max(1, min(LONGEST, int(seconds / 3 / first), whole))
    times = _epochs(workload, model, device, n, 4, whole)[1:]
    samples = workload.n_samples if n == whole else n * config.batch_size
    return measure.Spread.of([each * config.batch_size / samples for each in times])


def _epochs(
    workload: Workload, model: nn.Module, device: torch.device, updates: int, epochs: int, whole: int
) -> list[float]:
    """Seconds of each epoch of so many updates, of the `whole` that an epoch has."""
    config = workload.training.model_copy(update={"epochs": epochs, "patience": 0, "on_oom": "stop"})
    batches = {"train": updates, "validation": 1}
    loaders = {split: workload.loader(workload, n) for split, n in batches.items()}
    groups = workload.groups(model, config)
    watch = workload.watch(model, groups, math.ceil(config.gradient_samples * updates / whole))
    with tempfile.TemporaryDirectory() as folder:
        progress = train.fit(
            model,
            workload.task,
            loaders,
            config,
            groups=groups,
            device=device,
            folder=Path(folder) if updates == whole else None,
            identity={},
            watch=watch,
        )
    return progress.seconds


def free_memory(device: torch.device) -> int:
    """Bytes that a training could still take on a device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return machine.memory()[1]


@functools.cache
def _warm_up(device: torch.device) -> None:
    """Loads what the first step of any training loads: libraries, and kernels made when first used."""
    config = Settings(epochs=1, batch_size=8)
    with seeded(0):
        model = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(512, 2)
        )
    data = TensorDataset(torch.zeros(8, 1, 8, 8), torch.zeros(8, dtype=torch.long))
    loaders = {name: DataLoader(data, 8, generator=torch.Generator()) for name in ("train", "validation")}
    train.fit(model, Classification(), loaders, config, device=device)
