"""qnnkit sample: some files of each class, as they are, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qnnkit import cli
from qnnkit.data import load, sample_files
from tests.toys import fill, no_workspace, refused

CLASSES = [f"{name}/{i}.png" for name in ("a", "b", "10") for i in range(12)]
FLAT = [f"{i:04}_{i % 3:02}.png" for i in range(36)]


@pytest.fixture(autouse=True)
def plain(monkeypatch, tmp_path):
    no_workspace(monkeypatch, tmp_path)


def both(names: list[str]) -> list[str]:
    return [f"{side}/{name}" for side in ("train", "test") for name in names]


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*.png")}


@pytest.mark.parametrize("sided", [False, True])
@pytest.mark.parametrize(("files", "pattern"), [(CLASSES, None), (FLAT, r"(\d+)$")], ids=["classes", "flat"])
def test_each_class_of_each_side_is_sampled_alike(tmp_path, files, pattern, sided):
    files = both(files) if sided else files
    source = fill(tmp_path / "all", files)
    (source / "LICENCE.txt").write_text("not an image")

    def sampled(name: str, seed: int = 3, per_class: int = 4) -> Path:
        return sample_files(source, tmp_path / name, seed=seed, per_class=per_class, pattern=pattern)

    there = sampled("some")
    record = json.loads((there / "sample.json").read_text())
    assert names(there) == set(record["files"]) < set(files)
    assert set(record["counts"]) == ({"train", "test"} if sided else {"any"})
    assert all([*counts.values()] == [4, 4, 4] for counts in record["counts"].values())
    assert (record["seed"], record["source"]) == (3, str(source))
    for name in record["files"]:
        assert (there / name).read_bytes() == (source / name).read_bytes()
    dataset, shares = "flat_folder" if pattern else "class_folder", {"validation_fraction": 0.3}
    assert (
        load(dataset, root=there, test_fraction=0.3, **shares).classes == load(dataset, root=source).classes
    )
    assert names(sampled("again")) == names(there) != names(sampled("other", seed=4))
    assert names(sampled("fewer", per_class=2)) < names(there)


def test_what_is_left_out_or_too_few_is_counted_named_and_told(tmp_path):
    fill(tmp_path / "all", [f"id_{i:02}_label_{i % 12}{'x' * (i % 12 < 10)}.png" for i in range(47)])
    command = ["sample", "all", "some", "--per-class", "4", "--pattern", r"(\d+)$"]
    done = CliRunner().invoke(cli.app, command)
    assert done.exit_code == 0 and done.output.startswith("7 images in "), done.output
    record = json.loads((tmp_path / "some" / "sample.json").read_text())
    assert record["counts"] == {"any": {"10": 4, "11": 3}}
    left_out = ", ".join(f"id_{i:02}_label_{i}x.png" for i in range(5))
    assert record["notes"] == [
        rf"Left out 40 of 47 images whose names do not fit label_pattern (\d+)$: {left_out} and 35 more.",
        "Classes with fewer files than were asked for: 11 of any (3 of 4).",
    ]
    assert all(note in done.output for note in record["notes"])


@pytest.mark.parametrize(
    ("argument", "error", "words"),
    [
        ("SRC", FileNotFoundError, "no.zip some --per-class 1"),
        ("SRC", ValueError, "taken some --per-class 1"),
        ("DST", FileExistsError, "all taken --per-class 1"),
        *(
            ("DST", ValueError, f"all {into} --per-class 1")
            for into in ("all/a/x", "there/x", "all/../all/x")
        ),
        ("--per-class", ValueError, "all some --per-class 0"),
        ("--pattern", ValueError, "all some --per-class 1 --pattern ("),
    ],
)
def test_the_command_tells_what_was_typed(tmp_path, argument, error, words):
    (tmp_path / "there").symlink_to(fill(tmp_path / "all", CLASSES))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*.png"))
    with refused(argument, error) as told:
        CliRunner().invoke(cli.app, ["sample", *words.split()], catch_exceptions=False)
    assert not any(name in str(told.value) for name in ("`root`", "`folder`", "`per_class`", "root/<"))
    assert sorted(tmp_path.rglob("*.png")) == before
