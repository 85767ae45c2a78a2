"""What a checkpoint every 50 steps costs a training: python -m benchmarks.saving.

The same training with and without checkpoints, in turn, in one process; the median of each pair's ratio. A
net of 88,000 weights, whose state is 1 MB, and one of 5 million (60 MB). Files go to the folder for temporary
files, or where --dir says.
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

from benchmarks.net import hybrid_net
from qnnkit import Quanv2d, train
from qnnkit.checkpoint import Store
from qnnkit.data.batches import Batches
from qnnkit.device import machine
from qnnkit.settings import Settings
from qnnkit.tasks import Classification
from qnnkit.train import loop

STEPS, EVERY = 300, 50


class Scaled(nn.Flatten):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images / 255)


def nets() -> dict[str, tuple[nn.Module, torch.Tensor, int]]:
    """Name -> net, images of one epoch, batch size."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (STEPS * 64, 1, 32, 32), generator=generator, dtype=torch.uint8)
    wide = nn.Sequential(Scaled(), nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1460), nn.ReLU())
    return {
        "quanvolution, 88 thousand weights": (
            hybrid_net(Quanv2d(4, "data_reuploading")),
            images,
            64,
        ),
        "perceptron, 5 million weights": (wide.append(nn.Linear(1460, 44)), images, 64),
    }


STALLS: list[float] = []
"""Seconds that training stood still for each checkpoint."""


class Watched(Store):
    def save(self, *given: Any, **named: Any) -> None:
        start = time.perf_counter()
        super().save(*given, **named)
        STALLS.append(time.perf_counter() - start)


def seconds(net: nn.Module, images: torch.Tensor, batch: int, folder: Path | None) -> float:
    """An epoch of STEPS steps and what is saved inside it; its end is saved in any case."""
    labels = torch.arange(len(images)) % 44
    loaders = {
        "train": Batches(images, labels, batch, shuffle=True),
        "validation": Batches(images[:batch], labels[:batch], batch, shuffle=False),
    }
    config = Settings(epochs=1, save_every_steps=EVERY, save_every_minutes=None)
    return train.fit(net, Classification(), loaders, config, folder=folder).seconds[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path, help="where checkpoints go")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    asked = parser.parse_args()
    found = {"machine": machine.processor(), "threads": torch.get_num_threads(), "nets": {}}
    loop.Store = Watched  # the only part that training waits for; the rest is another thread's
    for name, (net, images, batch) in nets().items():
        STALLS.clear()
        seconds(net, images[: 4 * batch], batch, None)  # warm-up
        rounds = []
        for number in range(asked.rounds):
            with tempfile.TemporaryDirectory(dir=asked.dir) as disk:
                order = [None, Path(disk)] if number % 2 else [Path(disk), None]
                took = {folder: seconds(net, images, batch, folder) for folder in order}
                size = max(path.stat().st_size for path in Path(disk).glob("checkpoint-*"))
                rounds.append((took[None], took[Path(disk)]))
        extra = [with_ / without - 1 for without, with_ in rounds]
        row = {
            "seconds without": statistics.median(pair[0] for pair in rounds),
            "seconds with": statistics.median(pair[1] for pair in rounds),
            "checkpoints": STEPS // EVERY,
            "megabytes each": size / 1e6,
            "milliseconds stalled by each": 1e3 * statistics.median(STALLS),
            "extra, per cent": 100 * statistics.median(extra),
            "extra, from and to": [100 * min(extra), 100 * max(extra)],
        }
        found["nets"][name] = row
        print(f"{name}: {json.dumps(row)}", flush=True)
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "saving.json").write_text(json.dumps(found, indent=2) + os.linesep)


if __name__ == "__main__":
    main()
