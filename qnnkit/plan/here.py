"""This machine, as a plan sees it: what a training may use of it, and how fast it is at simple things."""

from __future__ import annotations

import torch

from qnnkit import device as devices
from qnnkit import measure
from qnnkit.device import machine
from qnnkit.plan.elsewhere import Figures
from qnnkit.plan.machines import Table
from qnnkit.plan.places import HERE, Spot

LEFT_TO_DRIVER, OF_MAC, OF_RAM = 1e9, 2 / 3, 0.9
"""What a training may have: all of a GPU but so many bytes, a share of a Mac's and of any other memory; the
rest is the driver's, the system's and other programs'. Estimates."""


def figures(device: torch.device, precision: str, threads: int | None = None) -> Figures:
    """Bandwidth, matrix products and overhead of a device here, by the code of a survey: about a second.

    Args:
        device: Where.
        precision: Of the matrix products, beside float32 and, where it computes, bfloat16.
        threads: CPU threads that train; None leaves torch's choice.
    """
    return Figures.of_survey(measure.figures(device, precision, threads))


def spot(device: torch.device, table: Table, price_per_hour: float | None = None) -> Spot:
    """What a training may use here, and what an hour costs.

    Args:
        device: Where it computes.
        table: On Colab it tells what this GPU costs.
        price_per_hour: Of this machine, if it is known; what is yours costs nothing.
    """
    if device.type == "cuda":
        usable = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    else:
        usable = machine.memory()[1] + measure.resident()  # a prediction counts this process as well
    kind = {"cuda": "cuda", "mps": "mac"}.get(device.type, "cpu")
    units = None
    if devices.on_colab():
        row = _row(device, table)
        units = table.machines[row].compute_units_per_hour if row else None
        if price_per_hour is None:
            price_per_hour = units * table.compute_unit.price if units is not None else None
        return Spot(HERE, kind, int(usable), price_per_hour, units)
    return Spot(HERE, kind, int(usable), price_per_hour or 0.0)


def usable(kind: str, memory: float) -> int:
    """Bytes that a training may use of a machine that is known by its memory alone."""
    if kind == "cuda":
        return round(max(memory - LEFT_TO_DRIVER, memory / 2))
    return round(memory * (OF_MAC if kind == "mac" else OF_RAM))


def row_of(table: Table, kind: str, name: str, memory: float) -> str | None:
    """The row of a table that a machine is one of: of its kind and name, and of about its memory.

    Args:
        table: Machines.
        kind: "cuda", "mac" or "cpu".
        name: As torch or the system names it, such as "NVIDIA A100-SXM4-40GB".
        memory: In bytes.
    """
    words = name.replace("-", " ").split()
    for row, known in table.machines.items():
        about = abs(memory / (1e9 * known.memory_gb) - 1) < 0.2  # GiB and GB, and what a driver keeps
        if known.kind == kind and about and any(word in words for word in known.known_as):
            return row
    return None


def _row(device: torch.device, table: Table) -> str | None:
    if device.type != "cuda":
        return None
    known = torch.cuda.get_device_properties(device)
    return row_of(table, "cuda", known.name, known.total_memory)
