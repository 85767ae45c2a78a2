"""The devices that torch can compute on, tried rather than believed."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qnnkit import checks
from qnnkit.device import machine

if TYPE_CHECKING:
    import torch

DEVICES = ("auto", "cpu", "cuda", "cuda:0", "mps")

# What a GPU of Colab is: architecture, memory, and what its number formats mean for training.
COLAB_GPUS = {
    "T4": "Turing, 16 GB; tensor cores for float16 but none for bfloat16",
    "L4": "Ada Lovelace, 24 GB; tensor cores for bfloat16 and float16",
    "A100": "Ampere, 40 or 80 GB; tensor cores for bfloat16, float16 and float64",
    "H100": "Hopper, 80 GB; tensor cores for bfloat16, float16 and float64",
}


@dataclass(frozen=True)
class Accelerator:
    """One device beside the CPU, as torch and the driver see it; memory in bytes."""

    device: str  # "cuda:0", "mps"
    name: str
    computes: bool  # a small matrix product gave the right numbers
    error: str | None = None
    memory_total: int | None = None
    memory_free: int | None = None
    compute_capability: str | None = None


def choose(requested: str = "auto") -> torch.device:
    """The torch device to train on, once a small matrix product has run there.

    "auto" takes CUDA when it really computes, otherwise the CPU. It never takes MPS: for nets of this size
    nobody has measured it to win here, and it lacks float64; ask for "mps" by name.

    Args:
        requested: "auto", "cpu", "cuda", "cuda:N" or "mps".

    Raises:
        ValueError: The name is unknown, or that device cannot compute here.

    Example:
        >>> choose("cpu")
        device(type='cpu')
    """
    import torch

    if not re.fullmatch(r"cuda:\d+", str(requested)):
        checks.choice("device", requested, DEVICES)
    if requested == "auto":
        return torch.device("cpu" if obstacle("cuda") else "cuda")
    if found := obstacle(requested):
        rule = "be one that can compute here"
        raise ValueError(checks.message("device", rule, requested, f"{found}; use cpu or auto."))
    return torch.device(requested)


def usable_devices() -> list[torch.device]:
    """The CPU, and each CUDA or MPS device on which a small matrix product gives the right numbers."""
    import torch

    names = [*(f"cuda:{index}" for index in range(_cuda_devices()[0])), "mps"]
    return [torch.device("cpu"), *(torch.device(name) for name in names if obstacle(name) is None)]


def obstacle(device: str) -> str | None:
    """Why torch cannot compute on `device`, such as "cuda:0", or None when it can."""
    import torch

    kind, _, index = device.partition(":")
    if kind == "cuda":
        count, said = _cuda_devices()
        if not count:
            built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU build"
            said = f" and says {said!r}" if said else ""
            return f"torch sees no CUDA device (torch {torch.__version__} is {built}){said}"
        if int(index or 0) >= count:
            return f"torch sees {count} CUDA device(s), counted from cuda:0"
    if kind == "mps" and not torch.backends.mps.is_available():
        built = torch.backends.mps.is_built()
        lacks = "needs Apple silicon and a newer macOS" if built else "is built without it"
        return f"torch sees no MPS device (torch {torch.__version__} {lacks})"
    try:
        ones = torch.ones(8, 8, device=device)
        total = (ones @ ones).sum().item()
    except Exception as error:  # drivers and libraries raise what they like
        return f"its first matrix product failed with {machine.first_line(error)}"
    return None if total == 512 else f"its first matrix product summed to {total} instead of 512"


def accelerators() -> tuple[Accelerator, ...]:
    """Every GPU that torch or the NVIDIA driver lists, whether it computes or not."""
    import torch

    chip = machine.mac_chip()[0]
    if torch.backends.mps.is_available():
        failed = obstacle("mps")
        return (Accelerator("mps", chip or "Apple GPU", failed is None, failed),)
    count, _ = _cuda_devices()
    if not count:
        return _listed_by_driver()
    found = []
    for index in range(count):
        device = f"cuda:{index}"
        failed = obstacle(device)
        try:
            properties = torch.cuda.get_device_properties(index)
            free, total = torch.cuda.mem_get_info(index)
        except Exception as error:  # a GPU that is lost, or that another process holds alone
            found.append(Accelerator(device, "GPU", False, failed or machine.first_line(error)))
            continue
        capability = f"{properties.major}.{properties.minor}"
        found.append(Accelerator(device, properties.name, failed is None, failed, total, free, capability))
    return tuple(found)


def _cuda_devices() -> tuple[int, str]:
    """How many CUDA devices torch sees, and what it warned of meanwhile (an old driver, say)."""
    import torch

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return count, "; ".join(str(one.message).splitlines()[0] for one in heard)


def _listed_by_driver() -> tuple[Accelerator, ...]:
    """NVIDIA GPUs that torch cannot see, from the driver's own list."""
    return tuple(
        Accelerator(
            device=f"cuda:{index}",
            name=name,
            computes=False,
            error=obstacle("cuda"),
            memory_total=int(total) * 2**20 if total.isdigit() else None,
            memory_free=int(free) * 2**20 if free.isdigit() else None,
            compute_capability=capability if re.fullmatch(r"\d+\.\d+", capability) else None,
        )
        for index, (name, _, total, free, capability) in enumerate(nvidia_smi())
    )


def nvidia_smi() -> list[list[str]]:
    """A row for each NVIDIA GPU: name, driver, MiB in all, MiB free, compute capability."""
    columns = "name,driver_version,memory.total,memory.free,compute_cap"
    told = machine.output("nvidia-smi", f"--query-gpu={columns}", "--format=csv,noheader,nounits")
    rows = [[cell.strip() for cell in line.split(",")] for line in told.splitlines()]
    return [row for row in rows if len(row) == 5]


def nvidia_driver() -> str | None:
    """The version of the NVIDIA driver, or None without one."""
    if rows := nvidia_smi():
        return rows[0][1]
    told = machine.read(Path("/proc/driver/nvidia/version"))
    found = re.search(r"Module\s+(?:for \S+\s+)?(\d+(?:\.\d+)+)", told)
    return found[1] if found else None


def nvidia_card() -> bool:
    """Whether an NVIDIA graphics card sits on the bus, with or without a driver (Linux; else False)."""
    cards = Path("/sys/bus/pci/devices").glob("*")
    return any(
        machine.read(card / "vendor") == "0x10de" and machine.read(card / "class").startswith("0x03")
        for card in cards
    )


def colab_note(gpu: str | None) -> str:
    """What the GPU that Colab drew means for time, from general facts and without a figure.

    Example:
        >>> print(colab_note("Tesla T4")[:73])
        Colab drew Tesla T4 (Turing, 16 GB; tensor cores for float16 but none for
    """
    if gpu is None:
        drew = "Colab gave no GPU: this is a CPU runtime. Use Runtime > Change runtime type to ask for one."
    else:
        known = next((facts for name, facts in COLAB_GPUS.items() if re.search(rf"\b{name}\b", gpu)), None)
        drew = f"Colab drew {gpu}{f' ({known})' if known else ''}."
    return (
        f"{drew} A circuit of four qubits is too small to fill any GPU: at small batches its time is "
        "overhead on the CPU side, which no GPU shortens; large batches, many qubits and the classical body "
        "gain from one."
    )
