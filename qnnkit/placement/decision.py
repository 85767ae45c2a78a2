"""From times to a placement, and the sentence that says why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import nn

from qnnkit import measure
from qnnkit.layers import QuantumLayer
from qnnkit.placement.candidates import UPDATES, Candidate, candidates, here
from qnnkit.placement.race import RACED_AT, Groups, race
from qnnkit.settings import Settings
from qnnkit.tasks import Task

TIE = 0.05
"""Part by which a more complicated choice has to be faster, whatever the noise."""
NEAR = 0.1
"""Part of the most samples a second that the smallest batch may lose."""


@dataclass(frozen=True)
class Placement:
    """Where a net is trained, in which batches, and why."""

    device: str
    """A torch device."""
    backend: str
    """What runs the circuits; under "auto" each layer takes what it measures to be faster there."""
    threads: int | None
    """CPU threads; None leaves torch's own number."""
    batch_size: int
    """Samples per update."""
    sentence: str
    """Why, with how much faster than what else."""
    times: dict[str, float] = field(default_factory=dict)
    """Seconds per sample by candidate, see `race`; empty where there was nothing to choose."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def rows(self) -> list[dict[str, Any]]:
        """One row per candidate that was timed, the fastest first."""
        names = [name for name in self.times if not name.endswith(" ±") and name != RACED_AT]
        return [
            {
                "candidate": name,
                "samples per second": 1 / self.times[name],
                "standard error": self.times.get(f"{name} ±"),
            }
            for name in sorted(names, key=lambda name: self.times[name])
        ]


def place(
    model: nn.Module,
    task: Task,
    samples: Any,
    config: Settings | None = None,
    *,
    device: str = "auto",
    threads: int | str | None = "auto",
    groups: Groups | None = None,
    n_samples: int | None = None,
    about: Mapping[str, Any] | None = None,
    seconds: float = 10.0,
) -> Placement:
    """The placement on which a net trains fastest on this machine, by training steps that are timed.

    What is a tie within 5 %, or within the noise, goes to the simpler choice: the CPU, fewer threads. A size
    of batch that is "auto" becomes the smallest power of two that comes within 10 % of the most samples a
    second. Where the settings leave one choice, nothing is measured.

    Args:
        model: The net; it stays as it is, copies of it are trained.
        task: Gives the loss, as for `train.fit`.
        samples: Some samples, in the form of a batch; or a function that gives them, which is called only
            where something is measured.
        config: Batch size (may be "auto"), precision and the like; without one, `samples` is the batch.
        device: A torch device, or "auto" for all that compute here.
        threads: Number of CPU threads, "auto" for 1, half and all physical cores, None for torch's own.
        groups: Makes the parameter groups of a model; all parameters in one by default.
        n_samples: In an epoch, for a size of batch that is "auto": it leaves 20 updates at least.
        about: What the model is made of, in plain values: with it, times are remembered for this machine, in
            the workspace where one is in use. Without it they are measured by each call.
        seconds: For measuring, about, see `race`.

    Raises:
        ValueError: The device is not here, or has not the precision.
        Exception: The model cannot be trained on these samples anywhere.

    Example:
        >>> import torch
        >>> from qnnkit.tasks import Classification
        >>> net, batch = torch.nn.Linear(4, 2), (torch.zeros(8, 4), torch.zeros(8, dtype=torch.long))
        >>> place(net, Classification(), batch, device="cpu", threads=1).sentence
        'cpu on 1 thread: nothing else to choose from, so nothing was measured.'
    """
    if config is None:
        config = Settings(batch_size=_length(samples))
    found = candidates(device, threads, config, n_samples)
    wanted = {layer.wanted_backend for layer in model.modules() if isinstance(layer, QuantumLayer)}
    backend = wanted.pop() if len(wanted) == 1 else "auto"
    if len(found) == 1:
        told = f"{found[0].place}: nothing else to choose from, so nothing was measured."
        return Placement(found[0].device, backend, found[0].threads, found[0].batch_size, told)
    asked = None
    if about is not None:
        asked = {
            "placement": dict(about),
            "training": config.model_dump(mode="json", include=set(DECIDING)),
            "candidates": [one.name for one in found],
            "machine": here(),
        }

    def times_now() -> dict[str, float]:
        given = samples() if callable(samples) else samples
        return race(model, task, given, config, found, groups, seconds)

    times, busy = measured(asked, times_now)
    chosen = decide(found, times)
    sentences = [_of_place(chosen, found, times, sum(weight.numel() for weight in model.parameters()))]
    if config.batch_size == "auto":
        sentences.append(_of_batch(chosen, found, times))
    if busy:
        sentences.append(busy)
    return Placement(
        chosen.device, backend, chosen.threads, chosen.batch_size, " ".join(sentences), dict(times)
    )


DECIDING = ("batch_size", "optimizer", "micro_batch", "precision", "augmentation", "gradient_checkpointing")
"""Settings of a training that its speed depends on; those of later versions, too."""


def measured(
    asked: Mapping[str, Any] | None, times: Callable[[], dict[str, float]]
) -> tuple[dict[str, float], str | None]:
    """Times of the candidates, and a note where other programs disturbed them."""
    note = measure.note(measure.load())
    return times(), note


def decide(found: Sequence[Candidate], times: Mapping[str, float]) -> Candidate:
    """The candidate to take: the first of `found`, simplest first, that is not clearly slower than another.

    Args:
        found: The candidates, the simplest first.
        times: Seconds per sample by name, and errors, as `race` gives them.
    """
    known = [one for one in found if one.name in times]
    if not known:
        return found[0]
    most = min(times[one.name] for one in known)
    size = min(one.batch_size for one in known if times[one.name] <= (1 + NEAR) * most)
    known = [one for one in known if one.batch_size == size]
    least = min(times[one.name] for one in known)
    return next(one for one in known if times[one.name] <= (1 + _tie(one, times)) * least)


def _tie(one: Candidate, times: Mapping[str, float]) -> float:
    """By what part it may be slower than the fastest, and still count as no slower."""
    return max(TIE, 2 * times.get(f"{one.name} ±", 0.0))


def _of_place(
    chosen: Candidate, found: Sequence[Candidate], times: Mapping[str, float], n_weights: int
) -> str:
    """Such as "cpu on 1 thread: 2.1x faster than 2 threads, for this net of 88 k weights at batch 128."."""
    if chosen.name not in times:
        return f"{chosen.place}: nothing could be measured, so this is the simplest choice, not the fastest."
    beside = [one for one in found if one.batch_size == chosen.batch_size and one != chosen]
    told = [_compared(one, one.how_many, chosen, times) for one in beside if one.device == chosen.device]
    for place in dict.fromkeys(each.device for each in beside if each.device != chosen.device):
        there = [each for each in beside if each.device == place]
        best = min(there, key=lambda each: times.get(each.name, float("inf")))
        told.append(_compared(best, place if best.name not in times else best.place, chosen, times))
    at = f"batch {chosen.batch_size}"
    if times.get(RACED_AT, chosen.batch_size) != chosen.batch_size:
        at += f" (timed at {times[RACED_AT]:.0f})"
    what = f"for this net of {_rounded(n_weights)} weights at {at}."
    return f"{chosen.place}: {', '.join([*told, what])}" if told else f"{chosen.place}, {what}"


def _compared(other: Candidate, name: str, chosen: Candidate, times: Mapping[str, float]) -> str:
    if other.name not in times:
        return f"{name} not timed (failed, or too late)"
    ratio = times[other.name] / times[chosen.name]
    if ratio >= 1 + TIE:
        return f"{ratio:.1f}x faster than {name}"
    return f"as fast as {name}{'' if ratio > 1 - TIE else ' within the noise'}"


def _of_batch(chosen: Candidate, found: Sequence[Candidate], times: Mapping[str, float]) -> str:
    tried = [one for one in found if one.name in times]
    if not tried:
        return f"Batch {chosen.batch_size} is the smallest of all."
    if len({one.batch_size for one in found}) == 1:
        told = f"Batch {chosen.batch_size} is the only size tried"
        return f"{told}: larger ones would leave an epoch under {UPDATES} updates."
    best = min(tried, key=lambda one: times[one.name])
    told = f"Batch {chosen.batch_size} is the smallest within {NEAR:.0%} of the most samples a second"
    told += f" ({1 / times[best.name]:,.0f}, at batch {best.batch_size})"
    largest = max(one.batch_size for one in tried)
    if largest < max(one.batch_size for one in found):
        told += f"; none above {largest} was tried, for want of time or memory"
    return told.replace("%", " %") + "."


def _rounded(n: int) -> str:
    """Two digits.

    Example:
        >>> _rounded(87_936), _rounded(11_200_000), _rounded(640)
        ('88 k', '11 M', '640')
    """
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if n >= size:
            return f"{n / size:.2g} {unit}" if n < 100 * size else f"{n / size:.0f} {unit}"
    return str(n)


def _length(samples: Any) -> int:
    """How many samples a batch holds."""
    if isinstance(samples, Mapping):
        samples = list(samples.values())
    return _length(samples[0]) if isinstance(samples, list | tuple) else len(samples)
