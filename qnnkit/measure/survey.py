"""What this machine reaches, and what a recipe's net takes on it: a file of flat rows."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from qnnkit import __version__, device, recipes, words, workspace
from qnnkit.device import accelerators, doctor, machine
from qnnkit.measure import clock, held
from qnnkit.measure.figures import figures
from qnnkit.measure.placement import place
from qnnkit.measure.workload import Workload, of_recipe
from qnnkit.settings import Settings
from qnnkit.train import PRECISIONS

FORMAT = 2
"""Of the file; another number when the same name is to mean something else."""
SECONDS, QUICK = 60.0, 2.0
"""Default duration of a survey; what was begun before it was over comes on top."""
Row = dict[str, Any]
"""One measurement: `what`, `device`, its settings by name, `value` (None where there is none), `unit`, and
`why` there is no value."""


def take(
    config: Settings,
    splits: Any,
    *,
    seconds: float = SECONDS,
    quick: bool = False,
    echo: Callable[[str], None] = lambda sentence: None,
) -> dict[str, Any]:
    """What this machine reaches, and what a recipe's own net takes on it.

    What does not fit into the time is left out, with the reason in its row.

    Args:
        config: The recipe; its `price_per_hour` is that of this machine.
        splits: Its data.
        seconds: For all of it, about.
        quick: Only float32, as briefly as possible.
        echo: Receives what comes next, and a sentence where the machine is busy.

    Returns:
        What the machine's file holds: `machine`, `busy`, `net` and `rows`.
    """
    seconds, usable, rows = QUICK if quick else seconds, device.usable_devices(), list[Row]()
    precisions, load = PRECISIONS[: 1 if quick else None], clock.load()
    if busy := clock.note(load):
        echo(busy)
    echo("Memory, matrix products, launches ...")
    for one in usable:
        found = figures(one, precisions, seconds=0.2 * seconds / len(usable))
        rows.append(row("bandwidth", one, found["bytes_per_second"], "B/s"))
        rows.append(row("launch", one, found["seconds_per_operation"], "s"))
        rows += [row("product", one, rate, "FLOP/s", precision=name) for name, rate in found["flops"].items()]
    echo(f"The net of {config.title} ...")
    end = time.perf_counter() + 0.8 * seconds
    for precision in precisions:
        for one in usable:
            workload = of_recipe(config.override(precision=precision), splits)
            rows += net_rows(workload, one, end, quick=quick)
    return {
        "format": FORMAT,
        "qnnkit": __version__,
        "machine": facts(),
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "busy": {"most": load, "sentence": busy},
        "price_per_hour": config.price_per_hour,
        "net": {
            "recipe": config.title,
            "digest": recipes.of(config).digest[:16],
            "batch_size": config.batch_size,
            "n_samples": len(splits.train),
        },
        "rows": rows,
    }


def row(what: str, device: Any, value: float | None, unit: str, **settings: Any) -> Row:
    """A measurement."""
    return {"what": what, "device": str(device), **settings, "value": value, "unit": unit}


def net_rows(workload: Workload, one: torch.device, end: float, *, quick: bool = False) -> Iterator[Row]:
    """Seconds of an update and of an epoch, samples a second and the peak of memory, on a device.

    On the CPU with the best number of threads, as in training.

    Args:
        workload: The net.
        one: The device.
        end: When the time is up, by `time.perf_counter`; not counted if quick.
        quick: Few updates, and torch's own number of threads.
    """
    config, left = workload.training, 0.0 if quick else end - time.perf_counter()
    about: dict[str, Any] = {"precision": config.precision}
    try:
        if (one.type, config.precision) == ("cpu", "float16"):
            raise ValueError("A CPU does not train in float16.")
        if left < 0:
            raise TimeoutError("The time was up.")
        stepper, batch = workload.stepper(one), workload.batch()
        stepper(batch)  # circuits are traced once
        held.reset_peak(one)
        stepper(batch)
        peak = held.peak_on(one)
        threads = None if quick and config.threads == "auto" else config.threads
        placed = place(workload, device=str(one), threads=threads, seconds=left / 8)
        with clock.threads(placed.threads):
            lap = clock.repeated(lambda: stepper(batch), one, left / 8)
            about["threads"] = torch.get_num_threads()
    except (RuntimeError, ValueError, OSError, MemoryError) as error:  # such as too little memory
        yield row("net update", one, None, "s", **about) | {"why": words.first_line(error)}
        return
    update, size = lap.seconds or 0.0, min(config.batch_size, workload.n_samples)
    yield row("net update", one, update, "s", **about, spread=lap.spread)
    yield row("net epoch", one, update * workload.n_samples / size, "s", **about)
    yield row("net samples", one, size / update, "1/s", **about)
    yield row("net memory", one, peak, "B", **about)


# --- the file -----------------------------------------------------------------------------------------------


def facts() -> dict[str, Any]:
    """The kind of this machine: what its figures depend on, and nothing that identifies its owner."""
    found = [one.name or one.device for one in accelerators.accelerators() if not one.error]
    processor, cores, colab = machine.processor(), machine.cores(), device.on_colab()
    chips = [name for name in found if name != processor] or [processor]  # MPS is a part of the processor
    names = [*dict.fromkeys(chips), f"{cores} core{'s' * (cores > 1)}", *["Colab"] * colab]
    return {
        "name": ", ".join(names),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor,
        "cores": cores,
        "memory_bytes": machine.memory()[0],
        "versions": {"python": platform.python_version()} | doctor.versions(),
    }


def default_place(machine: Mapping[str, Any]) -> Path:
    """`machines/<kind>.json` of the workspace, for a machine's facts."""
    slug = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((r|tm)\)", "", machine["name"].lower())).strip("-")
    return workspace.home() / "machines" / f"{slug}.json"


def table(found: Mapping[str, Any]) -> str:
    """A survey as text: a row for each figure, and the net in a line."""
    import pandas as pd

    columns = ["what", "device", "precision", "threads", "value", "unit"]
    frame = pd.DataFrame(found["rows"]).dropna(subset="value").reindex(columns=columns)
    head = f"{found['machine']['name']}; measured {found['measured_at']}"
    text = frame.to_string(index=False, na_rep="", float_format="{:.4g}".format)
    return "\n\n".join(filter(None, [head, text, fastest(found), found["busy"]["sentence"]]))


def fastest(found: Mapping[str, Any]) -> str | None:
    """Seconds of an epoch of the net and the peak of memory, by device and precision, the fastest first."""
    values: dict[str, dict[tuple[str, Any], float]] = {"net epoch": {}, "net memory": {}}
    for each in found.get("rows") or ():
        if each["what"] in values and each["value"]:
            values[each["what"]][each["device"], each.get("precision")] = each["value"]
    epochs, memory = values.values()
    parts = [
        f"{words.duration(epochs[way])} and {words.size(memory.get(way, 0))} on {way[0]} in {way[1]}"
        for way in sorted(epochs, key=lambda way: epochs[way])
    ]
    return f"An epoch of the net: {'; '.join(parts)}." if parts else None
