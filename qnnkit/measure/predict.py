"""Predicted memory and time of a training on this machine."""

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
"""Share of the free memory that a timed update may take. Larger ones get fewer samples or are only traced."""
MOST_WORK = {"cpu": 1e12, "cuda": 1e14}
"""Most floating point operations of a timed update, by kind of device: about half a minute on a slow one. A
larger update is timed with fewer samples."""
FOUR_BITS = 0.516
"""Bytes of a weight in 4 bits: one half, and its part of what a block of 64 weights shares (Dettmers et al.
2023, arXiv:2305.14314, section 3: 0.127 bits with double quantisation)."""
LONGEST = 50
"""Most updates that are timed."""


@dataclass(frozen=True)
class Prediction(Traced):
    """Predicted memory and time of one net's training.

    In addition to the traced parts, its memory has "workspace", which libraries take (known if updates were
    timed); "checkpoint", a copy of weights and moments while it is written; "data"; and "framework", Python
    and its libraries.

    Attributes:
        memory: Bytes at the peak, by part.
        work: Work of one update: `flops`, `bytes` read and written, and `operations` launched.
        n_weights: Number of weights.
        n_trained: Number of trained weights.
        kept: Bytes of weights in a checkpoint, without the frozen base under a PEFT adapter.
        linear: Number of frozen weights that 4 bits can hold.
        at_update: Bytes held during the optimizer's update on a GPU.
        name: Name of the workload.
        training: Settings of the training.
        n_samples: Samples in an epoch.
        device: Device of the prediction: "cpu", "cuda:0", "mps".
        seconds: Seconds of one update, measured on that device; None if nothing was timed.
        spread: Time of the slowest timed update, divided by the median.
        less_on_cuda: Bytes of frozen weights that a machine with CUDA saves by keeping them in 4 bits.
        notes: Sentences on what was timed and how.
    """

    name: str
    training: Settings
    n_samples: int
    device: str
    seconds: float | None
    spread: float
    less_on_cuda: int
    notes: tuple[str, ...]

    @property
    def peak(self) -> int:
        """Bytes that the device's memory has to hold: on a GPU, without what stays in RAM."""
        return self.on_accelerator if self.device.startswith("cuda") else self.in_all

    @property
    def on_accelerator(self) -> int:
        """Bytes that a GPU would have to hold. The workspace of a CPU's libraries does not count."""
        workspace = 0 if self.device == "cpu" else self.memory.get("workspace", 0)
        return max(self.at_update, self.held + workspace) - self.less_on_cuda

    @property
    def in_all(self) -> int:
        """Bytes of all parts, which a CPU, or a Mac with its shared memory, has to hold."""
        return sum(self.memory.values())

    @property
    def disk(self) -> int:
        """Bytes that the checkpoints of one net take: the newest ones, and that of the best epoch."""
        return self.checkpoint * (self.training.keep_checkpoints + 1)

    @property
    def seconds_per_epoch(self) -> float | None:
        """Seconds of training in an epoch, without validation and writing."""
        return self.seconds and self.seconds * self.n_samples / self.training.batch_size

    def as_dict(self) -> dict[str, Any]:
        """The prediction as plain values, for JSON."""
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
    """Predicts memory and time of a training on this machine.

    Memory is traced, not used (see `trace`). What this process already holds is added, so call it in a
    process like the one that will train. Time comes from a few updates of the training loop itself. They use
    the full batch if it takes less than half of the free memory and at most 1e12 operations (GPU: 1e14).

    Args:
        workload: Training to predict.
        device: Device to compute on.
        measured: Whether to time updates; otherwise nothing is run, and the prediction has no time.
        seconds: About how long to time updates.
        n_threads: Number of CPU threads; None leaves torch's own number.

    Raises:
        Exception: Any error of building or training the net.
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
            notes.append("A CPU does not train in float16, so nothing was timed.")
        elif measured:
            reset_peak(device)
            before = peak_on(device) if device.type != "cpu" else resident()
            times, size, extra = _timed(workload, device, traced, seconds)
            if times and size == config.batch_size:
                memory["workspace"] = max(0, peak_on(device) - before - traced.held - extra)
        if times:
            at = "" if size == config.batch_size else f" with {size} samples at a time and scaled up"
            notes.append(f"Timed on {device}{at}; CPU threads: {torch.get_num_threads()}.")
    saved, possible = 0, device.type != "cuda" or in_four_bits(workload.name, device)[0] is not None
    if possible and config.of_kit("four_bit", False):  # other frozen weights are then in float32
        others, stored = traced.n_weights - traced.n_trained - traced.linear, workload.base_bytes
        saved = round(traced.linear * (stored - FOUR_BITS) - others * (4 - stored))
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
    """Times of one update, the batch size at which they were measured, and additional bytes held meanwhile.

    There are no times if not even one sample fits. Activations are assumed to grow with the batch. The
    additional bytes are a checkpoint's copy, which the prediction counts separately, or the weights of the
    best epoch, which a training without a folder keeps in memory.
    """
    size = full = workload.training.batch_size
    growing = sum(traced.memory.get(part, 0) for part in ("activations", "quantum states"))
    fits = (SHARE * free(device) - (traced.held - growing)) * full / max(growing, 1)
    fits = min(fits, MOST_WORK.get(device.type, MOST_WORK["cuda"]) * full / max(traced.work.flops, 1))
    if fits < 1:
        return [], full, 0
    while size > fits:
        size //= 2
    workload = workload.change(batch_size=size)
    times, saved = _updates(workload, device, seconds)
    extra = traced.kept if not saved else traced.copied if device.type == "cpu" else 0
    return [update * full / size for update in times], size, extra


def _updates(workload: Workload, device: torch.device, seconds: float) -> tuple[list[float], bool]:
    """Seconds of an update, from short epochs of the training loop after two warm-up updates; and whether it
    wrote checkpoints.

    The second update still allocates memory, because the optimizer's moments come after the first. If a full
    epoch is short, it is run completely, with its smaller last batch and its checkpoints.
    """
    config, model = workload.training, workload.build(workload.training, False)
    n_updates, groups = math.ceil(workload.n_samples / config.batch_size), workload.groups(model, config)

    def epochs(updates: int, n: int) -> list[float]:
        short = config.model_copy(update={"epochs": n, "patience": 0})
        looks = math.ceil(config.gradient_samples * updates / n_updates)
        with tempfile.TemporaryDirectory() as folder:
            return train.fit(
                model,
                workload.task,
                {"train": workload.loader(updates), "validation": workload.loader(1)},
                short,
                groups=groups,
                device=device,
                folder=Path(folder) if updates == n_updates else None,
                identity={},
                watch=gradients.Watch(model, groups, per_epoch=looks) if groups and looks else None,
            ).seconds

    first = epochs(1, 3)[-1]
    if first > 2 * seconds:
        return [first], n_updates == 1
    n = max(1, min(LONGEST, int(seconds / 3 / first), n_updates))
    samples = workload.n_samples if n == n_updates else n * config.batch_size
    return [epoch * config.batch_size / samples for epoch in epochs(n, 4)[1:]], n == n_updates


@functools.cache
def _warm_up(device: torch.device) -> None:
    """Loads what the first step of any training loads: libraries, and kernels created at first use."""
    with seeded(0):
        layers = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(512, 2)
    batch = torch.zeros(8, 1, 8, 8), torch.zeros(8, dtype=torch.long)
    about: Any = (lambda *_: nn.Sequential(*layers), lambda config: batch, Classification())
    _updates(Workload("", Settings(batch_size=8), 16, *about), device, 0.0)
