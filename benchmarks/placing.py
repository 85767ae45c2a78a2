"""Whether `auto` is fast, compared with fixed choices of device, backend and number of threads.

    python -m benchmarks.placing

Forward, backward and optimizer of circuits (W1, W3, see `workloads.py`), and training steps of two recipes,
scaled to an epoch: choices take turns in one process (`measure.race`). Takes about ten minutes and writes
docs/results/placing.csv. Exit status 1 if `auto` is slower than the slowest fixed choice, or over 10 % slower
than the fastest.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from benchmarks import recipe, record, workloads
from qnnkit import QuantumLayer, layers, measure, recipes
from qnnkit.measure import placement
from qnnkit.runs import Run
from qnnkit.settings import Settings
from qnnkit.tasks import Step

RECIPES = {"digits_quanv": {}, "ahcd_ten_epochs": {"dataset": "digits", "image_size": 32}}
"""Recipe -> settings that replace its data, because only the time matters."""
KEYS = ("W1", "W3-64", "W3-256", *RECIPES)
BACKENDS = ("batched", "default.qubit", "lightning.qubit")
NEAR = 1.1
"""The largest allowed ratio of `auto` to the fastest fixed choice."""
CIRCUITS = 256
"""Approximate number of circuits to time on a backend that runs them one by one."""


@dataclass(frozen=True)
class Mixture:
    """The loss of `workloads`: a mixture of the values, which depends on all angles including the inputs."""

    monitor: str = "loss"

    def __call__(self, model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> Step:
        inputs, mixture = batch
        loss = (model(inputs.clone().requires_grad_()) * mixture).sum()
        return Step(loss, {"loss": loss.detach()}, len(inputs))


def trained(key: str, backend: str, quick: bool) -> measure.Workload:
    """The timed training: of a circuit alone, or of a recipe's net."""
    if key in RECIPES:
        archive = Path(os.environ.get("QNNKIT_TEST_DATA", ""), "ahcd", "ahcd_csv.zip")
        settings: dict[str, Any] = dict(RECIPES[key])
        if key.startswith("ahcd") and archive.is_file():
            settings = {"data_dir": str(archive)}
        settings |= {"train_fraction": 0.05} if quick else {}
        run = Run(Path("unused"), recipes.settings(recipe(key), **settings, backend=backend, controls=[]))
        return measure.of_recipe(run.config, run.splits)
    workload = workloads.find(key, quick=quick)
    inputs, weights, mixture = map(torch.from_numpy, workload.data())
    circuit, config = workload.circuit(), Settings(batch_size=workload.total)

    def build(config: Settings, traced: bool) -> nn.Module:
        return QuantumLayer(*circuit, {"weights": weights}, backend=backend)

    return measure.Workload(key, config, workload.total, build, lambda config: (inputs, mixture), Mixture())


def step(workload: measure.Workload, backend: str, device: str, threads: Any) -> measure.Step:
    """A training step; for backends that run circuits one by one, a step of few samples."""
    stepper, n = workload.stepper(device), min(workload.training.batch_size, workload.n_samples)
    if backend.startswith("lightning"):
        own = workload.example is not None and layers.circuits_per_image(stepper.model, workload.example)
        n = min(n, max(2, CIRCUITS // (own or 1)))
    return measure.Step(partial(stepper, workload.batch(n)), torch.device(device), threads, n)


def called(device: str, n: int) -> str:
    return f"{device}, {n} thread{'s' * (n > 1)}"


def compare(key: str, backends: Sequence[str], seconds: float, quick: bool = False) -> list[dict[str, Any]]:
    """A row per choice: first `auto`, then every fixed one."""
    workload = trained(key, "auto", quick)
    placed = measure.place(workload, seconds=seconds / 6)
    steps = {"auto": step(workload, "auto", placed.device, placed.threads)}
    chosen = {"auto": called(placed.device, placed.threads or torch.get_num_threads())}
    for backend in backends:
        fixed, counts = trained(key, backend, quick), placement.thread_counts()
        for device in placement.devices("auto"):
            for n in counts if device == "cpu" else counts[-1:]:
                steps[f"{backend} on {called(device, n)}"] = step(fixed, backend, device, n)
    laps = measure.race(steps, seconds=seconds)
    return [
        {"workload": key, "choice": name, "chosen": chosen.get(name, ""), "samples": steps[name].samples}
        | {"rounds": lap.rounds, "spread": lap.spread}
        | {"median_ms": math.nan if lap.seconds is None else 1e3 * lap.seconds * workload.n_samples}
        for name, lap in laps.items()
    ]


def against_auto(table: pd.DataFrame) -> Iterator[tuple[Any, pd.Series, pd.Series]]:
    """Each workload, its row of `auto`, and the milliseconds of the fixed choices, fastest first."""
    for key, rows in table.groupby("workload", sort=False):
        rows = rows.set_index("choice")
        yield key, rows.loc["auto"], rows["median_ms"].drop("auto").dropna().sort_values()


def problems(table: pd.DataFrame) -> list[str]:
    """A sentence for each workload on which `auto` is too slow or was not measured."""
    lines = []
    for key, auto, fixed in against_auto(table):
        if fixed.empty or pd.isna(auto["median_ms"]):
            lines.append(f"{key}: there is nothing to compare.")
            continue
        if (ratio := auto["median_ms"] / fixed.iloc[0]) > NEAR:
            lines.append(f"{key}: auto takes {ratio:.2f} times as long as {fixed.index[0]}.")
        if auto["median_ms"] > fixed.iloc[-1]:
            lines.append(f"{key}: auto is slower than {fixed.index[-1]}, the slowest.")
    return lines


def markdown(table: pd.DataFrame) -> str:
    """The table of docs/results/placing.csv in docs/measure.md."""
    head = ["", "`auto` chose", "ms", "fastest fixed choice", "ms", "ratio"]
    lines = []
    for key, auto, fixed in against_auto(table):
        if len(fixed):
            ms, best, name = auto["median_ms"], fixed.iloc[0], fixed.index[0]
            lines.append([key, auto["chosen"], f"{ms:.3g}", name, f"{best:.3g}", f"{ms / best:.2f}"])
    return record.markdown(head, lines)


def main() -> None:
    parser = record.parser(__doc__)
    record.names(parser, "--only", KEYS)
    record.names(parser, "--backends", BACKENDS)
    parser.add_argument("--seconds", type=float, default=60.0, help="of a race, about")
    asked = parser.parse_args()
    record.say_if_busy()
    rows: list[dict[str, Any]] = []
    for key in asked.only:
        begin = time.perf_counter()
        rows += compare(key, asked.backends, asked.seconds, asked.quick)
        print(f"{key} measured in {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
    table = record.keep("placing", rows, asked.out, threads="as named")
    print(f"\n{markdown(table)}\n")
    record.finish(problems(table))
    print("auto is within 10 % of the fastest fixed choice, and not slower than the slowest, on all.")


if __name__ == "__main__":
    main()
