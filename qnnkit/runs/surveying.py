"""A plan and a survey of a machine, with the net of a run, or of a recipe that has no run yet."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from qnnkit import checks, device, measure, recipes, workspace
from qnnkit.measure import operations, survey
from qnnkit.measure.survey_net import require_images
from qnnkit.measure.workload import Sample, of_recipe
from qnnkit.runs.folder import Run
from qnnkit.runs.opening import open_run
from qnnkit.runs.placing import placed
from qnnkit.runs.usable import in_workspace
from qnnkit.settings import Settings

RECIPE = "digits_quanv"
"""Whose net is measured where nobody named another: its images ship with a dependency."""


def to_plan(
    run: Any, settings: Mapping[str, Any] | None = None, *, samples: int | None = None, timed: bool = True
) -> dict[str, Any]:
    """Arguments of `measure.plan`: the nets of a run, on its own data, where they are trained.

    Args:
        run: A run; or a recipe (see `recipes.find`), for which no run folder is begun.
        settings: Of the recipe, some of them exchanged.
        samples: In an epoch, if others than the data's.
        timed: Whether what is "auto" is measured, as training would; see `runs.placed`.

    Raises:
        ValueError: A name or value is wrong; the size of batch is "auto".
        OSError, ValueError: The data cannot be used.
    """
    if not isinstance(run, Run):
        with tempfile.TemporaryDirectory() as folder:  # what a run would write down is not kept
            return to_plan(Run(Path(folder), _asked(run, settings)), samples=samples, timed=timed)
    config = run.config
    _require_batch_size(config)
    workload, where = measure.of_recipe(config, run.splits), placed(run) if timed else config
    return {
        "workload": workload if samples is None else workload.of_samples(samples),
        "device": where.device,
        "n_threads": where.threads if isinstance(where.threads, int) else None,
        "nets": len(run.nets),
        "seeds": len(run.seeds),
        "price_per_hour": config.price_per_hour,
    }


def _asked(recipe: Any, settings: Mapping[str, Any] | None) -> Settings:
    """Settings of a question: whether a run may begin with them is not asked."""
    named = recipes.find(recipe)
    return named.settings(**in_workspace(named.Settings, settings or {}))


def _require_batch_size(settings: Settings) -> None:
    if settings.batch_size == "auto":
        step = "Only a run measures it, when it begins. Name a number, such as batch_size=32."
        raise ValueError(checks.message("batch_size", "be a number here", "auto", step))


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
        config = _asked(recipe or RECIPE, settings)
        _require_batch_size(config)
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
