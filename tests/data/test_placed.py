"""One contract for all data that are split by name: the split of each item, the notes and the errors."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from qnnkit.data import load
from qnnkit.data.splits import SPLITS
from tests.toys import fill, places_of, refused, write

TOKENS = {"sequence_length": 2, "vocabulary": 257}
SHARES = {"validation_fraction": 0.3, "test_fraction": 0.3}


class Kind(NamedTuple):
    """A dataset of numbered items, and how to find a number in it."""

    make: Callable[[Path, list[int], bool], Path]
    """(folder, numbers, whether all items are equal) -> root."""
    name: str
    source: str = ""
    options: Mapping[str, Any] = MappingProxyType({})


def images(form: str) -> Callable[[Path, list[int], bool], Path]:
    def make(folder: Path, numbers: list[int], same: bool) -> Path:
        for i in numbers:
            fill(folder, [form.format(i=i, side="ab"[i % 2], label=i % 2)], seed=0 if same else i)
        return folder

    return make


def captions(folder: Path, numbers: list[int], same: bool) -> Path:
    texts = {f"{i}.png": f"picture {i}" for i in numbers}
    return write(images("{i}.png")(folder, numbers, same), {"captions.json": texts})


def said(i: int, same: bool) -> str:
    return "To be or not to be." if same else f"Number {i:02d}. " + "So wan with care. " * (5 + i % 7)


def texts(folder: Path, numbers: list[int], same: bool) -> Path:
    return write(folder, {f"{i}.txt": said(i, same) for i in numbers})


def records(folder: Path, numbers: list[int], same: bool) -> Path:
    return write(folder, {"a.jsonl": [{"text": said(i, False)} for i in numbers]})


def music(folder: Path, numbers: list[int], same: bool) -> Path:
    pieces = {f"piece{i}": [[60 + step % 7] for step in range(20 if same else 20 + i)] for i in numbers}
    return write(folder, {"ann.json": pieces})


KINDS = {
    "class_folder": Kind(images("{side}/{i}.png"), "class_folder", "{side}/{i}.png"),
    "flat_folder": Kind(images("{i:03}_0{label}.png"), "flat_folder", "{i:03}_0{label}.png"),
    "captions": Kind(captions, "captions", "{i}.png", {"image_size": 8}),
    "texts": Kind(texts, "text", options=TOKENS),
    "records": Kind(records, "text", options=TOKENS),
    "music": Kind(music, "music", "ann/piece{i}", {"sequence_length": 64}),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def loaded(kind: Kind, root: Path, **options: Any) -> Any:
    return load(kind.name, root=root, **{**kind.options, **SHARES, **options})


def placed(kind: Kind, splits: Any, numbers: list[int], above: str = "") -> dict[int, str]:
    """Number -> the name of its split."""
    if kind.source:
        places = places_of(splits)
        names = {i: above + kind.source.format(i=i, side="ab"[i % 2], label=i % 2) for i in numbers}
        assert sorted(places) == sorted(names.values())
        return {i: places[name] for i, name in names.items()}
    written = {name: splits.tokenizer.decode(splits.split(name).input_ids.flatten()) for name in SPLITS}
    return {i: name for i in numbers for name in SPLITS if f"Number {i:02d}." in written[name]}


def test_adding_or_removing_an_item_or_outer_folder_moves_no_other_item(tmp_path: Path, kind: Kind) -> None:
    numbers, root = [*range(60)], tmp_path / "around" / "data"
    first = loaded(kind, kind.make(root, numbers, False))
    before = placed(kind, first, numbers)
    assert placed(kind, loaded(kind, root.parent), numbers, "" if kind.name == "music" else "data/") == before
    fewer = [i for i in numbers if i % 9]
    after = loaded(kind, kind.make(tmp_path / "fewer", fewer, False))
    assert placed(kind, after, fewer) == {i: before[i] for i in fewer}
    again, other, wider = (loaded(kind, root, **x) for x in ({}, {"split_seed": 1}, {"test_fraction": 0.5}))
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()
    sides = [placed(kind, splits, numbers) for splits in (first, other, wider)]
    tests = [{i for i in numbers if side[i] == "test"} for side in sides]
    assert tests[0] < tests[2] and tests[0] != tests[1] and 8 <= len(tests[0]) <= 28


@pytest.mark.parametrize("kind", [KINDS[name] for name in KINDS if name != "records"])
def test_items_in_two_splits_are_reported(tmp_path: Path, kind: Kind) -> None:
    """Equal records are in the same split."""
    splits = loaded(kind, kind.make(tmp_path / "x", [*range(30)], True))
    [note] = [each for each in splits.notes if each.startswith("Duplicates")]
    assert " of validation and test are also in an earlier split, " in note and " (train) = " in note


@pytest.mark.parametrize(
    ("argument", "n", "options"),
    [
        ("root", 2, {}),
        ("test_fraction", 9, {"test_fraction": 0.0}),
        ("test_fraction", 9, {"validation_fraction": 0.5, "test_fraction": 0.5}),
        ("train_fraction", 9, {"train_fraction": 0}),
    ],
)
def test_bad_options(tmp_path: Path, kind: Kind, argument: str, n: int, options: dict[str, Any]) -> None:
    root = kind.make(tmp_path / "x", list(range(n)), False)
    with refused(argument, (ValueError, FileNotFoundError)):
        load(kind.name, **{"root": root, **kind.options, **SHARES, **options})
