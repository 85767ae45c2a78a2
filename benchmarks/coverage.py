"""How often intervals contain the truth and verdicts are wrong, over simulated studies.

    python -m benchmarks.coverage          2,000 studies of each kind, three minutes

Prints the table of docs/seeds.md and writes it to docs/results/coverage.csv. A study has two nets of some
seeds on one test split. False positives are verdicts of *better* or *worse* between equal nets, false
equivalents are verdicts of *equivalent* between nets that differ by exactly the margin.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import record
from qnnkit import stats

SEEDS = (2, 3, 5, 10)
SAMPLES = 100
"""Test samples of a simulated study of accuracies."""
Draw = Callable[[np.random.Generator, int, float], tuple[np.ndarray, float]]
"""(generator, seeds, shift of the second net) -> scores of both nets, and the true mean of the first."""


SHARES = {
    "coverage": "interval holds the mean",
    "of_difference": "of the difference",
    "false_positives": "false positives",
    "false_equivalents": "false equivalents",
}
"""Counted share -> the head of its column."""


def accuracy(level: float, spread: float) -> Draw:
    """Shares of SAMPLES test samples; `spread` is how much the chance of a sample differs between seeds.

    Samples differ in difficulty, which all seeds and both nets share, as in a real test split.
    """

    def draw(generator: np.random.Generator, n: int, shift: float) -> tuple[np.ndarray, float]:
        hard = generator.random(SAMPLES) > level  # each sample is right or wrong for an ideal net ...
        flipped = generator.random((2, n, SAMPLES)) < spread  # ... except where a seed changes it
        right = np.where(flipped, generator.random((2, n, SAMPLES)) < level, ~hard)
        scores = right.mean(-1)
        scores[1] += shift
        return scores, level

    return draw


def loss(spread: float) -> Draw:
    """Log-normal losses; `spread` is the standard deviation of their logarithms over seeds."""

    def draw(generator: np.random.Generator, n: int, shift: float) -> tuple[np.ndarray, float]:
        truth = float(np.exp(spread**2 / 2))
        scores = np.exp(spread * generator.standard_normal((2, n)))
        scores[1] += shift
        return scores, truth

    return draw


KINDS: dict[str, tuple[stats.Score, Draw]] = {
    "accuracy 80 %": (stats.ACCURACY, accuracy(0.8, 0.2)),
    "accuracy 97 %": (stats.ACCURACY, accuracy(0.97, 0.2)),
    "accuracy 99.5 %, like seeds": (stats.ACCURACY, accuracy(0.995, 0.02)),
    "loss, spread 3 %": (stats.LOSS, loss(0.03)),
    "loss, spread 30 %": (stats.LOSS, loss(0.3)),
    "loss, spread 100 %": (stats.LOSS, loss(1.0)),
}


def simulate(studies: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """One row per kind of score and number of seeds.

    Rows have shares of studies: `coverage` by the interval of a net's score, `of_difference` by that of a
    difference (an unknown interval covers everything), `false_positives` and `false_equivalents`.
    """
    generator = np.random.default_rng(seed)
    for kind, (score, draw) in KINDS.items():
        for n in SEEDS:
            counts = np.zeros(4)
            for _ in range(studies):
                (ours, theirs), truth = draw(generator, n, 0.0)
                interval = score.interval(ours.tolist(), [SAMPLES] * n)
                [alike] = stats.decide([{"values": ours.tolist(), "others": theirs.tolist()}], score)
                (ours, theirs), _ = draw(generator, n, 0.05)
                margin = 0.05 * score.factor  # exactly their difference
                both = {"values": ours.tolist(), "others": theirs.tolist()}
                [apart] = stats.decide([both], score, margin)
                counts += [
                    not (truth < interval.low or truth > interval.high),  # NaN: unknown
                    not (alike["low"] > 0 or alike["high"] < 0),
                    alike["verdict"] in ("better", "worse"),
                    apart["verdict"] == "equivalent",
                ]
            yield {"score": kind, "seeds": n, **dict(zip(SHARES, counts / studies, strict=True))}


def table(rows: pd.DataFrame) -> str:
    """The recorded rows in Markdown, in percent."""
    lines = (
        [row["score"], str(row["seeds"]), *(f"{100 * row[name]:.1f}" for name in SHARES)]
        for row in rows.to_dict("records")
    )
    return record.markdown(["score", "seeds", *SHARES.values()], lines)


def main(studies: str = "2000") -> None:
    rows = pd.DataFrame(simulate(int(studies))).assign(studies=int(studies))
    record.write(rows, record.RESULTS / "coverage.csv")
    print(table(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
