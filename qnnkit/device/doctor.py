"""The report on this machine, and the table that `qnnkit doctor` prints."""

from __future__ import annotations

import json
import platform
import shutil
import textwrap
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qnnkit.device import accelerators, machine, simulators
from qnnkit.device.accelerators import Accelerator
from qnnkit.device.simulators import Simulator

LIBRARIES = ("transformers", "peft", "accelerate", "datasets", "scipy", "scikit-learn")
PACKAGES = ("qnnkit", "torch", "numpy", *simulators.PACKAGES.values(), *LIBRARIES)
WIDTH, LABEL = 100, 20  # columns of the table, and of its labels
GIB = 2**30


@dataclass(frozen=True)
class Report:
    """Facts about this machine, and what computes on it.

    Attributes:
        machine: Facts by name: system, processor, cores, memory and disk in bytes, versions, and so on.
        accelerators: CUDA and MPS devices, with the error of each that does not compute.
        simulators: PennyLane's devices, as `probe` tests them.
    """

    machine: dict[str, Any]
    accelerators: tuple[Accelerator, ...]
    simulators: tuple[Simulator, ...]

    def as_dict(self) -> dict[str, Any]:
        """The report as dictionaries, lists, strings and numbers, for JSON."""
        return json.loads(json.dumps(asdict(self)))


def report(place: Path) -> Report:
    """Reports on this machine, what computes on it and what is missing. This takes a few seconds.

    Args:
        place: Folder of the workspace, a `pathlib.Path`, whose free disk space is reported.
    """
    import psutil
    import torch

    place = place.absolute()
    existing = next(folder for folder in (place, *place.parents) if folder.exists())
    ram_total, ram_available = machine.memory()
    devices = accelerators.accelerators()
    facts = {
        "system": f"{platform.system()} {platform.release()} on {platform.machine()}",
        "python": platform.python_version(),
        "colab": machine.on_colab(),
        "processor": machine.processor(),
        "apple_silicon": platform.system() == "Darwin" and "Apple" in machine.processor(),
        "cores": machine.cores(),  # logical cores that affinity and a container's quota leave
        "physical_cores": psutil.cpu_count(logical=False),  # of the whole machine, None if unknown
        "torch_threads": torch.get_num_threads(),
        "ram_total": ram_total,  # bytes, like all sizes here
        "ram_available": ram_available,
        "workspace": str(place),
        "disk_free": shutil.disk_usage(existing).free,
        "nvidia_driver": accelerators.driver(),
        "versions": versions(),
    }
    return Report(facts, devices, tuple(map(simulators.probe, simulators.PACKAGES)))


def versions() -> dict[str, str]:
    """Versions of the packages that numbers depend on, by name."""
    return {name: version for name in PACKAGES if (version := machine.version(name))}


def table(report: Report) -> str:
    """The report as text of at most 100 columns. What is missing comes last, with the command to type."""
    it, gpu = report.machine, next((one.name for one in report.accelerators if one.device != "mps"), None)
    ram = f"{it['ram_available'] / GIB:.1f} of {it['ram_total'] / GIB:.1f} GiB available"
    cores = f"{it['cores']} for this process, {it['physical_cores'] or 'unknown'} physical in the machine"
    sections = {
        "This machine": [
            ("platform", f"{'Google Colab, ' if it['colab'] else ''}{it['system']}, Python {it['python']}"),
            ("processor", it["processor"] + (" (Apple silicon)" if it["apple_silicon"] else "")),
            ("cores", f"{cores}; torch threads: {it['torch_threads']}"),
            ("memory", ram),
            ("disk", f"{it['disk_free'] / GIB:.1f} GiB free at {it['workspace']}"),
            ("packages", ", ".join(f"{name} {version}" for name, version in it["versions"].items())),
        ],
        "What torch computes on": [
            ("cpu", "computes"),
            *((one.device, _accelerator(one)) for one in report.accelerators),
            ("NVIDIA driver", it["nvidia_driver"] or "absent"),
            ("Colab", None if gpu or not it["colab"] else "gave no GPU: see Runtime > Change runtime type"),
        ],
        "PennyLane's simulators, each tested with one circuit": [
            (one.name, _simulator(one)) for one in report.simulators
        ],
        "What does not run": [(one.name, simulators.remedy(one, gpu)) for one in report.simulators],
    }
    blocks = [[title, *(_row(*row) for row in rows if row[1])] for title, rows in sections.items()]
    return "\n\n".join("\n".join(block) for block in blocks if len(block) > 1)


def _accelerator(one: Accelerator) -> str:
    if one.error:
        return f"does not compute: {one.name}, {one.error}" if one.name else f"not here: {one.error}"
    facts = [f"computes: {one.name}"]
    if one.memory_total and one.memory_free:
        facts.append(f"{one.memory_free / GIB:.1f} of {one.memory_total / GIB:.1f} GiB free")
    if one.compute_capability:
        facts.append(f"compute capability {one.compute_capability}")
    return ", ".join(facts)


def _simulator(one: Simulator) -> str:
    outcome = one.error or f"value and gradient correct in {one.seconds or 0:.3f} s"
    return f"{one.state:9} {outcome}"


def _row(label: str, text: str) -> str:
    first, others = f"  {label}".ljust(LABEL), " " * LABEL
    return textwrap.fill(text, WIDTH, initial_indent=first, subsequent_indent=others, break_on_hyphens=False)
