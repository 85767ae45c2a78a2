"""A survey as it is read, and several machines beside each other."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnkit import checks, plots, words, workspace
from qnnkit.measure.backends import CIRCUIT, GPU, LAYERS
from qnnkit.measure.device_figures import Row
from qnnkit.measure.survey import facts, figures, load

if TYPE_CHECKING:
    import pandas as pd

UNSTABLE = 2.0
"""The slowest round over the median, from which on a measurement is called unstable."""
ALIKE = 1.1
"""Ratio of times below which two machines are not told apart."""
PRECISION = "float32"
"""In which nets are compared: every device computes in it."""
UNITS = {"B/s": (1e-9, "GB/s"), "FLOP/s": (1e-9, "GFLOP/s"), "B": (1e-6, "MB")}
"""Unit of a row -> by what it is multiplied to be read, and the unit it then has."""
OWN = ("what", "device", "value", "unit", "spread", "why", "timed", "n_weights", "n_trained")
"""Of a row; all else are its settings."""


def table(found: Mapping[str, Any]) -> str:
    """The whole survey as text: figures first, then what they say, in sentences."""
    import pandas as pd

    net, price, about = found["net"], found["price_per_hour"], found["machine"]
    head = f"{about['name']}, {about['memory_bytes'] / 1e9:.1f} GB, {about['system']}; "
    head += f"measured {found['measured_at']}, in {found['seconds']:.0f} s"
    head += "" if price is None else f"; {price:g} an hour"
    plain = [_readable(row) for row in found["rows"] if row["what"] != "circuits" and row["value"]]
    blocks = [head, _text(pd.DataFrame(plain), index=False)]
    if cells := values(found, "circuits", "qubits", "batch", "backend", "device"):
        index = pd.MultiIndex.from_tuples(cells, names=["qubits", "batch", "backend", "device"])
        grid = _text(1000 * pd.Series(list(cells.values()), index).unstack(["backend", "device"], sort=False))
        blocks.append(f"Milliseconds of circuits, both ways ({CIRCUIT}, {LAYERS} layers):\n{grid}")
    blocks.append(f"The net: {_of_net(net)}.")
    return "\n\n".join([*blocks, _list(sentences(found))])


def _of_net(net: Mapping[str, Any]) -> str:
    return f"{net['recipe']}, batch {net['batch_size']}, {net['n_samples']:,} {net['noun']} an epoch"


def values(
    found: Mapping[str, Any], what: str, *by: str, key: str = "value", **settings: Any
) -> dict[Any, float]:
    """What the rows of one kind hold, by settings that tell them apart; those without are left out."""
    wanted = {"what": what, **settings}
    rows = [row for row in found["rows"] if wanted.items() <= row.items() and row.get(key)]
    return {row.get(by[0]) if len(by) == 1 else tuple(row.get(name) for name in by): row[key] for row in rows}


def _readable(row: Row) -> Row:
    by, unit = UNITS.get(row["unit"], (1.0, row["unit"]))
    if unit == "s":
        scales = ((1.0, "s"), (1e3, "ms"), (1e6, "us"))
        by, unit = next((pair for pair in scales if pair[0] * row["value"] >= 1), scales[-1])
    settings = {name: value for name, value in row.items() if name not in OWN}
    of = [str(value) if isinstance(value, str) else f"{name} {value}" for name, value in settings.items()]
    spread = f"{row['spread']:.1f}x" if row["spread"] else ""
    found = {"what": row["what"], "device": row["device"], "of": " ".join(of)}
    return {**found, "value": by * row["value"], "unit": unit, "spread": spread}


def _text(frame: pd.DataFrame, **options: Any) -> str:
    return frame.to_string(float_format=_figure, na_rep="-", **options)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else words.figure(value)


def _list(told: Sequence[str]) -> str:
    return "\n".join(textwrap.fill(each, 100, initial_indent="- ", subsequent_indent="  ") for each in told)


# --- what it says -------------------------------------------------------------------------------------------


def sentences(found: Mapping[str, Any]) -> list[str]:
    """What follows from a survey, and what to doubt."""
    told = [*found["notes"], *_of_devices(found), *_of_simulators(found), *net_sentences(found)]
    wild = [_readable(row) for row in found["rows"] if row["value"] and (row["spread"] or 0) > UNSTABLE]
    if wild:
        names = ", ".join(f"{row['what']} {row['device']} {row['of']}".strip() for row in wild[:3])
        more = " and others" if len(wild) > 3 else ""
        told.append(f"Unstable, with rounds that took over twice the median: {len(wild)} ({names}{more}).")
    return [*told, *filter(None, [found["busy"]["sentence"]])]


def _of_devices(found: Mapping[str, Any]) -> Iterator[str]:
    """From which size on an accelerator multiplies small matrices faster than the CPU."""
    cpu = values(found, "small product", "size", device="cpu")
    for name in dict.fromkeys(device for device, _ in values(found, "small product", "device", "size")):
        if name != "cpu" and cpu:
            what = f"A hundred small matrix products on {name}, one after the other"
            own = values(found, "small product", "size", device=name)
            yield from _from_where(what, "the CPU", own, cpu, "x{0} matrices")


def _of_simulators(found: Mapping[str, Any]) -> Iterator[str]:
    """Which simulator wins at few and at many qubits, and from how many qubits on lightning.gpu does."""
    cells = values(found, "circuits", "batch", "qubits", "backend", "device")
    batches = sorted({batch for batch, *_ in cells})
    batch = 64 if 64 in batches else 1
    sizes = sorted(n for size, n, *_ in cells if size == batch)
    for n in dict.fromkeys([*sizes[:1], *sizes[-1:]]):
        at = values(found, "circuits", "backend", "device", batch=batch, qubits=n)
        if told := _slower({f"{name} on {device}": at[name, device] for name, device in at}):
            yield f"{batch} circuits of {n} qubits: {told}"
    for batch in batches:
        own, theirs = (
            values(found, "circuits", "qubits", device=str(GPU), batch=batch, backend=name)
            for name in ("lightning.gpu", "batched")
        )
        what = f"{batch} circuit{'s' * (batch > 1)} on {GPU}, lightning.gpu"
        yield from _from_where(what, "the batched simulator", own, theirs, " qubits")


def _from_where(
    what: str, other: str, own: Mapping[int, float], theirs: Mapping[int, float], unit: str
) -> Iterator[str]:
    """From which size on `own` times stay below the others'."""
    sizes = sorted(own.keys() & theirs.keys())
    first = next((n for i, n in enumerate(sizes) if all(own[m] < theirs[m] for m in sizes[i:])), None)
    if first is not None:
        yield f"{what}: faster than {other} from {first}{unit.format(first)} on."
    elif sizes:
        yield f"{what}: slower than {other} up to {sizes[-1]}{unit.format(sizes[-1])}."


def _slower(times: Mapping[str, float]) -> str | None:
    """Who is fastest, and how many times as long the others take; None of fewer than two."""
    first, *others = sorted(times, key=lambda name: times[name]) or [""]
    told = ", ".join(f"{name} {_figure(times[name] / times[first])} times" for name in others)
    return f"{_figure(1000 * times[first])} ms on {first}; {told} as long." if others else None


def net_sentences(found: Mapping[str, Any]) -> list[str]:
    """Which device and precision is fastest for the net, on how many threads, and the memory of each."""
    epochs = values(found, "net epoch", "device", "precision")
    raced = values(found, "net update on threads", "threads", "precision")
    peaks = values(found, "net memory", "device", precision=PRECISION)
    each = ", ".join(f"{peak / 1e6:,.0f} MB on {name}" for name, peak in peaks.items())
    told = {
        "An epoch of the net": _slower({f"{name} in {kind}": epochs[name, kind] for name, kind in epochs}),
        "An update of the net on the CPU": _slower(
            {f"{n} threads in {kind}": raced[n, kind] for n, kind in raced}
        ),
        f"Memory at the peak in {PRECISION}": f"{each}." if len(peaks) > 1 else None,
    }
    return [f"{what}: {said}" for what, said in told.items() if said]


# --- machines beside each other -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """What two or more machines' files say side by side."""

    frame: pd.DataFrame
    """A row for each device of each machine; NaN where its file does not tell."""
    net: str
    """What the net's columns are about; empty where the files hold no net that all have."""
    sentences: list[str]

    def __str__(self) -> str:
        about = [f"The net: {self.net}. Spread: its slowest update over the median one."] if self.net else []
        return "\n".join([_text(self.frame, index=False), *about, "", _list(self.sentences)])

    def picture(self) -> plots.Picture:
        """Time, memory, cost and stability of each machine's devices."""
        columns = ["machine", "device", "s/epoch", "peak MB", "cost/epoch", "spread"]
        known = self.frame[columns].astype(object).where(self.frame[columns].notna(), None)
        return plots.machines(*(list(known[column]) for column in columns), net=self.net)


def files(named: str | Sequence[str | Path]) -> list[Path]:
    """The machines' files that are meant.

    A relative path is meant from the current folder, or, if nothing is there, from the workspace, where
    `qnnkit measure --out` writes.

    Args:
        named: Files and folders (all `.json` in them); in one text, with commas between them.

    Raises:
        ValueError: A folder holds none.
    """

    def place_of(name: str | Path) -> Path:
        path = Path(name).expanduser()
        return next((one for one in (path.absolute(), workspace.place(path)) if one.exists()), path)

    if isinstance(named, str):
        named = [named] if place_of(named).is_dir() else [each.strip() for each in named.split(",")]
    found: list[Path] = []
    for place in map(place_of, named):
        inside = sorted(place.glob("*.json")) if place.is_dir() else [place]
        if not inside:
            step = "Make one: qnnkit measure --out FILE."
            raise ValueError(checks.message("compare", "hold machines' files", str(place), step))
        found += inside
    return found


def compare(paths: Sequence[str | Path]) -> Comparison:
    """The machines of these files, side by side.

    Raises:
        FileNotFoundError, ValueError: One of them is no machine's file.
        ValueError: There are fewer than two.
    """
    import pandas as pd

    loaded = {Path(path).resolve(): load(path) for path in paths}  # each file once, however it was named
    if len(loaded) < 2:
        rule, step = "name two or more machines' files", "Measure on another machine, and copy its file here."
        raise ValueError(checks.message("compare", rule, [str(path) for path in paths], step))
    names = [one["machine"]["name"] for one in loaded.values()]
    common, surveys = os.path.commonpath([place.parent for place in loaded]), {}
    for place, one in loaded.items():
        name = one["machine"]["name"]
        own = f" ({place.relative_to(common).with_suffix('')})" if names.count(name) > 1 else ""
        surveys[name + own] = one
    nets = {name: one["net"] for name, one in surveys.items()}
    same, net = len({one["digest"] for one in nets.values()}) == 1, ""
    frame = pd.DataFrame(
        [_beside(name, one, each, same) for name, one in surveys.items() for each in figures(one)]
    )
    if same:
        net = f"{_of_net(next(iter(nets.values())))}, {PRECISION}"
        told = list(_who_is_faster(frame))
    else:
        each = "; ".join(f"{name}: {own['recipe']}" for name, own in nets.items())
        told = [
            f"The nets differ in settings, batch or data ({each}), so times per epoch are not compared. "
            "Measure one recipe on all machines."
        ]
    return Comparison(frame, net, [*told, *_doubts(surveys)])


def _beside(name: str, found: Mapping[str, Any], one: Mapping[str, Any], same: bool) -> Row:
    """A machine's device, as a row of the comparison; the file may lack any of its measurements."""

    def of(what: str, key: str = "value", **settings: Any) -> float:
        there = values(found, what, "device", key=key, device=one["device"], **settings)
        return next(iter(there.values()), math.nan)

    def of_net(what: str, key: str = "value") -> float:
        return of(f"net {what}", key, precision=PRECISION) if same else math.nan

    price = found["price_per_hour"]
    return {
        "machine": name,
        "device": one["device"],
        "GB/s": of("bandwidth") / 1e9,
        "GFLOP/s": of("product", precision=PRECISION) / 1e9,
        "64x64 us": 1e6 * of("small product", size=64),
        "s/epoch": of_net("epoch"),
        "peak MB": of_net("memory") / 1e6,
        "cost/epoch": math.nan if price is None else of_net("epoch") * price / 3600,
        "spread": of_net("update", "spread"),
    }


def _who_is_faster(frame: pd.DataFrame) -> Iterator[str]:
    """The fastest device beside the best of every other machine, and which machine is cheapest."""
    known = frame.dropna(subset=["s/epoch"]).sort_values("s/epoch").drop_duplicates("machine")
    for name in dict.fromkeys(frame["machine"]):
        if name not in set(known["machine"]):
            yield f"{name} has no net measured."
    rows: list[dict[str, Any]] = known.to_dict("records")
    for row in rows[1:]:
        best, ratio = rows[0], row["s/epoch"] / rows[0]["s/epoch"]
        what = f"{ratio:.1f}x faster per epoch than" if ratio >= ALIKE else "about as fast per epoch as"
        times = [f"{_figure(each['s/epoch'])} s on {each['device']}" for each in (best, row)]
        costs = [each["cost/epoch"] for each in (best, row)]
        price = f"; an epoch costs {_figure(costs[0])}, and {_figure(costs[1])} there"
        price = "" if math.isnan(sum(costs)) else price
        yield f"{best['machine']} is {what} {row['machine']} ({', '.join(times)}){price}."
    priced = known.dropna(subset=["cost/epoch"]).sort_values("cost/epoch", kind="stable")
    if len(priced) > 1:
        yield f"Cheapest per epoch: {priced.iloc[0]['machine']}, {_figure(priced.iloc[0]['cost/epoch'])}."


def _doubts(surveys: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """What makes one machine's figures less comparable."""

    def releases(versions: Mapping[str, str]) -> dict[str, str]:  # without what a build adds
        return {each: versions[each].partition("+")[0] for each in ("torch", "pennylane") if each in versions}

    here = releases(facts()["versions"])
    for name, one in surveys.items():
        if one["busy"]["sentence"]:
            load = f"{one['busy']['most']:.1f} of its {one['machine']['cores']} cores"
            yield f"{name} was busy while it was measured: others used up to {load}; its times are too long."
        there = releases(one["machine"]["versions"])
        if others := ", ".join(f"{each} {there[each]}" for each in there if there[each] != here.get(each)):
            yield f"{name} was measured with {others}, not with what is installed here."
