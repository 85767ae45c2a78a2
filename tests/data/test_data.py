"""Datasets: one contract for all of them, then real files with every fault that users meet."""

import itertools
import re
import shutil
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from qnnkit.data import DATASETS, ImageSplits, images, kind, load, places
from qnnkit.data.images import read
from qnnkit.data.splits import SPLITS, share_of, split_rows
from tests.toys import ahcd_files, archive, fill, idx_files, noise, put, refused


def folder_of(root: Path, classes: Sequence[str] = "ab", n: int = 6, size: tuple[int, ...] = (8, 8)) -> Path:
    return fill(root, [f"{name}/{i}.png" for name in classes for i in range(n)], 100, size)


def all_rows(splits: ImageSplits) -> dict[str, torch.Tensor]:
    """Source -> image, for every image."""
    parts = map(splits.split, SPLITS)
    return {source: image for part in parts for source, image in zip(part.sources, part.images, strict=True)}


SMALL = {
    "digits": lambda folder: "",  # the notebooks' literal for "none"
    "class_folder": lambda folder: folder_of(folder, ("2", "10", "b"), n=20, size=(6, 4)),
    "flat_folder": lambda folder: fill(folder, [f"{i:04}_{i % 3:02}.png" for i in range(60)], size=(6, 4)),
    "ahcd": ahcd_files,
}
SMALL |= dict.fromkeys(
    ("mnist", "fashion_mnist", "kmnist"),
    lambda folder: archive(folder.with_suffix(".zip"), idx_files((40, 20), (6, 4), ".gz")),
)
"""Makes a small instance of a dataset; a third is the given test part, if it has one."""
SIZES = {"digits": (1079, 359, 359), "ahcd": (84, 28, 56)}
SIZES |= dict.fromkeys(("mnist", "fashion_mnist", "kmnist"), (30, 10, 20))
"""Sizes of train, validation and test; files are split by the hashes of their names: see test_placed."""


@pytest.mark.parametrize("name", sorted(name for name in DATASETS if kind(name) == "images"))
def test_contract(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    options: dict[str, Any] = {"root": SMALL[name](tmp_path / "images")}
    splits = load(name, **options)
    assert splits.name == name and splits.notes == ()
    assert name != "class_folder" or splits.classes == ("2", "10", "b")  # sorted as people count
    parts = [splits.split(part) for part in SPLITS]
    sizes, total = [*map(len, parts)], torch.cat([part.labels for part in parts]).bincount()
    assert len(all_rows(splits)) == sum(sizes) == sum(SIZES.get(name, (60,)))  # no image occurs twice
    for part in parts:
        assert part.images.dtype == torch.uint8 and part.labels.dtype == torch.int64
        assert part.images.shape == (len(part), splits.channels, *splits.image_size)
        assert part.labels.shape == (len(part),) and len(part.sources) == len(part)
        assert part.labels.unique().tolist() == list(range(splits.n_classes)) == list(range(len(total)))
        if name in SIZES:
            assert (part.labels.bincount() - total * len(part) / sum(sizes)).abs().max() <= 1  # stratified
    assert tuple(sizes) == SIZES.get(name, tuple(sizes))

    again, other = load(name, **options), load(name, **options, split_seed=1)
    assert again.fingerprint() == splits.fingerprint() and again.test.sources == splits.test.sources
    assert other.validation.sources != splits.validation.sources
    assert (other.test.sources == splits.test.sources) == (name in SIZES and name != "digits")
    some = load(name, **options, train_fraction=0.25)
    assert some.notes == () and {*some.train.sources} < {*splits.train.sources}
    assert some.test.sources == splits.test.sources and some.test.images.equal(splits.test.images)

    colour = load(name, **options, grey=False, image_size=12)
    assert colour.channels == 3 and colour.image_size == (12, 12) and len(colour.notes) == 2
    assert (colour.train.images == colour.train.images[:, :1]).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=12), st.integers(1, 1000), st.integers(0, 9))
def test_a_share_has_the_requested_total(sizes: list[int], thousandths: int, seed: int) -> None:
    counts, labels = torch.tensor(sizes), torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    fraction, smaller = thousandths / 1000, share_of(len(labels), thousandths / 2000, seed, labels)
    rows = share_of(len(labels), fraction, seed, labels)
    rows = torch.arange(len(labels)) if rows is None else rows
    least = torch.floor(fraction * counts.double() + 1e-9).clamp(min=1)
    assert (labels[rows].bincount(minlength=len(sizes)) >= least).all()
    beyond = len(rows) - fraction * sum(sizes)
    assert abs(beyond) <= 0.5 + 1e-9 or 0 < beyond <= max(least.sum() - fraction * sum(sizes), len(sizes))
    assert {*smaller.tolist()} <= {*rows.tolist()}


def test_each_seed_draws_other_samples_and_rounds_up_other_classes() -> None:
    labels = torch.arange(28).repeat_interleave(432)  # the training part of AHCD: nine tenths of 480 each
    drawn = [share_of(len(labels), 3085, seed, labels) for seed in range(4)]
    counts = [tuple(labels[rows].bincount().tolist()) for rows in drawn]
    assert all(sum(each) == 3085 and set(each) == {110, 111} for each in counts)
    assert len({*counts}) > 1 and not torch.equal(drawn[0][:110], drawn[1][:110])


def test_the_order_of_batches_depends_only_on_seed_and_epoch() -> None:
    splits = load("digits", train_fraction=0.05)

    def order(split: str, seed: int, epoch: int) -> torch.Tensor:
        loader = splits.batches(split, 7, shuffle=split == "train", seed=seed)
        loader.set_epoch(epoch)
        return torch.cat([images for images, _ in loader])

    orders = [order("train", *each) for each in ((0, 4), (0, 5), (1, 4), (1, 3))]
    assert order("train", 0, 4).equal(orders[0]) and order("test", 0, 3).equal(splits.test.images)
    assert len({tuple(each.flatten().tolist()) for each in orders}) == 4
    rows = [sorted(each.flatten(1).tolist()) for each in (*orders, splits.train.images)]
    assert all(each == rows[0] for each in rows)


def test_digits_are_rescaled() -> None:
    from sklearn.datasets import load_digits

    splits, raw = load("digits"), load_digits()
    assert splits.classes == tuple("0123456789") and splits.train.images.max() == 255
    for source, image in list(all_rows(splits).items())[::100]:
        index = int(source.removeprefix("digits/"))
        assert np.abs(image[0].numpy() - raw.images[index] * 255 / 16).max() <= 0.5


WRONG = [
    ("root", "digits", {"root": "images"}),
    ("image_size", "digits", {"image_size": 8.5}),
]


@pytest.mark.parametrize(("argument", "name", "options"), WRONG)
def test_arguments_that_raise_an_error(argument: str, name: str, options: dict[str, Any]) -> None:
    with refused(argument, (ValueError, FileNotFoundError)):
        load(name, **options)


STRAY = "Left out 8 of {} images that are in no class folder: "
OTHERS = f"Left out 8 files that are not images ({', '.join(places.SUFFIXES)}): "
NO_TEST = "There is no test part: test_fraction of the training part is used."
LAYOUTS = {
    "classes of folders alone": (
        "a/s1/{}.png|a/s2/{}.png|b/s1/{}.png|b/s2/{}.png", 4,
        "Classes are the outer folders; folders inside them (s1, s2) are ignored.",
    ),
    "a stray image": ("a/{}.png|b/{}.png|loose{}.png", 2, f"{STRAY.format(24)}loose0.png, loose1.png, "),
    "other files": ("a/{}.png|b/{}.png|a/{}.heic", 2, f"{OTHERS}a/0.heic, "),
    "a folder around, and a file in it": ("all/a/{}.ppm|all/b/{}.jfif|LICENCE{}", 2, f"{OTHERS}LICENCE0, "),
    "hidden files, the system's": ("a/{}.png|b/{}.png|a/._{}.png|.git/{}.png|__MACOSX/a/{}.png|.DS{}", 2, ""),
    "train and val": ("train/a/{}.png|train/b/{}.png|val/a/{}.png|val/b/{}.png", 4, NO_TEST),
    "Train and Testing": ("Train/a/{}.png|Train/b/{}.png|Testing/a/{}.png|Testing/b/{}.png", 4, ""),
    "sides of images": (
        "train_images/a/{}.png|train_images/b/{}.png|test_images/a/{}.png|test_images/b/{}.png", 4, "",
    ),
    "a folder next to the splits": (
        "train/a/{}.png|train/b/{}.png|test/a/{}.png|test/b/{}.png|unlabelled/c/{}.png",
        *(4, "Left out 8 of 40 images that are outside of test/, train/: unlabelled/c/0.png, "),
    ),
    "names of people": ("ein haus/{} é.png|😀/'{}'.png|a,b;c/\"{}\".png", 3, ""),
    "three sides": (
        "train/a/{}.png|train/b/{}.png|val/a/{}.png|val/b/{}.png|test/a/{}.png|test/b/{}.png", 6, "",
    ),
    "flat, with sides": ("train/{}_1.png|train/{}_2.png|test/{}_1.png|test/{}_2.png", 4, ""),
    "flat, deeper and without labels": (
        "{}_1.png|deeper/{}_2.png|{}x.png", 2,
        r"Left out 8 of 24 images whose names do not match ((?:(?<![^_ ])-)?\d+(?:\.\d+)?)$: 0x.png, ",
    ),
}  # fmt: skip
"""Names of files, the number of used groups of 8, and the beginning of the note, if there is one."""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_image_is_used_or_reported(tmp_path: Path, layout: str) -> None:
    names, n_used, note = LAYOUTS[layout]
    paths = [name.format(i) for name in names.split("|") for i in range(8)]
    fill(tmp_path, paths, size=(8, 8))
    splits = load("flat_folder" if "flat" in layout else "class_folder", root=tmp_path)
    assert len(all_rows(splits)) == 8 * n_used and splits.n_classes == (3 if n_used == 3 else 2)
    assert len(splits.notes) == bool(note) and "".join(splits.notes).startswith(note)
    for side in ("validation", "test"):
        there = any(re.match(rf"{side[:3]}\w*/(a/|\d_)", name.lower()) for name in paths)
        assert not there or all(each.lower().startswith(side[:3]) for each in splits.split(side).sources)


THIRDS = tuple(f"{i:04}_{i % 3:02}.png" for i in range(30))
SEVENS = tuple(f"{i}{number}.png" for number in ("x_007", "x_107", "y_012", "z_7") for i in "abcde")
SIGNED = tuple(f"{i}{number}.png" for number in ("x_-1", "x_1", "y-2", "z_0.25", "z_1.25") for i in "abcde")
PATTERNS = [
    (THIRDS, None, "00 01 02"),
    (THIRDS, r"_(\d+)\.png", "00 01 02"),  # matches the whole name
    (THIRDS, r"\d\d$", "00 01 02"),  # a pattern without a group
    (SEVENS, None, "007 7 012 107"),  # merged, there would be fewer classes
    (SIGNED, None, "0.25 1 1.25 2 -1"),
    (THIRDS, r"label_(\d+)", "root"),
]


@pytest.mark.parametrize(("names", "pattern", "classes"), PATTERNS)
def test_the_label_in_the_name(tmp_path: Path, names: Any, pattern: str | None, classes: str) -> None:
    options = {"root": fill(tmp_path, names), "label_pattern": pattern}
    if classes == "root":
        with refused("root"):
            load("flat_folder", **options)
        return
    splits = load("flat_folder", **options)
    assert splits.classes == tuple(classes.split()) and {*all_rows(splits)} == {*names}
    for part in map(splits.split, SPLITS):
        for label, source in zip(part.labels.tolist(), part.sources, strict=True):
            assert source.endswith(f"{splits.classes[label]}.png")


WIDE = np.linspace(0, 65535, 64).round().astype(np.uint16).reshape(8, 8)
HALF = np.stack([np.full((8, 8), 10), np.repeat([[0] * 4 + [255] * 4], 8, 0)], 2).astype(np.uint8)
UPRIGHT = np.repeat(np.repeat(noise(3, 2), 8, 0), 8, 1)
TURNED = Image.Exif()
TURNED[0x0112] = 6  # displayed rotated by 90 degrees clockwise
FILM = {"save_all": True, "append_images": [Image.fromarray(noise(8, 8, seed=8))]}
PIXELS = {
    **{f"x{each}": (np.full((8, 8), 77, np.uint8),) for each in (".PNG", ".Jpeg", *places.SUFFIXES)},
    "colour.png": (noise(8, 8, 3),),
    "wide.png": (WIDE, WIDE / 257),
    "wide.TIFF": (WIDE, WIDE / 257),
    "wide.pgm": (WIDE, WIDE / 257),
    "negative.tif": (WIDE, 255 - WIDE / 257, {"tiffinfo": {262: 0}}),  # 0 is white
    "twelve.tif": (np.full((8, 8), 65535, np.uint16), np.full((8, 8), 255)),
    "palette.png": (Image.fromarray(noise(8, 8)).convert("P"), noise(8, 8)),
    "alpha.png": (HALF, np.repeat([[255] * 4 + [10] * 4], 8, 0)),
    "film.gif": (Image.fromarray(noise(8, 8, seed=7)), noise(8, 8, seed=7), FILM),
    **{
        f"turned.{each}": (np.rot90(UPRIGHT).copy(), UPRIGHT, {"exif": TURNED, "lossless": True})
        for each in ("png", "tif", "webp")
    },
}
"""Name -> the saved array, the expected pixels, and options of saving."""


@pytest.mark.parametrize("name", PIXELS)
def test_every_suffix_mode_and_orientation(tmp_path: Path, name: str) -> None:
    image, *others = PIXELS[name]
    expected, options = (*others, *(image, {})[len(others) :])
    content = put(tmp_path / name, image, **options).read_bytes()
    if name == "twelve.tif":  # Pillow reads 12 bits a pixel, but does not write them
        content = content.replace(b"\2\1\3\0\1\0\0\0\x10\0", b"\2\1\3\0\1\0\0\0\x0c\0")
    pixels = read(content).pixels
    pixels = pixels[..., 0] if pixels.ndim > np.ndim(expected) else pixels  # lossless WebP is in colour
    assert pixels.dtype == np.uint8 and np.abs(pixels - np.asarray(expected, float)).max() <= 2


def test_resizing_conversion_and_cropping_are_reported_once(tmp_path: Path) -> None:
    folder_of(tmp_path)
    put(tmp_path / "a" / "big.png", (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8))
    put(tmp_path / "b" / "small.png", Image.fromarray(noise(4, 5)).convert("1"))
    put(tmp_path / "b" / "film.gif", *PIXELS["film.gif"][:1], **FILM)
    put(tmp_path / "b" / "dark.png", WIDE // 16)
    splits = load("class_folder", root=tmp_path)
    assert splits.image_size == (8, 8) and splits.channels == 1
    assert splits.notes == (
        "Took only the first frame of 1 of 16 images: b/film.gif.",
        "Resized 2 of 16 images to 8x8 (height x width).",
        "Converted 3 of 16 images to 8-bit grey, from mode 1, I;16 (dark: at most a quarter of 16 bits), P.",
    )
    big = all_rows(splits)["a/big.png"].float()
    assert (big - 127.5).abs().max() < 10  # antialiased: a checkerboard becomes grey, not black or white
    put(tmp_path / "b" / "colour.png", noise(8, 8, 3))
    colour, grey = (load("class_folder", root=tmp_path, grey=each) for each in (None, True))
    assert all_rows(colour)["b/colour.png"].permute(1, 2, 0).numpy().tolist() == noise(8, 8, 3).tolist()
    assert (colour.channels, grey.channels) == (3, 1) and grey.notes[2].endswith("P, RGB.")


def test_unreadable_files_are_named_and_run_no_code(tmp_path: Path, monkeypatch: Any) -> None:
    folder, trace = folder_of(tmp_path / "images"), tmp_path / "trace"
    clean = load("class_folder", root=folder).fingerprint()
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    a = folder / "a"
    fill(a, ["10text"])
    (a / "11empty.png").touch()
    (a / "12cut.png").write_bytes((a / "0.png").read_bytes()[:80])
    put(a / "13bomb.png", noise(64, 64))
    put(a / "14bomb.png", noise(10, 16))  # Pillow itself only warns about this one
    (a / "15script.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\nshowpage\n")
    put(a / "16float.tif", Image.fromarray(np.zeros((8, 8), dtype=np.float32)))
    (a / "17.png").write_text(f"cos\nmkdir\n(V{trace}\ntR.")  # a pickle that leaves a trace when it is loaded
    with refused("root"):
        load("class_folder", root=a / "10text")
    (a / "10text").rename(a / "10text.png")
    splits = load("class_folder", root=folder)
    [note], unknown = splits.notes, "(cannot identify image file)"
    assert splits.fingerprint() == clean and not trace.exists()
    assert note.startswith(f"Left out 8 of 20 images that cannot be read: a/10text.png {unknown}, ")
    assert f"a/11empty.png {unknown}, a/12cut.png (" in note and note.endswith(" and 3 more.")
    assert "a/13bomb.png (Image size (4096" in note and "a/14bomb.png (Image size (160" in note


def test_three_images_of_a_class_are_enough() -> None:
    labels, thirds = np.repeat([0, 1], 3), {"validation_fraction": 1 / 3, "test_fraction": 1 / 3}
    for names in (None, [f"{i}.png" for i in range(6)]):
        assert [sorted(part // 3) for part in split_rows(labels, "ab", names=names, **thirds)] == [[0, 1]] * 3


BOTH = [f"{name}/{i}.png" for name in "ab" for i in range(9)]
SIDED = [f"{side}/{each}" for side in ("train", "test") for each in BOTH]


FOLDERS = [
    [],
    ["train/1.png", "test/1.png"],  # splits without classes
    [*BOTH[:9], "b/0.txt"],
    [*BOTH[:9], "b/damaged.png"],
    [name for name in SIDED if "/a/" in name],  # one class
    [*SIDED, "test/c/1.png"],  # a class that train lacks
    [name.replace("test", "eval") for name in SIDED],
    [name.replace("train", "val") for name in SIDED],
]


@pytest.mark.parametrize("names", FOLDERS)
def test_folders_that_raise_an_error(tmp_path: Path, names: list[str]) -> None:
    for damaged in fill(tmp_path, names).rglob("damaged.png"):
        damaged.write_text("text")
    with refused("root"):
        load("class_folder", root=tmp_path)


def test_data_too_large_for_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MAX_BYTES", 11 * 64)
    with refused("image_size"):
        load("class_folder", root=folder_of(tmp_path))
    assert load("class_folder", root=tmp_path, image_size=4).image_size == (4, 4)


# --- names with accents: a Mac stores them decomposed (NFD), Colab and Linux composed (NFC) -----------------


def test_names_from_a_mac_and_from_colab_give_the_same_data(tmp_path: Path) -> None:
    mac, colab = tmp_path / "NFD", tmp_path / "NFC"
    for folder, name in itertools.product((mac, colab), ("caf\u00e9", "\u00fcber")):
        names = [f"{name}/{i} na\u00efve {i % 7}\u00e9.png" for i in range(30)]
        fill(folder, [unicodedata.normalize(folder.name, each) for each in names], 100 * ord(name[0]))
    packed = shutil.make_archive(str(mac), "zip", mac)
    loaded = [load("class_folder", root=each) for each in (mac, colab, packed)]
    assert len({(each.fingerprint(), each.train.sources) for each in loaded}) == 1
    assert loaded[0].classes == ("caf\u00e9", "\u00fcber") and places.plain("caf\udce9") == r"caf\udce9"
    shutil.copytree(mac, colab, dirs_exist_ok=True)  # names that a Mac treats as equal
    with refused("root"):
        load("class_folder", root=colab)
