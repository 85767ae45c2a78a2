"""Tables as LaTeX, with every name escaped."""

from __future__ import annotations

import copy
from typing import Any

_LATEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{"<": r"$<$", ">": r"$>$", "±": r"$\pm$", "−": r"$-$", "\n": " "},
}


def escaped(text: Any) -> str:
    """Text as LaTeX prints it."""
    return str(text).translate(str.maketrans(_LATEX))


def table(styler: Any, title: str, stamp: str) -> str:
    """A Styler as LaTeX with booktabs; its first line names the runs behind it."""
    from pandas.api.types import is_numeric_dtype

    first, data = f"% {stamp}; needs \\usepackage{{booktabs}}\n", styler.data
    if not len(data):
        return first + "% No two nets could be compared.\n"
    words = [name for name in data if not is_numeric_dtype(data[name])]
    styler = copy.deepcopy(styler).format(escaped, subset=words).format_index(escaped, axis=1)
    return first + styler.to_latex(
        hrules=True,
        caption=escaped(title),
        position_float="centering",
        column_format="".join("l" if name in words else "r" for name in data),
    )
