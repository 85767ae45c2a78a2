"""Sizes, times and amounts as people write and read them."""

from __future__ import annotations

import contextlib
import itertools
import re
import textwrap

from qnnkit import checks

UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))


def lines(sentence: str, width: int = 80) -> str:
    """A sentence wrapped between words; a notebook wraps long lines inside words.

    Example:
        >>> lines("Take fewer circuits.", 14).splitlines()
        ['Take fewer', 'circuits.']
    """
    return textwrap.fill(sentence, width, break_long_words=False, break_on_hyphens=False)


def first_line(error: BaseException) -> str:
    """The first line of what an exception says, without its stop; its type if it says nothing.

    Example:
        >>> first_line(ValueError("No such file.\\nAnd more.")), first_line(ValueError())
        ('No such file', 'ValueError')
    """
    said = str(error).strip().partition("\n")[0]
    return said.rstrip(".:! ") or type(error).__name__


def error_line(error: BaseException) -> str:
    """An exception in one line, its type first.

    Example:
        >>> error_line(ValueError("No such file.\\nAnd more.")), error_line(MemoryError())
        ('ValueError: No such file', 'MemoryError')
    """
    return ": ".join(dict.fromkeys([type(error).__name__, first_line(error)]))


def size(n_bytes: float) -> str:
    """Bytes in GB (10^9), MB or kB.

    Example:
        >>> size(4_234_000_000), size(53_100_000), size(1_200)
        ('4.23 GB', '53.1 MB', '1.2 kB')
    """
    unit, scale = ("GB", 1e9) if n_bytes >= 1e9 else ("MB", 1e6) if n_bytes >= 1e6 else ("kB", 1e3)
    value = n_bytes / scale
    return f"{value:,.0f} {unit}" if value >= 999.5 else f"{value:.3g} {unit}"


def duration(seconds: float) -> str:
    """Seconds in one unit or two.

    Example:
        >>> [duration(seconds) for seconds in (0.0132, 8.2, 95, 7300, 400_000)]
        ['0.013 s', '8.2 s', '1 min 35 s', '2 h 1 min', '4 d 15 h']
    """
    if seconds < 9.95:
        return f"{seconds:#.2g} s"
    whole = round(seconds)
    for (large, of_large), (small, of_small) in itertools.pairwise(UNITS):
        if whole >= of_large:
            n, rest = divmod(whole // of_small, of_large // of_small)
            return f"{n} {large} {rest} {small}"
    return f"{whole} s"


def parse_duration(text: str, name: str = "duration") -> float:
    """Seconds that a text such as "8h", "90 min" or "2d 4h" means.

    Raises:
        ValueError: It means no time above zero.

    Example:
        >>> parse_duration("2d 4h"), parse_duration("90 min")
        (187200.0, 5400.0)
    """
    import pandas as pd

    plain = re.sub(r"(\d\s*)d\b", r"\1days", text.strip().lower().replace(",", " "))
    with contextlib.suppress(ValueError):
        if (seconds := pd.Timedelta(plain).total_seconds()) > 1e-3:  # a bare number is of nanoseconds
            return seconds
    raise ValueError(checks.message(name, "be a time", text, "Write it as 8h, 90 min or 2d 4h."))
