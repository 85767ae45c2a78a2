"""Machines beside each other: time, memory, cost, stability."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qnnkit import checks, workspace
from qnnkit.device import machine
from qnnkit.survey.file import load
from qnnkit.survey.form import Survey
from qnnkit.survey.printed import MISSING, columns, wrapped
from qnnkit.survey.words import SAMPLES, figure

PRECISION = "float32"
"""In which nets are compared: every device computes in it."""
ALIKE = 1.1
"""Ratio of times below which two machines are not told apart."""
LONGEST_NAME = 27


@dataclass(frozen=True)
class Row:
    """One device of one machine; None where its file does not tell."""

    machine: str
    device: str
    bytes_per_second: float | None
    flops_per_second: float | None
    """Of products in float32."""
    seconds_per_product: float
    """Of 64x64 matrices."""
    seconds_per_epoch: float | None
    """Of the net, in float32."""
    peak_bytes: int | None
    price_per_hour: float | None
    spread: float | None
    """The slowest update over the median one."""

    @property
    def cost_per_epoch(self) -> float | None:
        """In the currency of the price."""
        if self.seconds_per_epoch is None or self.price_per_hour is None:
            return None
        return self.seconds_per_epoch * self.price_per_hour / 3600


@dataclass(frozen=True)
class Comparison:
    """What two or more machines' files say side by side."""

    rows: list[Row]
    net: str | None
    """What the net's columns are about; None where the files hold no net that all have."""
    sentences: list[str]


def files(named: str | Sequence[str | Path]) -> list[Path]:
    """The machines' files that are meant.

    A relative path is meant from the current folder, or, if nothing is there, from the workspace, where
    `qnnkit measure --out` writes.

    Args:
        named: Files and folders (all `.json` in them); in one text, with commas between them.

    Raises:
        ValueError: A folder holds none.
    """
    if isinstance(named, str):
        named = [named] if _place(named).is_dir() else [each.strip() for each in named.split(",")]
    return [path for each in named for path in _in_folder(_place(each))]


def _place(named: str | Path) -> Path:
    """Where a file or folder lies; as it was named where there is none."""
    path = Path(named).expanduser()
    return next((place for place in (path.absolute(), workspace.place(path)) if place.exists()), path)


def _in_folder(place: Path) -> list[Path]:
    """The files in a folder; a file is itself.

    Raises:
        ValueError: The folder holds none.
    """
    if not place.is_dir():
        return [place]
    if found := sorted(place.glob("*.json")):
        return found
    rule = "hold machines' files"
    raise ValueError(checks.message("compare", rule, str(place), "Make one: qnnkit measure --out FILE."))


def compare(paths: Sequence[str | Path]) -> Comparison:
    """The machines of these files, side by side.

    Raises:
        FileNotFoundError, ValueError: One of them is no machine's file.
        ValueError: There are fewer than two.
    """
    found = {Path(path).resolve(): Path(path) for path in paths}  # each file once, however it was named
    if len(found) < 2:
        rule, step = "name two or more machines' files", "Measure on another machine, and copy its file here."
        raise ValueError(checks.message("compare", rule, [str(path) for path in found.values()], step))
    surveys = {place: load(path) for place, path in found.items()}
    names = {place: survey["machine"]["name"] for place, survey in surveys.items()}
    return side_by_side({_name(place, names): survey for place, survey in surveys.items()})


def _name(place: Path, names: Mapping[Path, str]) -> str:
    """A machine's name; where several have it, with as much of the file's path as tells it from theirs.

    Example:
        >>> _name(Path("/x/a/mac.json"), {Path("/x/a/mac.json"): "Mac", Path("/x/b/mac.json"): "Mac"})
        'Mac (a/mac)'
    """

    def end(path: Path, n: int) -> tuple[str, ...]:
        return (*path.parent.parts, path.stem)[-n:]

    name = names[place]
    others = [path for path in names if path != place and names[path] == name]
    if not others:
        return name
    for n in range(1, len(place.parts) + 1):
        if all(end(path, n) != end(place, n) for path in others):
            return f"{name} ({'/'.join(end(place, n))})"
    return f"{name} ({place})"  # only the ends of their names differ


def side_by_side(surveys: Mapping[str, Survey]) -> Comparison:
    """As `compare`, for surveys by the name of their machine."""
    nets = {name: survey["sections"].get("net") for name, survey in surveys.items()}
    digests = {net["digest"] for net in nets.values() if net}
    same = len(digests) == 1
    rows = [row for name, survey in surveys.items() for row in _rows(name, survey, with_net=same)]
    sentences: list[str] = []
    net = next((net for net in nets.values() if net), None) if same else None
    what = None
    if net:
        samples = f"{net['n_samples']:,} {SAMPLES[net.get('kind', 'images')]}"
        what = f"{net['recipe']}, batch {net['batch_size']}, {samples} an epoch, {PRECISION}"
        missing = [name for name in nets if nets[name] is None]
        sentences += [f"{name} has no net measured." for name in missing]
        sentences += _who_is_faster(rows)
    elif digests:
        told = "; ".join(f"{name}: {net['recipe']}" for name, net in nets.items() if net)
        sentences.append(
            f"The nets differ in settings, batch or data ({told}), so times per epoch are not compared. "
            "Measure one recipe on all machines."
        )
    return Comparison(rows, what, [*sentences, *_doubts(surveys)])


def comparison_table(found: Comparison) -> str:
    """Text of at most 100 columns."""
    head = ["machine", "device", "GB/s", "GFLOP/s", "64x64 us", "s/epoch", "peak MB", "cost/epoch", "spread"]
    rows = [
        [
            _short(row.machine),
            row.device,
            _told(row.bytes_per_second, 1e-9),
            _told(row.flops_per_second, 1e-9),
            _told(row.seconds_per_product, 1e6),
            _told(row.seconds_per_epoch),
            _told(row.peak_bytes, 1e-6),
            "free" if row.cost_per_epoch == 0 else _told(row.cost_per_epoch),
            MISSING if row.spread is None else f"{row.spread:.1f}x",
        ]
        for row in found.rows
    ]
    lines = columns(head, rows, left=2)
    if found.net:
        lines.append(wrapped("  ", f"The net: {found.net}. Spread: its slowest update over the median one."))
    return "\n".join([*lines, "", *(wrapped("  - ", sentence) for sentence in found.sentences)])


def _rows(name: str, survey: Survey, *, with_net: bool) -> Iterable[Row]:
    net = survey["sections"].get("net") if with_net else None
    settings: dict[str, Any] = {
        one["device"]: one
        for one in (net["settings"] if net else [])
        if one["precision"] == PRECISION and "update" in one
    }
    for one in survey["sections"]["platform"]["devices"]:
        times = settings.get(one["device"], {})
        update = times.get("update")
        small = next(row["seconds"] for row in one["small_products"] if row["size"] == 64)
        yield Row(
            machine=name,
            device=one["device"],
            bytes_per_second=one["bandwidth"].get("bytes_per_second"),
            flops_per_second=one["matmul"].get(PRECISION, {}).get("flops_per_second"),
            seconds_per_product=small["median"],
            seconds_per_epoch=times.get("seconds_per_epoch"),
            peak_bytes=times.get("peak_bytes"),
            price_per_hour=survey["price_per_hour"],
            spread=update["most"] / update["median"] if update else None,
        )


def _who_is_faster(rows: list[Row]) -> Iterable[str]:
    """The fastest device beside the best of every other machine, and which machine is cheapest."""
    best: dict[str, tuple[float, Row]] = {}
    for row in rows:
        taken = row.seconds_per_epoch
        if taken is not None and (row.machine not in best or taken < best[row.machine][0]):
            best[row.machine] = taken, row
    if len(best) < 2:
        return
    (least, first), *others = sorted(best.values(), key=lambda pair: pair[0])
    for taken, row in others:
        ratio = taken / least
        what = f"{ratio:.1f}x faster per epoch than" if ratio >= ALIKE else "about as fast per epoch as"
        times = f"{figure(least)} s on {first.device}, {figure(taken)} s on {row.device}"
        yield f"{first.machine} is {what} {row.machine} ({times}){_price(first, row)}."
    costs = {row.machine: row.cost_per_epoch for _, row in best.values() if row.cost_per_epoch is not None}
    if len(costs) > 1:
        cheapest = min(costs, key=lambda name: costs[name])
        yield f"Cheapest per epoch: {cheapest}, {figure(costs[cheapest]) if costs[cheapest] else 'free'}."


def _price(fast: Row, slow: Row) -> str:
    """What being faster costs, in a few words."""
    if fast.cost_per_epoch is None or slow.cost_per_epoch is None:
        return ""
    if fast.cost_per_epoch == 0:
        return ", and free"
    if slow.cost_per_epoch == 0:
        return f"; an epoch costs {figure(fast.cost_per_epoch)}, and nothing there"
    return f"; an epoch costs {figure(fast.cost_per_epoch)}, and {figure(slow.cost_per_epoch)} there"


def _doubts(surveys: Mapping[str, Survey]) -> Iterable[str]:
    """What makes one machine's figures less comparable."""
    for name, survey in surveys.items():
        if survey["busy"]["sentence"]:
            cores = survey["machine"]["cores"]
            yield (
                f"{name} was busy while it was measured: other programs used up to "
                f"{survey['busy']['most']:.1f} of its {cores} cores, so its times are too long."
            )
        if versions := _other_versions(survey):
            yield f"{name} was measured with {versions}, not with what is installed here."


def _other_versions(survey: Survey) -> str:
    here = {name: machine.version(name) for name in ("torch", "pennylane")}
    there = survey["machine"]["versions"]
    return ", ".join(
        f"{name} {_release(there[name])}"
        for name, version in here.items()
        if name in there and _release(there[name]) != _release(version)
    )


def _release(version: str | None) -> str:
    """Without what a build adds: 2.11.0 for 2.11.0+cu128."""
    return (version or "").partition("+")[0]


def _told(value: float | None, unit: float = 1.0) -> str:
    return MISSING if value is None else figure(unit * value)


def _short(name: str) -> str:
    """Cut in its middle: what it is stands at the front, which file it is from at the end."""
    half = LONGEST_NAME // 2
    return name if len(name) <= LONGEST_NAME else f"{name[:half]}…{name[-half:]}"
