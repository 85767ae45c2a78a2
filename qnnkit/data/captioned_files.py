"""Which captions belong to which image, as `captions.json`, `metadata.csv` and the like beside them tell."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from qnnkit.data import places
from qnnkit.data.folders import SIDES, left_out
from qnnkit.data.places import Member, Place, first, parsed, records, refusal

SUFFIXES = (".json", ".jsonl", ".csv", ".tsv")
NAMES = tuple(f"{stem}{suffix}" for stem in ("captions", "metadata") for suffix in SUFFIXES)
"""What a file of captions may be called, in small or capital letters; one of each folder is read."""
IMAGE = ("image", "file_name", "filename", "file", "path")
"""What the name of an image may be called in a record or a table."""
CAPTIONS = ("captions", "caption", "text")
EXAMPLE = 'Write one such as [{"image": "cat.jpg", "captions": ["a cat", "a cat on a mat"]}].'

Row = tuple[str, object]
"""The name of an image, and one caption."""


@dataclass(frozen=True)
class Listing:
    """The images that are there and have captions."""

    captions: dict[Member, tuple[str, ...]]
    """In the order of the files."""
    sides: tuple[str, ...]
    """Of each image: "any" where its captions lie in no folder train/, validation/ or test/."""
    top: str
    """The folder that all files of captions lie in, with a `/` at its end; or ""."""
    notes: tuple[str, ...]


def listing(place: Place) -> Listing:
    """The images of a place that its files of captions name, with their captions.

    Raises:
        ValueError: There is no such file, one cannot be understood, or no image of them is there.
    """
    found: dict[str, list[Member]] = {}
    for member in place.members:
        if member.base.lower() in NAMES:
            found.setdefault(member.name[: -len(member.base)], []).append(member)
    if not found:
        raise refusal(f"hold a file of captions ({', '.join(NAMES)})", str(place.path), EXAMPLE)
    sided = {folder: SIDES.get(folder.rstrip("/").rpartition("/")[2].lower(), "any") for folder in found}
    if set(sided.values()) == {"any"} or "train" not in sided.values():  # the outermost is meant
        sided = {min(found, key=lambda folder: folder.count("/")): "any"}
    read = {folder: min(found[folder], key=lambda each: NAMES.index(each.base.lower())) for folder in sided}
    by_name = {member.name: member for member in place.members}
    by_base: dict[str, list[Member]] = {}
    for member in place.members:
        by_base.setdefault(member.base, []).append(member)
    captions: dict[Member, list[str]] = {}
    sides: dict[Member, str] = {}
    empty, missing = [], []
    for folder, file in read.items():
        for name, caption in _rows(place.text(file.name), file):
            clean = places.plain(name.strip().replace("\\", "/").removeprefix("./"))
            alike = by_base.get(clean.rpartition("/")[2], [])
            member = by_name.get(folder + clean) or by_name.get(f"{folder}images/{clean}")
            member = alike[0] if member is None and len(alike) == 1 else member
            if member is None:
                missing.append(name)
                continue
            texts = captions.setdefault(member, [])
            if sides.setdefault(member, sided[folder]) != sided[folder]:
                step = f"{member.name} has captions in {sides[member]} too: leave one out."
                raise refusal("name each image on one side", file.name, step)
            if isinstance(caption, str) and caption.strip():
                texts.append(" ".join(caption.split()))
            elif caption is not None:  # else the image alone was named
                empty.append(member.name)
    missing = list(dict.fromkeys(missing))
    bare = [member.name for member, texts in captions.items() if not texts]
    bare += [member.name for member in place.members if member.is_image and member not in captions]
    files = ", ".join(file.name for file in read.values())
    whole = {member: tuple(dict.fromkeys(texts)) for member, texts in captions.items() if texts}
    if not whole:
        value = f"{files} with {len(missing):,} images that are not there, {len(bare):,} without a caption"
        step = f"Put the images beside it, or into images/, such as {first(missing, 1)}."
        if not missing:
            step = f"Write a caption for each image{', such as ' * bool(bare)}{first(bare, 1)}."
        raise refusal("hold images that have a caption", value, step)
    unread = [each.name for inside in found.values() for each in inside if each not in read.values()]
    why = {f"images of {files} that are not there": missing, "files of captions beside these": unread}
    notes = places.left_out(why | {"captions that were empty or no text": empty})
    notes += left_out(place, {"without a caption": bare}, NAMES)
    top = "" if len(read) > 1 else next(iter(read))
    inner = {member: SIDES.get(member.name[len(top) :].partition("/")[0].lower(), "any") for member in whole}
    if set(sides.values()) == {"any"} and {"train"} < set(inner.values()) <= {"train", "validation", "test"}:
        sides = inner
    return Listing(whole, tuple(sides[member] for member in whole), top, tuple(notes))


def _rows(text: str, file: Member) -> Iterator[Row]:
    """Each image with each of its captions, and with None where it is only named."""
    if file.base.lower().endswith((".csv", ".tsv")):
        yield from _of_table(text, file)
        return
    if file.base.lower().endswith(".jsonl"):
        content = [record for _, record in records(text, file.name)]
    else:
        content: Any = parsed(text, file.name)
    if isinstance(content, dict) and all(isinstance(content.get(k), list) for k in ("images", "annotations")):
        content = _of_coco(content, file)
    elif isinstance(content, dict):
        content = [{"image": image, "captions": captions} for image, captions in content.items()]
    if not isinstance(content, list):
        raise refusal("hold a list of images and captions", f"{file.name} with {text.strip()[:40]}", EXAMPLE)
    for number, record in enumerate(content):
        image, captions = _value(record, IMAGE), _value(record, CAPTIONS)
        if not isinstance(image, str):
            raise _wrong(file, number, record)
        yield image, None
        for caption in captions if isinstance(captions, list) else [captions]:
            yield image, caption


def _of_coco(content: dict[str, list[Any]], file: Member) -> list[dict[str, Any]]:
    """As cocodataset.org gives them: images by number, and a record for each caption."""
    names: dict[object, str] = {}
    for number, record in enumerate(content["images"]):
        image = _value(record, IMAGE)
        if not isinstance(image, str) or not isinstance(record.get("id"), int | str):
            raise _wrong(file, number, record)
        names[record["id"]] = image
    rows: list[dict[str, Any]] = [{"image": image} for image in names.values()]
    for number, record in enumerate(content["annotations"]):
        image_id = record.get("image_id") if isinstance(record, dict) else None
        if not isinstance(image_id, int | str) or image_id not in names:
            raise _wrong(file, number, record)
        rows.append({"image": names[image_id], "captions": _value(record, CAPTIONS)})
    return rows


def _value(record: object, names: tuple[str, ...]) -> Any:
    """What a record has under the first of these names."""
    if not isinstance(record, dict):
        return None
    return next((record[name] for name in names if name in record), None)


def _wrong(file: Member, number: int, record: object) -> ValueError:
    rule = "name an image in every record of its captions"
    value = f"{file.name} with {json.dumps(record, ensure_ascii=False)[:80]} as record {number + 1}"
    return refusal(rule, value, EXAMPLE)


def _of_table(text: str, file: Member) -> Iterator[Row]:
    """From two columns of a table, one row per caption."""
    delimiter = "\t" if file.base.lower().endswith(".tsv") else ","
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        names = {name.strip().lower(): name for name in reader.fieldnames or () if name}
        image, caption = (next((names[k] for k in known if k in names), None) for known in (IMAGE, CAPTIONS))
        if image is None or caption is None:
            value = f"{file.name} with {list(reader.fieldnames or ())}"
            raise refusal("hold the columns image and caption", value, "Name them in the first line.")
        for row in reader:
            if None in row:
                value = f"{file.name} with more in line {reader.line_num}"
                step = "Put captions with such signs between quotation marks."
                raise refusal("hold as many columns in every line", value, step)
            yield row[image] or "", row[caption] or ""
    except csv.Error as error:
        value = f"{file.name}, line {reader.line_num + 1}"
        raise refusal("hold a table of captions", value, f"Python says: {error}.") from None
