"""Images with captions: your own, or those of a labelled dataset put into words."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qnnkit import checks
from qnnkit.data import fetch, tokenizers
from qnnkit.data.arrays import digits
from qnnkit.data.batches import keyed_generator
from qnnkit.data.cache import stacked
from qnnkit.data.captioned_files import listing
from qnnkit.data.images import split, stack_files
from qnnkit.data.places import open_place
from qnnkit.data.public import mnist
from qnnkit.data.splits import SPLITS, ImageSplits, Part, Pictured

TEMPLATES = ("a photo of the digit {}", "the number {} written by hand", "a handwritten {}")
"""What is said of a digit; each of them is a caption of its own."""
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@dataclass(frozen=True, eq=False)
class CaptionSet(Part):
    """The images of one split with their captions."""

    images: Tensor  # uint8, (n, channels, height, width)
    captions: tuple[tuple[str, ...], ...]  # of each image, one or more
    sources: tuple[str, ...]  # where each image came from
    labels: Tensor | None = None  # int64, (n,), where there are classes

    def add_to(self, digest: hashlib._Hash) -> None:
        """Feeds what a fingerprint is over to a digest: pixels, captions and labels."""
        digest.update(f"{tuple(self.images.shape)}\n".encode())
        digest.update(json.dumps(self.captions).encode())
        if self.labels is not None:
            digest.update(self.labels.numpy().astype("<i8").tobytes())
        digest.update(self.images.numpy().tobytes())

    def texts(self) -> tuple[tuple[str, ...], Tensor]:
        """Every caption once, and which image has which: int64, (n_pairs, 2), rows of images and of texts.

        Example:
            >>> captions = (("a cat", "a pet"), ("a dog", "a pet"))
            >>> texts, pairs = CaptionSet(torch.zeros(2, 1, 8, 8), captions, ("0", "1")).texts()
            >>> texts, pairs.tolist()
            (('a cat', 'a pet', 'a dog'), [[0, 0], [0, 1], [1, 2], [1, 1]])
        """
        numbers: dict[str, int] = {}
        every = [(row, text) for row, texts in enumerate(self.captions) for text in texts]
        pairs = [(row, numbers.setdefault(text, len(numbers))) for row, text in every]
        return tuple(numbers), torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)


@dataclass(frozen=True, eq=False)
class CaptionSplits(Pictured[CaptionSet]):
    """Images with captions, split into train, validation and test.

    A batch is {"pixel_values": uint8 (batch, channels, height, width), "input_ids": int64 (batch, length),
    "attention_mask": int64 (batch, length)}; the model scales the pixels, on the device.

    Example:
        >>> splits = digit_captions()
        >>> batch = next(iter(splits.batches("train", 64, shuffle=True)))
        >>> {name: tuple(values.shape) for name, values in batch.items()}
        {'pixel_values': (64, 1, 8, 8), 'input_ids': (64, 8), 'attention_mask': (64, 8)}
    """

    tokenizer: Any
    """Of transformers; see `tokenizers.of_captions`."""
    classes: tuple[str, ...] = ()
    """The name of each label, where there are labels."""
    prompts: tuple[tuple[str, ...], ...] = ()
    """What may be said of an image of each class, for zero-shot classification."""

    @property
    def sizes(self) -> dict[str, Any]:
        """What a net must know of images and captions, as `models.build` takes it."""
        return {"tokenizer": self.tokenizer, "channels": self.channels, "image_size": self.image_size}

    def example(self, n: int = 1) -> dict[str, Tensor]:
        """What a net takes, of the first `n` training images with their first captions."""
        ids, mask = tokenizers.encode(self.tokenizer, [each[0] for each in self.train.captions[:n]])
        return {"pixel_values": self.train.images[:n], "input_ids": ids, "attention_mask": mask}

    def _samples(self, split: str, seed: int) -> Callable[[int], dict[str, Tensor]]:
        """A training image stands beside a caption drawn by seed and epoch; elsewhere beside its first."""
        part, draws = self.split(split), split == "train"
        texts, pairs = part.texts()
        ids, mask = tokenizers.encode(self.tokenizer, texts)
        counts = torch.tensor([len(captions) for captions in part.captions])
        begins = counts.cumsum(0) - counts

        def draw(epoch: int) -> dict[str, Tensor]:
            chosen = begins
            if draws:
                shares = torch.rand(
                    len(part), generator=keyed_generator("captions", seed, epoch), dtype=torch.float64
                )
                chosen = begins + (shares * counts).long()
            rows = pairs[chosen, 1]
            return {"pixel_values": part.images, "input_ids": ids[rows], "attention_mask": mask[rows]}

        return draw


def captions(
    root: str | Path | None = None,
    *,
    image_size: int | None = 64,
    grey: bool | None = None,
    tokenizer: Any = None,
    sequence_length: int | None = None,
    **options: Any,
) -> CaptionSplits:
    """Your own images with captions: a folder of images with a table, JSON, parquet or texts of captions.

    Captions are read from all files called captions or metadata (or with such a beginning, as COCO's), else
    from a .txt next to each image, else from all files of records. `docs/formats.md` has every form. An
    image is found by its path, in images/ there, or anywhere if no other is called so, whatever the case or
    the suffix. A column `split`, files and folders of train, validation (val, dev) and test are the splits.
    What is missing, unreadable, empty or without a caption is left out, with a note; so are keys that are not
    used. An image is in one split with all its captions.

    Args:
        root: The folder; or an archive of it (.zip, .tar, .tar.gz), or a URL.
        image_size: Side in pixels; None takes the most common size. The aspect ratio is not kept.
        grey: One channel (True) or three (False); None takes one if every image is grey.
        tokenizer: None trains one of words on the training captions; a folder, or a name on the Hub, is read;
            or one of transformers.
        sequence_length: Most tokens of a text, begin and end among them; 32 for a tokenizer that is trained,
            its own for one that is read.
        options: `split_seed` decides who is in which split; `validation_fraction` and `test_fraction` are of
            all images, about: each is placed by the hash of its name. The second is unused with a test part.

    Raises:
        FileNotFoundError, NotADirectoryError: There is no such folder.
        ValueError: There is no caption file, it cannot be understood, no image of it can be read, or too few
            can be split.
    """
    with open_place(fetch.local(root)) as place:
        found = listing(place)
        files = [(side, 0, member.name) for side, member in zip(found.sides, found.captions, strict=True)]
        form: dict[str, Any] = {"image_size": image_size, "grey": grey}
        wanted = {"dataset": "captions", **form, "sides": found.sides}
        inside = found.contents

        def read(name: str) -> bytes:
            return inside[name] if name in inside else place.read(name)

        make = partial(stack_files, read, files, (), **form)
        stack = stacked(list(found.captions), wanted, make)
    by_name = {member.name: texts for member, texts in found.captions.items()}

    def gather(rows: np.ndarray) -> CaptionSet:
        sources = tuple(stack.sources[row] for row in rows)
        return CaptionSet(stack.tensor(rows), tuple(by_name[name] for name in sources), sources)

    sets, notes = split(stack, gather, found.top, **options)
    return _with_tokens("captions", sets, tokenizer, sequence_length, (*found.notes, *stack.notes, *notes))


def digit_captions(
    root: str | Path | None = None,
    *,
    dataset: str = "digits",
    templates: Sequence[str] = TEMPLATES,
    tokenizer: Any = None,
    sequence_length: int | None = None,
    **options: Any,
) -> CaptionSplits:
    """Handwritten digits with captions such as "a photo of the digit three", on the splits of their dataset.

    Args:
        root: Where MNIST lies; left out for "digits".
        dataset: "digits", which lie inside scikit-learn, or "mnist".
        templates: Sentences with {} for the digit; each is a caption, and a prompt for zero-shot.
        tokenizer: As in `captions`.
        sequence_length: As in `captions`; as long as the longest caption by default, where one is trained.
        options: Those of the dataset: `image_size`, `split_seed`, `validation_fraction` and so on.

    Raises:
        ValueError: A template has no {}, or as of the dataset.
    """
    if lacking := [template for template in templates if template.count("{}") != 1] or not templates:
        step = "Write one such as 'a photo of {}'."
        raise ValueError(checks.message("templates", "hold one {} for the digit each", lacking, step))
    loaders: dict[str, Any] = {"digits": digits, "mnist": mnist}
    splits: ImageSplits = loaders[checks.choice("dataset", dataset, loaders)](root, **options)
    prompts = tuple(tuple(template.format(name) for template in templates) for name in DIGITS)
    if sequence_length is None and tokenizer is None:
        texts = [text for each in prompts for text in each]
        sequence_length = max(map(len, tokenizers.of_captions(None, texts)(texts)["input_ids"]))
    sets = []
    for part in map(splits.split, SPLITS):
        said = tuple(prompts[label] for label in part.labels.tolist())
        sets.append(CaptionSet(part.images, said, part.sources, part.labels))
    made = _with_tokens(f"{splits.name}_captions", sets, tokenizer, sequence_length, splits.notes)
    return replace(made, classes=splits.classes, prompts=prompts)


def _with_tokens(
    name: str,
    sets: Sequence[CaptionSet],
    wanted: Any,
    sequence_length: int | None,
    notes: tuple[str, ...],
) -> CaptionSplits:
    texts = [part.texts()[0] for part in sets]
    tokenizer = tokenizers.of_captions(wanted, texts[0], sequence_length)
    losses = tokenizers.losses(tokenizer, [text for part in texts for text in part])
    train, validation, test = sets
    return CaptionSplits(name, train, validation, test, tokenizer, notes=(*notes, *losses))
