"""The number that nets are compared by: its direction, its unit, its bounds, and how people read it."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from qnnkit import checks
from qnnkit.stats.intervals import Comparison, Interval, compare, mean_interval

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
        return f"{self.factor * value:z.{self.digits}f}"

    def signed(self, difference: float) -> str:
        """A difference with its sign, without its unit.

        Example:
            >>> ACCURACY.signed(0.0152), ACCURACY.signed(-0.0001)
            ('+1.5', '+0.0')
        """
        return f"{self.factor * difference:+z.{self.digits}f}"

    def margin(self, min_difference: float | None, others: Sequence[float]) -> float:
        """The least difference that matters, in the unit that scores are kept in.

        Args:
            min_difference: In the unit of a difference: points, nats per token and so on. None takes one
                point of a share, and one percent of the other net's mean of any other score.
            others: The other net's values.

        Example:
            >>> ACCURACY.margin(2, []), ACCURACY.margin(None, []), LOSS.margin(None, [2.0, 4.0])
            (0.02, 0.01, 0.03)
        """
        if min_difference is not None:
            return min_difference / self.factor
        return 0.01 if self.per == "%" else 0.01 * abs(statistics.fmean(others))

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
        """The 95 % interval of values over seeds, as `mean_interval` has it for this kind of number.

        Args:
            values: One number per seed.
            n_test: Samples of the test split, by seed; None or NaN where a run did not record them.
        """
        sizes = [int(n) for n in n_test if n is not None and n > 0]  # NaN is not
        if not self._holds(values):
            return mean_interval(values)
        samples = min(sizes) if self.per == "%" and len(sizes) == len(values) else None
        least, most = self.bounds
        positive = least >= 0 and math.isinf(most) and min(values) > 0
        found = mean_interval(values, samples=samples, logarithmic=positive)
        return replace(found, low=max(least, found.low), high=min(most, found.high)) if found.known else found

    def compare(self, values: Sequence[float], others: Sequence[float], ratio: float = 0.0) -> Comparison:
        """As `compare`; of shares the interval ends at a difference of 1, which none exceeds.

        Example:
            >>> ACCURACY.compare([1.0, 0.6], [0.4, 0.5]).high
            1.0
        """
        found, most = compare(values, others, ratio), self.bounds[1] - self.bounds[0]
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
