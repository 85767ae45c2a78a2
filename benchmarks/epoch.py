"""Seconds per epoch of the digits net: the hybrid one on each simulator, against its classical control.

One process, the nets in turn, medians of several rounds; `make bench` runs it. lightning.qubit runs one
circuit at a time, so a part of an epoch is timed and scaled up, and the table says so.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time

import pandas as pd
import torch

from qnnkit import data, layers, models, recipes, tasks


def step(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
    """Seconds of one forward and backward pass, without the optimizer."""
    start = time.perf_counter()
    tasks.Classification()(model, batch).loss.backward()
    model.zero_grad()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="times each net is measured")
    parser.add_argument("--slow-images", type=int, default=2, help="images per step on lightning.qubit")
    asked = parser.parse_args()

    config, splits = recipes.recipe("digits_quanv"), data.load("digits")
    sizes = {"channels": splits.channels, "image_size": splits.image_size, "n_classes": splits.n_classes}
    nets = {
        f"hybrid, {backend}": models.build(config.model, **sizes, backend=backend)
        for backend in ("batched", "default.qubit", "lightning.qubit")
    }
    batch = next(iter(splits.batches("train", config.training.batch_size, shuffle=False)))
    nets["hybrid, batched"](batch[0])
    nets["classical control"] = layers.controls(nets["hybrid, batched"])["classical"]
    images = {name: asked.slow_images if "lightning" in name else len(batch[1]) for name in nets}

    seconds: dict[str, list[float]] = {name: [] for name in nets}
    for _ in range(asked.rounds + 1):
        for name, model in nets.items():
            n = images[name]
            seconds[name].append(step(model, (batch[0][:n], batch[1][:n])) * len(splits.train) / n)
    medians = {name: statistics.median(times[1:]) for name, times in seconds.items()}  # the first warms up
    rows = [
        {
            "net": name,
            "s / epoch": round(median, 3),
            "spread (s)": f"{min(seconds[name][1:]):.3f} to {max(seconds[name][1:]):.3f}",
            "x classical": round(median / medians["classical control"], 1),
            "images timed": images[name],
        }
        for name, median in medians.items()
    ]
    print(f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"{len(splits.train)} images of 8x8, forward and backward, medians of {asked.rounds} rounds")
    print(pd.DataFrame(rows).set_index("net").to_string())


if __name__ == "__main__":
    main()
