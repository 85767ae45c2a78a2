"""Figures and comparisons as they are read."""

from __future__ import annotations

SAMPLES = {"images": "images", "captions": "pairs", "tokens": "blocks"}
"""Kind of data -> what its samples are called."""


def figure(value: float) -> str:
    """Three digits, or as many as stand before the point.

    Example:
        >>> figure(0.012345), figure(12.345), figure(2513.7)
        ('0.0123', '12.3', '2,514')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def threads(times: dict[int, float]) -> str:
    """Which number of threads is best, and what the others take.

    Args:
        times: Number of threads -> seconds; two or more.

    Example:
        >>> threads({1: 0.2, 2: 0.5})
        '1 thread is best; 2 take 2.5 times as long.'
    """
    best = min(times, key=lambda n: times[n])
    ratios = {n: f"{figure(times[n] / times[best])} times" for n in times if n != best}
    others = ", ".join(f"{n} take{'s' * (n == 1)} {ratio}" for n, ratio in ratios.items())
    return f"{best} thread{'s are' if best > 1 else ' is'} best; {others} as long."


def slower(times: dict[str, float]) -> tuple[str, str]:
    """Who is fastest, and how many times as long the others take: "b 2.5 times, c 9 times".

    Args:
        times: Name -> seconds; one or more.

    Example:
        >>> slower({"a": 0.2, "b": 0.5})
        ('a', 'b 2.5 times')
    """
    first, *others = sorted(times, key=lambda name: times[name])
    return first, ", ".join(f"{name} {figure(times[name] / times[first])} times" for name in others)
