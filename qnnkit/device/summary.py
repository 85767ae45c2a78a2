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

from qnnkit.device import accelerators, lightning_gpu, machine, simulators
from qnnkit.device.accelerators import Accelerator
from qnnkit.device.lightning_gpu import Remedy
from qnnkit.device.simulators import SIMULATORS, Simulator

WIDTH = 100
LABEL = 18
GIB = 2**30
NBSP = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True)
class Report:
    """What this machine is and what computes on it; memory and disk in bytes."""

    platform: str  # "colab" | "mac" | "linux" | "windows"
    system: str  # operating system, release and architecture
    colab: bool
    apple_silicon: bool
    chip: str | None  # of a Mac, such as "Apple M3 Pro"
    python: str
    versions: dict[str, str | None]  # of qnnkit and the packages it needs; None: not installed
    cpu: str
    physical_cores: int  # those that affinity and quota leave to this process
    logical_cores: int  # likewise
    machine_cores: int  # logical cores of the whole machine
    core_quota: float | None  # of the container, in cores
    torch_threads: int | None
    ram_total: int
    ram_available: int
    workspace: str
    disk_free: int  # at the workspace
    accelerators: tuple[Accelerator, ...]
    mps_built: bool
    mps_available: bool
    cuda_runtime: str | None  # the CUDA version that torch is built for
    driver: str | None  # version of the NVIDIA driver
    simulators: tuple[Simulator, ...]
    missing: dict[str, Remedy]  # what does not work here: why, and the command to type
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The report in dictionaries, lists, strings and numbers, ready for JSON."""
        return json.loads(json.dumps(asdict(self)))


def report(workspace: str | Path | None = None, devices: Sequence[str] = SIMULATORS) -> Report:
    """What this machine is, what computes on it and what is missing; takes a few seconds.

    Args:
        workspace: The folder whose disk is asked; QNNKIT_HOME if None, else the current folder.
        devices: The PennyLane devices to try.
    """
    import torch

    place = Path(workspace or os.environ.get("QNNKIT_HOME") or Path.cwd()).expanduser().absolute()
    existing = next(folder for folder in (place, *place.parents) if folder.exists())
    chip, silicon = machine.mac_chip()
    physical, logical = machine.cores()
    total, available = machine.memory()
    found = accelerators.accelerators()
    versions = {"qnnkit": machine.version("qnnkit")} | {
        name: machine.version(name) for name in machine.declared()
    }
    tried = tuple(_explained(simulators.probe(name), found) for name in devices)
    return Report(
        platform=machine.platform_name(),
        system=f"{platform.system()} {platform.release()} on {platform.machine()}",
        colab=machine.on_colab(),
        apple_silicon=silicon,
        chip=chip,
        python=platform.python_version(),
        versions=versions,
        cpu=machine.cpu_name(),
        physical_cores=physical,
        logical_cores=logical,
        machine_cores=os.cpu_count() or logical,
        core_quota=machine.core_quota(),
        torch_threads=torch.get_num_threads(),
        ram_total=total,
        ram_available=available,
        workspace=str(place),
        disk_free=shutil.disk_usage(existing).free,
        accelerators=found,
        mps_built=torch.backends.mps.is_built(),
        mps_available=torch.backends.mps.is_available(),
        cuda_runtime=torch.version.cuda,
        driver=accelerators.nvidia_driver(),
        simulators=tried,
        missing=_missing(versions, tried, found),
        notes=_notes(found, silicon),
    )


def _explained(tried: Simulator, found: tuple[Accelerator, ...]) -> Simulator:
    """`tried` with the reason and the command, unless it runs."""
    import torch

    if tried.state == "runs":
        return tried
    package = simulators.PACKAGES.get(tried.name)
    if tried.name == "lightning.gpu":
        remedy = lightning_gpu.diagnose(lightning_gpu.gather(found, torch.version.cuda))
    elif package is None:
        remedy = Remedy(f"No installed plugin of PennyLane gives {tried.name} a working circuit.")
    elif tried.state == "missing":
        remedy = Remedy(f"{package} is not installed.", _pip_install(package))
    else:
        remedy = Remedy(
            f"{package} is installed, yet its first circuit fails; installing it afresh is the next step.",
            machine.pip_install(f"{package}=={tried.version}", "--force-reinstall", "--no-deps"),
        )
    return replace(tried, why=remedy.why, install=remedy.install)


def _missing(
    versions: dict[str, str | None], tried: tuple[Simulator, ...], found: tuple[Accelerator, ...]
) -> dict[str, Remedy]:
    """All that does not work here, by name."""
    missing = {
        name: Remedy("qnnkit needs it.", _pip_install(name))
        for name, version in versions.items()
        if not version
    }
    missing |= {one.name: Remedy(one.why or "", one.install) for one in tried if one.state != "runs"}
    for one in found:
        if not one.computes:
            why = f"{one.name} does not compute: {one.error}; pytorch.org lists the builds for each driver."
            # On Colab torch belongs to the image and must not be moved.
            install = None if machine.on_colab() else machine.pip_install("torch", "--force-reinstall")
            missing[one.device] = Remedy(why, install)
    return missing


def _pip_install(package: str) -> str:
    return machine.pip_install(machine.declared().get(package, package))


def _notes(found: tuple[Accelerator, ...], silicon: bool) -> tuple[str, ...]:
    """What a person should know and no row says."""
    notes = []
    if machine.on_colab():
        notes.append(accelerators.colab_note(found[0].name if found else None))
    if silicon and platform.machine() != "arm64":
        notes.append(
            "This Python is built for Intel and runs under Rosetta; one built for arm64 can use MPS."
        )
    return tuple(notes)


def table(report: Report) -> str:
    """The report as text of at most 100 columns; what is missing comes last, with what to type."""
    it = report
    where = {"colab": "Google Colab", "mac": "Mac", "windows": "Windows", "linux": "Linux"}[it.platform]
    quota = f", the container's quota is {it.core_quota:g}" if it.core_quota else ""
    installed = ", ".join(f"{name}{NBSP}{version}" for name, version in it.versions.items() if version)
    sections = {
        "This machine": [
            ("platform", f"{where} ({it.system}), Python {it.python}"),
            ("processor", it.cpu + (" (Apple silicon)" if it.apple_silicon else "")),
            (
                "cores",
                f"{it.physical_cores} physical, {it.logical_cores} logical for this process "
                f"(the machine has {it.machine_cores}{quota}); torch threads: {it.torch_threads}",
            ),
            ("memory", f"{it.ram_available / GIB:.1f} of {it.ram_total / GIB:.1f} GiB available"),
            ("disk", f"{it.disk_free / GIB:.1f} GiB free at {it.workspace}"),
        ],
        "What torch computes on": [("cpu", "computes"), *_accelerator_rows(it)],
        "PennyLane's simulators, each tried on one circuit": [
            (one.name, _outcome(one)) for one in it.simulators
        ],
        "Packages": [("installed", installed)],
        "Notes": [("", note) for note in it.notes],
        "Missing": [
            (name, remedy.why + (f"\nType: {remedy.install}" if remedy.install else ""))
            for name, remedy in it.missing.items()
        ],
    }
    lines = []
    for title, rows in sections.items():
        if rows:
            lines += ["", title, *(line for label, text in rows for line in _row(label, text))]
    return "\n".join(lines[1:])


def _accelerator_rows(it: Report) -> list[tuple[str, str]]:
    """A row for each GPU, and one for each kind of GPU that is not here."""
    rows = []
    for one in it.accelerators:
        facts = [f"{'computes' if one.computes else 'does not compute'}: {one.name}"]
        if one.memory_total and one.memory_free is not None:
            facts.append(f"{one.memory_free / GIB:.1f} of {one.memory_total / GIB:.1f} GiB free")
        if one.compute_capability:
            facts.append(f"compute capability {one.compute_capability}")
        rows.append((one.device, ", ".join(facts)))
    build = f"torch is built {f'for CUDA {it.cuda_runtime}' if it.cuda_runtime else 'without CUDA'}"
    if any(one.device.startswith("cuda") for one in it.accelerators):
        rows.append(("cuda build", f"{build}, the NVIDIA driver is {it.driver or 'of unknown version'}"))
    else:
        rows.append(("cuda", f"no NVIDIA GPU seen ({build}, the NVIDIA driver is {it.driver or 'absent'})"))
    if not it.mps_available:
        rows.append(("mps", f"no Apple GPU seen (torch is built with{'' if it.mps_built else 'out'} MPS)"))
    return rows


def _outcome(one: Simulator) -> str:
    """A simulator's row: its state, and what there is to say about it."""
    apart = " (tried in a process of its own)" if one.apart else ""
    if one.state == "runs":
        return f"runs      value and gradient right in {one.seconds or 0:.3f} s{apart}"
    return f"{one.state:9} {one.error or 'see below'}{apart if one.error else ''}"


def _row(label: str, text: str) -> list[str]:
    """One row: its label, and beside it the text, wrapped; a no-break space stays inside its line."""
    room = WIDTH - LABEL - 2
    pieces = [
        piece for line in text.split("\n") for piece in textwrap.wrap(line, room, break_on_hyphens=False)
    ]
    return [
        f"  {'' if index else label:{LABEL}}{piece.replace(NBSP, ' ')}" for index, piece in enumerate(pieces)
    ]
