"""What a checkpoint every 50 steps costs a training: python -m benchmarks.saving.

The same training with and without checkpoints, in turn, in one process: how long each checkpoint stops it,
and what it takes longer, as a share. A net of 88,000 weights, whose state is 1 MB, and one of 5 million
(60 MB). Files go to the folder for temporary files (TMPDIR).
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import record
from benchmarks.net import hybrid_net
from qnnkit import Quanv2d, train
from qnnkit.checkpoint import Store
from qnnkit.data.batches import Batches
from qnnkit.settings import Settings
from qnnkit.tasks import Classification

STEPS, EVERY, BATCH, ROUNDS = 300, 50, 64, 5


class Scaled(nn.Flatten):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images / 255)


def nets() -> dict[str, nn.Module]:
    wide = nn.Sequential(Scaled(), nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1460), nn.ReLU())
    return {
        "quanvolution, 88 thousand weights": hybrid_net(Quanv2d(4, "data_reuploading")),
        "perceptron, 5 million weights": wide.append(nn.Linear(1460, 44)),
    }


def epoch(net: nn.Module, images: torch.Tensor, folder: Path | None) -> float:
    """Seconds of an epoch of STEPS steps and what is saved inside it; its end is saved in any case."""
    labels = torch.arange(len(images)) % 44
    loaders = {
        "train": Batches(images, labels, BATCH, shuffle=True),
        "validation": Batches(images[:BATCH], labels[:BATCH], BATCH, shuffle=False),
    }
    config = Settings(epochs=1, save_every_steps=EVERY, save_every_minutes=None)
    return train.fit(net, Classification(), loaders, config, folder=folder).seconds[0]


def rows() -> Iterator[dict[str, Any]]:
    images = torch.randint(256, (STEPS * BATCH, 1, 32, 32), dtype=torch.uint8)
    for name, net in nets().items():
        epoch(net, images[: 4 * BATCH], None)  # warm-up
        with tempfile.TemporaryDirectory() as disk:
            folders = (Path(disk, str(number)) for number in range(ROUNDS))
            ways = {
                "with": lambda net=net, folders=folders: epoch(net, images, next(folders)),
                "without": lambda net=net: epoch(net, images, None),
            }
            with record.clocked((Store, "save")) as spent:  # all that training waits for
                took = record.in_turns(ways, ROUNDS)
            size = max(path.stat().st_size for path in Path(disk).rglob("checkpoint-*"))
        extra = [a / b - 1 for a, b in zip(took["with"], took["without"], strict=True)]
        row = {"net": name, "checkpoints": STEPS // EVERY, "megabytes": size / 1e6}
        yield row | {"stalled_ms": 1e3 * statistics.median(spent["save"])} | record.spread("extra", extra)


if __name__ == "__main__":
    record.run(__doc__, saving=rows)
