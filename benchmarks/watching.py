"""What statistics of the gradient cost a training: python -m benchmarks.watching.

The same epochs with and without a watch, in turn, in one process and on one thread; the median over the pairs
of what is extra. Timed is the whole of them: the observed steps, the statistics and the row in its file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from qnnkit import gradients, layers, measure, models, recipes, train, workspace
from qnnkit.config import RunConfig, TrainingConfig
from qnnkit.data.sample import Batches
from qnnkit.runs.nets import parameter_groups, task_of

CASES = {"digits_quanv": (8, 1078, 10), "ahcd_trainable": (32, 3840, 28)}
"""Recipe -> side of its images in pixels, images of a timed epoch, classes."""


class Case:
    """A recipe's net on random images of its size."""

    def __init__(self, config: RunConfig, side: int, n: int, classes: int, epochs: int):
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randint(256, (n, 1, side, side), generator=generator, dtype=torch.uint8)
        self.labels = torch.arange(n) % classes
        self.config, self.net = config, (side, classes)
        self.training = config.training.model_copy(update={"epochs": epochs, "augmentation": "none"})

    def model(self) -> nn.Module:
        side, classes = self.net
        return models.build(self.config.model, channels=1, image_size=(side, side), n_classes=classes, seed=0)

    def seconds(self, samples: int, path: Path) -> float:
        """Of one training of a few epochs, that looks at so many updates of each."""
        model, size = self.model(), self.training.batch_size
        groups = parameter_groups(model, self.training)
        watch = None
        if samples:
            watch = gradients.Watch(
                model, groups, per_epoch=samples, log=lambda row: workspace.append_line(path, row)
            )
        few = Batches(self.images[:size], self.labels[:size], size, shuffle=False)
        loaders = {"train": Batches(self.images, self.labels, size, shuffle=True), "validation": few}
        start = time.perf_counter()
        train.fit(model, task_of(self.training), loaders, self.training, groups=groups, watch=watch)
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=TrainingConfig().gradient_samples)
    parser.add_argument("--only", choices=list(CASES), nargs="*", default=list(CASES))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    asked = parser.parse_args()
    found = {"machine": measure.machine(torch.device("cpu")), "samples": asked.samples, "nets": {}}
    with measure.threads(1), tempfile.TemporaryDirectory() as folder:
        for name in asked.only:
            case = Case(recipes.recipe(name), *CASES[name], asked.epochs)
            path, rounds = Path(folder) / f"{name}.jsonl", []
            case.seconds(asked.samples, path)  # warm-up
            for number in range(asked.rounds):
                order = [0, asked.samples] if number % 2 else [asked.samples, 0]
                took = {samples: case.seconds(samples, path) for samples in order}
                rounds.append((took[0], took[asked.samples]))
            extra = [with_ / without - 1 for without, with_ in rounds]
            best = [min(pair[side] for pair in rounds) for side in (0, 1)]
            found["nets"][name] = {
                "steps of an epoch": -(-len(case.images) // case.training.batch_size),
                "weights": layers.count_parameters(case.model()),
                "seconds without": statistics.median(pair[0] for pair in rounds),
                "seconds with": statistics.median(pair[1] for pair in rounds),
                "extra, per cent": 100 * statistics.median(extra),
                "extra of the quickest, per cent": 100 * (best[1] / best[0] - 1),
                "extra, from and to": [100 * min(extra), 100 * max(extra)],
                "bytes of an epoch": path.stat().st_size // (asked.epochs * (asked.rounds + 1)),
            }
            print(f"{name}: {json.dumps(found['nets'][name])}", flush=True)
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "watching.json").write_text(json.dumps(found, indent=2) + os.linesep)


if __name__ == "__main__":
    main()
