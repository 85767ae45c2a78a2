"""What a training will take, as predicted: memory by part, work, time."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from qnnkit.measure import Spread
from qnnkit.settings import Settings

PARTS = {
    "weights": "What the net is made of, frozen parts included, and its buffers.",
    "gradients": "One number for each weight that is trained.",
    "optimizer": "Moments: two numbers for each trained weight under Adam, one under SGD with momentum.",
    "activations": "What the classical layers keep for the way back, and work on.",
    "quantum states": "What the circuits keep for the way back, and work on.",
    "workspace": "What libraries take meanwhile, as seen where updates were timed: convolutions, allocators.",
    "checkpoint": "A copy of weights and moments in RAM, while it is written.",
    "data": "The samples, in RAM.",
    "framework": "Python, torch, PennyLane and their libraries, in RAM.",
}
"""Part of the memory -> what it is."""
HOST = ("checkpoint", "data", "framework")
"""Parts that stay in RAM when a GPU computes."""


@dataclass(frozen=True)
class Work:
    """What one update asks of whatever machine."""

    flops: float
    """Floating point operations of its matrix products and convolutions."""
    bytes: float
    """Bytes that its operations read and write, each by itself."""
    operations: int
    """Operations that it launches."""


@dataclass(frozen=True)
class Prediction:
    """A training, as predicted."""

    name: str
    training: Settings
    n_samples: int
    """In an epoch."""
    sequence_length: int | None
    """Tokens of a sample; None for images."""
    n_weights: int
    n_trained: int
    memory: dict[str, int]
    """Part -> bytes at the peak, see PARTS."""
    work: Work
    device: str
    """What it was predicted for: "cpu", "cuda:0", "mps"."""
    seconds: Spread | None
    """Of one update, measured on that device; None where nothing was measured."""
    at_update: int = 0
    """Bytes that a GPU would hold while it updates the weights: there the optimizer takes all at once, with
    one copy of each under SGD and two under Adam."""
    less_on_cuda: int = 0
    """Bytes of frozen weights that fall away on another machine with CUDA, where they are kept in 4 bits."""
    checkpoint: int = 0
    """Bytes of a checkpoint: weights but frozen ones that are built anew, and moments."""
    notes: tuple[str, ...] = ()
    """What a reader must know, in sentences."""
    scaled_from: int | None = None
    """Batch size that was measured in its place, where the real one would be too large; else None."""

    @property
    def peak(self) -> int:
        """Bytes that have to be held where it computes: on a GPU without what stays in RAM."""
        return self.on_accelerator if self.device.startswith("cuda") else self.in_all

    @property
    def on_accelerator(self) -> int:
        """Bytes that a GPU would have to hold; what a CPU's libraries take says nothing of it."""
        elsewhere = (*HOST, "workspace") if self.device == "cpu" else HOST
        at_peak = sum(n for part, n in self.memory.items() if part not in elsewhere)
        return max(self.at_update, at_peak) - self.less_on_cuda

    @property
    def in_all(self) -> int:
        """Bytes of all parts: what a CPU, or a Mac with its one memory, has to hold."""
        return sum(self.memory.values())

    @property
    def disk(self) -> int:
        """Bytes that the checkpoints of one net take: the newest ones, and that of the best epoch."""
        return self.checkpoint * (self.training.keep_checkpoints + 1)

    @property
    def updates_per_epoch(self) -> int:
        return math.ceil(self.n_samples / self.training.batch_size)

    @property
    def seconds_per_epoch(self) -> float | None:
        """Of training, without validation and writing."""
        if self.seconds is None:
            return None
        return self.seconds.median * self.n_samples / self.training.batch_size

    @property
    def seconds_in_all(self) -> float | None:
        """Of all epochs of one net."""
        return None if self.seconds_per_epoch is None else self.seconds_per_epoch * self.training.epochs

    def as_dict(self) -> dict[str, Any]:
        """All of it in plain values, for JSON."""
        training = self.training.model_dump(mode="json")
        derived = ("peak", "disk", "updates_per_epoch", "seconds_per_epoch", "seconds_in_all")
        return asdict(self) | {"training": training} | {name: getattr(self, name) for name in derived}
