"""Devices that torch can compute on, each tested by a small matrix product."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qnnkit import checks, words
from qnnkit.device import machine

if TYPE_CHECKING:
    import torch

DEVICES = ("auto", "cpu", "cuda", "cuda:0", "mps")


@dataclass(frozen=True)
class Accelerator:
    """A device other than the CPU. Memory is in bytes."""

    device: str  # "cuda:0", "mps"
    name: str | None  # None: there is no such device
    error: str | None  # None: a small matrix product gave the right numbers
    memory_total: int | None = None
    memory_free: int | None = None
    compute_capability: float | None = None


def choose(requested: str = "auto") -> torch.device:
    """The torch device "auto", "cpu", "cuda", "cuda:N" or "mps", after a small matrix product has run on it.

    "auto" is CUDA if it really computes, otherwise the CPU. If you have a net to time, use `measure.place`
    instead. "auto" is never MPS, which lacks float64; request "mps" by name.

    Raises:
        ValueError: The name is unknown, or the device cannot compute here.
    """
    import torch

    if not re.fullmatch(r"cuda:\d+", str(requested)):
        checks.choice("device", requested, DEVICES)
    if requested == "auto":
        return torch.device("cpu" if obstacle("cuda") else "cuda")
    if reason := obstacle(requested):
        rule = "be one that can compute here"
        raise ValueError(checks.message("device", rule, requested, f"{reason}; use cpu or auto."))
    return torch.device(requested)


def usable_devices() -> list[torch.device]:
    """The CPU, and each CUDA or MPS device on which a small matrix product gives the right numbers."""
    import torch

    return [torch.device("cpu"), *(torch.device(one.device) for one in accelerators() if not one.error)]


def obstacle(device: str) -> str | None:
    """The reason why torch cannot compute on `device` (such as "cuda:0"), or None if it can."""
    import torch

    if device == "mps" and not torch.backends.mps.is_available():
        return "torch sees no MPS device"  # torch's own error is a page long
    try:
        with warnings.catch_warnings(action="ignore"):  # real problems also raise an error
            ones = torch.ones(8, 8, device=device)
            total = (ones @ ones).sum().item()
    except Exception as error:  # drivers and libraries raise errors of any type
        return words.error_line(error)
    return None if total == 512 else f"a matrix product summed to {total} instead of 512"


def accelerators() -> tuple[Accelerator, ...]:
    """MPS and every GPU that torch or the NVIDIA driver lists, whether they compute or not."""
    import torch

    with warnings.catch_warnings(action="ignore"):
        count = torch.cuda.device_count()
    cuda = [_cuda_device(index) for index in range(count)]
    if not cuda:  # the driver's list, or one row with the reason for none
        names = [name for name, _ in nvidia_smi()] or [None]
        cuda = [Accelerator(f"cuda:{index}", name, obstacle("cuda")) for index, name in enumerate(names)]
    chip = machine.processor() if torch.backends.mps.is_available() else None
    return (*cuda, Accelerator("mps", chip, obstacle("mps")))


def _cuda_device(index: int) -> Accelerator:
    import torch

    device = f"cuda:{index}"
    if failed := obstacle(device):
        return Accelerator(device, "NVIDIA GPU", failed)
    card = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    return Accelerator(device, card.name, None, total, free, float(f"{card.major}.{card.minor}"))


def nvidia_smi() -> list[tuple[str, str]]:
    """Name and driver version of each NVIDIA GPU that the driver lists, even if torch does not see it."""
    output = machine.output("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    return re.findall(r"^(.+), ([\d.]+)$", output, re.MULTILINE)


def driver() -> str | None:
    """The version of the NVIDIA driver; None if there is none."""
    return next((version for _, version in nvidia_smi()), None)
