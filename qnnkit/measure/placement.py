"""Measures which device, number of threads and batch size train a net fastest on this machine."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from qnnkit import checks, device
from qnnkit.checkpoint import own_generators
from qnnkit.device import machine
from qnnkit.measure import clock, held
from qnnkit.measure.clock import Lap, Step
from qnnkit.measure.workload import Workload
from qnnkit.settings import Settings

NEAR = 0.1
"""Share of the best rate that the smallest batch may lose."""
SMALLEST, LARGEST = 16, 1024
"""Smallest and largest batch size that is tried."""
UPDATES = 20
"""Fewest updates of an epoch. With fewer, no optimizer gets far."""
PROBE = 8
"""Samples of the first batch, which shows how long the net takes."""
ROOM = 0.8
"""Share of the available memory that a larger batch may take."""
SHARE = 0.05
"""A race takes at most this share of the time of all trainings."""
BRIEFEST, STARTING = 1.0, 3.0
"""Shortest races, in seconds: on the CPU, and with an accelerator, which takes time to start."""


@dataclass(frozen=True)
class Placement:
    """Device, threads and batch size with which a net is trained, and why.

    Attributes:
        device: A torch device.
        backend: Simulator that runs the circuits, or "auto".
        threads: CPU threads; None leaves torch's own number.
        batch_size: Samples per update.
        sentence: The choice, and the speed of the others, as a sentence.
        rows: The table of candidates, fastest first: `candidate`, `threads`, `samples_per_second`,
            `standard_error` and `why` it was not timed. Empty if there was nothing to choose.
    """

    device: str
    backend: str
    threads: int | None
    batch_size: int
    sentence: str
    rows: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Candidate:
    """One way to train a net."""

    device: str
    threads: int | None
    batch_size: int

    @property
    def place(self) -> str:
        """Device and threads in words.

        Example:
            >>> Candidate("cpu", 1, 64).place, Candidate("mps", None, 64).place
            ('cpu on 1 thread', 'mps')
        """
        threads = f" on {self.threads} thread{'s' * (self.threads != 1)}"
        return self.device + threads * bool(self.threads)

    @property
    def name(self) -> str:
        return f"{self.place}, batch {self.batch_size}"


def place(
    workload: Workload,
    *,
    device: str = "auto",
    threads: int | str | None = "auto",
    trainings: int | None = None,
    seconds: float = 10.0,
) -> Placement:
    """Times training steps, and returns the placement with which a net trains fastest on this machine.

    A tie within 5 %, or within the noise, goes to the simpler choice: the CPU, fewer threads. A batch size of
    "auto" becomes the smallest power of two whose rate is within 10 % of the best. If the settings leave only
    one choice, nothing is measured.

    Args:
        workload: The training. A new net is built for each device.
        device: A torch device, or "auto" for all devices that compute here.
        threads: Number of CPU threads; "auto" for 1, half and all physical cores; None for torch's own.
        trainings: How many such trainings follow. Measuring takes at most about 5 % of their time; if that is
            under a second (3 with an accelerator), the simplest choice is taken. With None, or a batch size
            of "auto", there is no such limit.
        seconds: About how long to measure, without the time to trace circuits.

    Raises:
        ValueError: The device is not available, or does not support the precision.
        Exception: The model cannot be trained on these samples anywhere.

    Example:
        >>> import torch
        >>> from qnnkit.tasks import Classification
        >>> net, batch = torch.nn.Linear(4, 2), (torch.zeros(8, 4), torch.zeros(8, dtype=torch.long))
        >>> config = Settings(batch_size=8)
        >>> workload = Workload("", config, 8, lambda *_: net, lambda config: batch, Classification())
        >>> place(workload, device="cpu", threads=1).sentence
        'cpu on 1 thread: the only choice here, so nothing was timed.'
    """
    config = workload.training
    ways = candidates(device, threads, config, workload.n_samples)
    if len(ways) == 1:
        sentence = f"{ways[0].place}: the only choice here, so nothing was timed."
        return Placement(ways[0].device, config.backend, ways[0].threads, ways[0].batch_size, sentence)
    laps, at, busy = timed(workload, ways, seconds, trainings)
    chosen = decide(ways, laps)
    rows = [
        {"candidate": way.name, "threads": way.threads, "samples_per_second": lap.seconds and 1 / lap.seconds}
        | {"standard_error": lap.error, "why": lap.why}
        for way in ways
        if (lap := laps.get(way.name))
    ]
    rows.sort(key=lambda row: -(row["samples_per_second"] or 0))
    notes = [_sentence(chosen, rows), f"Timed at batch {at}." if at else None, busy]
    sentence = " ".join(filter(None, notes))
    return Placement(chosen.device, config.backend, chosen.threads, chosen.batch_size, sentence, rows)


def _sentence(chosen: Candidate, rows: Sequence[Mapping[str, Any]]) -> str:
    """Such as "cpu on 1 thread, batch 32: 15,300 samples/s; cpu on 2 threads, batch 32: 0.50 times that."."""
    rates = {row["candidate"]: row["samples_per_second"] for row in rows}
    speed = rates.pop(chosen.name, None)
    if not speed:
        return f"{chosen.name}: nothing could be measured, so this is the simplest choice, not the fastest."
    if len(rows) == 1:
        return f"{chosen.name}: {speed:,.0f} samples/s; training is too short to time other choices."
    shares = {name: f"{rate / speed:.2f} times that" if rate else "not timed" for name, rate in rates.items()}
    others = [f"{name}: {share}" for name, share in shares.items()]
    return "; ".join([f"{chosen.name}: {speed:,.0f} samples/s", *others[:3]]) + "."


# --- what there is to choose from ---------------------------------------------------------------------------


def candidates(device: str, threads: int | str | None, config: Settings, n_samples: int) -> list[Candidate]:
    """Every candidate that the settings allow. The CPU, few threads and small batches come first.

    For an accelerator, "auto" threads are torch's own number, because threads hardly matter there.
    """
    batches = sizes(n_samples) if config.batch_size == "auto" else [config.batch_size]
    ways = []
    for place in devices(device, config.precision):
        counts: Any = [threads] if threads != "auto" else thread_counts() if place == "cpu" else [None]
        ways += [Candidate(place, number, size) for number in counts for size in batches]
    return ways


def devices(requested: str, precision: str = "float32") -> list[str]:
    """Torch devices to choose from. Of several CUDA devices, training only uses the first.

    Raises:
        ValueError: The name is unknown, the device cannot compute here, or no device supports the precision.
    """
    usable = [one for one in device.usable_devices() if one.index in (None, 0)] if requested == "auto" else []
    names = [str(one) for one in usable or [device.choose(requested)]]
    if precision == "float16":  # training in float16 on a CPU is not supported
        names = [one for one in names if one != "cpu"]
        if not names:
            step = "Use bfloat16 or float32."
            raise ValueError(checks.message("precision", "suit the device", "float16 on cpu", step))
    return names


def thread_counts() -> list[int]:
    """Thread counts to try: 1, half and all physical cores of this process, at most torch's own number."""
    import psutil

    physical = psutil.cpu_count(logical=False) or machine.cores()
    most = max(1, min(physical, machine.cores(), torch.get_num_threads()))
    return sorted({1, max(1, most // 2), most})


def sizes(n_samples: int) -> list[int]:
    """Batch sizes to try: powers of two that leave an epoch enough updates, and always the smallest.

    A size that would leave a last batch of one sample is omitted, because batch normalisation may raise an
    error for it.

    Example:
        >>> sizes(1078), sizes(33)
        ([16, 32], [17])
    """
    most = max(SMALLEST, min(LARGEST, n_samples // UPDATES))
    powers = [SMALLEST * 2**k for k in range(10) if SMALLEST * 2**k <= most]
    near = [[size] for size in (SMALLEST + 1, SMALLEST - 1) if n_samples % size != 1]
    return [size for size in powers if n_samples % size != 1] or [*near, powers][0]


# --- the race -----------------------------------------------------------------------------------------------


def timed(
    workload: Workload, ways: Sequence[Candidate], seconds: float, trainings: int | None = None
) -> tuple[dict[str, Lap], int | None, str | None]:
    """Times training steps of every candidate, the smallest batches first.

    This takes a copy of the model with its optimizer per device. Random generators keep their states.

    Returns:
        The laps by name of the candidate (only the first one's, if the trainings are too short for a race);
        the batch size that was timed, if a step of the requested one would take long; and a sentence, if the
        machine is busy.
    """
    first, one_size = ways[0], len({way.batch_size for way in ways}) == 1
    with own_generators():
        step, size, tried, took = _steps(workload), first.batch_size, min(first.batch_size, PROBE), None
        with contextlib.suppress(Exception):  # the race reports it
            took = clock.race({"": step(first, tried)})[""].seconds if one_size else None
        if trainings and took:
            allowed = SHARE * took * workload.n_samples * workload.training.epochs * trainings
            if allowed < (BRIEFEST if {way.device for way in ways} == {"cpu"} else STARTING):
                return {first.name: Lap(took)}, None, None
            seconds = min(seconds, allowed / 2)  # a race may take twice as long
        share = seconds / (len({way.place for way in ways}) * (clock.FEWEST + 2))
        with contextlib.suppress(Exception):  # as above
            while took and tried < size and 8 * took * tried <= share:  # a small batch takes long per sample
                tried = min(8 * tried, size)
                took = clock.race({"": step(first, tried)})[""].seconds
        size = min(size, max(tried, int(share / took))) if took else size
        at = size if size != first.batch_size else None
        busy = clock.note(clock.load())
        ordered = sorted(ways, key=lambda way: way.batch_size)
        steps = {way.name: step(way, at or way.batch_size) for way in ordered}
        return clock.race(steps, seconds=seconds, longest=math.inf if one_size else share), at, busy


def _steps(workload: Workload) -> Callable[[Candidate, int], Step]:
    """Returns a function from candidate and batch size to a training step. Each device has a copy of the net.

    On the CPU, a batch that would not fit into memory raises an error; the system would end the process.
    """
    stepper, grown = cache(workload.stepper), dict[str, float]()  # bytes of a step per sample, by device

    def step(way: Candidate, size: int) -> Step:
        place, batch = torch.device(way.device), []

        def run() -> None:
            if batch:
                stepper(way.device)(batch[0])
                return
            if place.type == "cpu" and grown.get("cpu", 0) * size > ROOM * machine.memory()[1]:
                raise MemoryError("It would not fit into memory.")
            stepper(way.device)
            held.reset_peak(place)
            first, before = workload.batch(size), held.peak_on(place)
            stepper(way.device)(first)
            grown[way.device] = max(0, held.peak_on(place) - before) / size
            batch.append(first)

        return Step(run, place, way.threads, size)

    return step


def decide(ways: Sequence[Candidate], laps: Mapping[str, Lap]) -> Candidate:
    """The candidate to use: the simplest that is not clearly slower, with the smallest good batch size.

    Args:
        ways: The candidates, the simplest first.
        laps: Laps by name of the candidate, as `clock.race` returns them.
    """
    times = {way: taken for way in ways if way.name in laps and (taken := laps[way.name].seconds)}
    if not times:
        return ways[0]
    size = min(way.batch_size for way in times if times[way] <= (1 + NEAR) * min(times.values()))
    return clock.winner({way: laps[way.name] for way in times if way.batch_size == size})
