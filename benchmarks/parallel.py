"""Small runs of 03_train and 04_analyze, one at a time and two at a time: python -m benchmarks.parallel.

Both take turns in batches of six (one, two, two, one, ...), so that a slow minute of the machine hits both
alike.
"""

from __future__ import annotations

import functools
import itertools
import os
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from benchmarks import record
from qnnkit import batch, warm

SETTINGS = {"train_fraction": 0.02, "n_layers": 1, "hidden": 2, "batch_size": 4, "epochs": 2, "n_seeds": 1}
SETTINGS |= {"controls": ["classical"]}
BLOCKS, PER_BLOCK = 8, 6


def seconds_a_run(workers: int, seeds: list[int]) -> float:
    """Of a batch, from the call to the last run.

    Raises:
        RuntimeError: A run failed.
    """
    content = {"name": f"at-a-time-{workers}-{seeds[0]}", "recipe": "digits_quanv", "settings": SETTINGS}
    content |= {"seeds": seeds, "workers": workers, "threads": 1, "notebooks": ["03_train", "04_analyze"]}
    start = time.perf_counter()
    outcomes = batch.run_batch(content, echo=lambda line: None)
    if failed := [each.error for each in outcomes if each.state != "finished"]:
        raise RuntimeError(f"{len(failed)} of {len(seeds)} runs failed: {failed[0]}")
    return (time.perf_counter() - start) / len(seeds)


def rows() -> Iterator[dict[str, Any]]:
    warm.begin()  # as `qnnkit batch` does
    with tempfile.TemporaryDirectory() as home:
        os.environ["QNNKIT_HOME"] = home
        seconds_a_run(1, [999])  # warm-up
        firsts = itertools.count(step=PER_BLOCK)

        def block(workers: int) -> float:
            return seconds_a_run(workers, list(range(first := next(firsts), first + PER_BLOCK)))

        ways = {str(n): functools.partial(block, n) for n in (1, 2)}
        for workers, seconds in record.in_turns(ways, BLOCKS // 2).items():
            yield {"workers": int(workers)} | record.spread("seconds_a_run", seconds)


if __name__ == "__main__":
    record.run(__doc__, parallel=rows)
