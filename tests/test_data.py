"""Datasets: one contract for all of them, then real files that are wrong in every way people meet."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from PIL import Image

from qnnkit.data import DATASETS, ImageSplits, load, write_sample
from qnnkit.data import images as images_module
from qnnkit.data.sample import _Rows, stratified_split

ONE_SENTENCE = r"Argument `{}` must .+, but is .+\. [A-Z].+\."


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def put(path: Path, pixels: np.ndarray | Image.Image, **options: object) -> Path:
    """Writes one image; the suffix chooses the format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(path, **options)
    return path


def folder_of(root: Path, classes: str = "ab", n: int = 6, size: tuple[int, ...] = (8, 8)) -> Path:
    for k, name in enumerate(classes):
        for i in range(n):
            put(root / name / f"{i}.png", noise(*size, seed=100 * k + i))
    return root


def all_rows(splits: ImageSplits) -> dict[str, torch.Tensor]:
    """Every image by its source."""
    parts = (splits.train, splits.validation, splits.test)
    return {source: image for part in parts for source, image in zip(part.sources, part.images, strict=True)}


def refused(error: type[Exception], argument: str = "root", contains: str = "", **options: object) -> str:
    """Loads a class folder, expects one sentence about `argument`, and returns it."""
    with pytest.raises(error) as caught:
        load("class_folder", **options)
    text = str(caught.value)
    assert re.fullmatch(ONE_SENTENCE.format(argument), text), text
    assert contains in text
    return text


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Root may read everything, so a check of permissions is made as somebody else."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that another user can reach; pytest's own is closed to them."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


# Every dataset


@pytest.fixture(params=sorted(DATASETS))
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict]:
    if request.param == "class_folder":
        return request.param, {"root": folder_of(tmp_path / "images", "abc", n=20, size=(6, 4))}
    return request.param, {}


def test_contract(dataset: tuple[str, dict]) -> None:
    name, options = dataset
    splits = load(name, **options)
    assert splits.name == name and splits.notes == ()
    sources, rows = set(), 0
    for part in (splits.train, splits.validation, splits.test):
        assert part.images.dtype == torch.uint8 and part.labels.dtype == torch.int64
        assert part.images.shape == (len(part), splits.channels, *splits.image_size)
        assert part.labels.shape == (len(part),) and len(part.sources) == len(part)
        assert part.labels.unique().tolist() == list(range(splits.n_classes))
        sources |= set(part.sources)
        rows += len(part)
    assert len(sources) == rows  # no image is in two splits

    total = torch.cat([splits.train.labels, splits.validation.labels, splits.test.labels])
    assert rows == {"digits": 1797, "class_folder": 60}[name]
    for part in (splits.validation, splits.test):
        assert len(part) == pytest.approx(0.2 * rows, abs=1)
        expected = total.bincount() * len(part) / rows
        assert (part.labels.bincount() - expected).abs().max() <= 1  # stratified

    again, other = load(name, **options), load(name, **options, split_seed=1)
    assert again.fingerprint() == splits.fingerprint() and again.test.sources == splits.test.sources
    assert other.fingerprint() != splits.fingerprint() and other.test.sources != splits.test.sources
    wider = load(name, **options, test_fraction=0.4, validation_fraction=0.1)
    assert len(wider.test) == pytest.approx(0.4 * rows, abs=1)

    colour = load(name, **options, grey=False, image_size=(6, 5))
    assert colour.channels == 3 and colour.image_size == (6, 5)
    assert (colour.train.images == colour.train.images[:, :1]).all()
    assert len(colour.notes) == 2
    assert load(name, **options, image_size=12).image_size == (12, 12)


def test_batches(dataset: tuple[str, dict], monkeypatch: pytest.MonkeyPatch) -> None:
    name, options = dataset
    splits = load(name, **options)
    monkeypatch.setattr(_Rows, "__getitem__", None)  # a batch is taken whole
    fixed = splits.batches("test", 5, shuffle=False)
    fixed.set_epoch(3)
    images, labels = (torch.cat(tensors) for tensors in zip(*fixed, strict=True))
    assert images.equal(splits.test.images) and labels.equal(splits.test.labels)
    assert images.dtype == torch.uint8
    assert len(fixed) == -(-len(splits.test) // 5) and fixed.num_workers == 0

    def order(seed: int, epoch: int, before: int = 0) -> torch.Tensor:
        loader = splits.batches("train", 7, shuffle=True, seed=seed)
        for _ in range(before):
            list(loader)
        loader.set_epoch(epoch)
        return torch.cat([images for images, _ in loader])

    state = torch.get_rng_state()
    first = order(0, 4)
    assert order(0, 4, before=2).equal(first)  # what ran earlier in this process does not matter
    assert not order(0, 5).equal(first) and not order(1, 4).equal(first) and not order(1, 3).equal(first)
    assert torch.get_rng_state().equal(state)
    assert len(first.flatten(1).unique(dim=0)) == len(splits.train.images.flatten(1).unique(dim=0))


def test_batches_through_accelerate(dataset: tuple[str, dict]) -> None:
    name, options = dataset
    splits = load(name, **options)

    def collect(loader) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(images.cpu(), labels.cpu()) for images, labels in loader]

    def same(left: list, right: list) -> bool:
        return len(left) == len(right) and all(
            a.equal(c) and b.equal(d) for (a, b), (c, d) in zip(left, right, strict=True)
        )

    plain = splits.batches("train", 8, shuffle=True, seed=2)
    prepared = Accelerator().prepare(splits.batches("train", 8, shuffle=True, seed=2))
    state = torch.get_rng_state()
    for epoch in (3, 0, 7):
        plain.set_epoch(epoch)
        prepared.set_epoch(epoch)
        expected = collect(plain)
        assert same(collect(prepared), expected)
        rest = skip_first_batches(prepared, 2)  # resumed within an epoch
        rest.set_epoch(epoch)  # older versions of Accelerate start again from 0
        assert same(collect(rest), expected[2:])
    assert torch.get_rng_state().equal(state)
    assert len(prepared) == len(plain)

    for process in range(2):
        half = prepare_data_loader(
            splits.batches("train", 8, shuffle=True, seed=2),
            num_processes=2,
            process_index=process,
            put_on_device=False,
        )
        half.set_epoch(7)
        got = collect(half)
        full = len(splits.train) // 16
        assert same(got[:full], expected[process::2][:full])  # every second batch
        rest = skip_first_batches(half, 2)
        rest.set_epoch(7)
        assert same(collect(rest), got[2:])
        assert len(got) == -(-len(splits.train) // 16) and all(len(labels) == 8 for _, labels in got)


def test_a_batch_size_must_be_positive_and_the_split_known() -> None:
    splits = load("digits")
    for size in (0, -1):
        with pytest.raises(ValueError, match="`batch_size` must be above 0"):
            splits.batches("train", size, shuffle=True)
    with pytest.raises(ValueError, match="Did you mean 'validation'"):
        splits.batches("valid", 8, shuffle=False)
    with pytest.raises(ValueError, match=r"`dataset`.*Did you mean 'digits'.*class_folder"):
        load("digit")


# Digits


def test_digits_are_rescaled_and_take_no_root(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    splits = load("digits", root="")  # the notebooks' literal for "none"
    raw = load_digits()
    assert splits.classes == tuple("0123456789") and splits.train.images.max() == 255
    for source, image in list(all_rows(splits).items())[::100]:
        index = int(source.removeprefix("digits/"))
        assert np.abs(image[0].numpy() - raw.images[index] * 255 / 16).max() <= 0.5
    with pytest.raises(ValueError, match=r"`root` must be left out.*'class_folder'"):
        load("digits", root=tmp_path)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("test_fraction", 0),
        ("validation_fraction", 1.0),
        ("test_fraction", 0.8),
        ("split_seed", -1),
        ("image_size", 1),
        ("image_size", 1_000_000),
        ("image_size", (8, 0)),
        ("image_size", 4096),  # each is allowed, all together are not
    ],
)
def test_an_option_out_of_range(option: str, value: object) -> None:
    with pytest.raises(ValueError) as caught:
        load("digits", **{option: value})
    assert re.fullmatch(ONE_SENTENCE.format(option), str(caught.value))


@pytest.mark.parametrize("value", [True, "8", 8.0, (8,), (8.0, 8)])
def test_an_image_size_of_the_wrong_type(value: object) -> None:
    with pytest.raises(TypeError, match="`image_size` must be an int"):
        load("digits", image_size=value)


# Class folders: what is accepted


def test_names_are_sorted_as_people_count(tmp_path: Path) -> None:
    for name in ("10", "2", "b", "1"):
        for i in (1, 2, 10):
            put(tmp_path / name / f"x{i}.png", noise(4, 4, seed=i))
    splits = load("class_folder", root=str(tmp_path), validation_fraction=1 / 3, test_fraction=1 / 3)
    assert splits.classes == ("1", "2", "10", "b")
    assert sorted(all_rows(splits))[:3] == ["1/x1.png", "1/x10.png", "1/x2.png"]
    key = images_module._natural
    assert sorted(["x10", "x2", "x1"], key=key) == ["x1", "x2", "x10"]
    assert key("e\u0301") == key("\u00e9")  # macOS and Linux spell an accent differently


def test_every_suffix_and_format(tmp_path: Path) -> None:
    folder_of(tmp_path)
    pixels = np.full((8, 8), 77, dtype=np.uint8)
    for suffix in ("PNG", "jpg", "Jpeg", "bmp", "gif", "webp", "tif", "TIFF"):
        put(tmp_path / "a" / f"sevens.{suffix}", pixels)
    rows = all_rows(load("class_folder", root=tmp_path))
    named = [source for source in rows if "sevens" in source]
    assert len(named) == 8
    for source in named:
        assert (rows[source].float() - 77).abs().max() <= 2, source


def test_hidden_and_foreign_files_are_ignored(tmp_path: Path) -> None:
    folder_of(tmp_path)
    before = load("class_folder", root=tmp_path)
    for name in (".DS_Store", "a/._0.png", "a/.ipynb_checkpoints/0.png", "__MACOSX/a/0.png", ".git/0.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"no image")
    (tmp_path / "readme.txt").write_text("about")
    assert load("class_folder", root=tmp_path).notes == before.notes == ()

    (tmp_path / "a" / "notes.txt").write_text("about")
    (tmp_path / "b" / "Thumbs.db").write_text("about")
    put(tmp_path / "b" / "deeper" / "0.png", noise(8, 8))
    put(tmp_path / "loose.png", noise(8, 8))
    after = load("class_folder", root=tmp_path)
    assert after.fingerprint() == before.fingerprint()
    assert after.notes == (
        "Ignored 2 files without an image's suffix: a/notes.txt, b/Thumbs.db.",
        "Ignored 1 folder inside class folders: b/deeper.",
        "Ignored 1 image outside the class folders: loose.png.",
    )


def test_mixed_sizes_are_resized_and_said_once(tmp_path: Path) -> None:
    folder_of(tmp_path)
    checker = np.indices((64, 64)).sum(0) % 2 * 255
    put(tmp_path / "a" / "big.png", checker.astype(np.uint8))
    put(tmp_path / "b" / "small.png", noise(4, 5))
    splits = load("class_folder", root=tmp_path)
    assert splits.image_size == (8, 8)
    assert splits.notes == ("Resized 2 of 14 images to 8x8 (height x width), from 64x64, 4x5.",)
    big = all_rows(splits)["a/big.png"].float()
    assert (big - 127.5).abs().max() < 10  # antialiased: a checkerboard becomes grey, not black or white
    tie = folder_of(tmp_path / "tie", "a", n=4)
    folder_of(tie, "b", n=4, size=(9, 7))
    assert load("class_folder", root=tie).image_size == (8, 8)  # 64 pixels against 63


def test_mixed_modes_are_converted_and_said_once(tmp_path: Path) -> None:
    folder_of(tmp_path)
    wide = np.linspace(0, 65535, 64).round().astype(np.uint16).reshape(8, 8)
    put(tmp_path / "a" / "wide.png", wide)
    put(tmp_path / "a" / "wide.tif", wide)
    put(tmp_path / "a" / "bits.png", Image.fromarray(noise(8, 8)).convert("1"))
    put(tmp_path / "a" / "palette.png", Image.fromarray(noise(8, 8)).convert("P"))
    half = np.zeros((8, 8, 2), dtype=np.uint8)
    half[:, 4:] = (10, 255)
    put(tmp_path / "b" / "alpha.png", half)
    put(tmp_path / "b" / "opaque.png", Image.fromarray(noise(8, 8)).convert("LA"))
    splits = load("class_folder", root=tmp_path)
    rows = all_rows(splits)
    assert splits.channels == 1
    assert splits.notes == (
        "Converted 6 of 18 images to 8-bit grey, from mode I;16 (2), LA (2), 1 (1), P (1).",
        "Laid 1 image with transparent parts on white.",
    )
    for source in ("a/wide.png", "a/wide.tif"):
        assert np.abs(rows[source][0].numpy() - wide / 257).max() <= 0.5
    assert rows["b/alpha.png"][0, 0].tolist() == [255] * 4 + [10] * 4
    assert rows["a/palette.png"][0].numpy().tolist() == noise(8, 8).tolist()

    put(tmp_path / "b" / "colour.png", noise(8, 8, 3))
    colour = load("class_folder", root=tmp_path)
    assert colour.channels == 3
    assert all_rows(colour)["b/colour.png"].permute(1, 2, 0).numpy().tolist() == noise(8, 8, 3).tolist()
    assert "Converted 18 of 19 images to 8-bit RGB" in colour.notes[0]
    grey = load("class_folder", root=tmp_path, grey=True)
    assert grey.channels == 1 and "RGB (1)" in grey.notes[0]


def test_orientation_and_first_frame(tmp_path: Path) -> None:
    folder_of(tmp_path, size=(6, 4))
    upright = np.repeat(np.repeat(noise(3, 2), 8, 0), 8, 1)  # (24, 16)
    exif = Image.Exif()
    exif[0x0112] = 6  # shown turned by 90 degrees clockwise
    for suffix in ("png", "tif", "webp"):
        options = {"lossless": True} if suffix == "webp" else {}
        put(tmp_path / "a" / f"turned.{suffix}", np.rot90(upright).copy(), exif=exif, **options)
    frames = [Image.fromarray(noise(6, 4, seed=seed)) for seed in (7, 8)]
    put(tmp_path / "b" / "film.gif", frames[0], save_all=True, append_images=frames[1:])
    splits = load("class_folder", root=tmp_path)
    assert "Took only the first frame of 1 file with several." in splits.notes
    assert all_rows(splits)["b/film.gif"][0].numpy().tolist() == noise(6, 4, seed=7).tolist()
    assert "from 24x16." in splits.notes[0]
    rows = all_rows(load("class_folder", root=tmp_path, image_size=(24, 16), grey=True))
    for suffix in ("png", "tif", "webp"):
        assert rows[f"a/turned.{suffix}"][0].numpy().tolist() == upright.tolist(), suffix


# Class folders: what is damaged


def bomb() -> bytes:
    """A PNG of a few bytes that claims 30,000 x 30,000 pixels."""
    buffer = io.BytesIO()
    Image.new("1", (8, 8)).save(buffer, "PNG")
    data = bytearray(buffer.getvalue())
    data[16:24] = (30_000).to_bytes(4, "big") * 2
    data[29:33] = zipfile.crc32(bytes(data[12:29])).to_bytes(4, "big")
    return bytes(data)


def test_damaged_files_are_named_and_counted(tmp_path: Path) -> None:
    folder_of(tmp_path)
    clean = load("class_folder", root=tmp_path)
    a, b = tmp_path / "a", tmp_path / "b"
    (a / "10text.png").write_text("I am not an image")
    (a / "11empty.jpg").write_bytes(b"")
    whole = put(a / "12cut.png", noise(64, 64)).read_bytes()
    (a / "12cut.png").write_bytes(whole[: len(whole) // 2])
    (a / "13bomb.png").write_bytes(bomb())
    (a / "14script.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\nshowpage\n")
    put(b / "15float.tif", Image.fromarray(np.zeros((8, 8), dtype=np.float32)))
    put(b / "16dot.png", noise(1, 8))
    filters = list(warnings.filters)
    splits = load("class_folder", root=tmp_path)
    assert warnings.filters == filters
    assert splits.fingerprint() == clean.fingerprint()
    assert len(splits.notes) == 1
    note = splits.notes[0]
    assert note.startswith("Left out 7 of 19 files that cannot be read: a/10text.png (not an image), ")
    assert "a/11empty.jpg (not an image), a/12cut.png (" in note
    assert note.endswith("a/13bomb.png (too many pixels), a/14script.png (not an image) and 2 more.")


def test_a_bomb_that_pillow_only_warns_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of(tmp_path)
    put(tmp_path / "a" / "wide.png", noise(16, 10))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert "a/wide.png (too many pixels)" in load("class_folder", root=tmp_path).notes[0]


def test_links_in_a_circle_and_pipes_do_not_hang(tmp_path: Path) -> None:
    folder_of(tmp_path)
    a = tmp_path / "a"
    (a / "around.png").symlink_to(a / "around.png")
    (a / "lost.png").symlink_to(a / "nowhere.png")
    (a / "up").symlink_to(tmp_path)
    (tmp_path / "c.png").symlink_to(tmp_path / "c.png")
    os.mkfifo(a / "pipe.png")
    splits = load("class_folder", root=tmp_path)
    assert splits.classes == ("a", "b") and len(all_rows(splits)) == 12
    assert any("Left out 3 of 15 files" in note and "not a regular file" in note for note in splits.notes)
    (tmp_path / "again").symlink_to(tmp_path)
    refused(ValueError, contains="'again'", root=tmp_path)


def test_a_class_without_one_good_file(tmp_path: Path) -> None:
    folder_of(tmp_path)
    for i in range(3):
        (tmp_path / "c" / f"{i}.png").parent.mkdir(exist_ok=True)
        (tmp_path / "c" / f"{i}.png").write_text("text")
    refused(ValueError, contains="3 files of 'c' can be read: c/0.png (not an image)", root=tmp_path)


# Class folders: what is refused


def test_a_root_that_is_missing_or_a_file(tmp_path: Path) -> None:
    refused(FileNotFoundError, root=tmp_path / "nowhere")
    refused(FileNotFoundError, root=tmp_path / ("x" * 200))
    refused(OSError, root=tmp_path / ("x" * 300))
    refused(NotADirectoryError, root=put(tmp_path / "file.png", noise(4, 4)))
    for nothing in (None, ""):
        refused(ValueError, contains="Pass root=", root=nothing)


def test_folders_without_classes(tmp_path: Path) -> None:
    refused(ValueError, contains="hold one folder of images per class", root=tmp_path)
    put(tmp_path / "0.png", noise(4, 4))
    refused(ValueError, contains="It holds 1 image but no folder.", root=tmp_path)
    folder_of(tmp_path, "a")
    refused(ValueError, contains="It holds one, 'a'", root=tmp_path)
    (tmp_path / "b").mkdir()
    refused(ValueError, contains="No images lie in 'b'", root=tmp_path)


def test_images_one_level_too_deep(tmp_path: Path) -> None:
    folder_of(tmp_path / "train")
    text = refused(ValueError, contains="'a' in it is a class", root=tmp_path)
    assert repr(str(tmp_path / "train")) in text


@pytest.mark.parametrize("n", [1, 2])
def test_a_class_too_small_for_three_splits(tmp_path: Path, n: int) -> None:
    folder_of(tmp_path, "ab")
    folder_of(tmp_path, "c", n=n)
    refused(ValueError, contains=f"but is {{'c': {n}}}", root=tmp_path)


def test_fractions_that_leave_a_class_out(tmp_path: Path) -> None:
    folder_of(tmp_path, "a", n=40)
    folder_of(tmp_path, "b", n=3)
    text = refused(ValueError, "test_fraction", root=tmp_path, test_fraction=0.01, validation_fraction=0.01)
    assert "The 3 images of 'b' are too few" in text
    parts = stratified_split(np.array([0] * 3 + [1] * 3), "ab", 0, 1 / 3, 1 / 3)
    assert [sorted(part // 3) for part in parts] == [[0, 1]] * 3  # three images each are enough


def test_too_much_for_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of(tmp_path)
    monkeypatch.setattr(images_module, "MAX_BYTES", 12 * 64)
    assert load("class_folder", root=tmp_path).image_size == (8, 8)
    refused(ValueError, "image_size", contains="Pass a smaller one", root=tmp_path, grey=False)
    refused(ValueError, "image_size", root=tmp_path, image_size=9)
    monkeypatch.setattr(images_module, "MAX_BYTES", 11 * 64)
    refused(ValueError, "image_size", contains="but is None", root=tmp_path)


def test_without_permission(open_folder: Path) -> None:
    root = folder_of(open_folder / "images")
    closed = root / "a" / "3.png"
    closed.chmod(0)
    load("class_folder", root=root)  # root may; whatever is imported late is imported now
    with unprivileged():
        splits = load("class_folder", root=root)
        assert splits.notes == ("Left out 1 of 12 files that cannot be read: a/3.png (permission denied).",)
        assert len(all_rows(splits)) == 11
    for folder, blamed in ((root / "a", root / "a"), (root, root), (open_folder, root)):
        mode = folder.stat().st_mode
        folder.chmod(0)
        try:
            with unprivileged():
                refused(PermissionError, contains=f"Reading {blamed} failed", root=root)
        finally:
            folder.chmod(mode)


# Samples


@pytest.mark.parametrize("channels", [1, 3])
def test_a_sample_loads_back_with_equal_pixels(tmp_path: Path, channels: int) -> None:
    splits = load("digits", grey=channels == 1, image_size=None)
    there = write_sample(splits, tmp_path / "new" / "sample", per_class=6, seed=3)
    assert there == tmp_path / "new" / "sample" and list(there.parent.iterdir()) == [there]
    record = json.loads((there / "sample.json").read_text())
    assert record["fingerprint"] == splits.fingerprint() and record["dataset"] == "digits"
    assert (record["per_class"], record["seed"], record["split"]) == (6, 3, "train")

    back = load("class_folder", root=there)
    assert back.classes == splits.classes and back.channels == channels and back.notes == ()
    originals, rows = all_rows(splits), all_rows(back)
    assert len(rows) == 60
    for name, sources in record["sources"].items():
        assert len(set(sources)) == 6 and set(sources) <= set(splits.train.sources)
        for number, source in enumerate(sources):
            assert rows[f"{name}/{number:04d}.png"].equal(originals[source])

    def taken(folder: str, **options: int) -> set[str]:
        sample = write_sample(splits, tmp_path / folder, **options)
        return set().union(*json.loads((sample / "sample.json").read_text())["sources"].values())

    few = taken("few", per_class=2, seed=3)
    assert few < set().union(*record["sources"].values()) and few != taken("other", per_class=2, seed=4)


def test_a_sample_overwrites_nothing(tmp_path: Path) -> None:
    splits = load("digits")
    (tmp_path / "empty").mkdir()
    write_sample(splits, tmp_path / "empty", per_class=1)
    (tmp_path / "file").write_text("mine")
    for taken in ("empty", "file"):
        with pytest.raises(FileExistsError, match="must be absent or an empty folder"):
            write_sample(splits, tmp_path / taken, per_class=2)
    assert len(list(tmp_path.rglob("*.png"))) == 10 and (tmp_path / "file").read_text() == "mine"
    with pytest.raises(
        ValueError, match=r"`per_class` must be at most 10\d, the training images of class '\d'"
    ):
        write_sample(splits, tmp_path / "x", per_class=200)
    with pytest.raises(ValueError, match="`per_class` must be above 0"):
        write_sample(splits, tmp_path / "x", per_class=0)
    for bad in ("..", "a/b", "", ".hidden", "a\\b"):
        odd = ImageSplits("x", splits.train, splits.validation, splits.test, (bad, *splits.classes[1:]))
        with pytest.raises(ValueError, match="`splits` must have classes that can be names of folders"):
            write_sample(odd, tmp_path / "x", per_class=1)
    assert not (tmp_path / "x").exists()


def test_a_sample_that_cannot_be_written_leaves_nothing(
    open_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = load("digits")
    open_folder.chmod(0o755)
    with unprivileged(), pytest.raises(OSError, match=r"`folder` must be in a writable place.*denied"):
        if os.geteuid() == open_folder.stat().st_uid:
            open_folder.chmod(0o555)
        write_sample(splits, open_folder / "sample", per_class=1)
    open_folder.chmod(0o755)
    assert list(open_folder.iterdir()) == []
    with pytest.raises(OSError, match="`folder` must be in a writable place"):
        write_sample(splits, put(tmp_path / "file.png", noise(4, 4)) / "sample", per_class=1)

    save, written = Image.Image.save, []

    def full(image: Image.Image, path: Path) -> None:
        if len(written) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(path)
        save(image, path)

    monkeypatch.setattr(Image.Image, "save", full)
    with pytest.raises(OSError, match=r"Nothing was written \(No space left on device\)"):
        write_sample(splits, tmp_path / "sample", per_class=1)
    assert len(written) == 3 and [path.name for path in tmp_path.iterdir()] == ["file.png"]


def test_a_real_limit_on_file_size_while_a_sample_is_written(tmp_path: Path) -> None:
    pytest.importorskip("resource")
    code = """
import resource, sys
from qnnkit.data import load, write_sample
splits = load("digits", image_size=64)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    write_sample(splits, sys.argv[1], per_class=1)
except OSError as error:
    print(error)
"""
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "sample")], capture_output=True, text=True, check=True
    )
    assert run.stdout.startswith("Argument `folder` must be in a writable place"), run.stdout + run.stderr
    assert list(tmp_path.iterdir()) == []


# Real images


@pytest.mark.data
def test_arabic_characters_as_a_class_folder(tmp_path: Path) -> None:
    place = os.environ.get("QNNKIT_TEST_DATA")
    archive = Path(place or "", "ahcd", "ahcd_test_png.zip")
    if not place or not archive.is_file():
        pytest.skip("QNNKIT_TEST_DATA has no ahcd/ahcd_test_png.zip")
    with zipfile.ZipFile(archive) as members:
        for name in members.namelist():
            if found := re.fullmatch(r"test/(id_\d+_label_([123])\.png)", name):
                target = tmp_path / found[2] / found[1]
                target.parent.mkdir(exist_ok=True)
                target.write_bytes(members.read(name))
    splits = load("class_folder", root=tmp_path)
    assert splits.classes == ("1", "2", "3") and splits.notes == ()
    assert (splits.channels, splits.image_size) == (1, (32, 32))
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [216, 72, 72]
    assert splits.train.labels.bincount().tolist() == [72, 72, 72]
    assert splits.train.images.float().std() > 30  # strokes, not blanks
