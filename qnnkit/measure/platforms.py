"""Other machines: a table that anyone can edit, and estimates of the time of an update on them.

A roofline over the whole update gives the shortest time on a processor. It is multiplied by the ratio of the
measured time to the roofline of this machine. The result is an estimate with a range.

Reference: Williams, Waterman and Patterson (2009), Roofline, doi:10.1145/1498765.1498785.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, ValidationError

from qnnkit import checks, settings, workspace
from qnnkit import device as devices
from qnnkit.device import machine
from qnnkit.measure.held import resident
from qnnkit.measure.memory import Work

OWN = Path(__file__).with_name("machines.yaml")
HERE = "this machine"
OF_MAC = 2 / 3
"""Share of a Mac's memory that its GPU may hold."""
FACTORS = {"published": 2.0, "estimated": 3.0}
"""Basis of an estimate -> the factor by which it may be off, both ways. Chosen, not fitted."""
FARTHEST = 4.0
"""Largest ratio of a step's time to its roofline, or of the roofline to the time, that is applied to other
machines. A larger one is a property of the processor on which it was measured."""

Positive = Annotated[float, Field(gt=0)]


class Tflops(settings.Base):
    float32: Positive
    bfloat16: Positive | None = None
    float16: Positive | None = None


class Processor(settings.Base):
    bandwidth_gb_s: Positive
    tflops: Tflops
    overhead_us: Positive
    source: str


class Machine(settings.Base):
    """A row of the table. The head of machines.yaml explains each figure."""

    kind: Literal["cuda", "mac", "cpu"]
    usable_gb: Positive
    price_per_hour: float | None = Field(default=None, ge=0)
    as_of: datetime.date
    source: str
    processors: dict[Literal["cpu", "mps", "cuda"], Processor] = Field(min_length=1)


class Table(settings.Base):
    """The machines of a plan."""

    shown: tuple[str, ...] = Field(min_length=1)
    machines: dict[str, Machine]

    def note(self) -> str:
        """Sentences on the sources of figures and prices."""
        rows = ((name, self.machines[name]) for name in self.shown)
        dates = ", ".join(f"{name} {row.as_of}" for name, row in rows if row.price_per_hour)
        return (
            "Figures of other machines are published or estimated, not measured by qnnkit; Macs in the table "
            f"are assumed to be yours. Prices as of: {dates or 'none'}; see machines.yaml."
        )


def load(prices: str | Path | None = None) -> Table:
    """qnnkit's table of machines, in which figures of the user's table replace qnnkit's.

    Args:
        prices: Path of the user's table; default: `machines.yaml` of the workspace, if it exists.

    Raises:
        ValueError: The table is not plain YAML, lacks a row or a figure, or a figure breaks its rule.
        OSError: `prices` cannot be read.
    """
    path = workspace.home() / OWN.name if prices is None else workspace.place(prices)
    values = checks.read_yaml(OWN, "machine table")
    if prices is not None or path.is_file():
        values = _over(values, checks.read_yaml(path, "machine table"))
    try:
        table = Table.model_validate(values)
    except ValidationError as error:
        loc, rule, value = settings.first_fault(error)
        where = ".".join(str(part) for part in loc if part != "[key]")
        step = f"This is in machine table `{path}`; the head of qnnkit's own table explains each figure."
        raise ValueError(checks.message(where or path.name, rule, value, step)) from None
    for name in table.shown:
        checks.choice("shown", name, table.machines)
    return table


def _over(below: Any, above: Any) -> Any:
    """`above`, with missing values taken from `below`."""
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    return {**below, **{name: _over(below.get(name), value) for name, value in above.items()}}


# --- machines -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spot:
    """A machine for which a training can be planned."""

    name: str
    kind: str
    """ "cuda", "mac" or "cpu". A CUDA GPU only holds what it computes with, the others hold everything."""
    usable: int
    """Bytes that a training may use."""
    price_per_hour: float | None = None
    """Price in US dollars; None: unknown."""
    basis: str = "measured here"
    """Source of its times: "measured here", or a key of FACTORS."""
    figures: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    """Figures of each processor, as `measure.figures` returns them."""


def this_machine(device: torch.device, price_per_hour: float | None = None) -> Spot:
    """This machine, with its free memory; for a Mac's GPU, at most two thirds of all memory.

    Args:
        device: Device that computes.
        price_per_hour: Price of this machine in US dollars. None counts as free, except on Colab, where it is
            unknown.
    """
    kind = {"cuda": "cuda", "mps": "mac"}.get(device.type, "cpu")
    total, available = machine.memory()
    usable = available + resident()  # a prediction counts this process too
    if kind == "mac":
        usable = min(usable, OF_MAC * total)
    if kind == "cuda":
        usable = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    if price_per_hour is None and not devices.on_colab():
        price_per_hour = 0.0
    return Spot(HERE, kind, int(usable), price_per_hour)


def spots(table: Table) -> list[Spot]:
    """The machines of a table: its `shown` rows, in this order."""
    listed = []
    for name, row in ((name, table.machines[name]) for name in table.shown):
        figures = [{"device": device, **speed.model_dump()} for device, speed in row.processors.items()]
        usable = round(1e9 * row.usable_gb)
        listed.append(Spot(name, row.kind, usable, row.price_per_hour, "published", figures))
    return listed


# --- times --------------------------------------------------------------------------------------------------


def roofline(work: Work, figures: Mapping[str, Any], precision: str = "float32") -> float:
    """The shortest time of an update, in seconds.

    The times of arithmetic and of memory traffic are added, because each operation of a training step is
    bound by one or the other. A CPU launches its operations itself, so that this time is added; a GPU
    computes while the next operations are launched. A precision without figures counts as float32.
    """
    rate = 1e12 * (figures["tflops"].get(precision) or figures["tflops"]["float32"])
    busy = work.flops / rate + work.bytes / (1e9 * figures["bandwidth_gb_s"])
    launching = work.operations * 1e-6 * figures["overhead_us"]
    return busy + launching if figures["device"] == "cpu" else max(busy, launching)


def calibration(
    work: Work, precision: str, seconds: float | None, figures: Mapping[str, Any] | None
) -> float | None:
    """Ratio of a step's time to its roofline on this machine, within FARTHEST; None if it is unknown."""
    if seconds is None or figures is None:
        return None
    return min(max(seconds / roofline(work, figures, precision), 1 / FARTHEST), FARTHEST)


def estimate(work: Work, precision: str, spot: Spot, calibrated: float | None) -> tuple[float, float, str]:
    """Seconds of one update on a machine, the factor by which they may be off, and the fastest processor.

    Args:
        work: Work of one update.
        precision: Precision in which it computes.
        spot: The machine, with figures.
        calibrated: Return value of `calibration`.
    """
    fastest = min(spot.figures, key=lambda speed: roofline(work, speed, precision))
    seconds = (calibrated or 1.0) * roofline(work, fastest, precision)
    return seconds, FACTORS["estimated" if calibrated is None else spot.basis], fastest["device"]
