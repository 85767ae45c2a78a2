"""Which captions belong to which image, as `captions.json`, `.csv` or `.tsv` beside the images tells."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from qnnkit import checks
from qnnkit.data.places import Member, Place, first

NAMES = ("captions.json", "captions.csv", "captions.tsv")
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
    """In the order of the file."""
    notes: tuple[str, ...]


def listing(place: Place) -> Listing:
    """The images of a place that a caption file in it names, with their captions.

    Raises:
        ValueError: There is no such file, it cannot be understood, or none of its images is there.
    """
    found = [member for member in place.members if member.base.lower() in NAMES]
    if not found:
        rule = f"hold {NAMES[0]}, {NAMES[1]} or {NAMES[2]}"
        raise ValueError(checks.message("root", rule, str(place.path), EXAMPLE))
    file = min(found, key=lambda member: (member.name.count("/"), NAMES.index(member.base.lower())))
    text = _text(place, file)
    rows = _of_json(text, file) if file.base.lower().endswith(".json") else _of_table(text, file)
    captions, empty, missing = _gathered(place, file, rows)
    bare = [member.name for member, texts in captions.items() if not texts]
    bare += [member.name for member in place.members if member.is_image and member not in captions]
    captions = {member: tuple(dict.fromkeys(texts)) for member, texts in captions.items() if texts}
    if not captions:
        told = f"{file.name} with {len(missing):,} images that are not there, {len(bare):,} without a caption"
        if bare and not missing:
            step = f"Write a caption for each image, such as {first(bare, 1)}."
        else:
            some = f", such as {first(missing, 1)}" if missing else ""
            step = f"Put the images beside it, or into images/{some}."
        raise ValueError(checks.message("root", "hold images that have a caption", told, step))
    notes = []
    if missing:
        notes.append(f"Left out {_images(missing)} of {file.name} that are not there: {first(missing)}.")
    if bare:
        notes.append(f"Left out {_images(bare)} without a caption: {first(bare)}.")
    if empty:
        were = "caption that was" if len(empty) == 1 else "captions that were"
        of = first(list(dict.fromkeys(empty)))
        notes.append(f"Left out {len(empty):,} {were} empty or no text, of {of}.")
    return Listing(captions, tuple(notes))


def _images(names: list[str]) -> str:
    return f"{len(names):,} image{'s' * (len(names) != 1)}"


def _gathered(
    place: Place, file: Member, rows: Iterator[Row]
) -> tuple[dict[Member, list[str]], list[str], list[str]]:
    """Image -> its captions; names of images with empty ones, once for each; names of images not there."""
    folder = file.name[: -len(file.base)]
    by_name = {member.name: member for member in place.members}
    by_base: dict[str, list[Member]] = {}
    for member in place.members:
        by_base.setdefault(member.base, []).append(member)
    captions: dict[Member, list[str]] = {}
    empty: list[str] = []
    missing: dict[str, None] = {}
    for name, caption in rows:
        clean = name.strip().replace("\\", "/").removeprefix("./")
        alike = by_base.get(clean.rpartition("/")[2], [])
        member = (
            by_name.get(folder + clean)
            or by_name.get(f"{folder}images/{clean}")
            or (alike[0] if len(alike) == 1 else None)
        )
        if member is None:
            missing[name] = None
            continue
        texts = captions.setdefault(member, [])
        if caption is None:  # the image alone was named
            continue
        if isinstance(caption, str) and caption.strip():
            texts.append(" ".join(caption.split()))
        else:
            empty.append(member.name)
    return captions, empty, list(missing)


def _text(place: Place, file: Member) -> str:
    try:
        return place.read(file.name).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        step = f"Byte {error.start:,} is not: save the file anew, as UTF-8."
        raise ValueError(checks.message("root", "hold captions in UTF-8", file.name, step)) from None


# --- JSON --------------------------------------------------------------------------------------------------


def _of_json(text: str, file: Member) -> Iterator[Row]:
    """From a list of records, a dictionary of images, or what COCO calls annotations."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        step = f"Python says: {error}."
        raise ValueError(checks.message("root", "hold captions in JSON", file.name, step)) from None
    if isinstance(content, dict) and all(isinstance(content.get(k), list) for k in ("images", "annotations")):
        yield from _of_coco(content, file)
    elif isinstance(content, dict):
        for image, captions in content.items():
            yield from _each(image, captions)
    elif isinstance(content, list):
        for number, record in enumerate(content):
            image = _value(record, IMAGE)
            if not isinstance(image, str):
                raise _wrong(file, number, record)
            yield from _each(image, _value(record, CAPTIONS))
    else:
        told = f"{file.name} with {text.strip()[:40]}"
        raise ValueError(checks.message("root", "hold a list of images and captions", told, EXAMPLE))


def _of_coco(content: dict[str, list[Any]], file: Member) -> Iterator[Row]:
    """As cocodataset.org gives them: images by number, and a record for each caption."""
    names: dict[object, str] = {}
    for number, record in enumerate(content["images"]):
        image = _value(record, IMAGE)
        if not isinstance(image, str) or not isinstance(record.get("id"), int | str):
            raise _wrong(file, number, record)
        names[record["id"]] = image
        yield image, None
    for number, record in enumerate(content["annotations"]):
        number_of = record.get("image_id") if isinstance(record, dict) else None
        if not isinstance(number_of, int | str) or number_of not in names:
            raise _wrong(file, number, record)
        yield from _each(names[number_of], _value(record, CAPTIONS))


def _each(image: str, captions: object) -> Iterator[Row]:
    yield image, None
    for caption in captions if isinstance(captions, list) else [captions]:
        if caption is not None:
            yield image, caption


def _value(record: object, names: tuple[str, ...]) -> object:
    """What a record has under the first of these names."""
    if not isinstance(record, dict):
        return None
    return next((record[name] for name in names if name in record), None)


def _wrong(file: Member, number: int, record: object) -> ValueError:
    rule = "name an image in every record of its captions"
    told = f"{file.name} with {json.dumps(record, ensure_ascii=False)[:80]} as record {number + 1}"
    return ValueError(checks.message("root", rule, told, EXAMPLE))


# --- tables ------------------------------------------------------------------------------------------------


def _of_table(text: str, file: Member) -> Iterator[Row]:
    """From two columns of a table, one row per caption."""
    delimiter = "\t" if file.base.lower().endswith(".tsv") else ","
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        names = {name.strip().lower(): name for name in reader.fieldnames or () if name}
        image, caption = (next((names[k] for k in known if k in names), None) for known in (IMAGE, CAPTIONS))
        if image is None or caption is None:
            told = f"{file.name} with {list(reader.fieldnames or ())}"
            step = "Name them in the first line."
            raise ValueError(checks.message("root", "hold the columns image and caption", told, step))
        for row in reader:
            if None in row:
                step = "Put captions with such signs between quotation marks."
                told = f"{file.name} with more in line {reader.line_num}"
                raise ValueError(checks.message("root", "hold as many columns in every line", told, step))
            yield row[image] or "", row[caption] or ""
    except csv.Error as error:
        told, step = f"{file.name}, line {reader.line_num + 1}", f"Python says: {error}."
        raise ValueError(checks.message("root", "hold a table of captions", told, step)) from None
