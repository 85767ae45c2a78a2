"""Other machines: a table that anyone can edit, surveys of them, and how long an update takes there.

A roofline over the whole update says what a processor can do at best. How far the step that was measured here
lies above the same line for this machine is carried over. What follows is an estimate with its range.

Reference: Williams, Waterman and Patterson (2009), Roofline, doi:10.1145/1498765.1498785.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import torch
from pydantic import Field, ValidationError, model_validator

from qnnkit import checks, settings, workspace
from qnnkit import device as devices
from qnnkit.device import machine
from qnnkit.measure import survey
from qnnkit.measure.held import resident
from qnnkit.measure.memory import Work

OWN = Path(__file__).with_name("machines.yaml")
HERE = "this machine"
OLD = 365
"""Days after which a price is called old."""
LEFT_TO_DRIVER, OF_MAC, OF_RAM = 1e9, 2 / 3, 0.9
"""What a training may have: all of a GPU but so many bytes, a share of a Mac's and of any other memory; the
remainder is the driver's, the system's and other programs'. Estimates."""
FACTORS = {"published": 2.0, "from its survey": 1.5, "estimated": 3.0}
"""Basis of an estimate -> the factor by which it may be off, both ways. Chosen, not fitted."""
UNCALIBRATED = 3.0
"""That factor where no step was measured here."""
FARTHEST = 4.0
"""How far above or below its roofline a step may lie for that to be carried over: more says something of the
processor it was measured on."""


class Range(NamedTuple):
    """An estimate."""

    low: float
    likely: float
    high: float

    def times(self, factor: float) -> Range:
        return Range(*(factor * each for each in self))


# --- the table ----------------------------------------------------------------------------------------------

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
    """A row; the head of machines.yaml says what each figure means."""

    kind: Literal["cuda", "mac", "cpu"]
    memory_gb: Positive
    usable_gb: Positive
    price_per_hour: float | None = Field(default=None, ge=0)
    currency: str | None = None
    compute_units_per_hour: float | None = Field(default=None, ge=0)
    as_of: datetime.date
    known_as: tuple[str, ...] = ()
    source: str
    processors: dict[Literal["cpu", "mps", "cuda"], Processor] = Field(min_length=1)

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if self.usable_gb > self.memory_gb:
            rule = f"be at most memory_gb, {self.memory_gb:g}"
            raise ValueError(checks.message("usable_gb", rule, self.usable_gb, "Lower it."))
        return self


class ComputeUnit(settings.Base):
    price: float = Field(ge=0)
    source: str


class Table(settings.Base):
    """The machines of a plan."""

    as_of: datetime.date
    currency: str
    compute_unit: ComputeUnit
    shown: tuple[str, ...] = Field(min_length=1)
    machines: dict[str, Machine]

    @model_validator(mode="after")
    def _rows(self) -> Self:
        for name in self.shown:
            checks.choice("shown", name, self.machines)
        return self

    def price_per_hour(self, name: str) -> float | None:
        """What an hour costs; None where no price is known."""
        row = self.machines[name]
        if row.price_per_hour is not None or row.compute_units_per_hour is None:
            return row.price_per_hour
        return row.compute_units_per_hour * self.compute_unit.price

    def notes(self, today: datetime.date | None = None) -> list[str]:
        """Where figures and prices come from, and which prices are old."""
        today = today or datetime.date.today()
        priced = {name: self.machines[name].as_of for name in self.shown if self.price_per_hour(name)}
        told = ["Figures of other machines are published ones or estimates, not measured by qnnkit."]
        if priced:
            told.append(f"Prices as of {min(priced.values())} to {max(priced.values())}; see machines.yaml.")
        if old := [name for name, as_of in priced.items() if (today - as_of).days > OLD]:
            told.append(f"Older than a year: prices of {', '.join(old)}. Give newer ones with --prices.")
        return told


def load(prices: str | Path | None = None) -> Table:
    """The table of machines: qnnkit's own, with yours laid over it.

    Args:
        prices: Your table; by default `machines.yaml` of the workspace, if one is there. It needs only what
            differs: its rows and figures go before qnnkit's.

    Raises:
        ValueError: A table is no plain YAML, lacks a row or a figure, or a figure breaks its rule.
        OSError: `prices` cannot be read.
    """
    path = workspace.home() / OWN.name if prices is None else workspace.place(prices)
    values = _read(OWN)
    if prices is not None or path.is_file():
        values = _over(values, _read(path))
    try:
        return Table.model_validate(values)
    except ValidationError as error:
        loc, rule, value = settings.first_fault(error)
        where = ".".join(str(part) for part in loc if part != "[key]")
        step = f"So says machine table `{path}`; the head of qnnkit's own explains each figure."
        if rule.startswith("Argument `"):
            raise ValueError(f"{rule} It stands under `{where or 'shown'}` of {path}.") from None
        raise ValueError(checks.message(where, rule, value, step)) from None


def _read(path: Path) -> dict[str, Any]:
    values = checks.read_yaml(path, "machine table")
    if not isinstance(values, dict):
        step = f"Its keys are {', '.join(Table.model_fields)}."
        raise ValueError(checks.message(path.name, "hold keys and values", values, step))
    if "as_of" in values and isinstance(values.get("machines"), dict):
        own = {"as_of": values["as_of"]}
        rows = values["machines"].items()
        values["machines"] = {name: own | row if isinstance(row, dict) else row for name, row in rows}
    return values


def _over(below: Any, above: Any) -> Any:
    """`above`, with what it leaves out taken from `below`."""
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    return {**below, **{name: _over(below.get(name), value) for name, value in above.items()}}


# --- machines -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spot:
    """A machine, before a training is planned for it."""

    name: str
    kind: str
    """ "cuda", "mac" or "cpu": on a GPU only what it computes on has to fit, elsewhere all."""
    usable: int
    """Bytes that a training may use."""
    price_per_hour: float | None = None
    currency: str | None = None
    """Of its price; None where nobody said."""
    compute_units_per_hour: float | None = None
    basis: str = "measured here"
    """What its times follow from: that, or a key of FACTORS."""
    figures: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    """Of each processor, as `measure.figures` gives them."""


def this_machine(device: torch.device, table: Table, price_per_hour: float | None = None) -> Spot:
    """This machine: what is free, of a Mac's GPU at most two thirds of its memory.

    Args:
        device: Where it computes.
        table: On Colab it tells what this GPU costs.
        price_per_hour: Of this machine, in a currency that is not known; None where it costs nothing.
    """
    kind, row = {"cuda": "cuda", "mps": "mac"}.get(device.type, "cpu"), None
    total, available = machine.memory()
    usable = available + resident()  # a prediction counts this process as well
    if kind == "mac":
        usable = min(usable, OF_MAC * total)
    if kind == "cuda":
        usable = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
        known = torch.cuda.get_device_properties(device)
        row = row_of(table, kind, known.name, known.total_memory)
    if devices.on_colab() and price_per_hour is None:
        price = table.price_per_hour(row) if row else None
        units = table.machines[row].compute_units_per_hour if row else None
        return Spot(HERE, kind, int(usable), price, table.currency, units)
    return Spot(HERE, kind, int(usable), price_per_hour or 0.0)


def spots(table: Table, files: Sequence[str | Path] = ()) -> tuple[list[Spot], list[str]]:
    """The machines of a table, then others that were surveyed; and notes on the surveys.

    A survey goes before published figures.

    Args:
        table: Its `shown` rows, in this order.
        files: Surveys, as `qnnkit measure` wrote them, beside those in `machines/` of the workspace.

    Raises:
        ValueError, OSError: One of the files is no survey; in the workspace that is noted.
    """
    found, notes, this = {}, [], survey.facts()["name"]
    for name in table.shown:
        row, price = table.machines[name], table.price_per_hour(name)
        money = price, row.currency or table.currency, row.compute_units_per_hour
        usable = round(1e9 * row.usable_gb)
        found[name] = Spot(name, row.kind, usable, *money, "published", published(row))
    given = [workspace.place(file) for file in files]
    kept = sorted((workspace.home() / "machines").glob("*.json"))
    for path in [*(each for each in kept if each not in given), *given]:
        try:
            one = survey.load(path)
        except (ValueError, OSError) as error:
            if path in given:
                raise
            notes.append(f"Left out `machines/{path.name}`: {error}")
            continue
        name = one["machine"]["name"]
        if name == this and path not in given:
            continue
        whole = [each for each in survey.figures(one) if enough(each)]
        kinds = {each["device"].split(":")[0] for each in whole}
        kind = "cuda" if "cuda" in kinds else "mac" if "mps" in kinds else "cpu"
        if kind == "cuda":  # what fits is asked of the GPU, so that is where it computes
            whole = [each for each in whole if each["device"].startswith("cuda")]
        if not whole:
            notes.append(f"The survey of {name} lacks what an estimate needs. Measure it anew.")
            continue
        memory = whole[-1]["memory"]
        row = row_of(table, kind, whole[-1]["name"], memory)
        spot = found.get(row or "") or Spot(name, kind, usable_of(kind, memory), one.get("price_per_hour"))
        found[spot.name] = replace(spot, basis="from its survey", figures=whole)
        notes.append(f"{spot.name}: times from the survey of {name}, {one['measured_at'][:10]}.")
    return list(found.values()), notes


def enough(figures: Mapping[str, Any]) -> bool:
    """Whether all was measured that an estimate of time needs."""
    needed = (figures["bytes_per_second"], figures["seconds_per_operation"], figures["flops"].get("float32"))
    return all(needed)


def usable_of(kind: str, memory: float) -> int:
    """Bytes that a training may use of a machine that is known by its memory alone."""
    if kind == "cuda":
        return round(max(memory - LEFT_TO_DRIVER, memory / 2))
    return round(memory * (OF_MAC if kind == "mac" else OF_RAM))


def row_of(table: Table, kind: str, name: str, memory: float) -> str | None:
    """The row of a table that a machine is one of: of its kind and name, and of about its memory.

    Args:
        table: Machines.
        kind: "cuda", "mac" or "cpu".
        name: As torch or the system names it, such as "NVIDIA A100-SXM4-40GB".
        memory: In bytes.
    """
    words, found = f" {name.replace('-', ' ')} ", {}
    for row, known in table.machines.items():
        about = abs(memory / (1e9 * known.memory_gb) - 1) < 0.2  # GiB and GB, and what a driver keeps
        if known.kind == kind and about:
            found[row] = max((len(each) for each in known.known_as if f" {each} " in words), default=0)
    best = max(found, key=lambda row: found[row], default=None)  # by the most particular name
    return best if best and found[best] else None


def published(row: Machine) -> list[dict[str, Any]]:
    """The figures of a row, one for each of its processors, as `measure.figures` gives them."""
    return [
        {
            "device": device,
            "bytes_per_second": 1e9 * each.bandwidth_gb_s,
            "flops": {name: 1e12 * rate for name, rate in each.tflops if rate},
            "seconds_per_operation": 1e-6 * each.overhead_us,
        }
        for device, each in row.processors.items()
    ]


# --- times --------------------------------------------------------------------------------------------------


def roofline(work: Work, figures: Mapping[str, Any], precision: str = "float32") -> float:
    """Seconds that an update takes at best.

    Arithmetic and traffic are added, since each operation of a training step is bound by one or the other. A
    CPU launches its operations itself, so that comes on top; a GPU computes while the next are launched. A
    precision without figures counts as float32.
    """
    rate = figures["flops"].get(precision) or figures["flops"]["float32"]
    busy = work.flops / rate + work.bytes / figures["bytes_per_second"]
    launching = work.operations * figures["seconds_per_operation"]
    return busy + launching if figures["device"] == "cpu" else max(busy, launching)


def calibration(
    work: Work, precision: str, seconds: float | None, figures: Mapping[str, Any] | None
) -> float | None:
    """How many times as long as its roofline a step took here; None where that is not known."""
    if seconds is None or figures is None:
        return None
    return min(max(seconds / roofline(work, figures, precision), 1 / FARTHEST), FARTHEST)


def estimate(work: Work, precision: str, spot: Spot, calibrated: float | None) -> tuple[Range, str]:
    """Seconds of one update on a machine, and which of its processors takes so long: the quickest.

    Args:
        work: Of one update.
        precision: That it computes in.
        spot: The machine, with figures.
        calibrated: What `calibration` says.
    """
    quickest = min(spot.figures, key=lambda each: roofline(work, each, precision))
    likely = (calibrated or 1.0) * roofline(work, quickest, precision)
    factor = UNCALIBRATED if calibrated is None else FACTORS[spot.basis]
    return Range(likely / factor, likely, likely * factor), quickest["device"]
