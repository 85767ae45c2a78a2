"""The floor of W1 to W4: the matrix products and sines that the scheme cannot do without, and nothing else.

See qnnkit/simulator/DERIVATION.md for the counts. Run it beside `make bench`, on a quiet machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


def milliseconds(run: Callable[[], object], rounds: int = 30) -> float:
    """Median time of one call."""
    for _ in range(3):
        run()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


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


def main() -> None:
    torch.manual_seed(0)
    print(f"{torch.get_num_threads()} threads; ms")
    print(f"W1       {milliseconds(dense(8192, 2, backward=True)):8.3f}")
    w2 = milliseconds(dense(8192, 1, backward=False)) * 200_704 / 8192  # in parts that fit the cache
    print(f"W2       {w2:8.3f}")
    for batch in (64, 256):
        floor = milliseconds(dense(batch, 1, backward=True)) + milliseconds(chain(10, 32))
        print(f"W3 {batch:5d} {floor:8.3f}")
    for n_wires, n_blocks, cell in ((8, 4, 4), (10, 4, 5), (12, 6, 4), (14, 6, 5), (16, 8, 4)):
        print(f"W4 {n_wires:5d} {milliseconds(wide(n_wires, n_blocks, cell), 5):8.3f}")


if __name__ == "__main__":
    main()
