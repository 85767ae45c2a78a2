"""What adapters are worth on each composer's music over runs and seeds: one run for each composer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qnnkit import checks, stats, workspace
from qnnkit.music.adapters import BASE

if TYPE_CHECKING:
    import pandas as pd

SAME = 1e-4
"""Losses of one base that two runs computed differ by less, relative to themselves."""


@dataclass(frozen=True)
class RunsMatrix:
    """Nats per token of adapters of one kind (rows) on composers' music (columns); lower is better.

    An adapter bears the name of the composer that it was trained on. At a seed it counts as the best on that
    music if its loss is below the base's and below those of all other adapters here, of any seed.

    Example:
        >>> losses = {("base", "bach"): {None: 0.9}, ("bach", "bach"): {0: 0.7, 1: 0.72}}
        >>> matrix = RunsMatrix("lora", ("bach",), ("bach",), losses)
        >>> matrix.is_diagonal, round(matrix.interval("bach", "bach").mean, 2)
        (True, 0.71)
    """

    kind: str
    """What the adapters are: quantum_peft, lora, vera, no_entanglement, ..."""
    adapters: tuple[str, ...]
    """The composers that they were trained on; beside them there is the base."""
    composers: tuple[str, ...]
    nats: Mapping[tuple[str, str], Mapping[int | None, float]]
    """(Adapter or "base", composer) -> seed -> nats per token; the base has no seed, so None."""
    split: str = "test"

    @property
    def rows(self) -> tuple[str, ...]:
        """The base, and the adapters."""
        return (BASE, *self.adapters)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of all adapters together."""
        found = {seed for values in self.nats.values() for seed in values if seed is not None}
        return tuple(sorted(found))

    def interval(self, adapter: str, composer: str) -> stats.Interval:
        """Mean over seeds and its 95 % t-interval."""
        return stats.mean_interval(list(self.nats[adapter, composer].values()))

    def means(self) -> np.ndarray:
        """Of shape (base and adapters, composers)."""
        return np.array([[self.interval(row, each).mean for each in self.composers] for row in self.rows])

    def half_widths(self) -> np.ndarray:
        """Of the intervals, as `means`; NaN for a single seed and for the base."""
        halves = [[self.interval(row, each).half_width for each in self.composers] for row in self.rows]
        return np.where(np.isfinite(halves), halves, np.nan)

    def beaten(self) -> list[tuple[str, int, float, str, float]]:
        """(adapter, seed, its loss, who is better, that one's loss) wherever it is not the best at home."""
        found = []
        for own in self._own:
            rival, least = self._next(own)
            found += [
                (own, seed, value, rival, least)
                for seed, value in self.nats[own, own].items()
                if seed is not None and not value < least
            ]
        return found

    @property
    def is_diagonal(self) -> bool:
        """Whether each adapter is the best on its own composer at all of its seeds."""
        return bool(self._own) and not self.beaten()

    @property
    def sentence(self) -> str:
        """Whether each adapter is the best on its own composer, and at which seeds it is not."""
        if not self._own:
            return f"{self.kind}: no adapter was trained on one of these composers alone."
        told = []
        for own in self._own:
            rival, least = self._next(own)
            told.append(f"{own} {spread(self.interval(own, own))} (next: {rival} {least:.4f})")
        n = len(self.seeds)
        begin = f"{self.kind}, {self.split} pieces, {n} seed{'s' * (n != 1)}:"
        if not (beaten := self.beaten()):
            return f"{begin} each adapter is the best on its own composer at every seed: {', '.join(told)}."
        wrong = [
            f"{own} at seed {seed} ({value:.4f}, {rival} {least:.4f})"
            for own, seed, value, rival, least in beaten
        ]
        return f"{begin} not the best on its own composer is {'; '.join(wrong)}. Means: {', '.join(told)}."

    def table(self) -> pd.DataFrame:
        """As people read it: base and adapters by composer, ± half the width of a 95 % interval."""
        import pandas as pd

        cells = {each: [spread(self.interval(row, each)) for row in self.rows] for each in self.composers}
        return pd.DataFrame({"adapter": list(self.rows), **cells}).set_index("adapter")

    @property
    def _own(self) -> tuple[str, ...]:
        return tuple(name for name in self.adapters if name in self.composers)

    def _next(self, composer: str) -> tuple[str, float]:
        """Who else is best on a composer's music, and how good."""
        others = [
            (value, name)
            for name in self.rows
            if name != composer
            for value in self.nats[name, composer].values()
        ]
        least, name = min(others)
        return name, least


def spread(interval: stats.Interval) -> str:
    """A loss as people read it.

    Example:
        >>> spread(stats.mean_interval([0.7, 0.72])), spread(stats.mean_interval([0.9]))
        ('0.7100 ± 0.1271', '0.9000')
    """
    half = f" ± {interval.half_width:.4f}" if math.isfinite(interval.half_width) else ""
    return f"{interval.mean:.4f}{half}"


def matrix_of_runs(folders: Sequence[str | Path]) -> dict[str, RunsMatrix]:
    """Kind of adapter -> its matrix, from the finished runs of several composers.

    Reads what 04_analyze wrote to each run's result.json. Composers that one of the runs was not judged on
    are left out.

    Args:
        folders: Of finished runs of `music_adapter`, each trained on one composer, on the same base; those
            of one composer with different seeds. A relative one is meant from the workspace.

    Raises:
        FileNotFoundError: A run is not finished.
        ValueError: A run has no losses by composer, stands on another base, or repeats a seed of another.
    """
    if not folders:
        step = "Name the folders of finished music_adapter runs."
        raise ValueError(checks.message("folders", "name one at least", list(folders), step))
    places = [workspace.place(folder) for folder in folders]
    runs = [_rows(place) for place in places]
    first, *others = [dict.fromkeys(row["composer"] for row in rows) for rows in runs]
    composers = tuple(name for name in first if all(name in each for each in others))
    base: dict[tuple[str, str], dict[int | None, float]] = {}
    found: dict[str, dict[tuple[str, str], dict[int | None, float]]] = {}
    for place, rows in zip(places, runs, strict=True):
        trained = " + ".join(dict.fromkeys(row["composer"] for row in rows if row["trained"]))
        for row in rows:
            if row["composer"] not in composers:
                continue
            if row["kind"] == BASE:
                _add_base(base, row, place)
                continue
            values = found.setdefault(row["kind"], {}).setdefault((trained, row["composer"]), {})
            if row["seed"] in values:
                rule = f"hold each seed of {trained} once"
                step = "Leave one of them out, or train it with other seeds."
                raise ValueError(checks.message("folders", rule, f"{place}, seed {row['seed']} again", step))
            values[row["seed"]] = row["nats_per_token"]
    split = runs[0][0]["split"]
    return {
        kind: RunsMatrix(kind, tuple(dict.fromkeys(own for own, _ in nats)), composers, base | nats, split)
        for kind, nats in found.items()
    }


def _rows(place: Path) -> list[dict[str, Any]]:
    result = workspace.read_json(place / "result.json")
    if result is None:
        step = f"Finish it: qnnkit run --run-dir {place}."
        raise FileNotFoundError(checks.message("folders", "hold finished runs", str(place), step))
    rows = result.get("composers")
    if not rows or not any(row["kind"] == BASE for row in rows):
        step = "Leave it out; a run of music_adapter has them from 04_analyze."
        raise ValueError(checks.message("folders", "hold losses by composer beside a base", str(place), step))
    return rows


def _add_base(base: dict[tuple[str, str], dict[int | None, float]], row: dict[str, Any], place: Path) -> None:
    """The base's loss on a composer, which must be the same in all runs."""
    value = row["nats_per_token"]
    [before] = base.setdefault((BASE, row["composer"]), {None: value}).values()
    if abs(value - before) > SAME * before:
        rule = "hold adapters of one base, judged on the same pieces"
        told = f"{place}, whose base has {value:.4f} on {row['composer']} and not {before:.4f}"
        raise ValueError(checks.message("folders", rule, told, "Take runs of the same pretrained model."))
