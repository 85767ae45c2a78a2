"""A plan as text of at most 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from qnnkit.plan import words
from qnnkit.plan.elsewhere import Range
from qnnkit.plan.places import LARGEST, Place
from qnnkit.plan.prediction import HOST
from qnnkit.plan.remedies import KINDS
from qnnkit.plan.whole import Plan

WIDTH = 100
HEADS = ("machine", "memory", "batch to", "an epoch", "in all", "cost", "units", "verdict")


def table(plan: Plan) -> str:
    """What a training needs, part by part, how it goes on each machine, and what to do."""
    blocks = [_memory(plan), _machines(plan), _answer(plan), _remedies(plan), _notes(plan)]
    return "\n\n".join("\n".join(lines) for block in blocks if (lines := list(block)))


def _memory(plan: Plan) -> Iterator[str]:
    found = plan.prediction
    config = found.training
    micro = config.micro_batch or config.batch_size
    batch = f"batch {config.batch_size}" + (f", {micro} at once" if micro < config.batch_size else "")
    tokens = f" of {found.sequence_length} tokens" if found.sequence_length else ""
    yield from _wrapped(
        f"{found.name}: {found.n_weights:,} weights, {found.n_trained:,} of them trained; "
        f"{found.n_samples:,} samples{tokens} in an epoch, {batch}, {config.precision}, {config.optimizer}"
    )
    yield f"Memory at the peak, on {found.device}: {words.size(found.peak)}"
    for part, size in sorted(found.memory.items(), key=lambda item: -item[1]):
        if size:
            where = "" if found.device == "cpu" or part not in HOST else "  in RAM"
            yield f"  {part:<16}{words.size(size):>9}{size / found.in_all:>7.0%}{where}"
    trained, each = plan.nets * plan.seeds, f"{config.keep_checkpoints + 1} of {words.size(found.checkpoint)}"
    yield f"Disk for checkpoints: {words.size(trained * found.disk)}, {each} for each net and seed"
    told = (
        f"{_count(plan.nets, 'net')} x {_count(plan.seeds, 'seed')} x " if plan.nets * plan.seeds > 1 else ""
    )
    told += _count(config.epochs, "epoch")
    epoch, total = plan.here.epoch, plan.here.total
    if epoch is None:
        yield f"In all {told}; nothing was timed here."
        return
    yield from _wrapped(
        f"Time here: {'about ' * (found.seconds is None)}{words.duration(epoch.likely)} an epoch"
        + (f", {_range(total)} for {told}" if total else "")
    )


def _machines(plan: Plan) -> Iterator[str]:
    rows = [HEADS, *(_row(place) for place in plan.places)]
    if all(place.largest is None for place in plan.places):
        rows = [row[:2] + row[3:] for row in rows]
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    widths[0] = min(widths[0], WIDTH - sum(widths[1:]) - 2 * (len(widths) - 1))
    for row in rows:
        cells = [f"{cell[:width]:<{width}}" for cell, width in zip(row, widths, strict=True)]
        yield "  ".join(cells).rstrip()
    yield f"Cost in {plan.currency}; units are Colab's. In brackets: from and to."


def _row(place: Place) -> tuple[str, ...]:
    units = place.compute_units
    return (
        place.name,
        f"{_gb(place.needs)} of {_gb(place.usable)} GB",  # one digit more: what hardly fits is to be seen
        _batch(place.largest),
        "?" if place.epoch is None else words.duration(place.epoch.likely),
        _range(place.total),
        "?" if place.cost is None else words.small(place.cost.likely),
        "-" if units is None else words.small(units.likely),
        place.verdict.word,
    )


def _batch(largest: int | None) -> str:
    if largest is None:
        return "-"
    return f"{largest:,}{'+' * (largest == LARGEST)}" if largest else "none"


def _answer(plan: Plan) -> Iterator[str]:
    for sentence in plan.answer:
        yield from _wrapped(sentence)


def _remedies(plan: Plan) -> Iterator[str]:
    if plan.remedies:
        yield "To need less memory here, in this order:"
    for number, each in enumerate(plan.remedies, start=1):
        fits = "; it fits then" if each.fits and not plan.here.verdict.fits else ""
        yield from _wrapped(f"{each.name}: {each.effect}{fits}. {KINDS[each.name]}", f"  {number}. ", "     ")
        yield f"     {each.command}"


def _notes(plan: Plan) -> Iterator[str]:
    for note in plan.notes:
        yield from _wrapped(note, "- ", "  ")


def _range(total: Range | None) -> str:
    return "?" if total is None else words.spread(total.low, total.likely, total.high)


def _gb(n_bytes: float) -> str:
    return words.digits(n_bytes / 1e9, 3) if n_bytes >= 1e9 else words.small(n_bytes / 1e9)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _wrapped(text: str, first: str = "", others: str = "") -> Iterable[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=others, break_on_hyphens=False)
