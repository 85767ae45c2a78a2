"""What a person asks to have planned: a recipe or a model, with some settings exchanged."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qnnkit import checks, recipes
from qnnkit.plan.transformer import SIZES, of_transformer
from qnnkit.plan.workload import OF_MODELS, Workload, of_recipe
from qnnkit.runs.folder import Run
from qnnkit.runs.placing import placed, settle_batch_size
from qnnkit.runs.usable import in_workspace
from qnnkit.settings import Settings, require_batch_size


@dataclass(frozen=True)
class Asked:
    """A workload, and where and how often it would be trained."""

    workload: Workload
    device: str = "auto"
    threads: int | None = None
    nets: int = 1
    seeds: int = 1
    price_per_hour: float | None = None
    """Of this machine."""


def of_run(run: Run, *, measure: bool = True) -> Asked:
    """The nets of a run, on its own data, where they are trained.

    Args:
        run: Its settings and data.
        measure: Whether what is "auto" is measured, as training would; see `runs.placed`.

    Raises:
        ValueError: A size of batch is "auto" and nothing may be measured.
        OSError, ValueError: The data cannot be used.
    """
    config = run.config
    if measure:
        where = placed(run)
        device, threads = where.device, where.threads
    else:
        device, threads = config.device, config.threads if isinstance(config.threads, int) else None
    if config.batch_size == "auto":
        step = "Give --batch-size, or let it be measured."
        raise ValueError(checks.message("batch_size", "be a number where nothing is measured", "auto", step))
    return Asked(
        of_recipe(config, run.splits),
        device,
        threads,
        nets=len(run.nets),
        seeds=len(run.seeds),
        price_per_hour=config.price_per_hour,
    )


def asked(
    recipe: Any = None,
    model: str | None = None,
    size: str | None = None,
    *,
    settings: dict[str, Any] | None = None,
    samples: int | None = None,
    measure: bool = True,
) -> Asked:
    """What is named: one of the recipes, on its data, or a transformers model, on data of any kind.

    Args:
        recipe: A shipped name, or a file: see `recipes.find`. No run folder is begun.
        model: "llama" or "clip", in its place.
        size: Of the model: a name in SIZES, or a local folder with a `config.json`.
        settings: Exchanged: of a recipe any setting, of a model those of the training, `sequence_length`,
            `lora_rank`, `four_bit` and `device`.
        samples: In an epoch; by default those of the recipe's data, or 1,000.
        measure: Whether what is "auto" in a recipe is measured; remembered in the workspace.

    Raises:
        ValueError: Not exactly one of recipe and model is named, or a name or value is wrong.
        OSError: The recipe's data are not there.
    """
    settings = dict(settings or {})
    if samples is not None:
        checks.positive("samples", samples)
    if (recipe is None) == (model is None):
        rule, given = "be named, or `model` in its place", recipe if model is None else f"{recipe}, {model}"
        kinds = f"recipes are {', '.join(recipes.RECIPES)}; models are {', '.join(SIZES)}"
        raise ValueError(checks.message("recipe", rule, given, f"Name one: {kinds}."))
    if model is None:
        found = _of_recipe(recipes.find(recipe), settings, size, measure)
        return found if samples is None else replace(found, workload=found.workload.of_samples(samples))
    return _of_model(model, size or "small", settings, samples or 1000)


def _of_recipe(recipe: recipes.Recipe, settings: dict[str, Any], size: str | None, measure: bool) -> Asked:
    known = recipe.Settings.model_fields
    settings |= {} if size is None else {"size": size}
    for name in (*OF_MODELS, "size"):
        if name in settings and name not in known:
            step, rule = "It belongs to --model.", f"be left out for the recipe {recipe.name}"
            raise ValueError(checks.message(name, rule, settings[name], step))
    config = recipe.settings(**in_workspace(recipe.Settings, settings))  # not checked: a question
    require_batch_size(config)
    with tempfile.TemporaryDirectory() as folder:  # what a run would write down is not kept
        run = Run(Path(folder), config)
        return of_run(settle_batch_size(run) if measure else run, measure=measure)


def _of_model(model: str, size: str, settings: dict[str, Any], samples: int) -> Asked:
    known = {"batch_size": 8, "learning_rate": 3e-4, "optimizer": "adamw"}
    own = {name: settings.pop(name) for name in OF_MODELS if name in settings}
    if own.get("four_bit") is False:
        del own["four_bit"]
    device = str(settings.pop("device", "auto"))
    for name in settings:
        checks.choice("setting", name, (*Settings.model_fields, *OF_MODELS))
    for name, value in own.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(
                checks.message(name, "be a whole number, 1 or more", value, "Leave it out, or raise it.")
            )
    training = Settings.of(known | settings)
    require_batch_size(training)
    workload = of_transformer(model, size, training, n_samples=samples, **own)
    return Asked(workload, device)
