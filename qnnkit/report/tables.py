"""Tables of a study as people read them, and as LaTeX for a paper."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from qnnkit import stats

if TYPE_CHECKING:
    import pandas as pd

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


def told_means(table: pd.DataFrame) -> pd.DataFrame:
    """The means of a study: ± is half the width of the 95 % interval."""
    import pandas as pd

    columns = {
        "model": table["model"],
        "net": table["net"],
        "training images (%)": [f"{100 * fraction:g}" for fraction in table["train_fraction"]],
        "seeds": [str(seeds) for seeds in table["seeds"]],
    }
    for name, head, factor, digits in (
        ("accuracy", "accuracy (%)", 100, 1),
        ("macro_f1", "macro-F1 (%)", 100, 1),
        ("nll", "NLL (nats)", 1, 3),
        ("ece", "ECE (%)", 100, 1),
    ):
        spreads = zip(table[name], table[f"{name}_low"], table[f"{name}_high"], strict=True)
        columns[head] = [
            _spread(factor * mean, factor * low, factor * high, digits) for mean, low, high in spreads
        ]
    for name, head, form in (
        ("quantum", "quantum weights", ",.0f"),
        ("classical", "classical weights", ",.0f"),
        ("circuits_per_image", "circuits / image", ",.0f"),
        ("seconds_per_epoch", "s / epoch", ".2f"),
    ):
        columns[head] = [_number(value, form) for value in table[name]]
    return pd.DataFrame(columns)


def told_comparisons(table: pd.DataFrame) -> pd.DataFrame:
    """The comparisons of a study: differences in points of test accuracy."""
    import pandas as pd

    rows = [
        {
            "net": f"{row.model} {row.net}",
            "beside": _beside(row),
            "training images (%)": f"{100 * row.train_fraction:g}",
            "seeds": str(row.seeds),
            "difference (points)": _number(100 * row.difference, "+.1f"),
            "95 % interval": _ends(100 * row.low, 100 * row.high),
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
    half = "" if math.isnan(low) or math.isnan(high) else f" ± {(high - low) / 2:.{digits}f}"
    return _number(mean, f".{digits}f") + half


def _ends(low: float, high: float) -> str:
    return "" if math.isnan(low) else f"{_number(low, '+.1f')} to {_number(high, '+.1f')}"


def _p(value: float) -> str:
    return "" if math.isnan(value) else stats.told_p(value).removeprefix("p ").removeprefix("= ")
