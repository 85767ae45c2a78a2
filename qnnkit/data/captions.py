"""Images with captions: your own, in every common form, or those of a labelled dataset put into words."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qnnkit.data import chats, places, tokenizers
from qnnkit.data.arrays import digits
from qnnkit.data.batches import keyed_generator
from qnnkit.data.folders import left_out
from qnnkit.data.images import split, stack_files
from qnnkit.data.places import Member, Place, around, first, open_place, refusal
from qnnkit.data.public import mnist
from qnnkit.data.records import ABOUT, SUFFIXES, Reader, Record, keys_of, parsed, side_of, stem, take
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
        """A training image has a caption that is drawn by seed and epoch; elsewhere it has its first."""
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
        tokenizer: A folder, or a name on the Hub; None trains one of words on the training captions.
        sequence_length: Most tokens of a text, begin and end among them; 32 for a tokenizer that is trained,
            its own for one that is read.
        options: `split_seed` decides who is in which split; `validation_fraction` and `test_fraction` are of
            all images, about: each is placed by the hash of its name. The second is unused with a test part.

    Raises:
        FileNotFoundError, NotADirectoryError: There is no such folder.
        ValueError: There is no caption file, it cannot be understood, no image of it can be read, or too few
            can be split.
    """
    place = open_place(root)
    found = listing(place)
    files = [(side, 0, member) for side, member in zip(found.sides, found.captions, strict=True)]
    stack = stack_files(lambda name: found.contents.get(name) or place.read(name), files, image_size, grey)
    by_name = {member.name: texts for member, texts in found.captions.items()}
    parts, notes = split(stack, top=found.top, notes=found.notes, **options)
    sets = [CaptionSet(x.images, tuple(by_name[name] for name in x.sources), x.sources) for x in parts]
    return _with_tokens(sets, tokenizer, sequence_length, name="captions", notes=notes)


def digit_captions(
    root: str | Path | None = None,
    *,
    tokenizer: str | Path | None = None,
    sequence_length: int | None = None,
    **options: Any,
) -> CaptionSplits:
    """Handwritten digits with captions such as "a photo of the digit three", on the splits of their dataset.

    Args:
        root: None takes the digits inside scikit-learn; a folder or archive, those of MNIST in it.
        tokenizer: As in `captions`.
        sequence_length: As in `captions`; by default 8, the longest caption in words.
        options: Those of the dataset: `image_size`, `split_seed`, `validation_fraction` and so on.
    """
    splits: ImageSplits = mnist(root, **options) if root else digits(**options)
    prompts = tuple(tuple(template.format(name) for template in TEMPLATES) for name in DIGITS)
    sets = []
    for part in map(splits.split, SPLITS):
        said = tuple(prompts[label] for label in part.labels.tolist())
        sets.append(CaptionSet(part.images, said, part.sources, part.labels))
    length = sequence_length or (None if tokenizer else 8)
    about = {"name": f"{splits.name}_captions", "classes": splits.classes, "prompts": prompts}
    return _with_tokens(sets, tokenizer, length, notes=splits.notes, **about)


def _with_tokens(sets: list[CaptionSet], tokenizer: Any, length: int | None, **about: Any) -> CaptionSplits:
    texts = [part.texts()[0] for part in sets]
    made = tokenizers.of_captions(tokenizer, texts[0], length)
    about["notes"] += tuple(tokenizers.losses(made, [text for part in texts for text in part]))
    return CaptionSplits(about.pop("name"), *sets, tokenizer=made, **about)


# --- files --------------------------------------------------------------------------------------------------

EXAMPLE = 'Write one such as [{"image": "cat.jpg", "captions": ["a cat", "a cat on a mat"]}].'


@dataclass(frozen=True)
class Listing:
    """The images that are there and have captions."""

    captions: dict[Member, tuple[str, ...]]
    """In the order of the files."""
    sides: tuple[str, ...]
    """Of each image: train, validation or test, or "any" where these are not said of all of them."""
    top: str
    """The folder that all files of captions are in, with a `/` at its end; or ""."""
    notes: tuple[str, ...]
    contents: dict[str, bytes]
    """Images inside of tables, by name."""


def listing(place: Place) -> Listing:
    """The images of a place that its files of captions name, with their captions.

    Raises:
        ValueError: There is no such file, one cannot be understood, or no image of them is there.
    """
    reader, find = Reader(place), _finder(place)
    captions: dict[Member, list[str]] = {}
    sides: dict[Member, str] = {}
    files, missing, contents = {}, {}, {}
    for file, where, record in _records(place, reader):
        files[file.name], folder = file.base.lower(), file.name.removesuffix(file.base)
        image, split, texts = take(record, "image"), take(record, "split"), _texts(record, where, reader)
        about = image if isinstance(image, dict) else {"path": image}  # as `datasets` keeps images in tables
        name, content = about.get("path"), about.get("bytes")
        if content:
            name = where if name is None or contents.get(name, content) != content else name
            member = Member(name, len(content), zlib.crc32(content))
            contents[name] = content
        elif isinstance(name, str):
            member = find(name, folder)
        else:
            raise refusal("name an image in every record or row of its captions", where, EXAMPLE)
        if member is None:
            missing[name] = None
            continue
        said = [file.name, member.name.removesuffix(member.base)] if split is None else [str(split)]
        side = next(filter(None, map(side_of, said)), None)
        if split is not None and not side:
            step = "Write train, validation or test, or leave the column out."
            raise refusal("name a known split in every record", f"{where} with {split!r}", step)
        sides[member] = side or sides.get(member, "any")
        captions.setdefault(member, []).extend(texts)
    whole = {member: tuple(dict.fromkeys(texts)) for member, texts in captions.items() if texts}
    bare = [each.name for each in place.members if each.is_image and each not in whole]
    absent = {f"images of {first([*files])} that are not there": [*missing]}
    if not whole:
        value = f"{first([*files])} with {len(missing):,} images that are not there"
        step = f"Put images beside it, or into images/, and write captions: {first([*missing, *bare])}."
        raise refusal("hold images that have a caption", value, step)
    notes = left_out(place, {"without a caption": bare}, (*files.values(), *ABOUT))
    notes = [*places.left_out(absent), *notes, *reader.notes]
    told = [sides[member] for member in whole]
    if not ("train" in told and "any" not in told):
        if {*told} != {"any"}:
            notes.append("Splits are drawn: train, or the split of some images, is not named.")
        told = ["any"] * len(whole)
    return Listing(whole, tuple(told), around(files), tuple(notes), contents)


def _records(place: Place, reader: Reader) -> Iterator[tuple[Member, str, Record]]:
    """(File, where in it, record) of everything that names an image and its captions.

    Files that are called captions or metadata, with more behind it as COCO has it; where there are none, the
    text file beside each image; without these, all files of records.
    """
    images = {stem(each.name): each.base for each in place.members if each.is_image}
    files = [each for each in place.members if each.base.lower().endswith((*SUFFIXES, ".txt"))]
    named = [each for each in files if each.base.lower().startswith(("captions", "metadata"))]
    texts = {each for each in files if each.base.lower().endswith(".txt")}
    beside = [each for each in files if each in texts and stem(each.name) in images]
    tables = [each for each in files if each not in texts and each.base.lower() not in ABOUT]
    if not (named or beside or tables):
        rule = f"hold a file of captions (captions or metadata with {', '.join(SUFFIXES)})"
        raise refusal(rule, str(place.path), EXAMPLE)
    if beside and not named:
        for file in beside:
            lines = reader.text(file.name).splitlines()
            yield file, file.name, {"image": images[stem(file.name)], "captions": lines}
        return
    for file in named or tables:
        for where, record in reader.records(file.name):
            is_json = file.name.lower().endswith(".json")
            if {"images", "annotations"} <= record.keys():
                yield from ((file, where, each) for each in _of_coco(record, where, reader))
            elif is_json and "." in next(iter(record), ""):  # the name of an image
                yield from ((file, where, {"image": key, "captions": record[key]}) for key in record)
            else:
                yield file, where, dict(record)


def _of_coco(record: Record, where: str, reader: Reader) -> list[Record]:
    """Images by number, and a record for each caption, as cocodataset.org gives them."""
    try:
        images: dict[str, Record] = {str(each.pop("id", None)): each for each in record["images"]}
        for each in record["annotations"]:
            image = images.setdefault(str(each.pop("image_id", None)), {})
            image.setdefault("captions", []).append(take(each, "caption"))
            reader.unused.update(each)
    except (TypeError, AttributeError):
        raise refusal("hold images and annotations as COCO has them", where, EXAMPLE) from None
    if len(images) < len(record["images"]):
        raise refusal("number its images apart", where, "Give each an `id` of its own.")
    reader.unused.update(record.keys() - {"images", "annotations"})
    return list(images.values())


def _texts(value: Any, where: str, reader: Reader) -> Iterator[str]:
    """The captions in a record, a list or a text: those under a known key, else a chat's answers."""
    if isinstance(value, dict):
        keys = keys_of(tuple(value), "caption")
        if not keys and keys_of(tuple(value), "turns"):
            said = chats.conversation(value, where, reader.unused)
            value = [message["content"] for message in said if chats.is_answer(message)]
        else:
            reader.unused.update(value.keys() - {*keys})
            value = [value[key] for key in keys]
    elif isinstance(value, str) and value.startswith(('["', "['")):  # a list in a table
        value = parsed(value, where)
    if isinstance(value, list):
        for each in value:
            yield from _texts(each, where, reader)
    elif text := " ".join(str("" if value is None else value).split()):
        yield text


def _finder(place: Place) -> Callable[[str, str], Member | None]:
    """Finds the file of a name in or near a folder, or else the only image called so.

    The name may differ in case then, or lack its suffix.
    """
    called: dict[str, set[Member]] = defaultdict(set)
    for member in filter(lambda each: each.is_image, place.members):
        for name in (f"/{member.name}", member.base.lower(), stem(member.base).lower()):
            called[name].add(member)

    @cache
    def find(image: str, folder: str) -> Member | None:
        clean = places.plain(image.strip().replace("\\", "/"))
        base = clean.rpartition("/")[2].lower()
        names = (f"/{folder}{clean}", f"/{folder}images/{clean}", base, stem(base))
        found = next((called[name] for name in names if len(called[name]) == 1), ())
        return next(iter(found), None)

    return find
