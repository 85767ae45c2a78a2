"""What a plan is asked of: a run, or a recipe that has no run yet."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qnnkit import measure, recipes
from qnnkit.runs.folder import Run
from qnnkit.runs.placing import placed
from qnnkit.runs.usable import in_workspace
from qnnkit.settings import require_batch_size


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
        recipe = recipes.find(run)
        config = recipe.settings(**in_workspace(recipe.Settings, settings or {}))  # not checked: a question
        with tempfile.TemporaryDirectory() as folder:  # what a run would write down is not kept
            return to_plan(Run(Path(folder), config), samples=samples, timed=timed)
    config = run.config
    require_batch_size(config)
    workload, where = measure.of_recipe(config, run.splits), placed(run) if timed else config
    return {
        "workload": workload if samples is None else workload.of_samples(samples),
        "device": where.device,
        "n_threads": where.threads if isinstance(where.threads, int) else None,
        "nets": len(run.nets),
        "seeds": len(run.seeds),
        "price_per_hour": config.price_per_hour,
    }
