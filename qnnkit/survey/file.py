"""A machine's file: written whole, and refused in a sentence where it is none."""

from __future__ import annotations

import json
import platform
import re
from pathlib import Path
from typing import Any, cast

from qnnkit import checks, device, workspace
from qnnkit.device import machine
from qnnkit.survey.form import FORMAT, LeftOut, Machine, Platform, Survey

PACKAGES = ("qnnkit", "torch", "numpy", "pennylane", "pennylane-lightning", "pennylane-lightning-gpu")
STEP = "Measure there again: qnnkit measure --out FILE."


def facts() -> Machine:
    """The kind of this machine: what its figures depend on, and nothing that names whose it is."""
    from qnnkit.device.accelerators import accelerators

    found = [one.name or one.device for one in accelerators() if not one.error]
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
        "versions": {"python": platform.python_version()}
        | {name: version for name in PACKAGES if (version := machine.version(name))},
    }


def default_place(found: Machine) -> Path:
    """`machines/<kind>.json` of the workspace."""
    slug = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((r|tm)\)", "", found["name"].lower())).strip("-")
    return workspace.home() / "machines" / f"{slug}.json"


def write(path: Path, survey: Survey) -> None:
    """Writes a machine's file in one step.

    Raises:
        OSError: The disk is full or read-only, or a file is where its folder should be.
    """
    workspace.make_folder(path.parent)
    workspace.write_json(path, survey)


def load(path: str | Path) -> Survey:
    """What stands in a machine's file.

    Raises:
        FileNotFoundError: Nothing is there.
        ValueError: It is no survey, one of another format, or one that is damaged; told in a sentence.
    """
    from pydantic import TypeAdapter, ValidationError

    path = Path(path)
    if not path.is_file():
        rule = "be a machine's file"
        raise FileNotFoundError(
            checks.message("path", rule, str(path), "Make one: qnnkit measure --out FILE.")
        )
    try:
        found: Any = json.loads(path.read_bytes())
    except ValueError:  # also what is no text
        found = None
    if not isinstance(found, dict) or not {"format", "sections"} <= set(found):
        raise ValueError(checks.message("path", "be a file that `qnnkit measure` wrote", str(path), STEP))
    if found["format"] != FORMAT:
        rule = f"be a machine's file of format {FORMAT}, which this qnnkit reads"
        by = f"format {found['format']}, by qnnkit {found.get('qnnkit', 'of another version')}: {path}"
        raise ValueError(checks.message("path", rule, by, f"Install the same qnnkit on both. {STEP}"))
    try:
        return TypeAdapter(Survey).validate_python(found)
    except ValidationError as error:
        [first, *_] = error.errors()
        where = ".".join(str(part) for part in first["loc"])
        rule = f"be whole, but `{where}` is wrong ({first['msg'][0].lower()}{first['msg'][1:]})"
        raise ValueError(f"File `{path}` must {rule}. {STEP}") from None


def left_out(found: Any) -> str | None:
    """Why a measurement was not taken; None where it was."""
    return cast(LeftOut, found)["why"] if "why" in found else None


def figures(found: Survey | Platform) -> list[dict[str, Any]]:
    """What an estimate of time needs of each torch device.

    Args:
        found: A survey, or its section on the platform alone.

    Returns:
        One dictionary for each: `device`, `name`, `memory` (bytes), `bytes_per_second` (None where it was not
        measured), `flops` per second by precision, `seconds_per_operation`.
    """
    section: Any = found["sections"]["platform"] if "sections" in found else found
    return [
        {
            "device": one["device"],
            "name": one["name"],
            "memory": one["memory_bytes"],
            "bytes_per_second": one["bandwidth"].get("bytes_per_second"),
            "flops": {
                precision: products["flops_per_second"]
                for precision, products in one["matmul"].items()
                if "flops_per_second" in products
            },
            "seconds_per_operation": one["operation"]["median"],
        }
        for one in section["devices"]
    ]
