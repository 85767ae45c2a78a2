"""Images with captions: your own, or those of a labelled dataset put into words."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qnnkit import checks
from qnnkit.data import duplicates, fetch
from qnnkit.data.arrays import digits
from qnnkit.data.assemble import Stack, as_size, stack_pictures
from qnnkit.data.batches import DictBatches
from qnnkit.data.cache import stacked
from qnnkit.data.captioned_files import listing
from qnnkit.data.captioned_tokens import CaptionTokenizer, tokenizer_of
from qnnkit.data.duplicates import Content
from qnnkit.data.idx import mnist
from qnnkit.data.images import read
from qnnkit.data.places import MAX_BYTES, Member, Place, first, open_place
from qnnkit.data.sample import seeded
from qnnkit.data.splits import SPLITS, ImageSet, ImageSplits, share_of

TEMPLATES = ("a photo of the digit {}", "the number {} written by hand", "a handwritten {}")
"""What is said of a digit; each of them is a caption of its own."""
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@dataclass(frozen=True, eq=False)
class CaptionSet:
    """The images of one split with their captions."""

    images: Tensor  # uint8, (n, channels, height, width)
    captions: tuple[tuple[str, ...], ...]  # of each image, one or more
    sources: tuple[str, ...]  # where each image came from
    labels: Tensor | None = None  # int64, (n,), where there are classes

    def __len__(self) -> int:
        return len(self.images)

    def texts(self) -> tuple[tuple[str, ...], Tensor]:
        """Every caption once, and which image has which: int64, (n_pairs, 2), rows of images and of texts.

        Example:
            >>> captions = (("a cat", "a pet"), ("a dog", "a pet"))
            >>> texts, pairs = CaptionSet(torch.zeros(2, 1, 8, 8), captions, ("0", "1")).texts()
            >>> texts, pairs.tolist()
            (('a cat', 'a pet', 'a dog'), [[0, 0], [0, 1], [1, 2], [1, 1]])
        """
        numbers: dict[str, int] = {}
        pairs = [
            (row, numbers.setdefault(text, len(numbers)))
            for row, texts in enumerate(self.captions)
            for text in texts
        ]
        return tuple(numbers), torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)


@dataclass(frozen=True, eq=False)
class CaptionSplits:
    """Images with captions, split into train, validation and test.

    A batch is {"pixel_values": uint8 (batch, channels, height, width), "input_ids": int64 (batch, length),
    "attention_mask": int64 (batch, length)}; the model scales the pixels, on the device.

    Example:
        >>> splits = digit_captions()
        >>> batch = next(iter(splits.batches("train", 64, shuffle=True)))
        >>> {name: tuple(values.shape) for name, values in batch.items()}
        {'pixel_values': (64, 1, 8, 8), 'input_ids': (64, 8), 'attention_mask': (64, 8)}
    """

    name: str
    train: CaptionSet
    validation: CaptionSet
    test: CaptionSet
    tokenizer: CaptionTokenizer
    notes: tuple[str, ...] = ()
    """Sentences to show once: what was left out, cut, resized or converted."""
    classes: tuple[str, ...] = ()
    """The name of each label, where there are labels."""
    prompts: tuple[tuple[str, ...], ...] = ()
    """What may be said of an image of each class, for zero-shot classification."""

    @property
    def channels(self) -> int:
        """1 for grey, 3 for colour."""
        return self.train.images.shape[1]

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width, in pixels."""
        return self.train.images.shape[2], self.train.images.shape[3]

    @property
    def sizes(self) -> dict[str, Any]:
        """What a net must know of images and captions, as `models.build` takes it."""
        return {"tokenizer": self.tokenizer, "channels": self.channels, "image_size": self.image_size}

    def example(self, n: int = 1) -> dict[str, Tensor]:
        """What a net takes, of the first `n` training images with their first captions."""
        ids, mask = self.tokenizer.encode([captions[0] for captions in self.train.captions[:n]])
        return {"pixel_values": self.train.images[:n], "input_ids": ids, "attention_mask": mask}

    def keep(self, train_fraction: float, seed: int = 0) -> CaptionSplits:
        """The same dataset with a share of its training images; a smaller share lies inside a larger one."""
        rows = share_of(len(self.train), train_fraction, seed)
        if rows is None:
            return self
        part, chosen = self.train, rows.tolist()
        kept = CaptionSet(
            part.images[rows],
            tuple(part.captions[row] for row in chosen),
            tuple(part.sources[row] for row in chosen),
            None if part.labels is None else part.labels[rows],
        )
        return replace(self, train=kept)

    def split(self, name: str) -> CaptionSet:
        """The split called "train", "validation" or "test"."""
        return getattr(self, checks.choice("split", name, SPLITS))

    def fingerprint(self) -> str:
        """SHA-256 (hex) over pixels, captions, labels and who is in which split."""
        digest = hashlib.sha256()
        for name in SPLITS:
            part = self.split(name)
            digest.update(f"{name} {tuple(part.images.shape)}\n".encode())
            digest.update(json.dumps(part.captions).encode())
            if part.labels is not None:
                digest.update(part.labels.numpy().astype("<i8").tobytes())
            digest.update(part.images.numpy().tobytes())
        return digest.hexdigest()

    def batches(self, split: str, batch_size: int, *, shuffle: bool, seed: int = 0) -> DictBatches:
        """Batches of a split; the order is a function of `seed` and of the epoch given to `set_epoch`.

        So is which of its captions stands beside a training image; elsewhere it is the first.
        """
        checks.positive("batch_size", batch_size)
        part, draws = self.split(split), split == "train"
        texts, pairs = part.texts()
        ids, mask = self.tokenizer.encode(texts)
        counts = torch.tensor([len(captions) for captions in part.captions])
        begins = counts.cumsum(0) - counts

        def draw(epoch: int) -> dict[str, Tensor]:
            chosen = begins
            if draws:
                shares = torch.rand(len(part), generator=seeded("captions", seed, epoch), dtype=torch.float64)
                chosen = begins + (shares * counts).long()
            rows = pairs[chosen, 1]
            return {"pixel_values": part.images, "input_ids": ids[rows], "attention_mask": mask[rows]}

        return DictBatches(draw, batch_size, shuffle=shuffle, seed=seed)


def captions(
    root: str | Path | None = None,
    *,
    image_size: int | None = 64,
    grey: bool | None = None,
    split_seed: int = 0,
    validation_fraction: float = 0.2,
    test_fraction: float = 0.2,
    tokenizer: str | Path | CaptionTokenizer | None = None,
    sequence_length: int | None = None,
    cached: bool = True,
) -> CaptionSplits:
    """Your own images with captions: a folder with `captions.json`, `captions.csv` or `captions.tsv` in it.

    The JSON holds a list of records {"image": name, "captions": [...]} (or "file_name", "caption"), a
    dictionary from image to caption or captions, or COCO's own form. A table has the columns image and
    caption, and several rows for several captions. Images lie beside the file, in images/ there, or anywhere
    if no other is called so. What is missing, unreadable, empty or without a caption is left out and told in
    the notes. An image is in one split with all its captions.

    Args:
        root: The folder; or an archive of it (.zip, .tar, .tar.gz), or a URL.
        image_size: Side in pixels; None takes the most common size. The aspect ratio is not kept.
        grey: One channel (True) or three (False); None takes one if every image is grey.
        split_seed: Decides who is in which split; leave it alone within a study.
        validation_fraction: Of all images.
        test_fraction: Of all images.
        tokenizer: "words" (default) or "bpe" trains one on the training captions; a folder, or a name on the
            Hub, is read; or one that is there.
        sequence_length: Most tokens of a text, begin and end among them; 32 for a tokenizer that is trained,
            its own for one that is read.
        cached: Whether a file kept from before may stand for the images.

    Raises:
        FileNotFoundError, NotADirectoryError: There is no such folder.
        ValueError: There is no caption file, it is not UTF-8 or cannot be understood, no image of it can be
            read, or there are too few to split.
    """
    if not root:
        rule = "name a folder of images with captions.json in it"
        raise ValueError(checks.message("root", rule, root, "Pass the path of its folder."))
    with open_place(fetch.local(root)) as place:
        found = listing(place)
        members = list(found.captions)
        wanted = {"dataset": "captions", "image_size": image_size, "grey": grey}
        stack = stacked(members, wanted, lambda: _gather(place, members, image_size, grey), cached)
    by_name = {member.name: texts for member, texts in found.captions.items()}
    parts = _split(len(stack.sources), split_seed, validation_fraction, test_fraction)

    def gather(rows: np.ndarray) -> CaptionSet:
        pixels = torch.from_numpy(stack.images[rows])
        images = pixels.reshape(*pixels.shape[:3], -1).permute(0, 3, 1, 2)  # -> (n, channels, height, width)
        sources = tuple(stack.sources[row] for row in rows)
        return CaptionSet(images.contiguous(), tuple(by_name[name] for name in sources), sources)

    sets = [gather(rows) for rows in parts]
    same = {
        name: [Content(stack.images[row].data, stack.sources[row]) for row in rows]
        for name, rows in zip(SPLITS, parts, strict=True)
    }
    repeated = duplicates.told(same, "images", "pixel for pixel")
    notes = (*found.notes, *stack.notes, *filter(None, [repeated]))
    return _with_tokens("captions", sets, tokenizer, sequence_length, notes)


def class_captions(
    splits: ImageSplits,
    *,
    names: Sequence[str] | None = None,
    templates: Sequence[str] = ("a photo of {}",),
    tokenizer: str | Path | CaptionTokenizer | None = None,
    sequence_length: int | None = None,
) -> CaptionSplits:
    """A labelled dataset put into words, on the same splits: what each class may be called is its caption.

    Args:
        splits: The images.
        names: What each class is called in words; the names of the classes by default.
        templates: Sentences with {} for the name; each is a caption, and a prompt for zero-shot.
        tokenizer: As in `captions`.
        sequence_length: As in `captions`; as long as the longest caption by default, where one is trained.

    Raises:
        ValueError: There are not as many names as classes, or a template has no {}.
    """
    names = tuple(names or splits.classes)
    if len(names) != splits.n_classes:
        rule = f"be as many as the classes, {splits.n_classes}"
        raise ValueError(checks.message("names", rule, len(names), "Name each class once, in order."))
    if lacking := [template for template in templates if template.count("{}") != 1] or not templates:
        step = "Write one such as 'a photo of {}'."
        raise ValueError(checks.message("templates", "hold one {} for the name each", lacking, step))
    prompts = tuple(tuple(template.format(name) for template in templates) for name in names)

    def worded(part: ImageSet) -> CaptionSet:
        return CaptionSet(
            part.images, tuple(prompts[label] for label in part.labels.tolist()), part.sources, part.labels
        )

    sets = [worded(splits.split(name)) for name in SPLITS]
    if sequence_length is None and tokenizer in (None, "words"):
        trained = tokenizer_of("words", [text for texts in prompts for text in texts], None)
        sequence_length = int(trained.encode([text for texts in prompts for text in texts])[1].sum(1).max())
    made = _with_tokens(f"{splits.name}_captions", sets, tokenizer, sequence_length, splits.notes)
    return replace(made, classes=splits.classes, prompts=prompts)


def digit_captions(
    root: str | Path | None = None,
    *,
    dataset: str = "digits",
    templates: Sequence[str] = TEMPLATES,
    tokenizer: str | Path | CaptionTokenizer | None = None,
    sequence_length: int | None = None,
    **options: Any,
) -> CaptionSplits:
    """Handwritten digits with captions such as "a photo of the digit three", on the splits of their dataset.

    Args:
        root: Where MNIST lies; left out for "digits".
        dataset: "digits", which lie inside scikit-learn, or "mnist".
        templates: As in `class_captions`.
        tokenizer: As in `captions`.
        sequence_length: As in `class_captions`.
        options: Those of the dataset: `image_size`, `split_seed`, `validation_fraction` and so on.
    """
    loaders: dict[str, Any] = {"digits": digits, "mnist": mnist}
    splits = loaders[checks.choice("dataset", dataset, loaders)](root, **options)
    shape: dict[str, Any] = {"tokenizer": tokenizer, "sequence_length": sequence_length}
    return class_captions(splits, names=DIGITS, templates=templates, **shape)


def _with_tokens(
    name: str,
    sets: Sequence[CaptionSet],
    wanted: str | Path | CaptionTokenizer | None,
    sequence_length: int | None,
    notes: tuple[str, ...],
) -> CaptionSplits:
    texts = [part.texts()[0] for part in sets]
    tokenizer = tokenizer_of(wanted, texts[0], sequence_length)
    told = tokenizer.told([text for part in texts for text in part])
    train, validation, test = sets
    return CaptionSplits(name, train, validation, test, tokenizer, (*notes, *told))


def _gather(place: Place, members: Sequence[Member], image_size: int | None, grey: bool | None) -> Stack:
    """Every image that can be read, and a note on those that cannot."""
    size, pictures, failed, n_bytes = as_size(image_size), [], [], 0
    for member in members:
        try:
            pictures.append(read(place.read(member.name), 0, member.name, size))
        except Exception as error:  # a damaged file makes Pillow raise almost anything
            failed.append(f"{member.name} ({str(error).partition(' <_io')[0][:80]})")  # without the open file
            continue
        n_bytes += pictures[-1].pixels.nbytes
        if n_bytes > MAX_BYTES:
            step = "Pass a smaller one, such as 32."
            raise ValueError(checks.message("image_size", "keep all images under 4 GiB", image_size, step))
    if not pictures:
        step = f"Copy them anew: {first(failed)}."
        raise ValueError(checks.message("root", "hold images that can be read", str(place.path), step))
    notes = []
    if failed:
        of_all = f"{len(failed):,} of {len(members):,} images"
        notes.append(f"Left out {of_all} that cannot be read: {first(failed)}.")
    return stack_pictures(pictures, ["any"] * len(pictures), (), notes, image_size=image_size, grey=grey)


def _split(n: int, split_seed: int, validation: float, test: float) -> tuple[np.ndarray, ...]:
    """Sorted rows of train, validation and test, of `n` images."""
    if not (min(validation, test) > 0 and validation + test < 1):
        rule = "be above 0, as validation_fraction must, and leave samples for training"
        step = f"With validation_fraction={validation} that is not so: use 0.2 for both."
        raise ValueError(checks.message("test_fraction", rule, test, step))
    n_validation, n_test = (max(1, round(fraction * n)) for fraction in (validation, test))
    if n - n_validation - n_test < 1:
        step = "Three are the least that can be split."
        raise ValueError(checks.message("root", "hold enough images with captions to split", n, step))
    order = torch.randperm(n, generator=seeded("captions", split_seed)).numpy()
    borders = np.cumsum([n_test, n_validation])
    test_rows, validation_rows, train_rows = (np.sort(rows) for rows in np.split(order, borders))
    return train_rows, validation_rows, test_rows
