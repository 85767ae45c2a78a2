"""What a run may begin with: data that load, a net that takes them, a loss."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from qnnkit import checks, recipes, words
from qnnkit.recipes import Recipe, RecipeError

if TYPE_CHECKING:
    from torch import nn

    from qnnkit.data import Splits
    from qnnkit.runs.folder import Run


def require_usable(run: Run) -> None:
    """A run begins only with data that load, and nets that take them: a folder cannot be mended later."""
    from qnnkit.measure import placement
    from qnnkit.recipes import made
    from qnnkit.runs.trainings import build

    config = run.config
    _require_runs(run, made(config, run.splits, "", config.seed, bare=True))
    _require_controls(run)
    if not run.recipe.shipped:
        _say_what_cannot_be_used(run)
        for name in run.nets[1:] if hasattr(run.recipe.code, "controls") else ():
            _require_runs(run, build(run, name, config.seed))
    require_last_batch(run)
    placement.devices(config.device, config.precision)  # refused where none has it


def _require_runs(run: Run, model: nn.Module) -> None:
    """Refuses a net that does not take the first samples, or whose outputs its task does not take."""
    import torch

    from qnnkit import layers, tasks
    from qnnkit.data import TensorSplits
    from qnnkit.models import causal_lm

    if any(weight.is_meta for weight in model.parameters()):
        if name := run.config.of_kit("pretrained"):  # every weight is there, though none is read
            causal_lm(name, device="meta", **run.splits.sizes)
        return
    splits, n = run.splits, min(2, len(run.splits.train))
    with _taken(run.recipe, splits), run.recipe.located_errors():
        if isinstance(run.task, tasks.Own) or isinstance(splits, TensorSplits):
            batch = next(iter(splits.batches("train", n, shuffle=False)))
            try:
                loss = run.task(model.eval(), batch).loss
            except tasks.Refused as error:
                raise run.recipe.wrong(str(error), "task") from None
            if not loss.requires_grad and any(weight.requires_grad for weight in model.parameters()):
                step = "Leave out what detaches it, such as .item()."
                raise run.recipe.refusal("task", "give a loss with a gradient", "without one", step)
        if not isinstance(run.task, tasks.Own):
            with torch.no_grad():
                outputs = layers.called(model.eval(), splits.example(n))
            _require_logits(run.recipe, outputs, splits, n)


def _say_what_cannot_be_used(run: Run) -> None:
    """Warns where the trained net could not be built again without its data, as `predict` does it."""
    from qnnkit.runs.using import data_of

    if "vocabulary" in run.splits.sizes:  # language models are read from their own files
        return
    try:
        run.recipe.build(run.config, data_of(run.splits), run.config.seed)
    except RecipeError as error:
        told = "`qnnkit predict` builds the trained net without its data, and will not be able to"
        warnings.warn(f"{told}. {error}", stacklevel=5)


def _require_controls(run: Run) -> None:
    """Refuses the names of nets that do not stand beside this recipe's."""
    chosen = () if run.config.controls == "all" else run.config.controls
    single = [words.split(".")[0] for words in run.config.net_settings]
    if not chosen and not single:
        return
    config = recipes.without_weights(run.config)  # whatever its weights, the names are these
    names = run.recipe.control_names(config, run.splits, config.seed)
    for name in chosen:
        run.recipe.require_control(name, names)
    for name in set(chosen) & set(run.recipe.more_control_names()):  # which not every circuit has
        try:
            run.recipe.control(name, run.config, run.splits, config.seed)
        except NotImplementedError as error:
            raise ValueError(str(error)) from None
    for name in single:
        checks.choice("net in net_settings", name, [run.nets[0], *names, *run.recipe.more_control_names()])


@contextlib.contextmanager
def _taken(recipe: Recipe, splits: Splits) -> Iterator[None]:
    """Tells in a sentence what a library says of a user's net that does not take the data, or its task."""
    try:
        yield
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        if recipe.shipped or isinstance(error, RecipeError):
            raise
        said = words.error_line(error)
        sample = splits.example(1)
        step = "See `splits.example()` for what it is given."
        if shape := tuple(getattr(sample, "shape", ()))[1:]:
            step = f"A sample has shape {shape} and dtype {sample.dtype}."
            if str(sample.dtype) == "torch.uint8":
                step += " Begin forward with: images = images.float() / 255."
        rule = "give a net that takes the data, and a task that takes its outputs"
        raise recipe.refusal("build", rule, said, step) from error


def _require_logits(recipe: Recipe, outputs: Any, splits: Splits, n: int) -> None:
    """Refuses a net that gives no logits for images."""
    import torch

    shape = (n, getattr(splits, "n_classes", None))
    found = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
    if shape[1] is not None and found != shape:
        step = "One number for each class, for each image."
        raise recipe.refusal("build", f"give a net that returns shape {shape}", found, step)


def require_last_batch(run: Run) -> None:
    """Refuses a last batch of one sample for a net that normalises over batches; language models do not."""
    import torch

    from qnnkit import layers
    from qnnkit.recipes import made

    n, batch_size = len(run.splits.train), run.config.batch_size
    if batch_size == "auto" or n % batch_size != 1:
        return
    net = made(run.config, run.splits, "", run.config.seed, bare=True)
    if not any(isinstance(module, torch.nn.modules.batchnorm._NormBase) for module in net.modules()):
        return
    try:
        with torch.no_grad():
            layers.called(net.train(), run.splits.example())
    except ValueError:
        step = f"The last of {n:,} images would stand alone, and this net normalises over batches."
        rule = "leave more than one image for the last batch"
        told = checks.message("batch_size", rule, batch_size, step + " Change it by one.")
        raise ValueError(told) from None
