"""What statistics of the gradient cost a training: python -m benchmarks.watching.

The time spent in the watch (observed steps, statistics, the row in its file) by the time of the steps without
it, in the same epochs, so that a busy machine disturbs both alike: median over rounds, on one thread.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import recipe, record
from qnnkit import gradients, layers, measure, recipes, train, workspace
from qnnkit.data import ImageSet, ImageSplits
from qnnkit.data.batches import Batches
from qnnkit.recipes import parameter_groups
from qnnkit.settings import Settings

ROUNDS, EPOCHS, SAMPLES = 15, 3, Settings().gradient_samples
CASES = {"digits_quanv": (8, 1078, 10), "ahcd_trainable": (32, 3840, 28)}
"""Recipe -> side of its images in pixels, images of a timed epoch, classes."""


class Case:
    """A recipe's net on random images of its size."""

    def __init__(self, config: Settings, side: int, n: int, classes: int, epochs: int):
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randint(256, (n, 1, side, side), generator=generator, dtype=torch.uint8)
        self.labels = torch.arange(n) % classes
        self.training = config.override(epochs=epochs, augmentation="none")
        part = ImageSet(self.images, self.labels, ("",) * n)
        self.splits = ImageSplits("random", part, part, part, tuple(map(str, range(classes))))

        self.task = recipes.of(self.training).task(self.training)

    def model(self) -> nn.Module:
        return recipes.of(self.training).build(self.training, self.splits, 0)

    def batches(self) -> Batches:
        return Batches(self.images, self.labels, self.training.batch_size, shuffle=True)

    def fit(self, model: nn.Module, **watch: Any) -> list[float]:
        """Seconds of each epoch, by the kit's own loop."""
        groups, size = parameter_groups(model, self.training), self.training.batch_size
        few = Batches(self.images[:size], self.labels[:size], size, shuffle=False)
        loaders: Any = {"train": self.batches(), "validation": few}
        return train.fit(model, self.task, loaders, self.training, groups=groups, **watch).seconds

    def seconds(self, path: Path) -> tuple[float, float]:
        """Of all epochs: the steps alone, and what the watch takes beside them."""
        model, groups = (made := self.model()), parameter_groups(made, self.training)
        log = partial(workspace.append_line, path)
        watch = gradients.Watch(model, groups, per_epoch=SAMPLES, log=log)
        parts = [(gradients.Watch, name) for name in ("before", "after", "end")]
        with record.clocked(*parts) as spent:
            steps = sum(self.fit(model, watch=watch))
        inside = sum(spent["before"] + spent["after"])  # the end of an epoch is after its steps
        return steps - inside, inside + sum(spent["end"])


def rows() -> Iterator[dict[str, Any]]:
    with measure.threads(1), tempfile.TemporaryDirectory() as folder:
        for name, sizes in CASES.items():
            case = Case(recipes.settings(recipe(name)), *sizes, EPOCHS)
            path, updates = Path(folder) / f"{name}.jsonl", -(-len(case.images) // case.training.batch_size)
            _, *found = (case.seconds(path) for _ in range(ROUNDS + 1))  # the first warms up
            yield {
                "recipe": name,
                "weights": sum(layers.count_parameters(case.model()).values()),
                "updates_per_epoch": updates,
                "step_ms": 1e3 * statistics.median(alone for alone, _ in found) / updates / EPOCHS,
                **record.spread("extra", [inside / alone for alone, inside in found]),
                "bytes_per_epoch": path.stat().st_size // (EPOCHS * (ROUNDS + 1)),
            }


if __name__ == "__main__":
    record.run(__doc__, watching=rows)
