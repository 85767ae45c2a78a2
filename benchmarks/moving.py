"""How long the inspector takes to move a weight, kernel side: python -m benchmarks.moving.

From the slider's value to the finished picture: the net asked again on the sample, and the figure drawn.
Median and slowest of 20 moves, for three nets on scikit-learn's digits, at the weights they start from.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import recipe, record
from qnnkit import runs
from qnnkit.inspector import views
from qnnkit.inspector.source import Source
from qnnkit.measure.clock import Spread

CASES = {
    "quanv": {"recipe": "digits_quanv"},
    "residual_quanv": {"recipe": recipe("ahcd_trainable"), "dataset": "digits", "image_size": 32},
    "resnet_circuit": {"recipe": "resnet_circuit_frozen", "dataset": "digits", "image_size": 28},
}
MOVES = 20


def seconds(run: runs.Run) -> list[float]:
    """Of each of some moves of one weight, from -3 to 3 radians."""
    source, found = Source(run), []
    moved = views.what_if(source, views.first_choice(source, run.nets[0], run.config.seed))
    assert moved is not None  # every case has a circuit
    moves, figure = moved
    figure.png()
    for shift in np.linspace(-3, 3, MOVES):
        start = time.perf_counter()
        there = moves.at(float(shift))
        figure.move(float(shift), there.values, there.class_probs, there.loss)
        figure.png()
        found.append(time.perf_counter() - start)
    return found


def rows() -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        for name, settings in CASES.items():
            took = Spread.of(seconds(runs.open_run(Path(folder) / name, **settings, controls=[])))
            yield {"net": name, "median_ms": 1e3 * took.median, "slowest_ms": 1e3 * took.most}


if __name__ == "__main__":
    record.run(__doc__, moving=rows)
