"""Trained nets: writes them to `model/` or `adapter/`, loads them, and applies them to new data."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import nn

from qnnkit import adapters, checks, device, layers, recipes, stats, tasks, words, workspace
from qnnkit.checkpoint import weights
from qnnkit.data import pieces, tokenizers, unsplit
from qnnkit.data.folders import LAST_NUMBER
from qnnkit.models import causal_lm
from qnnkit.recipes import Recipe
from qnnkit.runs.folder import Run, kept_settings, settings_of
from qnnkit.runs.nets import trained
from qnnkit.runs.rows import KINDS, read_facts, work
from qnnkit.runs.state import look
from qnnkit.runs.trainings import tested

ABOUT, SETTINGS, CONFIG = "about.json", "training_config.json", "adapter_config.json"
FILES = (ABOUT, CONFIG, "generation_config.json")
"""Files of which every trained net has one; transformers and PEFT write the last two, of language models."""
LENGTH, BATCH = 256, 32
"""Tokens of a block if a net's files give no number, and samples of a batch in `evaluate`."""


@dataclass(frozen=True)
class Data:
    """What a net needs to know about its training data; a recipe's `build` gets it instead of the splits."""

    name: str
    sizes: dict[str, Any]
    shapes: dict[str, list[Any]] = field(default_factory=dict)
    """Inputs of the net: name -> dtype and shape without the batch; the name is "" for a single tensor."""
    classes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    """Columns of the table on which the net was trained."""

    def __getattr__(self, name: str) -> Any:
        sizes = self.__dict__.get("sizes", {})
        if name in sizes:
            return sizes[name]
        step = f"Use {', '.join(sizes)}, or `example(n)`."
        raise AttributeError(f"A trained net is built without its data, so it has no `{name}`. {step}")

    def example(self, n: int = 1) -> Any:
        """Returns ones (zeros have no norm) in the shapes of the net's inputs, for `n` samples."""
        tensors = {
            name: torch.ones(n, *shape, dtype=getattr(torch, dtype))
            for name, (dtype, *shape) in self.shapes.items()
        }
        return tensors.get("", tensors)


def data_of(splits: Any) -> Data:
    """Returns what a net needs to know about these data."""
    example = splits.example(1)
    tensors = example if isinstance(example, Mapping) else {"": example}
    return Data(
        name=splits.name,
        sizes=dict(splits.sizes),
        shapes={name: [str(t.dtype)[6:], *t.shape[1:]] for name, t in tensors.items()},
        classes=tuple(getattr(splits, "classes", None) or ()),
        columns=getattr(splits, "columns", ()),
    )


def write_model(run: Run, net: nn.Module) -> Path:
    """Writes a net of the run to `model/` of its folder: weights, settings, recipe, and its `Data`."""
    folder, data = workspace.make_folder(run.folder / "model"), dict(vars(data_of(run.splits)))
    if "tokenizer" in data["sizes"]:
        data["sizes"].pop("tokenizer").save_pretrained(folder / "tokenizer")
    from safetensors.torch import save

    state = {name: value.detach().cpu().contiguous().clone() for name, value in weights.of(net).items()}
    workspace.write_bytes(folder / "model.safetensors", save(state))
    workspace.write_bytes(folder / "recipe.py", run.recipe.source.encode())
    about = {"net": run.nets[0], "seed": run.config.seed, "settings": kept_settings(run), "data": data}
    workspace.write_json(folder / ABOUT, about)  # last, because it marks a complete model
    return folder


def merge(run: Run | str | Path, folder: str | Path) -> Path:
    """Merges the adapter of the run's main net (first seed) into its base, and saves it for transformers.

    Only the adapter's files and its base are read, in the precision that the base had in training (float32
    for a 4-bit base).

    Args:
        run: A finished run, its folder, its `adapter/`, or a copy of that folder.
        folder: The folder to write, which is returned; an earlier save there is replaced.

    Raises:
        ValueError: There is no adapter.
        NotImplementedError: The adapter cannot be merged.
        OSError: The base is not found, or the folder cannot be written.
    """
    place = _folder(run.folder if isinstance(run, Run) else run)
    if not (place / CONFIG).exists():
        step = "A run with an adapter writes adapter/ once it is trained."
        raise ValueError(checks.message("run_dir", "hold a run with an adapter", str(place.parent), step))
    model, about, _ = load_language(place)
    settings = workspace.read_json(place / SETTINGS)
    return tasks.save(tasks.merge(model, in_place=True), about.tokenizer, folder, settings)


def export(run: Run) -> Path:
    """Writes the run's main net (first seed) to `model/` or `adapter/` of the run folder.

    Language models are saved with their tokenizer, so that transformers and PEFT can load the folder. An
    adapter's folder also has the circuits that produced its weights. `runs.load_model` loads other nets.

    Returns:
        The folder.

    Raises:
        FileNotFoundError: The net has not been trained yet.
        OSError: The folder cannot be written.
    """
    net: Any = trained(run)
    splits: Any = run.splits
    if not (hasattr(splits, "tokenizer") and hasattr(net, "save_pretrained")):
        return write_model(run, net)
    place = run.folder / ("adapter" if run.config.of_kit("adapter") else "model")
    settings, score = run.asked.model_dump(mode="json", warnings=False), run.score
    settings["sequence_length"] = splits.length
    facts = {"data": Path(str(run.config.of_kit("data_dir") or splits.name)).name}
    facts |= {"recipe": run.recipe.name, "net": f"{run.nets[0]}, seed {run.config.seed}"}
    row = run.tested().get((run.nets[0], run.config.seed), {})
    if (value := row.get(f"test_{score.name}")) is not None:
        facts["test " + score.word] = score.with_unit(value)
    return tasks.save(net, splits.tokenizer, place, settings, facts)


def load_language(folder: Path) -> tuple[Any, Data, Any]:
    """Loads a language model, or an adapter on its base, from a folder of transformers or PEFT.

    Returns:
        The model, what it knows of its data, and its task.

    Raises:
        FileNotFoundError: The adapter's base is missing.
    """
    settings = workspace.read_json(folder / SETTINGS) or {}
    if (folder / CONFIG).exists():
        base, dtype = adapters.base_of(folder), settings.get("base_precision", "float32")
        if base.startswith((".", "/")) and not Path(base).is_dir():
            rule, step = "hold an adapter whose base exists", f"Put the base model at {base}."
            raise FileNotFoundError(checks.message("run_dir", rule, str(folder), step))
        model: Any = causal_lm(base, dtype="float32" if settings.get("four_bit") else dtype)
        model = adapters.load(model, folder)
    else:
        model = causal_lm(folder)
    tokens: Any = pieces.of_folder(folder) or tokenizers.loaded(folder)
    longest = getattr(model.config, "max_position_embeddings", None) or LENGTH
    length = settings.get("sequence_length") or min(LENGTH, longest)
    about = Data(folder.name, {"tokenizer": tokens, "vocabulary": len(tokens), "length": length})
    return model.eval(), about, tasks.usual(about)


def _loaded(run_dir: str | Path, recipe: Any) -> tuple[Any, Data, Any, Any]:
    """Returns the trained net of a run, what it knows of its data, its task, and its settings, if any."""
    folder = _folder(run_dir)
    if any((folder / name).exists() for name in FILES[1:]):
        if recipe is not None:
            step = "Such a model is loaded from its own files."
            raise ValueError(checks.message("recipe", "be omitted for a language model", recipe, step))
        with _undamaged(folder):
            return *load_language(folder), None
    about = read_facts(folder / ABOUT)
    if not about or not KINDS[ABOUT].keys() <= about.keys():
        step = f"The run is {look(folder.parent).state}. Finish it: its 04_analyze writes model/."
        step = step if folder.parent.is_dir() else "There is no such folder: check the path."
        raise FileNotFoundError(checks.message("folder", "hold a trained net", str(folder), step))
    config = settings_of(about["settings"], None if recipe is None else recipes.find(recipe), folder)
    used, fields = recipes.of(config), about["data"]  # fields differ between versions
    sizes = {name: tuple(size) if isinstance(size, list) else size for name, size in fields["sizes"].items()}
    if (folder / "tokenizer").is_dir():
        sizes["tokenizer"] = tokenizers.of_captions(folder / "tokenizer", ())
    texts = (tuple(fields.get(name, ())) for name in ("classes", "columns"))
    data = Data(fields["name"], sizes, fields.get("shapes", {}), *texts)
    net = used.build(config.with_paths(workspace.located).override(backend="auto"), data, about["seed"])
    from safetensors.torch import load

    with _undamaged(folder):
        net.load_state_dict(load((folder / "model.safetensors").read_bytes()))
    return net.eval(), data, used.task(config), config


@contextlib.contextmanager
def _undamaged(folder: Path) -> Iterator[None]:
    """Raises a ValueError with the next step if the weights are damaged or belong to another net."""
    from safetensors import SafetensorError

    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (SafetensorError, RuntimeError) as error:
        step = f"Copy `{folder}` again, or move it away and run qnnkit train with the run's folder."
        fault = words.first_line(error)
        raise ValueError(checks.message("run_dir", "hold an undamaged net", fault, step)) from None


def load_model(folder: str | Path, recipe: Any = None) -> tuple[nn.Module, Data, Recipe | None]:
    """Loads a trained net in evaluation mode on the CPU; returns it, its `Data` and its recipe.

    `Data` has `name`, `sizes`, `classes` and `columns` of the training data, and `example(n)`, inputs of the
    same shape. No training data are read. A language model is loaded from its own files and has no recipe.

    Args:
        folder: A finished run, its `model/` or `adapter/`, or a copy of that folder.
        recipe: The run's recipe, if it is your own file: its code runs only if you name it.

    Raises:
        ValueError, OSError: The folder holds no model, or one of another recipe.
    """
    net, data, _, config = _loaded(folder, recipe)
    return net, data, config and recipes.of(config)


def predict(
    run_dir: str | Path, inputs: Sequence[Any], *, recipe: Any = None, classical: bool = False
) -> Iterator[dict[str, Any]]:
    """Applies a trained net to new inputs, as the run's task does; returns a row for each.

    Args:
        run_dir: Folder of a finished run, or its `model/` or `adapter/`.
        inputs: Images as files or arrays of pixels; for CLIP, images and the texts to match with them; text
            to continue, or, for a model with a chat template, a user's message to answer; a MIDI file to
            continue; for a recipe with its own data, arrays, DataFrames, .npy files, or tables (.csv, .tsv)
            with the same columns. A task with `predict(net, inputs)` gets them unchanged.
        recipe: The run's recipe, if it is your own file.
        classical: Whether to replace each circuit by its equivalent classical function, see
            `layers.as_classical`.

    Raises:
        ValueError, OSError: There is no trained net, or an input cannot be read.
        NotImplementedError: A circuit has no such classical function.
    """
    if isinstance(inputs, str | Path | np.ndarray) or hasattr(inputs, "columns"):
        inputs = [inputs]
    if not len(inputs):
        raise ValueError(checks.message("inputs", "not be empty", [], "Give a file or a text."))
    net, about, task, _ = _loaded(run_dir, recipe)
    if classical:
        layers.called(net, about.example())  # so that its shapes are known
        net = layers.as_classical(net)[0]
    with torch.no_grad():
        rows = tasks.asked(task.predict, net, inputs, about=about)
        return iter(rows if isinstance(rows, list | Iterator) else [{"output": rows}])


def evaluate(run_dir: str | Path, data: str | Path, *, recipe: Any = None) -> dict[str, Any]:
    """Evaluates a trained net on all of other data, as its task judges a test split.

    No training data are read.

    Args:
        run_dir: Folder of a finished run, or its `model/` or `adapter/`.
        data: For a language model, text, chats or music in the form of the recipe's `data_dir`; for a
            classifier, a folder or archive of images in class folders (or with the label in their names, if
            it was trained on such).
        recipe: The run's recipe, if it is your own file.

    Returns:
        `data`; `samples` or `tokens`, their number; the task's numbers, such as `loss` and `perplexity`, or
        `accuracy`; `score`, the name of the one by which nets are compared; `interval`, for a share, at 95 %
        (Clopper and Pearson); `notes` on omitted data.

    Raises:
        ValueError, OSError: There is no trained net, the net lacks a class, or data cannot be read.
        NotImplementedError: The net is of another kind, such as CLIP or a net of arrays.
    """
    net, about, task, settings = _loaded(run_dir, recipe)
    root = str(data) if Path(data).exists() else workspace.data_place(str(data))
    with checks.renamed({"root": "data"}):
        if settings is None:
            splits: Any = unsplit.tokens(root, about.tokenizer, about.length)
        elif "tokenizer" in about.sizes or not about.classes or "image_size" not in about.sizes:
            rule = "hold a net of labelled images or tokens"
            step = "Use qnnkit predict, or the report of a run on these data."
            raise NotImplementedError(checks.message("run_dir", rule, str(run_dir), step))
        else:
            flat = LAST_NUMBER if settings.of_kit("dataset") == "flat_folder" else None
            splits = unsplit.labelled(root, about, settings.of_kit("label_pattern") or flat)
    numbers = tested(
        net, task, splits.batches("test", BATCH, shuffle=False), splits, device.choose("auto"), None
    )
    counted, score = getattr(task, "counted", "samples"), task.score
    n = splits.test.n_predicted if counted == "tokens" else len(splits.test)
    row = {"data": splits.name, counted: n, "score": score.name, "notes": list(splits.notes)}
    row |= {name: value for name, value in numbers.items() if not name.startswith("minus_")}
    if counted == "samples" and score.shares([numbers[score.name]]):
        row["interval"] = list(stats.clopper_pearson(numbers[score.name] * n, n))
    return row


def line(row: Mapping[str, Any]) -> str:
    """Returns a row of `predict` or `evaluate` as text, with four digits."""
    shown = json.loads(json.dumps(row), parse_float=lambda text: float(f"{float(text):.4g}"))
    return yaml.safe_dump(shown, sort_keys=False, allow_unicode=True)


def _folder(run_dir: str | Path) -> Path:
    """Returns the folder of the trained net: the given one, or `model/` or `adapter/` in it."""
    run = work(workspace.place(run_dir))
    folders = (run, run / "model", run / "adapter")
    return next((folder for folder in folders if any((folder / name).exists() for name in FILES)), folders[1])
