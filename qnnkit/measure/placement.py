"""On which device, on how many threads and in which batches a net trains fastest here: by measurement."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from qnnkit import checks, device, train, words
from qnnkit.checkpoint import own_generators
from qnnkit.device import machine
from qnnkit.layers import QuantumLayer
from qnnkit.measure import clock, held
from qnnkit.measure.clock import TIE, Lap, Step
from qnnkit.measure.workload import Workload
from qnnkit.settings import Settings
from qnnkit.tasks import Task
from qnnkit.train.out_of_memory import ran_out

NEAR = 0.1
"""Part of the most samples a second that the smallest batch may lose."""
SMALLEST, LARGEST = 16, 1024
"""Of the batches that are tried."""
UPDATES = 20
"""An epoch has at least so many: with fewer, no optimizer gets far."""
PROBE = 8
"""Samples of the first batch, which tells how heavy the net is."""
ROOM = 0.8
"""Share of the available memory that a larger batch may take."""
SHARE = 0.05
"""Of the time that all trainings take: a race takes no more."""
BRIEFEST, STARTING = 1.0, 3.0
"""Seconds that a race takes at least, and with an accelerator, which has to be started."""


@dataclass(frozen=True)
class Placement:
    """Where a net is trained, in which batches, and why."""

    device: str
    """A torch device."""
    backend: str
    """What runs the circuits, or "auto"."""
    threads: int | None
    """CPU threads; None leaves torch's own number."""
    batch_size: int
    """Samples per update."""
    sentence: str
    """Why, with how much faster than what else."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """Of each candidate: `candidate`, `threads`, `samples_per_second`, `standard_error` and `why` there is
    none; empty where there was nothing to choose."""


@dataclass(frozen=True)
class Candidate:
    """One way to train a net."""

    device: str
    threads: int | None
    batch_size: int

    @property
    def place(self) -> str:
        """Where it computes, in words.

        Example:
            >>> Candidate("cpu", 1, 64).place, Candidate("mps", None, 64).place
            ('cpu on 1 thread', 'mps')
        """
        return f"{self.device} on {_threads(self)}" if self.threads else self.device

    @property
    def name(self) -> str:
        return f"{self.place}, batch {self.batch_size}"


def place(
    model: nn.Module,
    task: Task,
    samples: Any,
    config: Settings | None = None,
    *,
    device: str = "auto",
    threads: int | str | None = "auto",
    groups: Callable[[nn.Module], Sequence[train.Group]] | None = None,
    n_samples: int | None = None,
    trainings: int | None = None,
    seconds: float = 10.0,
) -> Placement:
    """The placement on which a net trains fastest on this machine, by training steps that are timed.

    What is a tie within 5 %, or within the noise, goes to the simpler choice: the CPU, fewer threads. A size
    of batch that is "auto" becomes the smallest power of two that comes within 10 % of the most samples a
    second. Where the settings leave one choice, nothing is measured.

    Args:
        model: The net; it stays as it is, copies of it are trained.
        task: Gives the loss, as for `train.fit`.
        samples: Some samples, in the form of a batch; or a function that gives them, which is called only
            where something is measured.
        config: Batch size (may be "auto"), precision, micro_batch and the like; without one, `samples` is the
            batch.
        device: A torch device, or "auto" for all that compute here.
        threads: Number of CPU threads, "auto" for 1, half and all physical cores, None for torch's own.
        groups: Makes the parameter groups of a model; all parameters in one by default.
        n_samples: In an epoch, for a size of batch that is "auto": it leaves 20 updates at least.
        trainings: How many such trainings follow: measuring takes about 5 % of their time at most, and where
            that is under a second (3 with an accelerator), the simplest choice is taken. None sets no such
            bound, nor does a size of batch that is "auto".
        seconds: For measuring, about; tracing circuits comes on top.

    Raises:
        ValueError: The device is not here, or has not the precision.
        Exception: The model cannot be trained on these samples anywhere.

    Example:
        >>> import torch
        >>> from qnnkit.tasks import Classification
        >>> net, batch = torch.nn.Linear(4, 2), (torch.zeros(8, 4), torch.zeros(8, dtype=torch.long))
        >>> place(net, Classification(), batch, device="cpu", threads=1).sentence
        'cpu on 1 thread: nothing else to choose from, so nothing was measured.'
    """
    if config is None:
        config = Settings(batch_size=_length(samples))
    found = candidates(device, threads, config, n_samples)
    wanted = {layer.wanted_backend for layer in model.modules() if isinstance(layer, QuantumLayer)}
    backend = wanted.pop() if len(wanted) == 1 else "auto"
    if len(found) == 1:
        told = f"{found[0].place}: nothing else to choose from, so nothing was measured."
        return Placement(found[0].device, backend, found[0].threads, found[0].batch_size, told)
    given = samples() if callable(samples) else samples
    workload = Workload(
        type(model).__name__,
        config,
        n_samples or _length(given),
        build=lambda config, traced: copy.deepcopy(model),
        samples=lambda config: given,
        task=task,
        groups=lambda net, config: groups(net) if groups else None,
    )
    laps, at, busy = timed(workload, found, seconds, trainings)
    chosen, times = decide(found, laps), _times(found, laps)
    if trainings and len(laps) == 1:
        lasts = words.duration(_in_all(workload, times[chosen], trainings))
        told = [f"{chosen.place}: all training takes about {lasts} there, too short to compare other places."]
    else:
        told = [_of_place(chosen, found, times, sum(weight.numel() for weight in model.parameters()), at)]
    if config.batch_size == "auto":
        told.append(_of_batch(chosen, found, times))
    raced = sorted(
        ((one, laps[one.name]) for one in found if one.name in laps),
        key=lambda pair: pair[1].seconds or math.inf,
    )
    rows = [
        {
            "candidate": one.name,
            "threads": one.threads,
            "samples_per_second": lap.seconds and 1 / lap.seconds,
            "standard_error": lap.error,
            "why": lap.why,
        }
        for one, lap in raced
    ]
    sentence = " ".join([*told, *([busy] if busy else [])])
    return Placement(chosen.device, backend, chosen.threads, chosen.batch_size, sentence, rows)


# --- what there is to choose from ---------------------------------------------------------------------------


def candidates(
    device: str, threads: int | str | None, config: Settings, n_samples: int | None
) -> list[Candidate]:
    """Every way to train that the settings leave open: the CPU first, then few threads, small batches.

    An accelerator is tried with torch's own number of threads, or the one that is asked for: they hardly
    matter there.
    """
    batches = sizes(n_samples) if config.batch_size == "auto" else [config.batch_size]
    found = []
    for place in devices(device, config.precision):
        given: Any = [threads]
        if threads == "auto":
            given = thread_counts() if place == "cpu" else [None]
        found += [Candidate(place, number, size) for number in given for size in batches]
    return found


def devices(requested: str, precision: str = "float32") -> list[str]:
    """The torch devices to choose from; of several CUDA devices the first, as training takes no other.

    Raises:
        ValueError: The name is unknown, that device cannot compute here, or none has this precision.
    """
    if requested == "auto":
        found = [str(one) for one in device.usable_devices() if one.index in (None, 0)]
    else:
        found = [str(device.choose(requested))]
    if precision == "float16":  # the CPU has no such arithmetic worth the name
        found = [one for one in found if one != "cpu"]
        if not found:
            step = "Use bfloat16 or float32."
            raise ValueError(checks.message("precision", "suit the device", "float16 on cpu", step))
    return found


def thread_counts() -> list[int]:
    """1, half and all of the physical cores that this process may use; never more than torch would take."""
    import psutil

    physical = psutil.cpu_count(logical=False) or machine.cores()
    most = max(1, min(physical, machine.cores(), torch.get_num_threads()))
    return sorted({1, max(1, most // 2), most})


def sizes(n_samples: int | None) -> list[int]:
    """Powers of two that leave an epoch enough updates; the smallest in any case.

    Where the last batch of an epoch would be of one sample, which normalisation over a batch may not take,
    a size is left out. Where all are like that, their neighbours stand in.

    Example:
        >>> sizes(1078), sizes(None)[-1]
        ([16, 32], 1024)
        >>> sizes(33)
        [17]
    """
    found = [SMALLEST]
    while found[-1] < LARGEST and (n_samples is None or found[-1] * 2 * UPDATES <= n_samples):
        found.append(found[-1] * 2)
    if n_samples is None:
        return found
    whole = [size for size in found if n_samples % size != 1]
    near = [[one for one in (size + 1, size - 1) if n_samples % one != 1] for size in found]
    return whole or [ones[0] for ones in near if ones] or found


def machine_facts() -> dict[str, Any]:
    """The machine, as far as a decision depends on it: on another one it is taken anew."""
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "processor": machine.processor(),
        "cores": machine.cores(),
        "gpus": gpus,
        "mps": torch.backends.mps.is_available(),
        "torch": torch.__version__,
    }


# --- the race -----------------------------------------------------------------------------------------------


def timed(
    workload: Workload, found: Sequence[Candidate], seconds: float, trainings: int | None = None
) -> tuple[dict[str, Lap], int | None, str | None]:
    """Training steps on every candidate, the smallest batches first.

    Costs a copy of the model with its optimizer per device; every random generator stays as it was.

    Returns:
        The laps by name of the candidate, of the first alone where the trainings are too short for a race;
        the size of batch that stood for the one asked for, of a net of which a step takes long; and a
        sentence where the machine is busy.
    """

    def share() -> float:
        return seconds / (len({one.place for one in found}) * (clock.FEWEST + 2))

    with own_generators():
        bench = _Bench(workload)
        several = len({one.batch_size for one in found}) > 1
        at = None if several else bench.affordable(found[0], share())
        first = found[0]
        if trainings and not several and (took := bench.seconds(first, at or first.batch_size)):
            share_of_all = SHARE * _in_all(workload, took, trainings)
            if share_of_all < (BRIEFEST if {one.device for one in found} == {"cpu"} else STARTING):
                return {first.name: Lap(took)}, at, None
            if share_of_all / 2 < seconds:  # which a race may take twice
                seconds = share_of_all / 2
                at = bench.affordable(first, share())
        busy = clock.note(clock.load())
        ordered = sorted(found, key=lambda one: one.batch_size)
        steps = {one.name: bench.step(one, at or one.batch_size) for one in ordered}
        return clock.race(steps, seconds=seconds, longest=share() if several else math.inf), at, busy


@dataclass
class _Bench:
    """Training steps of copies of one net, one copy per device."""

    workload: Workload
    steppers: dict[str, train.Stepper] = field(default_factory=dict)
    grown: dict[str, float] = field(default_factory=dict)
    """Device -> bytes of a step per sample."""
    full: set[str] = field(default_factory=set)
    """Devices whose memory ran out: larger batches are not tried there."""

    def step(self, candidate: Candidate, size: int) -> Step:
        place, batch = torch.device(candidate.device), []

        def run() -> None:
            try:
                if batch:
                    return self.steppers[candidate.device](batch[0])
                batch.append(self.begin(place, size))
            except Exception as error:
                if optimizer := getattr(self.steppers.get(candidate.device), "optimizer", None):
                    optimizer.zero_grad()  # gives back what the step has left in the memory
                if ran_out(error):
                    self.full.add(candidate.device)
                raise

        return Step(run, place, candidate.threads, size)

    def begin(self, place: torch.device, size: int) -> Any:
        """The batch, once a step of it was taken.

        Raises:
            MemoryError: It would not fit into the memory.
            Exception: What the step raises.
        """
        name = str(place)
        much = self.grown.get(name, 0) * size > ROOM * machine.memory()[1]
        if name in self.full or (place.type == "cpu" and much):  # where the system would end the process
            raise MemoryError("It would not fit into the memory.")
        if name not in self.steppers:
            self.steppers[name] = self.workload.stepper(name)
        batch = self.workload.batch(size)
        held.reset_peak(place)
        before = held.peak_on(place)
        self.steppers[name](batch)
        self.grown[name] = max(0, held.peak_on(place) - before) / size
        return batch

    def affordable(self, candidate: Candidate, share: float) -> int | None:
        """The size of batch to race: smaller than the candidate's where its step would take too long."""
        size = candidate.batch_size
        if size <= PROBE:
            return None
        probed = self.seconds(candidate, PROBE)
        while probed and size > PROBE and probed * size > share:
            size //= 2
        return None if size == candidate.batch_size else max(size, PROBE)

    def seconds(self, candidate: Candidate, size: int) -> float | None:
        """Of one sample, by a step or two; None where that fails."""
        try:
            return clock.race({"": self.step(candidate, size)})[""].seconds
        except Exception:  # told when its turn comes
            return None


def _in_all(workload: Workload, seconds: float, trainings: int) -> float:
    """Seconds of so many trainings, by those of a sample."""
    return seconds * workload.n_samples * workload.training.epochs * trainings


def decide(found: Sequence[Candidate], laps: Mapping[str, Lap]) -> Candidate:
    """The candidate to take: the simplest that is not clearly slower, in the smallest good batches.

    Args:
        found: The candidates, the simplest first.
        laps: By their names, as `clock.race` gives them.
    """
    times = _times(found, laps)
    if not times:
        return found[0]
    size = min(one.batch_size for one in times if times[one] <= (1 + NEAR) * min(times.values()))
    known = {one.name: one for one in times if one.batch_size == size}
    return known[clock.winner({name: laps[name] for name in known}) or ""]


def _times(found: Sequence[Candidate], laps: Mapping[str, Lap]) -> dict[Candidate, float]:
    """Seconds per sample of the candidates that were timed."""
    return {one: taken for one in found if one.name in laps and (taken := laps[one.name].seconds)}


# --- in words -----------------------------------------------------------------------------------------------


def _of_place(
    chosen: Candidate,
    found: Sequence[Candidate],
    times: Mapping[Candidate, float],
    n_weights: int,
    at: int | None,
) -> str:
    """Such as "cpu on 1 thread: 2.1x faster than 2 threads, for this net of 88,000 weights at batch 128."."""
    if chosen not in times:
        return f"{chosen.place}: nothing could be measured, so this is the simplest choice, not the fastest."

    def compared(other: Candidate, name: str) -> str:
        ratio = times.get(other, 0) / times[chosen]
        if not ratio:
            return f"{name} not timed (failed, or too late)"
        if ratio >= 1 + TIE:
            return f"{ratio:.1f}x faster than {name}"
        return f"as fast as {name}{'' if ratio > 1 - TIE else ' within the noise'}"

    beside = [one for one in found if one.batch_size == chosen.batch_size and one != chosen]
    told = [compared(one, _threads(one)) for one in beside if one.device == chosen.device]
    for place in dict.fromkeys(each.device for each in beside if each.device != chosen.device):
        best = min(
            (each for each in beside if each.device == place), key=lambda each: times.get(each, math.inf)
        )
        told.append(compared(best, best.place if best in times else place))
    timed_at = f" (timed at {at})" if at else ""
    what = f"for this net of {n_weights:,} weights at batch {chosen.batch_size}{timed_at}."
    return f"{chosen.place}: {', '.join([*told, what])}" if told else f"{chosen.place}, {what}"


def _threads(one: Candidate) -> str:
    return f"{one.threads} thread{'s' * (one.threads != 1)}"


def _of_batch(chosen: Candidate, found: Sequence[Candidate], times: Mapping[Candidate, float]) -> str:
    size = f"Batch {chosen.batch_size}"
    if not times:
        return f"{size} is the smallest of all."
    if len({one.batch_size for one in found}) == 1:
        return f"{size} is the only size tried: larger ones would leave an epoch under {UPDATES} updates."
    best, largest = min(times, key=lambda one: times[one]), max(one.batch_size for one in times)
    told = f"{size} is the smallest within {100 * NEAR:.0f} % of the most samples a second"
    told += f" ({1 / times[best]:,.0f}, at batch {best.batch_size})"
    if largest < max(one.batch_size for one in found):
        told += f"; none above {largest} was tried, for want of time or memory"
    return f"{told}."


def _length(samples: Any) -> int:
    """How many samples a batch holds."""
    if isinstance(samples, Mapping):
        samples = list(samples.values())
    return _length(samples[0]) if isinstance(samples, list | tuple) else len(samples)
