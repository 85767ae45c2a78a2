"""Time as measured: one clock, one race, and how busy the machine is. Nothing measured is remembered."""

from __future__ import annotations

import contextlib
import functools
import math
import random
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from qnnkit import words
from qnnkit.device import machine
from qnnkit.train.out_of_memory import ran_out, release

QUIET = 0.1
"""Share of the cores that other programs may use before it is said: a browser and a desktop at rest."""
TIE = 0.05
"""Part by which a step has to be faster to count as faster, whatever the noise."""
FAR_SLOWER = 3.0
"""Times the best so far: such a step is not measured further."""
PATIENCE = 5.0
"""Seconds; a call that takes longer, and as long as the whole race should, is not repeated to warm up."""
FEWEST, MOST = 3, 15
"""Rounds of a race."""
TURN = 0.02
"""Seconds that a turn lasts at least, by repeating short steps."""


@dataclass(frozen=True)
class Spread:
    """Times of equal calls, in seconds."""

    least: float
    median: float
    most: float
    rounds: int

    @classmethod
    def of(cls, times: Sequence[float]) -> Spread:
        return cls(min(times), statistics.median(times), max(times), len(times))

    @property
    def ratio(self) -> float:
        """The slowest round over the median one."""
        return self.most / self.median


def synchronize(device: torch.device) -> None:
    """Waits until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def now(device: torch.device) -> float:
    """The clock, in seconds, once the device has done what it was given."""
    synchronize(device)
    return time.perf_counter()


@contextlib.contextmanager
def threads(number: int | str | None) -> Iterator[None]:
    """Sets the number of CPU threads, and restores it afterwards; None and "auto" change nothing.

    Of NumPy's matrix products, too: small circuits run on NumPy arrays, and its BLAS has threads of its own.
    """
    if not isinstance(number, int):
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        with _blas().limit(limits=number, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)


@functools.cache
def _blas() -> Any:
    """The libraries of this process that have threads; to look for them takes a moment."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def spread(
    run: Callable[[], Any],
    device: torch.device,
    *,
    seconds: float = 0.0,
    rounds: int = 3,
    most: int = 50,
    least: float = 0.0,
) -> Spread:
    """Times of one call, after one that warms up.

    Args:
        run: What is timed.
        device: Where it computes; waited for before each reading of the clock.
        seconds: For how long, about.
        rounds: At least that many, however long they take.
        most: And no more.
        least: Seconds of a round; shorter calls are repeated within one.
    """
    run()
    repeats = 1
    if least:
        repeats = max(1, min(1000, round(least / max(_elapsed(run, device, 1), 1e-7))))
    times, begin = [], time.perf_counter()
    while len(times) < rounds or (len(times) < most and time.perf_counter() - begin < seconds):
        times.append(_elapsed(run, device, repeats) / repeats)
    return Spread.of(times)


def _elapsed(run: Callable[[], Any], device: torch.device, repeats: int) -> float:
    start = now(device)
    for _ in range(repeats):
        run()
    return now(device) - start


# --- the race -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """What takes part in a race."""

    run: Callable[[], Any]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    threads: int | str | None = None
    samples: float = 1
    """Of one call: steps are compared by their seconds per sample."""


@dataclass(frozen=True)
class Lap:
    """How a step did in a race."""

    seconds: float | None
    """Per sample: the median of the faster half of the rounds, as in the others other processes had a turn;
    None where it could not be measured."""
    error: float | None = None
    """Standard error of its ratio to the fastest, round by round; None where it was measured once."""
    rounds: int = 1
    why: str = ""
    """Why it was not measured, in a sentence."""
    spread: float | None = None
    """The slowest round over the median one."""


def race(
    steps: Mapping[str, Step], *, seconds: float = 10.0, longest: float = math.inf, rounds: int = MOST
) -> dict[str, Lap]:
    """Times steps in turns, in changing order, so that a busy minute of the machine hits all alike.

    Each is called once to warm up and once to see how long it takes; those that are far slower than the best,
    and would take long, are not measured further.

    Args:
        steps: By name, in the order in which they are warmed up.
        seconds: For warming up, about, and as much again for the rounds.
        longest: Seconds of a call; a step that by the best time per sample would take longer is not tried,
            nor is any but the first once the time for warming up is over.
        rounds: At most.

    Raises:
        Exception: Every step failed, and not for want of memory: what the first one raised.
    """
    begin, laps = time.perf_counter(), _first_laps(steps, seconds, longest)
    first = {name: lap.seconds for name, lap in laps.items() if lap.seconds is not None}
    best = min(first.values(), default=math.inf)
    share = seconds / (FEWEST * max(1, len(first)))  # far slower or not, what is short may have had a hiccup
    near = [
        name
        for name in first
        if first[name] <= FAR_SLOWER * best or first[name] * steps[name].samples < share
    ]
    repeats = {name: max(1, math.ceil(TURN / (first[name] * steps[name].samples))) for name in near}
    taken: dict[str, list[float]] = {name: [] for name in near}
    order = random.Random(0)
    for number in range(rounds if len(near) > 1 else 0):
        if number >= FEWEST and time.perf_counter() - begin > 2 * seconds:
            break
        for name in order.sample(near, len(near)):
            try:
                taken[name].append(_turn(steps[name], repeats[name]) / steps[name].samples)
            except Exception as error:  # such as memory that others have taken meanwhile
                if not ran_out(error):
                    raise
                laps[name] = Lap(None, why=f"{words.first_line(error)}.")
                release(steps[name].device)
        near = [name for name in near if len(taken[name]) > number]
    if near and taken[near[0]]:
        fastest = taken[min(near, key=lambda name: _typical(taken[name]))]
        for name in near:
            ratios = [one / its for one, its in zip(taken[name], fastest, strict=True)]
            own = Spread.of(taken[name])
            laps[name] = Lap(_typical(taken[name]), _error_of_median(ratios), own.rounds, spread=own.ratio)
    return laps


def _first_laps(steps: Mapping[str, Step], seconds: float, longest: float) -> dict[str, Lap]:
    """Each step called once to warm up, and once or twice more to see how long it takes; see `race`."""
    begin, best, laps, errors = time.perf_counter(), math.inf, {}, []
    for name, step in steps.items():
        late = math.isfinite(longest) and time.perf_counter() - begin > seconds
        if math.isfinite(best) and (late or best * step.samples > longest):
            laps[name] = Lap(None, why="The time was up." if late else "A step would take too long.")
            continue
        try:
            first = _turn(step, 1)
            again = first if first > max(PATIENCE, 2 * seconds) else _turn(step, 1)
            if again < 1 and again > FAR_SLOWER * best * step.samples:  # once may be a hiccup
                again = min(again, _turn(step, 1))
        except Exception as error:  # what cannot run here does not win
            errors.append(error)
            laps[name] = Lap(None, why=f"{words.first_line(error)}.")
            release(step.device)
            continue
        laps[name] = Lap(again / step.samples)
        best = min(best, again / step.samples)
    if errors and math.isinf(best) and not all(map(ran_out, errors)):
        raise errors[0]
    return laps


def winner(laps: Mapping[str, Lap]) -> str | None:
    """The first step that is not clearly slower than any other: what is a tie goes to the earlier one.

    A tie is what lies within 5 %, or within two standard errors. None where nothing was measured.

    Example:
        >>> winner({"simple": Lap(1.04), "fast": Lap(1.0)}), winner({"simple": Lap(1.5), "fast": Lap(1.0)})
        ('simple', 'fast')
    """
    known = {name: (lap.seconds, lap.error or 0.0) for name, lap in laps.items() if lap.seconds is not None}
    least = min((seconds for seconds, _ in known.values()), default=0.0)
    return next(
        (name for name, (seconds, error) in known.items() if seconds <= (1 + max(TIE, 2 * error)) * least),
        None,
    )


def _turn(step: Step, repeats: int) -> float:
    """Seconds of one call. Where it is short, one before it wakes this number of threads up."""
    with threads(step.threads):
        if repeats > 1:
            step.run()
        return _elapsed(step.run, step.device, repeats) / repeats


def _typical(times: Sequence[float]) -> float:
    return statistics.median(sorted(times)[: (len(times) + 1) // 2])


def _error_of_median(values: Sequence[float]) -> float:
    """Standard error, 1.253 sigma / sqrt(n), with sigma from the quartiles: wild values hardly count."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4)
    return 1.253 * (high - low) / 1.349 / math.sqrt(len(values))


# --- how busy the machine is --------------------------------------------------------------------------------


def load(seconds: float = 0.3) -> float:
    """Cores' worth of work that other programs do on the cores of this process, while this one waits.

    What has cores of its own to run on does not count: where a container is granted 2 cores of 64, others may
    use 62. Children of this process are others.

    Args:
        seconds: For how long to look.
    """
    import psutil

    this = psutil.Process()
    cores = this.cpu_affinity() if hasattr(this, "cpu_affinity") else list(range(psutil.cpu_count() or 1))
    granted = min(machine.cores(), len(cores))
    begin, idle, used, own = time.perf_counter(), _idle(cores), _used(), sum(this.cpu_times()[:2])
    time.sleep(seconds)
    wall, own = time.perf_counter() - begin, sum(this.cpu_times()[:2]) - own
    elsewhere = len(cores) - (_idle(cores) - idle + own) / wall
    taken = elsewhere - (len(cores) - granted)
    if granted < len(cores):  # a quota is also used up by what else runs in this container
        taken = max(taken, (_used() - used - own) / wall)
    return min(max(taken, 0.0), float(granted))


def note(load: float) -> str | None:
    """What a load means for times that are taken beside it, in a sentence; None where it means little.

    Args:
        load: As `load` gives it.

    Example:
        >>> note(0.0) is None
        True
    """
    cores = machine.cores()
    if load < QUIET * cores:
        return None
    return (
        f"The machine is busy: other programs use {load:.1f} of its {cores} cores, so times come out up to "
        f"{1 + load / cores:.1f} times too long, and longer still on several threads. Close them and measure "
        "again."
    )


def _idle(cores: list[int]) -> float:
    """Seconds for which these cores have had nothing to do, added up."""
    import psutil

    times = psutil.cpu_times(percpu=True)
    return sum(one.idle + getattr(one, "iowait", 0.0) for i, one in enumerate(times) if i in cores)


def _used() -> float:
    """Seconds of work that this container has done on all its cores; 0 where the system does not tell."""
    found = re.search(r"^usage_usec (\d+)", machine.read(machine.CGROUP / "cpu.stat"), re.MULTILINE)
    return int(found[1]) / 1e6 if found else 0.0
