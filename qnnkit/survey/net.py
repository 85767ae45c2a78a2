"""What a recipe's own net takes on this machine, by device and precision: time of an update, and memory."""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from qnnkit import data, measure, models, recipes, train
from qnnkit import device as devices
from qnnkit.data import Splits
from qnnkit.device import machine
from qnnkit.measure import placement
from qnnkit.models import features
from qnnkit.settings import Settings
from qnnkit.survey import apart, samples, words
from qnnkit.survey.clock import Budget, spread, times_of
from qnnkit.survey.form import Net, Times
from qnnkit.survey.platform import PRECISIONS

WARMUP, LEAST, MOST = 2, 3, 100
"""Updates that warm up; that are timed, at least and at most."""
KINDS = (data.Images, data.Captions, data.Text, data.Music)
DECIDING = ("batch_size", "optimizer", "micro_batch", "precision", "augmentation", "gradient_checkpointing")
"""Settings of a training that its speed depends on."""
FAMILIES = {kind: name for name, (_, kind) in models.MODELS.items()}
FAMILIES |= {models.ClipSettings: "clip", models.LanguageModelSettings: "causal_lm"}
USUAL = "quanv"
"""The family that goes without saying in a machine's file."""


def measured(
    config: Settings,
    splits: Splits,
    seconds: float,
    *,
    n_samples: int | None = None,
    quick: bool = False,
) -> Net:
    """Forward, backward, optimizer, seconds per epoch and peak memory of the recipe's net.

    Each device and precision has a process of its own, so that no other's memory counts. A float16 scaler is
    left out.

    Args:
        config: The recipe.
        splits: Its data.
        seconds: For all of it, about; not counted if quick.
        n_samples: In an epoch; those of the training split without it.
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
    size = config.batch_size
    sample = samples.of(splits, size, n_samples)
    kind: Any = "captions" if "tokenizer" in splits.sizes else "tokens" if sample.n_tokens else "images"
    question = {
        "recipe": recipes.of(config).reference,
        "config": config.model_dump(mode="json"),
        "seconds": 0.0 if quick else seconds / (5 * len(asked)),
    }
    with tempfile.TemporaryDirectory() as folder:
        samples.write(sample, Path(folder))
        for device, precision in asked:
            row = {"device": str(device), "precision": precision}
            over_threads = not quick and row == {"device": "cpu", "precision": PRECISIONS[0]}
            question |= {**row, "sample": folder, "over_threads": over_threads}
            if quick or budget.left > apart.START:
                timeout = max(apart.PATIENCE, 0.0 if quick else budget.left)
                rows.append(row | apart.ask("net", question, timeout=timeout))
            else:
                rows.append(row | {"why": "The time was up."})
    net = Net(
        recipe=config.title,
        kind=kind,
        digest=_digest(config, sample.sizes, sample.n_samples),
        batch_size=size,
        micro_batch=config.micro_batch,
        n_samples=sample.n_samples,
        data_bytes=sample.data_bytes,
        settings=rows,
        sentences=[*_fastest(rows), *_memory(rows), *_on_threads(config.threads, rows)],
    )
    for row in rows:
        for name in ("n_weights", "n_trained"):
            if name in row:
                net[name] = row.pop(name)
    return net


def _digest(config: Settings, sizes: dict[str, Any], n_samples: int) -> str:
    """Hash (hex) of what an epoch's work depends on; precisions have rows of their own.

    Of the kit's own nets it is as files of earlier versions have it; a recipe of a user's counts whole.
    """
    recipe, kinds = recipes.of(config), type(config).__mro__
    chosen = {*DECIDING, "label_smoothing"} - {"precision"}
    of_data = {name for kind in KINDS for name in kind.model_fields}
    usual = {
        name: field.default for kind in kinds for name, field in getattr(kind, "model_fields", {}).items()
    }
    usual |= {"adapter": None}
    changed = {name: value for name, value in config.model_dump(mode="json").items() if value != usual[name]}
    model = {name: value for name, value in changed.items() if name not in {*Settings.model_fields, *of_data}}
    family = next((FAMILIES[kind] for kind in kinds if kind in FAMILIES), USUAL)
    model |= {} if family == USUAL else {"model": family}
    described = Path(model.get("pretrained") or "") / "config.json"
    if described.is_file():  # a folder has other names on other machines
        model["pretrained"] = hashlib.sha256(described.read_bytes()).hexdigest()
    work = {
        "model": model,
        "training": {name: value for name, value in changed.items() if name in chosen},
        "backend": config.backend,
        **({} if recipe.shipped else {"recipe": recipe.digest}),
        **_told(sizes, n_samples),
    }
    return hashlib.sha256(json.dumps(work, sort_keys=True).encode()).hexdigest()[:16]


def _told(sizes: dict[str, Any], n_samples: int) -> dict[str, Any]:
    """The data, as far as an epoch's work depends on them; of images as files have always told it."""
    if "image_size" in sizes and "n_classes" in sizes:
        return {"images": [sizes["channels"], *sizes["image_size"], sizes["n_classes"], n_samples]}
    plain = {name: value for name, value in sizes.items() if name != "tokenizer"}
    if tokenizer := sizes.get("tokenizer"):
        plain |= {"vocabulary": len(tokenizer), "length": tokenizer.sequence_length}
    return {"data": {**plain, "n_samples": n_samples}}


# --- in a process of its own --------------------------------------------------------------------------------


def here(question: dict[str, Any]) -> dict[str, Any]:
    """The times and the peak of one device and precision, in this process; asked through `apart`."""
    config = recipes.find(question["recipe"]).settings(**question["config"])
    device = torch.device(question["device"])
    training = config.model_copy(update={"precision": question["precision"]})
    sample = samples.read(Path(question["sample"]))
    try:
        with measure.threads(config.threads):
            stepper, batch = stepping(config, training, sample, device)
            found: dict[str, Any] = _times(stepper, batch, device, question["seconds"])
            found["peak_bytes"] = measure.peak_on(device)
            if device.type == "cpu":
                found["threads"] = torch.get_num_threads()
    except (RuntimeError, ValueError, AttributeError, OSError, MemoryError) as error:  # such as no memory
        return {"why": machine.first_line(error)}
    rate = len(sample) / found["update"]["median"]
    found |= {"samples_per_second": rate, "seconds_per_epoch": sample.n_samples / rate}
    if sample.n_tokens:
        found["tokens_per_second"] = rate * sample.n_tokens
    if question["over_threads"]:
        found["over_threads"] = [
            {"threads": n, "seconds": _whole_updates(stepper, batch, n, question["seconds"])}
            for n in placement.thread_counts()
        ]
    weights = list(stepper.model.parameters())
    found["n_weights"] = sum(weight.numel() for weight in weights)
    found["n_trained"] = sum(weight.numel() for weight in weights if weight.requires_grad)
    return found


def stepping(
    config: Settings, training: Settings, sample: samples.Sample, device: torch.device
) -> tuple[train.Stepper, Any]:
    """What takes a training step of the recipe's own net, and the batch that it is given in training.

    Args:
        config: The recipe.
        training: Its training, maybe in another precision.
        sample: Of its data.
        device: Where to compute.
    """
    data_of: Any = sample  # in place of all of them
    model = recipes.made(config, data_of, "", config.seed)
    batch = features.given(model, sample.batch, training, sample.n_all, device)
    task = recipes.of(config).task(config)
    return train.Stepper(model, task, training, recipes.parameter_groups(model, training), device), batch


def _times(stepper: train.Stepper, batch: Any, device: torch.device, seconds: float) -> dict[str, Times]:
    """Of whole updates, and of the parts of others: to look at the clock in between makes a GPU wait."""
    taken: dict[str, list[float]] = {"forward": [], "backward": [], "optimizer": [], "update": []}
    for _ in range(WARMUP):
        stepper(batch)
    measure.reset_peak(device)  # circuits were traced once and for all
    begin = time.perf_counter()
    for n in range(MOST):
        if n >= LEAST and time.perf_counter() - begin > seconds:
            break
        start = _now(device)
        stepper(batch)
        taken["update"].append(_now(device) - start)
        spent = dict.fromkeys(("forward", "backward"), 0.0)
        for compute in stepper.passes(batch):
            start = _now(device)
            loss = compute()
            forward = _now(device)
            stepper.backward(loss)
            spent["forward"] += forward - start
            spent["backward"] += _now(device) - forward
        start = _now(device)
        stepper.update()
        for name, seconds_ in (spent | {"optimizer": _now(device) - start}).items():
            taken[name].append(seconds_)
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


def _memory(rows: list[dict[str, Any]]) -> Iterable[str]:
    """What each device takes at its peak, in the precision that all have."""
    peaks = {
        row["device"]: row["peak_bytes"]
        for row in rows
        if "peak_bytes" in row and row["precision"] == PRECISIONS[0]
    }
    if len(peaks) > 1:
        told = ", ".join(f"{peak / 1e6:,.0f} MB on {device}" for device, peak in peaks.items())
        yield f"Memory at the peak in {PRECISIONS[0]}: {told}."


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
