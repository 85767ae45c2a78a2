"""What a run may begin with: settings that go together, data that load, a net that takes them, a loss."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qnnkit import checks, device, layers, recipes, stats, tasks, words, workspace
from qnnkit.measure import placement
from qnnkit.models import causal_lm
from qnnkit.recipes import Recipe, RecipeError
from qnnkit.runs.folder import Run
from qnnkit.runs.using import data_of
from qnnkit.settings import PLACEMENT, SETTINGS, Settings


def resolve(recipe: Recipe | None, given: Mapping[str, Any], begun: Settings | None = None) -> Settings:
    """The settings that hold, whether words, YAML, papermill, a batch's row or a cell gave them.

    Args:
        recipe: Whose settings they are; None for those of `begun`.
        given: By name. A text for a list is split at commas; a relative path is meant from the workspace.
        begun: What the run began with, its paths as they are here; None for a new run.

    Raises:
        ValueError: A name is unknown, a value breaks its rule, or some do not go together. Its argument is a
            `checks.Message`, which has the parts: `name`, `rule`, `value`, `next_step`.
    """
    kind: Any = recipe.Settings if begun is None and recipe is not None else type(begun)
    for name in given:
        checks.choice("setting", name, kind.model_fields, SETTINGS)
    asked = dict(given)
    for name in kind.places():
        path = asked.get(name, kind.model_fields[name].default if begun is None else None)
        if isinstance(path, str | Path):
            place = workspace.data_place(str(path))
            on_hub = name in ("pretrained", "tokenizer") and not Path(place).is_dir()
            asked[name] = str(path) if on_hub else place
    if begun is None and recipe is not None:
        config = recipe.settings(**asked)
        recipe.check(config)
    else:
        config = begun.override(**asked)  # pyright: ignore[reportOptionalMemberAccess]
    bounds = [other for other in stats.SCORES.values() if given.get(other.criterion) is not None]
    score = recipes.of(config).task(config).score if bounds else None
    for other in bounds:
        if score is not None and other.name != score.name:
            rule = f"be left out where nets are compared by {score.word}"
            step = f"Use {score.criterion}." if score.criterion else "It has no bound."
            raise ValueError(checks.message(other.criterion, rule, given[other.criterion], step))
    if begun is None or not given.keys().isdisjoint(PLACEMENT):  # a run of elsewhere may be looked at
        checks.choice("backend", config.backend, layers.BACKENDS)
        device.choose(config.device)
        for name in config.trackers:
            from accelerate.tracking import LOGGER_TYPE_TO_CLASS

            checks.choice("tracker", name, (*LOGGER_TYPE_TO_CLASS, "all"))
    return config


def require_usable(run: Run) -> None:
    """A run begins only with data that load, and nets that take them: a folder cannot be mended later."""
    config, recipe, own_controls = run.config, run.recipe, hasattr(run.recipe.code, "controls")
    for name in run.nets if own_controls or config.controls != "all" else run.nets[:1]:
        try:
            net = recipes.made(config, run.splits, name, config.seed, bare=True)
        except NotImplementedError as error:  # a control that not every circuit has
            raise ValueError(str(error)) from None
        if own_controls or name == run.nets[0]:
            _require_runs(run, net)
    if config.net_settings:
        controls = recipe.control_names(recipes.without_weights(config), run.splits, config.seed)
        for setting in config.net_settings:
            names = (run.nets[0], *controls, *recipe.more_control_names())
            checks.choice("net in net_settings", setting.split(".")[0], names)
    if not recipe.shipped and "vocabulary" not in run.splits.sizes:  # language models have their own files
        try:
            recipe.build(config, data_of(run.splits), config.seed)
        except RecipeError as error:
            lost = "`qnnkit predict` builds the trained net without its data, and will not be able to"
            warnings.warn(f"{lost}. {error}", stacklevel=4)
    require_last_batch(run)
    placement.devices(config.device, config.precision)  # refused where none has it


def _require_runs(run: Run, model: nn.Module) -> None:
    """Refuses a net that does not take the first samples, or whose outputs its task does not take."""
    recipe, splits, n = run.recipe, run.splits, min(2, len(run.splits.train))
    if any(weight.is_meta for weight in model.parameters()):
        if name := run.config.of_kit("pretrained"):  # every weight is there, though none is read
            causal_lm(name, device="meta", **splits.sizes)
        return
    with _taken(recipe, splits), recipe.located_errors():
        task = run.task
        if not isinstance(task, tasks.Own):
            with torch.no_grad():
                outputs: Any = layers.called(model.eval(), splits.example(n))
            shape = (n, getattr(splits, "n_classes", None))
            found = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
            if shape[1] is not None and found != shape:
                step = "One number for each class, for each image."
                raise recipe.refusal("build", f"give a net that returns shape {shape}", found, step)
        if not recipe.shipped:
            try:
                loss = task(model.eval(), next(iter(splits.batches("train", n, shuffle=False)))).loss
            except tasks.Refused as error:
                raise recipe.wrong(str(error), "task") from None
            if not loss.requires_grad and any(weight.requires_grad for weight in model.parameters()):
                step = "Leave out what detaches it, such as .item()."
                raise recipe.refusal("task", "give a loss with a gradient", "without one", step)


@contextlib.contextmanager
def _taken(recipe: Recipe, splits: Any) -> Iterator[None]:
    """Reports in a sentence what a library says of a user's net that does not take the data, or its task."""
    try:
        yield
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        if recipe.shipped or isinstance(error, RecipeError):
            raise
        sample = splits.example(1)
        step = "See `splits.example()` for what it is given."
        if shape := tuple(getattr(sample, "shape", ()))[1:]:
            step = f"A sample has shape {shape} and dtype {sample.dtype}."
            if str(sample.dtype) == "torch.uint8":
                step += " Begin forward with: images = images.float() / 255."
        rule = "give a net that takes the data, and a task that takes its outputs"
        raise recipe.refusal("build", rule, words.error_line(error), step) from error


def require_last_batch(run: Run) -> None:
    """Refuses a last batch of one sample for a net that normalises over batches; language models do not."""
    n, batch_size = len(run.splits.train), run.config.batch_size
    if batch_size == "auto" or n % batch_size != 1:
        return
    net = recipes.made(run.config, run.splits, "", run.config.seed, bare=True)
    if not any(isinstance(module, torch.nn.modules.batchnorm._NormBase) for module in net.modules()):
        return
    try:
        with torch.no_grad():
            layers.called(net.train(), run.splits.example())
    except ValueError:
        rule = "leave more than one image for the last batch"
        step = f"The last of {n:,} images would be alone in batch normalisation. Change it by one."
        raise ValueError(checks.message("batch_size", rule, batch_size, step)) from None
