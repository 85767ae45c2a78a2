"""What the kit's loop takes beside forward, backward and optimizer: python -m benchmarks.overhead.

An epoch of `train.fit` beside one of a plain loop with the same net, batches, seed and optimizer, which is
also clocked inside: both take turns on one thread; medians over rounds, in docs/results/overhead.csv.

outside, outside_plain  share of the epoch that is neither forward (with the loss), backward nor optimizer
times_plain             seconds of `train.fit` over those of the plain loop
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Iterator
from typing import Any

from benchmarks import record
from benchmarks.watching import Case
from qnnkit import layers, measure, recipes
from qnnkit.recipes import parameter_groups
from qnnkit.train.optimizer import optimizer_of

CASES = {"digits_quanv": (8, 1078, 10), "letters": (32, 3072, 28)}
"""Recipe -> side of its images in pixels, images of an epoch, classes; `letters` has 88,000 weights."""
ROUNDS, EPOCHS = 9, 3


def plain(case: Case) -> tuple[float, float]:
    """Seconds of an epoch of the least loop, and of its three parts: medians over all but the first."""
    model, found = case.model().train(), []
    optimizer = optimizer_of(parameter_groups(model, case.training), case.training)
    batches = case.batches()
    for epoch in range(EPOCHS):
        batches.set_epoch(epoch)
        parts, begin = 0.0, time.perf_counter()
        for batch in batches:
            start = time.perf_counter()
            case.task(model, batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            parts += time.perf_counter() - start
        found.append((time.perf_counter() - begin, parts))
    return statistics.median(whole for whole, _ in found[1:]), statistics.median(own for _, own in found[1:])


def fitted(case: Case) -> float:
    """Seconds of an epoch of `train.fit`, likewise."""
    return statistics.median(case.fit(case.model())[1:])


def rows(quick: bool = False) -> Iterator[dict[str, Any]]:
    for name, (side, n, classes) in CASES.items():
        case = Case(recipes.settings(name), side, n // 16 if quick else n, classes, EPOCHS)
        with measure.threads(1):
            ways = {"fit": functools.partial(fitted, case), "plain": functools.partial(plain, case)}
            found = record.in_turns(ways, 1 if quick else ROUNDS)
        fit_s, (plain_s, parts_s) = found["fit"], zip(*found["plain"], strict=True)
        row = {"recipe": name, "weights": sum(layers.count_parameters(case.model()).values())}
        row |= {"updates": -(-len(case.images) // case.training.batch_size)}
        times = {"fit_s": fit_s, "plain_s": plain_s, "parts_s": parts_s}
        row |= {what: statistics.median(each) for what, each in times.items()}
        row |= record.spread("outside", [1 - own / fit for own, fit in zip(parts_s, fit_s, strict=True)])
        row |= {"outside_plain": 1 - row["parts_s"] / row["plain_s"]}
        yield row | record.spread("times_plain", [a / b for a, b in zip(fit_s, plain_s, strict=True)])


if __name__ == "__main__":
    record.run(__doc__, overhead=rows)
