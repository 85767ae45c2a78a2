"""A plan: what a training needs, how long it takes here and elsewhere, and what would save memory."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qnnkit import checks, words
from qnnkit import device as devices
from qnnkit.measure import platforms
from qnnkit.measure.clock import load, note
from qnnkit.measure.figures import figures
from qnnkit.measure.memory import Traced, trace
from qnnkit.measure.platforms import HERE, Spot
from qnnkit.measure.predict import HOST, Prediction, predict
from qnnkit.measure.workload import Workload
from qnnkit.settings import Settings

COMFORTABLE, FULL = 0.70, 0.95
"""Shares of the usable memory. Below the first, there is room for what a plan does not count (fragments,
other programs); above the second, a training is expected to fail. Chosen, not fitted."""
SMALLEST = 2
"""Fewest samples that a remedy computes at a time, because some layers normalise over them."""
ASSUMED = "Times are of training alone, without validation or tests; controls count as the hybrid net."
WIDTH = 100


@dataclass(frozen=True)
class Plan:
    """Memory, time and cost of a training, and where to run it.

    Attributes:
        prediction: Prediction for one net on this machine.
        nets: Number of nets: the hybrid net and its controls, each assumed to cost as much as the hybrid net.
        seeds: Number of seeds of each net.
        places: A row for this machine, then one for each machine of the table. It has the name of the
            `machine`; the bytes that are needed (`needs`) and `usable`; the seconds of one net's `epoch` and
            of everything (`in_all`); and the `cost` of everything in US dollars. Times and cost may be off by
            `factor`, both ways; `basis` and `device` say where they come from. The `verdict` is
            "comfortable", "marginal" or "not here", and `why` has its reasons. An unknown value is None.
        answer: Where to run it, as a sentence.
        remedies: Changes that save memory, in the order in which to try them: the `command`, the bytes that
            the training then `needs`, whether it `fits` here, the factor `slow` on its time (None: unknown)
            and the `effect`. Empty if the training fits comfortably.
        notes: Sentences on how figures were obtained and what they leave out.
    """

    prediction: Prediction
    nets: int
    seeds: int
    places: list[dict[str, Any]]
    answer: str
    remedies: list[dict[str, Any]]
    notes: list[str]

    def brief(self) -> dict[str, Any]:
        """The part that provenance.json records, to compare it with the measured training."""
        return {
            "device": self.prediction.device,
            "peak_bytes": self.prediction.peak,
            "memory": self.prediction.memory,
            "seconds_per_epoch": self.prediction.seconds_per_epoch,
            "verdict": self.places[0]["verdict"],
            "answer": self.answer,
        }

    def as_dict(self) -> dict[str, Any]:
        """The plan as plain values, for JSON."""
        return {**vars(self), "prediction": self.prediction.as_dict()}

    def __str__(self) -> str:
        """Text of at most 100 columns: memory by part, machines, the answer, remedies and notes."""
        predicted, config = self.prediction, self.prediction.training
        length = config.of_kit("sequence_length")
        tokens, disk = f" of {length} tokens" if length else "", self.nets * self.seeds * predicted.disk
        head = [
            f"{predicted.name}: {predicted.n_weights:,} weights, {predicted.n_trained:,} of them trained",
            f"epochs: {config.epochs:,}, samples: {predicted.n_samples:,}{tokens}, batch {config.batch_size}",
            f"nets: {self.nets}, seeds: {self.seeds}, checkpoints on disk: {words.size(disk)}",
        ]
        parts = [("memory at the peak", words.size(predicted.peak), f"on {predicted.device}")]
        for part, n in sorted(predicted.memory.items(), key=lambda item: -item[1]):
            where = " in RAM" if part in HOST and predicted.device != "cpu" else ""
            parts.append((f"  {part}", words.size(n), f"{n / predicted.in_all:.0%}{where}"))
        machines = [("machine", "memory", "epoch", "in all", "cost", "within", "verdict")]
        machines += [_row(place) for place in self.places]
        rows = [("to save memory", "memory", "fits here", "time", "")]
        for remedy in self.remedies:
            slow, fits = remedy["slow"], "yes" if remedy["fits"] else "no"
            time = "?" if slow is None else f"x {slow:.2f}"
            rows.append((remedy["command"], words.size(remedy["needs"]), fits, time, remedy["effect"]))
        blocks = [head, _aligned(parts), _aligned(machines), textwrap.wrap(self.answer, WIDTH)]
        blocks.append(_aligned(rows) if self.remedies else [])
        blocks.append([line for note in self.notes for line in textwrap.wrap(f"- {note}", WIDTH)])
        return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def plan(
    workload: Workload,
    *,
    device: str = "auto",
    n_threads: int | None = None,
    nets: int = 1,
    seeds: int = 1,
    price_per_hour: float | None = None,
    deadline: float | None = None,
    budget: float | None = None,
    prices: str | Path | None = None,
    measure: bool = True,
    seconds: float = 3.0,
) -> Plan:
    """Plans a training without running anything large, whatever the training needs.

    Args:
        workload: Training to plan.
        device: Device of this machine.
        n_threads: Number of CPU threads; None leaves torch's own number.
        nets: Number of nets, controls included.
        seeds: Number of seeds of each net.
        price_per_hour: Price of this machine in US dollars; None counts as free, on Colab as unknown.
        deadline: Hours available for everything; None sets no limit.
        budget: US dollars available for everything; 0 asks for machines that cost nothing.
        prices: YAML file of your own machines and prices; default: machines.yaml of the workspace, if any.
        measure: Whether to time updates here, if they are small enough (see `predict`). If not, there are no
            times for this machine, and wider ranges for the others.
        seconds: About how long to time updates.

    Raises:
        ValueError: The device cannot compute here, or `deadline` or `seeds` is not above 0.
        OSError, ValueError: The table of machines cannot be used.
    """
    place, table, notes = devices.choose(device), platforms.load(prices), list[str]()
    checks.positive("deadline", 1 if deadline is None else deadline, "Give hours.", whole=False)
    checks.positive("seeds", seeds)
    limits = {"time": deadline and 3600 * deadline, "price": budget}
    if measure and (busy := note(load())):
        notes.append(busy)
    if (size := workload.training.batch_size) > workload.n_samples:
        notes.append(f"The batch size {size:,} exceeds the number of samples: a batch holds all of them.")
        workload = workload.change(batch_size=workload.n_samples)
    prediction = predict(workload, place, measured=measure, seconds=seconds, n_threads=n_threads)
    precision = workload.training.precision
    notes += prediction.notes
    computes = measure and (place.type, precision) != ("cpu", "float16")
    speed = figures(place, sorted({"float32", precision}), n_threads) if computes else None
    this = platforms.this_machine(place, price_per_hour)
    if speed is not None and prediction.seconds is None:  # too large to be timed
        this = replace(this, basis="estimated", figures=[speed])
        notes.append("A step was too large to time here, so its time is estimated, as for other machines.")
    calibrated = platforms.calibration(prediction.work, precision, prediction.seconds, speed)
    spots = [this, *platforms.spots(table)]
    places = [place_of(spot, prediction, calibrated, nets * seeds, limits) for spot in spots]
    tight = places[0]["needs"] > COMFORTABLE * this.usable
    remedies = list(remedies_of(workload, this, places[0]["needs"], prediction, speed)) if tight else []
    notes += [ASSUMED, table.note()]
    return Plan(prediction, nets, seeds, places, answer(places), remedies, notes)


def place_of(
    spot: Spot, prediction: Prediction, calibrated: float | None, trainings: int, limits: Mapping[str, Any]
) -> dict[str, Any]:
    """A row of `Plan.places`. `limits` has the "time" in seconds and the "price" in US dollars."""
    config, price = prediction.training, spot.price_per_hour
    needs = prediction.on_accelerator if spot.kind == "cuda" else prediction.in_all
    update, factor, device = prediction.seconds, prediction.spread, prediction.device
    if spot.figures:
        update, factor, device = platforms.estimate(prediction.work, config.precision, spot, calibrated)
    epoch = update and update * prediction.n_samples / config.batch_size
    total = epoch and epoch * config.epochs * trainings
    cost = price and total and total / 3600 * price
    bounds = [("memory", needs / spot.usable, COMFORTABLE, FULL)]
    values = {"time": total, "price": cost}
    bounds += [(name, values[name], most / factor, most) for name, most in limits.items() if most is not None]
    verdict, why = judge(bounds)
    return {
        "machine": spot.name,
        "needs": needs,
        "usable": spot.usable,
        "epoch": epoch,
        "in_all": total,
        "cost": cost,
        "factor": factor,
        "basis": spot.basis if update else "not timed",
        "device": device if update else None,
        "verdict": verdict,
        "why": why,
    }


def judge(limits: Sequence[tuple[str, float | None, float, float]]) -> tuple[str, list[str]]:
    """The verdict on a machine, and its reasons.

    Args:
        limits: For each limit its name, the value (None: unknown), the comfortable maximum and the maximum.
    """
    against = [name for name, value, _, most in limits if value is not None and value > most]
    unknown = [f"{name} unknown" for name, value, *_ in limits if value is None]
    doubts = [name for name, value, comfortable, _ in limits if value is not None and value > comfortable]
    if against:
        return "not here", against
    return ("marginal", doubts + unknown) if doubts or unknown else ("comfortable", [])


def answer(places: Sequence[Mapping[str, Any]]) -> str:
    """A sentence on where to run the training, or on the machine that comes nearest if none can run it.

    The cheapest machine wins; ties go to a comfortable one, then to this machine, then to the fastest.
    """

    def worth(place: Mapping[str, Any]) -> tuple[Any, ...]:
        price, seconds = (math.inf if place[name] is None else place[name] for name in ("cost", "in_all"))
        lacking = place["verdict"] == "not here", "memory" in place["why"] and place["verdict"] == "not here"
        return *lacking, price, place["verdict"] != "comfortable", place["machine"] != HERE, seconds

    best = min(places, key=worth)
    _, memory, _, total, cost, within, verdict = _row(best)
    begin = "No machine fits; the nearest is" if best["verdict"] == "not here" else "Run it on"
    return f"{begin} {best['machine']}: {total} ({within}), {cost}, {memory}; {verdict}."


# --- remedies -----------------------------------------------------------------------------------------------


def changes(training: Settings) -> Iterator[tuple[dict[str, Any], str]]:
    """Settings that need less memory, and their effect on the training, in the order in which to try them."""
    micro = min(training.micro_batch or training.batch_size, training.batch_size)
    if micro > SMALLEST:
        yield {"micro_batch": max(SMALLEST, micro // 4)}, "batches run in pieces; batch norm sees the pieces"
    if not training.gradient_checkpointing:
        yield {"gradient_checkpointing": True}, "activations are recomputed; same results"
    if training.precision == "float32":
        yield {"precision": "bfloat16"}, "classical layers compute in bfloat16"
    if training.batch_size > SMALLEST and training.micro_batch is None:
        yield {"batch_size": training.batch_size // 2}, "updates see fewer samples: noisier"


def remedies_of(
    workload: Workload, spot: Spot, before: int, prediction: Prediction, speed: Mapping[str, Any] | None
) -> Iterator[dict[str, Any]]:
    """Traces each change, and yields a row of `Plan.remedies` if it needs fewer bytes than `before`.

    A change for which the task raises an error is omitted.
    """

    def held(traced: Traced) -> int:
        return traced.held + (0 if spot.kind == "cuda" else traced.copied)  # a GPU does not hold the copy

    def seconds(traced: Traced, config: Settings) -> float:
        return platforms.roofline(traced.work, speed or {}, config.precision) / config.batch_size

    for settings, effect in changes(workload.training):
        changed = workload.change(**settings)
        try:
            traced = trace(changed, foreach=prediction.device.startswith("cuda"))
        except ValueError:
            continue
        needs = before + held(traced) - held(prediction)
        slow = speed and seconds(traced, changed.training) / seconds(prediction, workload.training)
        [(name, value)] = settings.items()
        row = {"command": f"--set {name}={str(value).lower()}", "needs": needs, "slow": slow}
        if needs < before:
            yield row | {"fits": needs <= FULL * spot.usable, "effect": effect}


# --- rows of text -------------------------------------------------------------------------------------------


def _row(place: Mapping[str, Any]) -> tuple[str, ...]:
    epoch, total, cost = place["epoch"], place["in_all"], place["cost"]
    price = "free" if cost == 0 else "cost unknown" if cost is None else f"{max(cost, 0.01):,.2f} USD"
    return (
        place["machine"],
        f"{words.size(place['needs'])} of {words.size(place['usable'])}",
        words.duration(epoch) if epoch else "?",
        words.duration(total) if total else "?",
        price,
        f"x {place['factor']:.1f}" if total else "?",
        f"{place['verdict']}{': ' if place['why'] else ''}{', '.join(place['why'])}",
    )


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of text with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
