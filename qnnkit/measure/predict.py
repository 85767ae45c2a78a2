"""Memory and time of a training on this machine, before it is begun."""

from __future__ import annotations

import functools
import gc
import math
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qnnkit import gradients, train
from qnnkit.measure.clock import threads
from qnnkit.measure.held import free, peak_on, reset_peak, resident
from qnnkit.measure.memory import Traced, trace
from qnnkit.measure.workload import Workload
from qnnkit.models.blocks import seeded
from qnnkit.models.causal_lm import in_four_bits
from qnnkit.settings import Settings
from qnnkit.tasks import Classification

HOST = ("checkpoint", "data", "framework")
"""Parts of the memory that stay in RAM when a GPU computes."""
SHARE = 0.5
"""Of the free memory: what would take more is only traced, or tried with fewer samples."""
MOST_WORK = {"cpu": 1e12, "cuda": 1e14}
"""Floating point operations of an update, by kind of device: one of more, which takes about half a minute
on a slow one, is timed with fewer samples."""
FOUR_BITS = 0.516
"""Bytes of a weight in 4 bits: the half, and what its blocks of 64 share (Dettmers et al. 2023,
arXiv:2305.14314, section 3: 0.127 bits with double quantisation)."""
LONGEST = 50
"""Updates that are timed, at most."""


@dataclass(frozen=True)
class Prediction(Traced):
    """One net's training, as predicted.

    To the parts of memory that are traced it adds "workspace", which libraries take where updates were timed;
    "checkpoint", a copy of weights and moments while it is written; "data"; and "framework", Python and its
    libraries.
    """

    name: str
    training: Settings
    n_samples: int
    """In an epoch."""
    device: str
    """What it was predicted for: "cpu", "cuda:0", "mps"."""
    seconds: float | None
    """Of one update, measured on that device; None where nothing was measured."""
    spread: float
    """The slowest of the updates that were timed over the median one."""
    less_on_cuda: int
    """Bytes of frozen weights that a machine with CUDA does not hold, where they are kept in 4 bits."""
    notes: tuple[str, ...]

    @property
    def peak(self) -> int:
        """Bytes that have to be held where it computes: on a GPU without what stays in RAM."""
        return self.on_accelerator if self.device.startswith("cuda") else self.in_all

    @property
    def on_accelerator(self) -> int:
        """Bytes that a GPU would have to hold; what a CPU's libraries take says nothing of it."""
        workspace = 0 if self.device == "cpu" else self.memory.get("workspace", 0)
        return max(self.at_update, self.held + workspace) - self.less_on_cuda

    @property
    def in_all(self) -> int:
        """Bytes of all parts: what a CPU, or a Mac with its one memory, has to hold."""
        return sum(self.memory.values())

    @property
    def disk(self) -> int:
        """Bytes that the checkpoints of one net take: the newest ones, and that of the best epoch."""
        return self.checkpoint * (self.training.keep_checkpoints + 1)

    @property
    def seconds_per_epoch(self) -> float | None:
        """Of training, without validation and writing."""
        return self.seconds and self.seconds * self.n_samples / self.training.batch_size

    def as_dict(self) -> dict[str, Any]:
        """In plain values, for JSON."""
        derived = ("peak", "checkpoint", "disk", "seconds_per_epoch")
        values = {**vars(self), "training": self.training.model_dump(mode="json"), "work": vars(self.work)}
        return values | {name: getattr(self, name) for name in derived}


def predict(
    workload: Workload,
    device: torch.device | str = "cpu",
    *,
    measured: bool = True,
    seconds: float = 3.0,
    n_threads: int | None = None,
) -> Prediction:
    """What a training will take on this machine.

    Memory is traced, not used (see `trace`); what this process holds already is added: call it in a process
    like the one that will train. Time is that of a few updates by the training loop itself, at the full batch
    where that takes less than half of the free memory and MOST_WORK operations at most, else scaled up.

    Args:
        workload: What is to be trained.
        device: Where.
        measured: Whether to time updates; otherwise nothing is run, and the prediction has no time.
        seconds: About how long updates are timed.
        n_threads: CPU threads that train; None leaves torch's choice.

    Raises:
        Exception: What building or training the net raises.
    """
    device, config = torch.device(device), workload.training
    notes, times, size = list(workload.notes), list[float](), config.batch_size
    with threads(n_threads):
        _warm_up(device)
        gc.collect()
        framework = max(0, resident() - workload.loaded_bytes)
        traced = trace(workload, foreach=device.type == "cuda")
        memory = {name: n for name, n in traced.memory.items() if n > 0}
        memory |= {"checkpoint": traced.copied, "data": workload.data_bytes, "framework": framework}
        if measured and (device.type, config.precision) == ("cpu", "float16"):
            notes.append("A CPU does not train in float16: nothing was timed.")
        elif measured:
            reset_peak(device)
            before = peak_on(device) if device.type != "cpu" else resident()
            times, size, kept = _timed(workload, device, traced, seconds)
            if times and size == config.batch_size:
                memory["workspace"] = max(0, peak_on(device) - before - traced.held - kept)
        if times:
            at = "" if size == config.batch_size else f" with {size} samples at a time, and scaled up"
            notes.append(f"Timed on {device}, CPU threads: {torch.get_num_threads()}{at}.")
    saved, possible = 0, device.type != "cuda" or in_four_bits(workload.name, device)[0] is not None
    if possible and config.of_kit("four_bit", False):  # what is not packed is then kept in float32
        others, kept = traced.n_weights - traced.n_trained - traced.linear, workload.base_bytes
        saved = round(traced.linear * (kept - FOUR_BITS) - others * (4 - kept))
        notes.append(f"With CUDA, {traced.linear:,} frozen weights are counted in 4 bits.")
    return Prediction(
        **{**vars(traced), "memory": memory},  # pyright: ignore[reportArgumentType]
        name=workload.name,
        training=config,
        n_samples=workload.n_samples,
        device=str(device),
        seconds=statistics.median(times) if times else None,
        spread=max(times) / statistics.median(times) if times else 1.0,
        less_on_cuda=saved,
        notes=tuple(notes),
    )


def _timed(
    workload: Workload, device: torch.device, traced: Traced, seconds: float
) -> tuple[list[float], int, int]:
    """Times of one update, the batch size that was run for them, and the bytes that were held in addition.

    No times where not even one sample may be tried. Activations are taken to grow with the batch. What is
    held in addition is a checkpoint's copy, which the prediction counts by itself, or the weights of the best
    epoch, which a training without a folder keeps in memory.
    """
    size = whole = workload.training.batch_size
    growing = sum(traced.memory.get(part, 0) for part in ("activations", "quantum states"))
    fits = (SHARE * free(device) - (traced.held - growing)) * whole / max(growing, 1)
    fits = min(fits, MOST_WORK.get(device.type, MOST_WORK["cuda"]) * whole / max(traced.work.flops, 1))
    if fits < 1:
        return [], whole, 0
    while size > fits:
        size //= 2
    workload = workload.change(batch_size=size)
    times, saved = _updates(workload, device, seconds)
    kept = traced.kept if not saved else traced.copied if device.type == "cpu" else 0
    return [each * whole / size for each in times], size, kept


def _updates(workload: Workload, device: torch.device, seconds: float) -> tuple[list[float], bool]:
    """Seconds of an update, from short epochs of the training loop, after two updates that warm up.

    Also whether it wrote checkpoints. Memory is asked of the system in the first update, and in the second
    still: the optimizer has come in between. An epoch that is short itself is run whole, with its last batch
    as small as it is, and its checkpoints.
    """
    config, model = workload.training, workload.build(workload.training, False)
    whole, groups = math.ceil(workload.n_samples / config.batch_size), workload.groups(model, config)

    def epochs(updates: int, n: int) -> list[float]:
        asked = config.model_copy(update={"epochs": n, "patience": 0})
        looked = math.ceil(config.gradient_samples * updates / whole)
        with tempfile.TemporaryDirectory() as folder:
            return train.fit(
                model,
                workload.task,
                {"train": workload.loader(updates), "validation": workload.loader(1)},
                asked,
                groups=groups,
                device=device,
                folder=Path(folder) if updates == whole else None,
                identity={},
                watch=gradients.Watch(model, groups, per_epoch=looked) if groups and looked else None,
            ).seconds

    first = epochs(1, 3)[-1]
    if first > 2 * seconds:
        return [first], whole == 1
    n = max(1, min(LONGEST, int(seconds / 3 / first), whole))
    samples = workload.n_samples if n == whole else n * config.batch_size
    return [each * config.batch_size / samples for each in epochs(n, 4)[1:]], n == whole


@functools.cache
def _warm_up(device: torch.device) -> None:
    """Loads what the first step of any training loads: libraries, and kernels made when first used."""
    with seeded(0):
        layers = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(512, 2)
    batch = torch.zeros(8, 1, 8, 8), torch.zeros(8, dtype=torch.long)
    about: Any = (lambda *_: nn.Sequential(*layers), lambda config: batch, Classification())
    _updates(Workload("", Settings(batch_size=8), 16, *about), device, 0.0)
