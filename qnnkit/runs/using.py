"""A trained net for others: what a run leaves in `model/` or `adapter/`, and what it says of new inputs."""

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
"""One is in every trained net; the last two in language models, as transformers and PEFT write them."""
LENGTH, BATCH = 256, 32
"""Tokens of a block where a net's files name no number, and samples of a batch that is evaluated."""


@dataclass(frozen=True)
class Data:
    """What a net must know of its training data; a recipe's `build` gets it in place of the splits."""

    name: str
    sizes: dict[str, Any]
    shapes: dict[str, list[Any]] = field(default_factory=dict)
    """Of what a net takes: name -> dtype and shape without the batch; "" for one tensor."""
    classes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    """Of the table that the net was trained on."""

    def __getattr__(self, name: str) -> Any:
        sizes = self.__dict__.get("sizes", {})
        if name in sizes:
            return sizes[name]
        step = f"It knows {', '.join(sizes)}, and `example(n)`."
        raise AttributeError(f"A trained net is built without its data, which `{name}` is part of. {step}")

    def example(self, n: int = 1) -> Any:
        """Ones, which unlike zeros have a norm, in the shape of what the net takes."""
        made = {
            name: torch.ones(n, *shape, dtype=getattr(torch, dtype))
            for name, (dtype, *shape) in self.shapes.items()
        }
        return made.get("", made)


def data_of(splits: Any) -> Data:
    """What a net must know of these data."""
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
    """Writes a net of the run to its `model/`: weights, settings, recipe, and what `Data` holds."""
    folder, data = workspace.make_folder(run.folder / "model"), dict(vars(data_of(run.splits)))
    data["sizes"] = dict(data["sizes"])
    if "tokenizer" in data["sizes"]:
        data["sizes"].pop("tokenizer").save_pretrained(folder / "tokenizer")
    from safetensors.torch import save

    state = {name: value.detach().cpu().contiguous().clone() for name, value in weights.of(net).items()}
    workspace.write_bytes(folder / "model.safetensors", save(state))
    workspace.write_bytes(folder / "recipe.py", run.recipe.source.encode())
    about = {"net": run.nets[0], "seed": run.config.seed, "settings": kept_settings(run), "data": data}
    workspace.write_json(folder / ABOUT, about)  # last: now it is a model
    return folder


def merge(run: Run | str | Path, folder: str | Path) -> Path:
    """Writes the run's own net, first seed, its adapter worked into its base, for plain transformers.

    Only the adapter's files and its base are read, in the precision in which the base was trained on (of 4
    bits: float32).

    Args:
        run: A finished run, or its folder, or its `adapter/`, wherever that is now.
        folder: Where to; an earlier save there is replaced.

    Raises:
        ValueError: There is no adapter.
        NotImplementedError: It cannot be merged.
        OSError: The base is not found, or the folder cannot be written.
    """
    place = _folder(run.folder if isinstance(run, Run) else run)
    if not (place / CONFIG).exists():
        step = "A run whose recipe has an adapter writes adapter/ when it is trained."
        raise ValueError(checks.message("run_dir", "hold a run with an adapter", str(place.parent), step))
    model, about, _ = load_language(place)
    settings = workspace.read_json(place / SETTINGS)
    return tasks.save(tasks.merge(model, in_place=True), about.tokenizer, folder, settings)


def export(run: Run) -> Path:
    """Writes the run's own net, first seed, to `model/` or `adapter/` of the run folder.

    Language models go with their tokenizer: plain transformers and PEFT load that folder. An adapter's folder
    also has the circuits that gave its weights. Other nets are read by `runs.load_model`.
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
    """A language model, or an adapter on its base, as transformers and PEFT write them, and its task.

    Raises:
        FileNotFoundError: The adapter's base is not there.
    """
    settings = workspace.read_json(folder / SETTINGS) or {}
    if (folder / CONFIG).exists():
        base, dtype = adapters.base_of(folder), settings.get("base_precision", "float32")
        if base.startswith((".", "/")) and not Path(base).is_dir():
            rule, step = "hold an adapter whose base is there", f"Put the base model at {base}."
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
    """The trained net of a run, what it knows of its data, its task, and its settings where it has any."""
    folder = _folder(run_dir)
    if any((folder / name).exists() for name in FILES[1:]):
        if recipe is not None:
            step = "It is read from its own files."
            raise ValueError(checks.message("recipe", "be left out for a language model", recipe, step))
        with _whole(folder):
            return *load_language(folder), None
    about = read_facts(folder / ABOUT)
    if not about or not KINDS[ABOUT].keys() <= about.keys():
        step = f"It is {look(folder.parent).state}. Finish the run: its 04_analyze writes model/."
        step = step if folder.parent.is_dir() else "Nothing is there: check the path."
        raise FileNotFoundError(checks.message("folder", "hold a trained net", str(folder), step))
    config = settings_of(about["settings"], None if recipe is None else recipes.find(recipe), folder)
    used, kept = recipes.of(config), about["data"]  # lists; earlier versions say more, or less
    sizes = {name: tuple(size) if isinstance(size, list) else size for name, size in kept["sizes"].items()}
    if (folder / "tokenizer").is_dir():
        sizes["tokenizer"] = tokenizers.of_captions(folder / "tokenizer", ())
    texts = (tuple(kept.get(name, ())) for name in ("classes", "columns"))
    data = Data(kept["name"], sizes, kept.get("shapes", {}), *texts)
    net = used.build(config.with_paths(workspace.located).override(backend="auto"), data, about["seed"])
    from safetensors.torch import load

    with _whole(folder):
        net.load_state_dict(load((folder / "model.safetensors").read_bytes()))
    return net.eval(), data, used.task(config), config


@contextlib.contextmanager
def _whole(folder: Path) -> Iterator[None]:
    """Weights that are damaged, or of another net, are told."""
    from safetensors import SafetensorError

    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (SafetensorError, RuntimeError) as error:
        step = f"Move `{folder}` away; qnnkit train with the run's folder writes it again, or copy it again."
        fault = words.first_line(error)
        raise ValueError(checks.message("run_dir", "hold a whole net", fault, step)) from None


def load_model(folder: str | Path, recipe: Any = None) -> tuple[nn.Module, Data, Recipe | None]:
    """A trained net in evaluation mode on the CPU, what it knows of its data, and its recipe.

    No training data are read. A language model has its own files and no recipe.

    Args:
        folder: A finished run, its `model/` or `adapter/`, or a copy of that anywhere.
        recipe: The run's, where it is a user's own: its code runs only where it is named.

    Raises:
        ValueError, OSError: The folder holds no model, or one of another recipe.
    """
    net, data, _, config = _loaded(folder, recipe)
    return net, data, config and recipes.of(config)


def predict(
    run_dir: str | Path, inputs: Sequence[Any], *, recipe: Any = None, classical: bool = False
) -> Iterator[dict[str, Any]]:
    """What a trained net says of new inputs, a row for each: as the run's task does it.

    Args:
        run_dir: Folder of a finished run, or its `model/` or `adapter/`.
        inputs: Of images files, or arrays of pixels; for CLIP images and texts to hold them against; a text
            to go on with, or of a model with a chat template a user's message to answer; a MIDI file to go on
            with; of a recipe's own data arrays, DataFrames, .npy files, or tables (.csv, .tsv) with the same
            columns. A task with `predict(net, inputs)` is given them as they are.
        recipe: The run's, where it is a user's own.
        classical: Whether each circuit is replaced by the classical function that it is, see
            `layers.as_classical`.

    Raises:
        ValueError, OSError: There is no trained net, or an input cannot be read.
        NotImplementedError: A circuit is no classical function of this kind.
    """
    if isinstance(inputs, str | Path | np.ndarray) or hasattr(inputs, "columns"):
        inputs = [inputs]
    if not len(inputs):
        raise ValueError(checks.message("inputs", "hold something", [], "Give a file, or a text."))
    net, about, task, _ = _loaded(run_dir, recipe)
    if classical:
        layers.called(net, about.example())  # once, so that shapes are known
        net = layers.as_classical(net)[0]
    with torch.no_grad():
        rows = tasks.asked(task.predict, net, inputs, about=about)
        return iter(rows if isinstance(rows, list | Iterator) else [{"output": rows}])


def evaluate(run_dir: str | Path, data: str | Path, *, recipe: Any = None) -> dict[str, Any]:
    """What a trained net is worth on other data, all of them, as its task judges a test split.

    No training data are read.

    Args:
        run_dir: Folder of a finished run, or its `model/` or `adapter/`.
        data: Of a language model text, chats or music, as the recipe's `data_dir`; of a classifier a folder
            or archive of images in class folders (or with the label in their names, if it was trained so).
        recipe: The run's, where it is a user's own.

    Returns:
        `data`; `samples` or `tokens`, their number; the task's numbers, such as `loss` and `perplexity`, or
        `accuracy`; `score`, the name of the one that nets are compared by; of a share its 95 % `interval`
        (Clopper and Pearson's); `notes` on what was left out.

    Raises:
        ValueError, OSError: There is no trained net, a class is none of the net's, or data cannot be read.
        NotImplementedError: The net is of another kind, such as CLIP or one of arrays.
    """
    net, about, task, settings = _loaded(run_dir, recipe)
    root = str(data) if Path(data).exists() else workspace.data_place(str(data))
    with checks.renamed({"root": "data"}):
        if settings is None:
            splits: Any = unsplit.tokens(root, about.tokenizer, about.length)
        elif "tokenizer" in about.sizes or not about.classes or "image_size" not in about.sizes:
            rule, step = "be of labelled images or tokens", "Use qnnkit predict, or a run's report on these."
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
    if score.per == "%" and counted == "samples":
        row["interval"] = list(stats.clopper_pearson(numbers[score.name] * n, n))
    return row


def line(row: Mapping[str, Any]) -> str:
    """A row of `predict` or `evaluate` for people, in four digits."""
    shown = json.loads(json.dumps(row), parse_float=lambda text: float(f"{float(text):.4g}"))
    return yaml.safe_dump(shown, sort_keys=False, allow_unicode=True)


def _folder(run_dir: str | Path) -> Path:
    """The folder that holds the trained net: the one that is named, or one in it."""
    place = work(workspace.place(run_dir))
    places = (place, place / "model", place / "adapter")
    return next((each for each in places if any((each / name).exists() for name in FILES)), places[1])
