"""A file or folder as a single split: what a trained net is evaluated on, without its training data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qnnkit import checks
from qnnkit.data import fetch, music_blocks, music_files, music_tokens, places, text_files, tokenizers
from qnnkit.data.arrays import TensorSet, TensorSplits, _pixels, _read
from qnnkit.data.images import fit, read
from qnnkit.data.splits import SPLITS, ImageSet, ImageSplits
from qnnkit.data.text import encoded as encode
from qnnkit.data.tokens import IGNORED, TokenSet, TokenSplits

PAIRS = ("test_images test_labels", "x_test y_test", "images labels", "inputs targets", "x y")
"""What the arrays of samples and labels may be called in an .npz file; a test part comes first."""


def tokens(root: str | Path, tokenizer: Any, length: int) -> TokenSplits:
    """All of a text, of chats or of music in blocks of `length` tokens; the last one is padded.

    Args:
        root: As of `data.text` or `data.music`; what it holds is decided by the tokenizer.
        tokenizer: The trained net's.
        length: Tokens of a block.

    Raises:
        ValueError, OSError: It cannot be read, or there is no token to predict.
    """
    blocks, notes = (_music if music_tokens.are_music(tokenizer) else _text)(root, tokenizer, length)
    if not blocks.n_predicted:
        raise places.refusal("hold tokens to predict", str(root), "Give a text of two tokens or more.")
    parts = dict.fromkeys(SPLITS, blocks)
    return TokenSplits(Path(root).name, **parts, tokenizer=tokenizer, notes=tuple(notes))


def _text(root: str | Path, tokenizer: Any, length: int) -> tuple[TokenSet, list[str]]:
    documents, notes = text_files.documents(root)
    if any(document.messages for document in documents):
        notes += tokenizers.with_chat_template(tokenizer)
    encoded = [(document.name, encode(document, tokenizer)) for document in documents]
    answered = [(name, *both) for name, both in encoded if both is not None]
    if n := len(encoded) - len(answered):
        notes.append(f"Chats left out, without an answer to predict: {n:,}.")
    sources = [name for name, ids, _ in answered for _ in range(len(ids))]  # of each token
    rest = torch.full((-len(sources) % length,), IGNORED)
    ids = torch.cat([*(ids for _, ids, _ in answered), rest.clamp(min=tokenizer.eos_token_id)])
    labels = torch.cat([*(labels for *_, labels in answered), rest])
    return TokenSet(ids.view(-1, length), labels.view(-1, length), tuple(sources[::length])), notes


def _music(root: str | Path, tokenizer: Any, length: int) -> tuple[TokenSet, list[str]]:
    """As the test split of `data.music` has them: every token of a piece but its first counts once."""
    pieces, notes = music_files.collect(root)
    written, rows, lost = music_tokens.writing(tokenizer), [], Counter[str]()
    for piece in pieces:
        ids, without = written.encode(piece.score)
        rows.append((f"{piece.composer}/{piece.name}", ids))
        lost += without
    return music_blocks.blocks(rows, written, length), notes + music_blocks.not_held(lost)


def labelled(root: str | Path, about: Any, pattern: str | None = None) -> ImageSplits | TensorSplits:
    """All labelled images of a place, or all samples of an .npz file, as a trained net takes them.

    An image is of the class whose name a folder around it has, the outermost first; or, with a pattern, that
    the pattern finds in its own name. Labels in a file are names of classes, or indices into its `classes`.

    Args:
        root: A folder, archive or address of images, or an .npz file (`PAIRS`).
        about: What the run keeps of its data: `classes`, `sizes` and `shapes`.
        pattern: Regular expression whose first group is the label in a file's name.

    Raises:
        ValueError, OSError: A class is none of the net's, a shape is another, or nothing can be read.
    """
    place, is_image = fetch.local(root), "image_size" in about.sizes
    names, samples, notes = _of_file(place) if place.suffix == ".npz" else _of_images(place, about, pattern)
    if not len(names):
        raise places.refusal("hold labelled samples", str(root), "Put images in folders named by class.")
    if about.classes:
        labels = torch.tensor(_matched([str(name) for name in names], about.classes, notes))
    else:
        labels = torch.as_tensor(np.asarray(names, np.float32))
    sources = tuple(f"{place.name}/{row}" for row in range(len(labels)))
    if is_image:
        samples = _pixels(samples) if isinstance(samples, np.ndarray) else samples
        pixels = torch.from_numpy(np.stack([_fitted(each, about) for each in samples]))
        pixels = pixels.unsqueeze(1) if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2).contiguous()
        parts: dict[str, Any] = dict.fromkeys(SPLITS, ImageSet(pixels, labels, sources))
        return ImageSplits(place.name, **parts, classes=about.classes, notes=tuple(notes))
    dtype, *shape = about.shapes[""]
    values = torch.as_tensor(np.asarray(samples)).to(getattr(torch, dtype))
    if list(values.shape[1:]) != shape:
        step = "That is what the net was trained on."
        raise places.refusal(f"hold samples of shape {tuple(shape)}", tuple(values.shape[1:]), step)
    parts = dict.fromkeys(SPLITS, TensorSet(values, labels, sources))
    return TensorSplits(place.name, **parts, classes=about.classes or None, notes=tuple(notes))


def _fitted(pixels: np.ndarray, about: Any) -> np.ndarray:
    return fit(pixels, tuple(about.image_size), "L" if about.channels == 1 else "RGB")


def _matched(names: Sequence[str], classes: Sequence[str], notes: list[str]) -> list[int]:
    """The net's label of each class name."""
    if unknown := sorted(set(names) - set(classes), key=places.natural):
        rule = f"hold samples of the net's classes alone: {places.first(list(classes), 10)}"
        step = "Rename these, or take them away."
        raise ValueError(checks.message("data", rule, places.first(unknown), step))
    if missing := [name for name in classes if name not in set(names)]:
        notes.append(f"No sample is of class {places.first(missing)}.")
    return [list(classes).index(name) for name in names]


def _of_images(root: Path, about: Any, pattern: str | None) -> tuple[list[str], list[Any], list[str]]:
    names, samples, others, failed = [], [], [], []
    found = None if pattern is None else places.pattern("label_pattern", pattern)
    with places.open_place(root) as place:
        for member in place.members:
            *folders, base = member.name.split("/")
            label = next((each for each in folders if each in about.classes), None)
            if label is None and found is not None and (match := found.search(base.rpartition(".")[0])):
                label = match[1]
            if not member.is_image:
                others.append(member.name)
                continue
            try:
                image = read(place.read(member.name), 0, member.name, tuple(about.image_size))
                samples.append(_fitted(image.pixels, about))
            except Exception as error:  # a damaged file makes Pillow raise almost anything
                failed.append(f"{member.name} ({str(error)[:80]})")
                continue
            names.append(label or (folders[-1] if folders else base))
    left_out = {"files that are no images": others, "images that cannot be read": failed}
    return names, samples, places.left_out(left_out)


def _of_file(path: Path) -> tuple[list[str], Any, list[str]]:
    content = _read(path)
    small = {name.lower(): name for name in content}
    pair = next((each.split() for each in PAIRS if {*each.split()} <= {*small}), None)
    if pair is None:
        shapes = {name: array.shape for name, array in content.items()}
        step = "Name the arrays images and labels, or inputs and targets."
        raise places.refusal("hold samples and their labels", shapes, step)
    samples, labels = (content[small[name]] for name in pair)
    if len(samples) != len(labels):
        step = "Give one label a sample."
        raise places.refusal("hold as many labels as samples", (len(samples), len(labels)), step)
    others = sorted({*content} - {small[name] for name in pair} - {"classes"})
    names = content["classes"][labels] if "classes" in content and labels.dtype.kind in "iu" else labels
    return names.tolist(), samples, places.left_out({"arrays of other names": others})
