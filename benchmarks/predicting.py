"""The planner's predictions compared with measurements: python -m benchmarks.predicting.

Every setting has two fresh processes, one after the other: one predicts peak memory and seconds per epoch,
the other trains a few epochs with checkpoints, as runs do, and measures both. Rounds repeat for half a
minute, because the speed of a machine varies, and medians over the rounds are compared. All takes a quarter
of an hour; it writes docs/results/predicted.csv and prints the tables of docs/predicted.md. With --only and
without --out it prints those settings and writes nothing. Exit status 1 if a prediction is out of its
bounds. Needs an otherwise idle machine, and QNNKIT_TEST_DATA with AHCD and MNIST.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import textwrap
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from benchmarks import recipe, record
from qnnkit import adapters, measure, recipes, runs
from qnnkit.device import machine
from qnnkit.models.blocks import seeded
from qnnkit.models.causal_lm import llama_config
from qnnkit.models.clip import configuration as clip_config
from qnnkit.runs import Run
from qnnkit.settings import Settings
from qnnkit.tasks import Step
from qnnkit.train import fit

MEMORY, TIME = 0.15, 0.20
"""Largest errors of a prediction, as shares of the measured value."""
THREADS = 1
"""With one thread, other programs cannot make threads wait for each other."""
EPOCHS, MANY = 4, 20
"""Trained epochs; the median without the first counts. More if an epoch takes a tenth of a second."""
ROUNDS, BUDGET, LONGEST = 3, 25.0, 3600.0
"""Largest number of rounds per setting, seconds after which none starts, and time limit of a process."""


@dataclass(frozen=True)
class Setting:
    """A training to predict and to measure."""

    kind: str
    """A recipe, "llama" or "clip"."""
    settings: dict[str, Any] = field(default_factory=dict)
    size: str = ""
    samples: int = 1
    """Samples per epoch of a language model or CLIP."""
    folder: str = ""
    """Folder of its data, under QNNKIT_TEST_DATA."""
    epochs: int = EPOCHS

    def workload(self) -> measure.Workload:
        if self.size:
            return transformer(self.kind, self.size, self.samples, epochs=self.epochs, **self.settings)
        run = self.run(Path("unused"))
        return measure.of_recipe(run.config, run.splits)

    def run(self, folder: Path, device: str = "cpu") -> Any:
        """A run of the recipe's hybrid net only."""
        values = {"epochs": self.epochs, "n_seeds": 1, "threads": THREADS, "device": device, **self.settings}
        if self.folder:
            values["data_dir"] = str(Path(os.environ["QNNKIT_TEST_DATA"]) / self.folder)
        return Run(folder, recipes.settings(recipe(self.kind), **values, controls=()))


class Sized(Settings):
    """Settings of a transformers model without a recipe."""

    batch_size: int = 8
    optimizer: str = "adamw"
    sequence_length: int = 256
    lora_rank: int | None = None


@dataclass(frozen=True)
class OwnLoss:
    """The loss that a transformers model computes itself."""

    asked: dict[str, Any]
    monitor: str = "loss"

    def __call__(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> Step:
        loss, count = model(**batch, **self.asked).loss, len(batch["input_ids"])
        return Step(loss, {"loss": count * loss.detach()}, count)


def transformer(kind: str, size: str, samples: int, **settings: Any) -> measure.Workload:
    """A Llama or a CLIP of a named size on random tokens; built without weights in memory for a trace."""
    from transformers import AutoModelForCausalLM, CLIPModel

    is_clip = kind == "clip"
    config = clip_config(size) if is_clip else llama_config(size)
    text = config.text_config if is_clip else config
    config.use_cache = False

    def build(training: Any, traced: bool) -> nn.Module:
        with seeded(0):
            model: Any = CLIPModel(config) if is_clip else AutoModelForCausalLM.from_config(config)
            targets = ["q_proj", "v_proj"] if is_clip else None  # PEFT knows those of a Llama
            rank = training.lora_rank
            return adapters.adapt(model, r=rank, targets=targets) if rank else model

    def rows(training: Any) -> dict[str, torch.Tensor]:
        generator, shape = torch.Generator().manual_seed(0), (64, training.sequence_length)
        tokens = torch.randint(0, text.vocab_size, shape, generator=generator)
        if not is_clip:
            return {"input_ids": tokens, "labels": tokens}
        side = config.vision_config.image_size
        return {
            "input_ids": tokens,
            "pixel_values": torch.zeros(64, config.vision_config.num_channels, side, side),
        }

    length = {"sequence_length": text.max_position_embeddings} if is_clip else {}
    training = Sized.of(length | settings)
    return measure.Workload(
        kind, training, samples, build, rows, OwnLoss({"return_loss": True} if is_clip else {})
    )


AGAIN = {"gradient_checkpointing": True}
digits = partial(Setting, "digits_quanv", epochs=MANY)


def ahcd(**settings: Any) -> Setting:
    return Setting("ahcd_trainable", {"train_fraction": 0.25, **settings}, folder="ahcd/ahcd_csv.zip")


def resnet(**settings: Any) -> Setting:
    return Setting("resnet_circuit_trained", {"train_fraction": 0.03, **settings}, folder="mnist")


def sized(kind: str, size: str, samples: int, **settings: Any) -> Setting:
    return Setting(kind, settings, size, samples)


clip, llama = partial(sized, "clip"), partial(sized, "llama")
SETTINGS = {
    "digits_quanv": digits(),
    "digits_quanv, batch 512": digits({"batch_size": 512}),
    "digits_quanv, frozen circuit": digits({"trainable": False}),
    "ahcd_trainable": ahcd(),
    "ahcd_trainable, bfloat16": ahcd(precision="bfloat16"),
    "ahcd_trainable, 4 batches of 32": ahcd(batch_size=128, micro_batch=32),
    "ahcd_trainable, batch 512, gradient checkpointing": ahcd(batch_size=512, **AGAIN),
    "resnet_circuit_trained": resnet(),
    "resnet_circuit_trained, batch 512": resnet(batch_size=512),
    "resnet_circuit_trained, batch 512, gradient checkpointing": resnet(batch_size=512, **AGAIN),
    "CLIP tiny, batch 64": clip("tiny", 1024, batch_size=64),
    "CLIP small, batch 32": clip("small", 128, batch_size=32),
    "CLIP of 77 million, batch 8": clip("77m", 16, batch_size=8),
    "Llama tiny, batch 8": llama("tiny", 64, batch_size=8),
    "Llama small, batch 4": llama("small", 16, batch_size=4),
    "Llama medium, batch 2": llama("medium", 4, batch_size=2),
    "Llama small, bfloat16": llama("small", 16, batch_size=4, precision="bfloat16"),
    "Llama small, 4 batches of 1": llama("small", 16, batch_size=4, micro_batch=1),
    "Llama small, batch 8, gradient checkpointing": llama("small", 16, batch_size=8, **AGAIN),
    "Llama small, 64 tokens": llama("small", 64, batch_size=4, sequence_length=64),
    "Llama medium, LoRA of rank 8": llama("medium", 4, batch_size=2, lora_rank=8),
}


def predict(setting: Setting, device: str) -> dict[str, Any]:
    """Predicts, in a separate process."""
    result = measure.predict(setting.workload(), device, n_threads=THREADS)
    return {name: getattr(result, name) for name in ("n_weights", "peak", "seconds_per_epoch")}


def train(setting: Setting, device: str) -> dict[str, Any]:
    """In a separate process: the cost of a training, on the same path as runs."""
    with tempfile.TemporaryDirectory() as folder, measure.threads(THREADS):
        if setting.size:
            workload = setting.workload()
            model, task, config = workload.build(workload.training, False), workload.task, workload.training
            n_batches = -(-workload.n_samples // config.batch_size)
            loaders = {"train": workload.loader(n_batches), "validation": workload.loader(1)}
            about = {"device": device, "folder": Path(folder), "identity": {"net": "net"}}
            seconds = fit(model, task, loaders, config, **about).seconds
        else:
            run = setting.run(Path(folder), device)
            list(runs.train_all(run))
            seconds = list(runs.frame(run, "epoch")["seconds"])
        peak = measure.peak_on(torch.device(device))
        return {"peak": peak, "seconds_per_epoch": statistics.median(seconds[1:])}


def apart(what: str, name: str, device: str) -> dict[str, Any]:
    """The results of a fresh process.

    Raises:
        RuntimeError: It failed.
    """
    code = "import json, sys; from benchmarks import predicting as p; what, name, device = sys.argv[1:]; "
    code += "print(json.dumps(getattr(p, what)(p.SETTINGS[name], device)))"
    done = machine.apart(code, what, name, device, timeout=LONGEST)
    if done.returncode:
        raise RuntimeError(f"{name}: {what} failed.\n{done.stderr.decode(errors='replace')}")
    return json.loads(done.stdout.splitlines()[-1])


def rounds(name: str, device: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Predictions and measurements, as many rounds as the time allows."""
    begun, results = time.perf_counter(), []
    while not results or (len(results) < ROUNDS and time.perf_counter() - begun < BUDGET):
        results.append((apart("predict", name, device), apart("train", name, device)))
    return results


def compared(name: str, results: list[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
    """A row: medians over the rounds of a setting, and how far the predictions are off, as shares."""
    row: dict[str, Any] = {"setting": name, "weights": results[0][0]["n_weights"], "rounds": len(results)}
    for what, unit, scale in (("peak", "mb", 1e6), ("seconds_per_epoch", "s", 1)):
        predicted, measured = (statistics.median(each[i][what] / scale for each in results) for i in (0, 1))
        row |= {f"predicted_{unit}": predicted, f"measured_{unit}": measured}
        row[f"off_{unit}"] = predicted / measured - 1
    return row


def within(table: pd.DataFrame) -> pd.Series:
    """The rows that are within both bounds."""
    return (table["off_mb"].abs() <= MEMORY) & (table["off_s"].abs() <= TIME)


def page(table: pd.DataFrame) -> str:
    """The tables of docs/results/predicted.csv in docs/predicted.md."""
    kinds = "; ".join(dict.fromkeys(f"{row.machine}, {row.date}" for row in table.itertuples()))
    text = f"{within(table).sum()} of {len(table)} settings lie within {MEMORY:.0%} of the peak memory and "
    head = ["setting", "weights", "predicted (MB)", "measured", "off", "predicted (s / epoch)", "measured"]
    rows = (
        [
            *(row.setting, f"{row.weights:,}", f"{row.predicted_mb:,.0f}", f"{row.measured_mb:,.0f}"),
            *(_off(row.off_mb, MEMORY), f"{row.predicted_s:.3g}", f"{row.measured_s:.3g}"),
            *(_off(row.off_s, TIME), str(row.rounds)),
        ]
        for row in table.itertuples()
    )
    shown = record.markdown([*head, "off", "rounds"], rows)
    first = textwrap.fill(f"{kinds}. {text}{TIME:.0%} of the seconds per epoch.", 100)
    return f"{first}\n\n{shown}"


def _off(share: float, bound: float) -> str:
    return f"{share:+.1%}" if abs(share) <= bound else f"**{share:+.1%}**"


def main() -> None:
    parser = record.parser(__doc__)
    record.names(parser, "--only", SETTINGS)
    parser.add_argument("--device", default="cpu", help="where it trains: cpu, cuda")
    asked = parser.parse_args()
    record.say_if_busy()
    rows, failed = [], []
    for name in asked.only:
        try:
            rows.append(row := compared(name, rounds(name, asked.device)))
        except RuntimeError as error:
            failed.append(str(error))
            continue
        print(f"{name}: {row['off_mb']:+.1%} memory, {row['off_s']:+.1%} time", file=sys.stderr, flush=True)
    table = pd.DataFrame(rows)
    if rows and (asked.out != record.RESULTS or (len(rows), asked.device) == (len(SETTINGS), "cpu")):
        record.keep("predicted", rows, asked.out, threads=THREADS)
        print(page(pd.read_csv(asked.out / "predicted.csv")))
    else:
        print(table.to_string(index=False, float_format="%.4g"))
    failed += [f"Out of bounds: {name}." for name in table["setting"][~within(table)]] if rows else []
    record.finish(failed)


if __name__ == "__main__":
    main()
