"""A process that trains one workload in one place, for `placing.py`: asked `set up`, then `round` by round.

The place is fixed (device, backend, threads), or found here by measurement ("auto").
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import recipe, worker, workloads
from qnnkit import QuantumLayer, layers, measure, recipes, runs, train
from qnnkit.data.batches import Batches
from qnnkit.settings import Settings
from qnnkit.tasks import Step

ONE_BY_ONE = ("lightning.qubit", "lightning.gpu")
"""Backends that run one circuit after the other: timed on few of them, and scaled up."""
CIRCUITS = 256
"""That these are timed on, about."""
TRAINED = {"digits_quanv": {}, "ahcd_ten_epochs": {"dataset": "digits", "image_size": 32}}
"""Recipe -> what is exchanged in it where its own data are not here; only the time matters."""


@dataclass(frozen=True)
class Mixture:
    """The loss of `workloads`: how a mixture of the values depends on all angles, inputs included."""

    monitor: str = "loss"

    def __call__(self, model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> Step:
        inputs, mixture = batch
        loss = (model(inputs.clone().requires_grad_()) * mixture).sum()
        return Step(loss, {"loss": loss.detach()}, len(inputs))

    def judge(self, logits: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
        return {}


def set_up(held: dict[str, Any], key: str, quick: bool, place: dict[str, Any]) -> dict[str, Any]:
    """Finds the place or takes the one that is given, and works once."""
    begin = time.perf_counter()
    made = _epoch(key, quick, place) if key in TRAINED else _evaluation(key, quick, place)
    held["round"], found, share = made
    held["share"], held["threads"] = share, found.threads
    with measure.threads(found.threads):
        held["round"]()
    seconds = time.perf_counter() - begin
    n = found.threads or torch.get_num_threads()
    chosen = f"{found.device}, {n} thread{'s' * (n > 1)}"
    return {"chosen": chosen, "share": share, "first_s": seconds}


def _evaluation(
    key: str, quick: bool, place: dict[str, Any]
) -> tuple[Callable[[], float], measure.Placement, float]:
    """A training step of a circuit alone."""
    workload = workloads.find(key, quick=quick)
    data = workload.data()
    qnode, shapes = workload.circuit()
    layer = QuantumLayer(qnode, shapes, {"weights": torch.from_numpy(data.weights)}, backend=place["backend"])
    n = min(CIRCUITS, workload.total) if place["backend"] in ONE_BY_ONE else workload.total
    batch = torch.from_numpy(data.inputs[:n]), torch.from_numpy(data.mixture[:n])
    config, task = Settings(batch_size=n), Mixture()
    found = measure.place(
        layer, task, batch, config, device=place["device"], threads=place["threads"], seconds=place["seconds"]
    )
    stepper = train.Stepper(layer, task, config, device=found.device)

    def step() -> float:
        begin = time.perf_counter()
        stepper(batch)
        measure.synchronize(stepper.device)
        return time.perf_counter() - begin

    return step, found, n / workload.total


def _epoch(
    key: str, quick: bool, place: dict[str, Any]
) -> tuple[Callable[[], float], measure.Placement, float]:
    """A training epoch of a recipe's net, through the run folder and the loop that every run takes."""
    exchanged = dict(TRAINED[key])
    archive = Path(os.environ.get("QNNKIT_TEST_DATA", ""), "ahcd", "ahcd_csv.zip")
    if key.startswith("ahcd") and archive.is_file():
        exchanged = {"data_dir": str(archive)}
    settings = {name: place[name] for name in ("device", "backend", "threads")}
    fraction = {"train_fraction": 0.05} if quick else {}
    own = {"controls": [], "n_seeds": 1, "epochs": 1} | exchanged | settings | fraction
    run = runs.open_run(key, recipe(key), **own)
    found, training = runs.placed(run), run.config
    model = runs.build(run, "hybrid", run.config.seed)
    splits, n = runs.seen_by(run, model, found.device), len(run.splits.train)
    if place["backend"] in ONE_BY_ONE:
        n = max(2, CIRCUITS // layers.circuits_per_image(model, run.splits.train.images[:1]))
    images, labels = splits.train.images[:n], splits.train.labels[:n]
    loaders = {
        "train": Batches(images, labels, training.batch_size, shuffle=True),
        "validation": Batches(images[:2], labels[:2], 2, shuffle=False),
    }
    groups, task = recipes.parameter_groups(model, training), run.task

    def epoch() -> float:
        done = train.fit(model, task, loaders, training, groups=groups, device=found.device)
        return sum(done.seconds)

    return epoch, found, n / len(run.splits.train)


def timed_round(held: dict[str, Any]) -> dict[str, Any]:
    """Seconds of the whole workload; a short one is done again and again, and the median counts."""
    seconds: list[float] = []
    with measure.threads(held["threads"]):
        while sum(seconds) < worker.SHORTEST_ROUND:
            seconds.append(held["round"]())
    return {"seconds": statistics.median(seconds) / held["share"], "spent": sum(seconds)}


if __name__ == "__main__":
    worker.serve({"set up": set_up, "round": timed_round})
