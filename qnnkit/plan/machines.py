"""Machines and what they cost: a table that anyone can edit, read with care."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from qnnkit import checks, workspace
from qnnkit.plan import words
from qnnkit.settings import Base

OWN = Path(__file__).with_name("machines.yaml")
OLD = 365
"""Days after which a price is said to be old."""

Positive = Annotated[float, Field(gt=0)]
Precision = Literal["float32", "bfloat16", "float16"]


class Processor(Base):
    bandwidth_gb_s: Positive
    """Memory bandwidth, in 10^9 bytes per second."""
    tflops: dict[Precision, Positive] = Field(min_length=1)
    """Precision -> 10^12 operations per second of matrix products; float32 stands for what is not named."""
    overhead_us: Positive
    """Microseconds that launching one operation from Python takes."""
    source: str
    """Where these figures come from."""


class Machine(Base):
    kind: Literal["cuda", "mac", "cpu"]
    """Decides what has to fit: on a GPU what it computes on, elsewhere data and framework as well."""
    memory_gb: Positive
    """What its name says, in 10^9 bytes."""
    usable_gb: Positive
    """What a training may use of it."""
    price_per_hour: float | None = Field(default=None, ge=0)
    """In the table's currency; 0 for what is yours; None follows from the compute units."""
    compute_units_per_hour: float | None = Field(default=None, ge=0)
    """Colab's; None where it is not rented there, or no rate is known."""
    as_of: datetime.date
    """When its price was looked up."""
    known_as: tuple[str, ...] = ()
    """Words of its name in torch or the system, to recognise a survey of it."""
    source: str
    """Where memory and price come from."""
    processors: dict[Literal["cpu", "mps", "cuda"], Processor] = Field(min_length=1)
    """What it computes on -> how fast that is."""


class ComputeUnit(Base):
    price: float = Field(ge=0)
    """Of one compute unit of Colab."""
    source: str
    """Where the price comes from."""


class Table(Base):
    """The machines of a plan."""

    as_of: datetime.date
    """When prices were looked up, where a row says nothing else."""
    currency: str
    """Of all prices."""
    compute_unit: ComputeUnit
    shown: tuple[str, ...] = Field(min_length=1)
    """Rows of a plan, in this order."""
    machines: dict[str, Machine]
    """Name -> figures."""

    def price_per_hour(self, name: str) -> float | None:
        """What an hour costs; None where no price is known."""
        machine = self.machines[name]
        if machine.price_per_hour is not None or machine.compute_units_per_hour is None:
            return machine.price_per_hour
        return machine.compute_units_per_hour * self.compute_unit.price

    def notes(self, today: datetime.date | None = None) -> list[str]:
        """What a reader must know of the figures: that nobody here measured them, and how old prices are."""
        today = today or datetime.date.today()
        priced = [name for name in self.shown if self.price_per_hour(name)]
        dates = [self.machines[name].as_of for name in priced]
        told = ["Figures of other machines are published ones or estimates, not measured by qnnkit."]
        if dates:
            between = f"{min(dates)}" if min(dates) == max(dates) else f"{min(dates)} to {max(dates)}"
            told.append(f"Prices as of {between}; sources stand in the table of machines.")
        old = [name for name in priced if (today - self.machines[name].as_of).days > OLD]
        if old:
            told.append(
                f"Prices of {words.listed(old)} are older than a year; give newer ones with --prices."
            )
        return told


def load(prices: str | Path | None = None) -> Table:
    """The table of machines: qnnkit's own, with a table of yours laid over it.

    Args:
        prices: Your table; by default `machines.yaml` of the workspace, if one is there. It needs only what
            differs: its rows and figures go before qnnkit's.

    Raises:
        ValueError: A table is no plain YAML, lacks a row or a figure, or a figure breaks its rule.
        OSError: `prices` cannot be read.
    """
    given = _yours(prices)
    values = _read(OWN)
    if given is not None:
        values = _over(values, _read(given))
    return _validated(values, given or OWN)


def _yours(prices: str | Path | None) -> Path | None:
    if prices is not None:
        return workspace.place(prices)
    kept = workspace.home() / OWN.name
    return kept if kept.is_file() else None


def _read(path: Path) -> dict[str, Any]:
    values = workspace.read_yaml(path, "machine table")
    if not isinstance(values, dict):
        known = ", ".join(Table.model_fields)
        raise ValueError(
            f"Machine table `{path}` must hold keys and values, but does not. Its keys are {known}."
        )
    for key in values:
        checks.choice(f"key of {path.name}", str(key), Table.model_fields)
    rows = values.get("machines")
    if isinstance(rows, dict):
        own_date = {"as_of": values["as_of"]} if "as_of" in values else {}
        values["machines"] = {
            name: own_date | row if isinstance(row, dict) else row for name, row in rows.items()
        }
    return values


def _over(below: Any, above: Any) -> Any:
    """`above`, with what it leaves out taken from `below`."""
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    laid = {name: _over(below.get(name), value) for name, value in above.items()}
    return {**below, **laid}


def _validated(values: dict[str, Any], path: Path) -> Table:
    try:
        table = Table.model_validate(values)
    except ValidationError as error:
        raise ValueError(_told(error, path)) from None
    for name, row in table.machines.items():
        for kind, processor in row.processors.items():
            if "float32" not in processor.tflops:
                raise ValueError(_lacks(path, "tflops.float32", f"{name}.processors.{kind}"))
        if row.usable_gb > row.memory_gb:
            raise ValueError(
                f"Machine table `{path}` must let `{name}` use at most its memory_gb, {row.memory_gb:g}, "
                f"but usable_gb is {row.usable_gb:g}. Lower it."
            )
    for name in table.shown:
        if name not in table.machines:
            guess = checks.nearest(name, table.machines)
            hint = f"Did you mean {guess!r}? " if guess else ""
            raise ValueError(
                f"Machine table `{path}` must have a row `{name}`, which `shown` names, but its rows are "
                f"{', '.join(table.machines)}. {hint}Write the row, or take the name out of `shown`."
            )
    return table


def _told(error: ValidationError, path: Path) -> str:
    """One sentence on the first thing that is wrong."""
    first = error.errors()[0]
    where = [str(part) for part in first["loc"] if part != "[key]"]
    row = where[1] if where[0] == "machines" and len(where) > 1 else None
    figure = ".".join(where[2:] if row else where)
    if first["type"] == "missing":
        return _lacks(path, figure, row)
    rule = first["msg"][0].lower() + first["msg"][1:]
    rule = re.sub("^.*should ", "", rule)
    if first["type"] == "extra_forbidden":
        inner = Processor if "processors" in where else Machine if row else Table
        rule = f"be one of {', '.join(inner.model_fields)}"
    of = f" of `{row}`" if row else ""
    return (
        f"Machine table `{path}`: `{figure or 'the row'}`{of} must {rule}, but is {first['input']!r}. "
        "The head of qnnkit's own table says what each figure means."
    )


def _lacks(path: Path, figure: str, row: str | None) -> str:
    of = f" of `{row}`" if row else ""
    step = "qnnkit's own table shows a whole row." if row else f"Write `{figure}: ...` at its top."
    return f"Machine table `{path}` must give `{figure}`{of}, but does not. {step}"
