"""What the kit's loop takes beside forward, backward and optimizer: python -m benchmarks.overhead.

An epoch of `train.fit` beside one of a plain loop with the same net, batches, seed and optimizer: both take
turns on one thread, and both are clocked inside; means of an epoch, medians over rounds, in
docs/results/overhead.csv. `outside` is the share of an epoch of the kit's that is neither forward (with the
loss), backward nor optimizer; `times_plain` is its seconds over those of the plain loop.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

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
"""Recipe -> side of its images in pixels, images of an epoch, classes; `letters` has 88,000 weights."""
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

    def fit(self, model: nn.Module) -> list[float]:
        """Seconds of each epoch, by the kit's own loop."""
        groups, size = parameter_groups(model, self.training), self.training.batch_size
        few = DictBatches(lambda epoch: (self.images[:size], self.labels[:size]), size, shuffle=False)
        loaders: Any = {"train": self.batches(), "validation": few}
        return train.fit(model, self.task, loaders, self.training, groups=groups).seconds


def clocked(case: Case) -> Any:
    """Seconds in forward and backward passes and steps of the optimizer, whosever loop it is."""
    optimizer = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[case.training.optimizer]
    return record.clocked((type(case.task), "__call__"), (torch.Tensor, "backward"), (optimizer, "step"))


def per_epoch(seconds: float, spent: dict[str, list[float]]) -> tuple[float, float]:
    return seconds / EPOCHS, sum(map(sum, spent.values())) / EPOCHS


def fitted(case: Case) -> tuple[float, float]:
    """Seconds of an epoch of `train.fit`, and of its three parts."""
    with clocked(case) as spent:
        return per_epoch(sum(case.fit(case.model())), spent)


def plain(case: Case) -> tuple[float, float]:
    """Seconds of an epoch of the least loop, and of its three parts."""
    model, batches = case.model().train(), case.batches()
    with clocked(case) as spent:
        optimizer = optimizer_of(parameter_groups(model, case.training), case.training)
        begin = time.perf_counter()
        for epoch in range(EPOCHS):
            batches.set_epoch(epoch)
            for batch in batches:
                case.task(model, batch).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        return per_epoch(time.perf_counter() - begin, spent)


def rows() -> Iterator[dict[str, Any]]:
    for name, sizes in CASES.items():
        case = Case(recipes.settings(name), *sizes, EPOCHS)
        weights = sum(layers.count_parameters(case.model()).values())
        with measure.threads(1):
            case.fit(case.model())  # warm-up
            found = record.in_turns({"fit": partial(fitted, case), "plain": partial(plain, case)}, ROUNDS)
        row: dict[str, Any] = {"recipe": name, "weights": weights, "images": len(case.images)}
        for way, times in found.items():
            whole, parts = (statistics.median(each) for each in zip(*times, strict=True))
            row |= {f"{way}_s": whole, f"{way}_parts_s": parts}
        shares = {way: [1 - parts / whole for whole, parts in times] for way, times in found.items()}
        row |= record.spread("outside", shares["fit"]) | record.spread("outside_plain", shares["plain"])
        ratios = [fit / own for (fit, _), (own, _) in zip(*found.values(), strict=True)]
        yield row | record.spread("times_plain", ratios)


if __name__ == "__main__":
    record.run(__doc__, overhead=rows)
