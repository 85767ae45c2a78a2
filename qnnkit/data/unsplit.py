"""A file or folder as a single split: what a trained net is evaluated on, without its training data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qnnkit import checks, words
from qnnkit.data import places, tokenizers
from qnnkit.data.arrays import TensorSet, TensorSplits, tensor_of
from qnnkit.data.folders import label_in
from qnnkit.data.images import stack_files
from qnnkit.data.pieces import blocks, collect, encoded, writing
from qnnkit.data.splits import ImageSet, ImageSplits
from qnnkit.data.text import documents, packed
from qnnkit.data.tokens import TokenSplits


def tokens(root: str | Path, tokenizer: Any, length: int) -> TokenSplits:
    """All of a text, of chats or of music in blocks of `length` tokens; the last one is padded.

    Args:
        root: As of `data.text` or `data.music`; what it holds is decided by the tokenizer.
        tokenizer: The trained net's.
        length: Tokens of a block.

    Raises:
        ValueError, OSError: It cannot be read, or there is no token to predict.
    """
    if written := writing(tokenizer):  # as the test split has them: every token but the first counts once
        pieces, notes = collect(root)
        rows, lost = encoded(pieces, written)
        part = blocks(rows, written, length)
    else:
        found, notes = documents(root)
        notes += tokenizers.with_chat_template(tokenizer, found)
        part, lost = packed(found, tokenizer, length, pads=True)[0], []
    if not part.n_predicted:
        raise places.refusal("hold tokens to predict", str(root), "Give a text of two tokens or more.")
    notes = (*notes, *lost)
    return TokenSplits(Path(root).name, part, part, part, tokenizer=tokenizer, notes=notes)


def labelled(root: str | Path, about: Any, pattern: str | None = None) -> ImageSplits | TensorSplits:
    """All labelled images of a place, or all samples of an .npz file, as a trained net takes them.

    An image is of the class whose name a folder around it has, the outermost first; or, with a pattern, that
    the pattern finds in its own name.

    Args:
        root: A folder, archive or address of images; of a net of arrays an .npz file with the arrays `inputs`
            and `targets`, such as names of classes, or their numbers.
        about: What the run keeps of its data: `classes`, `sizes` and `shapes`.
        pattern: Regular expression whose first group is the label in a file's name.

    Raises:
        ValueError, OSError: A class is none of the net's, a shape is another, or nothing can be read.
    """
    path, of_images = places.local(root), "image_size" in about.sizes
    kind, part, notes = _images(path, about, pattern) if of_images else _arrays(path, about)
    return kind(path.name, part, part, part, classes=about.classes or None, notes=tuple(notes))


def _images(path: Path, about: Any, pattern: str | None) -> tuple[Any, ImageSet, Sequence[str]]:
    place = places.open_place(path)
    images, notes = [each for each in place.members if each.is_image], place.notes(places.SUFFIXES, "images")

    def folder(name: str) -> str:
        parts = name.split("/")
        return next((each for each in parts[:-1] if each in about.classes), parts[-2:][0])

    label = label_in(pattern) if pattern else folder
    labels = _matched([label(each.name) or each.base for each in images], about.classes, notes).tolist()
    files = [("any", number, each) for number, each in zip(labels, images, strict=True)]
    stack = stack_files(place.read, files, about.sizes["image_size"], about.sizes["channels"] == 1)
    return ImageSplits, stack.whole, (*stack.notes, *notes)


def _arrays(path: Path, about: Any) -> tuple[Any, TensorSet, Sequence[str]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            inputs, targets = file["inputs"], file["targets"]
            others = [name for name in file if name not in ("inputs", "targets")]
    except Exception as error:  # a damaged file makes NumPy raise almost anything
        step = f"It says: {words.first_line(error)}. Save such by np.savez, without objects."
        raise places.refusal("be an .npz file with the arrays inputs and targets", str(path), step) from None
    notes, (dtype, *shape) = places.left_out({"arrays of other names": others}), about.shapes[""]
    if about.classes:
        names, numbers = [str(each) for each in targets.tolist()], map(str, range(len(about.classes)))
        targets = _matched(names, about.classes if {*names} & {*about.classes} else [*numbers], notes)
    inputs, targets = tensor_of("root", inputs), tensor_of("root", targets)
    if [*inputs.shape[1:]] != shape or len(inputs) != len(targets):
        value = f"{tuple(inputs.shape)}, with {len(targets):,} targets"
        raise places.refusal(
            f"hold samples of shape {tuple(shape)}, each with its target", value, "Reshape them."
        )
    sources = tuple(f"{path.name}/{row}" for row in range(len(inputs)))
    targets = targets if about.classes else targets.float()
    return TensorSplits, TensorSet(inputs.to(getattr(torch, dtype)), targets, sources), notes


def _matched(names: Sequence[str], classes: Sequence[str], notes: list[str]) -> np.ndarray:
    """The net's label of each class name, and a note on classes without a sample."""
    if unknown := sorted({*names} - {*classes}, key=places.natural):
        rule = f"hold samples of the net's classes alone: {places.first(list(classes), 10)}"
        step = "Rename these, or take them away."
        raise ValueError(checks.message("data", rule, places.first(unknown), step))
    if missing := [name for name in classes if name not in names]:
        notes.append(f"No sample is of class {places.first(missing)}.")
    return np.array([classes.index(name) for name in names], np.int64)
