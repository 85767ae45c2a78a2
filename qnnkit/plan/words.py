"""Sizes, times and money as people write and read them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from qnnkit import checks

SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
_UNITS = {
    "s": ("s", "sec", "second", "seconds"),
    "min": ("min", "m", "minute", "minutes"),
    "h": ("h", "hr", "hour", "hours"),
    "d": ("d", "day", "days"),
}
_UNIT = {word: unit for unit, words in _UNITS.items() for word in words}
_PART = r"(\d+(?:\.\d+)?)\s*([a-z]+)"


def parse_duration(text: str, name: str = "duration") -> float:
    """Seconds that a text such as "8h", "90 min" or "2d 4h" means.

    Raises:
        ValueError: It means no time above zero.

    Example:
        >>> parse_duration("2d 4h"), parse_duration("90 min")
        (187200.0, 5400.0)
    """
    plain = text.strip().lower()
    parts = re.findall(_PART, plain)
    known = all(unit in _UNIT for _, unit in parts)
    if parts and known and re.fullmatch(rf"(?:{_PART}[\s,]*)+", plain):
        seconds = sum(float(number) * SECONDS[_UNIT[unit]] for number, unit in parts)
        if 0 < seconds < math.inf:
            return seconds
    raise ValueError(checks.message(name, "be a time", text, "Write it as 8h, 90 min or 2d 4h."))


def parse_epochs(text: str, name: str = "for") -> int:
    """The number that "50 epochs" or "50" means.

    Raises:
        ValueError: It is no whole number of epochs, 1 or more.

    Example:
        >>> parse_epochs("50 epochs")
        50
    """
    found = re.fullmatch(r"\s*(\d{1,9})\s*(?:epochs?)?\s*", text.lower())
    if found and int(found[1]) > 0:
        return int(found[1])
    raise ValueError(
        checks.message(name, "be a number of epochs", text, "Write '50 epochs'; a time goes to --deadline.")
    )


def parse_money(text: str, currency: str, name: str = "budget") -> float:
    """The amount that "10", "$10" or "10 USD" means.

    Raises:
        ValueError: It is no amount, or one of another currency.

    Example:
        >>> parse_money("10 USD", "USD"), parse_money("0", "USD")
        (10.0, 0.0)
    """
    signs = {"USD": "$", "EUR": "€", "GBP": "£"}
    bare = text.strip().upper().replace(currency.upper(), "").replace(signs.get(currency.upper(), "\0"), "")
    if re.fullmatch(r"\s*\d+(\.\d+)?\s*", bare):
        return float(bare)
    step = f"Write 10, or 10 {currency}; prices of the table are in {currency}."
    raise ValueError(checks.message(name, f"be an amount in {currency}", text, step))


def size(n_bytes: float) -> str:
    """Bytes in GB (10^9), MB or kB, with as many digits as matter.

    Example:
        >>> size(4_234_000_000), size(53_100_000), size(1_200)
        ('4.2 GB', '53 MB', '1.2 kB')
    """
    unit, scale = ("GB", 1e9) if n_bytes >= 1e9 else ("MB", 1e6) if n_bytes >= 1e6 else ("kB", 1e3)
    return f"{digits(n_bytes / scale)} {unit}"


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them.

    Example:
        >>> duration(0.0132), duration(75), duration(7560), duration(400_000)
        ('0.013 s', '75 s', '2.1 h', '4.6 d')
    """
    for unit, until in (("s", 90), ("min", 5400), ("h", 172_800)):
        if seconds < until:
            return f"{digits(seconds / SECONDS[unit])} {unit}"
    return f"{digits(seconds / SECONDS['d'])} d"


def spread(low: float, likely: float, high: float) -> str:
    """A time with its range, in one unit.

    Example:
        >>> spread(3780, 7560, 15_120), spread(60, 60, 60), spread(2500, 5000, 10_000)
        ('2.1 h (1.1 to 4.2)', '60 s', '83 min (42 to 167)')
    """
    told = duration(likely)
    scale = SECONDS[told.split()[-1]]
    ends = [digits(end / scale) for end in (low, high)]
    return told if ends[0] == ends[1] else f"{told} ({ends[0]} to {ends[1]})"


def money(amount: float, currency: str) -> str:
    """An amount with two digits, more where it is next to nothing.

    Example:
        >>> money(1.0449, "USD"), money(0.0004, "USD"), money(0, "USD")
        ('1.04 USD', '0.0004 USD', '0 USD')
    """
    told = f"{amount:,.2f}" if amount >= 0.01 else f"{amount:.1g}" if amount else "0"
    return f"{told} {currency}"


def digits(number: float, most: int = 2) -> str:
    """So many digits that matter, and all before the point.

    Example:
        >>> digits(0.01324), digits(1.249), digits(9.97), digits(37.8), digits(12_345)
        ('0.013', '1.2', '10', '38', '12,345')
    """
    if number == 0:
        return "0"
    number = float(f"{number:.{most - 1}e}") if abs(number) < 10 ** (most - 1) else number
    behind = max(0, most - 1 - math.floor(math.log10(abs(number))))
    return f"{number:,.{behind}f}"


def small(amount: float) -> str:
    """An amount to two digits behind the point, in a narrow column.

    Example:
        >>> small(0), small(0.0004), small(0.312), small(38.04)
        ('0', '<0.01', '0.31', '38')
    """
    if not amount or amount >= 10:
        return digits(amount)
    return "<0.01" if amount < 0.005 else f"{amount:.2f}"


def listed(names: Sequence[str]) -> str:
    """Names as a sentence lists them.

    Example:
        >>> listed(["T4", "L4", "A100"])
        'T4, L4 and A100'
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
