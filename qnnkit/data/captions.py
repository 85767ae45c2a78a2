"""Images with captions: your own, in every common form, or those of a labelled dataset put into words."""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qnnkit.data import chats, places, tokenizers
from qnnkit.data.arrays import digits
from qnnkit.data.batches import keyed_generator
from qnnkit.data.folders import left_out
from qnnkit.data.images import split, stack_files
from qnnkit.data.places import Member, Place, first, open_place, refusal
from qnnkit.data.public import mnist
from qnnkit.data.records import ABOUT, SPLIT_NAMES, SUFFIXES, Reader, side_of, side_of_file, single_list, stem
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
    place = open_place(root)
    found = listing(place)
    files = [(side, 0, member) for side, member in zip(found.sides, found.captions, strict=True)]
    stack = stack_files(lambda name: found.contents.get(name) or place.read(name), files, image_size, grey)
    by_name = {member.name: texts for member, texts in found.captions.items()}
    parts, notes = split(stack, top=found.top, notes=found.notes, **options)
    sets = [CaptionSet(x.images, tuple(by_name[name] for name in x.sources), x.sources) for x in parts]
    return _with_tokens("captions", sets, tokenizer, sequence_length, notes)


def digit_captions(
    root: str | Path | None = None,
    *,
    tokenizer: Any = None,
    sequence_length: int | None = None,
    **options: Any,
) -> CaptionSplits:
    """Handwritten digits with captions such as "a photo of the digit three", on the splits of their dataset.

    Args:
        root: None takes the digits inside scikit-learn; a folder or archive, those of MNIST in it.
        tokenizer: As in `captions`.
        sequence_length: As in `captions`; as long as the longest caption by default, where one is trained.
        options: Those of the dataset: `image_size`, `split_seed`, `validation_fraction` and so on.
    """
    splits: ImageSplits = mnist(root, **options) if root else digits(**options)
    prompts = tuple(tuple(template.format(name) for template in TEMPLATES) for name in DIGITS)
    if sequence_length is None and tokenizer is None:
        texts = [text for each in prompts for text in each]
        sequence_length = max(map(len, tokenizers.of_captions(None, texts)(texts)["input_ids"]))
    sets = [
        CaptionSet(
            part.images, tuple(prompts[label] for label in part.labels.tolist()), part.sources, part.labels
        )
        for part in map(splits.split, SPLITS)
    ]
    name, more = f"{splits.name}_captions", {"classes": splits.classes, "prompts": prompts}
    return _with_tokens(name, sets, tokenizer, sequence_length, splits.notes, **more)


def _with_tokens(
    name: str,
    sets: Sequence[CaptionSet],
    wanted: Any,
    length: int | None,
    notes: tuple[str, ...],
    **more: Any,
) -> CaptionSplits:
    texts = [part.texts()[0] for part in sets]
    tokenizer = tokenizers.of_captions(wanted, texts[0], length)
    losses = tokenizers.losses(tokenizer, [text for part in texts for text in part])
    return CaptionSplits(name, *sets, tokenizer=tokenizer, notes=(*notes, *losses), **more)


# --- files --------------------------------------------------------------------------------------------------

IMAGE = ("image", "file_name", "filename", "image_name", "image_path", "image_file", "file", "filepath")
IMAGE += ("path", "img", "img_path")
CAPTION = ("captions", "caption", "text", "texts", "sentences", "sentence", "raw", "prompt", "description")
CAPTION += ("comment", "title", "conversations")
SPLIT = ("split", "subset", "partition")
"""What keys and columns may be called, the likeliest first, in any letters; a number may follow."""
EXAMPLE = 'Write one such as [{"image": "cat.jpg", "captions": ["a cat", "a cat on a mat"]}].'
TOKENS = (".token", ".token.txt")
"""How Flickr's tables without a header end."""


@dataclass(frozen=True)
class Listing:
    """The images that are there and have captions."""

    captions: dict[Member, tuple[str, ...]]
    """In the order of the files."""
    sides: tuple[str, ...]
    """Of each image: "any" where no column, folder or file's name says train, validation or test."""
    top: str
    """The folder that all files of captions lie in, with a `/` at its end; or ""."""
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
    contents: dict[str, bytes] = {}
    files, missing, empty = {}, {}, []
    for file, where, record, side in _records(place, reader):
        files[file] = None
        image, texts, split = _fields(where, record, reader)
        about = image if isinstance(image, dict) else {"path": image}  # as `datasets` keeps images in tables
        name, content = about.get("path") or where.replace(", row ", "/"), about.get("bytes")
        if content is not None:
            contents[name], member = content, Member(name, len(content), zlib.crc32(content))
        else:
            member = find(name, file.name[: -len(file.base)])
        if member is None:
            missing[name] = None
            continue
        if split is not None and (side := side_of(str(split).strip())) == "any":
            step = f"Known are {', '.join(SPLIT_NAMES)}: rename it, or leave the column out."
            raise refusal("name a known split in every record", f"{where} with {split!r}", step)
        known = sides.get(member, "any")
        if "any" not in (known, side) and known != side:
            step = f"{member.name} has captions in {known} too: leave one out."
            raise refusal("name each image on one side", where, step)
        sides[member] = side if known == "any" else known
        said = captions.setdefault(member, [])
        for text in texts:
            fits = isinstance(text, str) and text.strip()
            (said if fits else empty).append(" ".join(text.split()) if fits else member.name)
    whole = {member: tuple(dict.fromkeys(texts)) for member, texts in captions.items() if texts}
    bare = [member.name for member, texts in captions.items() if not texts]
    bare += [each.name for each in place.members if each.is_image and each not in captions]
    names = first([file.name for file in files]) or str(place.path)
    if not whole:
        value = f"{names} with {len(missing):,} images that are not there, {len(bare):,} without a caption"
        step = f"Write a caption for each image{', such as ' * bool(bare)}{first(bare, 1)}."
        if missing:
            step = f"Put the images beside it, or into images/, such as {first(list(missing), 1)}."
        raise refusal("hold images that have a caption", value, step)
    folders = {file.name[: -len(file.base)] for file in files}
    top = folders.pop() if len(folders) == 1 else ""
    placed = [sides[member] for member in whole]
    if set(placed) == {"any"}:  # or each image's folder says it
        inner = [side_of(member.name[len(top) :].partition("/")[0]) for member in whole]
        placed = inner if "any" not in inner and len(set(inner)) > 1 else placed
    is_split = "train" in placed  # something must be left to train on
    lost = [member.name for member, side in zip(whole, placed, strict=True) if is_split and side == "any"]
    why = {
        f"images of {names} that are not there": list(missing),
        "captions that were empty or no text": empty,
        "images that are in no part": lost,
    }
    read = (*(file.base.lower() for file in files), *ABOUT)
    notes = [*places.left_out(why), *left_out(place, {"without a caption": bare}, read)]
    if not is_split and (split := sorted({*sides.values()} - {"any"})):
        notes.append(f"Splits are drawn: all captions are of {', '.join(split)}, and none of train.")
    placed = tuple(placed if is_split else ["any"] * len(whole))
    return Listing(whole, placed, top, (*notes, *reader.notes), contents)


def _records(place: Place, reader: Reader) -> Iterator[tuple[Member, str, Any, str]]:
    """(File, where in it, record, side) of everything that names an image and its captions.

    Files that are called captions or metadata, with more behind it as COCO has it; where there are none, the
    text file beside each image; without these, all files of records.
    """
    tables = [each for each in place.members if each.base.lower() not in ABOUT and not each.is_image]
    named = [each for each in tables if re.match("(captions|metadata).*[.]", each.base.lower())]
    files = [each for each in named if each.base.lower().endswith((*SUFFIXES, ".txt"))]
    texts = {stem(each.name): each for each in tables if each.base.lower().endswith(".txt") and not files}
    beside = [(each, texts.get(stem(each.name))) for each in place.members if each.is_image]
    beside = [(image, text) for image, text in beside if text is not None]
    if not files and not beside:
        files = [each for each in tables if each.base.lower().endswith((*SUFFIXES, *TOKENS))]
    if not files and not beside:
        rule = f"hold a file of captions (captions or metadata with {', '.join(SUFFIXES)})"
        raise refusal(rule, str(place.path), EXAMPLE)
    for file in files:
        for where, record in reader.records(file.name, _listed):
            yield file, where, record, side_of_file(file)
    for image, file in beside:
        yield file, file.name, {"image": image.base, "captions": reader.text(file.name).splitlines()}, "any"


def _listed(content: Any, reader: Reader) -> Any:
    """Records out of a JSON object: COCO's, one with a list of records, or image -> captions."""
    if not isinstance(content, dict):
        return content
    if not all(isinstance(content.get(key), list) for key in ("images", "annotations")):
        records = single_list(content, reader)
        return records if records != [content] else [{"image": k, "captions": v} for k, v in content.items()]
    try:  # as cocodataset.org gives them: images by number, and a record for each caption
        images = content.pop("images")
        by_id = {image.pop("id"): image | {"captions": []} for image in images}
        if len(by_id) < len(images):
            value, step = f"{len(images) - len(by_id):,} numbered as another", "Give each an `id` of its own."
            raise refusal("number its images apart", value, step)
        for each in content.pop("annotations"):
            by_id[each.pop("image_id")]["captions"].append(each.pop("caption", None))
            reader.unused(each)
    except (KeyError, TypeError, AttributeError) as error:
        value, step = f"one without {error}", "Download it again: cocodataset.org has it whole."
        raise refusal("hold annotations of its images, by `id` and `image_id`", value, step) from None
    reader.unused(content)
    return list(by_id.values())


def _fields(where: str, record: Any, reader: Reader) -> tuple[Any, list[Any], Any]:
    """The image, the captions and the split that a record names."""
    image, captions, split, others = _roles(tuple(record)) if isinstance(record, dict) else [()] * 4
    if not image or not isinstance(record[image[0]], str | dict):
        value = f"{where} with {json.dumps(record, ensure_ascii=False, default=str)[:80]}"
        raise refusal("name an image in every record or row of its captions", value, EXAMPLE)
    reader.unused(others)
    texts = [text for key in captions for text in _texts(record[key], reader)]
    return record[image[0]], texts, record[split[0]] if split else None


@functools.lru_cache
def _roles(keys: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Which keys name the image, the captions and the split; and those of which nothing is made."""
    plain = {key: re.sub(r"[ _#-]?\d+$", "", key.strip().lower()) for key in keys}
    roles: list[tuple[str, ...]] = []
    for aliases, most in ((IMAGE, 1), (CAPTION, None), (SPLIT, 1)):
        alias = next((each for each in aliases if each in plain.values()), None)
        roles.append(tuple(key for key in keys if plain[key] == alias)[:most])
    return [*roles, tuple(key for key in keys if not any(key in role for role in roles))]


def _texts(value: Any, reader: Reader) -> Iterator[Any]:
    """The captions in a value: a text, a list of such, a record of one, or the answers of a chat."""
    if isinstance(value, str) and value.startswith(('["', "['")):
        with contextlib.suppress(ValueError, SyntaxError, RecursionError):
            value = ast.literal_eval(value)  # a list in a table
    if isinstance(value, dict) and {"from", "role"} & set(value):
        if chats.ROLES.get(str(value.get("from", value.get("role"))).lower()) == "assistant":
            yield value.get("value", value.get("content"))
    elif isinstance(value, dict):
        name = next((key for key in CAPTION if key in value), None)
        reader.unused(f"{key} of captions" for key in value if key != name)
        yield from _texts(value.get(name), reader)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each, reader)
    else:
        yield value


def _finder(place: Place) -> Callable[[str, str], Member | None]:
    """Finds the file of a name in or near a folder, or else the only image called so.

    The name may differ in case then, or lack its suffix.
    """
    exact = {member.name: member for member in place.members}
    alike: dict[str, list[Member]] = {}
    for member in place.members:
        bare = stem(member.base).lower() if member.is_image else member.base
        for name in {member.base, member.base.lower(), bare}:
            alike.setdefault(name, []).append(member)

    def find(image: str, folder: str) -> Member | None:
        clean = places.plain(image.strip().replace("\\", "/").removeprefix("./"))
        clean = re.sub(r"(\.\w+)#\d+$", r"\1", clean)  # Flickr numbers the captions of an image
        for name in (folder + clean, f"{folder}images/{clean}"):
            if name in exact:
                return exact[name]
        base = clean.rpartition("/")[2]
        names = (alike.get(name, ()) for name in (base, base.lower(), stem(base).lower()))
        return next((members[0] for members in names if len(members) == 1), None)

    return find
