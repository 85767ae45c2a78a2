"""What the planner predicts beside what is then measured: python -m benchmarks.predicting.

Every setting has two fresh processes, one after the other: one predicts its peak memory and its seconds per
epoch, the other trains it for a few epochs with checkpoints, as runs do, and tells what it took; and again,
as often as goes into a minute, since a machine is not equally fast in every minute. Medians over these rounds
are compared. Every setting is kept as JSON in benchmarks/results; once all are, docs/predicted.md and
docs/results/predicted.csv are written. Exit status 1 where a prediction is out of its bounds. Wants a machine
that does nothing else; of AHCD and MNIST it reads QNNKIT_TEST_DATA.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import recipe

ROOT = Path(__file__).resolve().parent.parent
MEMORY, TIME = 0.15, 0.20
"""How far a prediction may be off, as shares of what is measured."""
THREADS = 1
"""Of which no other program on the machine can keep one waiting for the other."""
EPOCHS, MANY = 4, 20
"""Trained, of which the median without the first counts; more where an epoch takes a tenth of a second."""
ROUNDS, BUDGET = 5, 60.0
"""Rounds of a setting at most, and the seconds after which none is begun."""


@dataclass(frozen=True)
class Setting:
    """One training."""

    title: str
    kind: str
    """A recipe, "llama" or "clip"."""
    size: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    samples: int | None = None
    """In an epoch of a language model or CLIP."""
    folder: str = ""
    """Of its data, under QNNKIT_TEST_DATA."""
    epochs: int = EPOCHS

    def workload(self) -> Any:
        from qnnkit import measure

        training = {"epochs": self.epochs, **self.settings}
        if self.kind in measure.sizes():
            return measure.of_transformer(self.kind, self.size, n_samples=self.samples or 1, **training)
        run = self.run(Path("unused"))
        return measure.of_recipe(run.config, run.splits)

    def run(self, folder: Path, device: str = "cpu") -> Any:
        """A run of the recipe's own net alone."""
        from qnnkit import recipes
        from qnnkit.runs import Run

        values = {"epochs": self.epochs, "n_seeds": 1, "threads": THREADS, "device": device, **self.settings}
        if self.folder:
            values["data_dir"] = str(Path(os.environ["QNNKIT_TEST_DATA"]) / self.folder)
        return Run(folder, recipes.settings(recipe(self.kind), **values, controls=()))


AHCD, MNIST = {"folder": "ahcd/ahcd_csv.zip"}, {"folder": "mnist"}
QUARTER, FEW = {"train_fraction": 0.25}, {"train_fraction": 0.03}
SETTINGS = {
    "quanv": Setting("digits_quanv", "digits_quanv", epochs=MANY),
    "quanv-512": Setting(
        "digits_quanv, batch 512", "digits_quanv", settings={"batch_size": 512}, epochs=MANY
    ),
    "quanv-frozen": Setting(
        "digits_quanv, frozen circuit", "digits_quanv", settings={"trainable": False}, epochs=MANY
    ),
    "ahcd": Setting("ahcd_trainable", "ahcd_trainable", settings=QUARTER, **AHCD),
    "ahcd-bf16": Setting(
        "ahcd_trainable, bfloat16", "ahcd_trainable", settings={**QUARTER, "precision": "bfloat16"}, **AHCD
    ),
    "ahcd-4x32": Setting(
        "ahcd_trainable, 4 batches of 32",
        "ahcd_trainable",
        settings={**QUARTER, "batch_size": 128, "micro_batch": 32},
        **AHCD,
    ),
    "ahcd-recomputed": Setting(
        "ahcd_trainable, batch 512, gradient checkpointing",
        "ahcd_trainable",
        settings={**QUARTER, "batch_size": 512, "gradient_checkpointing": True},
        **AHCD,
    ),
    "resnet": Setting("resnet_circuit_trained", "resnet_circuit_trained", settings=FEW, **MNIST),
    "resnet-512": Setting(
        "resnet_circuit_trained, batch 512",
        "resnet_circuit_trained",
        settings={**FEW, "batch_size": 512},
        **MNIST,
    ),
    "resnet-recomputed": Setting(
        "resnet_circuit_trained, batch 512, gradient checkpointing",
        "resnet_circuit_trained",
        settings={**FEW, "batch_size": 512, "gradient_checkpointing": True},
        **MNIST,
    ),
    "clip-tiny": Setting("CLIP tiny, batch 64", "clip", "tiny", {"batch_size": 64}, 1024),
    "clip-small": Setting("CLIP small, batch 32", "clip", "small", {"batch_size": 32}, 320),
    "clip-77m": Setting("CLIP of 77 million, batch 8", "clip", "77m", {"batch_size": 8}, 32),
    "llama-tiny": Setting("Llama tiny, batch 8", "llama", "tiny", {"batch_size": 8}, 160),
    "llama-small": Setting("Llama small, batch 4", "llama", "small", {"batch_size": 4}, 16),
    "llama-medium": Setting("Llama medium, batch 2", "llama", "medium", {"batch_size": 2}, 8),
    "llama-bf16": Setting(
        "Llama small, bfloat16", "llama", "small", {"batch_size": 4, "precision": "bfloat16"}, 48
    ),
    "llama-4x1": Setting(
        "Llama small, 4 batches of 1", "llama", "small", {"batch_size": 4, "micro_batch": 1}, 48
    ),
    "llama-recomputed": Setting(
        "Llama small, batch 8, gradient checkpointing",
        "llama",
        "small",
        {"batch_size": 8, "gradient_checkpointing": True},
        16,
    ),
    "llama-short": Setting(
        "Llama small, 64 tokens", "llama", "small", {"batch_size": 4, "sequence_length": 64}, 160
    ),
    "llama-lora": Setting(
        "Llama medium, LoRA of rank 8", "llama", "medium", {"batch_size": 2, "lora_rank": 8}, 8
    ),
}


def predict(setting: Setting, device: str) -> dict[str, Any]:
    """In a process of its own."""
    from qnnkit import measure

    start = time.perf_counter()
    workload = setting.workload()
    found = measure.predict(workload, device, n_threads=THREADS)
    return found.as_dict() | {"took": time.perf_counter() - start}


def train(setting: Setting, device: str) -> dict[str, Any]:
    """In a process of its own: what a training takes, by the path that runs take."""
    import torch

    from qnnkit import measure, runs
    from qnnkit.train import fit

    with tempfile.TemporaryDirectory() as folder, measure.threads(THREADS):
        if setting.kind in measure.sizes():
            workload = setting.workload()
            model = workload.build(workload.training, False)
            n_batches = -(-workload.n_samples // workload.training.batch_size)
            loaders = {
                "train": workload.loader(n_batches),
                "validation": workload.loader(1),
            }
            progress = fit(
                model,
                workload.task,
                loaders,
                workload.training,
                device=device,
                folder=Path(folder),
                identity={"net": "net"},
            )
            seconds = progress.seconds
        else:
            run = setting.run(Path(folder), device)
            list(runs.train_all(run))
            seconds = list(run.epochs()["seconds"])
        return {
            "peak": measure.peak_on(torch.device(device)),
            "seconds": seconds,
            "seconds_per_epoch": statistics.median(seconds[1:]),
        }


def apart(what: str, key: str, device: str) -> dict[str, Any]:
    """What a fresh process found."""
    command = [sys.executable, "-m", "benchmarks.predicting", what, key, "--device", device]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{key}: {what} failed.\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def compared(rounds: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Medians over the rounds of a setting, and how far those of the predictions are off, as shares."""
    found: dict[str, Any] = {"rounds": rounds, "n_weights": rounds[0]["predicted"]["n_weights"]}
    for name in ("peak", "seconds_per_epoch"):
        for which in ("predicted", "measured"):
            found[f"{which}_{name}"] = statistics.median(each[which][name] for each in rounds)
        found[f"{name}_off"] = found[f"predicted_{name}"] / found[f"measured_{name}"] - 1
    return found


def is_within(row: dict[str, Any]) -> bool:
    return abs(row["peak_off"]) <= MEMORY and abs(row["seconds_per_epoch_off"]) <= TIME


def markdown(rows: dict[str, dict[str, Any]], kind: str) -> str:
    """The table, as docs/predicted.md has it."""
    lines = [
        "# Predicted and measured",
        "",
        f"{kind}. {sum(map(is_within, rows.values()))} of {len(rows)} settings lie within {MEMORY:.0%} of "
        f"the peak memory and {TIME:.0%} of the seconds per epoch.",
        "",
        "| setting | weights | predicted (MB) | measured | off "
        "| predicted (s / epoch) | measured | off | rounds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for key, row in rows.items():
        lines.append(
            f"| {SETTINGS[key].title} | {row['n_weights']:,} | {row['predicted_peak'] / 1e6:,.0f} "
            f"| {row['measured_peak'] / 1e6:,.0f} | {_off(row['peak_off'], MEMORY)} "
            f"| {row['predicted_seconds_per_epoch']:.3g} | {row['measured_seconds_per_epoch']:.3g} "
            f"| {_off(row['seconds_per_epoch_off'], TIME)} | {len(row['rounds'])} |"
        )
    lines += [
        "",
        "A fresh process predicts, another one trains with a checkpoint after each epoch; its peak is that",
        "of the whole process, Python and its libraries included, and its epoch the median of all but the",
        "first. Both take turns for about a minute, and medians over these rounds are compared; what is out",
        "of bounds is in bold. Recipes train on their own data (an epoch is a part of it), language models",
        "and CLIP on random tokens, 256 in a sequence unless told. One CPU thread, because on a machine that",
        "others use too, two threads wait for each other now and then, and their times do not repeat. Made",
        "by `python -m benchmarks.predicting`.",
    ]
    return "\n".join(lines) + "\n"


def _off(share: float, bound: float) -> str:
    return f"{share:+.1%}" if abs(share) <= bound else f"**{share:+.1%}**"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=("all", "predict", "train"), default="all")
    parser.add_argument("key", nargs="?", choices=list(SETTINGS), help="for predict and train: the setting")
    parser.add_argument("--only", nargs="*", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--device", default="cpu", help="where it trains: cpu, cuda")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    asked = parser.parse_args()
    if asked.what != "all":
        found = {"predict": predict, "train": train}[asked.what](SETTINGS[asked.key], asked.device)
        print(json.dumps(found))
        return
    from benchmarks import record
    from qnnkit.device import machine

    kept = asked.out / "predicting" / asked.device.replace(":", "-")
    kept.mkdir(parents=True, exist_ok=True)
    for key in asked.only:
        if SETTINGS[key].folder and not os.environ.get("QNNKIT_TEST_DATA"):
            print(f"{key}: left out, its data are in QNNKIT_TEST_DATA", file=sys.stderr)
            continue
        begun, rounds = time.perf_counter(), []
        while not rounds or (len(rounds) < ROUNDS and time.perf_counter() - begun < BUDGET):
            found = {what: apart(what, key, asked.device) for what in ("predict", "train")}
            rounds.append({"predicted": found["predict"], "measured": found["train"]})
        row = compared(rounds)
        (kept / f"{key}.json").write_text(json.dumps(row))
        told = f"{row['measured_peak'] / 1e6:,.0f} MB ({row['peak_off']:+.1%}), "
        told += f"{row['measured_seconds_per_epoch']:.3g} s ({row['seconds_per_epoch_off']:+.1%})"
        print(f"{key}: {told}; {len(rounds)} rounds", file=sys.stderr, flush=True)
    # With --only, the others are as they were measured before.
    files = {key: kept / f"{key}.json" for key in SETTINGS}
    rows = {key: json.loads(file.read_text()) for key, file in files.items() if file.exists()}
    memory_gb = machine.memory()[0] / 1e9
    kind = f"{machine.processor()}, {machine.cores()} cores, {memory_gb:.0f} GB, {time.strftime('%Y-%m-%d')}"
    table = markdown(rows, kind)
    if len(rows) == len(SETTINGS) and asked.device == "cpu":
        record.keep(
            "predicted",
            ({"setting": key, **row, "rounds": len(row["rounds"])} for key, row in rows.items()),
        )
        (ROOT / "docs" / "predicted.md").write_text(table, encoding="utf-8")
    print(table)
    if off := [key for key, row in rows.items() if not is_within(row)]:
        raise SystemExit(f"Out of bounds: {', '.join(off)}.")


if __name__ == "__main__":
    main()
