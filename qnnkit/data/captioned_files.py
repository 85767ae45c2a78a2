"""Which captions belong to which image: tables, records and texts of every common form."""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from qnnkit.data import places
from qnnkit.data.chats import ROLES
from qnnkit.data.folders import SIDES, left_out
from qnnkit.data.places import Member, Place, first, refusal
from qnnkit.data.records import ABOUT, SUFFIXES, Reader, single_list

IMAGE = ("image", "file_name", "filename", "image_name", "image_path", "image_file", "file", "filepath")
IMAGE += ("path", "img", "img_path")
CAPTION = ("captions", "caption", "text", "texts", "sentences", "sentence", "raw", "prompt", "description")
CAPTION += ("comment", "title", "conversations")
SPLIT = ("split", "subset", "partition")
"""What keys and columns may be called, the likeliest first, in any letters; a number may follow."""
EXAMPLE = 'Write one such as [{"image": "cat.jpg", "captions": ["a cat", "a cat on a mat"]}].'
TOKENS = (".token", ".token.txt")
"""How Flickr's tables without a header end."""
RESTVAL = ("restval",)
"""Karpathy's images of COCO's validation part that are trained on."""


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


class _Captions:
    """Grows by one record at a time: the captions and the side of each image."""

    def __init__(self, place: Place, reader: Reader) -> None:
        self.captions: dict[Member, list[str]] = {}
        self.sides: dict[Member, str] = {}
        self.contents: dict[str, bytes] = {}
        self.missing: dict[str, None] = {}
        self.empty: list[str] = []
        self._reader = reader
        self._exact = {member.name: member for member in place.members}
        self._alike: dict[str, list[Member]] = {}
        for member in place.members:
            names = {member.base, member.base.lower()}
            names |= {_stem(member.base), _stem(member.base).lower()} if member.is_image else set()
            for name in names:
                self._alike.setdefault(name, []).append(member)

    def add(self, where: str, record: Any, folder: str, side: str) -> None:
        """Adds the captions of a record that stands in a file of this folder and side."""
        image, texts, split = self._parts(where, record)
        member = self._member(image, where, folder)
        if member is None:
            self.missing[str(image)] = None
            return
        side = _side_in(split, where) if split is not None else side
        if self.sides.setdefault(member, side) != side:
            step = f"{member.name} has captions in {self.sides[member]} too: leave one out."
            raise refusal("name each image on one side", where, step)
        known = self.captions.setdefault(member, [])
        for text in texts:
            if isinstance(text, str) and text.strip():
                known.append(" ".join(text.split()))
            else:
                self.empty.append(member.name)

    def _parts(self, where: str, record: Any) -> tuple[Any, list[Any], Any]:
        """The image, the captions and the split that a record names."""
        fields = {_plain(str(key)): key for key in reversed(record)} if isinstance(record, dict) else {}
        image, split = (next((fields[k] for k in known if k in fields), None) for known in (IMAGE, SPLIT))
        caption = next((name for name in CAPTION if name in fields), None)
        if image is None or not isinstance(record[image], str | dict):
            value = f"{where} with {json.dumps(record, ensure_ascii=False, default=str)[:80]}"
            raise refusal("name an image in every record or row of its captions", value, EXAMPLE)
        used = [key for key in record if caption is not None and _plain(str(key)) == caption]
        self._reader.unused(key for key in record if key not in (image, split, *used))
        return (
            record[image],
            [text for key in used for text in _texts(record[key], self._reader)],
            record.get(split),
        )

    def _member(self, image: Any, where: str, folder: str) -> Member | None:
        """The image of this name, or else the only one whose name differs in case or suffix."""
        if isinstance(image, dict):  # as `datasets` keeps images inside of tables
            content = image.get("bytes")
            name = image.get("path") or where.replace(", row ", "/")
            if content is None:
                return self._member(str(name), where, folder)
            self.contents[name] = content
            return Member(name, len(content), zlib.crc32(content))
        clean = places.plain(image.strip().replace("\\", "/").removeprefix("./"))
        clean = re.sub(r"(\.\w+)#\d+$", r"\1", clean)  # Flickr numbers the captions of an image
        for name in (folder + clean, f"{folder}images/{clean}"):
            if name in self._exact:
                return self._exact[name]
        base = clean.rpartition("/")[2]
        alike = (self._alike.get(name, []) for name in (base, base.lower(), _stem(base), _stem(base).lower()))
        return next((members[0] for members in alike if len(members) == 1), None)


def listing(place: Place) -> Listing:
    """The images of a place that its files of captions name, with their captions.

    Raises:
        ValueError: There is no such file, one cannot be understood, or no image of them is there.
    """
    reader = Reader(place)
    made, (files, others) = _Captions(place, reader), _files(place)
    for file in files:
        folder = file.name[: -len(file.base)]
        for where, record in reader.records(file.name, _listed):
            made.add(where, record, folder, _side_of(file))
    beside = {} if files else _beside(place)
    for image, file in beside.items():
        made.add(file.name, {"image": image, "caption": reader.text(file.name).splitlines()}, "", "any")
    if not files and not beside:
        rule = f"hold a file of captions (captions or metadata with {', '.join(SUFFIXES)})"
        raise refusal(rule, str(place.path), EXAMPLE)
    whole = {member: tuple(dict.fromkeys(texts)) for member, texts in made.captions.items() if texts}
    bare = [member.name for member, texts in made.captions.items() if not texts]
    bare += [each.name for each in place.members if each.is_image and each not in made.captions]
    names, missing = first([file.name for file in files or beside.values()]), list(made.missing)
    if not whole:
        value = f"{names} with {len(missing):,} images that are not there, {len(bare):,} without a caption"
        step = f"Put the images beside it, or into images/, such as {first(missing, 1)}."
        if not missing:
            step = f"Write a caption for each image{', such as ' * bool(bare)}{first(bare, 1)}."
        raise refusal("hold images that have a caption", value, step)
    folders = {file.name[: -len(file.base)] for file in files}
    top = folders.pop() if len(folders) == 1 else ""
    sides = _sides(whole, made.sides, top)
    lost = [member.name for member, side in zip(whole, sides, strict=True) if side == "any"]
    why = {
        f"images of {names} that are not there": missing,
        "files of captions beside these": others,
        "captions that were empty or no text": made.empty,
        "images that are in no part": lost if "train" in sides else [],
    }
    read = {
        name.rpartition("/")[2].lower()
        for name in (*others, *(each.name for each in (*files, *beside.values())))
    }
    notes = [*places.left_out(why), *left_out(place, {"without a caption": bare}, (*read, *ABOUT))]
    if "train" not in sides and (split := sorted({*made.sides.values()} - {"any"})):
        notes.append(f"Splits are drawn: all captions are of {', '.join(split)}, and none of train.")
    return Listing(whole, tuple(sides), top, (*notes, *reader.notes), made.contents)


def _files(place: Place) -> tuple[list[Member], list[str]]:
    """The files of captions of a place, and the names of those that stand behind them.

    Those called captions or metadata, one of each folder, and the like (as COCO has them); without, and
    without texts beside images, all files of records. Where none of several is of train, the outermost.
    """
    tables = [each for each in place.members if each.base.lower() not in ABOUT and not each.is_image]
    named = [each for each in tables if re.match("(captions|metadata).*[.]", each.base.lower())]
    named = [each for each in named if each.base.lower().endswith((*SUFFIXES, ".txt"))]
    if not named and not _beside(place):
        named = [each for each in tables if each.base.lower().endswith((*SUFFIXES, *TOKENS))]
    forms: dict[str, list[Member]] = {}
    for each in named:
        stem = _stem(each.name)
        is_plain = stem.lower().endswith(("captions", "metadata"))
        forms.setdefault(stem[: -len("captions")] if is_plain else stem, []).append(each)
    order = [f"{stem}{suffix}" for stem in ("captions", "metadata") for suffix in (*SUFFIXES, ".txt")]
    rank = {name: number for number, name in enumerate(order)}
    chosen = [min(each, key=lambda file: rank.get(file.base.lower(), 0)) for each in forms.values()]
    if "train" not in map(_side_of, chosen):
        depth = min((each.name.count("/") for each in chosen), default=0)
        chosen = [each for each in chosen if each.name.count("/") == depth]
    return chosen, [each.name for each in named if each not in chosen]


def _beside(place: Place) -> dict[str, Member]:
    """Image -> the text file beside it that is called so."""
    texts = {_stem(each.name): each for each in place.members if each.base.lower().endswith(".txt")}
    images = [each.name for each in place.members if each.is_image]
    return {name: texts[_stem(name)] for name in images if _stem(name) in texts}


def _listed(content: Any, reader: Reader) -> Any:
    """Records out of a JSON object: COCO's, one with a list of records, or image -> captions."""
    if not isinstance(content, dict):
        return content
    if all(isinstance(content.get(key), list) for key in ("images", "annotations")):
        reader.unused(key for key in content if key not in ("images", "annotations"))
        return _of_coco(content["images"], content["annotations"], reader)
    records = single_list(content, reader)
    return records if records != [content] else [{"image": k, "captions": v} for k, v in content.items()]


def _of_coco(images: list[Any], annotations: list[Any], reader: Reader) -> list[dict[str, Any]]:
    """As cocodataset.org gives them: images by number, and a record for each caption."""
    try:
        by_id = {image["id"]: {**image, "captions": []} for image in images}
        for each in annotations:
            reader.unused(key for key in each if key not in ("image_id", "caption"))
            by_id[each["image_id"]]["captions"].append(each.get("caption"))
    except (KeyError, TypeError) as error:
        value, step = f"one without {error}", "Download it again: cocodataset.org has it whole."
        raise refusal("hold annotations of its images, by `id` and `image_id`", value, step) from None
    reader.unused(["id"])
    return [{key: record[key] for key in record if key != "id"} for record in by_id.values()]


def _texts(value: Any, reader: Reader) -> Iterator[Any]:
    """The captions in a value: a text, a list of such, a record of one, or the answers of a chat."""
    if isinstance(value, str) and value.startswith(('["', "['")) and value.endswith("]"):
        with contextlib.suppress(ValueError, SyntaxError, RecursionError):
            value = ast.literal_eval(value)  # a list in a table
    if isinstance(value, list):
        for each in value:
            yield from _texts(each, reader)
    elif isinstance(value, dict) and {"from", "role"} & set(value):
        if ROLES.get(str(value.get("from", value.get("role"))).lower()) == "assistant":
            yield value.get("value", value.get("content"))
    elif isinstance(value, dict):
        name = next((key for key in CAPTION if key in value), None)
        reader.unused(f"{key} of captions" for key in value if key != name)
        yield from _texts(value.get(name), reader)
    else:
        yield value


def _sides(captions: dict[Member, Any], named: dict[Member, str], top: str) -> list[str]:
    """The side of each image, by record or file, or else by the folder below `top` that it lies in."""
    sides = [named[member] for member in captions]
    if set(sides) == {"any"}:
        inner = [_side_in_folder(member.name[len(top) :]) for member in captions]
        sides = inner if "any" not in inner and len(set(inner)) > 1 else sides
    return sides if "train" in sides else ["any"] * len(sides)  # something must be left to train on


def _side_in_folder(name: str) -> str:
    """The side that a path's first folder names, as train/ or val2017/ do."""
    return SIDES.get(re.sub(r"[\d_-]+$", "", name.partition("/")[0].lower()), "any")


def _side_of(file: Member) -> str:
    """The side that a file's folder or name says: val/metadata.csv, captions_val2017.json."""
    folder = file.name[: -len(file.base)].rstrip("/").rpartition("/")[2]
    parts = (SIDES.get(part, "any") for part in re.split("[^a-z]+", _stem(file.base).lower()))
    return next((side for side in (_side_in_folder(folder), *parts) if side != "any"), "any")


def _side_in(split: Any, where: str) -> str:
    """The side that a record's split says."""
    name = str(split).strip().lower()
    if name not in (*SIDES, *RESTVAL):
        step = f"Known are {', '.join((*SIDES, *RESTVAL))}: rename it, or leave the column out."
        raise refusal("name a known split in every record", f"{where} with {split!r}", step)
    return SIDES.get(name, "train")


def _stem(name: str) -> str:
    """A path without its suffix."""
    return re.sub(r"\.[^./]+$", "", name)


@functools.lru_cache
def _plain(key: str) -> str:
    """A key or column in small letters, without the number of a caption."""
    return re.sub(r"[ _#-]?\d+$", "", key.strip().lower())
