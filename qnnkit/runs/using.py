"""A trained net for others: what a run leaves in `model/` or `adapter/`, and what it says of new inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from qnnkit import adapters, checks, recipes, tasks, workspace
from qnnkit.checkpoint import weights
from qnnkit.data import tokenizers
from qnnkit.data.music_events import FILE, MusicTokenizer
from qnnkit.data.tokenizers import CaptionTokenizer
from qnnkit.models import causal_lm
from qnnkit.recipes import Recipe
from qnnkit.runs.folder import Run, kept_settings, settings_of
from qnnkit.runs.nets import trained
from qnnkit.runs.reading import facts
from qnnkit.tasks import pictures

ABOUT = "about.json"
MOST_CAPTIONS = 1000
"""Of the training split, that an image is held against where no other texts are given."""


@dataclass(frozen=True)
class Data:
    """What a net must know of the data it was trained on; for a recipe's `build` it stands for the splits."""

    name: str
    sizes: dict[str, Any]
    shapes: dict[str, list[Any]] = field(default_factory=dict)
    """Of what a net takes: name -> dtype and shape without the batch; "" for one tensor."""
    classes: tuple[str, ...] = ()
    captions: tuple[str, ...] = ()
    like: Mapping[str, Sequence[float]] | None = None
    """Mean and spread over training images of their brightness and of that of their edge, 0 to 255."""

    def __getattr__(self, name: str) -> Any:
        sizes = self.__dict__.get("sizes", {})
        if name in sizes:
            return sizes[name]
        step = f"It knows {', '.join(sizes)}, and `example(n)`."
        raise AttributeError(f"A trained net is built without its data, which `{name}` is part of. {step}")

    def example(self, n: int = 1) -> Any:
        """Zeros in the shape of what the net takes."""
        made = {
            name: torch.zeros(n, *shape, dtype=getattr(torch, dtype))
            for name, (dtype, *shape) in self.shapes.items()
        }
        return made.get("", made)


def data_of(splits: Any) -> Data:
    """What a net must know of these data."""
    example, train = splits.example(1), splits.train
    tensors = example if isinstance(example, Mapping) else {"": example}
    texts = [prompt for prompts in getattr(splits, "prompts", ()) for prompt in prompts[:1]]
    if not texts and hasattr(train, "texts"):
        texts = train.texts()[0]
    images = getattr(train, "images", None)
    return Data(
        name=splits.name,
        sizes=dict(splits.sizes),
        shapes={name: [str(t.dtype)[6:], *t.shape[1:]] for name, t in tensors.items()},
        classes=tuple(getattr(splits, "classes", None) or ()),
        captions=tuple(dict.fromkeys(texts))[:MOST_CAPTIONS],
        like=None if images is None else _like(images),
    )


def _like(images: torch.Tensor) -> dict[str, list[float]]:
    return {
        name: [float(each.mean()), float(each.std(unbiased=False))]
        for name, each in pictures.brightness(images).items()
    }


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


def merge(run: Run, folder: str | Path) -> Path:
    """Writes the run's own net, first seed, its adapter worked into its base, for plain transformers.

    A base that trained in 4 bits is read in float32: the adapter is that of the run's `adapter/`.

    Args:
        run: A trained one, with an adapter; of 4 bits, a finished one.
        folder: Where to; an earlier save there is replaced.

    Raises:
        ValueError: The run has no adapter.
        NotImplementedError: Its adapter cannot be merged.
        OSError: It is not trained yet, or the folder cannot be written.
    """
    config: Any = run.config
    splits: Any = run.splits
    if not config.of_kit("adapter"):
        step = "A language model without one is whole already: model/ of its folder."
        raise ValueError(checks.message("run_dir", "hold a run with an adapter", str(run.folder), step))
    if config.four_bit:
        model = adapters.load(causal_lm(str(config.pretrained)), run.folder / "adapter")
    else:
        model = trained(run)
    return tasks.save(tasks.merge(model, in_place=True), splits.tokenizer, folder, run.config)


def export(run: Run) -> Path:
    """Writes the run's own net, first seed, to `model/` or `adapter/` of the run folder.

    Language models go with their tokenizer: what lies there loads with plain transformers and PEFT. Beside an
    adapter lie the circuits that gave its weights. Other nets are read by `runs.load_model`.
    """
    net: Any = trained(run)
    splits: Any = run.splits
    if not (hasattr(splits, "tokenizer") and hasattr(net, "save_pretrained")):
        return write_model(run, net)
    name = "adapter" if run.config.of_kit("adapter") else "model"
    return tasks.save(net, splits.tokenizer, run.folder / name, run.config)


def load_model(folder: str | Path, recipe: Any = None) -> tuple[nn.Module, Data, Recipe]:
    """A net as `write_model` left it, in evaluation mode on the CPU; no training data are read.

    Args:
        folder: `model/` of a finished run, wherever it lies now.
        recipe: The run's, where it is a user's own: its code runs only where it is named.

    Raises:
        ValueError, OSError: The folder holds no model, or one of another recipe.
    """
    from safetensors.torch import load

    folder = workspace.place(folder)
    about = workspace.read_json(folder / ABOUT)
    if not isinstance(about, dict):
        rule, step = "hold a trained net", "Finish the run: its 04_analyze writes model/."
        raise FileNotFoundError(checks.message("folder", rule, str(folder), step))
    named = None if recipe is None else recipes.find(recipe)
    config = settings_of(about["settings"], named)
    if named is not None and config.source is None:
        with contextlib.suppress(OSError):
            changed = recipes.difference((folder / "recipe.py").read_text(), named.source)
            told = f"`{folder}` was trained by another recipe than `{named.reference}`"
            raise ValueError(f"{told} ({changed or 'in what it imports'}). Name the one that it was.")
    config = config.with_paths(workspace.located)
    found, told = recipes.of(config), dict(about["data"])
    told["sizes"] = {name: _tuple(value) for name, value in told["sizes"].items()}
    if (folder / "tokenizer").is_dir():
        told["sizes"]["tokenizer"] = CaptionTokenizer.load(folder / "tokenizer")
    known = {each.name for each in fields(Data)}
    data = Data(**{name: _tuple(value) for name, value in told.items() if name in known})
    net = found.build(config.override(backend="auto"), data, about["seed"])
    net.load_state_dict(load((folder / "model.safetensors").read_bytes()))
    return net.eval(), data, found


def load_language(folder: Path) -> tuple[Any, Data, Any]:
    """A language model, or an adapter on its base, as transformers and PEFT write them, and its task."""
    described = workspace.read_json(folder / "adapter_config.json")
    if described is None:
        model: Any = causal_lm(folder)
    else:
        model = adapters.load(causal_lm(described["base_model_name_or_path"]), folder)
    read = MusicTokenizer.from_pretrained if (folder / FILE).exists() else tokenizers.loaded
    tokens: Any = read(folder)
    about = Data(folder.name, {"tokenizer": tokens, "vocabulary": len(tokens)})
    return model.eval(), about, tasks.usual(about)


def predict(run_dir: str | Path, inputs: Sequence[Any], *, recipe: Any = None) -> Iterator[dict[str, Any]]:
    """What a trained net says of new inputs, a row for each: as the run's task does it.

    Args:
        run_dir: Folder of a finished run, or its `model/` or `adapter/`.
        inputs: Of images files, or arrays of pixels; for CLIP images and texts to hold them against; a text
            to go on with; a MIDI file to go on with; of a recipe's own data arrays, or .npy files. A task
            with `predict(net, inputs)` is given them as they are.
        recipe: The run's, where it is a user's own.

    Raises:
        ValueError, OSError: There is no trained net, or an input cannot be read.
    """
    if isinstance(inputs, str | Path | np.ndarray):
        inputs = [inputs]
    if not len(inputs):
        raise ValueError(checks.message("inputs", "hold something", [], "Give a file, or a text."))
    folder = _folder(run_dir)
    if _of_tokens(folder):
        net, about, task = load_language(folder)
    else:
        net, about, found = load_model(folder, recipe)
        task = found.task(settings_of(workspace.read_json(folder / ABOUT)["settings"], found))
    with torch.no_grad():
        rows = tasks.asked(task.predict, net, inputs, about=about)
        return iter(rows if isinstance(rows, list | Iterator) else [{"output": rows}])


def predictor(run_dir: str | Path) -> dict[str, Any]:
    """Which net of the run `predict` uses: `net` and `seed`; nothing where its files do not tell."""
    folder = _folder(run_dir)
    about = facts(folder, ABOUT)
    if not about:  # a language model's own files
        nets, settings = (facts(folder.parent, name) for name in ("provenance.json", "config.json"))
        about = {"net": (nets.get("nets") or [None])[0], "seed": settings.get("seed")}
    return {name: about[name] for name in ("net", "seed") if about.get(name) is not None}


def of_language(run_dir: str | Path) -> bool:
    """Whether `predict` reads a language model there, which needs no recipe."""
    return _of_tokens(_folder(run_dir))


def prediction_lines(row: Mapping[str, Any]) -> Iterator[str]:
    """A row of `predict` for people; of an array a line for each of its samples."""
    told, output = row.get("input", ""), row.get("output")
    if isinstance(output, list) and any(isinstance(each, list | dict) for each in output):
        for place, each in enumerate(output):
            inner = each if isinstance(each, dict) and "probabilities" in each else {"output": each}
            yield from prediction_lines({"input": f"{told}[{place}]"} | inner)
        return
    if "probabilities" in row:
        best = sorted(row["probabilities"].items(), key=lambda pair: -pair[1])[:3]
        said = ", ".join(f"{name} {100 * share:.1f} %" for name, share in best)
    else:
        said = _short(row.get("text", row.get("file", output)))
    yield f"{told}: {said}" if told else said
    yield from (f"  Note: {note}" for note in row.get("notes", ()))


def _short(value: Any) -> str:
    """Numbers with few digits; anything else as it is."""
    if isinstance(value, list | tuple):
        return ", ".join(map(_short, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _folder(run_dir: str | Path) -> Path:
    """The folder that holds the trained net: the one that is named, or one in it."""
    place = workspace.run_folder(run_dir)
    places = (place, place / "model", place / "adapter")
    return next((each for each in places if (each / ABOUT).exists() or _of_tokens(each)), places[1])


def _of_tokens(folder: Path) -> bool:
    """Whether a folder holds a language model, or an adapter of one, as transformers and PEFT write them."""
    names = ("generation_config.json", "adapter_config.json")
    return any((folder / name).exists() for name in names)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
