"""Datasets: one contract for all of them, then real files that are wrong in every way people meet."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import re
import shutil
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from PIL import Image

from qnnkit import data, recipes
from qnnkit.data import DATASETS, ImageSet, ImageSplits, images, kind, load, places
from qnnkit.data.batches import _Rows
from qnnkit.data.captions import listing
from qnnkit.data.images import read
from qnnkit.data.splits import SPLITS, split_rows
from qnnkit.settings import Settings
from tests.toys import fill, idx_bytes, noise, put, refused


def folder_of(root: Path, classes: Sequence[str] = "ab", n: int = 6, size: tuple[int, ...] = (8, 8)) -> Path:
    for k, name in enumerate(classes):
        fill(root / name, [f"{i}.png" for i in range(n)], 100 * k, size)
    return root


def all_rows(splits: ImageSplits) -> dict[str, torch.Tensor]:
    """Every image by its source."""
    parts = map(splits.split, SPLITS)
    return {source: image for part in parts for source, image in zip(part.sources, part.images, strict=True)}


def same(one: ImageSet, other: ImageSet) -> bool:
    return torch.equal(one.images, other.images) and torch.equal(one.labels, other.labels)


def idx(path: Path, values: np.ndarray) -> Path:
    """Writes an idx file of bytes; gzipped if its name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(idx_bytes(values)) if path.suffix == ".gz" else idx_bytes(values))
    return path


def small(name: str, folder: Path) -> dict[str, Path]:
    """The options that load a small instance of a dataset; a third is its own test part, if it has one."""
    n_classes = {"ahcd": 28}.get(name, 10)
    labels = {"train": np.arange(4 * n_classes) % n_classes, "test": np.arange(2 * n_classes) % n_classes}
    if name == "digits":
        return {}
    if name == "class_folder":
        return {"root": folder_of(folder, ("2", "10", "b"), n=20, size=(6, 4))}
    if name == "flat_folder":
        return {"root": fill(folder, [f"{i:04}_{i % 3:02}.png" for i in range(60)], size=(6, 4))}
    if name == "npz":
        folder.mkdir()
        np.savez(folder / "mine.npz", images=noise(60, 6, 4), labels=np.arange(60) % 3)
        return {"root": folder / "mine.npz"}
    if name == "ahcd":
        for side, values in labels.items():
            folder.mkdir(exist_ok=True)
            pixels = noise(len(values), 1024, seed=len(side))
            np.savetxt(folder / f"csv{side.title()}Images {len(values)}x1024.csv", pixels, "%d", ",")
            np.savetxt(folder / f"csv{side.title()}Label {len(values)}x1.csv", values + 1, "%d")
        return {"root": folder}
    for stem, values in zip(("train", "t10k"), labels.values(), strict=True):
        idx(folder / f"{stem}-images-idx3-ubyte.gz", noise(len(values), 6, 4, seed=len(stem)))
        idx(folder / f"{stem}-labels-idx1-ubyte", values.astype(np.uint8))
    return {"root": folder}


OWN_TEST = ("mnist", "fashion_mnist", "kmnist", "ahcd")
"""Datasets that bring their own test part."""
BY_NAME = ("class_folder", "flat_folder")
"""Datasets of files, which are split by the hashes of their names."""


@pytest.fixture(params=sorted(name for name in DATASETS if kind(name) == "images"))
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict]:
    return request.param, small(request.param, tmp_path / "images")


def test_contract(dataset: tuple[str, dict]) -> None:
    name, options = dataset
    splits = load(name, **options)
    assert splits.name == name and splits.notes == ()
    assert name != "class_folder" or splits.classes == ("2", "10", "b")  # as people count
    rows = {"digits": 1797, "ahcd": 28 * 6}.get(name, 60)
    assert len(all_rows(splits)) == rows == sum(len(splits.split(part)) for part in SPLITS)  # no image twice
    total = torch.cat([splits.split(part).labels for part in SPLITS]).bincount()
    few = splits.n_classes / rows  # one image of each class at least
    shares = (2 / 3 - max(few, 2 / 15), max(few, 2 / 15), 1 / 3) if name in OWN_TEST else (0.6, 0.2, 0.2)
    for part, share in zip(map(splits.split, SPLITS), shares, strict=True):
        assert part.images.dtype == torch.uint8 and part.labels.dtype == torch.int64
        assert part.images.shape == (len(part), splits.channels, *splits.image_size)
        assert part.labels.shape == (len(part),) and len(part.sources) == len(part)
        assert part.labels.unique().tolist() == list(range(splits.n_classes)) == list(range(len(total)))
        if name in BY_NAME:  # each image is placed by its own name: about its share
            spread = 3 * (rows * share * (1 - share)) ** 0.5
            assert len(part) == pytest.approx(share * rows, abs=spread)
            continue
        assert len(part) == pytest.approx(share * rows, abs=1)
        assert (part.labels.bincount() - total * len(part) / rows).abs().max() <= 1  # stratified

    again, other = load(name, **options), load(name, **options, split_seed=1)
    assert again.fingerprint() == splits.fingerprint() and again.test.sources == splits.test.sources
    assert other.fingerprint() != splits.fingerprint()
    assert other.validation.sources != splits.validation.sources
    assert same(other.test, splits.test) == (name in OWN_TEST)
    wider = load(name, **options, test_fraction=0.4, validation_fraction=0.1)
    if name in BY_NAME:
        assert set(splits.test.sources) < set(wider.test.sources)
    elif name not in OWN_TEST:
        assert len(wider.test) == pytest.approx(0.4 * rows, abs=1)

    kept: list[set[str]] = []
    for fraction in (0.001, 0.25, 0.5, 1):
        part = load(name, **options, train_fraction=fraction)
        assert part.notes == () and same(part.validation, splits.validation)
        assert same(part.test, splits.test)
        counts, whole = part.train.labels.bincount(), splits.train.labels.bincount()
        assert counts.min() >= 1 and (counts - fraction * whole).abs().max() <= 1
        kept.append(set(part.train.sources))
    assert kept[0] <= kept[1] < kept[2] < kept[3] == set(splits.train.sources)  # nested

    colour = load(name, **options, grey=False, image_size=12)
    assert colour.channels == 3 and colour.image_size == (12, 12) and len(colour.notes) == 2
    assert (colour.train.images == colour.train.images[:, :1]).all()


SIZES = {
    "equal": [432] * 28,
    "uneven": [5, 9, 2, 40, 1, 17],
    "one large": [1000, *[10] * 27],
    "one large, many equal": [280, *[10] * 27, 3],
    "single images": [1] * 7,
    "one class": [50],
}


def in_classes(sizes: list[int]) -> ImageSplits:
    """Images without pixels, so many of each class, the same in every split."""
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    images = torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8)
    some = ImageSet(images, labels, tuple(map(str, range(len(labels)))))
    return ImageSplits("some", some, some, some, tuple(map(str, range(len(sizes)))))


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_a_share_has_the_total_that_is_asked_for(sizes: list[int]) -> None:
    splits = in_classes(sizes)
    whole, smaller = torch.tensor(sizes), set()
    for step in range(1, 101):
        fraction = step / 100
        part = splits.keep(fraction, seed=3).train
        counts = part.labels.bincount(minlength=len(sizes))
        assert counts.min() >= 1
        least = torch.floor(fraction * whole.double() + 1e-9).clamp(min=1)
        assert (counts >= least).all()
        beyond = len(part) - fraction * sum(sizes)
        assert abs(beyond) <= 0.5 + 1e-9 or (
            beyond > 0 and len(part) <= max(least.sum(), fraction * sum(sizes) + len(sizes))
        )
        assert smaller <= set(part.sources)
        smaller = set(part.sources)
    assert splits.keep(0.4, seed=3).train.sources == splits.keep(0.4, seed=3).train.sources


def test_each_seed_takes_other_samples_of_each_class_and_gives_others_one_more() -> None:
    splits = in_classes([432] * 28)  # the training part of AHCD: nine tenths of 480 each
    kept = [splits.keep(3085, seed).train for seed in range(4)]
    counts = [part.labels.bincount().tolist() for part in kept]
    assert all(sum(each) == 3085 and set(each) == {110, 111} for each in counts)
    assert counts != [counts[0]] * 4  # not always the first classes have one more
    assert {*kept[0].sources[:110]} != {*kept[1].sources[:110]}


def test_a_share_that_is_a_recipes_own_counts() -> None:
    class Half(recipes.RECIPES["digits_quanv"].Settings):
        train_fraction: float = 0.5

    whole = len(data.of(recipes.settings("digits_quanv")).train)
    assert len(data.of(Half()).train) == round(whole / 2)


def test_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = load("digits", train_fraction=0.2)
    calls, take = [], _Rows.__getitems__
    monkeypatch.setattr(_Rows, "__getitems__", lambda rows, index: calls.append(1) or take(rows, index))
    fixed = splits.batches("test", 5, shuffle=False)
    fixed.set_epoch(3)
    images, labels = (torch.cat(tensors) for tensors in zip(*fixed, strict=True))
    assert images.equal(splits.test.images) and labels.equal(splits.test.labels)
    assert len(fixed) == len(calls) == -(-len(splits.test) // 5)  # a batch is taken whole

    def order(seed: int, epoch: int, before: int = 0) -> torch.Tensor:
        loader = splits.batches("train", 7, shuffle=True, seed=seed)
        for _ in range(before):
            list(loader)
        loader.set_epoch(epoch)
        return torch.cat([images for images, _ in loader])

    first = order(0, 4)
    assert order(0, 4, before=2).equal(first)  # what ran earlier in this process does not matter
    assert not order(0, 5).equal(first) and not order(1, 4).equal(first) and not order(1, 3).equal(first)
    assert len(first.flatten(1).unique(dim=0)) == len(splits.train.images.flatten(1).unique(dim=0))


def test_batches_through_accelerate() -> None:
    splits = load("digits", train_fraction=0.05)

    def same(loader, expected: list) -> bool:
        pairs = list(zip(loader, expected, strict=True))
        return all(a.cpu().equal(c) and b.cpu().equal(d) for (a, b), (c, d) in pairs)

    plain = splits.batches("train", 8, shuffle=True, seed=2)
    prepared = Accelerator().prepare(splits.batches("train", 8, shuffle=True, seed=2))
    for epoch in (3, 0, 7):
        plain.set_epoch(epoch)
        prepared.set_epoch(epoch)
        expected = list(plain)
        assert same(prepared, expected) and len(prepared) == len(plain)
        rest = skip_first_batches(prepared, 2)  # resumed within an epoch
        rest.set_epoch(epoch)  # older versions of Accelerate start again from 0
        assert same(rest, expected[2:])

    for process in range(2):
        loader = splits.batches("train", 8, shuffle=True, seed=2)
        half = prepare_data_loader(loader, num_processes=2, process_index=process, put_on_device=False)
        half.set_epoch(7)
        got, full = list(half), len(splits.train) // 16
        assert same(got[:full], expected[process::2][:full])  # every second batch
        assert len(got) == -(-len(splits.train) // 16) and all(len(labels) == 8 for _, labels in got)
        rest = skip_first_batches(half, 2)
        rest.set_epoch(7)
        assert same(rest, got[2:])


def test_a_change_is_of_the_inputs_of_every_split_alone() -> None:
    splits = data.arrays(Settings(), np.random.default_rng(0).normal(3.0, 2.0, (50, 4)), np.arange(50) % 2)
    scaled = splits.map(lambda x: (x - 3) / 2)
    for part, before in ((scaled.split(name), splits.split(name)) for name in SPLITS):
        torch.testing.assert_close(part.inputs, (before.inputs - 3) / 2, rtol=0, atol=1e-6)
        assert part.sources == before.sources and part.targets.equal(before.targets)
    assert scaled.fingerprint() != splits.fingerprint()
    assert splits.map(lambda x: x[:, :2]).sizes["input_shape"] == (2,)
    for wrong in (lambda x: x[:5], lambda x: x / 0, lambda x: "x"):
        with refused("change"):
            splits.map(wrong)


def test_digits_are_rescaled_and_take_no_root(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    splits = load("digits", root="")  # the notebooks' literal for "none"
    raw = load_digits()
    assert splits.classes == tuple("0123456789") and splits.train.images.max() == 255
    for source, image in list(all_rows(splits).items())[::100]:
        index = int(source.removeprefix("digits/"))
        assert np.abs(image[0].numpy() - raw.images[index] * 255 / 16).max() <= 0.5


@pytest.mark.parametrize(
    ("argument", "name", "options"),
    [
        ("root", "digits", {"root": "images"}),
        ("test_fraction", "digits", {"test_fraction": 0}),
        ("test_fraction", "digits", {"test_fraction": 0.8}),
        ("image_size", "digits", {"image_size": 0}),
        ("train_fraction", "digits", {"train_fraction": 0}),
        ("label_pattern", "digits", {"label_pattern": r"(\d)"}),
        ("download", "digits", {"download": True}),
        ("imagesize", "digits", {"imagesize": 8}),
        ("dataset", "digit", {}),
        ("root", "npz", {"root": ""}),
    ],
)
def test_arguments_that_are_refused(argument: str, name: str, options: dict[str, Any]) -> None:
    with refused(argument):
        load(name, **options)
    for wrong, split, n in (("batch_size", "train", 0), ("split", "valid", 8)):
        with refused(wrong):
            load("digits").batches(split, n, shuffle=True)


def test_every_suffix_and_format(tmp_path: Path) -> None:
    folder_of(tmp_path)
    for suffix in ("PNG", "jpg", "Jpeg", "bmp", "gif", "webp", "tif", "TIFF"):
        put(tmp_path / "a" / f"sevens.{suffix}", np.full((8, 8), 77, dtype=np.uint8))
    rows = all_rows(load("class_folder", root=tmp_path))
    sevens = [image for source, image in rows.items() if "sevens" in source]
    assert len(sevens) == 8 and (torch.stack(sevens).float() - 77).abs().max() <= 2


STRAY = "Left out 8 of {} images that lie in no class folder: "
OTHERS = "Left out 8 files that are no images: "
NO_TEST = "There is no test part: one is drawn from the training part, by test_fraction."
LAYOUTS = {
    "classes of folders alone": ("a/s1/{}.png|a/s2/{}.png|b/s1/{}.png|b/s2/{}.png", 4, ""),
    "a stray image": ("a/{}.png|b/{}.png|loose{}.png", 2, f"{STRAY.format(24)}loose0.png, loose1.png, "),
    "other files": ("a/{}.png|b/{}.png|a/{}.heic", 2, f"{OTHERS}a/0.heic, "),
    "a folder around, and a file in it": ("all/a/{}.png|all/b/{}.png|LICENCE{}", 2, f"{OTHERS}LICENCE0, "),
    "hidden files, the system's": ("a/{}.png|b/{}.png|a/._{}.png|.git/{}.png|__MACOSX/a/{}.png|.DS{}", 2, ""),
    "train and val": ("train/a/{}.png|train/b/{}.png|val/a/{}.png|val/b/{}.png", 4, NO_TEST),
    "Train and Testing": ("Train/a/{}.png|Train/b/{}.png|Testing/a/{}.png|Testing/b/{}.png", 4, ""),
    "a test part bare": (
        "train/a/{}.png|train/b/{}.png|test/{}.png",
        2,
        "Left out 8 of 24 images that lie outside of train/: test/0.png, ",
    ),
    "a folder beside the sides": (
        "train/a/{}.png|train/b/{}.png|test/a/{}.png|test/b/{}.png|unlabelled/c/{}.png",
        *(4, "Left out 8 of 40 images that lie outside of test/, train/: unlabelled/c/0.png, "),
    ),
    "names of people": ("ein haus/{} é.png|😀/'{}'.png|a,b;c/\"{}\".png", 3, ""),
}
"""Names of files, how many groups of 8 are used, and how the note begins, if there is one."""


@pytest.mark.parametrize(("names", "n_used", "told"), LAYOUTS.values(), ids=LAYOUTS)
def test_every_image_is_used_or_told(tmp_path: Path, names: str, n_used: int, told: str) -> None:
    paths = [name.format(i) for name in names.split("|") for i in range(8)]
    fill(tmp_path, [path for path in paths if path.endswith(".png")], size=(8, 8))
    for path in paths:
        if not path.endswith(".png"):
            (tmp_path / path).write_text("no image")
    splits = load("class_folder", root=tmp_path)
    assert len(all_rows(splits)) == 8 * n_used and splits.n_classes == (3 if n_used == 3 else 2)
    assert len(splits.notes) == bool(told) and "".join(splits.notes).startswith(told)
    for side in ("validation", "test"):
        there = any(re.match(rf"{side[:3]}\w*/a", name.lower()) for name in paths)
        assert not there or all(each.lower().startswith(side[:3]) for each in splits.split(side).sources)


def test_mixed_sizes_are_resized_and_said_once(tmp_path: Path) -> None:
    folder_of(tmp_path)
    checker = np.indices((64, 64)).sum(0) % 2 * 255
    put(tmp_path / "a" / "big.png", checker.astype(np.uint8))
    put(tmp_path / "b" / "small.png", noise(4, 5))
    splits = load("class_folder", root=tmp_path)
    assert splits.image_size == (8, 8) and splits.notes == (
        "Resized 2 of 14 images to 8x8 (height x width).",
    )
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
    converted, alike = splits.notes
    assert converted == "Converted 6 of 18 images to 8-bit grey, from mode 1, I;16, LA, P."
    assert re.match(
        r"Duplicates: \d of \d+ images of validation and test stand in an earlier split too", alike
    )
    assert splits.channels == 1
    for source in ("a/wide.png", "a/wide.tif"):
        assert np.abs(rows[source][0].numpy() - wide / 257).max() <= 0.5
    assert rows["b/alpha.png"][0, 0].tolist() == [255] * 4 + [10] * 4
    assert rows["a/palette.png"][0].numpy().tolist() == noise(8, 8).tolist()

    put(tmp_path / "b" / "colour.png", noise(8, 8, 3))
    colour = load("class_folder", root=tmp_path)
    assert all_rows(colour)["b/colour.png"].permute(1, 2, 0).numpy().tolist() == noise(8, 8, 3).tolist()
    assert colour.notes[0] == "Converted 18 of 19 images to 8-bit RGB, from mode 1, I;16, L, LA, P."
    grey = load("class_folder", root=tmp_path, grey=True)
    assert grey.channels == 1 and grey.notes[0].endswith("from mode 1, I;16, LA, P, RGB.")


def test_orientation_and_first_frame(tmp_path: Path) -> None:
    folder_of(tmp_path, size=(6, 4))
    upright = np.repeat(np.repeat(noise(3, 2), 8, 0), 8, 1)  # (24, 16)
    exif = Image.Exif()
    exif[0x0112] = 6  # shown turned by 90 degrees clockwise
    for suffix in ("png", "tif", "webp"):
        put(tmp_path / "a" / f"turned.{suffix}", np.rot90(upright).copy(), exif=exif, lossless=True)
    frames = [Image.fromarray(noise(6, 4, seed=seed)) for seed in (7, 8)]
    put(tmp_path / "b" / "film.gif", frames[0], save_all=True, append_images=frames[1:])
    splits = load("class_folder", root=tmp_path)
    assert splits.notes[0] == "Took the first frame alone of 1 of 16 images: b/film.gif."
    assert all_rows(splits)["b/film.gif"][0].numpy().tolist() == noise(6, 4, seed=7).tolist()
    for suffix in ("png", "tif", "webp"):
        turned = read((tmp_path / "a" / f"turned.{suffix}").read_bytes())
        assert (turned.pixels.reshape(24, 16, -1)[..., 0] == upright).all(), suffix


def test_damaged_files_are_named_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of(tmp_path)
    clean = load("class_folder", root=tmp_path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    a, b = tmp_path / "a", tmp_path / "b"
    (a / "10text.png").write_text("I am not an image")
    (a / "11empty.jpg").write_bytes(b"")
    whole = put(a / "12cut.png", noise(9, 9)).read_bytes()
    (a / "12cut.png").write_bytes(whole[: len(whole) // 2])
    put(a / "13bomb.png", noise(64, 64))
    put(a / "14bomb.png", noise(10, 16))  # Pillow itself only warns of this one
    (b / "15script.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\nshowpage\n")
    put(b / "16float.tif", Image.fromarray(np.zeros((8, 8), dtype=np.float32)))
    os.mkfifo(b / "17pipe.png")
    (b / "18around.png").symlink_to(b / "18around.png")
    splits = load("class_folder", root=tmp_path)
    assert splits.fingerprint() == clean.fingerprint()
    links, note, unknown = *splits.notes, "(cannot identify image file)"
    assert links == "Left out 2 links, devices or empty folders: b/17pipe.png, b/18around.png."
    assert note.startswith(f"Left out 7 of 19 images that cannot be read: a/10text.png {unknown}, ")
    assert f"a/11empty.jpg {unknown}, a/12cut.png (" in note and note.endswith(" and 2 more.")
    assert "a/13bomb.png (Image size (4096" in note and "a/14bomb.png (Image size (160" in note


class Payload:
    """Leaves a trace when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


def test_files_with_code_in_them_execute_nothing(tmp_path: Path) -> None:
    """As the root, and as a picture among pictures: pickles and scripts."""
    trace, inside = tmp_path / "trace", tmp_path / "inside"
    crafted = {
        "object.npy": lambda path: np.save(path, np.array([Payload(trace)], dtype=object), allow_pickle=True),
        "object.npz": lambda path: np.savez(path, images=np.array([Payload(trace)], dtype=object)),
        "pickle.pt": lambda path: torch.save(Payload(trace), path),
        "raw.pkl": lambda path: path.write_bytes(pickle.dumps(Payload(trace))),
        "script.eps": lambda path: path.write_text("%!PS-Adobe-3.0 EPSF-3.0\n(trace) (w) file closefile\n"),
    }
    folder_of(inside)
    for name, make in crafted.items():
        make(tmp_path / name)
        with refused("root"):
            load("class_folder", root=tmp_path / name)
        (inside / "a" / f"{name}.png").write_bytes((tmp_path / name).read_bytes())
    splits = load("class_folder", root=inside)
    assert any(f"{len(crafted)} " in note for note in splits.notes)  # counted, and named
    assert not trace.exists()


def test_three_images_of_a_class_are_enough() -> None:
    labels, thirds = np.repeat([0, 1], 3), {"validation_fraction": 1 / 3, "test_fraction": 1 / 3}
    for names in (None, [f"{i}.png" for i in range(6)]):
        parts = split_rows(labels, "ab", names=names, **thirds)
        assert [sorted(part // 3) for part in parts] == [[0, 1]] * 3


BOTH = [f"{name}/{i}.png" for name in "ab" for i in range(9)]


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["a/0.png", "a/1.png", "a/2.png"],
        ["a/0.png", "a/1.png", "a/2.png", "b/"],
        ["a/0.png", "a/1.png", "a/2.png", "b/0.txt"],
        ["a/0.png", "a/1.png", "a/2.png", "b/0.png="],  # one that cannot be read
        [f"{side}/a/{i}.png" for side in ("train", "test") for i in range(4)],
        *([*BOTH, *(f"c/{i}.png" for i in range(n))] for n in (1, 2)),
    ],
)
def test_folders_that_are_refused(tmp_path: Path, names: list[str]) -> None:
    root = fill(tmp_path / "images", [name for name in names if name.endswith(".png")], size=(4, 4))
    for name in [name for name in names if not name.endswith(".png")] or [""]:
        path = root / name.rstrip("=")
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if path.suffix:
            path.write_text("text")
    root.mkdir(exist_ok=True)
    with refused("root"):
        load("class_folder", root=root)
    with refused("root", FileNotFoundError):
        load("class_folder", root=tmp_path / "nowhere")


def test_too_much_for_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MAX_BYTES", 11 * 64)
    with refused("image_size"):
        load("class_folder", root=folder_of(tmp_path))
    assert load("class_folder", root=tmp_path, image_size=4).image_size == (4, 4)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # where someone has lifted Pillow's own limit
    monkeypatch.setattr(images, "MOST_PIXELS", 8 * 8 - 1)
    with pytest.raises(ValueError, match="8 x 8 pixels are too many to decode"):
        read((tmp_path / "a" / "0.png").read_bytes())


# --- names with accents: a Mac writes them apart (NFD), Colab and Linux as one (NFC) ------------------------


def accented(root: Path, form: str) -> Path:
    """Two classes of thirty images, with names in a form of Unicode."""
    for k, name in enumerate(("caf\u00e9", "\u00fcber")):
        names = [unicodedata.normalize(form, f"{i} na\u00efve {i % 7}\u00e9.png") for i in range(30)]
        fill(root / unicodedata.normalize(form, name), names, 100 * k)
    return root


def test_names_of_a_mac_and_of_colab_are_the_same_data(tmp_path):
    mac, colab = (accented(tmp_path / form, form) for form in ("NFD", "NFC"))
    packed = shutil.make_archive(str(mac), "zip", mac)
    found = [data.load("class_folder", root=each) for each in (mac, colab, packed)]
    assert len({(each.fingerprint(), each.train.sources) for each in found}) == 1
    assert found[0].classes == ("caf\u00e9", "\u00fcber")
    accented(colab, "NFD")  # names that a Mac takes for one
    with refused("root"):
        data.load("class_folder", root=colab)


def test_captions_find_images_whose_names_are_written_another_way(tmp_path):
    name = "caf\u00e9.png"
    for here, there in (("NFC", "NFD"), ("NFD", "NFC")):
        folder = fill(tmp_path / here, [unicodedata.normalize(here, name)])
        content = [{"image": unicodedata.normalize(there, name), "captions": ["a cup"]}]
        (folder / "captions.json").write_text(json.dumps(content))
        assert list(listing(places.open_place(folder)).captions.values()) == [("a cup",)]
