"""Intervals over seeds, and what may be said of a difference."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from qnnkit import checks


@dataclass(frozen=True)
class Interval:
    """A mean with a confidence interval; infinite bounds where nothing is known of the spread."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def known(self) -> bool:
        return math.isfinite(self.low)

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


def mean_interval(values: Sequence[float], level: float = 0.95, *, samples: int | None = None) -> Interval:
    """Mean of independent values, and how far from it the true one may lie: never an interval of width zero.

    Over seeds it is the t-interval; infinite for one seed, and for values that are all the same, which say
    nothing of the spread. Where the values are shares of `samples` test samples, the interval covers those as
    well as the seeds: other test samples would give another share. The distances of its ends from the mean
    are the roots of the summed squares of the t-interval's and of Wilson's, and it stays within 0 and 1.
    As the seeds share their test samples this is rather too wide than too narrow.

    Args:
        values: One number per seed.
        level: Confidence level.
        samples: In the test split, of which each value is the share that was right; None for other scores.

    Raises:
        ValueError: There is no value, one is not finite, or `level` is not between 0 and 1.

    Example:
        >>> interval = mean_interval([1.0, 2.0, 3.0])
        >>> interval.mean, round(interval.half_width, 3)
        (2.0, 2.484)
        >>> same = mean_interval([0.9, 0.9, 0.9], samples=100)
        >>> round(same.low, 3), round(same.high, 3)
        (0.826, 0.945)

    Reference:
        Student 1908; Wilson 1927; Zou and Donner 2008, doi:10.1002/sim.3095 (intervals of a sum).
    """
    checks.positive("the number of values", len(values), "Give at least one value.")
    if not all(map(math.isfinite, values)):
        raise ValueError(checks.message("values", "be finite", list(values), "Repeat the failed runs."))
    if not 0 < level < 1:
        raise ValueError(checks.message("level", "lie between 0 and 1", level, "0.95 is usual."))
    mean, n = statistics.fmean(values), len(values)
    if n == 1:
        return Interval(mean, -math.inf, math.inf, n)
    from scipy.stats import norm, t

    spread = statistics.stdev(values)
    half = float(t.ppf((1 + level) / 2, n - 1)) * spread / math.sqrt(n)
    if samples is not None:
        low, high = wilson(mean * samples, samples, float(norm.ppf((1 + level) / 2)))
        below, above = math.hypot(half, mean - low), math.hypot(half, high - mean)
        return Interval(mean, max(0.0, mean - below), min(1.0, mean + above), n)
    if spread <= 1e-12 * max(map(abs, values)):  # nothing but rounding
        half = math.inf
    return Interval(mean, mean - half, mean + half, n)


def wilson(right: float, n: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Ends of the interval of a share, when `right` of `n` were; of 95 % without another `z`.

    Example:
        >>> low, high = wilson(9, 10)
        >>> round(low, 3), round(high, 3)
        (0.596, 0.982)

    Reference:
        Wilson 1927, Journal of the American Statistical Association 22(158), 209-212.
    """
    middle = (right + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(right * (n - right) / n + z * z / 4)
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True)
class Comparison:
    """Two nets beside each other, seed by seed; NaN where the seeds cannot tell."""

    difference: float
    """Mean of first minus second."""
    low: float
    high: float
    """The 95 % t-interval of the difference; infinite where the spread is not known."""
    effect: float
    """Cohen's d_z (mean over standard deviation of the differences), with Hedges' small-sample correction."""
    p: float
    """Two-sided, of the paired t-test; of this comparison alone."""
    n: int
    """Seeds."""


ALPHA = 0.05
"""A difference is shown where its p, corrected for how many are compared, is below this."""


def compare(values: Sequence[float], others: Sequence[float]) -> Comparison:
    """First minus second, seed by seed: mean, 95 % t-interval, effect size, paired t-test.

    The effect size is g_z = J d_z, with d_z = mean / standard deviation of the differences and
    J = Gamma(m/2) / (sqrt(m/2) Gamma((m-1)/2)), m = n - 1 (Hedges 1981): d_z is too large for few seeds.
    It is NaN for fewer than three. Where all differences are the same number, as happens with a handful of
    test images, nothing is known of how seeds differ: interval infinite, effect and p NaN (0 and 1 where that
    number is zero).

    Args:
        values: One number per seed.
        others: Those of the other net, by the same seeds in the same order.

    Raises:
        ValueError: The two have not as many values as one another, or none, or one is not finite.

    Example:
        >>> found = compare([0.93, 0.95, 0.97], [0.90, 0.91, 0.92])
        >>> round(found.difference, 4), round(found.effect, 3), round(found.p, 4)
        (0.04, 2.257, 0.0202)

    Reference:
        Lakens 2013, doi:10.3389/fpsyg.2013.00863 (d_z and its correction); Student 1908.
    """
    if len(values) != len(others):
        rule = f"have one value per seed, as `values` has {len(values)}"
        raise ValueError(checks.message("others", rule, list(others), "Train both nets on the same seeds."))
    for name, numbers in (("values", values), ("others", others)):
        if not all(map(math.isfinite, numbers)):
            raise ValueError(checks.message(name, "be finite", list(numbers), "Repeat the failed runs."))
    differences = [float(a - b) for a, b in zip(values, others, strict=True)]
    gap = mean_interval(differences)
    if gap.n == 1:
        return Comparison(gap.mean, -math.inf, math.inf, math.nan, math.nan, 1)
    spread = statistics.stdev(differences)
    if spread <= 1e-12 * max(map(abs, [*values, *others])):  # nothing but rounding
        effect, p = (0.0, 1.0) if abs(gap.mean) <= spread else (math.nan, math.nan)
        return Comparison(gap.mean, -math.inf, math.inf, effect, p, gap.n)
    from scipy.stats import t

    d_z, m = gap.mean / spread, gap.n - 1
    p = 2 * float(t.sf(abs(d_z) * math.sqrt(gap.n), m))
    effect = math.nan
    if m > 1:
        effect = d_z * math.exp(math.lgamma(m / 2) - math.lgamma((m - 1) / 2)) / math.sqrt(m / 2)
    return Comparison(gap.mean, gap.low, gap.high, effect, p, gap.n)


_RISING = {
    "accuracy", "acc", "precision", "recall", "specificity", "f1", "auc", "auroc", "auprc", "ap", "map",
    "r2", "iou", "miou", "dice", "jaccard", "mcc", "kappa", "ndcg", "mrr", "bleu", "rouge", "meteor",
    "cider", "psnr", "ssim", "fidelity", "likelihood", "hits", "correlation", "pearson", "spearman",
}  # fmt: skip
_FALLING = {
    "loss", "error", "err", "cost", "mse", "mae", "rmse", "nmse", "mape", "msle", "nll", "ece", "bce",
    "brier", "crossentropy", "perplexity", "ppl", "hinge", "huber", "wer", "cer", "kl", "kld",
    "divergence", "fid", "regret", "residual", "infidelity",
}  # fmt: skip
_FILLERS = {
    "train", "test", "validation", "val", "valid", "mean", "avg", "average", "median", "total", "sum",
    "macro", "micro", "weighted", "balanced", "top", "at", "per", "token", "sample", "step", "batch",
    "epoch", "score", "rate", "k",
}  # fmt: skip
"""Words, and numbers, that change nothing of a name's direction."""
_NEGATIONS = {"minus", "neg", "negative", "inverse", "inv", "one", "1", "anti"}
_TERMS = {"negative_log_likelihood": "nll", "neg_log_likelihood": "nll", "cross_entropy": "crossentropy"}


def direction(name: str) -> bool:
    """Whether a larger number of this name is better, by the last of its words that says what it is.

    A name such as `minus_mse`, of a number that is negated, is that of a number to be raised.

    Raises:
        ValueError: The name does not tell.

    Example:
        >>> direction("top_5_accuracy"), direction("word_error_rate"), direction("minus_loss")
        (True, False, True)
        >>> direction("negative_log_likelihood"), direction("mse_total")
        (False, False)
    """
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    for term, word in _TERMS.items():
        plain = plain.replace(term, word)
    words = plain.split("_")
    if words[0] == "minus" and len(words) > 1:
        return True
    telling = [word for word in words if word not in _FILLERS and not re.fullmatch(r"(top|k)?\d+", word)]
    last = telling[-1] if telling and not _NEGATIONS.intersection(words[:1] + telling) else ""
    if last in _RISING or last in _FALLING:
        return last in _RISING
    rule = "say whether more is better, as its name does not"
    step = f"Write score = Score({name!r}, {name!r}, larger=False), or larger=True."
    raise ValueError(checks.message("score", rule, name, step))


@dataclass(frozen=True)
class Score:
    """The number that nets of one kind of work are compared by, and how people read it."""

    name: str
    """As metrics.jsonl has it, behind `test_` and `validation_`."""
    word: str
    """As people call it."""
    per: str = "%"
    """Unit in which it is told."""
    factor: float = 100.0
    """From what is kept to what is told: 100 where shares are told in percent."""
    unit: str = "points"
    """Of a difference."""
    digits: int = 1
    """After the point."""
    larger: bool | None = None
    """Whether a larger one is better; None reads it from the name, which is refused if it does not tell."""
    watched: str = ""
    """What of the validation split stands for it while it trains, where that is another number."""
    criterion: str = "min_accuracy"
    """The setting that bounds it: what a run must reach to be a success."""

    def __post_init__(self) -> None:
        if self.larger is None:
            object.__setattr__(self, "larger", direction(self.name))

    @property
    def bounds(self) -> tuple[float, float]:
        """Between which it always lies.

        Example:
            >>> ACCURACY.bounds, LOSS.bounds
            ((0.0, 1.0), (0.0, inf))
        """
        if self.per == "%":
            return 0.0, 1.0
        kind = "nats" if self.per.startswith("nats") else self.name.split("_")[-1]
        return _BOUNDS.get(kind, (-math.inf, math.inf))

    @property
    def column(self) -> str:
        """With its unit, as it heads a column."""
        return f"test {self.word} ({self.per})" if self.per else f"test {self.word}"

    @property
    def on_validation(self) -> str:
        """The name that stands behind `validation_` in metrics.jsonl."""
        return self.watched or self.name

    @property
    def validation_word(self) -> str:
        """What it is called on the validation split.

        Example:
            >>> RECALL.validation_word, LOSS.validation_word
            ('validation accuracy', 'validation loss')
        """
        return f"validation {self.watched or self.word}"

    def tell(self, value: float) -> str:
        """A value without its unit.

        Example:
            >>> ACCURACY.tell(0.9741)
            '97.4'
        """
        return f"{self.factor * value:.{self.digits}f}"

    def with_unit(self, value: float, beside: float | None = None) -> str:
        """A value as it stands in a sentence; with as many digits as tell it from another one `beside` it.

        Example:
            >>> LOSS.with_unit(3.2146), ACCURACY.with_unit(0.89996, beside=0.9)
            ('3.215 nats / token', '89.996 %')
        """
        digits = self.digits
        while beside is not None and value != beside and digits < 12:
            if f"{self.factor * value:.{digits}f}" != f"{self.factor * beside:.{digits}f}":
                break
            digits += 1
        return f"{self.factor * value:.{digits}f} {self.per}".rstrip()

    def interval(self, values: Sequence[float], n_test: Iterable[float | None]) -> Interval:
        """The 95 % interval of values over seeds; of shares of test samples also over those.

        Args:
            values: One number per seed.
            n_test: Samples of the test split, by seed; None or NaN where a run did not record them.
        """
        sizes = [int(n) for n in n_test if n is not None and n > 0]  # NaN is not
        if not self._holds(values):
            return mean_interval(values)
        all_known = self.per == "%" and len(sizes) == len(values)
        found, (least, most) = mean_interval(values, samples=min(sizes) if all_known else None), self.bounds
        return replace(found, low=max(least, found.low), high=min(most, found.high)) if found.known else found

    def compare(self, values: Sequence[float], others: Sequence[float]) -> Comparison:
        """As `compare`; of shares the interval ends at a difference of 1, which none exceeds.

        Example:
            >>> ACCURACY.compare([1.0, 0.6], [0.4, 0.5]).high
            1.0
        """
        found, most = compare(values, others), self.bounds[1] - self.bounds[0]
        if not math.isfinite(found.low) or not self._holds([*values, *others]):
            return found
        return replace(found, low=max(-most, found.low), high=min(most, found.high))

    def _holds(self, values: Sequence[float]) -> bool:
        """Whether the bounds hold for these values, which a user's task may have named otherwise."""
        return all(self.bounds[0] <= value <= self.bounds[1] for value in values)

    def with_interval(self, mean: float, low: float | None, high: float | None) -> str:
        """A mean with the ends of its interval, where they are known, without its unit.

        Example:
            >>> ACCURACY.with_interval(0.989, 0.962, 0.997), LOSS.with_interval(0.5, 0.5, 0.5000001)
            ('98.9 (96.2 to 99.7)', '0.500 (0.5000000 to 0.5000001)')
        """
        if low is None or high is None or not math.isfinite(high - low):
            return "" if math.isnan(mean) else self.tell(mean)
        ends = (self.with_unit(end, beside=other) for end, other in ((low, high), (high, low)))
        return f"{self.tell(mean)} ({' to '.join(end.removesuffix(self.per).rstrip() for end in ends)})"

    def best(self, values: Iterable[float]) -> float:
        """The best of some values, at least one.

        Example:
            >>> ACCURACY.best([0.5, 0.75]), LOSS.best([3.5, 3.25])
            (0.75, 3.25)
        """
        return max(values) if self.larger else min(values)

    def reaches(self, value: float, bound: float) -> bool:
        """Whether a value is as good as a bound, or better."""
        return value >= bound if self.larger else value <= bound


_BOUNDS = {
    "perplexity": (1.0, math.inf),
    "r2": (-math.inf, 1.0),
    **dict.fromkeys(("nats", "mse", "mae", "rmse"), (0.0, math.inf)),
    **dict.fromkeys(("accuracy", "precision", "recall", "f1", "auc"), (0.0, 1.0)),
}
"""A score's unit, or the last word of its name -> between which it always lies."""
ACCURACY = Score("accuracy", "accuracy")
RECALL = Score("recall_1", "recall@1", watched="accuracy", criterion="min_recall")
LOSS = Score(
    "loss", "loss", "nats / token", 1, "nats per token", digits=3, larger=False, criterion="max_loss"
)
SCORES = {score.name: score for score in (ACCURACY, RECALL, LOSS)}
"""By name, as results and batches keep it."""


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values of a family, corrected so that none is called shown by chance in 19 of 20 families.

    The k-th smallest of m is multiplied by m - k + 1, and is no smaller than those before it. A NaN, of a
    comparison that could not be tested, stays NaN and still counts in m: it was asked as well.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]

    Reference:
        Holm 1979, Scandinavian Journal of Statistics 6(2), 65-70.
    """
    corrected, least = [math.nan] * len(p_values), 0.0
    known = [index for index, p in enumerate(p_values) if not math.isnan(p)]
    for rank, index in enumerate(sorted(known, key=lambda index: p_values[index])):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = least
    return corrected


def verdict(
    name: str,
    values: Sequence[float],
    other: str,
    others: Sequence[float],
    corrected: float | None = None,
    score: Score = ACCURACY,
) -> str:
    """One honest sentence on two nets that share their seeds: which did better, if that can be said.

    Args:
        name: The first net.
        values: Its scores.
        other: The second net.
        others: Its scores, by the same seeds in the same order.
        corrected: p after correction for how many are compared (`holm`), by which is then judged; None where
            this is the only comparison. The interval is of this one either way, and said to be uncorrected
            where it may exclude zero beside a corrected p that shows nothing.
        score: What they are; accuracies as fractions by default.

    Raises:
        ValueError: The two have not as many values as one another, or none, or one is not finite.

    Example:
        >>> print(verdict("hybrid", [0.95, 0.96, 0.94], "classical", [0.98, 0.98, 0.97]))
        classical did better than hybrid: 2.7 points, 95 % interval 1.2 to 4.1 over 3 seeds.
    """
    found, n, digits = score.compare(values, others), len(values), score.digits
    gap, low, high = (score.factor * each for each in (found.difference, found.low, found.high))
    unit, unknown = f" {score.unit}" if score.unit else "", "which says nothing of how seeds differ"
    differ = f"{name} and {other} differ by {gap:+.{digits}f}{unit} on"
    if n == 1:
        return f"{differ} one seed, which shows nothing about which is better; train more seeds."
    if math.isnan(found.p):
        return f"{differ} each of {n} seeds, {unknown}; train more seeds."
    none = f"No difference is shown between {name} and {other}:"
    if not math.isfinite(low):
        return f"{none} they score the same on each of {n} seeds, {unknown}."
    interval, judged = "95 % interval", f"over {n} seeds"
    if corrected is not None:
        interval = f"uncorrected {interval}"
        judged += f"; {format_p(corrected)} after Holm's correction"
    if not (found.p if corrected is None else corrected) < ALPHA:
        ends = f"{low:+.{digits}f} to {high:+.{digits}f}"
        return f"{none} {gap:+.{digits}f}{unit}, {interval} {ends} {judged}."
    if (gap > 0) is not score.larger:
        return verdict(other, others, name, values, corrected, score)
    low, high = sorted((abs(low), abs(high)))
    unit += "" if score.larger else " less"
    ends = f"{low:.{digits}f} to {high:.{digits}f}"
    return f"{name} did better than {other}: {abs(gap):.{digits}f}{unit}, {interval} {ends} {judged}."


def verdicts(
    name: str, values: Sequence[float], nets: Mapping[str, Sequence[float]], score: Score = ACCURACY
) -> list[str]:
    """A verdict on one net beside each of several; where they are several, corrected by Holm (1979).

    Args:
        name: The net.
        values: Its scores.
        nets: The others by name, each with the scores of the same seeds in the same order.
        score: What they are; accuracies as fractions by default.

    Example:
        >>> told = verdicts("net", [0.93, 0.95, 0.97], {"a": [0.90, 0.91, 0.92], "b": [0.90, 0.90, 0.90]})
        >>> [each.split("; ")[1] for each in told]
        ["p = 0.040 after Holm's correction.", "p = 0.049 after Holm's correction."]
    """
    ps: list[float | None] = [*holm([compare(values, others).p for others in nets.values()])]
    if len(ps) == 1:
        ps = [None]
    return [
        verdict(name, values, other, others, p, score)
        for (other, others), p in zip(nets.items(), ps, strict=True)
    ]


def format_p(p: float) -> str:
    """A p-value as papers write it.

    Example:
        >>> format_p(0.0213), format_p(0.00004), format_p(float("nan"))
        ('p = 0.021', 'p < 0.001', 'p unknown')
    """
    return "p unknown" if math.isnan(p) else f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"
