"""What a recipe's own net takes on this machine, by device and precision: seconds, and memory at the peak."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from qnnkit import checks, data, recipes
from qnnkit import device as devices
from qnnkit.data import Splits
from qnnkit.data.splits import SPLITS
from qnnkit.data.tokens import IGNORED
from qnnkit.device import machine
from qnnkit.measure import clock, held
from qnnkit.measure.device_figures import Row, row, timed
from qnnkit.measure.parts import step_parts, training_step
from qnnkit.measure.placement import thread_counts
from qnnkit.settings import Settings
from qnnkit.train import PRECISIONS

CODE = "from qnnkit.measure import survey_net; survey_net.answer()"
START, PATIENCE = 5.0, 60.0
"""Seconds that a process takes before it measures, on two cores at rest, and that it has in any case."""
WARMUP = 2
USED = ("batch_size", "optimizer", "micro_batch", "augmentation", "gradient_checkpointing", "backend")
"""Settings of a training that its speed depends on, beside the precision and a recipe's own."""
USUAL = 1000
"""Samples of an epoch of a dataset that is not there."""


@dataclass(frozen=True)
class Sample:
    """The first batch of a dataset; for `recipes.made` it stands for all of them."""

    batch: Any
    """As the task takes it: (images, labels), or tensors by name."""
    sizes: dict[str, Any]
    """What a net must know of the data."""
    n_samples: int
    """In an epoch."""
    n_all: int
    """Samples of the whole dataset."""

    @classmethod
    def of(cls, splits: Splits, batch_size: int, n_samples: int | None = None) -> Sample:
        """The first training samples, fewer than `batch_size` where there are no more."""
        batch = next(iter(splits.batches("train", batch_size, shuffle=False)))
        n = sum(len(splits.split(name)) for name in SPLITS)
        return cls(batch, splits.sizes, n_samples or len(splits.train), n)

    @classmethod
    def dummy(cls, shape: str, batch_size: int, n_samples: int | None = None) -> Sample:
        """Noise in place of a dataset of labelled images.

        Args:
            shape: Height, width, channels and classes, such as "32x32x1x28".
            batch_size: Samples of the batch.
            n_samples: In an epoch; 1000 by default.

        Raises:
            ValueError: The shape is no such text.

        Example:
            >>> Sample.dummy("32x32x1x28", 2).sizes
            {'channels': 1, 'image_size': (32, 32), 'n_classes': 28}
        """
        if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){3}", shape):
            rule, step = "be height x width x channels x classes", "Use 32x32x1x28."
            raise ValueError(checks.message("dummy", rule, shape, step))
        height, width, channels, n_classes = map(int, shape.split("x"))
        images = torch.randint(
            256, (batch_size, channels, height, width), generator=torch.Generator().manual_seed(0)
        )
        sizes = {"channels": channels, "image_size": (height, width), "n_classes": n_classes}
        batch = images.to(torch.uint8), torch.arange(batch_size) % n_classes
        return cls(batch, sizes, n_samples or USUAL, n_samples or USUAL)

    def __len__(self) -> int:
        """Samples in the batch."""
        return len(next(iter(self.batch.values())) if isinstance(self.batch, dict) else self.batch[0])

    @property
    def noun(self) -> str:
        """What a sample is called."""
        return "pairs" if "tokenizer" in self.sizes else "blocks" if "length" in self.sizes else "samples"

    @property
    def n_tokens(self) -> float | None:
        """Tokens of a sample that are predicted, on average, where samples are sequences."""
        if not isinstance(self.batch, dict) or "length" not in self.sizes:
            return None
        return float((self.batch["labels"][:, 1:] != IGNORED).sum()) / len(self)


def net_rows(config: Settings, sample: Sample, seconds: float, *, quick: bool = False) -> list[Row]:
    """Seconds of an update and of its parts, of an epoch, samples a second and the peak of memory.

    Each device and precision has a process of its own, so that no other's memory counts. On the CPU, where
    the recipe leaves the threads to be measured, the best number of them is taken, as in training.

    Args:
        config: The recipe.
        sample: Of its data.
        seconds: For all of it, about; not counted if quick.
        quick: Only float32, few updates, and torch's own number of threads.
    """
    begin, usable = time.perf_counter(), devices.usable_devices()
    asked = [
        (device, precision)
        for precision in PRECISIONS
        for device in usable
        if (device.type, precision) != ("cpu", "float16")  # as in `placement.devices`: training refuses it
    ]
    asked = asked[: len(usable)] if quick else asked
    rows: list[Row] = []
    for device, precision in asked:
        left = seconds - (time.perf_counter() - begin)
        where: dict[str, Any] = {"device": str(device), "precision": precision}
        if not quick and left < START:
            rows.append(row("net update", value=None, unit="s", **where, why="The time was up."))
            continue
        question = {
            **where,
            "recipe": recipes.of(config).reference,
            "config": config.model_dump(mode="json"),
            "sample": sample,
            "quick": quick,
            "seconds": 0.0 if quick else seconds / (5 * len(asked)),
        }
        found = _ask(question, PATIENCE if quick else max(PATIENCE, left))
        missing = row("net update", value=None, unit="s", **where, why=found)
        rows += [missing] if isinstance(found, str) else found
    return rows


def digest(config: Settings, sample: Sample) -> str:
    """Hash (hex) of what an epoch's work depends on; precisions have rows of their own.

    The recipe's source, its settings but for places and what costs no time, and the data's sizes.
    """
    chosen = config.model_dump(mode="json")
    work = {name: chosen[name] for name in chosen if name in USED or name not in Settings.model_fields}
    for name in type(config).places() if hasattr(type(config), "places") else ():
        described = Path(str(work.pop(name, ""))) / "config.json"  # a folder has other names elsewhere
        if described.is_file():
            work[name] = hashlib.sha256(described.read_bytes()).hexdigest()
    sizes = {name: value for name, value in sample.sizes.items() if name != "tokenizer"}
    if tokenizer := sample.sizes.get("tokenizer"):
        sizes |= {"vocabulary": len(tokenizer), "length": tokenizer.sequence_length}
    work |= {"recipe": recipes.of(config).digest, "data": sizes, "n_samples": sample.n_samples}
    return hashlib.sha256(json.dumps(work, sort_keys=True).encode()).hexdigest()[:16]


def require_images(config: Settings) -> None:
    """Raises ValueError for a recipe whose net does not take labelled images."""
    if isinstance(config, data.Captions | data.Text | data.Music):
        rule, step = "come with a recipe of labelled images", "Use --recipe digits_quanv."
        raise ValueError(checks.message("dummy", rule, config.title, step))


# --- in a process of its own --------------------------------------------------------------------------------


def _ask(question: dict[str, Any], timeout: float) -> list[Row] | str:
    """What is measured in a fresh process; or why it was not, in a sentence.

    What is pickled goes from this process to its own child, and is kept nowhere.
    """
    with tempfile.TemporaryDirectory() as folder:
        answered = Path(folder) / "answer.json"
        try:
            done = machine.apart(CODE, str(answered), timeout=timeout, given=pickle.dumps(question))
        except subprocess.TimeoutExpired:
            return f"It took longer than the {timeout:.0f} s that were left."
        if answered.exists():
            return json.loads(answered.read_text())
    ended, last = machine.ending(done)
    if done.returncode < 0:
        return f"Its process was ended by {ended}, as a system does that runs out of memory."
    return f"Its process ended with {ended} and said: {last[:200] or 'nothing'}"


def answer() -> None:
    """What the fresh process does: reads the question, measures, writes the answer."""
    found = here(pickle.load(sys.stdin.buffer))
    Path(sys.argv[1]).write_text(json.dumps(found))


def here(question: dict[str, Any]) -> list[Row] | str:
    """The rows of one device and precision, measured in this process."""
    device, sample, seconds = torch.device(question["device"]), question["sample"], question["seconds"]
    config = recipes.find(question["recipe"]).settings(**question["config"])
    config = config.model_copy(update={"precision": question["precision"]})
    try:
        stepper, batch = training_step(config, sample, sample.batch, sample.n_all, device)
        for _ in range(WARMUP):
            stepper(batch)
        held.reset_peak(device)  # circuits were traced once and for all
        threads: int | None = config.threads if isinstance(config.threads, int) else None
        laps: dict[int, clock.Lap] = {}
        if device.type == "cpu" and config.threads == "auto" and not question["quick"]:
            steps = {str(n): clock.Step(lambda: stepper(batch), device, n) for n in thread_counts()}
            laps = {int(n): lap for n, lap in clock.race(steps, seconds=seconds / 4).items()}
            threads = int(clock.winner({str(n): lap for n, lap in laps.items()}) or 1)
        with clock.threads(threads):
            times = clock.spread(lambda: stepper(batch), device, seconds=seconds / 2, most=100)
            about: dict[str, Any] = {"precision": question["precision"]}
            about |= {"threads": torch.get_num_threads()} if device.type == "cpu" else {}
        peak = held.peak_on(device)
        weights = list(stepper.model.parameters())
        n = {"n_weights": sum(weight.numel() for weight in weights)}
        n["n_trained"] = sum(weight.numel() for weight in weights if weight.requires_grad)
        parts = step_parts(
            stepper.model, stepper.task, [batch], config, device,
            steps=3, warmup=1, seconds=seconds / 4, threads=threads,
        )  # fmt: skip
    except (RuntimeError, ValueError, AttributeError, OSError, MemoryError) as error:  # such as no memory
        return machine.first_line(error)
    rows = [timed("net update", device, times, 1, "s", **about)]
    epoch = times.scaled(sample.n_samples / len(sample))
    rows.append(timed("net epoch", device, epoch, 1, "s", **about))
    rows.append(timed("net samples", device, times, len(sample), "1/s", **about))
    if sample.n_tokens:
        rows.append(timed("net tokens", device, times, len(sample) * sample.n_tokens, "1/s", **about))
    rows.append(row("net memory", device, peak, "B", **about, **n))
    rows += [
        row(f"net {part['name']}", device, part["seconds"], "s", **about)
        for part in parts
        if part["seconds"] > 0 and part["name"] not in ("loading", "transfer", "rest")
    ]
    raced = {n: {**about, "threads": n} for n in laps}
    return rows + [row("net update on threads", device, laps[n].seconds, "s", **raced[n]) for n in laps]
