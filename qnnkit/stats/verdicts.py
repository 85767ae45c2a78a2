"""What may be said of nets that share their seeds: a row of numbers and a verdict each, and one sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from qnnkit.stats.intervals import ALPHA, holm, judge
from qnnkit.stats.score import Score


def verdicts(
    name: str,
    values: Sequence[float],
    nets: Mapping[str, Sequence[float]],
    score: Score,
    min_difference: float | None = None,
) -> list[dict[str, Any]]:
    """One net next to each of several that share its seeds: a row of numbers and a verdict for each.

    Args:
        name: The net.
        values: Its scores.
        nets: The others by name, each with the scores of the same seeds in the same order.
        score: What they are.
        min_difference: The least difference that matters; see `Score.margin`.

    Returns:
        See `decide`.

    Raises:
        ValueError: Two nets have not as many values as one another, or none, or one is not finite.

    Example:
        >>> from qnnkit.stats import ACCURACY
        >>> rows = verdicts("net", [0.93, 0.95, 0.97], {"a": [0.90, 0.91, 0.92], "b": [0.90] * 3}, ACCURACY)
        >>> [(row["other_net"], row["verdict"], round(row["p_holm"], 3)) for row in rows]
        [('a', 'better', 0.04), ('b', 'better', 0.049)]
    """
    rows = [
        {"net": name, "other_net": other, "found": score.compare(values, others)}
        | {"margin": score.margin(min_difference, others)}
        for other, others in nets.items()
    ]
    return decide(rows, score)


def decide(rows: Sequence[Mapping[str, Any]], score: Score) -> list[dict[str, Any]]:
    """The verdicts of a family of comparisons, corrected for how many they are (Holm 1979).

    A verdict is `better` or `worse` where the corrected p of the paired t-test shows a difference; else
    `equivalent` where the corrected p of the two one-sided tests shows that it lies within the margin; else
    `undecided`.

    Args:
        rows: Whatever names the nets, with `found`, a `Comparison`, and `margin`.
        score: What is compared.

    Returns:
        The rows, with these in place of `found` and `margin`: seeds, unit (what they are: seeds, or splits),
        difference, low, high, effect_size, p, p_holm, p_equivalent (corrected), min_difference, detectable,
        seeds_needed (see `judge`), family and verdict. Numbers that are not known are NaN.
    """
    judged = [judge(row["found"], row["margin"], len(rows)) for row in rows]
    different = holm([row["found"].p for row in rows])
    equivalent = holm([each["p_equivalent"] for each in judged])
    made = []
    for row, each, p, same in zip(rows, judged, different, equivalent, strict=True):
        found = row["found"]
        verdict = "equivalent" if same < ALPHA else "undecided"
        if p < ALPHA:
            verdict = "better" if (found.difference > 0) is score.larger else "worse"
        ends = (end if math.isfinite(end) else math.nan for end in (found.low, found.high))
        numbers = {
            "seeds": found.n,
            "unit": "splits" if found.ratio else "seeds",
            "difference": found.difference,
            **dict(zip(("low", "high"), ends, strict=True)),
        }
        numbers |= {"effect_size": found.effect, "p": found.p, "p_holm": p, **each, "p_equivalent": same}
        about = {name: value for name, value in row.items() if name not in ("found", "margin")}
        made.append(about | numbers | {"family": len(rows), "verdict": verdict})
    return made


def sentence(row: Mapping[str, Any], score: Score) -> str:
    """One row of `decide` in words, with `net` and `other_net` as the names of the two.

    Example:
        >>> from qnnkit.stats import ACCURACY
        >>> [row] = verdicts("hybrid", [0.95, 0.96, 0.94], {"classical": [0.98, 0.98, 0.97]}, ACCURACY)
        >>> print(sentence(row, ACCURACY))
        hybrid did worse than classical: -2.7 points (95 % interval -4.1 to -1.2, p = 0.015, 3 seeds).
    """
    name, other, n = row["net"], row["other_net"], row["seeds"]
    gap, unit = score.signed(row["difference"]), score.unit and f" {score.unit}"
    if n == 1:
        return f"{name} minus {other}: {gap}{unit} on one seed, which shows nothing; train more seeds."
    if not row["detectable"] > 0:  # unknown, or NaN
        same = "nothing" if row["p"] == 1 else f"{gap}{unit}"
        return (
            f"{name} and {other} differ by {same} on each of {n} seeds, which says nothing of how seeds "
            "differ; train more seeds."
        )
    margin, several = f"{score.factor * row['min_difference']:.3g}", row["family"] > 1
    margin += unit.removesuffix("s") if margin == "1" else unit
    p = format_p(row["p_holm"]) + " after Holm's correction" * several
    ends = (
        f"{'uncorrected ' * several}95 % interval {score.signed(row['low'])} to {score.signed(row['high'])}"
    )
    many = f"{n} {row['unit']}"
    numbers = f"{gap}{unit} ({ends}, {p}, {many})."
    within = row["p_equivalent"] < ALPHA
    if row["verdict"] == "equivalent":
        same = f"p {format_p(row['p_equivalent'])[2:]} of the two one-sided tests"
        return f"{name} and {other} are equivalent within {margin}, {same}: {numbers}"
    if row["verdict"] == "undecided":
        least, needed = f"{score.factor * row['detectable']:.{score.digits}f}{unit}", row["seeds_needed"]
        more = f"{needed:,.0f}" if math.isfinite(needed) else "more than 10,000"
        return (
            f"No significant difference between {name} and {other}: {numbers} Detectable with 80 % "
            f"power: {least} by {many}, {margin} by {more}."
        )
    less = f" It is less than the {margin} that would matter." if within else ""
    return f"{name} did {row['verdict']} than {other}: {numbers}{less}"


def format_p(p: float) -> str:
    """A p-value as papers write it.

    Example:
        >>> format_p(0.0213), format_p(0.00004), format_p(float("nan"))
        ('p = 0.021', 'p < 0.001', 'p unknown')
    """
    return "p unknown" if math.isnan(p) else f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"
