"""Images with captions: your own, in every common format, or captioned digits."""

from __future__ import annotations

import contextlib
import json
import posixpath
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qnnkit.data import places, records, tokenizers
from qnnkit.data.arrays import digits
from qnnkit.data.batches import keyed_generator
from qnnkit.data.images import File, split, stack_files
from qnnkit.data.places import Member, Place, around, first, open_place, refusal
from qnnkit.data.public import mnist
from qnnkit.data.records import Reader, Record, keys_of, side_of, take
from qnnkit.data.splits import SPLITS, ImageSplits, Part, Pictured

TEMPLATES = ("a photo of the digit {}", "the number {} written by hand", "a handwritten {}")
"""Captions of a digit; each image has all of them."""
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@dataclass(frozen=True, eq=False)
class CaptionSet(Part):
    """The images of one split with their captions."""

    hashed = "captions", "labels", "images"
    images: Tensor  # uint8, (n, channels, height, width)
    captions: tuple[tuple[str, ...], ...]  # of each image, one or more
    sources: tuple[str, ...]  # where each image came from
    labels: Tensor | None = None  # int64, (n,); None without classes

    def texts(self) -> tuple[tuple[str, ...], Tensor]:
        """Returns the distinct captions, and pairs of indices (image, caption): int64, (n_pairs, 2).

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
    """Tokenizer of transformers; see `tokenizers.of_captions`."""
    classes: tuple[str, ...] = ()
    """Name of each label, if there are labels."""
    prompts: tuple[tuple[str, ...], ...] = ()
    """Captions that describe each class, for zero-shot classification."""

    @property
    def sizes(self) -> dict[str, Any]:
        """What a net needs to know about images and captions, named as the arguments of `models.Clip`."""
        return {"tokenizer": self.tokenizer, "channels": self.channels, "image_size": self.image_size}

    def example(self, n: int = 1) -> dict[str, Tensor]:
        """Returns the first `n` training images with their first captions, as a net takes them."""
        ids, mask = tokenizers.encode(self.tokenizer, [each[0] for each in self.train.captions[:n]])
        return {"pixel_values": self.train.images[:n], "input_ids": ids, "attention_mask": mask}

    def _samples(self, split: str, seed: int) -> Callable[[int], dict[str, Tensor]]:
        """Training images get a caption drawn by seed and epoch; others get their first."""
        part = self.split(split)
        texts, pairs = part.texts()
        ids, mask = tokenizers.encode(self.tokenizer, texts)
        counts = torch.tensor([len(captions) for captions in part.captions])
        begins = counts.cumsum(0) - counts

        def draw(epoch: int) -> dict[str, Tensor]:
            generator = keyed_generator("captions", seed, epoch)
            shares = torch.rand(len(part), generator=generator, dtype=torch.float64)
            chosen = begins + (shares * counts).long() if split == "train" else begins
            rows = pairs[chosen, 1]
            return {"pixel_values": part.images, "input_ids": ids[rows], "attention_mask": mask[rows]}

        return draw


def captions(
    root: str | Path | None = None,
    *,
    image_size: int | None = 64,
    grey: bool | None = None,
    tokenizer: str | Path | None = None,
    sequence_length: int | None = None,
    **options: Any,
) -> CaptionSplits:
    """Your own images with captions, in a folder: images, and a table, JSON, parquet or texts of captions.

    Captions are read from all files whose names start with captions or metadata, as COCO's do; else from a
    .txt or .caption file next to each image; else from all files of records. `docs/formats.md` lists every
    format. An image is looked up by its path, then in images/ next to the file, then anywhere if its name is
    unique; case and suffix do not matter. Splits come from a column `split`, or from files and folders named
    train, validation (val, dev) and test. Images that are missing, unreadable or without a caption are
    omitted with a note, and so are unused keys. An image is in one split, with all its captions.

    Args:
        root: The folder; or an archive of it (.zip, .tar, .tar.gz), or a URL.
        image_size: Side in pixels; None takes the most common size. The aspect ratio is not preserved.
        grey: One channel (True) or three (False); None takes one if every image is grey.
        tokenizer: A folder, or a name on the Hub; None trains a word tokenizer on the training captions.
        sequence_length: Most tokens of a caption, including begin and end. By default 32 for a trained
            tokenizer, and the tokenizer's own limit for one that is read.
        options: `split_seed` chooses the split of each image. `validation_fraction` and `test_fraction` are
            approximate shares of all images, each placed by the hash of its name. A test part of the
            dataset overrides `test_fraction`.

    Raises:
        FileNotFoundError: The folder does not exist.
        ValueError: There is no caption file, it cannot be parsed, none of its images can be read, there are
            too few images to split, the tokenizer cannot be used, or `sequence_length` is below 3.
    """
    place = open_place(root)
    files, texts, top, notes, inside = listing(place)
    stack = stack_files(lambda name: inside.get(name) or place.read(name), files, image_size, grey)
    parts, notes = split(stack, top=top, notes=notes, **options)
    sets = [CaptionSet(x.images, tuple(texts[name] for name in x.sources), x.sources) for x in parts]
    return _with_tokens(sets, tokenizer, sequence_length, name="captions", notes=notes)


def digit_captions(
    root: str | Path | None = None,
    *,
    tokenizer: str | Path | None = None,
    sequence_length: int | None = None,
    **options: Any,
) -> CaptionSplits:
    """Handwritten digits with captions such as "a photo of the digit three", in the splits of their dataset.

    Args:
        root: Folder or archive of MNIST, as in `mnist`; None takes the digits of scikit-learn.
        tokenizer: As in `captions`.
        sequence_length: As in `captions`; by default 8, enough for the longest caption.
        options: Options of the dataset: `image_size`, `split_seed`, `validation_fraction` and so on.
    """
    splits: ImageSplits = mnist(root, **options) if root else digits(**options)
    prompts = tuple(tuple(template.format(name) for template in TEMPLATES) for name in DIGITS)
    parts = [(part, part.labels.tolist()) for part in map(splits.split, SPLITS)]
    sets = [CaptionSet(x.images, tuple(prompts[i] for i in of), x.sources, x.labels) for x, of in parts]
    length = sequence_length or (None if tokenizer else 8)
    about = {"name": f"{splits.name}_captions", "classes": splits.classes, "prompts": prompts}
    return _with_tokens(sets, tokenizer, length, notes=splits.notes, **about)


def _with_tokens(sets: list[CaptionSet], tokenizer: Any, length: int | None, **about: Any) -> CaptionSplits:
    texts = [part.texts()[0] for part in sets]
    chosen = tokenizers.of_captions(tokenizer, texts[0], length)
    about["notes"] += tuple(tokenizers.losses(chosen, [text for part in texts for text in part]))
    return CaptionSplits(about.pop("name"), *sets, tokenizer=chosen, **about)


# --- files --------------------------------------------------------------------------------------------------

EXAMPLE = 'Write [{"image": "cat.jpg", "captions": ["a cat", "a pet"]}], for example.'

TEXTS = (".txt", ".caption")
"""Suffixes of text files next to an image, one caption per line."""

Listing = tuple[list[File], dict[str, tuple[str, ...]], str, list[str], dict[str, bytes]]
"""Images that exist and have captions, with their sides; the captions of each, by name; the innermost folder
of all caption files, ending in `/`, or ""; notes; and the bytes of images stored inside tables, by name."""


def listing(place: Place) -> Listing:
    """Returns the images named by the caption files of a place, with their captions.

    Raises:
        ValueError: A file cannot be parsed, or no image has a caption.
    """
    reader, find = Reader(place), _finder(place)
    members, sides, texts = {}, {}, defaultdict(list)
    read, missing, inside, ways = {}, {}, {}, defaultdict(set)
    for file, where, record in _records(place, reader):
        read[file.name], folder = f"/{file.base.lower()}", file.name.removesuffix(file.base)
        image, split = take(record, "image"), take(record, "split")
        about = image if isinstance(image, dict) else {"path": image, "bytes": image}  # as in `datasets`
        image, content = about.get("path"), about.get("bytes")
        if isinstance(image, str | int):
            image = posixpath.normpath(places.plain(str(image).strip().replace("\\", "/")))
        if isinstance(content, bytes):
            name = image if isinstance(image, str) and inside.get(image, content) == content else where
            inside[name], member = content, Member(name, len(content), zlib.crc32(content))
        elif not isinstance(image, str) or (member := find(image, folder)) is None:
            missing[image if isinstance(image, str) else where] = None
            reader.unused.update(() if isinstance(image, str) else record)
            continue
        folders = f"{member.name.removesuffix(member.base)}{file.name}"
        side = side_of(folders if split is None else str(split))
        if split is not None and not side:
            reader.unused.add(f"split {split!r}")
        # An image found in a different folder may be the wrong one: a note names both.
        ends = sorted((f"/{_stem(each).lower()}" for each in (str(image), member.name)), key=len)
        is_end = member.name in inside or ends[1].endswith(ends[0].replace("/..", ""))
        ways[member.name, "names"] |= {image} if is_end else {image, member.name}
        ways[member.name, "splits"] |= {side} - {None}
        sides[member.name] = side or sides.get(member.name, "any")
        members[member.name] = member
        texts[member.name] += _texts(record, where, reader)
    captions = {name: tuple(dict.fromkeys(each)) for name, each in texts.items() if each}
    images = [each.name for each in place.members if each.is_image]
    bare = {f"of {len(images):,} images without a caption": [x for x in images if x not in captions]}
    if not captions:
        keys = f", and keys or columns {first(sorted(reader.unused))}" if reader.unused else ""
        value = f"{place.path} with captions of {first([*missing]) or 'none'}{keys}"
        raise refusal("hold images that have a caption", value, EXAMPLE)
    notes = places.left_out({f"images of {first([*read])} that are not there": [*missing]})
    notes += [*place.notes((*places.SUFFIXES, *read.values()), "images", bare), *reader.notes]
    if several := [f"{name} ({', '.join(sorted(x))})" for (name, _), x in ways.items() if len(x) > 1]:
        notes.append(f"Images under several names, or in several splits (the last counts): {first(several)}.")
    named = {sides[name] for name in captions}
    if drawn := "train" not in named or "any" in named:
        notes += ["Splits are drawn: no train split is named, or some images have none."] * (named != {"any"})
    files = [("any" if drawn else sides[name], 0, members[name]) for name in captions]
    return files, captions, around(read), notes, inside


def _records(place: Place, reader: Reader) -> Iterator[tuple[Member, str, Record]]:
    """Yields (file, location in it, record) for everything that names an image and its captions.

    Reads files whose names start with captions or metadata, as COCO's do. If there are none, reads the text
    file next to each image, and if there are none of these either, all files of records.
    """
    images = {_stem(each.name): each.base for each in place.members if each.is_image}
    files = [each for each in place.members if each.base.lower().endswith((*records.SUFFIXES, *TEXTS))]
    named = [each for each in files if each.base.lower().startswith(("captions", "metadata"))]
    texts = [each for each in files if each.base.lower().endswith(TEXTS)]
    sidecars = [] if named else [each for each in texts if _stem(each.name) in images]
    for file in sidecars:
        lines = reader.text(file.name).split("\n")
        yield file, file.name, {"image": images[_stem(file.name)], "captions": lines}
    tables = [] if sidecars else [each for each in files if each not in texts]
    for file in named or tables:
        for where, record in reader.records(file.name):
            if {"images", "annotations"} <= record.keys():
                yield from ((file, where, each) for each in _of_coco(record, where))
            elif file.base.lower().endswith(".json") and "." in next(iter(record), ""):  # keys: images
                yield from ((file, where, {"image": key, "captions": record[key]}) for key in record)
            else:
                yield file, where, dict(record)


def _of_coco(record: Record, where: str) -> list[Record]:
    """Returns a record for each caption, with the fields of its image, from the format of cocodataset.org."""
    shared = {key: record[key] for key in record if key not in ("images", "annotations")}
    with contextlib.suppress(TypeError, KeyError):
        images = {str(each["id"]): each for each in record["images"]}
        if len(images) == len(record["images"]):
            return [shared | images[str(each["image_id"])] | each for each in record["annotations"]]
    step = "Give each image an `id` of its own, and each annotation the `image_id` of one."
    raise refusal("hold images and annotations in COCO's format", where, step)


def _texts(value: Any, where: str, reader: Reader) -> Iterator[str]:
    """Yields the captions in a record, a list or a text: those under a known key, else a chat's answers."""
    if isinstance(value, dict):
        record, keys = dict(value), keys_of(tuple(value), "caption")
        messages = [] if keys else records.conversation(record, where, reader.unused)
        value = [record.pop(key) for key in keys] or [x["content"] for x in messages if records.is_answer(x)]
        reader.unused.update(record)
    elif isinstance(value, str) and value.startswith(('["', "['")):  # a list in a table
        with records.readable(f"{where} with {value:.60}, no list of JSON"):
            value = json.loads(value)
    if isinstance(value, list):
        for each in value:
            yield from _texts(each, where, reader)
    elif text := " ".join(str("" if value is None else value).split()):
        yield text


def _stem(name: str) -> str:
    """Returns a path without its suffix."""
    return name.rpartition(".")[0] or name


def _ends(path: str) -> Iterator[str]:
    """Yields a path in lower case, then without its first folders; each with and without its suffix."""
    while path:
        yield from (path.lower(), _stem(path).lower())
        path = path.partition("/")[2]


def _finder(place: Place) -> Callable[[str, str], Member | None]:
    """Returns a function that finds an image by its name and the folder of the file that names it.

    It looks in the folder and its images/, then for the only image whose path has the longest matching end,
    in any case and with or without its suffix.
    """
    called: dict[str, set[Member]] = defaultdict(set)
    for member in filter(lambda each: each.is_image, place.members):
        for name in (f"/{member.name}", *_ends(member.name)):
            called[name].add(member)

    @cache
    def find(image: str, folder: str) -> Member | None:
        names = (posixpath.normpath(f"/{folder}{image}"), f"/{folder}images/{image}", *_ends(image))
        return next((each for name in names if len(called[name]) == 1 for each in called[name]), None)

    return find
