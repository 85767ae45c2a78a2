"""What `qnnkit measure` does: a survey of this machine with the net of a recipe, or of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from qnnkit import checks, device, recipes, workspace
from qnnkit.measure import operations, survey
from qnnkit.measure.survey_net import require_images
from qnnkit.measure.workload import Sample, of_recipe
from qnnkit.runs.folder import Run
from qnnkit.runs.opening import open_run
from qnnkit.runs.usable import in_workspace
from qnnkit.settings import require_batch_size

RECIPE = "digits_quanv"
"""Whose net is measured where nobody named another: its images ship with a dependency."""


def measure_machine(
    recipe: str | None = None,
    run_dir: str | Path | None = None,
    *,
    out: Path | None = None,
    dummy: str | None = None,
    n_samples: int | None = None,
    profile: bool = False,
    settings: dict[str, Any] | None = None,
    echo: Callable[[str], None] = lambda sentence: None,
    **options: Any,
) -> tuple[dict[str, Any], Path]:
    """Surveys this machine and writes its file.

    Args:
        recipe: Whose net is measured; without it the run's, or `digits_quanv`.
        run_dir: A run whose settings and data are taken.
        out: The machine's file; `machines/<kind>.json` of the workspace by default.
        dummy: Noise of this height, width, channels and classes in place of the data, such as "32x32x1x28".
        n_samples: In an epoch; those of the training split without it, 1000 of noise.
        profile: Whether the costliest operations of an update are told, and a trace written beside the file.
        settings: Exchanged in the recipe, by their own names.
        echo: Told what comes next.
        **options: As `survey.take` has them: `seconds`, `quick`.

    Returns:
        The survey, and where it was written.

    Raises:
        ValueError, OSError: A name or value is wrong, data cannot be used, or the file cannot be written.
    """
    for name, value in {"seconds": options.get("seconds"), "n_samples": n_samples}.items():
        if value is not None:
            checks.positive(name, value)
    if run_dir is None:
        named = recipes.find(recipe or RECIPE)
        config = named.settings(**in_workspace(named.Settings, settings or {}))  # not checked: a question
        require_batch_size(config)
    else:
        run = open_run(run_dir, recipe, **(settings or {}))
        config = run.config
    if dummy is not None:
        require_images(config)
        sample = Sample.dummy(dummy, n_samples)
    else:
        splits = Run(workspace.home(), config).load_data() if run_dir is None else run.splits
        sample = Sample.of(splits, n_samples)
    place = survey.default_place(survey.facts()) if out is None else workspace.place(out)
    workspace.make_folder(place.parent)  # before minutes are spent
    found = survey.take(config, sample, echo=echo, price_per_hour=config.price_per_hour, **options)
    survey.write(place, found)
    if profile:
        workload, where = of_recipe(config, sample), device.choose(config.device)
        threads = config.threads if isinstance(config.threads, int) else None
        trace = place.with_suffix(".trace.json.gz")
        echo(f"{operations(workload, where, threads=threads, trace=trace)}\nTrace: {trace}")
    return found, place
