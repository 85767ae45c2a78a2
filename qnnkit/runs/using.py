"""A trained net without its training data: what a run leaves in `model/`, and what it says of new inputs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qnnkit import checks, recipes, workspace
from qnnkit.checkpoint import weights
from qnnkit.data import ImageSplits, TensorSplits
from qnnkit.data.captioned_tokens import CaptionTokenizer
from qnnkit.data.captions import CaptionSplits
from qnnkit.data.images import read as read_image
from qnnkit.data.tokens import TokenSplits
from qnnkit.recipes import Recipe
from qnnkit.runs.folder import Run, kept_settings, settings_of

ABOUT = "about.json"
MOST_CAPTIONS = 1000
"""Of the training split, that an image is held against where no other texts are given."""
NEW_TOKENS, NEW_BARS = 80, 8
"""Written behind a prompt, and behind a beginning."""
FAR = 4.0
"""Standard deviations of the training images beyond which an image is said to be unlike them."""


@dataclass(frozen=True)
class Data:
    """What a net must know of the data it was trained on; for a recipe's `build` it stands for the splits."""

    name: str
    kind: str
    """images, captions or tensors."""
    sizes: dict[str, Any]
    shapes: dict[str, list[Any]]
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
    example = splits.example(1)
    tensors = example if isinstance(example, Mapping) else {"": example}
    texts: Sequence[str] = ()
    if isinstance(splits, CaptionSplits):
        texts = [prompt for prompts in splits.prompts for prompt in prompts[:1]] or splits.train.texts()[0]
    return Data(
        name=splits.name,
        kind=_kind(splits),
        sizes=dict(splits.sizes),
        shapes={name: [str(t.dtype)[6:], *t.shape[1:]] for name, t in tensors.items()},
        classes=tuple(getattr(splits, "classes", None) or ()),
        captions=tuple(dict.fromkeys(texts))[:MOST_CAPTIONS],
        like=_like(splits.train.images) if isinstance(splits, ImageSplits | CaptionSplits) else None,
    )


def write_model(run: Run, net: nn.Module) -> Path:
    """Writes a net of the run to its `model/`: weights, settings, recipe, and what `Data` holds."""
    folder, data = workspace.make_folder(run.folder / "model"), dict(vars(data_of(run.splits)))
    data["sizes"] = dict(data["sizes"])
    if isinstance(run.splits, CaptionSplits):
        data["sizes"].pop("tokenizer").save_pretrained(folder / "tokenizer")
    from safetensors.torch import save

    state = {name: value.detach().cpu().contiguous().clone() for name, value in weights.of(net).items()}
    workspace.write_bytes(folder / "model.safetensors", save(state))
    workspace.write_bytes(folder / "recipe.py", run.recipe.source.encode())
    about = {"net": run.nets[0], "seed": run.config.seed, "settings": kept_settings(run), "data": data}
    workspace.write_json(folder / ABOUT, about)  # last: now it is a model
    return folder


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
    data = Data(**{name: _tuple(value) for name, value in told.items()})
    net = found.build(config.override(backend="auto"), data, about["seed"])
    net.load_state_dict(load((folder / "model.safetensors").read_bytes()))
    return net.eval(), data, found


def predict(run_dir: str | Path, inputs: Sequence[Any], *, recipe: Any = None) -> Iterator[dict[str, Any]]:
    """What a trained net says of new inputs, a row for each.

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
    place = workspace.run_folder(run_dir)
    places = (place, place / "model", place / "adapter")
    folder = next((each for each in places if (each / ABOUT).exists() or _of_tokens(each)), places[1])
    if _of_tokens(folder):
        return _continued(folder, inputs)
    net, data, found = load_model(folder, recipe)
    config = settings_of(workspace.read_json(folder / ABOUT)["settings"], found)
    own = getattr(found.task(config), "predict", None)
    with torch.no_grad():
        if own is not None:
            rows = own(net, inputs)
            return iter(rows if isinstance(rows, list) else [{"output": rows}])
        if data.kind == "captions":
            return iter(_matched(net, data, inputs))
        return iter([_classified(net, data, each) for each in inputs])


def prediction_line(row: Mapping[str, Any]) -> str:
    """A row of `predict` for people."""
    told = f"{row['input']}: " if "input" in row else ""
    if "probabilities" in row:
        best = sorted(row["probabilities"].items(), key=lambda pair: -pair[1])[:3]
        told += ", ".join(f"{name} {100 * share:.1f} %" for name, share in best)
    else:
        told += str(row.get("text", row.get("file", row.get("output"))))
    return told + "".join(f"\n  Note: {note}" for note in row.get("notes", ()))


# --- images and arrays ----------------------------------------------------------------------------


def _classified(net: nn.Module, data: Data, given: Any) -> dict[str, Any]:
    if data.kind != "images":
        array = _array(given) if isinstance(given, str | Path) else given
        values, shape = torch.as_tensor(np.asarray(array)), tuple(data.shapes[""][1:])
        values = values.to(getattr(torch, data.shapes[""][0]))
        single = tuple(values.shape) == shape
        if not single and tuple(values.shape[1:]) != shape:
            rule, step = f"have shape {shape}, or (n, ...) of it", "That is what the net was trained on."
            raise ValueError(checks.message("inputs", rule, tuple(values.shape), step))
        outputs = net(values.unsqueeze(0) if single else values)
        if data.classes and outputs.shape[1:] == (len(data.classes),):
            return _of_logits(given, outputs[0], data) if single else _rows_of(given, outputs, data)
        return {"input": _named(given), "output": (outputs[0] if single else outputs).tolist()}
    pixels, notes = _pixels(given, data)
    logits = net(pixels)[0]
    if not data.classes or logits.shape != (len(data.classes),):
        return {"input": _named(given), "output": logits.tolist(), "notes": notes}
    return _of_logits(given, logits, data) | {"notes": notes}


def _of_logits(given: Any, logits: Tensor, data: Data) -> dict[str, Any]:
    """Class and probabilities of one sample."""
    probabilities = dict(zip(data.classes, logits.double().softmax(0).tolist(), strict=True))
    chosen = max(probabilities, key=lambda name: probabilities[name])
    return {"input": _named(given), "class": chosen, "probabilities": probabilities}


def _rows_of(given: Any, logits: Tensor, data: Data) -> dict[str, Any]:
    """Class and probabilities of each sample of an array of several."""
    rows = [_of_logits(given, each, data) for each in logits]
    told = [{name: row[name] for name in ("class", "probabilities")} for row in rows]
    return {"input": _named(given), "output": told}


def _array(given: str | Path) -> np.ndarray:
    """What a .npy file holds.

    Raises:
        ValueError: It is missing, or no such file.
    """
    try:
        return np.load(_place(given), allow_pickle=False)
    except (OSError, ValueError, EOFError):
        step = "Write one by numpy.save, with shape (n, ...) or of one sample."
        raise ValueError(checks.message("inputs", "be .npy files", str(given), step)) from None


def _place(given: str | Path) -> Path:
    """A file as it is named, or in the workspace."""
    return Path(given) if Path(given).exists() else workspace.place(given)


def _pixels(given: Any, data: Data) -> tuple[Tensor, list[str]]:
    """An image as the net takes it, uint8 (1, channels, height, width), and what is unusual in it."""
    size, grey, notes = tuple(data.sizes["image_size"]), data.sizes["channels"] == 1, []
    if isinstance(given, str | Path):
        try:
            found = read_image(_place(given).read_bytes(), 0, str(given), None)
        except OSError as error:
            rule, step = "be an image that can be read", str(error.strerror or error)
            raise ValueError(checks.message("inputs", rule, str(given), step)) from None
        pixels = found.pixels
    else:
        pixels = np.asarray(given)
        if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3):
            rule = "be uint8 of shape (height, width) or (height, width, 3)"
            told = f"{pixels.dtype} of shape {pixels.shape}"
            raise ValueError(checks.message("inputs", rule, told, "Give pixels of 0 to 255."))
    from qnnkit.data.images import fit

    height, width = pixels.shape[:2]
    if grey and pixels.ndim == 3:
        notes.append("It is in colour, and the training images are grey: its colours are left out.")
    if not grey and pixels.ndim == 2:
        notes.append("It is grey, and the training images are in colour.")
    if abs(np.log((width / height) / (size[1] / size[0]))) > np.log(1.2):
        notes.append(f"It is {width}x{height}, and is squeezed to the training images' {size[1]}x{size[0]}.")
    if height < size[0] or width < size[1]:
        notes.append(f"It is {width}x{height}, smaller than the training images' {size[1]}x{size[0]}.")
    tensor = torch.from_numpy(fit(pixels, size, "L" if grey else "RGB").copy())
    tensor = (tensor[None] if grey else tensor.permute(2, 0, 1)).unsqueeze(0).contiguous()
    return tensor, notes + _unlike(tensor, data.like)


def _brightness(images: Tensor) -> dict[str, Tensor]:
    """Of each image, and of its edge, 0 to 255."""
    values = images.float()
    edge = torch.cat([values[..., 0, :], values[..., -1, :], values[..., 0], values[..., -1]], -1)
    return {"brightness": values.flatten(1).mean(1), "edge": edge.flatten(1).mean(1)}


def _like(images: Tensor) -> dict[str, list[float]]:
    return {
        name: [float(each.mean()), float(each.std(unbiased=False))]
        for name, each in _brightness(images).items()
    }


def _unlike(image: Tensor, like: Mapping[str, Sequence[float]] | None) -> list[str]:
    if like is None:
        return []

    def far(tensor: Tensor) -> float:
        found = _brightness(tensor)
        return max(
            abs(float(found[name][0]) - mean) / (spread + 2.0) for name, (mean, spread) in like.items()
        )

    here, inverted = far(image), far(255 - image)
    if inverted < here / 2 and here > FAR / 2:
        return ["It is dark where the training images are light: invert it, if it is of their kind."]
    if here > FAR:
        word = "brighter" if float(image.float().mean()) > like["brightness"][0] else "darker"
        return [f"It is much {word} than the training images: what the net says of it may mean little."]
    return []


# --- captions, text, music ------------------------------------------------------------------------


def _matched(net: Any, data: Data, inputs: Sequence[Any]) -> list[dict[str, Any]]:
    """Of each image, how well each text fits it: softmax over the texts, at the net's own scale."""
    are_texts = [isinstance(each, str) and Path(each).suffix.lower() not in SUFFIXES for each in inputs]
    images = [each for each, is_text in zip(inputs, are_texts, strict=True) if not is_text]
    texts = [each for each, is_text in zip(inputs, are_texts, strict=True) if is_text] or data.captions
    if not images:
        step = "Give images, and texts to hold them against."
        raise ValueError(checks.message("inputs", "hold an image file", list(inputs), step))
    ids, mask = data.sizes["tokenizer"].encode(list(texts))
    embedded, rows = net.embed_texts(ids, mask), []
    for each in images:
        pixels, notes = _pixels(each, data)
        shares = (net.scale() * net.embed_images(pixels) @ embedded.T)[0].double().softmax(0).tolist()
        probabilities = dict(zip(texts, shares, strict=True))
        chosen = max(probabilities, key=lambda text: probabilities[text])
        rows.append({"input": _named(each), "text": chosen, "probabilities": probabilities, "notes": notes})
    return rows


SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")


def _of_tokens(folder: Path) -> bool:
    """Whether a folder holds a language model, or an adapter of one, as transformers and PEFT write them."""
    names = ("generation_config.json", "adapter_config.json")
    return any((folder / name).exists() for name in names)


def _continued(folder: Path, inputs: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Texts, or pieces, that a language model goes on with."""
    from qnnkit import adapters, language, music
    from qnnkit.data import tokenizer
    from qnnkit.data.music_events import MusicTokenizer
    from qnnkit.data.music_midi import read_midi
    from qnnkit.models import causal_lm

    if (folder / "adapter_config.json").exists():
        base = json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]
        model: Any = adapters.load(causal_lm(base), folder)
    else:
        model = causal_lm(folder)
    model.eval()
    is_music = (folder / "music_tokenizer.json").exists()
    tokens: Any = MusicTokenizer.from_pretrained(folder) if is_music else tokenizer.loaded(folder)
    for each in inputs:
        if not is_music:
            found = language.generate(model, tokens, str(each), max_new_tokens=NEW_TOKENS)
            yield {"input": str(each), "text": found.text}
            continue
        piece = read_midi(each)
        written = music.continue_piece(model, tokens, piece, 16 * NEW_BARS)
        target = Path(each).with_name(f"{Path(each).stem}.continued.mid")
        music.write_midi(written.piece, target)
        yield {"input": str(each), "file": str(target)}


def _kind(splits: Any) -> str:
    if isinstance(splits, CaptionSplits):
        return "captions"
    if isinstance(splits, TokenSplits):
        return "tokens"
    return "tensors" if isinstance(splits, TensorSplits) else "images"


def _named(given: Any) -> str:
    return str(given) if isinstance(given, str | Path) else f"array of shape {np.asarray(given).shape}"


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
