"""The response time of the inspector in the kernel, on one thread: python -m benchmarks.moving.

From a new value of a widget to the finished pictures, as in a notebook's panel: moving the chosen weight,
choosing another weight, choosing another image. Untrained nets, on scikit-learn's digits.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import recipe, record
from qnnkit import runs
from qnnkit.inspector import Inspector

CASES: dict[str, dict[str, Any]] = {
    "digits_quanv": {"recipe": "digits_quanv"},
    # 129 units instead of 114: 88,000 weights also with ten classes.
    "letters": {"recipe": "letters", "dataset": "digits", "image_size": 32, "hidden": 129},
    "resnet_circuit": {"recipe": recipe("resnet_circuit_frozen"), "dataset": "digits", "image_size": 28},
}
VALUES = {"shift": np.linspace(-3, 3, 20).tolist(), "weight": [1, 2, 3, 0], "image": [1, 2, 3, 4]}
"""Widget of the panel -> its values, one after another."""


def rows() -> Iterator[dict[str, Any]]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for name, settings in CASES.items():
            inspector = Inspector(runs.open_run(Path(folder) / name, **settings, controls=[]))
            net = inspector.views.model
            n_weights = sum(weight.numel() for weight in net.parameters())
            for widget, values in VALUES.items():
                took = [1e3 * seconds(inspector, widget, value) for value in values]
                row = {"recipe": name, "weights": n_weights, "set": widget}
                yield row | {"median_ms": statistics.median(took), "slowest_ms": max(took)}


def seconds(inspector: Inspector, widget: str, value: Any) -> float:
    """The seconds until a widget's new value is drawn."""
    start = time.perf_counter()
    getattr(inspector, widget).value = value
    return time.perf_counter() - start


if __name__ == "__main__":
    record.run(__doc__, what_if=rows)
