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
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks import record
from qnnkit import batch, warm

RECIPE = "folder_quanv"
SMALL = {"image_size": 6, "n_layers": 1, "hidden": 2, "batch_size": 4, "epochs": 2, "n_seeds": 1}
SMALL |= {"controls": ["classical"]}
BLOCKS, PER_BLOCK = 8, 6


def pictures(root: Path) -> Path:
    """Twelve 6x6 images in each of two class folders: bright above, or bright below."""
    generator = np.random.default_rng(0)
    for name, rows in (("above", slice(0, 3)), ("below", slice(3, 6))):
        (root / name).mkdir(parents=True)
        for i in range(12):
            pixels = generator.integers(0, 100, (6, 6), dtype=np.uint8)
            pixels[rows] += 120
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    return root


def seconds_a_run(workers: int, seeds: list[int], settings: dict[str, Any]) -> float:
    """Of a batch, from the call to the last run.

    Raises:
        RuntimeError: A run failed.
    """
    content = {"name": f"at-a-time-{workers}-{seeds[0]}", "recipe": RECIPE, "settings": settings}
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
        settings = {**SMALL, "data_dir": str(pictures(Path(home) / "pictures"))}
        seconds_a_run(1, [999], settings)  # warm-up
        firsts = itertools.count(step=PER_BLOCK)

        def block(workers: int) -> float:
            seeds = range(first := next(firsts), first + PER_BLOCK)
            return seconds_a_run(workers, list(seeds), settings)

        ways = {str(n): functools.partial(block, n) for n in (1, 2)}
        for workers, seconds in record.in_turns(ways, BLOCKS // 2).items():
            yield {"workers": int(workers)} | record.spread("seconds_a_run", seconds)


if __name__ == "__main__":
    record.run(__doc__, parallel=rows)
