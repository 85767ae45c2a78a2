"""Machines that were measured: their surveys go before published figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qnnkit import workspace
from qnnkit.measure import survey
from qnnkit.plan import here
from qnnkit.plan.elsewhere import Figures
from qnnkit.plan.machines import Table
from qnnkit.plan.places import Spot


@dataclass
class Surveys:
    """What the surveys of other machines add to a table."""

    rows: dict[str, list[Figures]] = field(default_factory=dict)
    """Row of the table -> the figures of such a machine, measured."""
    others: list[tuple[Spot, list[Figures]]] = field(default_factory=list)
    """Machines that are in no row."""
    notes: list[str] = field(default_factory=list)
    """Which rows were measured, and which files could not be used."""


def read(files: Sequence[str | Path], table: Table) -> Surveys:
    """The surveys in the given files and in `machines/` of the workspace.

    Args:
        files: As `qnnkit measure` wrote them; one that is none is an error; in the workspace it is noted.
        table: Whose rows they may be.

    Raises:
        ValueError, OSError: One of the files is no survey.
    """
    found, this = Surveys(), survey.facts()["name"]
    given = [workspace.place(file) for file in files]
    kept = sorted((workspace.home() / "machines").glob("*.json"))
    for path in [*(each for each in kept if each not in given), *given]:
        try:
            one = survey.load(path)
        except (ValueError, OSError) as error:
            if path in given:
                raise
            found.notes.append(f"Left out `machines/{path.name}`: {error}")
            continue
        if one["machine"]["name"] != this or path in given:
            _add(found, one, table)
    return found


def _add(found: Surveys, one: Any, table: Table) -> None:
    """Sets a survey beside the row that it is of, or makes it a machine of its own."""
    needed = ("bytes_per_second", "seconds_per_operation")
    whole = [
        each for each in survey.figures(one) if all(map(each.get, needed)) and "float32" in each["flops"]
    ]
    kinds = {each["device"].split(":")[0] for each in whole}
    kind = "cuda" if "cuda" in kinds else "mac" if "mps" in kinds else "cpu"
    if kind == "cuda":  # what fits is asked of the GPU, so that is where it computes
        whole = [each for each in whole if each["device"].startswith("cuda")]
    name = one["machine"]["name"]
    if not whole:
        found.notes.append(f"The survey of {name} lacks what an estimate needs. Measure it anew.")
        return
    figures, chip = [Figures.of_survey(each) for each in whole], whole[-1]
    row = here.row_of(table, kind, chip["name"], chip["memory"])
    if row in table.shown:
        found.rows[row] = figures
        found.notes.append(f"{row}: times from the survey of {name}, {one['measured_at'][:10]}.")
        return
    spot = Spot(name, kind, here.usable(kind, chip["memory"]), one.get("price_per_hour"))
    found.others.append((spot, figures))
