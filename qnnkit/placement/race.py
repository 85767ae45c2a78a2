"""Training steps of one net, timed on every candidate, in turns: so a busy minute hits all alike."""

from __future__ import annotations

import copy
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from qnnkit import measure, train
from qnnkit.checkpoint import own_generators
from qnnkit.device import machine
from qnnkit.placement.candidates import Candidate
from qnnkit.settings import Settings
from qnnkit.tasks import Task
from qnnkit.train import memory

FAR_SLOWER = 3.0
"""Times the best so far: such a candidate is not tried further."""
FEWEST, MOST = 3, 15
"""Rounds."""
TURN = 0.02
"""Seconds that a turn lasts at least, by taking more steps; so short ones are measured as well."""
PROBE = 8
"""Samples of the first batch, which tells how heavy the net is."""
ROOM = 0.8
"""Share of the available memory that a larger batch may take."""
RACED_AT = "raced at"
"""Name under which the size of batch stands that was raced, beside the times."""
Groups = Callable[[nn.Module], Sequence[train.Group]]


def race(
    model: nn.Module,
    task: Task,
    samples: Any,
    config: Settings,
    candidates: Sequence[Candidate],
    groups: Groups | None = None,
    seconds: float = 10.0,
) -> dict[str, float]:
    """Seconds of a training step per sample, by name of the candidate: medians over rounds.

    Beside each stands, under its name and " ±", the standard error of its ratio to the fastest, round by
    round. Those that failed, or ran out of memory, are missing; so are batches too large to be tried in time.
    A net of which a step takes long is raced on smaller batches, see `RACED_AT`. Costs a copy of the model
    with its optimizer per device; the model itself, and every random generator, stay as they were.

    Args:
        model: A copy of it is trained.
        task: Gives the loss.
        samples: As the task takes a batch, any number of them; repeated where they are too few.
        config: Optimizer, micro_batch and precision.
        candidates: The simplest first, at least one.
        groups: Makes the parameter groups of a model; all parameters in one by default.
        seconds: For trying all, about, and as much again for rounds; tracing circuits comes on top where the
            batch is given.

    Raises:
        Exception: Every candidate failed, and not for want of memory: what the first one raised.
    """
    with own_generators():
        return _Race(model, task, samples, config, groups, seconds).run(candidates)


def take(samples: Any, n: int) -> Any:
    """A batch of the first `n` samples, from the front again where there are fewer.

    Example:
        >>> take((torch.arange(3), {"label": torch.zeros(3)}), 5)[0].tolist()
        [0, 1, 2, 0, 1]
    """
    if isinstance(samples, Tensor):
        return samples[torch.arange(n, device=samples.device) % len(samples)]
    if isinstance(samples, Mapping):
        return {name: take(part, n) for name, part in samples.items()}
    if isinstance(samples, list | tuple):
        return type(samples)(take(part, n) for part in samples)
    return samples


@dataclass
class _Runner:
    """A candidate in the race."""

    candidate: Candidate
    step: Callable[[], None]
    per_sample: float
    """One step's share of a sample."""
    steps: int = 1
    """In a turn."""
    taken: list[float] = field(default_factory=list)
    """Seconds per sample, by round."""


@dataclass
class _Race:
    model: nn.Module
    task: Task
    samples: Any
    config: Settings
    groups: Groups | None
    seconds: float

    def run(self, candidates: Sequence[Candidate]) -> dict[str, float]:
        begin = time.perf_counter()
        self.steppers: dict[str, train.Stepper] = {}
        self.errors: list[Exception] = []
        self.grown: dict[str, float] = {}  # device -> bytes of a step per sample
        places = len({candidate.place for candidate in candidates})
        self.longest = self.seconds / (places * (FEWEST + 2))  # of a step
        sizes = {candidate.batch_size for candidate in candidates}
        self.at: int | None = None  # the size of batch that stands for a single one
        if len(sizes) == 1:
            self.at = self.affordable(candidates[0])
        runners: list[_Runner] = []
        best, full = math.inf, set()
        for candidate in sorted(candidates, key=lambda one: one.batch_size):
            size = candidate.batch_size
            late = time.perf_counter() - begin > self.seconds
            too_long = late or best * size > self.longest
            if candidate.device in full or (runners and len(sizes) > 1 and too_long):
                continue
            try:
                runner = self.warm_up(candidate, best)
            except Exception as error:  # what cannot run here does not win
                self.errors.append(error)
                self.forget(candidate.device)
                if memory.ran_out(error):
                    full.add(candidate.device)  # for larger batches, too
                continue
            runners.append(runner)
            best = min(best, runner.per_sample)
        if not runners and self.errors:
            if all(memory.ran_out(error) for error in self.errors):
                return {}
            raise self.errors[0]
        near = [runner for runner in runners if runner.per_sample <= FAR_SLOWER * best]
        self.rounds(near, begin + 2 * self.seconds)
        return self.told(runners)

    def stepper(self, device: str) -> train.Stepper:
        if device not in self.steppers:
            net = copy.deepcopy(self.model)
            own = self.groups(net) if self.groups else None
            self.steppers[device] = train.Stepper(net, self.task, self.config, own, device)
        return self.steppers[device]

    def affordable(self, candidate: Candidate) -> int:
        """The size of batch to race: smaller than the candidate's where its step would take too long."""
        size = candidate.batch_size
        if size <= PROBE:
            return size
        try:
            probed = self.timed(self.step(candidate, PROBE), candidate, 1)
        except Exception:  # told when its turn comes
            return size
        while size > PROBE and probed * size / PROBE > self.longest:
            size //= 2
        return max(size, PROBE)

    def step(self, candidate: Candidate, size: int) -> Callable[[], None]:
        """A training step that has been taken once: its circuits are traced."""
        stepper, batch = self.stepper(candidate.device), take(self.samples, size)
        with measure.threads(candidate.threads):
            stepper(batch)
        return lambda: stepper(batch)

    def timed(self, step: Callable[[], None], candidate: Candidate, steps: int) -> float:
        """Seconds of one step. Where it is short, one before it wakes this number of threads up."""
        device = torch.device(candidate.device)
        with measure.threads(candidate.threads):
            if steps > 1:
                step()
            measure.synchronize(device)
            start = time.perf_counter()
            for _ in range(steps):
                step()
            measure.synchronize(device)
        return (time.perf_counter() - start) / steps

    def warm_up(self, candidate: Candidate, best: float) -> _Runner:
        """
        Raises:
            MemoryError: Its batch would not fit into the memory.
            Exception: What its first steps raise.
        """
        size = self.at or candidate.batch_size
        place = torch.device(candidate.device)
        if place.type == "cpu" and self.grown.get("cpu", 0) * size > ROOM * machine.memory()[1]:
            raise MemoryError  # asked first: the system ends a process that takes too much
        measure.reset_peak(place)
        before = measure.peak_on(place)
        step = self.step(candidate, size)
        self.grown[candidate.device] = max(0, measure.peak_on(place) - before) / size
        took = self.timed(step, candidate, 1)
        if took < 1 and took > FAR_SLOWER * best * size:  # once may be a hiccup
            took = min(took, self.timed(step, candidate, 1))
        return _Runner(candidate, step, took / size, max(1, math.ceil(TURN / took)))

    def rounds(self, runners: Sequence[_Runner], end: float) -> None:
        if len(runners) < 2:
            return
        order = random.Random(0)
        for number in range(MOST):
            if number >= FEWEST and time.perf_counter() > end:
                break
            for runner in order.sample(runners, len(runners)):
                samples = self.at or runner.candidate.batch_size
                try:
                    runner.taken.append(self.timed(runner.step, runner.candidate, runner.steps) / samples)
                except Exception as error:  # such as memory that others have taken meanwhile
                    if not memory.ran_out(error):
                        raise
                    self.errors.append(error)
                    self.forget(runner.candidate.device)
            runners = [runner for runner in runners if len(runner.taken) == number + 1]

    def forget(self, device: str) -> None:
        """Gives back what a step that failed has left in the memory."""
        if optimizer := getattr(self.steppers.get(device), "optimizer", None):
            optimizer.zero_grad()
        memory.release(torch.device(device))

    def told(self, runners: Sequence[_Runner]) -> dict[str, float]:
        rounds = max((len(runner.taken) for runner in runners), default=0)
        found = {}
        for runner in runners:
            if runner.taken and len(runner.taken) < rounds:
                continue  # it ran out of memory on the way
            found[runner.candidate.name] = (
                statistics.median(runner.taken) if runner.taken else runner.per_sample
            )
        raced = [runner for runner in runners if rounds and len(runner.taken) == rounds]
        if raced:
            fastest = min(raced, key=lambda runner: statistics.median(runner.taken))
            for runner in raced:
                ratios = [own / its for own, its in zip(runner.taken, fastest.taken, strict=True)]
                found[f"{runner.candidate.name} ±"] = _error_of_median(ratios)
        if self.at is not None:
            found[RACED_AT] = float(self.at)
        return found


def _error_of_median(values: Sequence[float]) -> float:
    """Standard error, 1.253 sigma / sqrt(n), with sigma from the quartiles: wild values hardly count."""
    low, _, high = statistics.quantiles(values, n=4)
    return 1.253 * (high - low) / 1.349 / math.sqrt(len(values))
