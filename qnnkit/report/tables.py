"""Tables of a study as people read them, and as LaTeX for a paper."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from qnnkit import stats

if TYPE_CHECKING:
    import pandas as pd


class Metric(NamedTuple):
    """A number that a study tells of every net."""

    column: str
    """In its tables."""
    there: str
    """In the final rows of a run."""
    head: str
    """As people read it."""
    factor: float
    """From what is kept to what is told."""
    digits: int
    """After the point."""


METRICS = {
    "accuracy": (
        Metric("accuracy", "test_accuracy", "accuracy (%)", 100, 1),
        Metric("macro_f1", "test_macro_f1", "macro-F1 (%)", 100, 1),
        Metric("nll", "test_loss", "NLL (nats)", 1, 3),
        Metric("ece", "test_ece", "ECE (%)", 100, 1),
    ),
    "recall_1": (
        Metric("recall_1", "test_recall_1", "recall@1 (%)", 100, 1),
        Metric("zero_shot", "test_zero_shot", "zero-shot accuracy (%)", 100, 1),
        Metric("contrastive_loss", "test_loss", "loss (nats / pair)", 1, 3),
    ),
    "loss": (
        Metric("loss", "test_loss", "loss (nats / token)", 1, 3),
        Metric("perplexity", "test_perplexity", "perplexity", 1, 2),
    ),
}
"""Score that nets are compared by -> that one, and what is told beside it."""


def metrics_of(score: stats.Score) -> tuple[Metric, ...]:
    """What is told of nets that are compared by this score."""
    if score == stats.SCORES.get(score.name):
        return METRICS[score.name]
    head = score.told.removeprefix("test ")
    return (Metric(score.name, f"test_{score.name}", head, score.factor, score.digits),)


_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"$<$",
        ">": r"$>$",
        "±": r"$\pm$",
        "−": r"$-$",
        "\n": " ",
    }
)


def records(table: pd.DataFrame) -> Iterator[Any]:
    """Its rows, each with the columns as attributes."""
    return iter(table.itertuples(index=False))


def told_means(table: pd.DataFrame, score: stats.Score = stats.ACCURACY) -> pd.DataFrame:
    """The means of a study, each with its 95 % interval in brackets.

    A number that no net has, such as zero-shot accuracy where there are no classes, is left out.
    """
    import pandas as pd

    columns = {
        "model": table["model"],
        "net": table["net"],
        "training data (%)": [f"{100 * fraction:g}" for fraction in table["train_fraction"]],
        "seeds": [str(seeds) for seeds in table["seeds"]],
    }
    for name, _, head, factor, digits in metrics_of(score):
        if not any(map(math.isfinite, table[name])):
            continue
        spreads = zip(table[name], table[f"{name}_low"], table[f"{name}_high"], strict=True)
        columns[head] = [
            _spread(factor * mean, factor * low, factor * high, digits) for mean, low, high in spreads
        ]
    for name, head, form in (
        ("quantum", "quantum weights", ",.0f"),
        ("classical", "classical weights", ",.0f"),
        ("circuits_per_image", "circuits / sample", ",.0f"),
        ("seconds_per_epoch", "s / epoch", ".2f"),
    ):
        columns[head] = [_number(value, form) for value in table[name]]
    return pd.DataFrame(columns)


def told_comparisons(table: pd.DataFrame, score: stats.Score = stats.ACCURACY) -> pd.DataFrame:
    """The comparisons of a study: differences of test scores in their own unit, such as points."""
    import pandas as pd

    factor, form = score.factor, f"+.{score.digits}f"
    rows = [
        {
            "net": f"{row.model} {row.net}",
            "beside": _beside(row),
            "training data (%)": f"{100 * row.train_fraction:g}",
            "seeds": str(row.seeds),
            f"difference ({score.unit})": _number(factor * row.difference, form),
            "95 % interval": _ends(factor * row.low, factor * row.high, form),
            "effect size": _number(row.effect_size, "+.2f"),
            "p": _p(row.p),
            "p (Holm)": _p(row.p_holm),
        }
        for row in records(table)
    ]
    return pd.DataFrame(rows)


def _beside(row: Any) -> str:
    if row.model == row.other_model:
        return f"{row.other_net}"
    return f"{row.other_model}" if row.other_net == "reference" else f"{row.other_model} {row.other_net}"


def latex(table: pd.DataFrame, caption: str, stamp: str) -> str:
    r"""A table of words as LaTeX with \usepackage{booktabs}; its first line names the runs behind it."""
    first = f"% {' '.join(stamp.split())}; needs \\usepackage{{booktabs}}\n"
    if not len(table):
        return first + "% No two nets could be compared.\n"
    styler: Any = table.style.hide(axis="index").format(_escaped).format_index(_escaped, axis=1)
    words = sum(1 for name in table.columns if name in ("model", "net", "beside"))
    return first + styler.to_latex(
        hrules=True,
        caption=_escaped(caption),
        position_float="centering",
        column_format="l" * words + "r" * (len(table.columns) - words),
    )


def _escaped(text: Any) -> str:
    return str(text).translate(_LATEX)


def _number(value: float, form: str) -> str:
    return "" if math.isnan(value) else format(value, form).replace("-", "−")


def _spread(mean: float, low: float, high: float, digits: int) -> str:
    form = f".{digits}f"
    while low != high and digits < 12 and format(low, form) == format(high, form):
        digits += 1
        form = f".{digits}f"
    told = _ends(low, high, form)
    return _number(mean, f".{digits}f") + (f" ({told})" if told else "")


def _ends(low: float, high: float, form: str) -> str:
    return "" if math.isnan(low) else f"{_number(low, form)} to {_number(high, form)}"


def _p(value: float) -> str:
    return "" if math.isnan(value) else stats.told_p(value).removeprefix("p ").removeprefix("= ")
