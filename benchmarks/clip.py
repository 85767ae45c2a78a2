"""CLIP of two small towers: zero-shot on digits with captions, its heads beside their controls, COCO's pairs.

    OMP_NUM_THREADS=1 python -m benchmarks.clip digits
    OMP_NUM_THREADS=1 python -m benchmarks.clip heads
    OMP_NUM_THREADS=1 python -m benchmarks.clip coco --root /data/captions/coco_by

Each line is a net and a seed with its test (or, for COCO, training) numbers, as JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from torch import nn

from qnnkit import layers, train
from qnnkit.config import TrainingConfig
from qnnkit.data.captions import CaptionSplits, captions, digit_captions
from qnnkit.models import Clip
from qnnkit.retrieval import embed
from qnnkit.tasks import Contrastive
from qnnkit.train import Group


def groups(model: nn.Module, training: TrainingConfig) -> list[Group]:
    """Circuits, or what stands in their place, with a step size of their own."""
    exchanged = {id(weight) for weight in layers.exchanged_parameters(model)}
    quantum = [weight for weight in model.parameters() if id(weight) in exchanged]
    rest = [weight for weight in model.parameters() if id(weight) not in exchanged]
    rate = training.quantum_learning_rate or training.learning_rate
    return [Group("classical", rest, training.learning_rate), Group("quantum", quantum, rate)]


def run(
    name: str,
    model: nn.Module,
    data: CaptionSplits,
    training: TrainingConfig,
    seed: int,
    judged: tuple[str, ...] = ("test",),
) -> dict[str, Any]:
    loaders = {
        "train": data.batches("train", training.batch_size, shuffle=True, seed=seed),
        "validation": data.batches("validation", training.batch_size, shuffle=False),
    }
    task = Contrastive()
    start = time.perf_counter()
    progress = train.fit(model, task, loaders, training, groups=groups(model, training), seed=seed)
    seconds = time.perf_counter() - start
    found = {
        "net": name,
        "seed": seed,
        "parameters": sum(layers.count_parameters(model).values()),
        "seconds": round(seconds, 1),
        "best_epoch": progress.best_epoch,
        "first_loss": round(progress.rows[0]["train_loss"], 3),
        "last_loss": round(progress.rows[-1]["train_loss"], 3),
    }
    for split in judged:
        scores = task.judge(embed(model, data, split))  # type: ignore[arg-type]
        found |= {f"{split}_{key}": round(value, 4) for key, value in scores.items()}
    print(json.dumps(found), flush=True)
    return found


DIGITS: dict[str, Any] = {
    "batch_size": 64,
    "learning_rate": 1e-3,
    "quantum_learning_rate": 1e-2,
    "optimizer": "adamw",
    "weight_decay": 0.05,
    "warmup_epochs": 2,
    "clip_norm": 1.0,
}
"""Unclipped, at step sizes of 2e-3 and above, nets were seen that never left the loss of chance."""


def digits_clip(data: CaptionSplits, head: str, seed: int, n_qubits: int) -> Clip:
    shape: dict[str, Any] = {"channels": data.channels, "image_size": data.image_size, "patch_size": 4}
    return Clip(data.tokenizer, head=head, n_qubits=n_qubits, seed=seed, **shape)


def digits(seeds: int, epochs: int) -> None:
    data, training = digit_captions(), TrainingConfig(epochs=epochs, **DIGITS)
    for seed in range(seeds):
        run("full", digits_clip(data, "full", seed, 4), data, training, seed)


def heads(seeds: int, epochs: int, n_qubits: int) -> None:
    data, training = digit_captions(), TrainingConfig(epochs=epochs, **DIGITS)
    for seed in range(seeds):
        quantum = digits_clip(data, "quantum", seed, n_qubits)
        quantum(**next(iter(data.batches("train", 2, shuffle=False))))  # shapes, for the controls
        nets = {"quantum": quantum, **layers.controls(quantum, seed=seed)}
        nets |= {head: digits_clip(data, head, seed, n_qubits) for head in ("linear", "full")}
        for name, net in nets.items():
            run(name, net, data, training, seed)


def coco(root: str, image_size: int, epochs: int, head: str) -> None:
    splits = captions(root, image_size=image_size)
    print("\n".join(splits.notes))
    shape: dict[str, Any] = {"channels": splits.channels, "image_size": splits.image_size, "patch_size": 8}
    model = Clip(splits.tokenizer, head=head, n_qubits=8, **shape)
    training = TrainingConfig(
        epochs=epochs,
        batch_size=46,
        learning_rate=1e-3,
        optimizer="adamw",
        weight_decay=0.05,
        warmup_epochs=5,
    )
    run(head, model, splits, training, 0, judged=("train", "test"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("digits", "heads", "coco"))
    parser.add_argument("--root", help="folder of COCO's pairs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--n-qubits", type=int, default=4)
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--head", default="full")
    given = parser.parse_args()
    if given.what == "digits":
        digits(given.seeds, given.epochs)
    elif given.what == "heads":
        heads(given.seeds, given.epochs, given.n_qubits)
    else:
        coco(given.root, given.image_size, given.epochs, given.head)


if __name__ == "__main__":
    main()
