"""What a plan had predicted of a run, beside what was then measured."""

from __future__ import annotations

from typing import Any

from qnnkit import words
from qnnkit.runs import Run


def beside_plan(run: Run) -> dict[str, Any] | None:
    """Time and memory of the run's own net, first seed, as planned in 00_setup and as they came out.

    Returns:
        Seconds per epoch and bytes at the peak, `planned` and `measured`, and a `sentence`; None where there
        is no plan, or it was made for another device than the net was trained on.
    """
    planned, final = run.provenance.get("plan"), run.tested().get((run.nets[0], run.config.seed))
    trained_on = run.provenance.get("device")
    if not planned or not final or str(trained_on).split(":")[0] != planned["device"].split(":")[0]:
        return None
    pairs = {
        "seconds_per_epoch": (planned["seconds_per_epoch"], final.get("seconds_per_epoch")),
        "peak_bytes": (planned["peak_bytes"], final.get("peak_memory")),
    }
    known = {name: pair for name, pair in pairs.items() if None not in pair}
    if not known:
        return None
    tell = {"seconds_per_epoch": lambda it: f"{words.duration(it)} per epoch", "peak_bytes": words.size}
    before, after = (
        " and ".join(tell[name](pair[which]) for name, pair in known.items()) for which in (0, 1)
    )
    return {
        "planned": {name: pair[0] for name, pair in known.items()},
        "measured": {name: pair[1] for name, pair in known.items()},
        "sentence": f"Planned for the {run.nets[0]} net: {before}; it took {after}.",
    }
