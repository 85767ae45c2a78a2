"""Gradients of the loss by weight: of one batch, and as training records them in `gradients.jsonl`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from qnnkit import checks, workspace
from qnnkit.checkpoint import own_generators
from qnnkit.tasks import Task

if TYPE_CHECKING:
    import pandas as pd

NONE_HERE = {
    "rule": "hold gradients of a training",
    "next_step": "Run 03_train with gradient_samples above 0; runs of earlier versions recorded none.",
}
OF_EPOCH = ("snr", "snr_low", "snr_high", "clip_norm")
"""Columns with one value per epoch; `Training.frame` explains all columns."""
OF_STEP = ("norm", "mean", "share", "ratio")
"""Columns with one value per update."""
COLUMNS = ("net", "seed", "epoch", "step", "layer", "group", "n_weights", *OF_EPOCH, *OF_STEP)
"""Columns of a frame, without `clipped`, which is added."""


def of_batch(model: nn.Module, task: Task, batch: Any) -> dict[str, Tensor]:
    """The gradient of the task's loss on one batch, by parameter; frozen ones are omitted.

    A pass in training mode changes running means of normalisation layers and random generators. These are
    restored.

    Args:
        model: A model in training or evaluation mode. It does not change.
        task: Computes the loss.
        batch: Batch in the form that the task takes, on the model's device.

    Returns:
        Gradients by parameter name, in float64 on the CPU; zeros if the loss does not depend on a parameter.
    """
    named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        with own_generators(), torch.enable_grad():
            loss = task(model, batch).loss
            parts: Any = [torch.zeros_like(weight) for weight in named.values()]
            if named and loss.requires_grad:
                parts = torch.autograd.grad(
                    loss, list(named.values()), allow_unused=True, materialize_grads=True
                )
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)
    parts = (part.cpu().to(torch.promote_types(part.dtype, torch.float64)) for part in parts)
    return {name: gradient for name, gradient in zip(named, parts, strict=True)}


@dataclass(frozen=True)
class Training:
    """The epochs of one net and seed; see `History`.

    Attributes:
        net: Name of the net.
        seed: Seed of the training.
        rows: Rows of the epochs, in order, as `Watch` writes them.
    """

    net: str
    seed: int
    rows: Sequence[Mapping[str, Any]]

    @property
    def epochs(self) -> list[int]:
        """Numbers of the recorded epochs, counted from 1."""
        return [row["epoch"] for row in self.rows]

    @property
    def quantum_layers(self) -> list[str]:
        """Names of the circuits, whose gradients are recorded weight by weight."""
        layers = (layer for row in self.rows for layer in row["layers"])
        return list(dict.fromkeys(layer["layer"] for layer in layers if "gradient" in layer))

    def frame(self, layer: str | None = None) -> pd.DataFrame:
        """The rows of `History.frame` of this training, or of one of its layers."""
        return _frame([self], layer)

    def steps(self, epoch: int) -> list[int]:
        """Numbers of an epoch's observed updates, counted from 1 over the whole training."""
        return list(self._row(epoch)["steps"])

    def gradient(self, layer: str, epoch: int, names: Sequence[str]) -> pd.DataFrame:
        """The gradient of a circuit's weights, by name, in one epoch.

        Args:
            layer: Name of the circuit.
            epoch: Number of the epoch, counted from 1.
            names: Names of all weights of the circuit, from `gradients.weight_names`.

        Returns:
            One row per observed update, one column per weight. Frozen weights are NaN, and so are weights
            that are not recorded: of a large circuit, 512 are recorded, evenly spaced.

        Raises:
            ValueError: There is no such circuit or epoch, or it has more weights than names.
        """
        import pandas as pd

        checks.choice("layer", layer, self.quantum_layers)
        row = next((row for row in self._row(epoch)["layers"] if row["layer"] == layer), {})
        recorded = np.array(row.get("gradient") or np.zeros((0, 0)), dtype=float)
        places = row.get("places") or [*range(recorded.shape[1])]
        if places and max(places) >= len(names):
            step = f"Weight {max(places)} of {layer} has a gradient."
            raise ValueError(checks.message("names", "name all weights of the circuit", len(names), step))
        values = np.full((len(recorded), len(names)), np.nan)
        values[:, places] = recorded
        return pd.DataFrame(values, columns=list(names))

    def _row(self, epoch: int) -> Mapping[str, Any]:
        for row in self.rows:
            if row["epoch"] == epoch:
                return row
        rule = f"be recorded for {self.net} of seed {self.seed}"
        raise ValueError(checks.message("epoch", rule, epoch, f"Recorded epochs: {self.epochs}."))


@dataclass(frozen=True)
class History:
    """The gradients of every net and seed of a run: `history["hybrid", 0].frame("quanv.filters.0")`.

    `history[net, seed]` is a `Training`; it raises a ValueError if there is none.

    Attributes:
        trainings: (net, seed) -> its `Training`.
        damaged: Number of lines of the file that could not be read, including a last line that is incomplete.
    """

    trainings: Mapping[tuple[str, int], Training]
    damaged: int = 0

    def __getitem__(self, key: tuple[str, int]) -> Training:
        if key not in self.trainings:
            rule, step = "be a recorded net and seed", f"Recorded: {[*self.trainings]}."
            raise ValueError(checks.message("key", rule, key, step))
        return self.trainings[key]

    def frame(self) -> pd.DataFrame:
        """One row per net, seed, observed update and layer, or group of layers (its `layer` is "all").

        The columns are net, seed, epoch, step (counted from 1 over the training), layer, group, n_weights;
        for each update `norm`, the Euclidean norm of the gradient, unscaled and before clipping; `mean`, the
        mean absolute gradient of a weight; `share` of the squared norm of all weights; `ratio`, the norm of
        the update divided by that of the weights; `clipped`, 1 if it was clipped; for each epoch `snr`, the
        signal-to-noise ratio, with its 95 % interval `snr_low` to `snr_high`; `clip_norm`, the largest norm
        that clipping allows. Unknown values are NaN.
        """
        return _frame(self.trainings.values())

    @property
    def warnings(self) -> list[str]:
        """One sentence per net, seed and kind of fault, with the first epoch that showed it."""
        kinds: dict[tuple[str, int, str], list[tuple[int, str]]] = {}
        for (net, seed), training in self.trainings.items():
            for row in training.rows:
                for sentence in row["warnings"]:
                    kinds.setdefault((net, seed, sentence.split(":")[0]), []).append((row["epoch"], sentence))
        return [
            f"{net}, seed {seed}, epoch {epoch}{f' and {len(others)} more' * bool(others)}: {sentence}"
            for (net, seed, _), [(epoch, sentence), *others] in kinds.items()
        ]


def history(rows: Iterable[Mapping[str, Any]], damaged: int = 0) -> History:
    """The epochs in `rows` by net and seed. An epoch that was computed twice, after a kill, counts once.

    Args:
        rows: Rows of `gradients.jsonl`, from `run.rows("gradients")`, or of a `Watch`. Rows of other events
            are ignored.
        damaged: Number of further rows that could not be read.

    Raises:
        ValueError: There are no epochs.
    """
    epochs_of: dict[tuple[str, int], dict[int, Mapping[str, Any]]] = {}
    for row in rows:
        if row.get("event", "epoch") != "epoch":
            continue
        try:
            _ = row["updates"], [*_tidy(row)]
        except (AttributeError, KeyError, TypeError, ValueError):
            damaged += 1
            continue
        key = row.get("net", "net"), row.get("seed", 0)
        epochs_of.setdefault(key, {})[row["epoch"]] = {"warnings": [], **row}  # the last one counts
    if not epochs_of:
        raise ValueError(checks.message("rows", value="without any epoch", **NONE_HERE))
    trainings = {
        key: Training(*key, [row for _, row in sorted(epochs.items())]) for key, epochs in epochs_of.items()
    }
    return History(trainings, damaged)


def read(path: str | Path) -> History:
    """Reads the gradients of a run's folder, or of a file. Damaged lines are skipped and counted.

    Args:
        path: A run's folder, or its `gradients.jsonl`.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It has no epoch.
    """
    path = Path(path)
    path = path / "gradients.jsonl" if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(checks.message("path", value=str(path), **NONE_HERE))
    content = path.read_bytes()
    rows, damaged = workspace.parse_lines(content)
    incomplete = bool(content.rpartition(b"\n")[2])
    return history(rows, damaged + incomplete)


def _frame(trainings: Iterable[Training], layer: str | None = None) -> pd.DataFrame:
    import pandas as pd

    rows = [
        {"net": training.net, "seed": training.seed, **part}
        for training in trainings
        for row in training.rows
        for part in _tidy(row)
        if layer in (None, part["layer"])
    ]
    frame = pd.DataFrame(rows, columns=list(COLUMNS)).astype(dict.fromkeys((*OF_EPOCH, *OF_STEP), float))
    clip = frame["clip_norm"]
    frame["clipped"] = (frame["norm"] > clip).astype(float).where(clip.notna() & frame["norm"].notna())
    return frame


def _tidy(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Splits an epoch's row into one per observed update and layer, or group of layers."""
    for part in [*row["layers"], *({"layer": "all", **group} for group in row["groups"])]:
        about = {name: part[name] for name in ("layer", "group", "n_weights")} | {"epoch": row["epoch"]}
        about |= {name: part.get(name) for name in OF_EPOCH}
        for step, *values in zip(row["steps"], *(part[name] for name in OF_STEP), strict=True):
            yield about | {"step": step} | dict(zip(OF_STEP, values, strict=True))
