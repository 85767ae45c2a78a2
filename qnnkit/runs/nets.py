"""From a run's settings to trained nets: the hybrid one and its controls, for every seed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qnnkit import checkpoint, checks, device, layers, models, tasks, train, workspace
from qnnkit.config import TrainingConfig
from qnnkit.models import features
from qnnkit.runs.folder import Run


def build(run: Run, net: str, seed: int) -> nn.Module:
    """An untrained net of the run: "hybrid", or one of the controls, which starts from the same weights.

    Raises:
        ValueError: The run has no such net.
    """
    checks.choice("net", net, run.nets)
    splits, config = run.splits, run.config
    hybrid = models.build(
        config.model,
        channels=splits.channels,
        image_size=splits.image_size,
        n_classes=splits.n_classes,
        seed=seed,
        backend=config.backend,
    )
    if net == "hybrid":
        return hybrid
    with torch.no_grad():
        hybrid(splits.train.images[:1])  # a control asks for the shapes that its circuit has met
    return layers.controls(hybrid, seed=seed)[net]


def task_of(config: TrainingConfig) -> tasks.Task:
    return tasks.Classification(label_smoothing=config.label_smoothing)


def parameter_groups(model: nn.Module, config: TrainingConfig) -> list[train.Group]:
    """The circuit's weights and the classical ones, each with its own step size and clipping."""
    quantum = layers.quantum_parameters(model)
    known = {id(weight) for weight in quantum}
    classical = [weight for weight in model.parameters() if id(weight) not in known]
    return [
        train.Group(
            "quantum", quantum, config.quantum_learning_rate or config.learning_rate, config.quantum_clip_norm
        ),
        train.Group("classical", classical, config.learning_rate, config.clip_norm, config.weight_decay),
    ]


def train_all(run: Run, on_epoch: Callable[[dict[str, Any]], None] | None = None) -> Iterator[dict[str, Any]]:
    """Trains what is not trained yet; yields the final row of each net and seed, finished before or now.

    Args:
        run: The run; rows go to its metrics.jsonl, checkpoints to its folder.
        on_epoch: Called after every epoch with its row.
    """
    run.note_provenance(data=run.splits.fingerprint(), device=str(device.choose(run.config.device)))
    finished = {(row["net"], row["seed"]): row for row in run.rows("metrics") if row["event"] == "test"}
    for seed in run.seeds:
        for net in run.nets:
            yield finished.get((net, seed)) or _train(run, net, seed, on_epoch or (lambda row: None))


def trained(run: Run, net: str = "hybrid", seed: int | None = None) -> nn.Module:
    """A net of the run at its best epoch.

    Raises:
        FileNotFoundError: It has not been trained yet.
    """
    seed = run.config.seed if seed is None else seed
    path = run.checkpoints(net, seed) / "best.safetensors"
    if not path.exists():
        raise FileNotFoundError(
            f"Net {net} of seed {seed} must be trained first: run 03_train on {run.folder}."
        )
    model = build(run, net, seed)
    checkpoint.load_checkpoint(path, model)
    return model.eval()


@contextlib.contextmanager
def _threads(number: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _compile(
    model: nn.Module, example: Tensor, loaders: dict[str, Any], config: TrainingConfig, folder: Path
) -> None:
    """Compiles circuits where the run is long enough; resumed, it keeps to what was decided, bit for bit."""
    path = folder / "compiled.json"
    if not path.exists():
        model.to(example.device)
        names = layers.worth_compiling(model, example, config.epochs * len(loaders["train"]))
        workspace.write_json(path, names)
    for name in json.loads(path.read_text()):
        model.get_submodule(name).compile()


def _train(run: Run, net: str, seed: int, on_epoch: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    config, place = run.config.training, device.choose(run.config.device)
    model, task = build(run, net, seed), task_of(config)
    folder = workspace.make_folder(run.checkpoints(net, seed))
    if (folder / "last.safetensors").exists():
        checkpoint.load_checkpoint(folder / "last.safetensors", model)  # frozen weights count from here on

    def log(row: dict[str, Any]) -> None:
        row = {"event": "epoch", "net": net, "seed": seed, **row}
        run.log("metrics", row)
        on_epoch(row)

    with _threads(run.config.threads):
        splits = features.of(model, run.splits, place)
        loaders = {
            split: splits.batches(split, config.batch_size, shuffle=split == "train", seed=seed)
            for split in ("train", "validation", "test")
        }
        _compile(model, splits.train.images[: config.batch_size].to(place), loaders, config, folder)
        progress = train.fit(
            model,
            task,
            {name: loaders[name] for name in ("train", "validation")},
            config,
            groups=parameter_groups(model, config),
            device=place,
            seed=seed,
            folder=folder,
            log=log,
        )
        test = train.evaluate(model, task, loaders["test"], place)
    final = {
        "event": "test",
        "net": net,
        "seed": seed,
        "best_epoch": progress.best_epoch,
        "validation_accuracy": progress.best_score[0],
        **{f"test_{name}": value for name, value in test.items()},
        **layers.count_parameters(model),
        "seconds_per_epoch": progress.seconds_per_epoch,
    }
    run.log("metrics", final)
    return final
