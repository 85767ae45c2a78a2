"""What statistics of the gradient cost a training: python -m benchmarks.watching.

The time spent in the watch (observed steps, statistics, the row in its file) by the time of the steps without
it, in the same epochs, so that a busy machine disturbs both alike: median over rounds, on one thread. Beside
it the epochs with and without a watch, in turn: the quickest of each, for a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import recipe
from qnnkit import gradients, layers, measure, recipes, train, workspace
from qnnkit.data import ImageSet, ImageSplits
from qnnkit.data.batches import Batches
from qnnkit.device import machine
from qnnkit.recipes import parameter_groups
from qnnkit.settings import Settings

CASES = {"digits_quanv": (8, 1078, 10), "ahcd_trainable": (32, 3840, 28)}
"""Recipe -> side of its images in pixels, images of a timed epoch, classes."""


class Timed(gradients.Watch):
    """Adds up the seconds that training waits for it."""

    inside = after_steps = 0.0

    def before(self) -> None:
        start = time.perf_counter()
        super().before()
        self.inside += time.perf_counter() - start

    def after(self, step: int) -> None:
        start = time.perf_counter()
        super().after(step)
        self.inside += time.perf_counter() - start

    def end(self, epoch: int, updates: int) -> dict[str, Any]:
        start = time.perf_counter()
        row = super().end(epoch, updates)
        self.after_steps += time.perf_counter() - start
        return row


class Case:
    """A recipe's net on random images of its size."""

    def __init__(self, config: Settings, side: int, n: int, classes: int, epochs: int):
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randint(256, (n, 1, side, side), generator=generator, dtype=torch.uint8)
        self.labels = torch.arange(n) % classes
        self.training = config.override(epochs=epochs, augmentation="none")
        part = ImageSet(self.images, self.labels, ("",) * n)
        self.splits = ImageSplits("random", part, part, part, tuple(map(str, range(classes))))

    def model(self) -> nn.Module:
        return recipes.of(self.training).build(self.training, self.splits, 0)

    def seconds(self, samples: int, path: Path) -> tuple[float, float]:
        """Of a few epochs, that look at so many updates each: steps alone, and what the watch takes."""
        model, size = self.model(), self.training.batch_size
        groups = parameter_groups(model, self.training)
        watch = None
        if samples:
            watch = Timed(model, groups, per_epoch=samples, log=lambda row: workspace.append_line(path, row))
        few = Batches(self.images[:size], self.labels[:size], size, shuffle=False)
        loaders = {"train": Batches(self.images, self.labels, size, shuffle=True), "validation": few}
        task = recipes.of(self.training).task(self.training)
        steps = sum(train.fit(model, task, loaders, self.training, groups=groups, watch=watch).seconds)
        return (steps - watch.inside, watch.inside + watch.after_steps) if watch else (steps, 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=Settings().gradient_samples)
    parser.add_argument("--only", choices=list(CASES), nargs="*", default=list(CASES))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    asked = parser.parse_args()
    found = {"machine": machine.processor(), "samples": asked.samples, "nets": {}}
    with measure.threads(1), tempfile.TemporaryDirectory() as folder:
        for name in asked.only:
            case = Case(recipes.settings(recipe(name)), *CASES[name], asked.epochs)
            path, rounds = Path(folder) / f"{name}.jsonl", []
            case.seconds(asked.samples, path)  # warm-up
            for number in range(asked.rounds):
                order = [0, asked.samples] if number % 2 else [asked.samples, 0]
                took = {samples: case.seconds(samples, path) for samples in order}
                rounds.append((took[0][0], *took[asked.samples]))
            shares = [100 * inside / steps for _, steps, inside in rounds]
            without, with_ = min(each[0] for each in rounds), min(sum(each[1:]) for each in rounds)
            updates = asked.epochs * -(-len(case.images) // case.training.batch_size)
            found["nets"][name] = {
                "steps of an epoch": updates // asked.epochs,
                "weights": layers.count_parameters(case.model()),
                "milliseconds of a step": 1e3 * statistics.median(each[0] for each in rounds) / updates,
                "extra, per cent": statistics.median(shares),
                "extra, from and to": [min(shares), max(shares)],
                "extra of the quickest, per cent": 100 * (with_ / without - 1),
                "bytes of an epoch": path.stat().st_size // (asked.epochs * (asked.rounds + 1)),
            }
            print(f"{name}: {json.dumps(found['nets'][name])}", flush=True)
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "watching.json").write_text(json.dumps(found, indent=2) + os.linesep)


if __name__ == "__main__":
    main()
