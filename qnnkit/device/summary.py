"""The whole report, and the table that `qnnkit doctor` prints."""

from __future__ import annotations

import json
import os
import platform
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from qnnkit.device import accelerators, machine, simulators

PACKAGES = ("qnnkit", "torch", "numpy", *simulators.PACKAGES.values())
WIDTH, LABEL = 100, 20  # columns of the table, and of the labels before its text
GIB = 2**30


@dataclass(frozen=True)
class Report:
    """What this machine is and what computes on it; memory and disk in bytes."""

    system: str  # operating system, release and architecture
    python: str
    colab: bool
    colab_note: str | None  # which GPU Colab drew, and what that means for time
    apple_silicon: bool
    processor: str
    cores: int  # logical cores that affinity and a container's quota leave to this process
    physical_cores: int | None  # of the whole machine
    torch_threads: int
    ram_total: int
    ram_available: int
    workspace: str
    disk_free: int  # at the workspace
    driver: str | None  # version of the NVIDIA driver
    accelerators: tuple[accelerators.Accelerator, ...]
    simulators: tuple[simulators.Simulator, ...]
    versions: dict[str, str | None]  # of PACKAGES; None: not installed

    def as_dict(self) -> dict[str, Any]:
        """The report in dictionaries, lists, strings and numbers, ready for JSON."""
        return json.loads(json.dumps(asdict(self)))


def report(devices: Sequence[str] = tuple(simulators.PACKAGES)) -> Report:
    """What this machine is, what computes on it and what is missing; takes a few seconds.

    Args:
        devices: The PennyLane devices to try.
    """
    import psutil
    import torch

    place = Path(os.environ.get("QNNKIT_HOME") or Path.cwd()).expanduser().absolute()
    existing = next(folder for folder in (place, *place.parents) if folder.exists())
    (total, available), processor, colab = machine.memory(), machine.processor(), machine.on_colab()
    found = accelerators.accelerators()
    driver = next((row[1] for row in accelerators.nvidia_smi()), None)
    tried = []
    for one in map(simulators.probe, devices):
        why, install = (None, None) if one.state == "runs" else simulators.remedy(one, found, driver)
        tried.append(replace(one, why=why, install=install))
    return Report(
        system=f"{platform.system()} {platform.release()} on {platform.machine()}",
        python=platform.python_version(),
        colab=colab,
        colab_note=accelerators.colab_note(found[0].name) if colab else None,
        apple_silicon=platform.system() == "Darwin" and "Apple" in processor,
        processor=processor,
        cores=machine.cores(),
        physical_cores=psutil.cpu_count(logical=False),
        torch_threads=torch.get_num_threads(),
        ram_total=total,
        ram_available=available,
        workspace=str(place),
        disk_free=shutil.disk_usage(existing).free,
        driver=driver,
        accelerators=found,
        simulators=tuple(tried),
        versions={name: machine.version(name) for name in PACKAGES},
    )


def table(report: Report) -> str:
    """The report as text of at most 100 columns; what is missing comes last, with what to type."""
    it = report
    physical = f"{it.physical_cores or 'unknown'} physical in the machine"
    missing = [one for one in it.simulators if one.state != "runs"]
    sections = {
        "This machine": [
            ("platform", f"{'Google Colab, ' if it.colab else ''}{it.system}, Python {it.python}"),
            ("processor", it.processor + (" (Apple silicon)" if it.apple_silicon else "")),
            ("cores", f"{it.cores} for this process, {physical}; torch threads: {it.torch_threads}"),
            ("memory", f"{it.ram_available / GIB:.1f} of {it.ram_total / GIB:.1f} GiB available"),
            ("disk", f"{it.disk_free / GIB:.1f} GiB free at {it.workspace}"),
            ("packages", ", ".join(f"{name} {version}" for name, version in it.versions.items() if version)),
        ],
        "What torch computes on": [
            ("cpu", "computes"),
            *((one.device, _accelerator(one)) for one in it.accelerators),
            ("NVIDIA driver", it.driver or "absent"),
            *([("Colab's draw", it.colab_note)] if it.colab_note else []),
        ],
        "PennyLane's simulators, each tried on one circuit": [
            (one.name, f"{one.state:9} {one.error or _right(one)}") for one in it.simulators
        ],
        "Missing": [
            row for one in missing for row in ((one.name, one.why), ("", one.install and f"Type: {one.install}"))
        ],
    }
    blocks = [[title, *(_row(*row) for row in rows if row[1])] for title, rows in sections.items() if rows]
    return "\n\n".join("\n".join(block) for block in blocks)


def _accelerator(one: accelerators.Accelerator) -> str:
    """What a GPU's row says."""
    if one.name is None:
        return f"not here: {one.error}"
    facts = [one.name]
    if one.memory_total and one.memory_free is not None:
        facts.append(f"{one.memory_free / GIB:.1f} of {one.memory_total / GIB:.1f} GiB free")
    if one.compute_capability:
        facts.append(f"compute capability {one.compute_capability}")
    return f"{'does not compute' if one.error else 'computes'}: {', '.join([*facts, one.error or ''])}"


def _row(label: str, text: str) -> str:
    """One row: its label, and beside it the text, wrapped."""
    first, others = f"  {label}".ljust(LABEL), " " * LABEL
    return textwrap.fill(text, WIDTH, initial_indent=first, subsequent_indent=others, break_on_hyphens=False)
