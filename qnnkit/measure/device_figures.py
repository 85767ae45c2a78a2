"""What a device reaches, whatever it is used for: bandwidth, matrix products, launches, transfers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from qnnkit import checks, words
from qnnkit.device import machine
from qnnkit.measure.clock import Spread, spread, threads
from qnnkit.measure.held import free
from qnnkit.train import PRECISIONS

Row = dict[str, Any]
"""One measurement: `what`, `device`, its settings by name, `value` (None where there is none), `unit`,
`spread` (the slowest round over the median one), and `why` there is no value."""
SIZES = (4, 16, 64, 256)
PRODUCTS = 100
ARRAY, SMALL_ARRAY = 2**28, 2**26
"""Bytes of each of three arrays: more than most processors and GPUs keep in their caches."""
LONG_ENOUGH = 1e-2
"""Seconds of a matrix product whose throughput counts."""
ROUND = 2e-3
"""Seconds of a round at least: short calls are repeated within one."""


def row(
    what: str, device: Any, value: float | None, unit: str, spread: float | None = None, **settings: Any
) -> Row:
    """A measurement with its settings, `why` there is none among them."""
    return {"what": what, "device": str(device), **settings, "value": value, "unit": unit, "spread": spread}


def timed(what: str, device: Any, times: Spread, work: float, unit: str, **settings: Any) -> Row:
    """A measurement: `work` a second where the unit is of a second, else the seconds of one of `work`."""
    value = work / times.median if unit.endswith("/s") else times.median / work
    return row(what, device, value, unit, times.ratio, **settings)


def rows_of(
    device: torch.device, *, seconds: float = 1.0, quick: bool = False, precisions: Sequence[str] = PRECISIONS
) -> Iterator[Row]:
    """Bandwidth, matrix products, launches and transfers of a device.

    Args:
        device: Which.
        seconds: For all of them, about.
        quick: Smaller arrays and products.
        precisions: Of the matrix products.
    """
    share, generator = seconds / 12, torch.Generator().manual_seed(0)
    yield _or_why(partial(_bandwidth, device, share, quick), "bandwidth", device, "B/s")
    for precision in precisions:
        made = partial(_products, device, share, quick, generator, precision)
        yield _or_why(made, "product", device, "FLOP/s", precision=precision)
    yield _launch(device, share)
    for size in SIZES:
        a, b = (torch.randn(size, size, generator=generator).to(device) for _ in range(2))
        times = _repeated(partial(torch.mm, a, b), device, share)
        yield timed("small product", device, times, PRODUCTS, "s", size=size)
    if str(device) != "cpu":
        for way, source, target in (
            ("to", torch.device("cpu"), device),
            ("from", device, torch.device("cpu")),
        ):
            large = torch.ones((2**24 if quick else 2**26) // 4, device=source)
            one = torch.ones(1, device=source)
            times = spread(partial(large.to, target, copy=True), device, seconds=share, least=ROUND)
            yield timed("transfer", device, times, large.nbytes, "B/s", way=way)
            times = spread(partial(one.to, target, copy=True), device, seconds=share, least=ROUND)
            yield timed("transfer of a number", device, times, 1, "s", way=way)


def figures(device: torch.device, precision: str = "float32", number: int | None = None) -> dict[str, Any]:
    """What an estimate of time needs of a device of this machine, measured now in about a second.

    By the code by which a survey measures it, so that both say the same.

    Args:
        device: Which.
        precision: Of the matrix products, beside float32 and, where the device has it, bfloat16.
        number: CPU threads; None leaves torch's own number.

    Returns:
        As an entry of `survey.figures`.

    Raises:
        ValueError: The device does not compute in this precision.
    """
    wanted = tuple(dict.fromkeys(("float32", precision, "bfloat16")))
    with threads(number):
        measured = rows_of(device, seconds=1.0, precisions=wanted)
        rows = list(itertools.takewhile(lambda row: row["what"] != "small product", measured))
    [found] = figures_of(rows, [{"device": str(device), **kind(device)}])
    if precision not in found["flops"]:
        why = next(each["why"] for each in rows if each.get("precision") == precision)
        raise ValueError(checks.message("precision", f"be one that {device} computes in", precision, why))
    return found


def figures_of(rows: Sequence[Row], devices: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One dictionary for each device, from rows; what was not measured is None, or left out of `flops`.

    Returns:
        `device`, `name`, `memory` (bytes), `bytes_per_second`, `flops` a second by precision, and
        `seconds_per_operation`.
    """

    def of(device: str, what: str) -> dict[str, float]:
        mine = [each for each in rows if (each["what"], each["device"]) == (what, device)]
        return {each.get("precision", ""): each["value"] for each in mine if each.get("value")}

    return [
        {
            **{name: one[name] for name in ("device", "name", "memory")},
            "bytes_per_second": of(one["device"], "bandwidth").get(""),
            "flops": of(one["device"], "product"),
            "seconds_per_operation": of(one["device"], "launch").get(""),
        }
        for one in devices
    ]


def kind(device: torch.device) -> dict[str, Any]:
    """A device's `name`, and its `memory`: the bytes that it can address."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return {"name": properties.name, "memory": properties.total_memory}
    return {"name": machine.processor(), "memory": machine.memory()[0]}


def _or_why(made: Callable[[], Row], what: str, device: Any, unit: str, **settings: Any) -> Row:
    """What is measured, or why it could not be: a precision that is missing, too little memory."""
    try:
        return made()
    except (RuntimeError, TypeError, NotImplementedError, MemoryError) as error:
        return row(what, device, None, unit, **settings, why=words.error_line(error))


def _bandwidth(device: torch.device, share: float, quick: bool) -> Row:
    """The triad of the STREAM benchmark, which reads two arrays and writes a third one."""
    n = min(SMALL_ARRAY if quick else ARRAY, free(device) // 16) // 4
    a, b = torch.ones(n, device=device), torch.ones(n, device=device)
    c = torch.empty_like(a)
    times = spread(lambda: torch.add(a, b, alpha=2.0, out=c), device, seconds=share, least=ROUND)
    return timed("bandwidth", device, times, 3 * a.nbytes, "B/s")


def _products(
    device: torch.device, share: float, quick: bool, generator: torch.Generator, precision: str
) -> Row:
    """Of the smallest product of a power of two that keeps the device busy for long enough."""
    dtype = getattr(torch, precision)

    def product(size: int) -> Callable[[], torch.Tensor]:
        a, b = (torch.randn(size, size, generator=generator).to(device, dtype) for _ in range(2))
        return partial(torch.mm, a, b)

    size, largest = 256, 1024 if quick else 8192
    while size < largest and spread(product(size), device, rounds=5).least < LONG_ENOUGH:
        size *= 2
    times = spread(product(size), device, seconds=share, least=ROUND)
    return timed("product", device, times, 2 * size**3, "FLOP/s", precision=precision, size=size)


def _launch(device: torch.device, share: float) -> Row:
    """A small elementwise operation: what it takes to launch it."""
    ones = torch.ones(64, device=device)
    return timed("launch", device, _repeated(partial(torch.add, ones, ones), device, share), PRODUCTS, "s")


def _repeated(operation: Callable[[], Any], device: torch.device, share: float) -> Spread:
    """Times of a hundred of an operation, one after the other."""

    def all_of_them() -> None:
        for _ in range(PRODUCTS):
            operation()

    return spread(all_of_them, device, seconds=share, least=ROUND)
