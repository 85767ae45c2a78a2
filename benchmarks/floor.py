"""The floor of W1 to W4: the matrix products and sines that the scheme cannot do without, and nothing else.

See qnnkit/simulator/DERIVATION.md for the counts. Run it beside `make bench`, on a quiet machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from benchmarks import record

Steps = list[Callable[[], object]]


def product(left: torch.Tensor, right: torch.Tensor) -> Callable[[], object]:
    """A matrix product into memory that is there already."""
    return partial(torch.mm, left, right, out=torch.empty(left.shape[0], right.shape[1]))


def waves(angles: torch.Tensor) -> Steps:
    return [partial(wave, angles, out=torch.empty_like(angles)) for wave in (torch.cos, torch.sin)]


def dense(batch: int, uses: int, *, backward: bool, n_wires: int = 4) -> Steps:
    """The products and sines of a circuit on a few wires."""
    n = 2**n_wires
    state, features, half = (torch.randn(rows, batch) for rows in (2 * n, n, n_wires))
    block, start, table = torch.randn(2 * n, 2 * n), torch.randn(2 * n, n), torch.randn(n_wires, 2 * n)
    steps = [*waves(half), product(start, features)]
    steps += (uses - 1) * [*waves(features), product(block, state)] + [product(table, state)]
    if backward:
        steps += [product(table.t(), half)]
        steps += (uses - 1) * [product(block.t(), state), product(state, state.t())]
        steps += [product(state, features.t()), product(start.t(), state)]
    return steps


def chain(n_factors: int, size: int) -> Steps:
    """The products that build one block, and their way back."""
    return 3 * (n_factors - 1) * [product(torch.randn(size, size), torch.randn(size, size))]


def wide(n_wires: int, n_blocks: int, cell: int, batch: int = 64) -> Steps:
    """The blocks of a circuit on many wires: forward, again, and both products of the way back."""
    size, columns = 2 * 2**cell, 2 ** (n_wires - cell) * batch
    part = min(columns, 2**18 // size)
    block, state = torch.randn(size, size), torch.randn(size, part)
    return (n_blocks * columns // part) * [*3 * [product(block, state)], product(state, state.t())]


def milliseconds(steps: Steps, rounds: int = 30) -> float:
    return record.milliseconds(lambda: [step() for step in steps], rounds)


def rows() -> Iterator[dict[str, Any]]:
    torch.manual_seed(0)
    yield {"workload": "W1", "ms": milliseconds(dense(8192, 2, backward=True))}
    part = milliseconds(dense(8192, 1, backward=False))  # in parts that fit the cache
    yield {"workload": "W2", "ms": part * 200_704 / 8192}
    for batch in (64, 256):
        products = milliseconds(dense(batch, 1, backward=True) + chain(10, 32))
        yield {"workload": f"W3-{batch}", "ms": products}
    for n_wires, n_blocks, cell in ((8, 4, 4), (10, 4, 5), (12, 6, 4), (14, 6, 5), (16, 8, 4)):
        yield {"workload": f"W4-{n_wires}", "ms": milliseconds(wide(n_wires, n_blocks, cell), 5)}


if __name__ == "__main__":
    record.run(__doc__, floor=rows)
