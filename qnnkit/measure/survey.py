"""Survey of a machine: its speed, and time and memory of a recipe's net on it, as a file of flat rows."""

from __future__ import annotations

import contextlib
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from qnnkit import __version__, device, words, workspace
from qnnkit.device import accelerators, doctor, machine
from qnnkit.measure import clock, held
from qnnkit.measure.figures import figures
from qnnkit.measure.parts import changed_step
from qnnkit.settings import Settings
from qnnkit.train import PRECISIONS

SECONDS, QUICK = 60.0, 2.0
"""Default duration of a survey, and of a quick one, in seconds. A measurement that has begun is finished."""
Way = tuple[torch.device, str]
Row = dict[str, Any]
"""One measurement: `what`, `device`, its settings by name, `value` (None if there is none), `unit`, and
`why` there is no value."""


def take(
    config: Settings,
    splits: Any,
    *,
    seconds: float = SECONDS,
    quick: bool = False,
    echo: Callable[[str], None] = lambda sentence: None,
) -> dict[str, Any]:
    """Measures the speed of this machine, and time and memory of a recipe's net on it.

    Args:
        config: Settings of the recipe; their `price_per_hour` is that of this machine.
        splits: Its data.
        seconds: About how long all of it takes.
        quick: Whether to measure only float32, as briefly as possible.
        echo: Called with the name of each stage, and with a sentence if the machine is busy.

    Returns:
        Content of the machine's file: `machine`, `busy`, `net` and `rows`.
    """
    seconds, usable, rows = QUICK if quick else seconds, device.usable_devices(), list[Row]()
    precisions, load = PRECISIONS[: 1 if quick else None], clock.load()
    if busy := clock.note(load):
        echo(busy)
    echo("Memory, matrix products, launches ...")
    for one in usable:
        measured = figures(one, precisions, seconds=0.2 * seconds / len(usable))
        rows.append(row("bandwidth", one, 1e9 * measured["bandwidth_gb_s"], "B/s"))
        rows.append(row("launch", one, 1e-6 * measured["overhead_us"], "s"))
        for name, rate in measured["tflops"].items():
            rows.append(row("product", one, 1e12 * rate, "FLOP/s", precision=name))
    echo(f"The net of {config.title} ...")
    ways = [(one, precision) for precision in precisions for one in usable]
    rows += net_rows(config, splits, ways, 0.4 * seconds)
    return {
        "qnnkit": __version__,
        "machine": facts(),
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "busy": {"most": load, "sentence": busy},
        "price_per_hour": config.price_per_hour,
        "net": {"recipe": config.title, "batch_size": config.batch_size, "n_samples": len(splits.train)},
        "rows": rows,
    }


def row(what: str, device: Any, value: float | None, unit: str, **settings: Any) -> Row:
    """A row with one measurement."""
    return {"what": what, "device": str(device), **settings, "value": value, "unit": unit}


def net_rows(config: Settings, splits: Any, ways: Sequence[Way], seconds: float) -> Iterator[Row]:
    """Yields seconds of an update, seconds of an epoch and peak memory, for each device and precision.

    Args:
        config: Settings of the recipe.
        splits: Its data.
        ways: Pairs of device and precision. float16 on the CPU is omitted, as training raises an error.
        seconds: About how long to warm up; timing takes as long again.
    """
    threads, peaks = config.threads if isinstance(config.threads, int) else None, dict[Way, int]()
    steps = {
        way: changed_step(config, splits, {"precision": way[1]}, way[0], threads)
        for way in ways
        if (way[0].type, way[1]) != ("cpu", "float16")
    }
    for way, step in steps.items():
        with contextlib.suppress(Exception):  # the race reports it
            step.run()  # circuits are traced once
            held.reset_peak(step.device)
            step.run()
            peaks[way] = held.peak_on(step.device)
    for way, lap in clock.race(steps, seconds=seconds).items():
        one, size, n = way[0], steps[way].samples, len(splits.train)
        about, taken = {"precision": way[1]}, {"spread": lap.spread, "why": lap.why}
        yield row("net update", one, lap.seconds and lap.seconds * size, "s", **about, **taken)
        yield row("net epoch", one, lap.seconds and lap.seconds * n, "s", **about)
        yield row("net memory", one, peaks.get(way), "B", **about)


# --- the file -----------------------------------------------------------------------------------------------


def facts() -> dict[str, Any]:
    """Facts about this machine that its figures depend on, and nothing that identifies its owner."""
    present = [one.name or one.device for one in accelerators.accelerators() if not one.error]
    processor, cores, colab = machine.processor(), machine.cores(), device.on_colab()
    chips = [name for name in present if name != processor] or [processor]  # MPS is a part of the processor
    names = [*dict.fromkeys(chips), f"{cores} core{'s' * (cores > 1)}", *["Colab"] * colab]
    return {
        "name": ", ".join(names),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor,
        "memory_bytes": machine.memory()[0],
        "versions": {"python": platform.python_version()} | doctor.versions(),
    }


def default_place(machine: Mapping[str, Any]) -> Path:
    """Path of a machine's file, `machines/<kind>.json` of the workspace, from its facts."""
    slug = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((r|tm)\)", "", machine["name"].lower())).strip("-")
    return workspace.home() / "machines" / f"{slug}.json"


def table(machine: Mapping[str, Any]) -> str:
    """A survey as text: a row for each figure, and the net in a line."""
    import pandas as pd

    columns = ["what", "device", "precision", "value", "unit", "spread"]
    frame = pd.DataFrame(machine["rows"]).dropna(subset="value").reindex(columns=columns)
    head = f"{machine['machine']['name']}; measured {machine['measured_at']}"
    text = frame.to_string(index=False, na_rep="", float_format="{:.4g}".format)
    sentences = filter(None, [fastest(machine), machine["busy"]["sentence"]])
    return "\n\n".join([head, text, *map(words.lines, sentences)])


def fastest(machine: Mapping[str, Any]) -> str | None:
    """A sentence with the time of an epoch of the net on each device and precision, fastest first."""
    epochs = (row for row in machine.get("rows") or () if row["what"] == "net epoch" and row["value"])
    rows = sorted(epochs, key=lambda row: row["value"])
    parts = (f"{words.duration(row['value'])} on {row['device']} in {row['precision']}" for row in rows)
    return f"An epoch of the net: {'; '.join(parts)}." if rows else None
