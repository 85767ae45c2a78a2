"""What this machine reaches, what its simulators and a recipe's net take: a file of flat rows."""

from __future__ import annotations

import json
import platform
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import ConfigDict, Field, ValidationError, create_model

from qnnkit import __version__, checks, device, workspace
from qnnkit.device import accelerators, doctor, machine
from qnnkit.measure import backends, clock, survey_net
from qnnkit.measure.device_figures import figures_of, kind, rows_of
from qnnkit.measure.workload import Sample
from qnnkit.settings import Settings

FORMAT = 2
"""Of the file; another number when the same name is to mean something else."""
SECONDS, QUICK = 150.0, 2.0
"""Of a survey that nobody gave another time; starting, and what was begun before it was over, come on top."""
STEP = "Measure there again: qnnkit measure --out FILE."


def _form(**fields: Any) -> Any:
    """A part of the file, with what is read of it; it may hold more."""
    required: dict[str, Any] = {name: (kind, ...) for name, kind in fields.items()}
    return create_model("Form", __config__=ConfigDict(extra="allow", strict=True), **required)


_KNOWN = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_ROW = _form(what=str, device=str, unit=str, value=_KNOWN | None, spread=_KNOWN | None)
_FILE = _form(
    measured_at=str,
    seconds=float,
    price_per_hour=float | None,
    machine=_form(name=str, cores=int, memory_bytes=int, system=str, versions=dict[str, str]),
    devices=list[_form(device=str, name=str, memory=int)],
    busy=_form(most=float, sentence=str | None),
    net=_form(recipe=str, digest=str, batch_size=int, n_samples=int, noun=str),
    notes=list[str],
    rows=list[_ROW],
)


def take(
    config: Settings,
    sample: Sample,
    *,
    seconds: float | None = None,
    quick: bool = False,
    price_per_hour: float | None = None,
    echo: Callable[[str], None] = lambda sentence: None,
) -> dict[str, Any]:
    """What this machine reaches, what its simulators take, and what a recipe's own net takes.

    Each of the three has a share of the time; what does not fit in is left out, with the reason in its row.

    Args:
        config: The recipe.
        sample: Of its data, or in place of them.
        seconds: For all of it, about; 150 by default. What has been begun is brought to its end.
        quick: Smaller arrays, few circuits, only float32, each as briefly as it goes.
        price_per_hour: Of the machine, in any currency; 0 where it costs nothing.
        echo: Told what comes next, and at once where the machine is busy.

    Returns:
        What the machine's file holds: `machine`, `devices`, `busy`, `net` and `rows`, each of them with
        `what`, `device`, its settings, `value`, `unit` and `spread`, and `why` where there is no value.
    """
    whole, begin = seconds or (QUICK if quick else SECONDS), time.perf_counter()
    usable, loads = device.usable_devices(), []

    def left(what: str) -> float:
        """Seconds for what comes next."""
        loads.append(clock.load())
        if len(loads) == 1 and (told := clock.note(loads[0])):
            echo(told)
        echo(f"{what} ...")
        return whole - (time.perf_counter() - begin)

    share = 0.15 * left("Memory, matrix products, overheads, transfers") / len(usable)
    rows = [row for one in usable for row in rows_of(one, seconds=share, quick=quick)]
    share = max(0.1, 0.5 * left("Simulators over qubits and batch"))
    found, notes = backends.circuit_rows(share, quick=quick)
    rows += found
    rows += survey_net.net_rows(config, sample, left(f"The net of {config.title}"), quick=quick)
    loads.append(clock.load())
    if len(usable) == 1:
        missing = [f"{one.device}: {one.error}" for one in accelerators.accelerators() if one.error]
        notes.insert(0, f"Only the CPU computes here ({'; '.join(missing)}).")
    return {
        "format": FORMAT,
        "qnnkit": __version__,
        "machine": facts(),
        "devices": [{"device": str(one), **kind(one)} for one in usable],
        "threads": torch.get_num_threads(),
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": time.perf_counter() - begin,
        "busy": {"most": max(loads), "sentence": clock.note(max(loads))},
        "price_per_hour": price_per_hour,
        "net": {
            "recipe": config.title,
            "digest": survey_net.digest(config, sample),
            "batch_size": config.batch_size,
            "n_samples": sample.n_samples,
            "noun": sample.noun,
        },
        "notes": notes,
        "rows": rows,
    }


def facts() -> dict[str, Any]:
    """The kind of this machine: what its figures depend on, and nothing that names whose it is."""
    found = [one.name or one.device for one in accelerators.accelerators() if not one.error]
    processor, cores, colab = machine.processor(), machine.cores(), device.on_colab()
    chips = [name for name in found if name != processor] or [processor]  # MPS is a part of the processor
    words = [*dict.fromkeys(chips), f"{cores} core{'s' * (cores > 1)}", *["Colab"] * colab]
    return {
        "name": ", ".join(words),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor,
        "cores": cores,
        "memory_bytes": machine.memory()[0],
        "accelerators": found,
        "colab": colab,
        "versions": {"python": platform.python_version()} | doctor.versions(),
    }


# --- the file -----------------------------------------------------------------------------------------------


def default_place(found: Mapping[str, Any]) -> Path:
    """`machines/<kind>.json` of the workspace, for a machine's facts."""
    slug = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((r|tm)\)", "", found["name"].lower())).strip("-")
    return workspace.home() / "machines" / f"{slug}.json"


def write(path: Path, found: Mapping[str, Any]) -> None:
    """Writes a machine's file in one step.

    Raises:
        OSError: The disk is full or read-only, or a file is where its folder should be.
    """
    workspace.make_folder(path.parent)
    workspace.write_json(path, found)


def load(path: str | Path) -> dict[str, Any]:
    """What stands in a machine's file.

    Raises:
        FileNotFoundError: Nothing is there.
        ValueError: It is no survey, one of another format, or one that is damaged.
    """
    path = Path(path)
    if not path.is_file():
        step = "Make one: qnnkit measure --out FILE."
        raise FileNotFoundError(checks.message("path", "be a machine's file", str(path), step))
    try:
        found = json.loads(path.read_bytes())
    except ValueError:  # also what is no text
        found = None
    if not isinstance(found, dict) or "format" not in found:
        raise ValueError(checks.message("path", "be a file that `qnnkit measure` wrote", str(path), STEP))
    if found["format"] != FORMAT:
        rule = f"be a machine's file of format {FORMAT}, which this qnnkit reads"
        by = f"format {found['format']}, by qnnkit {found.get('qnnkit', 'of another version')}: {path}"
        raise ValueError(checks.message("path", rule, by, STEP))
    try:
        _FILE.model_validate(found)
    except ValidationError as error:
        [first, *_] = error.errors()
        where = ".".join(str(part) for part in first["loc"])
        told = f"`{where}` is wrong ({first['msg'][0].lower()}{first['msg'][1:]})"
        raise ValueError(f"File `{path}` must be whole, but {told}. {STEP}") from None
    return found


def figures(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What an estimate of time needs of each torch device of a survey.

    Returns:
        One dictionary for each: `device`, `name`, `memory` (bytes), `bytes_per_second` (None where it was not
        measured), `flops` per second by precision, `seconds_per_operation` (None likewise).
    """
    return figures_of(found["rows"], found["devices"])
