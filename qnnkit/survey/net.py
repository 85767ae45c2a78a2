"""What a recipe's own net takes on this machine, by device and precision: time of an update, and memory."""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qnnkit import device as devices
from qnnkit import measure, models, placement, runs, train
from qnnkit.config import RunConfig, validate
from qnnkit.data import ImageSplits
from qnnkit.device import machine
from qnnkit.models import features
from qnnkit.placement.decision import DECIDING
from qnnkit.survey import apart, words
from qnnkit.survey.clock import Budget, spread, times_of
from qnnkit.survey.form import Net, Times
from qnnkit.survey.platform import PRECISIONS

WARMUP, LEAST, MOST = 2, 3, 100
"""Updates that warm up; that are timed, at least and at most."""


def measured(
    config: RunConfig,
    splits: ImageSplits,
    seconds: float,
    *,
    n_samples: int | None = None,
    quick: bool = False,
) -> Net:
    """Forward, backward, optimizer, seconds per epoch and peak memory of the recipe's net.

    Each device and precision has a process of its own, so that no other's memory counts. Circuits are not
    compiled, and a float16 scaler is left out.

    Args:
        config: The recipe.
        splits: Its images.
        seconds: For all of it, about; not counted if quick.
        n_samples: Images of an epoch; those of the training split without it.
        quick: Only float32, few updates, and the recipe's own threads.
    """
    budget, usable = Budget(seconds), devices.usable_devices()
    asked = [
        (device, precision)
        for precision in PRECISIONS
        for device in usable
        if (device.type, precision) != ("cpu", "float16")  # as in `placement.devices`: training refuses it
    ]
    asked = asked[: len(usable)] if quick else asked
    rows: list[Any] = []
    size = config.training.batch_size
    n_samples = n_samples or len(splits.train)
    parts = (splits.train, splits.validation, splits.test)
    question = {
        "config": config.model_dump(mode="json"),
        "n_classes": splits.n_classes,
        "n_images": sum(map(len, parts)),
        "n_samples": n_samples,
        "seconds": 0.0 if quick else seconds / (5 * len(asked)),
    }
    with tempfile.TemporaryDirectory() as folder:
        batch = Path(folder) / "batch.npz"
        np.savez(batch, images=splits.train.images[:size].numpy(), labels=splits.train.labels[:size].numpy())
        for device, precision in asked:
            row = {"device": str(device), "precision": precision}
            over_threads = not quick and row == {"device": "cpu", "precision": PRECISIONS[0]}
            question |= {**row, "batch": str(batch), "over_threads": over_threads}
            if quick or budget.left > apart.START:
                timeout = max(apart.PATIENCE, 0.0 if quick else budget.left)
                rows.append(row | apart.ask("net", question, timeout=timeout))
            else:
                rows.append(row | {"why": "The time was up."})
    net = Net(
        recipe=config.recipe,
        digest=_digest(config, splits, n_samples),
        batch_size=size,
        accumulation=config.training.accumulation,
        n_samples=n_samples,
        data_bytes=sum(part.images.nbytes + part.labels.nbytes for part in parts),
        settings=rows,
        sentences=[*_fastest(rows), *_on_threads(config.threads, rows)],
    )
    for row in rows:
        if "n_weights" in row:
            net["n_weights"] = row.pop("n_weights")
    return net


def _digest(config: RunConfig, splits: ImageSplits, n_samples: int) -> str:
    """Hash (hex) of what an epoch's work depends on; precisions have rows of their own."""
    chosen = {*DECIDING, "label_smoothing"} - {"precision"}
    work = {
        "model": config.model.model_dump(mode="json", exclude_defaults=True),
        "training": config.training.model_dump(mode="json", include=chosen, exclude_defaults=True),
        "backend": config.backend,
        "images": [splits.channels, *splits.image_size, splits.n_classes, n_samples],
    }
    return hashlib.sha256(json.dumps(work, sort_keys=True).encode()).hexdigest()[:16]


# --- in a process of its own --------------------------------------------------------------------------------


def here(question: dict[str, Any]) -> dict[str, Any]:
    """The times and the peak of one device and precision, in this process; asked through `apart`."""
    config, device = validate(question["config"]), torch.device(question["device"])
    training = config.training.model_copy(update={"precision": question["precision"]})
    with np.load(question["batch"]) as kept:
        images, labels = torch.from_numpy(kept["images"]), torch.from_numpy(kept["labels"])
    model = models.build(
        config.model,
        channels=images.shape[1],
        image_size=(images.shape[2], images.shape[3]),
        n_classes=question["n_classes"],
        seed=config.seed,
        backend=config.backend,
    )
    try:
        with measure.threads(config.threads):
            images = seen(model, images, config, device, question["n_images"])
            groups = runs.parameter_groups(model, training)
            stepper = train.Stepper(model, runs.task_of(training), training, groups, device)
            batch = (images, labels)
            found: dict[str, Any] = _times(stepper, batch, device, question["seconds"])
            found["peak_bytes"] = measure.peak_on(device)
            if device.type == "cpu":
                found["threads"] = torch.get_num_threads()
    except (RuntimeError, ValueError, AttributeError, MemoryError) as error:  # such as too little memory
        return {"why": machine.first_line(error)}
    rate = len(images) * training.accumulation / found["update"]["median"]
    found |= {"samples_per_second": rate, "seconds_per_epoch": question["n_samples"] / rate}
    if question["over_threads"]:
        found["over_threads"] = [
            {"threads": n, "seconds": _whole_updates(stepper, batch, n, question["seconds"])}
            for n in placement.thread_counts()
        ]
    return found | {"n_weights": sum(weight.numel() for weight in model.parameters())}


def seen(model: nn.Module, images: Tensor, config: RunConfig, device: torch.device, n_images: int) -> Tensor:
    """What a net is given while it trains: the images, or what its frozen part made of them before.

    Args:
        model: The net; moved to `device`.
        images: A batch.
        config: The recipe.
        device: Where to compute.
        n_images: Of the whole dataset: too many features would not be kept.
    """
    if config.training.augmentation != "none":
        return images
    return features.made(model.eval(), images, n_images, device)


def _times(stepper: train.Stepper, batch: Any, device: torch.device, seconds: float) -> dict[str, Times]:
    """Of whole updates, and of the parts of others: to look at the clock in between makes a GPU wait."""
    taken: dict[str, list[float]] = {"forward": [], "backward": [], "optimizer": [], "update": []}
    for _ in range(WARMUP):
        stepper(batch)
    measure.reset_peak(device)  # circuits were traced, and simulators tried, once and for all
    begin = time.perf_counter()
    for n in range(MOST):
        if n >= LEAST and time.perf_counter() - begin > seconds:
            break
        start = _now(device)
        stepper(batch)
        taken["update"].append(_now(device) - start)
        start = _now(device)
        loss = stepper.forward(batch)
        forward = _now(device)
        stepper.backward(loss)
        backward = _now(device)
        stepper.update()
        end = _now(device)
        for name, spent in zip(taken, (forward - start, backward - forward, end - backward), strict=False):
            taken[name].append(spent)
    return {name: times_of(spent) for name, spent in taken.items()}


def _whole_updates(stepper: train.Stepper, batch: Any, threads: int, seconds: float) -> Times:
    with measure.threads(threads):
        return spread(lambda: stepper(batch), stepper.device, seconds=seconds, least=0)


def _now(device: torch.device) -> float:
    measure.synchronize(device)
    return time.perf_counter()


# --- in words -----------------------------------------------------------------------------------------------


def _fastest(rows: list[dict[str, Any]]) -> Iterable[str]:
    times = {
        f"{row['device']} in {row['precision']}": row["seconds_per_epoch"]
        for row in rows
        if "seconds_per_epoch" in row
    }
    if len(times) > 1:
        first, told = words.slower(times)
        yield f"An epoch takes {words.figure(times[first])} s on {first}; {told} as long."


def _on_threads(asked: int | str | None, rows: list[dict[str, Any]]) -> Iterable[str]:
    """On how many threads the CPU's times are, and which number was best.

    Args:
        asked: `threads` of the recipe. Under "auto" training measures which number to take; the survey takes
            torch's own, and says so.
        rows: The settings.
    """
    numbers = {row["threads"] for row in rows if "threads" in row}
    for n in numbers:  # one: every process has the same
        told = f"On the CPU the net was timed on {n} thread{'s' * (n > 1)}, "
        told += "as the recipe asks" if isinstance(asked, int) else "torch's own number"
        if asked == "auto":
            told += "; with threads=auto training measures first how many are best"
        yield f"{told}."
    for row in rows:
        times = {one["threads"]: one["seconds"]["median"] for one in row.get("over_threads", [])}
        if len(times) > 1:
            yield f"An update of the net on the CPU: {words.threads(times)}"
