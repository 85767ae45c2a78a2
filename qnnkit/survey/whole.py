"""The whole survey of a machine, within a time that is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from qnnkit import __version__, measure
from qnnkit.data import Splits
from qnnkit.settings import Settings
from qnnkit.survey import circuits, net, platform
from qnnkit.survey.clock import Budget, is_unstable
from qnnkit.survey.file import facts
from qnnkit.survey.form import FORMAT, Survey

SECONDS = 150.0
"""Of a survey that nobody gave another time; starting and what was begun before it was over come on top."""
QUICK = 2.0
LABELS = ("backend", "device", "precision", "n_qubits", "batch", "size")
"""What tells one row of a list from another."""


def take(
    config: Settings,
    splits: Splits,
    *,
    seconds: float | None = None,
    quick: bool = False,
    n_samples: int | None = None,
    price_per_hour: float | None = None,
    echo: Callable[[str], None] | None = None,
) -> Survey:
    """What this machine reaches, what its simulators take, and what the recipe's own net takes.

    Each section has a share of the time; what does not fit in is left out, with the reason in its place. The
    platform is always complete.

    Args:
        config: The recipe.
        splits: Its data.
        seconds: For all of it, about; 150 by default. What has been begun is brought to its end.
        quick: Smaller arrays, few circuits, only float32, each as briefly as it goes.
        n_samples: In an epoch; those of the training split without it.
        price_per_hour: Of the machine, in any currency; 0 where it costs nothing.
        echo: Told what comes next, and at once where the machine is busy.
    """
    whole = Budget(seconds or (QUICK if quick else SECONDS))
    echo = echo or (lambda sentence: None)
    loads = [measure.load()]
    if told := measure.note(loads[0]):
        echo(told)
    echo("Memory, matrix products, overheads, transfers ...")
    sections: Any = {"platform": platform.measured(0.15 * whole.seconds, quick=quick)}
    loads.append(measure.load())
    echo("Simulators over qubits and batch ...")
    sections["circuits"] = circuits.measured(0.55 * whole.left, quick=quick)
    loads.append(measure.load())
    echo(f"The net of {config.title} ...")
    sections["net"] = net.measured(config, splits, whole.left, n_samples=n_samples, quick=quick)
    loads.append(measure.load())
    return {
        "format": FORMAT,
        "qnnkit": __version__,
        "machine": facts(),
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": whole.seconds - whole.left,
        "busy": {"samples": loads, "most": max(loads), "sentence": measure.note(max(loads))},
        "price_per_hour": price_per_hour,
        "unstable": list(_unstable(sections, "")),
        "sections": sections,
    }


def _unstable(found: Any, name: str) -> Iterator[str]:
    """Names of the times that vary too much, such as "net settings cpu float32 update"."""
    if isinstance(found, list) and not any(isinstance(row, str) for row in found):
        for row in found:
            labels = [str(row[label]) for label in LABELS if label in row]
            yield from _unstable(row, " ".join([name, *labels]))
    elif isinstance(found, dict) and "median" in found:
        times: Any = found
        if is_unstable(times):
            yield name.removesuffix(" seconds").replace("_", " ")
    elif isinstance(found, dict):
        for key, value in found.items():
            yield from _unstable(value, f"{name} {key}".strip())
