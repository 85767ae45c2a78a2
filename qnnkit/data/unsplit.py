"""A file or folder as a single split, to evaluate a trained net on new data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qnnkit import checks
from qnnkit.data import places, tokenizers
from qnnkit.data.folders import label_in
from qnnkit.data.images import stack_files
from qnnkit.data.pieces import blocks, collect, encoded, writing
from qnnkit.data.splits import ImageSplits
from qnnkit.data.text import documents, packed
from qnnkit.data.tokens import TokenSplits


def tokens(root: str | Path, tokenizer: Any, length: int) -> TokenSplits:
    """Returns all text, chats or music at `root` in blocks of `length` tokens; the last one is padded.

    Args:
        root: As in `data.text` or `data.music`, depending on the tokenizer.
        tokenizer: The tokenizer of the trained net.
        length: Tokens in a block.

    Raises:
        ValueError, OSError: It cannot be read, or there is no token to predict.
    """
    if written := writing(tokenizer):  # as in a test split: every token but a piece's first counts once
        pieces, notes = collect(root)
        rows, lost = encoded(pieces, written)
        part = blocks(rows, written, length)
    else:
        texts, notes = documents(root)
        notes += tokenizers.with_chat_template(tokenizer, texts)
        part, lost = packed(texts, tokenizer, length, pads=True)[0], []
    if not part.n_predicted:
        raise places.refusal("hold tokens to predict", str(root), "Give a text of two tokens or more.")
    notes = (*notes, *lost)
    return TokenSplits(Path(root).name, part, part, part, tokenizer=tokenizer, notes=notes)


def labelled(root: str | Path, about: Any, pattern: str | None = None) -> ImageSplits:
    """Returns all labelled images at `root`, as a trained net takes them.

    The label of an image is the outermost folder around it that is named after a class; with a pattern, it is
    the match of the pattern in the file name.

    Args:
        root: A folder, archive or address of images.
        about: Description of the training data stored in the run, with `classes` and `sizes`.
        pattern: Regular expression whose first group is the label in a file's name.

    Raises:
        ValueError, OSError: A label is not a class of the net, or nothing can be read.
    """
    place, classes = places.open_place(root), about.classes
    images, notes = [each for each in place.members if each.is_image], place.notes(places.SUFFIXES, "images")

    def folder(name: str) -> str:
        parts = name.split("/")
        return next((each for each in parts[:-1] if each in classes), parts[-2:][0])

    label = label_in(pattern) if pattern else folder
    names = [label(each.name) or each.base for each in images]
    if unknown := sorted({*names} - {*classes}, key=places.natural):
        rule = f"hold only images of the net's classes: {places.first(list(classes), 10)}"
        raise ValueError(checks.message("data", rule, places.first(unknown), "Rename or remove these."))
    if missing := [name for name in classes if name not in names]:
        notes.append(f"There are no images of class {places.first(missing)}.")
    files = [("any", classes.index(name), each) for name, each in zip(names, images, strict=True)]
    stack = stack_files(place.read, files, about.sizes["image_size"], about.sizes["channels"] == 1)
    notes, three = (*stack.notes, *notes), [stack.images] * 3
    return ImageSplits(Path(root).name, *three, classes=classes, notes=notes)
