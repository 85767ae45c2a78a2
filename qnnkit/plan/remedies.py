"""What to do when a training does not fit: the remedies in order, each with its predicted effect."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from qnnkit.plan import words
from qnnkit.plan.prediction import Prediction
from qnnkit.plan.verdict import FULL
from qnnkit.settings import Settings

WORTH = 0.01
"""Share of the memory that a remedy must save to be named."""
SMALLEST, SHORTEST = 2, 16
"""Batch and sequence below which no remedy goes: some layers normalise over a batch, and a text has words."""
LORA_RANK = 8

KINDS = {
    "micro-batches": "A batch is computed in pieces whose gradients are added up; the update stays. Layers "
    "that normalise over a batch see the pieces.",
    "checkpointing": "Activations are computed again on the way back instead of being kept; results stay.",
    "shorter sequences": "The net sees less of each text.",
    "LoRA": "Low-rank updates are trained in place of the weights, whose gradients and moments fall away.",
    "precision": "Classical layers compute in bfloat16; circuits stay in float32.",
    "smaller batch": "Updates see fewer samples: noisier, and the step size may have to follow.",
}
"""Remedy -> what it does to the training."""


class Changeable(Protocol):
    """What of a `Workload` is needed here."""

    @property
    def training(self) -> Settings: ...
    @property
    def sequence_length(self) -> int | None: ...
    @property
    def lora_rank(self) -> int | None: ...
    def change(self, **settings: Any) -> Any: ...


W = TypeVar("W", bound=Changeable)


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
    workload: Any = field(repr=False, compare=False)
    """What it leads to."""

    @property
    def command(self) -> str:
        """What to type."""
        own = {"sequence_length": "--sequence-length", "lora_rank": "--lora-rank"}
        told = {True: "true", False: "false"}
        return " ".join(
            f"{own[name]} {value}" if name in own else f"--set {name}={told.get(value, value)}"
            for name, value in self.settings.items()
        )

    @property
    def effect(self) -> str:
        """In a few words."""
        saved = f"saves {words.size(self.before - self.after)} of {words.size(self.before)}"
        if self.slower is None:
            return saved
        percent = round(100 * (self.slower - 1))
        if abs(percent) < 5:
            return f"{saved}, takes about as long"
        return f"{saved}, takes about {abs(percent)} % {'longer' if percent > 0 else 'less time'}"

    def as_dict(self) -> dict[str, Any]:
        """In plain values."""
        return {
            "name": self.name,
            "settings": dict(self.settings),
            "command": self.command,
            "bytes_before": self.before,
            "bytes_after": self.after,
            "slower": self.slower,
            "fits": self.fits,
            "effect": self.effect,
        }


@dataclass(frozen=True)
class Sight:
    """How a changed workload is looked at: without running it."""

    predict: Callable[[Any], Prediction]
    """Memory and work, without times."""
    needs: Callable[[Prediction], int]
    """Bytes that have to fit."""
    usable: float
    """Bytes that may be used."""
    seconds: Callable[[Prediction], float] | None = None
    """About how long an update takes; None leaves times out."""
    seen: dict[Any, Prediction] = field(default_factory=dict, repr=False)
    """What has been looked at already."""

    def look(self, workload: Changeable) -> Prediction:
        """A prediction, made once."""
        key = (workload.training.model_dump_json(), workload.sequence_length, workload.lora_rank)
        if key not in self.seen:
            self.seen[key] = self.predict(workload)
        return self.seen[key]

    def fits(self, prediction: Prediction) -> bool:
        return self.needs(prediction) <= FULL * self.usable

    def per_sample(self, prediction: Prediction) -> float | None:
        config = prediction.training
        return self.seconds and self.seconds(prediction) / config.batch_size


def remedies(workload: Changeable, sight: Sight) -> list[Remedy]:
    """What would save memory, in the order in which to try it, each by itself.

    Args:
        workload: What does not fit.
        sight: Where it has to.
    """
    before = sight.look(workload)
    found = (_try(name, workload, before, sight) for name in KINDS)
    return [each for each in found if each is not None]


def enough(workload: Changeable, sight: Sight, alone: Sequence[Remedy]) -> list[Remedy]:
    """The first remedy that makes it fit; else as many as it takes, in order, one upon the other.

    Args:
        workload: What does not fit.
        sight: Where it has to.
        alone: What `remedies` gave.

    Returns:
        Nothing where all of them together are not enough.
    """
    for each in alone:
        if each.fits:
            return [each]
    chain: list[Remedy] = []
    for name in KINDS:
        before = sight.look(workload)
        found = _try(name, workload, before, sight)
        if found is None:
            continue
        chain.append(found)
        workload = found.workload
        if found.fits:
            return chain
    return []


def _try(name: str, workload: Changeable, before: Prediction, sight: Sight) -> Remedy | None:
    """The mildest dose of a remedy that makes it fit, else the strongest; None where it does not apply."""
    doses = list(_doses(name, workload))
    if not doses:
        return None

    def fits(dose: int) -> bool:
        return sight.fits(sight.look(workload.change(**doses[dose])))

    # A stronger dose never needs more: the first that fits is sought as in a sorted list.
    dose = min(bisect.bisect_left(range(len(doses)), True, key=fits), len(doses) - 1)
    changed = workload.change(**doses[dose])
    after = sight.look(changed)
    needed, needs = sight.needs(before), sight.needs(after)
    if needed - needs < WORTH * needed:
        return None
    old, new = sight.per_sample(before), sight.per_sample(after)
    slower = new / old if old and new else None
    return Remedy(name, doses[dose], needed, needs, slower, sight.fits(after), changed)


def _doses(name: str, workload: Changeable) -> Iterator[dict[str, Any]]:
    """Settings to try, the mildest first; none where the remedy does not apply."""
    config = workload.training
    match name:
        case "micro-batches":
            size = min(config.micro_batch or config.batch_size, config.batch_size)
            whole = getattr(getattr(workload, "task", None), "together", False)  # such a loss takes no pieces
            while size // 2 >= SMALLEST and not whole:
                size //= 2
                yield {"micro_batch": size}
        case "checkpointing":
            if not config.gradient_checkpointing:
                yield {"gradient_checkpointing": True}
        case "shorter sequences":
            length = workload.sequence_length or 0
            for shorter in (length // 2, length // 4):
                if shorter >= SHORTEST:
                    yield {"sequence_length": shorter}
        case "LoRA":
            if workload.sequence_length is not None and workload.lora_rank is None:
                yield {"lora_rank": LORA_RANK}
        case "precision":
            if config.precision == "float32":
                yield {"precision": "bfloat16"}
        case "smaller batch":
            size = config.batch_size
            while size // 2 >= SMALLEST:
                size //= 2
                yield {"batch_size": size}
