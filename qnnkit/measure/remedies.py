"""What to do when a training does not fit: changes in the order in which to try them, each in one dose."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from qnnkit.measure.workload import ModelSettings
from qnnkit.settings import Settings

WORTH = 0.01
"""Share of the memory that a remedy must save to be named."""
SMALLEST, SHORTEST, LORA_RANK = 2, 16, 8
"""Batch and sequence below which no remedy goes, as some layers normalise over a batch; and LoRA's rank."""
REMEDIES = {
    "micro-batches": "a batch in pieces; batch norm sees them",
    "checkpointing": "activations computed again; same results",
    "shorter sequences": "the net sees less of each text",
    "LoRA": "low-rank updates train in place of weights",
    "precision": "classical layers compute in bfloat16",
    "smaller batch": "updates see fewer samples: noisier",
}
"""Remedy, in the order in which to try it -> what it does to the training."""


@dataclass(frozen=True)
class Remedy:
    """One change, and what is predicted of it."""

    name: str
    settings: Mapping[str, Any]
    before: int
    """Bytes at the peak without it."""
    after: int
    slower: float | None
    """Factor on the time for the same samples, by arithmetic and traffic; None where it is not known."""
    fits: bool

    @property
    def command(self) -> str:
        """What to type."""
        told = {True: "true", False: "false"}
        return " ".join(f"--set {name}={told.get(value, value)}" for name, value in self.settings.items())


@dataclass(frozen=True)
class Remedies:
    """Looks for remedies without running anything.

    Args:
        needs: Settings of a training -> bytes that have to fit.
        room: Bytes that may be used.
        seconds: Settings -> about how long an update takes; None leaves times out.
        pieces: Whether the task's loss may be computed in pieces of a batch.
    """

    needs: Callable[[Any], int]
    room: float
    seconds: Callable[[Any], float] | None = None
    pieces: bool = True

    def alone(self, training: Settings) -> list[Remedy]:
        """Each that would save memory by itself."""
        return [found for name in REMEDIES if (found := self.one(name, training))]

    def chain(self, training: Settings) -> list[Remedy]:
        """The first that makes it fit; else as many as it takes, one upon the other, each once; else none."""
        for each in self.alone(training):
            if each.fits:
                return [each]
        found = []
        for name in REMEDIES:
            if remedy := self.one(name, training):
                found.append(remedy)
                training = training.override(**remedy.settings)
                if remedy.fits:
                    return found
        return []

    def one(self, name: str, training: Settings) -> Remedy | None:
        """The mildest dose of a remedy that makes it fit, else the strongest; None where none applies."""
        doses = list(self._doses(name, training))
        if not doses:
            return None

        def fits(dose: int) -> bool:
            return self.needs(training.override(**doses[dose])) <= self.room

        # A stronger dose never needs more: the first that fits is sought as in a sorted list.
        dose = doses[min(bisect.bisect_left(range(len(doses)), True, key=fits), len(doses) - 1)]
        changed, slower = training.override(**dose), None
        before, after = self.needs(training), self.needs(changed)
        if before - after < WORTH * before:
            return None
        if self.seconds:
            old, new = (self.seconds(each) / each.batch_size for each in (training, changed))
            slower = new / old
        return Remedy(name, dose, before, after, slower, after <= self.room)

    def _doses(self, name: str, training: Settings) -> Iterator[dict[str, Any]]:
        """Settings to try, the mildest first; none where the remedy does not apply."""
        model = training if isinstance(training, ModelSettings) else None
        match name:
            case "micro-batches" if self.pieces:
                size = min(training.micro_batch or training.batch_size, training.batch_size)
                while (size := size // 2) >= SMALLEST:
                    yield {"micro_batch": size}
            case "checkpointing" if not training.gradient_checkpointing:
                yield {"gradient_checkpointing": True}
            case "shorter sequences" if model:
                for share in (2, 4):
                    if (shorter := (model.sequence_length or 0) // share) >= SHORTEST:
                        yield {"sequence_length": shorter}
            case "LoRA" if model and model.lora_rank is None:
                yield {"lora_rank": LORA_RANK}
            case "precision" if training.precision == "float32":
                yield {"precision": "bfloat16"}
            case "smaller batch":
                size = training.batch_size
                while (size := size // 2) >= SMALLEST:
                    yield {"batch_size": size}
