"""qnnkit sample: some files of each class, as they are, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qnnkit import cli
from qnnkit.data import load, sample_files
from tests.toys import fill, no_workspace, pack, refused

CLASSES = [f"{name}/{i}.png" for name in ("a", "b", "10") for i in range(12)]
FLAT = [f"{i:04}_{i % 3:02}.png" for i in range(36)]


@pytest.fixture(autouse=True)
def plain(monkeypatch, tmp_path):
    no_workspace(monkeypatch, tmp_path)


def both(names: list[str]) -> list[str]:
    return [f"{side}/{name}" for side in ("train", "test") for name in names]


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*.png")}


@pytest.mark.parametrize(
    ("files", "dataset"),
    [
        (CLASSES, "class_folder"),
        (both(CLASSES), "class_folder"),
        (FLAT, "flat_folder"),
        (both(FLAT), "flat_folder"),
    ],
)
def test_each_class_of_each_side_is_sampled_alike(tmp_path, files, dataset):
    source = fill(tmp_path / "all", files)
    (source / "LICENCE.txt").write_text("not an image")
    there = sample_files(source, tmp_path / "some", seed=3, per_class=4)
    record = json.loads((there / "sample.json").read_text())
    assert names(there) == set(record["files"]) < set(files)
    sides = ("train", "test") if len(files) > 36 else ("any",)
    assert set(record["counts"]) == set(sides)
    assert all(set(counts.values()) == {4} for counts in record["counts"].values())
    assert len(record["files"]) == 12 * len(sides)
    assert (record["seed"], record["source"]) == (3, str(source))
    for name in record["files"]:
        assert (there / name).read_bytes() == (source / name).read_bytes()
    assert set(load(dataset, root=there, validation_fraction=0.3, test_fraction=0.3).classes) == set(
        load(dataset, root=source).classes
    )
    again = sample_files(source, tmp_path / "again", seed=3, per_class=4)
    assert names(again) == names(there)
    assert names(sample_files(source, tmp_path / "other", seed=4, per_class=4)) != names(there)
    fewer = sample_files(source, tmp_path / "fewer", seed=3, per_class=2)
    assert names(fewer) < names(there)
    with refused("per_class"):
        sample_files(source, tmp_path / "new", per_class=0)


def test_files_left_out_are_counted_named_and_told(tmp_path):
    fill(tmp_path / "all", [f"id_{i:02}_label_{i % 12}{'x' * (i % 12 < 10)}.png" for i in range(48)])
    command = ["sample", "all", "some", "--per-class", "2"]
    done = CliRunner().invoke(cli.app, command)
    assert done.exit_code == 0 and done.output.startswith("4 images in "), done.output
    record = json.loads((tmp_path / "some" / "sample.json").read_text())
    assert record["counts"] == {"any": {"10": 2, "11": 2}}
    left_out = ", ".join(f"id_{i:02}_label_{i}x.png" for i in range(5))
    told = rf"Left out 40 of 48 images whose names do not fit label_pattern (\d+)$: {left_out} and 35 more."
    assert record["notes"] == [told]
    assert told in done.output and "Give --pattern" in done.output
    done = CliRunner().invoke(cli.app, [*command[:2], "every", *command[3:], "--pattern", r"label_(\d+)"])
    assert done.exit_code == 0 and "Left out" not in done.output
    record = json.loads((tmp_path / "every" / "sample.json").read_text())
    assert len(record["counts"]["any"]) == 12 and record["notes"] == []


@pytest.mark.parametrize("inside", ["all/a/deeper/x", "there/x", "all/../all/x"])
def test_a_sample_inside_its_source_is_refused(tmp_path, inside):
    source = fill(tmp_path / "all", CLASSES)
    (tmp_path / "there").symlink_to(source)
    before = sorted(source.rglob("*"))
    with refused("folder"):
        sample_files("all", inside, per_class=2)
    assert sorted(source.rglob("*")) == before
    sample_files("all", "all-few", per_class=2)  # beside it, though its name begins alike


@pytest.mark.parametrize(
    ("argument", "error", "words"),
    [
        ("SRC", FileNotFoundError, "no.zip some --per-class 1"),
        ("SRC", ValueError, "taken some --per-class 1"),
        ("DST", FileExistsError, "all taken --per-class 1"),
        ("DST", ValueError, "all all/some --per-class 1"),
        ("--per-class", ValueError, "all some --per-class 0"),
        ("--pattern", ValueError, "all some --per-class 1 --pattern x"),
    ],
)
def test_the_command_tells_what_was_typed(tmp_path, argument, error, words):
    pack(fill(tmp_path / "all", CLASSES), tmp_path / "all.zip")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("mine")
    with refused(argument, error) as told:
        CliRunner().invoke(cli.app, ["sample", *words.split()], catch_exceptions=False)
    assert not any(name in str(told.value) for name in ("`root`", "`folder`", "`per_class`", "root/<"))


def test_classes_with_fewer_files_are_said(tmp_path):
    fill(tmp_path / "all", [*both(CLASSES), *(f"val/{name}" for name in CLASSES)])
    (tmp_path / "all" / "train" / "a" / "0.png").unlink()
    done = CliRunner().invoke(cli.app, ["sample", "all", "some", "--per-class", "12"])
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "some" / "sample.json").read_text())
    every = dict.fromkeys(("10", "a", "b"), 12)
    assert record["counts"] == {"train": every | {"a": 11}, "validation": every, "test": every}
    told = "Classes with fewer files than were asked for: a of train (11 of 12)."
    assert record["notes"] == [told] and told in done.output and record["per_class"] == 12
    assert len(load("class_folder", root=tmp_path / "some").train) == 35
