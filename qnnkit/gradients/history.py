"""What a run's `gradients.jsonl` holds: as a table that can be drawn, and weight by weight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qnnkit import checks, workspace

if TYPE_CHECKING:
    import pandas as pd

NONE_HERE = (
    "hold gradients of a training",
    "Run 03_train with gradient_samples above 0; runs of earlier versions recorded none.",
)
OF_EPOCH = ("group", "n_weights", "snr", "snr_low", "snr_high", "clip_norm", "clipped")
"""One value an epoch: of noise the ratio and the ends of its 95 % interval; of clipping the largest norm
that it lets through, and the share of the observed steps that it shortened."""
OF_STEP = ("norm", "mean", "share", "ratio")
"""One value an update: Euclidean norm of the gradient, unscaled and before clipping; mean absolute gradient
of a single weight; part of the squared norm of all weights; norm of the update by norm of the weights."""
COLUMNS = ("net", "seed", "epoch", "step", "layer", *OF_EPOCH, *OF_STEP, "norm_clipped")


@dataclass(frozen=True)
class Training:
    """The epochs of one net and seed; see `History`."""

    net: str
    seed: int
    rows: Sequence[Mapping[str, Any]]
    """One per epoch, in order."""

    @property
    def epochs(self) -> list[int]:
        return [row["epoch"] for row in self.rows]

    @property
    def layers(self) -> list[str]:
        return list(dict.fromkeys(each["layer"] for row in self.rows for each in row["layers"]))

    @property
    def quantum_layers(self) -> list[str]:
        """Circuits, whose gradients are recorded weight by weight."""
        every = (each for row in self.rows for each in row["layers"])
        return list(dict.fromkeys(each["layer"] for each in every if "gradient" in each))

    @property
    def warnings(self) -> list[tuple[int, str]]:
        """(epoch, sentence)."""
        return [(row["epoch"], sentence) for row in self.rows for sentence in row["warnings"]]

    def frame(self, layer: str | None = None) -> pd.DataFrame:
        """The rows of `History.frame` of this training, or of one of its layers."""
        return _frame([self], layer)

    def steps(self, epoch: int) -> list[int]:
        """The observed updates of an epoch, counted from 1 over the whole training."""
        return list(self._row(epoch)["steps"])

    def gradient(self, layer: str, epoch: int, n_weights: int) -> np.ndarray:
        """Gradient of a circuit in one epoch, each weight at its place in `gradients.weight_names`.

        Args:
            layer: Name of the circuit.
            epoch: Counted from 1.
            n_weights: Of the whole circuit, with those that training leaves as they are.

        Returns:
            Of shape (steps, n_weights); NaN for frozen weights, and for those that are not kept: of a large
            circuit 512 are, evenly spaced.

        Raises:
            ValueError: There is no such circuit or epoch, or it has more weights than that.
        """
        checks.choice("layer", layer, self.quantum_layers)
        row = next((each for each in self._row(epoch)["layers"] if each["layer"] == layer), {})
        kept = np.array(row.get("gradient") or np.zeros((0, 0)), dtype=float)
        places = row.get("places") or [*range(kept.shape[1])]
        if places and max(places) >= n_weights:
            step = f"Weight {max(places)} of {layer} has a gradient."
            raise ValueError(checks.message("n_weights", "be all of the circuit's", n_weights, step))
        every = np.full((len(kept), n_weights), np.nan)
        every[:, places] = kept
        return every

    def _row(self, epoch: int) -> Mapping[str, Any]:
        for row in self.rows:
            if row["epoch"] == epoch:
                return row
        rule = f"be recorded for {self.net} of seed {self.seed}"
        raise ValueError(checks.message("epoch", rule, epoch, f"The epochs are {self.epochs}."))


@dataclass(frozen=True)
class History:
    """The gradients of every net and seed of a run: `found["hybrid", 0].frame("quanv.filters.0")`."""

    trainings: Mapping[tuple[str, int], Training]
    damaged: int = 0
    """Lines of the file that could not be read, the last included where it is half written."""

    def __getitem__(self, key: tuple[str, int]) -> Training:
        if key not in self.trainings:
            rule = "be a net and a seed that are recorded"
            raise ValueError(
                checks.message("key", rule, key, f"There are {', '.join(map(str, self.trainings))}.")
            )
        return self.trainings[key]

    def frame(self) -> pd.DataFrame:
        """One row per net, seed, observed update and layer, or group of layers (its `layer` is "all").

        The columns are `COLUMNS`; NaN stands where nothing is known.
        """
        return _frame(self.trainings.values())

    @property
    def warnings(self) -> list[str]:
        """Every warning, with its net, seed and epochs; one that several epochs gave is told once."""
        found: list[str] = []
        for (net, seed), training in self.trainings.items():
            kinds: dict[str, list[tuple[int, str]]] = {}
            for epoch, sentence in training.warnings:
                kinds.setdefault(sentence.split(":")[0], []).append((epoch, sentence))
            for [(epoch, sentence), *others] in kinds.values():
                more = f" and {len(others)} more" if others else ""
                found.append(f"{net}, seed {seed}, epoch {epoch}{more}: {sentence}")
        return found


def history(rows: Iterable[Mapping[str, Any]], damaged: int = 0) -> History:
    """The epochs in `rows`, net by net; one that was computed twice, after a kill, counts once.

    Args:
        rows: Of `gradients.jsonl`, as `run.rows("gradients")` gives them, or of a `Watch`. Rows of another
            event are passed by.
        damaged: How many more could not be read.

    Raises:
        ValueError: There are no epochs.
    """
    found: dict[tuple[str, int], dict[int, Mapping[str, Any]]] = {}
    for row in rows:
        if not isinstance(row, Mapping) or row.get("event", "epoch") != "epoch":
            continue
        if not is_complete(row):
            damaged += 1
            continue
        key = row.get("net", "net"), row.get("seed", 0)
        found.setdefault(key, {})[row["epoch"]] = row  # the last one wins
    if not found:
        rule, step = NONE_HERE
        raise ValueError(checks.message("rows", rule, "without any epoch", step))
    return History(
        {
            key: Training(*key, [{"warnings": [], **epochs[number]} for number in sorted(epochs)])
            for key, epochs in found.items()
        },
        damaged,
    )


def read(path: str | Path) -> History:
    """The gradients in a run's folder, or in a file; damaged lines are left out and counted.

    Args:
        path: A run's folder, or its `gradients.jsonl`.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It holds no epoch.
    """
    path = Path(path)
    path = path / "gradients.jsonl" if path.is_dir() else path
    if not path.is_file():
        rule, step = NONE_HERE
        raise FileNotFoundError(checks.message("path", rule, str(path), step))
    content = path.read_bytes()
    rows, damaged = workspace.parse_lines(content)
    half = bool(content.rpartition(b"\n")[2])
    return history(rows, damaged + half)


def is_complete(row: Mapping[str, Any]) -> bool:
    """Whether an epoch's row holds what is read from it."""
    try:
        _tidy(row)
        return "updates" in row
    except (AttributeError, KeyError, TypeError, ValueError):
        return False


def _frame(trainings: Iterable[Training], layer: str | None = None) -> pd.DataFrame:
    import pandas as pd

    rows = [
        {"net": training.net, "seed": training.seed, **each}
        for training in trainings
        for row in training.rows
        for each in _tidy(row, layer)
    ]
    numbers = dict.fromkeys((*OF_EPOCH[2:], *OF_STEP, "norm_clipped"), float)  # None is NaN
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(numbers)


def _tidy(row: Mapping[str, Any], layer: str | None = None) -> list[dict[str, Any]]:
    """An epoch's row as one per observed update and layer or group, or of one layer."""
    parts = [*((each["layer"], each) for each in row["layers"]), *(("all", each) for each in row["groups"])]
    found, of_step = [], ("step", *OF_STEP, "norm_clipped")
    for name, each in parts:
        if layer in (None, name):
            about = {"epoch": row["epoch"], "layer": name, "group": each["group"]}
            about |= {"n_weights": each["n_weights"]} | {what: each.get(what) for what in OF_EPOCH[2:]}
            clipped = each.get("norm_clipped") or [None] * len(row["steps"])
            values = zip(row["steps"], *(each[what] for what in OF_STEP), clipped, strict=True)
            found += [about | dict(zip(of_step, one, strict=True)) for one in values]
    return found
