"""One adapter per composer on a base of chorales and folk tunes, and what each is worth on whose music.

    OMP_NUM_THREADS=1 python -m benchmarks.composers

The base is the recipe music_llama on Bach's chorales (JSB) and Nottingham's tunes; the adapters are the
recipe music_adapter on Bach and on Mozart, each with controls of as many weights, from 3 seeds. Only data
and threads are set here. Losses are over test pieces, at most 128 blocks of each composer; settings were
chosen on validation pieces.

Runs lie in the results' folder: what is finished is not trained again, and a killed run goes on. With the
base there, two processes may train at once (--only bach, --only mozart). Printed, and written to
composers.json and composers.png of the results' folder.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import time
from pathlib import Path
from typing import Any

import seaborn as sns
from matplotlib.figure import Figure

from qnnkit import plots, report, runs
from qnnkit.device import machine

FILES = {
    "bach": "jsb-chorales-16th.json",
    "nottingham": "nottingham-16th.json.gz",
    "mozart": "mozart-16th.json",
}
OF_BASE, OF_ADAPTERS = ("bach", "nottingham"), ("bach", "mozart")


def data(folder: Path) -> Path:
    """The three files under their composers' names."""
    place = folder / "data"
    place.mkdir(parents=True, exist_ok=True)
    for name, file in FILES.items():
        to = place / f"{name}{''.join(Path(file).suffixes)}"
        if not to.exists():
            shutil.copyfile(Path(os.environ["QNNKIT_TEST_DATA"]) / "music" / file, to)
    return place


def train(folder: Path, recipe: str, **settings: Any) -> runs.Run:
    """A finished run; one that is there already is left as it is."""
    run = runs.open_run(folder, recipe, **settings)
    if run.result is not None:
        return run
    start = time.perf_counter()
    for final in runs.train_all(run):
        told = f"{final['net']}, seed {final['seed']}, {final['seconds_per_epoch']:.0f} s an epoch"
        print(f"{folder.name}: {told}, validation {final['validation_loss']:.4f}", flush=True)
    report.finish(run)
    run.note_provenance(benchmark_seconds=time.perf_counter() - start)
    return run


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--controls", default="lora", help="beside quantum_peft, such as lora,vera,no_entanglement"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=OF_ADAPTERS, help="train this one alone, and conclude nothing")
    parser.add_argument("--set", action="append", default=[], help="NAME=JSON of the settings, for all runs")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder of the results")
    given = parser.parse_args(words)
    folder = given.out.absolute() / "composers"
    common = {"data_dir": str(data(folder)), "device": "cpu", "threads": 1}
    common |= {name: json.loads(value) for name, _, value in (each.partition("=") for each in given.set)}
    base = train(folder / "base", "music_llama", composers=list(OF_BASE), **common)
    common["pretrained"] = str(base.folder / "model")
    controls = given.controls.split(",")
    found = [
        train(
            folder / name,
            "music_adapter",
            composers=[name],
            n_seeds=given.seeds,
            controls=controls,
            **common,
        )
        for name in OF_ADAPTERS
        if given.only in (None, name)
    ]
    if given.only:
        return
    frame = runs.frame([run.folder for run in found]).explode("composers")
    means, halves = report.by_group(frame, ("net", "composers"))
    weights = {row["net"]: row["quantum"] + row["classical"] for row in found[0].result["nets"]}
    print(f"\nNats per token, mean over {given.seeds} seeds\n{means.round(4)}")
    print(f"\nHalf the width of 95 % intervals\n{halves.round(4)}\n\nWeights: {weights}")
    figure = Figure(figsize=(1.4 * means.shape[1] + 4, 0.5 * len(means) + 1.6), layout="constrained")
    above, bar = means - means.min(), {"label": "nats per token above the best"}
    sns.heatmap(above, annot=means, fmt=".3f", cmap="Blues", cbar_kws=bar, ax=figure.subplots())
    (given.out / "composers.png").write_bytes(plots.as_png(figure))
    written = {
        "machine": {"processor": machine.processor(), "system": platform.system(), "threads": 1},
        "weights": weights,
        "seconds": {run.folder.name: run.provenance.get("benchmark_seconds") for run in (base, *found)},
        "rows": json.loads(frame.to_json(orient="records")),
    }
    (given.out / "composers.json").write_text(json.dumps(written, indent=1))


if __name__ == "__main__":
    main()
