"""Datasets: one contract for all of them, then real files that are wrong in every way people meet."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from PIL import Image

from qnnkit.data import DATASETS, ImageSplits, load, write_sample
from qnnkit.data import folders
from qnnkit.data.images import read
from qnnkit.data.sample import _Rows
from qnnkit.data.splits import stratified_split

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

    colour = load(name, **options, grey=False, image_size=12)
    assert colour.channels == 3 and colour.image_size == (12, 12) and len(colour.notes) == 2
    assert (colour.train.images == colour.train.images[:, :1]).all()


def test_batches(dataset: tuple[str, dict], monkeypatch: pytest.MonkeyPatch) -> None:
    name, options = dataset
    splits = load(name, **options)
    calls, take = [], _Rows.__getitem__
    monkeypatch.setattr(_Rows, "__getitem__", lambda rows, index: calls.append(1) or take(rows, index))
    fixed = splits.batches("test", 5, shuffle=False)
    fixed.set_epoch(3)
    images, labels = (torch.cat(tensors) for tensors in zip(*fixed, strict=True))
    assert images.equal(splits.test.images) and labels.equal(splits.test.labels)
    assert images.dtype == torch.uint8
    assert len(fixed) == len(calls) == -(-len(splits.test) // 5)  # a batch is taken whole

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
        ("test_fraction", 0.8),
        ("test_fraction", float("nan")),
        ("split_seed", -1),
        ("image_size", 0),
    ],
)
def test_an_option_out_of_range(option: str, value: float) -> None:
    with pytest.raises(ValueError) as caught:
        load("digits", **{option: value})
    assert re.fullmatch(ONE_SENTENCE.format(option), str(caught.value))


# Class folders: what is accepted


def test_names_are_sorted_as_people_count(tmp_path: Path) -> None:
    for name in ("10", "2", "b", "1"):
        for i in (1, 2, 10):
            put(tmp_path / name / f"x{i}.png", noise(4, 4, seed=i))
    splits = load("class_folder", root=str(tmp_path), validation_fraction=1 / 3, test_fraction=1 / 3)
    assert splits.classes == ("1", "2", "10", "b")
    assert sorted(all_rows(splits))[:3] == ["1/x1.png", "1/x10.png", "1/x2.png"]
    assert sorted(["x10", "x2", "x1"], key=folders._natural) == ["x1", "x2", "x10"]


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
    (tmp_path / "a" / "Thumbs.db").write_text("about")
    put(tmp_path / "loose.png", noise(8, 8))
    after = load("class_folder", root=tmp_path)
    assert after.fingerprint() == before.fingerprint() and after.notes == ()


def test_mixed_sizes_are_resized_and_said_once(tmp_path: Path) -> None:
    folder_of(tmp_path)
    checker = np.indices((64, 64)).sum(0) % 2 * 255
    put(tmp_path / "a" / "big.png", checker.astype(np.uint8))
    put(tmp_path / "b" / "small.png", noise(4, 5))
    splits = load("class_folder", root=tmp_path)
    assert splits.image_size == (8, 8)
    assert splits.notes == ("Resized 2 of 14 images to 8x8 (height x width).",)
    big = all_rows(splits)["a/big.png"].float()
    assert (big - 127.5).abs().max() < 10  # antialiased: a checkerboard becomes grey, not black or white


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
    assert splits.notes == ("Converted 6 of 18 images to 8-bit grey.",)
    for source in ("a/wide.png", "a/wide.tif"):
        assert np.abs(rows[source][0].numpy() - wide / 257).max() <= 0.5
    assert rows["b/alpha.png"][0, 0].tolist() == [255] * 4 + [10] * 4
    assert rows["a/palette.png"][0].numpy().tolist() == noise(8, 8).tolist()

    put(tmp_path / "b" / "colour.png", noise(8, 8, 3))
    colour = load("class_folder", root=tmp_path)
    assert colour.channels == 3
    assert all_rows(colour)["b/colour.png"].permute(1, 2, 0).numpy().tolist() == noise(8, 8, 3).tolist()
    assert colour.notes == ("Converted 18 of 19 images to 8-bit RGB.",)
    grey = load("class_folder", root=tmp_path, grey=True)
    assert grey.channels == 1 and grey.notes == ("Converted 7 of 19 images to 8-bit grey.",)


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
    assert all_rows(splits)["b/film.gif"][0].numpy().tolist() == noise(6, 4, seed=7).tolist()
    for suffix in ("png", "tif", "webp"):
        turned = read(tmp_path / "a" / f"turned.{suffix}", 0, "", None)
        assert turned.size == (24, 16) and (turned.pixels.reshape(24, 16, -1)[..., 0] == upright).all(), suffix


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
    os.mkfifo(b / "16pipe.png")
    (b / "17around.png").symlink_to(b / "17around.png")
    filters = list(warnings.filters)
    splits = load("class_folder", root=tmp_path)
    assert warnings.filters == filters
    assert splits.fingerprint() == clean.fingerprint()
    assert len(splits.notes) == 1
    note = splits.notes[0]
    unknown = "(cannot identify image file)"
    assert note.startswith(f"Left out 8 of 20 files that cannot be read: a/10text.png {unknown}, ")
    assert f"a/11empty.jpg {unknown}, a/12cut.png (" in note and "a/13bomb.png (Image size (900" in note
    assert note.endswith(f"a/14script.png {unknown} and 3 more.")


def test_a_bomb_that_pillow_only_warns_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of(tmp_path)
    put(tmp_path / "a" / "wide.png", noise(16, 10))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert "a/wide.png (Image size (160 pixels) exceeds" in load("class_folder", root=tmp_path).notes[0]


def test_a_class_without_one_good_file(tmp_path: Path) -> None:
    folder_of(tmp_path)
    for i in range(3):
        (tmp_path / "c" / f"{i}.png").parent.mkdir(exist_ok=True)
        (tmp_path / "c" / f"{i}.png").write_text("text")
    refused(ValueError, contains="Left out 3 of 15 files that cannot be read: c/0.png (cannot", root=tmp_path)


# Class folders: what is refused


def test_a_root_that_is_missing_or_a_file(tmp_path: Path) -> None:
    refused(FileNotFoundError, root=tmp_path / "nowhere")
    refused(NotADirectoryError, root=put(tmp_path / "file.png", noise(4, 4)))
    for nothing in (None, ""):
        refused(ValueError, contains="Pass root=", root=nothing)


def test_folders_without_classes_or_images(tmp_path: Path) -> None:
    refused(ValueError, contains="Images found: no folder.", root=tmp_path)
    folder_of(tmp_path, "a")
    refused(ValueError, contains="two or more folders", root=tmp_path)
    (tmp_path / "b").mkdir()
    refused(ValueError, contains="Images found: 0 in 'b', 6 in 'a'.", root=tmp_path)


def test_a_class_too_small_for_the_splits(tmp_path: Path) -> None:
    folder_of(tmp_path, "ab", n=40)
    for n in (1, 2, 3):
        folder_of(tmp_path, "c", n=n)
        fractions = {"test_fraction": 0.01, "validation_fraction": 0.01}
        refused(ValueError, contains=f"all three splits, but is {{'c': {n}}}", root=tmp_path, **fractions)
    parts = stratified_split(np.array([0] * 3 + [1] * 3), "ab", 0, (1 / 3, 1 / 3))
    assert [sorted(part // 3) for part in parts] == [[0, 1]] * 3  # three images each are enough


def test_too_much_for_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of(tmp_path)
    monkeypatch.setattr(folders, "MAX_BYTES", 11 * 64)
    refused(ValueError, "image_size", contains="Pass a smaller one", root=tmp_path)
    assert load("class_folder", root=tmp_path, image_size=4).image_size == (4, 4)


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
    for bad in ("..", "a/b", ""):
        odd = ImageSplits("x", splits.train, splits.validation, splits.test, (bad, *splits.classes[1:]))
        with pytest.raises(ValueError, match="`splits` must have classes that can be names of folders"):
            write_sample(odd, tmp_path / "x", per_class=1)
    assert not (tmp_path / "x").exists()


def test_a_sample_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = load("digits")
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
