"""The accuracy that a run's best trained hybrid net keeps with shots, with noise and on a fake device.

    python -m benchmarks.noisy RUN_DIR benchmarks/recipes/ahcd_trained.py docs/results/noise.csv 256

The best net has the highest validation score of all seeds; the number is the number of test images.
"""

from __future__ import annotations

import sys

import pandas as pd
import torch

import qnnkit
from benchmarks import record
from qnnkit import noise, runs


def rows(run: runs.Run, n_images: int) -> pd.DataFrame:
    """The rows of `noise.robustness` for the net, and which net it is."""
    finals, score = runs.frame(run), f"validation_{run.score.on_validation}"
    hybrid = finals[finals["net"] == run.nets[0]]
    best = hybrid.loc[hybrid[score].idxmax()]
    model, test = runs.trained(run, seed=int(best["seed"])), run.splits.test
    chosen = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))[:n_images]
    device = noise.fake_device(model)
    results = noise.robustness(model, test.images[chosen], test.labels[chosen], device=device)
    about = {"run": run.folder.name, "net": run.nets[0], "seed": int(best["seed"])}
    about |= {"test_accuracy": best["test_accuracy"], "device": device or "no fake device: extra `hardware`"}
    return pd.DataFrame([{**about, **row} for row in results])


def table(frame: pd.DataFrame) -> str:
    """The accuracy under each condition, as a table in Markdown."""
    names = {
        "shots": "shots:",
        "depolarizing": "depolarising noise, p =",
        "readout": "readout errors, p =",
        "device": "{}, shots:",
    }
    lines = []
    for row in frame.itertuples():
        label = f"{names.get(row.condition, row.condition)} {row.strength:g}".removesuffix(" nan")
        ends = (100 * each for each in (row.accuracy, row.low, row.high))
        percent = "{:.1f} ({:.1f} to {:.1f})".format(*ends)
        lines.append([label.format(row.device), percent, f"{row.change:.3f}"])
    return record.markdown(["condition", "accuracy (%)", "mean change of a measured value"], lines)


def main(run_dir: str, recipe: str, path: str, n_images: str = "256") -> None:
    frame = rows(qnnkit.open_run(run_dir, recipe), int(n_images))
    record.write(frame, path)
    print(frame.iloc[:, -8:].round(4).to_string())


if __name__ == "__main__":
    main(*sys.argv[1:])
