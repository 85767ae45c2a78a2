"""What a run's `gradients.jsonl` holds, as arrays that can be drawn."""

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


@dataclass(frozen=True)
class Series:
    """The statistics of one layer, or of one group of weights, over a training.

    Arrays over steps have shape (steps,), those over epochs (epochs,); NaN stands where nothing is known.
    """

    name: str
    group: str
    """"quantum", "stand_in" or "classical"; a group's own name."""
    n_weights: int
    steps: np.ndarray
    """The observed optimizer updates, counted from 1 over the whole training."""
    norm: np.ndarray
    """Over steps: Euclidean norm of the gradient, unscaled and before clipping."""
    mean: np.ndarray
    """Over steps: mean absolute gradient of a single weight."""
    share: np.ndarray
    """Over steps: part of the squared norm of all weights' gradient."""
    ratio: np.ndarray
    """Over steps: norm of the update by norm of the weights."""
    epochs: np.ndarray
    snr: np.ndarray
    """Over epochs: signal-to-noise ratio of one step's gradient."""
    snr_low: np.ndarray
    snr_high: np.ndarray
    """Ends of its 95 % interval."""
    clip_norm: float | None = None
    """Of a group: largest norm that clipping lets through; None does not clip."""
    norm_clipped: np.ndarray | None = None
    """Over steps, of a group that is clipped: the norm after clipping."""
    clipped: np.ndarray | None = None
    """Over epochs, likewise: share of the observed steps that clipping shortened."""


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
    def missing(self) -> list[int]:
        """Epochs before the last one that the file does not hold."""
        return sorted(set(range(1, self.epochs[-1] + 1)) - set(self.epochs))

    @property
    def updates(self) -> int:
        """Optimizer steps of an epoch."""
        return self.rows[-1]["updates"]

    @property
    def layers(self) -> list[str]:
        return _names(self.rows, "layer")

    @property
    def groups(self) -> list[str]:
        return _names(self.rows, "group")

    @property
    def quantum_layers(self) -> list[str]:
        """Circuits, whose gradients are kept weight by weight."""
        found = [each["layer"] for row in self.rows for each in row["layers"] if "gradient" in each]
        return list(dict.fromkeys(found))

    @property
    def warnings(self) -> list[tuple[int, str]]:
        """(epoch, sentence)."""
        return [(row["epoch"], told) for row in self.rows for told in row["warnings"]]

    def layer(self, name: str) -> Series:
        """Raises ValueError for a layer that the training has not."""
        return _series(self.rows, "layer", checks.choice("layer", name, self.layers))

    def group(self, name: str) -> Series:
        """Raises ValueError for a group that the training has not."""
        return _series(self.rows, "group", checks.choice("group", name, self.groups))

    def steps(self, epoch: int) -> list[int]:
        """The observed steps of an epoch."""
        return list(self._row(epoch)["steps"])

    def gradient(self, layer: str, epoch: int) -> np.ndarray:
        """Gradient of a circuit in one epoch, of shape (steps, weights); up to 512 weights, evenly spaced.

        Raises:
            ValueError: There is no such circuit or epoch.
        """
        checks.choice("layer", layer, self.quantum_layers)
        for each in self._row(epoch)["layers"]:
            if each["layer"] == layer and each.get("gradient"):
                return np.array(each["gradient"], dtype=float)
        return np.zeros((0, 0))

    def gradient_of_every_weight(self, layer: str, epoch: int, n_weights: int) -> np.ndarray:
        """Gradient of a circuit in one epoch, each weight at its place in `gradients.weight_names`.

        Args:
            layer: Name of the circuit.
            epoch: Counted from 1.
            n_weights: Of the whole circuit, with those that training leaves as they are.

        Returns:
            Of shape (steps, n_weights); NaN for frozen weights, and for those that are not kept.

        Raises:
            ValueError: There is no such circuit or epoch, or it has more weights than that.
        """
        kept = self.gradient(layer, epoch)
        found = [each.get("places") for each in self._row(epoch)["layers"] if each["layer"] == layer]
        places = next(iter(found), None) or [*range(kept.shape[1])]
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
    """The gradients of every net and seed of a run: `found["hybrid", 0].group("quantum").norm`."""

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

    @property
    def nets(self) -> list[str]:
        return list(dict.fromkeys(net for net, _ in self.trainings))

    def seeds(self, net: str) -> list[int]:
        """The seeds that a net is recorded for."""
        return [seed for each, seed in self.trainings if each == checks.choice("net", net, self.nets)]

    def frame(self) -> pd.DataFrame:
        """One row per net, seed, observed update and layer, or group of layers (its `layer` is "all")."""
        import pandas as pd

        rows = [
            {"net": net, "seed": seed, "epoch": row["epoch"], "step": step, "layer": "all"}
            | {name: each.get(name) for name in OF_EPOCH}
            | ({"layer": each["layer"]} if "layer" in each else {})
            | {name: each[name][i] for name in OF_SERIES[2:]}
            for (net, seed), training in self.trainings.items()
            for row in training.rows
            for each in (*row["groups"], *row["layers"])
            for i, step in enumerate(row["steps"])
        ]
        numbers = dict.fromkeys(("clipped", *OF_EPOCH[2:], *OF_SERIES[2:]), float)  # None is NaN
        return pd.DataFrame(rows).astype(numbers)

    @property
    def warnings(self) -> list[str]:
        """Every warning, with its net, seed and epochs; one that several epochs gave is told once."""
        found: list[str] = []
        for (net, seed), training in self.trainings.items():
            told: dict[str, list[int]] = {}
            for epoch, sentence in training.warnings:
                told.setdefault(sentence.split(":")[0], []).append(epoch)
            first = {sentence.split(":")[0]: sentence for _, sentence in reversed(training.warnings)}
            for start, epochs in told.items():
                more = f" and {len(epochs) - 1} more" if epochs[1:] else ""
                found.append(f"{net}, seed {seed}, epoch {epochs[0]}{more}: {first[start]}")
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
        if not whole(row):
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


OF_EPOCH = ("group", "n_weights", "snr", "snr_low", "snr_high", "clipped")
OF_SERIES = ("group", "n_weights", "norm", "mean", "share", "ratio")


def whole(row: Mapping[str, Any]) -> bool:
    """Whether an epoch's row holds what is read from it."""
    if not {"epoch", "updates", "steps", "layers", "groups"} <= row.keys():
        return False
    if not all(isinstance(row[what], list) for what in ("steps", "layers", "groups")):
        return False
    parts = [("layer", each) for each in row["layers"]] + [("group", each) for each in row["groups"]]
    return all(
        isinstance(each, Mapping)
        and {kind, *OF_SERIES} <= each.keys()
        and all(len(each[what]) == len(row["steps"]) for what in OF_SERIES[2:])
        for kind, each in parts
    )


def _names(rows: Iterable[Mapping[str, Any]], kind: str) -> list[str]:
    return list(dict.fromkeys(each[kind] for row in rows for each in row[f"{kind}s"]))


def _series(rows: Sequence[Mapping[str, Any]], kind: str, name: str) -> Series:
    """One layer's or group's numbers, epoch after epoch."""
    parts = [(row, each) for row in rows for each in row[f"{kind}s"] if each[kind] == name]
    last = parts[-1][1]
    clip = last.get("clip_norm")

    def over_steps(what: str) -> np.ndarray:
        return _numbers([value for _, each in parts for value in each[what]])

    def over_epochs(what: str) -> np.ndarray:
        return _numbers([each.get(what) for _, each in parts])

    return Series(
        name=name,
        group=last["group"],
        n_weights=last["n_weights"],
        steps=np.array([step for row, _ in parts for step in row["steps"]], dtype=int),
        norm=over_steps("norm"),
        mean=over_steps("mean"),
        share=over_steps("share"),
        ratio=over_steps("ratio"),
        epochs=np.array([row["epoch"] for row, _ in parts], dtype=int),
        snr=over_epochs("snr"),
        snr_low=over_epochs("snr_low"),
        snr_high=over_epochs("snr_high"),
        clip_norm=clip,
        norm_clipped=over_steps("norm_clipped") if clip else None,
        clipped=over_epochs("clipped") if clip else None,
    )


def _numbers(values: Sequence[float | None]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in values], dtype=float)
