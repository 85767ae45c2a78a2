"""What `qnnkit measure` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qnnkit import checks, device, plots, recipes, runs, workspace
from qnnkit.runs.usable import in_workspace
from qnnkit.settings import require_batch_size
from qnnkit.survey.comparison import Comparison, compare, comparison_table, files
from qnnkit.survey.file import default_place, write
from qnnkit.survey.form import Profile, Survey
from qnnkit.survey.operations import profile
from qnnkit.survey.whole import take

RECIPE = "digits_quanv"
"""Whose net is measured where nobody named another: its images ship with a dependency."""


def measure_machine(
    recipe: str | None = None,
    run_dir: str | Path | None = None,
    *,
    out: Path | None = None,
    with_profile: bool = False,
    settings: dict[str, Any] | None = None,
    echo: Callable[[str], None] | None = None,
    **options: Any,
) -> tuple[Survey, Path]:
    """Surveys this machine and writes its file.

    Args:
        recipe: Whose net is measured; without it the run's, or `digits_quanv`.
        run_dir: A run whose settings and data are taken; its folder gets the trace.
        out: The machine's file; `machines/<kind>.json` of the workspace by default.
        with_profile: Whether a trace of a few updates is written, too.
        settings: Exchanged in the recipe, by their own names.
        echo: Told what comes next.
        **options: As `take` has them: `seconds`, `quick`, `n_samples`, `price_per_hour`.

    Returns:
        The survey, and where it was written.

    Raises:
        ValueError, OSError: A name or value is wrong, data cannot be used, or the file cannot be written.
    """
    for name in ("seconds", "n_samples"):
        if options.get(name) is not None:
            checks.positive(name, options[name])
    price = options.get("price_per_hour")
    if price is not None and not 0 <= price < float("inf"):
        raise ValueError(checks.message("price_per_hour", "be 0 or more", price, "Leave it out if unknown."))
    if run_dir is None:
        named = recipes.find(recipe or RECIPE)
        config = named.settings(**in_workspace(named.Settings, settings or {}))  # not checked: a question
        require_batch_size(config)
        run = runs.Run(workspace.home(), config)  # for its data: nothing is written there
        splits = run.load_data()
    else:
        run = runs.open_run(run_dir, recipe, **(settings or {}))
        splits = run.splits
    place = None if out is None else workspace.place(out)
    if place is not None:
        workspace.make_folder(place.parent)  # before minutes are spent
    survey = take(run.config, splits, echo=echo, **options)
    place = place or default_place(survey["machine"])
    if with_profile:
        trace = place.with_suffix(".trace.json.gz") if run_dir is None else run.folder / "trace.json.gz"
        where = device.choose(run.config.device)
        found = profile(run.config, splits, trace, where)
        survey["sections"]["profile"] = Profile(
            device=str(where),
            recipe=run.config.title,
            trace=trace.name,
            operations=[asdict(one) for one in found],  # pyright: ignore[reportArgumentType]
        )
    write(place, survey)
    return survey, place


def compare_machines(named: Sequence[str | Path], out: Path | None = None) -> tuple[str, Path]:
    """Machines' files as a table with sentences, and a picture beside the first of them.

    Args:
        named: The files, or folders of them, as `files` takes them.
        out: The picture; `comparison.png` beside the first file by default.

    Returns:
        The text, and where the picture was written.

    Raises:
        ValueError, OSError: A file is no machine's, there are fewer than two, or nothing can be written.
    """
    paths = files(named)
    found = compare(paths)
    place = paths[0].parent / "comparison.png" if out is None else workspace.place(out)
    workspace.make_folder(place.parent)
    workspace.write_bytes(place, picture(found).png(Title="Machines beside each other"))
    return comparison_table(found), place


def picture(found: Comparison) -> plots.Picture:
    """Time, memory, cost and stability of each machine's devices."""
    rows = found.rows
    return plots.machines(
        [row.machine for row in rows],
        [row.device for row in rows],
        [row.seconds_per_epoch for row in rows],
        [None if row.peak_bytes is None else row.peak_bytes / 1e6 for row in rows],
        [row.cost_per_epoch for row in rows],
        [row.spread for row in rows],
        found.net or "",
    )


def simulators_picture(found: Survey) -> plots.Picture:
    """Milliseconds over qubits, a line for each simulator and device, for a batch of 64."""
    cells = [cell for cell in found["sections"].get("circuits", {}).get("cells", []) if "seconds" in cell]
    batch = 64 if any(cell["batch"] == 64 for cell in cells) else min(cell["batch"] for cell in cells)
    widths: dict[str, dict[int, tuple[float, float, float]]] = {}
    for cell in cells:
        if cell["batch"] == batch and "seconds" in cell:
            times = cell["seconds"]
            spread = (1000 * times["least"], 1000 * times["median"], 1000 * times["most"])
            widths.setdefault(f"{cell['backend']}, {cell['device']}", {})[cell["n_qubits"]] = spread
    machine = f"{found['machine']['name']}: {batch} circuit{'s' * (batch > 1)}, forward and backward"
    return plots.benchmark({}, widths, machine, list(widths))
