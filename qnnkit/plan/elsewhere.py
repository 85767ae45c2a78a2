"""How long an update takes on a machine that is not here: an estimate, with its range, never a measurement.

A roofline over the whole update says what a processor can do at best; how far the step that was measured here
lies above the same line for this machine says how well the work uses a processor, and is carried over.

Reference: Williams, Waterman and Patterson (2009), Roofline, doi:10.1145/1498765.1498785.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from qnnkit.plan.machines import Machine
from qnnkit.plan.prediction import Work

PUBLISHED, MEASURED, UNCALIBRATED = 2.0, 1.5, 3.0
"""Factor by which an estimate may be off, both ways: from published figures, from those that a survey of that
machine measured, and from any figures where no step was measured here. Chosen, not fitted."""
FARTHEST = 4.0
"""How far above or below its roofline a step may lie for that to be carried over: more says something of the
processor it was measured on."""


@dataclass(frozen=True)
class Figures:
    """How fast one processor is."""

    device: str
    """ "cpu", "mps" or "cuda"; an index may follow."""
    flops: Mapping[str, float]
    """Precision -> operations of matrix products per second; float32 stands for what is missing."""
    bytes_per_second: float
    seconds_per_operation: float
    """What launching one operation takes."""
    measured: bool
    """By a survey of that very machine; else published."""

    @classmethod
    def of_survey(cls, found: Mapping[str, Any]) -> Figures:
        """From an entry of `survey.figures`."""
        flops = {name: rate for name, rate in found["flops"].items() if rate}
        return cls(
            found["device"], flops, found["bytes_per_second"], found["seconds_per_operation"], measured=True
        )


@dataclass(frozen=True)
class Range:
    """A time or an amount that is known so far."""

    low: float
    likely: float
    high: float

    def times(self, factor: float) -> Range:
        return Range(factor * self.low, factor * self.likely, factor * self.high)

    @classmethod
    def within(cls, likely: float, factor: float) -> Range:
        """From `likely` divided by the factor to as many times as much."""
        return cls(likely / factor, likely, likely * factor)


@dataclass(frozen=True)
class Estimate:
    """Seconds of one update on one machine, and what they follow from."""

    seconds: Range
    device: str
    basis: str
    """ "measured here", "from its survey" or "published"."""


def published(machine: Machine) -> list[Figures]:
    """The figures of a row of the table, one for each of its processors."""
    return [
        Figures(
            device,
            {name: 1e12 * rate for name, rate in each.tflops.items()},
            1e9 * each.bandwidth_gb_s,
            1e-6 * each.overhead_us,
            measured=False,
        )
        for device, each in machine.processors.items()
    ]


def roofline(work: Work, figures: Figures, precision: str = "float32") -> float:
    """Seconds that an update takes at best.

    Arithmetic and traffic are added, since each operation of a training step is bound by one or the other. A
    CPU launches its operations itself, so that comes on top; a GPU computes while the next are launched.
    """
    rate = figures.flops.get(precision) or figures.flops["float32"]
    busy = work.flops / rate + work.bytes / figures.bytes_per_second
    launching = work.operations * figures.seconds_per_operation
    return busy + launching if figures.device == "cpu" else max(busy, launching)


def calibration(work: Work, precision: str, seconds: float | None, here: Figures | None) -> float | None:
    """How many times as long as its roofline a step took here; None where it is not known.

    Args:
        work: Of one update.
        precision: It was measured in.
        seconds: It took here.
        here: The figures of what it was measured on.
    """
    if seconds is None or here is None:
        return None
    return min(max(seconds / roofline(work, here, precision), 1 / FARTHEST), FARTHEST)


def estimate(work: Work, precision: str, processors: Iterable[Figures], calibrated: float | None) -> Estimate:
    """Seconds of one update on a machine: on whichever of its processors is quickest.

    Args:
        work: Of one update.
        precision: That it computes in.
        processors: Of the machine.
        calibrated: What `calibration` says, or None.
    """
    quickest = min(processors, key=lambda each: roofline(work, each, precision))
    known = MEASURED if quickest.measured else PUBLISHED
    factor = UNCALIBRATED if calibrated is None else known
    likely = (calibrated or 1.0) * roofline(work, quickest, precision)
    basis = "from its survey" if quickest.measured else "published"
    return Estimate(Range.within(likely, factor), quickest.device, basis)
