"""What the machine reaches, whatever it is used for: memory, matrix products, overheads, transfers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from qnnkit import device as devices
from qnnkit.device import accelerators, machine
from qnnkit.survey.clock import scaled, spread
from qnnkit.survey.form import Bandwidth, Device, LeftOut, Platform, Products, SmallProduct, Way

SIZES = (4, 8, 16, 32, 64, 128, 256, 512)
PRODUCTS = 100
ARRAY, SMALL_ARRAY = 2**28, 2**26
"""Bytes of each of three arrays: more than most processors and GPUs keep in their caches."""
PRECISIONS = ("float32", "bfloat16", "float16")
LONG_ENOUGH = 1e-2
"""Seconds of a matrix product whose throughput counts."""


def measured(seconds: float, *, quick: bool = False) -> Platform:
    """Bandwidth, throughput, overheads and transfers of every torch device here.

    Args:
        seconds: For all of them, about.
        quick: Smaller arrays and products.
    """
    usable = devices.usable_devices()
    share = seconds / (16 * len(usable))  # so many measurements of each are the larger ones
    found = [_device(device, share, quick) for device in usable]
    total, available = machine.memory()
    return {
        "memory_total_bytes": total,
        "memory_available_bytes": available,
        "devices": found,
        "sentences": [*_who_is_here(found), *_who_wins(found)],
    }


def _device(device: torch.device, share: float, quick: bool) -> Device:
    name, memory = _kind(device)
    generator = torch.Generator().manual_seed(0)
    throughput = partial(_throughput, device, share, quick, generator)
    found = Device(
        device=str(device),
        name=name,
        memory_bytes=memory,
        bandwidth=_or_why(partial(_bandwidth, device, share, quick)),
        matmul={
            precision: _or_why(partial(throughput, getattr(torch, precision))) for precision in PRECISIONS
        },
        small_products=[_small(device, size, share / 2, generator) for size in SIZES],
        operation=_operation(device, share),
    )
    if device.type == "cpu":
        found["threads"] = torch.get_num_threads()
    if str(device) != "cpu":
        found["to_device"] = _way(torch.device("cpu"), device, share, quick)
        found["from_device"] = _way(device, torch.device("cpu"), share, quick)
    return found


def _kind(device: torch.device) -> tuple[str, int]:
    """Its name, and the bytes of memory that it can address."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return properties.name, properties.total_memory
    return machine.processor(), machine.memory()[0]


def _or_why(measured: Callable[[], Any]) -> Any:
    """What is measured, or why it could not be: a precision that is missing, too little memory."""
    try:
        return measured()
    except (RuntimeError, TypeError, NotImplementedError, MemoryError) as error:
        return LeftOut(why=machine.first_line(error))


def _bandwidth(device: torch.device, share: float, quick: bool) -> Bandwidth:
    """The triad of the STREAM benchmark, which reads two arrays and writes a third one."""
    room = _kind(device)[1] if device.type == "cuda" else machine.memory()[1]
    n = min(SMALL_ARRAY if quick else ARRAY, room // 16) // 4
    a, b = torch.ones(n, device=device), torch.ones(n, device=device)
    c = torch.empty_like(a)
    times = spread(lambda: torch.add(a, b, alpha=2.0, out=c), device, seconds=share)
    return {"bytes_per_second": 3 * a.nbytes / times["median"], "array_bytes": a.nbytes, "seconds": times}


def _throughput(
    device: torch.device, share: float, quick: bool, generator: torch.Generator, dtype: torch.dtype
) -> Products:
    """Of the smallest product of a power of two that keeps the device busy for long enough."""

    def product(size: int) -> Callable[[], torch.Tensor]:
        a, b = (torch.randn(size, size, generator=generator).to(device, dtype) for _ in range(2))
        return partial(torch.mm, a, b)

    def too_short(size: int) -> bool:
        return spread(product(size), device, seconds=0, rounds=1, least=0)["median"] < LONG_ENOUGH

    size, largest = 256, 1024 if quick else 8192
    while size < largest and too_short(size):
        size *= 2
    times = spread(product(size), device, seconds=share)
    return {"flops_per_second": 2 * size**3 / times["median"], "size": size, "seconds": times}


def _small(device: torch.device, size: int, share: float, generator: torch.Generator) -> SmallProduct:
    a, b = (torch.randn(size, size, generator=generator).to(device) for _ in range(2))

    def products() -> None:
        for _ in range(PRODUCTS):
            torch.mm(a, b)

    return {"size": size, "seconds": scaled(spread(products, device, seconds=share), 1 / PRODUCTS)}


def _operation(device: torch.device, share: float) -> Any:
    ones = torch.ones(64, device=device)

    def operations() -> None:
        for _ in range(PRODUCTS):
            torch.add(ones, ones)

    return scaled(spread(operations, device, seconds=share), 1 / PRODUCTS)


def _way(source: torch.device, target: torch.device, share: float, quick: bool) -> Way:
    """From ordinary memory, as a loader hands batches over; pinned memory would be faster."""
    large = torch.ones((2**24 if quick else 2**26) // 4, device=source)
    one = torch.ones(1, device=source)
    accelerator = target if source.type == "cpu" else source
    taken = spread(lambda: large.to(target, copy=True), accelerator, seconds=share)
    return {
        "bytes_per_second": large.nbytes / taken["median"],
        "seconds": spread(lambda: one.to(target, copy=True), accelerator, seconds=share / 2),
    }


def _who_is_here(found: list[Device]) -> list[str]:
    """What else torch could compute on, and why it does not."""
    if len(found) > 1:
        return []
    missing = [f"{one.device}: {one.error}" for one in accelerators.accelerators() if one.error]
    return [f"Only the CPU computes here ({'; '.join(missing)})."]


def _who_wins(found: list[Device]) -> list[str]:
    """From which size on an accelerator multiplies small matrices faster than the CPU."""
    cpu, *others = found
    told = []
    for one in others:
        wins = [
            here["seconds"]["median"] < there["seconds"]["median"]
            for here, there in zip(one["small_products"], cpu["small_products"], strict=True)
        ]
        first = next((i for i in range(len(wins)) if all(wins[i:])), None)
        what = f"{PRODUCTS} small matrix products, one after the other"
        if first is None:
            told.append(f"{what}: the CPU is faster than {one['device']} up to {SIZES[-1]}x{SIZES[-1]}.")
        elif first == 0:
            told.append(f"{what}: {one['device']} is faster than the CPU from {SIZES[0]}x{SIZES[0]} on.")
        else:
            size = SIZES[first]
            told.append(f"{what}: {one['device']} is faster than the CPU from {size}x{size} on only.")
    return told
