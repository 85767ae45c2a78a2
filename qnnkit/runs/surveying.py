"""A plan and a survey of a machine, with the net of a run, or of a recipe that has no run yet."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qnnkit import checks, measure, recipes, workspace
from qnnkit.measure import survey
from qnnkit.runs.folder import Run
from qnnkit.runs.opening import open_run
from qnnkit.runs.placing import placed
from qnnkit.runs.usable import resolve


def to_plan(
    run: Any,
    settings: Mapping[str, Any] | None = None,
    *,
    samples: int | None = None,
    alone: bool = False,
    timed: bool = True,
) -> dict[str, Any]:
    """Arguments of `measure.plan`: the nets of a run, on its own data, where they are trained.

    Args:
        run: A run; or a recipe (see `recipes.find`), for which no run folder is begun.
        settings: Of the recipe, some of them changed.
        samples: In an epoch, if others than the data's.
        alone: Whether to plan one net and one seed, in place of all controls and seeds.
        timed: Whether "auto" settings are measured, as training would; see `runs.placed`.

    Raises:
        ValueError: A name or value is wrong; the batch size is "auto".
        OSError, ValueError: The data cannot be used.
    """
    with tempfile.TemporaryDirectory() as folder:  # a plan leaves nothing behind
        if not isinstance(run, Run):
            run = _unsaved(Path(folder), run, settings or {})
        workload, where = measure.of_recipe(run.config, run.splits), placed(run) if timed else run.config
    return {
        "workload": workload if samples is None else workload.of_samples(samples),
        "device": where.device,
        "n_threads": where.threads if isinstance(where.threads, int) else None,
        "nets": 1 if alone else len(run.nets),
        "seeds": 1 if alone else len(run.seeds),
        "price_per_hour": run.config.price_per_hour,
    }


def _unsaved(folder: Path, recipe: Any, settings: Mapping[str, Any]) -> Run:
    """A run of a recipe whose folder is not begun.

    Raises:
        ValueError: A name or value is wrong; the batch size is "auto".
    """
    run = Run(folder, resolve(recipes.find(recipe), settings))
    if run.config.batch_size == "auto":
        step = "Only a run measures it, when it begins. Name a number, such as batch_size=32."
        raise ValueError(checks.message("batch_size", "be a number here", "auto", step))
    return run


def measure_machine(
    recipe: str | None = None,
    run_dir: str | Path | None = None,
    *,
    out: Path | None = None,
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> tuple[dict[str, Any], Path]:
    """Surveys this machine and writes its file.

    Args:
        recipe: Whose net is measured; default: that of the run, or `digits_quanv`.
        run_dir: A run whose settings and data are taken.
        out: The machine's file; default: `machines/<kind>.json` of the workspace.
        settings: Changed in the recipe, by their own names.
        **options: As `survey.take` has them: `seconds`, `quick`, `echo`.

    Returns:
        The survey, and where it was written.

    Raises:
        ValueError, OSError: A name or value is wrong, data cannot be used, or the file cannot be written.
    """
    checks.positive("seconds", options.get("seconds", 1.0))
    if run_dir is None:
        run = _unsaved(workspace.home(), recipe or "digits_quanv", settings or {})
    else:
        run = open_run(run_dir, recipe, **(settings or {}))
    splits = run.recipe.load(run.config) if run_dir is None else run.splits
    place = survey.default_place(survey.facts()) if out is None else workspace.place(out)
    workspace.make_folder(place.parent)  # before minutes are spent
    found = survey.take(run.config, splits, **options)
    workspace.write_json(place, found)
    return found, place
