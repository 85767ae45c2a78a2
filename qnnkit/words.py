"""Text for people: sizes, times, wrapped sentences, and exceptions in one line."""

from __future__ import annotations

import textwrap


def lines(sentence: str, width: int = 80) -> str:
    """Wraps a sentence between words, since a notebook wraps long lines inside words.

    Example:
        >>> lines("Take fewer circuits.", 14).splitlines()
        ['Take fewer', 'circuits.']
    """
    return textwrap.fill(sentence, width, break_long_words=False, break_on_hyphens=False)


def first_line(error: BaseException) -> str:
    """Returns the first line of an exception's message without its full stop; its type if it has none.

    Example:
        >>> first_line(ValueError("No such file.\\nAnd more.")), first_line(ValueError())
        ('No such file', 'ValueError')
    """
    return str(error).strip().partition("\n")[0].rstrip(".:! ") or type(error).__name__


def error_line(error: BaseException) -> str:
    """Returns an exception in one line, with its type first.

    Example:
        >>> error_line(ValueError("No such file.\\nAnd more.")), error_line(MemoryError())
        ('ValueError: No such file', 'MemoryError')
    """
    return ": ".join(dict.fromkeys([type(error).__name__, first_line(error)]))


def size(n_bytes: float) -> str:
    """Returns a number of bytes in GB (10^9), MB or kB.

    Example:
        >>> size(4_234_000_000), size(53_100_000), size(1_200)
        ('4.23 GB', '53.1 MB', '1.2 kB')
    """
    unit, scale = ("GB", 1e9) if n_bytes >= 1e9 else ("MB", 1e6) if n_bytes >= 1e6 else ("kB", 1e3)
    value = n_bytes / scale
    return f"{value:,.0f} {unit}" if value >= 999.5 else f"{value:.3g} {unit}"


def duration(seconds: float) -> str:
    """Returns seconds as text, with whole minutes from one minute on, hours and minutes from one hour on.

    Example:
        >>> [duration(seconds) for seconds in (0.0132, 8.2, 59.7, 95, 7300, 400_000)]
        ['0.013 s', '8.2 s', '1 min', '2 min', '2 h 2 min', '111 h 7 min']
    """
    if seconds < 59.5:
        return f"{seconds:#.2g} s" if seconds < 9.95 else f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
