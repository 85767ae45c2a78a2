"""Trainings of one or many runs as one tidy table: what reports, batches and studies are made of."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnkit import checks, workspace
from qnnkit.runs import rows as files
from qnnkit.runs.folder import Run

if TYPE_CHECKING:
    import pandas as pd

Source = str | Path | Run


def frame(runs: Source | Iterable[Source], event: str = "test", settings: Iterable[str] = ()) -> pd.DataFrame:
    """Trainings of one or many runs as one tidy table, for pandas and seaborn.

    Args:
        runs: A run or its folder, or several; relative folders are meant from the workspace. One without rows
            adds none.
        event: "test" gives a row for each net and seed that is trained, "epoch" one for each of their epochs,
            "validation" one for each validation within an epoch.
        settings: Names of settings that become columns, besides those that any of the runs was given.

    Returns:
        Columns: `folder` as it was given, `run`, its name, `recipe`, the settings as the runs have them now,
        what metrics.jsonl has (net, seed, scores, numbers of weights, ...) and `data`, the fingerprint. A row
        of a test also has `hours`, the time of its epochs, and `cost`, by the setting `price_per_hour`.

    Raises:
        ValueError: `event` is none of them.

    Example:
        >>> frame([]).empty
        True
    """
    import pandas as pd

    checks.choice("event", event, ("test", "epoch", "validation"))
    sources = [_read(each) for each in ([runs] if isinstance(runs, Source) else runs)]
    names = dict.fromkeys(name for _, _, provenance, _ in sources for name in provenance.get("given") or ())
    names |= dict.fromkeys(settings)
    table: list[dict[str, Any]] = []
    for about, config, provenance, rows in sources:
        about |= {name: config[name] for name in names if name in config}
        hours: dict[Any, float] = {}
        for row in files.trainings(rows, "epoch", None):
            if "copied" in row:  # by a fork: its source has spent them
                continue
            training = row.get("net"), row.get("seed")
            hours[training] = hours.get(training, 0.0) + (files.number(row, "seconds") or 0.0) / 3600
        for row in files.trainings(rows, event, config.get("epochs")):
            known = {**about, **row, "data": provenance.get("data")}
            if event == "test":
                known["hours"] = hours.get((row.get("net"), row.get("seed")), math.nan)
                price = files.number(config, "price_per_hour")
                known["cost"] = math.nan if price is None else price * known["hours"]
            table.append(known)
    return pd.DataFrame(table)


def _read(run: Source) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
    """What identifies a run, its settings, its provenance and the rows of metrics.jsonl."""
    if isinstance(run, Run):
        about = {"folder": str(run.folder), "run": run.folder.name, "recipe": run.config.recipe}
        return about, run.config.flat(), run.provenance, run.rows("metrics")
    folder = workspace.place(run)
    config, provenance = (files.facts(folder, f"{name}.json") for name in ("config", "provenance"))
    about = {"folder": str(run), "run": folder.name, "recipe": config.get("recipe")}
    return about, config, provenance, files.read(folder)
