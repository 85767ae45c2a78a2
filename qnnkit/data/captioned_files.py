"""Which captions belong to which image, in the forms that people publish them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from qnnkit.data import chats, places, records
from qnnkit.data.folders import SIDES, left_out
from qnnkit.data.places import Member, Place, first, refusal

SUFFIXES = (*records.SUFFIXES, ".txt")
NAMES = ("captions", "metadata")
"""How a file of captions is called, before all others, in small or capital letters."""
IMAGE = ("image", "file_name", "filename", "file", "path", "image_path", "filepath", "image_name", "img")
"""What the name of an image may be called in a record or a table."""
CAPTIONS = (
    *("captions", "caption", "sentences", "sentence", "text", "prompt", "title", "description", "comment"),
    "raw",
)
SPLIT = "split"
"""The column that says which split an image is in."""
EXAMPLE = 'Write one such as [{"image": "cat.jpg", "captions": ["a cat", "a cat on a mat"]}].'


class Row(NamedTuple):
    """What a file says of an image: captions as they stand there, and its split, or ""."""

    image: str
    captions: list[object]
    split: str = ""


@dataclass(frozen=True)
class Listing:
    """The images that are there and have captions."""

    captions: dict[Member, tuple[str, ...]]
    """In the order of the files."""
    sides: tuple[str, ...]
    """Of each image: "any" where neither its captions nor it lie in a folder or file of one side."""
    top: str
    """The folder that all files of captions lie in, with a `/` at its end; or ""."""
    notes: tuple[str, ...]


def listing(place: Place) -> Listing:
    """The images of a place that its files of captions name, with their captions.

    Raises:
        ValueError: There is no such file, one cannot be understood, or no image of them is there.
    """
    notes: list[str] = []
    unused = records.Unused()
    read, unread = _files(place, notes, unused)
    if not read:
        read = _beside(place, notes)
    if not read:
        value, names = str(place.path), ", ".join(f"{stem}.*" for stem in NAMES)
        raise refusal(f"hold a file of captions ({names}), or a .txt beside each image", value, EXAMPLE)
    find = _finder(place)
    captions: dict[Member, list[str]] = {}
    sides: dict[Member, str] = {}
    empty, missing = [], []
    for (folder, side), (file, rows) in read.items():
        for row in rows:
            member = find(folder, row.image)
            if member is None:
                missing.append(row.image)
                continue
            texts, wanted = captions.setdefault(member, []), row.split or side
            if sides.setdefault(member, wanted) != wanted:
                step = f"{member.name} has captions in {sides[member]} too: leave one out."
                raise refusal("name each image on one side", file, step)
            for caption in row.captions:
                if isinstance(caption, str) and caption.strip():
                    texts.append(" ".join(caption.split()))
                else:
                    empty.append(member.name)
    missing, files = list(dict.fromkeys(missing)), ", ".join(file for file, _ in read.values())
    bare = [member.name for member, texts in captions.items() if not texts]
    bare += [member.name for member in place.members if member.is_image and member not in captions]
    whole = {member: tuple(dict.fromkeys(texts)) for member, texts in captions.items() if texts}
    if not whole:
        value = f"{files} with {len(missing):,} images that are not there, {len(bare):,} without a caption"
        step = f"Put the images beside it, or into images/, such as {first(missing, 1)}."
        if not missing:
            step = f"Write a caption for each image{', such as ' * bool(bare)}{first(bare, 1)}."
        raise refusal("hold images that have a caption", value, step)
    why = {f"images of {files} that are not there": missing, "files of captions beside these": unread}
    notes += places.left_out(why | {"captions that were empty or no text": empty}) + unused.note()
    known = tuple(each.base.lower() for each in place.members if each.name in (*unread, *files.split(", ")))
    notes += left_out(place, {"without a caption": bare}, known)
    top = "" if len(read) > 1 else next(iter(read))[0]
    inner = {member: _side(member.name[len(top) :].partition("/")[0]) or "any" for member in whole}
    if set(sides.values()) == {"any"} and {"train"} < set(inner.values()) <= {"train", "validation", "test"}:
        sides = inner
    return Listing(whole, tuple(sides[member] for member in whole), top, tuple(notes))


def _side(name: str) -> str | None:
    """The split that a folder's name, or a part of a file's, means: "train2017", "captions_val2017".

    Example:
        >>> _side("train2017"), _side("captions_val2017"), _side("images")
        ('train', 'validation', None)
    """
    words = re.findall(r"[a-z]+", name.lower())
    return next((SIDES[word] for word in words if word in SIDES), None)


Read = dict[tuple[str, str], tuple[str, list[Row]]]
"""Folder and side of each file of captions that is read -> its name and what it says."""


def _files(place: Place, notes: list[str], unused: records.Unused) -> tuple[Read, list[str]]:
    """The files of captions, one for each folder and side, and the names of those that are not read."""
    found: dict[tuple[str, str], list[Member]] = {}
    for member in place.members:
        stem, _, suffix = member.base.lower().rpartition(".")
        texts = stem.startswith(NAMES) or stem.endswith("token")
        if f".{suffix}" in records.SUFFIXES or (suffix == "txt" and texts):
            folder = member.name[: -len(member.base)]
            side = _side(stem) or _side(folder.rstrip("/").rpartition("/")[2]) or "any"
            found.setdefault((folder, side), []).append(member)

    def order(member: Member) -> tuple[int, int]:
        stem, _, suffix = member.base.lower().rpartition(".")
        place = next((n for n, name in enumerate(NAMES) if stem.startswith(name)), len(NAMES))
        return place, SUFFIXES.index(f".{suffix}")

    read: Read = {}
    for key, members in found.items():
        for member in sorted(members, key=order):
            if key not in read and (rows := _rows(place, member, notes, unused)) is not None:
                read[key] = member.name, rows
    if not {"train"} & {side for _, side in read}:  # the outermost is meant
        read = {(folder, "any"): read[folder, side] for folder, side in sorted(read, key=_depth)[:1]}
    names = [name for name, _ in read.values()]
    captioned = {*NAMES} | {name.rpartition("/")[2].split(".")[0] for name in names}
    others = [each for members in found.values() for each in members if each.name not in names]
    return read, [each.name for each in others if each.base.lower().split(".")[0] in captioned]


def _depth(key: tuple[str, str]) -> int:
    return key[0].count("/")


def _beside(place: Place, notes: list[str]) -> Read:
    """Of each image that has a .txt of its name beside it, that text as its caption."""
    texts = {each.name[:-4]: each for each in place.members if each.base.lower().endswith(".txt")}
    images = [each for each in place.members if each.is_image]
    pairs = [(each, texts[stem]) for each in images if (stem := each.name.rpartition(".")[0]) in texts]
    rows = [Row(image.name, [records.text(place, text.name, notes)]) for image, text in pairs]
    return {("", "any"): ("a .txt beside each image", rows)} if rows else {}


def _finder(place: Place) -> Any:
    """What finds an image by its folder and the name that a file of captions gives it."""
    exact = {member.name: member for member in place.members}
    loose: dict[str, list[Member]] = {}
    for member in place.members:
        if member.is_image:
            base = member.base.lower()
            for key in {member.base, base, base.rpartition(".")[0]}:
                loose.setdefault(key, []).append(member)

    def find(folder: str, name: str) -> Member | None:
        clean = places.plain(name.strip().replace("\\", "/").removeprefix("./"))
        for candidate in (folder + clean, f"{folder}images/{clean}"):
            if candidate in exact:
                return exact[candidate]
        base = clean.rpartition("/")[2]
        alike = loose.get(base) or loose.get(base.lower()) or []
        return alike[0] if len(alike) == 1 else None

    return find


def _rows(place: Place, member: Member, notes: list[str], unused: records.Unused) -> list[Row] | None:
    """What a file says of its images; None of a file that is not called one of captions, and is none."""
    expected = member.base.lower().startswith(NAMES)
    try:
        return list(_read(place, member, notes, unused))
    except ValueError:
        if expected:
            raise
        return None


def _read(place: Place, member: Member, notes: list[str], unused: records.Unused) -> Iterator[Row]:
    name, suffix = member.name, member.base.lower().rpartition(".")[2]
    if suffix == "txt":
        content = records.text(place, name, notes)
        if re.match(r"[^\t\n]+#\d+\t", content):  # Flickr's token file
            lines = (line.partition("\t") for line in content.split("\n") if line.strip())
            yield from (Row(image.rpartition("#")[0], [caption]) for image, _, caption in lines)
            return
        found: list[tuple[str, Any]] = [*records.table(content, name)]
    elif suffix == "json":
        found = _of_json(records.parsed(records.text(place, name, notes), name), name)
    else:
        found = records.rows(place, name, notes)
    if not found:
        raise refusal("hold images and captions", name, EXAMPLE)
    for where, record in found:
        yield _row(where, record, unused)


def _of_json(content: Any, name: str) -> list[tuple[str, Any]]:
    """The records of COCO's form, of Karpathy's, of a dictionary by image, or of a list."""
    if isinstance(content, dict):
        lists = [
            key
            for key, value in content.items()
            if isinstance(value, list) and value and isinstance(value[0], dict)
        ]
        if {"images", "annotations"} <= {*lists}:
            return _of_coco(content, name)
        content = (
            content[lists[0]]
            if len(lists) == 1
            else [{"image": k, "captions": v} for k, v in content.items()]
        )
    if not isinstance(content, list):
        raise refusal("hold a list of images and captions", f"{name} with {str(content)[:40]}", EXAMPLE)
    return [(f"{name}, record {number}", record) for number, record in enumerate(content, start=1)]


def _of_coco(content: dict[str, list[Any]], name: str) -> list[tuple[str, Any]]:
    """As cocodataset.org gives them: images by number, and a record for each caption."""
    images: dict[object, Any] = {}
    for record in content["images"]:
        if not isinstance(record, dict) or not isinstance(record.get("id"), int | str):
            raise _wrong(name, record)
        images[record["id"]] = {key: value for key, value in record.items() if key != "id"} | {"captions": []}
    for record in content["annotations"]:
        key = record.get("image_id") if isinstance(record, dict) else None
        if not isinstance(key, int | str) or key not in images:
            raise _wrong(name, record)
        images[key]["captions"].append(record.get("caption"))
    return [(name, image) for image in images.values()]


def _row(where: str, record: Any, unused: records.Unused) -> Row:
    """An image with its captions, from the first key of each list of names that the record has."""
    if not isinstance(record, dict):
        raise _wrong(where, record)
    keys = {str(key).strip().lower(): key for key in reversed(record)}
    image, caption = (
        next((keys[name] for name in names if name in keys), None) for names in (IMAGE, CAPTIONS)
    )
    turns = next((keys[name] for name in chats.TURNS if name in keys), None)
    if image is None or not isinstance(record[image], str) or (caption is None and turns is None):
        raise _wrong(where, record)
    if caption is not None:
        texts = record[caption] if isinstance(record[caption], list) else [record[caption]]
        texts = [_row_text(each) for each in texts]
    else:  # LLaVA's form: what is answered is the caption
        said, _ = chats.messages(where, {chats.TURNS[0]: record[turns]})
        texts = [each["content"] for each in said if each["role"] == "assistant"]
    split = str(record.get(keys.get(SPLIT), "")).strip().lower()
    if split and split != "restval" and split not in SIDES:
        step = f"There is {split!r}: write train, validation or test, or take the column away."
        raise refusal("name splits that are known", where, step)
    unused.keys.update(
        {str(key) for key in record} - {str(image), str(caption or turns), str(keys.get(SPLIT))}
    )
    return Row(record[image], texts, "train" if split == "restval" else SIDES.get(split, ""))


def _row_text(caption: Any) -> Any:
    """A caption, or that of a record of one."""
    if isinstance(caption, dict):
        return next(
            (caption[name] for name in ("raw", *CAPTIONS) if isinstance(caption.get(name), str)), None
        )
    return caption


def _wrong(where: str, record: object) -> ValueError:
    rule = f"name an image ({', '.join(IMAGE)}) and a caption ({', '.join(CAPTIONS)}) in every record"
    value = f"{where} with {json.dumps(record, ensure_ascii=False, default=str)[:80]}"
    return refusal(rule, value, EXAMPLE)
