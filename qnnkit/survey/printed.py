"""A machine's survey as text of at most 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from qnnkit.survey.form import Circuits, Device, Net, Profile, Survey
from qnnkit.survey.operations import Operation
from qnnkit.survey.words import SAMPLES, figure

WIDTH, LABEL = 100, 14  # columns of the table, and of the labels before its text
MISSING = "-"


def table(found: Survey) -> str:
    """The whole survey: figures first, then what they say, in sentences."""
    machine, sections = found["machine"], found["sections"]
    price = found["price_per_hour"]
    facts = [
        ("machine", machine["name"]),
        ("memory", f"{machine['memory_bytes'] / 1e9:.1f} GB; system: {machine['system']}"),
        ("measured", f"{found['measured_at']}, in {found['seconds']:.0f} s"),
        ("price", None if price is None else f"{price:g} an hour"),
        ("busy", found["busy"]["sentence"]),
    ]
    blocks = [[_row(label, text) for label, text in facts if text]]
    blocks.append(
        ["What it reaches", *(_row(one["device"], _reach(one)) for one in sections["platform"]["devices"])]
    )
    if "circuits" in sections:
        blocks.append(_circuits(sections["circuits"]))
    if "net" in sections:
        blocks.append(_net(sections["net"]))
    if "profile" in sections:
        blocks.append(_profile(sections["profile"]))
    told = [sentence for section in sections.values() for sentence in _sentences(section)]
    told += _about_trust(found)
    blocks.append(["What this says", *(wrapped("  - ", sentence) for sentence in told)])
    return "\n\n".join("\n".join(block) for block in blocks)


def columns(head: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Lines of a table, each column as wide as its widest cell; the first `left` columns begin flush."""
    cells = [head, *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def _sentences(section: Any) -> list[str]:
    absent = [f"{name} does not run here: {why}" for name, why in section.get("absent", {}).items()]
    return section.get("sentences", []) + absent


def _about_trust(found: Survey) -> list[str]:
    """Which numbers are less than certain."""
    n = len(found["unstable"])
    names = ", ".join(found["unstable"][:3]) + (" and others" if n > 3 else "")
    return [f"Unstable, with rounds that took over twice the median: {n} of the times ({names})."] * bool(n)


def _reach(one: Device) -> str:
    """One device's figures, in a line or two."""
    words = [one["name"]] if one["device"] != "cpu" else []
    if "bytes_per_second" in one["bandwidth"]:
        words.append(f"memory {figure(one['bandwidth']['bytes_per_second'] / 1e9)} GB/s")
    reached = [
        f"{precision} {figure(products['flops_per_second'] / 1e9)}"
        for precision, products in one["matmul"].items()
        if "flops_per_second" in products
    ]
    words.append(f"products {', '.join(reached)} GFLOP/s")
    words.append(f"an operation {figure(1e6 * one['operation']['median'])} us")
    small = [
        f"{row['size']}x{row['size']} {figure(1e6 * row['seconds']['median'])}"
        for row in one["small_products"]
        if row["size"] in (4, 64, 512)
    ]
    words.append(f"small products {', '.join(small)} us")
    for name, way in (("to it", one.get("to_device")), ("from it", one.get("from_device"))):
        if way:
            rate, least = way["bytes_per_second"] / 1e9, 1e6 * way["seconds"]["median"]
            words.append(f"{name} {figure(rate)} GB/s, one number {figure(least)} us")
    return "; ".join(words)


def _circuits(found: Circuits) -> list[str]:
    names = list(dict.fromkeys((cell["backend"], cell["device"]) for cell in found["cells"]))
    several = len({device for _, device in names}) > 1
    times = {
        (cell["n_qubits"], cell["batch"], cell["backend"], cell["device"]): _cell(cell)
        for cell in found["cells"]
    }
    sizes = list(dict.fromkeys(place[:2] for place in times))
    rows = [[str(n), f"{batch:,}", *(times[n, batch, *name] for name in names)] for n, batch in sizes]
    head = [
        "qubits",
        "circuits",
        *(f"{backend} {device}" if several else backend for backend, device in names),
    ]
    lines = columns(head, rows, left=0)
    notes = []
    if any("*" in cell for row in rows for cell in row):
        notes.append("* scaled up from a few circuits, which run one by one.")
    if any(cell == MISSING for row in rows for cell in row):
        notes.append("- not measured: too long, or too large; the file says which.")
    title = f"Milliseconds of circuits, forward and backward ({found['circuit']}, {found['n_layers']} layers)"
    return [title, *lines, *(wrapped("  ", note) for note in notes)]


def _cell(cell: Any) -> str:
    if "seconds" not in cell:
        return MISSING
    return figure(1000 * cell["seconds"]["median"]) + "*" * (cell["circuits_timed"] < cell["batch"])


def _net(found: Net) -> list[str]:
    rows, left_out = [], []
    settings: Any = found["settings"]
    samples = SAMPLES[found.get("kind", "images")]
    of_tokens = any("tokens_per_second" in one for one in settings)
    for one in settings:
        name = [one["device"], one["precision"]]
        if "update" not in one:
            left_out.append(f"{' '.join(name)}: {one.get('why', '')}")
            continue
        parts = [one[part] for part in ("forward", "backward", "optimizer", "update")]
        rows.append(
            [
                *name,
                *(figure(1000 * part["median"]) for part in parts),
                figure(one["samples_per_second"]),
                *([figure(one["tokens_per_second"])] if of_tokens else []),
                figure(one["seconds_per_epoch"]),
                f"{one['peak_bytes'] / 1e6:,.0f}",
            ]
        )
    size = f"{found['n_weights']:,} weights, " if "n_weights" in found else ""
    if "n_weights" in found and found.get("n_trained", found["n_weights"]) < found["n_weights"]:
        size += f"{found.get('n_trained'):,} of them trained, "
    what = f"batch {found['batch_size']}, {found['n_samples']:,} {samples} an epoch"
    head = [
        "device",
        "precision",
        "forward",
        "backward",
        "optimizer",
        "update",
        f"{samples}/s",
        *(["tokens/s"] if of_tokens else []),
        "s/epoch",
        "peak MB",
    ]
    lines = columns(head, rows, left=2) if rows else []
    title = f"The net of {found['recipe']}: {size}{what}; medians in milliseconds"
    return [wrapped("", title), *lines, *(wrapped("  ", why) for why in left_out)]


def _profile(found: Profile) -> list[str]:
    title = f"The costliest operations of {found['recipe']} on {found['device']} (trace: {found['trace']})"
    return [title, *(wrapped("  ", str(Operation(**one))) for one in found["operations"])]


def _row(label: str, text: str) -> str:
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=f"  {label}".ljust(LABEL),
        subsequent_indent=" " * LABEL,
        break_on_hyphens=False,
    )


def wrapped(bullet: str, text: str) -> str:
    """A paragraph after a bullet, or any other beginning."""
    return textwrap.fill(
        text, WIDTH, initial_indent=bullet, subsequent_indent=" " * len(bullet), break_on_hyphens=False
    )
