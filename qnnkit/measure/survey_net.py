"""What a recipe's own net takes on this machine, by device and precision: seconds, and memory at the peak."""

from __future__ import annotations

import hashlib
import json
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from qnnkit import checks, data, recipes, words
from qnnkit import device as devices
from qnnkit.device import machine
from qnnkit.measure import clock, held
from qnnkit.measure.device_figures import Row, row, timed
from qnnkit.measure.parts import step_parts
from qnnkit.measure.placement import place
from qnnkit.measure.workload import Sample, of_recipe
from qnnkit.settings import Settings
from qnnkit.train import PRECISIONS

CODE = "from qnnkit.measure import survey_net; survey_net.answer()"
START, PATIENCE = 5.0, 60.0
"""Seconds that a process takes before it measures, on two cores at rest, and that it has in any case."""
WARMUP = 2
USED = ("batch_size", "optimizer", "micro_batch", "augmentation", "gradient_checkpointing", "backend")
"""Settings of a training that its speed depends on, beside the precision and a recipe's own."""


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
    found = measure(pickle.load(sys.stdin.buffer))
    Path(sys.argv[1]).write_text(json.dumps(found))


def measure(question: dict[str, Any]) -> list[Row] | str:
    """The rows of one device and precision, measured in this process."""
    device, seconds, precision = torch.device(question["device"]), question["seconds"], question["precision"]
    config = recipes.find(question["recipe"]).settings(**question["config"])
    config = config.model_copy(update={"precision": precision})
    threads = None if question["quick"] and config.threads == "auto" else config.threads
    try:
        workload = of_recipe(config, question["sample"])
        stepper, batch = workload.stepper(device), workload.batch()
        size = min(config.batch_size, workload.n_samples)
        for _ in range(WARMUP):
            stepper(batch)
        held.reset_peak(device)  # circuits were traced once and for all
        stepper(batch)
        peak = held.peak_on(device)
        placed = place(
            stepper.model, stepper.task, batch, config, device=question["device"], threads=threads,
            groups=lambda model: recipes.parameter_groups(model, config), seconds=seconds / 4,
        )  # fmt: skip
        with clock.threads(placed.threads):
            times = clock.spread(lambda: stepper(batch), device, seconds=seconds / 2, most=100)
            about: dict[str, Any] = {"precision": precision}
            about |= {"threads": torch.get_num_threads()} if device.type == "cpu" else {}
        parts = step_parts(
            stepper.model, stepper.task, [batch], config, device,
            steps=3, warmup=1, seconds=seconds / 4, threads=placed.threads,
        )  # fmt: skip
    except (RuntimeError, ValueError, AttributeError, OSError, MemoryError) as error:  # such as no memory
        return words.error_line(error)
    weights = list(stepper.model.parameters())
    n = {"n_weights": sum(weight.numel() for weight in weights)}
    n["n_trained"] = sum(weight.numel() for weight in weights if weight.requires_grad)
    rows = [timed("net update", device, times, 1, "s", **about)]
    rows.append(timed("net epoch", device, times, size / workload.n_samples, "s", **about))
    rows.append(timed("net samples", device, times, size, "1/s", **about))
    if tokens := question["sample"].n_tokens:
        rows.append(timed("net tokens", device, times, size * tokens, "1/s", **about))
    rows.append(row("net memory", device, peak, "B", **about, **n))
    rows += [
        row(f"net {part['name']}", device, part["seconds"], "s", **about)
        for part in parts
        if part["seconds"] > 0 and part["name"] not in ("loading", "transfer", "rest")
    ]
    for one in placed.rows:
        update = one["samples_per_second"] and size / one["samples_per_second"]
        rows.append(row("net update on threads", device, update, "s", **about | {"threads": one["threads"]}))
    return rows
