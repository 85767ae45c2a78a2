"""A file or folder as a single split: what a trained net is evaluated on, without its training data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qnnkit import checks
from qnnkit.data import places, tokenizers
from qnnkit.data.arrays import TensorSet, TensorSplits, from_file, numbered, pixels
from qnnkit.data.folders import label_in, left_out
from qnnkit.data.images import as_pictures, one_form, stack_files
from qnnkit.data.pieces import blocks, collect, encoded, writing
from qnnkit.data.splits import ImageSet, ImageSplits
from qnnkit.data.text import documents, not_packed, packed
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
        part, left_out = packed(found, tokenizer, length, pads=True)
        lost = not_packed(left_out)
    if not part.n_predicted:
        raise places.refusal("hold tokens to predict", str(root), "Give a text of two tokens or more.")
    notes = (*notes, *lost)
    return TokenSplits(Path(root).name, part, part, part, tokenizer=tokenizer, notes=notes)


def labelled(root: str | Path, about: Any, pattern: str | None = None) -> ImageSplits | TensorSplits:
    """All labelled images of a place, or all samples of an .npz file, as a trained net takes them.

    An image is of the class whose name a folder around it has, the outermost first; or, with a pattern, that
    the pattern finds in its own name. Of a file a test part comes first, and labels are names of classes, or
    indices into its `classes`.

    Args:
        root: A folder, archive or address of images, or an .npz file, as `data.npz` takes them.
        about: What the run keeps of its data: `classes`, `sizes` and `shapes`.
        pattern: Regular expression whose first group is the label in a file's name.

    Raises:
        ValueError, OSError: A class is none of the net's, a shape is another, or nothing can be read.
    """
    path, classes = places.local(root), about.classes
    size, grey = about.sizes.get("image_size"), about.sizes.get("channels") == 1
    if path.suffix == ".npz":
        sides, names, notes = from_file(path)
        samples, labels = sides.get("test") or next(iter(sides.values()))
        dtype, *shape = about.shapes[""]
        if classes:
            names, [labels] = numbered([labels], names)
            labels = _matched(names, classes, notes)[labels]
        targets = torch.as_tensor(labels if classes else np.asarray(labels, np.float32))
        sources = tuple(f"{path.name}/{row}" for row in range(len(samples)))
        if size is None:
            inputs, changed = torch.as_tensor(samples).to(getattr(torch, dtype)), []
        else:
            inputs, changed = one_form(as_pictures(pixels(samples)), sources, size, grey)
        if list(inputs.shape[1:]) != shape or len(inputs) != len(targets):
            rule = f"hold samples of shape {tuple(shape)}, and a label for each"
            value = f"{tuple(inputs.shape)}, {len(targets):,} labels"
            raise places.refusal(rule, value, "The net was trained on such.")
        part = (TensorSet if size is None else ImageSet)(inputs, targets, sources)
    else:
        place = places.open_place(path)
        names, notes = _names(place, classes, pattern), left_out(place, {})
        labels = _matched([*names.values()], classes, notes).tolist()
        files = [("any", label, member) for label, member in zip(labels, names, strict=True)]
        stack = stack_files(place.read, files, size, grey)
        part, changed = stack.whole, stack.notes
    kind: Any = ImageSplits if isinstance(part, ImageSet) else TensorSplits
    return kind(path.name, part, part, part, classes=classes or None, notes=(*changed, *notes))


def _matched(names: Sequence[str], classes: Sequence[str], notes: list[str]) -> np.ndarray:
    """The net's label of each class name."""
    if unknown := sorted({*names} - {*classes}, key=places.natural):
        rule = f"hold samples of the net's classes alone: {places.first(list(classes), 10)}"
        step = "Rename these, or take them away."
        raise ValueError(checks.message("data", rule, places.first(unknown), step))
    if missing := [name for name in classes if name not in names]:
        notes.append(f"No sample is of class {places.first(missing)}.")
    number = {name: label for label, name in enumerate(classes)}
    return np.array([number[name] for name in names], np.int64)


def _names(place: places.Place, classes: Sequence[str], pattern: str | None) -> dict[places.Member, str]:
    """Image -> its class: by a folder around it, or by its name."""
    label, names = label_in(pattern) if pattern else lambda name: None, {}
    for member in [member for member in place.members if member.is_image]:
        *above, base = member.name.split("/")
        names[member] = next(
            (each for each in above if each in classes), label(base) or [*above, base][-2:][0]
        )
    if not names:
        step = "Put images in folders named by class."
        raise places.refusal("hold labelled samples", str(place.path), step)
    return names
