"""The floor of W1 to W4: the matrix products and sines that the scheme cannot do without, and nothing else.

See qnnkit/simulator/DERIVATION.md for the counts. Run it beside `make bench`, on a quiet machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks import record
from benchmarks.record import milliseconds


def dense(batch: int, uses: int, *, backward: bool, n_wires: int = 4) -> Callable[[], None]:
    """The products and sines of a circuit on a few wires, into memory that is there already."""
    n = 2**n_wires
    state, new = torch.randn(2 * n, batch), torch.empty(2 * n, batch)
    features, to_features, angles = torch.randn(n, batch), torch.empty(n, batch), torch.randn(n, batch)
    block, start, table = torch.randn(2 * n, 2 * n), torch.randn(2 * n, n), torch.randn(n_wires, 2 * n)
    values, half, waves = torch.empty(n_wires, batch), torch.randn(n_wires, batch), torch.empty(n, batch)

    def run() -> None:
        torch.cos(half, out=values)
        torch.sin(half, out=values)
        torch.mm(start, features, out=new)
        for _ in range(uses - 1):
            torch.cos(angles, out=waves)
            torch.sin(angles, out=waves)
            torch.mm(block, state, out=new)
        torch.mm(table, state, out=values)
        if backward:
            torch.mm(table.t(), values, out=new)
            for _ in range(uses - 1):
                torch.mm(block.t(), state, out=new)
                _ = state @ new.t()
            _ = state @ features.t()
            torch.mm(start.t(), state, out=to_features)

    return run


def chain(n_factors: int, size: int) -> Callable[[], None]:
    """The products that build one block, and their way back."""
    factor, product = torch.randn(size, size), torch.empty(size, size)

    def run() -> None:
        for _ in range(3 * (n_factors - 1)):
            torch.mm(factor, factor, out=product)

    return run


def wide(n_wires: int, n_blocks: int, cell: int, batch: int = 64) -> Callable[[], None]:
    """The blocks of a circuit on many wires: forward, again, and both products of the way back."""
    size, columns = 2 * 2**cell, 2 ** (n_wires - cell) * batch
    part = min(columns, 2**18 // size)
    block, state, new = torch.randn(size, size), torch.randn(size, part), torch.empty(size, part)

    def run() -> None:
        for _ in range(n_blocks * columns // part):
            for _ in range(3):
                torch.mm(block, state, out=new)
            _ = state @ new.t()

    return run


def rows() -> Iterator[dict[str, Any]]:
    torch.manual_seed(0)
    yield {"workload": "W1", "ms": milliseconds(dense(8192, 2, backward=True))}
    part = milliseconds(dense(8192, 1, backward=False))  # in parts that fit the cache
    yield {"workload": "W2", "ms": part * 200_704 / 8192}
    for batch in (64, 256):
        products = milliseconds(dense(batch, 1, backward=True)) + milliseconds(chain(10, 32))
        yield {"workload": f"W3-{batch}", "ms": products}
    for n_wires, n_blocks, cell in ((8, 4, 4), (10, 4, 5), (12, 6, 4), (14, 6, 5), (16, 8, 4)):
        yield {"workload": f"W4-{n_wires}", "ms": milliseconds(wide(n_wires, n_blocks, cell), 5)}


if __name__ == "__main__":
    record.run(__doc__, floor=rows)
