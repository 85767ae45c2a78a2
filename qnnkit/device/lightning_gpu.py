"""Why `lightning.gpu` is missing or fails, and what to type: a pure function of plain facts."""

from __future__ import annotations

import platform
import re
import sys
from dataclasses import dataclass

from qnnkit.device import accelerators, machine

# What the wheels of pennylane-lightning-gpu 0.45 need. Drivers are backward compatible: one made for CUDA 13
# runs the CUDA 12 libraries that the package brings along, so a newer driver is no obstacle.
MACHINES = ("x86_64", "aarch64")
PYTHONS = ((3, 11), (3, 14))
DRIVER = "525.60.13"
CAPABILITY = 7.0
LIBRARIES = (
    "custatevec-cu12",
    "nvidia-cublas-cu12",
    "nvidia-cuda-runtime-cu12",
    "nvidia-cusparse-cu12",
    "nvidia-nvjitlink-cu12",
)


@dataclass(frozen=True)
class Remedy:
    """Why something does not work, in one sentence, and the command to type (None: no command helps)."""

    why: str
    install: str | None = None


@dataclass(frozen=True)
class GpuFacts:
    """All that the diagnosis rests on; `gather` reads them from this machine."""

    system: str = "Linux"  # as platform.system() names it
    machine: str = "x86_64"
    python: tuple[int, int] = (3, 12)
    colab: bool = False
    card: bool = False  # an NVIDIA card on the bus, with or without a driver
    gpus: tuple[str, ...] = ()  # names of NVIDIA GPUs, as the driver or torch lists them
    capabilities: tuple[float, ...] = ()  # compute capabilities, as far as known
    driver: str | None = None
    torch_cuda: str | None = None  # the CUDA version that torch is built for
    lightning: str | None = None  # version of pennylane-lightning
    plugin: str | None = None  # version of pennylane-lightning-gpu
    lacking: tuple[str, ...] = ()  # those of LIBRARIES that pip has not installed


def gather(found: tuple[accelerators.Accelerator, ...], torch_cuda: str | None) -> GpuFacts:
    """The facts of this machine, given its accelerators and the CUDA version of torch."""
    gpus = [one for one in found if one.device.startswith("cuda") and (torch_cuda or not one.computes)]
    return GpuFacts(
        system=platform.system(),
        machine=platform.machine(),
        python=sys.version_info[:2],
        colab=machine.on_colab(),
        card=accelerators.nvidia_card(),
        gpus=tuple(one.name for one in gpus),
        capabilities=tuple(float(one.compute_capability) for one in gpus if one.compute_capability),
        driver=accelerators.nvidia_driver(),
        torch_cuda=torch_cuda,
        lightning=machine.version("pennylane-lightning"),
        plugin=machine.version("pennylane-lightning-gpu"),
        lacking=tuple(name for name in LIBRARIES if machine.version(name) is None),
    )


def diagnose(facts: GpuFacts) -> Remedy:
    """Why `lightning.gpu` does not run on a machine with these facts: the first real obstacle.

    Example:
        >>> diagnose(GpuFacts(system="Darwin", machine="arm64")).install is None
        True
    """
    return _of_machine(facts) or _of_packages(facts)


def _of_machine(facts: GpuFacts) -> Remedy | None:
    """The obstacle in hardware, driver or Python, if there is one."""
    if facts.system == "Darwin":
        return Remedy("macOS has no CUDA device, which lightning.gpu needs; use lightning.qubit.")
    if facts.system == "Windows":
        return Remedy(
            "lightning.gpu has no wheel for Windows; it installs inside the Linux of WSL 2.", "wsl --install"
        )
    if facts.system != "Linux" or facts.machine not in MACHINES:
        return Remedy(
            f"lightning.gpu has wheels for Linux on {' and '.join(MACHINES)} alone, "
            f"and this is {facts.system} on {facts.machine}; use lightning.qubit."
        )
    if not facts.gpus and not facts.driver:
        if facts.colab:
            return Remedy(
                "No CUDA device: this Colab runtime has no GPU; choose one in Runtime > Change runtime type."
            )
        if facts.card:
            return Remedy(
                "An NVIDIA card is in this machine but no driver is loaded; the command is Ubuntu's, "
                "other systems find theirs at nvidia.com/drivers.",
                "sudo ubuntu-drivers install",
            )
        return Remedy("No CUDA device: this machine shows neither an NVIDIA GPU nor its driver.")
    if facts.driver and _numbers(facts.driver) < _numbers(DRIVER):
        return Remedy(
            f"The NVIDIA driver {facts.driver} is too old for CUDA 12, which needs {DRIVER} or newer; "
            "the command is Ubuntu's, other systems find theirs at nvidia.com/drivers.",
            "sudo ubuntu-drivers install",
        )
    if not facts.gpus:
        return Remedy(
            f"No CUDA device: the NVIDIA driver {facts.driver} is loaded but lists no GPU to this process; "
            "the command shows what it sees.",
            "nvidia-smi -L",
        )
    if facts.capabilities and max(facts.capabilities) < CAPABILITY:
        return Remedy(
            f"{facts.gpus[0]} has compute capability {max(facts.capabilities)}, and lightning.gpu needs "
            f"{CAPABILITY} or more (Volta and newer); use lightning.qubit."
        )
    if not PYTHONS[0] <= facts.python <= PYTHONS[1]:
        first, last = (f"{major}.{minor}" for major, minor in PYTHONS)
        return Remedy(
            f"lightning.gpu has wheels for Python {first} to {last}, and this is Python "
            f"{facts.python[0]}.{facts.python[1]}; the command makes a conda environment with 3.12.",
            "conda create --name qnnkit python=3.12",
        )
    return None


def _of_packages(facts: GpuFacts) -> Remedy:
    """The obstacle in what is installed, on a machine that could run it."""
    # Other releases of the plugin would pull other releases of PennyLane in.
    wanted = f"pennylane-lightning-gpu=={facts.lightning}" if facts.lightning else "pennylane-lightning-gpu"
    only_13 = bool(facts.torch_cuda and facts.torch_cuda.startswith("13") and facts.lacking)
    if facts.plugin is None and only_13:
        return Remedy(
            "pennylane-lightning-gpu is not installed, and the CUDA libraries here are CUDA 13 only (torch "
            f"is built for {facts.torch_cuda}); it has no CUDA 13 wheel but brings its own CUDA 12 "
            "libraries, which this driver runs beside them.",
            machine.pip_install(wanted, colab=facts.colab),
        )
    if facts.plugin is None:
        return Remedy(
            "pennylane-lightning-gpu is not installed; nothing else is in its way.",
            machine.pip_install(wanted, colab=facts.colab),
        )
    if facts.lightning and facts.plugin != facts.lightning:
        return Remedy(
            f"pennylane-lightning-gpu {facts.plugin} does not fit pennylane-lightning {facts.lightning}; "
            "the two need equal versions.",
            machine.pip_install(wanted, colab=facts.colab),
        )
    if facts.lacking:
        others = f"torch's are CUDA {facts.torch_cuda}" if only_13 else "its own wheels are gone"
        return Remedy(
            f"pennylane-lightning-gpu is installed without its CUDA 12 libraries ({others}).",
            machine.pip_install(wanted, colab=facts.colab),  # pip adds what an installed package lacks
        )
    return Remedy(
        "pennylane-lightning-gpu and its CUDA 12 libraries are installed for this GPU, yet its first circuit "
        "fails as its error says; installing it afresh is the next step.",
        machine.pip_install(wanted, "--force-reinstall", "--no-deps", colab=facts.colab),
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))
