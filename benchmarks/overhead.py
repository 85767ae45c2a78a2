"""The overhead of the kit's loop over forward, backward and optimizer: python -m benchmarks.overhead.

An epoch of `train.fit` and one of a plain loop with the same net, batches, seed and optimizer take turns on
one thread; docs/results/overhead.csv has means per epoch and medians over rounds. `parts_s` is the time of
forward (with the loss), backward and optimizer, as clocked in the plain loop. `outside` is the share of the
kit's epoch beyond these parts, `times_plain` the ratio of its time to that of the plain loop.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import pandas as pd
import torch
from torch import nn

from benchmarks import record
from qnnkit import layers, measure, recipes, train
from qnnkit.data import ImageSet, ImageSplits
from qnnkit.data.batches import DictBatches
from qnnkit.recipes import parameter_groups
from qnnkit.settings import Settings
from qnnkit.train.optimizer import optimizer_of

CASES = {"digits_quanv": (8, 1078, 10), "letters": (32, 3072, 28)}
"""Recipe -> side of its images in pixels, images per epoch, classes; `letters` has 88,000 weights."""
ROUNDS, EPOCHS = 9, 3


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

    def batches(self) -> DictBatches:
        return self.splits.batches("train", self.training.batch_size, shuffle=True)

    def fit(self) -> float:
        """Seconds of an epoch in the kit's loop."""
        model, size = self.model(), self.training.batch_size
        few = DictBatches(lambda epoch: (self.images[:size], self.labels[:size]), size, shuffle=False)
        loaders: Any = {"train": self.batches(), "validation": few}
        groups = parameter_groups(model, self.training)
        return statistics.mean(train.fit(model, self.task, loaders, self.training, groups=groups).seconds)

    def plain(self) -> tuple[float, float]:
        """Seconds of an epoch in the simplest loop, and of its three parts."""
        model, batches, parts = self.model().train(), self.batches(), 0.0
        optimizer = optimizer_of(parameter_groups(model, self.training), self.training)
        begin = time.perf_counter()
        for epoch in range(EPOCHS):
            batches.set_epoch(epoch)
            for batch in batches:
                start = time.perf_counter()
                self.task(model, batch).loss.backward()
                optimizer.step()
                parts += time.perf_counter() - start
                optimizer.zero_grad()
        return (time.perf_counter() - begin) / EPOCHS, parts / EPOCHS


def rows() -> Iterator[dict[str, Any]]:
    for name, sizes in CASES.items():
        case = Case(recipes.settings(name), *sizes, EPOCHS)
        weights = sum(layers.count_parameters(case.model()).values())
        with measure.threads(1):
            case.fit()  # warm-up
            times = pd.DataFrame([(case.fit(), *case.plain()) for _ in range(ROUNDS)])
        times.columns = ["fit_s", "plain_s", "parts_s"]
        times["outside"] = 1 - times["parts_s"] / times["fit_s"]
        times["outside_plain"] = 1 - times["parts_s"] / times["plain_s"]
        times["times_plain"] = times["fit_s"] / times["plain_s"]
        ends = {f"times_plain_{end}": getattr(times["times_plain"], end)() for end in ("min", "max")}
        about = {"recipe": name, "weights": weights, "images": len(case.images)}
        yield about | times.median().to_dict() | ends


if __name__ == "__main__":
    record.run(__doc__, overhead=rows)
