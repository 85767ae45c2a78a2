"""Timing: a clock, a race between steps, and the load of the machine. No measurement is stored."""

from __future__ import annotations

import contextlib
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from qnnkit import words
from qnnkit.device import machine
from qnnkit.train.out_of_memory import ran_out

QUIET = 0.1
"""Share of the cores that other programs may use without a note: a browser and a desktop at rest."""
TIE = 0.05
"""A step must be faster by this share to count as faster, however small the noise."""
CLEAR = 0.1
"""A step that is faster by this share counts as faster, however noisy the machine."""
FAR_SLOWER = 3.0
"""A step that takes this many times as long as the fastest is not measured further."""
PATIENCE = 5.0
"""Seconds. A first call is not repeated if it takes longer than this, and longer than the race should."""
FEWEST, MOST = 3, 15
"""Fewest and most rounds of a race."""
TURN = 0.02
"""Shortest turn, in seconds. Shorter steps are repeated within a turn."""


@dataclass(frozen=True)
class Step:
    """A step that takes part in a race.

    Args:
        run: Function without arguments that takes the step.
        device: Device on which it computes; default: the CPU.
        threads: CPU threads while it runs; None and "auto" leave the present number.
        samples: Samples of one call. Steps are compared by their seconds per sample.
    """

    run: Callable[[], Any]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    threads: int | str | None = None
    samples: float = 1


@dataclass(frozen=True)
class Lap:
    """Time that a step took in a race.

    Attributes:
        seconds: Seconds per sample: the median of the faster half of the rounds, because other processes may
            have slowed down the slower half. None if it could not be measured.
        error: Standard error of the ratio to the fastest step, over the rounds; None if it was measured once.
        rounds: Number of rounds in which it was timed.
        why: Why it was not measured, in a sentence.
        spread: Time of the slowest round, divided by the median.
    """

    seconds: float | None
    error: float | None = None
    rounds: int = 1
    why: str = ""
    spread: float | None = None


def now(device: torch.device) -> float:
    """Returns the clock in seconds, once the device has finished its work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()


@contextlib.contextmanager
def threads(number: int | str | None) -> Iterator[None]:
    """Sets the number of CPU threads, and restores it afterwards; None and "auto" change nothing.

    This includes the threads of BLAS for NumPy's matrix products, because small circuits run on NumPy arrays.
    """
    if not isinstance(number, int):
        yield
        return
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        with threadpool_limits(number, "blas"):
            yield
    finally:
        torch.set_num_threads(before)


def repeated(run: Callable[[], Any], device: torch.device, seconds: float = 0.0) -> float:
    """Seconds of one call: the median of several turns, after two warm-up calls.

    Args:
        run: Function to time. Short calls are repeated within a turn.
        device: Device on which it computes.
        seconds: About how long to measure. At least one turn is timed.
    """
    step, end = Step(run, device), time.perf_counter() + seconds
    once = min(_turn(step, 1), _turn(step, 1))
    times = [_turn(step, calls := math.ceil(TURN / once))]
    while time.perf_counter() < end:
        times.append(_turn(step, calls))
    return statistics.median(times)


# --- the race -----------------------------------------------------------------------------------------------


def race(
    steps: Mapping[Any, Step], *, seconds: float = 10.0, longest: float = math.inf, rounds: int = MOST
) -> dict[Any, Lap]:
    """Times steps in turns, in random order, so that a busy minute affects all of them alike.

    Each step is called once to warm up and once to see how long it takes. Steps that are far slower than the
    fastest, and would take long, are not measured further.

    Args:
        steps: Steps by name, in the order in which they are warmed up.
        seconds: About how long to warm up; the rounds take as long again.
        longest: Longest call in seconds. A step that would take longer, at the best time per sample so far,
            is not tried. Once the time for warming up is over, no step is tried, unless none has run yet.
        rounds: Maximum number of rounds.

    Raises:
        Exception: The first step's error, if every step failed and not all of them for lack of memory.
    """
    begin, laps = time.perf_counter(), _first_laps(steps, seconds, longest)
    first = {name: lap.seconds for name, lap in laps.items() if lap.seconds is not None}
    best = min(first.values(), default=math.inf)
    share = seconds / (FEWEST * max(1, len(first)))  # the first call of a short step may have been delayed
    calls = {name: first[name] * steps[name].samples for name in first}
    near = [name for name in first if first[name] <= FAR_SLOWER * best or calls[name] < share]
    taken: dict[Any, list[float]] = {name: [] for name in near}
    order = random.Random(0)
    for number in range(rounds if len(near) > 1 else 0):
        if number >= FEWEST and time.perf_counter() - begin > 2 * seconds:
            break
        for name in order.sample(near, len(near)):
            once = _turn(steps[name], max(1, math.ceil(TURN / calls[name])))
            taken[name].append(once / steps[name].samples)
            calls[name] = min(calls[name], once)  # the first calls are slow, and would make turns short
    if near and taken[near[0]]:
        fastest = taken[min(near, key=lambda name: _typical(taken[name]))]
        for name in near:
            times = taken[name]
            error = _error_of_median([one / other for one, other in zip(times, fastest, strict=True)])
            spread = max(times) / statistics.median(times)
            laps[name] = Lap(_typical(times), error, len(times), spread=spread)
    return laps


def _first_laps(steps: Mapping[Any, Step], seconds: float, longest: float) -> dict[Any, Lap]:
    """Calls each step once to warm up, and once or twice more to see how long it takes; see `race`."""
    from accelerate.utils.memory import clear_device_cache

    begin, best, laps, errors = time.perf_counter(), math.inf, {}, []
    for name, step in steps.items():
        late = math.isfinite(longest) and time.perf_counter() - begin > seconds
        if math.isfinite(best) and (late or best * step.samples > longest):
            laps[name] = Lap(None, why="The time was up." if late else "A step would take too long.")
            continue
        try:
            first = _turn(step, 1)
            again = first if first > max(PATIENCE, 2 * seconds) else _turn(step, 1)
            if again < 1 and again > FAR_SLOWER * best * step.samples:  # one slow call may be chance
                again = min(again, _turn(step, 1))
        except Exception as error:  # a step that cannot run here cannot win
            errors.append(error)
            laps[name] = Lap(None, why=f"{words.first_line(error)}.")
            clear_device_cache(garbage_collection=True)
            continue
        laps[name] = Lap(again / step.samples)
        best = min(best, again / step.samples)
    if errors and math.isinf(best) and not all(map(ran_out, errors)):
        raise errors[0]
    return laps


def winner(laps: Mapping[Any, Lap]) -> Any:
    """Name of the first step that is not clearly slower than any other: a tie goes to the earlier one.

    A tie is a difference within 5 %, or within two standard errors, but never beyond 10 %. Returns None if
    nothing was measured.

    Example:
        >>> winner({"simple": Lap(1.04), "fast": Lap(1.0)}), winner({"simple": Lap(1.5), "fast": Lap(1.0)})
        ('simple', 'fast')
        >>> [winner({"simple": Lap(seconds, error=0.3), "fast": Lap(1.0)}) for seconds in (1.08, 1.2)]
        ['simple', 'fast']
    """
    timed = {name: (lap.seconds, lap.error or 0.0) for name, lap in laps.items() if lap.seconds is not None}
    least = min((seconds for seconds, _ in timed.values()), default=0.0)
    near = {name for name, (t, error) in timed.items() if t <= (1 + max(TIE, min(2 * error, CLEAR))) * least}
    return next((name for name in timed if name in near), None)


def _turn(step: Step, repeats: int) -> float:
    """Seconds of one call. If calls are short, one more call wakes the threads up first.

    torch's Timer is not used: it calls the step twice more before each turn, which triples the time of a
    step of seconds, and its import fails on Python 3.11 if pip was imported before.
    """
    with threads(step.threads):
        if repeats > 1:
            step.run()
        start = now(step.device)
        for _ in range(repeats):
            step.run()
        return (now(step.device) - start) / repeats


def _typical(times: Sequence[float]) -> float:
    return statistics.median(sorted(times)[: (len(times) + 1) // 2])


def _error_of_median(values: Sequence[float]) -> float:
    """Standard error, 1.253 sigma / sqrt(n). Sigma comes from the quartiles, so outliers hardly count."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4)
    return 1.253 * (high - low) / 1.349 / math.sqrt(len(values))


# --- how busy the machine is --------------------------------------------------------------------------------


def load(seconds: float = 0.3) -> float:
    """Number of this process's cores that other programs keep busy while this process waits.

    Cores that this process was not granted do not count: if a container has 2 of 64 cores, other programs
    may use 62. Child processes count as other programs.

    Args:
        seconds: How long to measure.
    """
    import psutil

    this = psutil.Process()
    cores = this.cpu_affinity() if hasattr(this, "cpu_affinity") else list(range(psutil.cpu_count() or 1))
    granted = min(machine.cores(), len(cores))
    this.cpu_percent()  # starts the interval
    busy = psutil.cpu_percent(seconds, percpu=True)
    elsewhere = (sum(busy[core] for core in cores) - this.cpu_percent()) / 100
    return min(max(elsewhere - (len(cores) - granted), 0.0), float(granted))


def note(load: float) -> str | None:
    """A warning about times measured under this load, as a sentence; None if the load is small.

    Args:
        load: Return value of `load`.

    Example:
        >>> note(0.0) is None
        True
    """
    cores = machine.cores()
    if load < QUIET * cores:
        return None
    return (
        f"The machine is busy: other programs use {load:.1f} of its {cores} cores, so measured times may be "
        f"{1 + load / cores:.1f} times too long, or more on several threads. Close them and measure again."
    )
