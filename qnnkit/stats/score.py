"""The score by which nets are compared: its direction, unit, intervals and text."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from qnnkit import checks
from qnnkit.stats.intervals import Interval, loss_interval, mean_interval, share_interval

_RISING = "accuracy|acc|precision|recall|f1|auc|auroc|r2|iou|miou|dice|mcc|kappa|bleu|psnr|ssim|fidelity"
_FALLING = "loss|error|mse|mae|rmse|mape|nll|ece|bce|brier|cross entropy|perplexity|hinge|wer|divergence|fid"
_FILLER = r"score|rate|total|mean|sum|at|per|token|sample|batch|epoch|k|(?:top|k)?\d+"
_NEGATION = r"^(?:1|one) |\b(?:minus|neg|negative|inverse|inv|anti)\b"


def direction(name: str) -> bool:
    """Whether a larger number of this name is better, as its last known word shows.

    A negated number, such as `minus_mse`, is better if larger, unless that holds for the number itself
    (`minus_accuracy`).

    Raises:
        ValueError: The name does not show it.

    Example:
        >>> direction("top_5_accuracy"), direction("word_error_rate"), direction("minus_loss")
        (True, False, True)
    """
    words = re.sub(r"[^a-z0-9]+", " ", name.lower()).strip()
    last = re.search(rf"\b(?:({_RISING})|{_FALLING})(?: (?:{_FILLER}))*$", words)
    if words.startswith("minus "):
        return last is None or last[1] is None
    if last is None or re.search(_NEGATION, words):
        rule = "say whether more is better, as its name does not"
        step = f"Write score = Score({name!r}, {name!r}, larger=False), or larger=True."
        raise ValueError(checks.message("score", rule, name, step))
    return last[1] is not None


@dataclass(frozen=True)
class Score:
    """The score by which the nets of a task are compared, and its form in text.

    Args:
        name: Name in metrics.jsonl, after `test_` and `validation_`.
        word: Name in text and tables.
        per: Unit in which it is reported; "%" for a share, between 0 and 1.
        factor: Reported value divided by the stored one: 100 for a share that is reported in percent.
        unit: Unit of a difference.
        digits: Digits after the decimal point.
        larger: Whether larger is better; None infers it from the name, or raises an error if it cannot.
        watched: Name of the number that replaces it on the validation split during training, if that is
            another.
        criterion: Name of the setting that bounds it as a success criterion.
        least: Smallest possible loss.

    Raises:
        ValueError: `larger` is None, and the name does not show whether larger is better; or `factor` or
            `digits` is out of range.
    """

    name: str
    word: str
    per: str = "%"
    factor: float = 100.0
    unit: str = "points"
    digits: int = 1
    larger: bool | None = None
    watched: str = ""
    criterion: str = "min_accuracy"
    least: float = 0.0

    def __post_init__(self) -> None:
        checks.positive("factor", self.factor, "Use 100 for a share in percent, else 1.", whole=False)
        checks.positive("digits", self.digits, "Use 0 to 12.", above=-1)
        if self.larger is None:
            object.__setattr__(self, "larger", direction(self.name))

    @property
    def column(self) -> str:
        """Heading of its column, with its unit."""
        return f"test {self.word} ({self.per})" if self.per else f"test {self.word}"

    @property
    def on_validation(self) -> str:
        """Name in metrics.jsonl after `validation_`."""
        return self.watched or self.name

    @property
    def validation_word(self) -> str:
        """Name in text on the validation split.

        Example:
            >>> RECALL.validation_word, LOSS.validation_word
            ('validation accuracy', 'validation loss')
        """
        return f"validation {self.watched or self.word}"

    def tell(self, value: float, beside: float | None = None) -> str:
        """Returns a value without its unit, with as many digits as distinguish it from the value `beside`.

        Example:
            >>> ACCURACY.tell(0.9741), ACCURACY.tell(0.89996, beside=0.9), LOSS.tell(0.0000204)
            ('97.4', '89.996', '2.040e-05')
        """
        text, least = "", 0.0 if self.per == "%" else 0.5 * 10**-self.digits  # a share may be 0.0
        form = "f" if not value or least <= abs(self.factor * value) < 1e9 else "e"  # with an exponent
        for digits in range(self.digits, self.digits + 13):
            text = f"{self.factor * value:z.{digits}{form}}"
            if beside in (None, value) or text != f"{self.factor * beside:z.{digits}{form}}":
                break
        return text

    def with_unit(self, value: float, beside: float | None = None) -> str:
        """Returns a value as `tell` does, with its unit.

        Example:
            >>> LOSS.with_unit(3.2146)
            '3.215 nats / token'
        """
        return f"{self.tell(value, beside)} {self.per}".rstrip()

    def signed(self, difference: float, beside: float | None = None) -> str:
        """Returns a difference with its sign, without its unit, with as many digits as in `tell`.

        Example:
            >>> ACCURACY.signed(0.0152), ACCURACY.signed(-0.0001), ACCURACY.signed(0.1, beside=0.1001)
            ('+1.5', '+0.0', '+10.00')
        """
        text = self.tell(difference, beside)
        return text if text.startswith("-") else f"+{text}"

    def with_interval(self, mean: float, low: float | None, high: float | None) -> str:
        """Returns a mean with the ends of its interval, if they are known, without its unit.

        Example:
            >>> ACCURACY.with_interval(0.989, 0.962, 0.997), LOSS.with_interval(0.5, 0.5, 0.5000001)
            ('98.9 (96.2 to 99.7)', '0.500 (0.5000000 to 0.5000001)')
            >>> LOSS.with_interval(0.5, 0.0, 2.5e304)
            '0.500 (0.000 to 2.500e+304)'
        """
        if low is None or high is None or not math.isfinite(high - low):
            return "" if math.isnan(mean) else self.tell(mean)
        return f"{self.tell(mean)} ({self.tell(low, high)} to {self.tell(high, low)})"

    def shares(self, values: Sequence[float]) -> bool:
        """Whether these are shares, between 0 and 1 and reported in percent; an error may be above 100 %."""
        return (self.per, self.factor) == ("%", 100) and 0 <= min(values) <= max(values) <= 1

    def margin(self, min_difference: float | None, others: Sequence[float]) -> float:
        """Returns the least difference that matters, in the unit in which scores are stored.

        Args:
            min_difference: The value in the unit of a difference: points, nats per token and so on. None:
                one point for a share, one percent of the other net's mean for any other score.
            others: The other net's values.

        Example:
            >>> ACCURACY.margin(2, []), ACCURACY.margin(None, []), LOSS.margin(None, [2.0, 4.0])
            (0.02, 0.01, 0.03)
            >>> Score("error", "error", factor=1.0).margin(None, [])  # kept in percent
            1.0
        """
        if min_difference is not None:
            return min_difference / self.factor
        return 1 / self.factor if self.per == "%" else 0.01 * abs(statistics.fmean(others))

    def interval(
        self, values: Sequence[float], n_test: Iterable[float | None] = (), ratio: float = 0.0
    ) -> Interval:
        """Returns the 95 % interval of values over seeds, for this kind of number.

        For shares, it stays within 0 and 1, and covers the test samples too, if their number is known. For a
        loss, it assumes log-normal values, if all are positive, and stays above `least`.

        Args:
            values: One number per seed.
            n_test: Number of test samples, by seed; None or NaN if a run did not record it.
            ratio: As in `mean_interval`.

        Raises:
            ValueError: There is no value, or one is not finite.
        """
        sizes = [int(n) for n in n_test if n is not None and n > 0]  # without NaN
        mean, low, high = mean_interval(values, ratio=ratio)
        if self.shares(values):
            if sizes and len(sizes) == len(values):
                return share_interval(values, min(sizes), ratio=ratio)
            return Interval(mean, max(low, 0.0), min(high, 1.0))  # NaN stays
        if self.larger or min(values) < self.least:
            return Interval(mean, low, high)
        if min(values) > 0:
            mean, low, high = loss_interval(values, ratio=ratio)
        return Interval(mean, max(low, self.least), high)


ACCURACY = Score("accuracy", "accuracy")
RECALL = Score("recall_1", "recall@1", watched="accuracy", criterion="min_recall")
LOSS = Score(
    "loss", "loss", "nats / token", 1, "nats per token", digits=3, larger=False, criterion="max_loss"
)
SCORES = {score.name: score for score in (ACCURACY, RECALL, LOSS)}
"""Scores by name, as results and batches store them."""
