"""Datasets that come as arrays: idx files, AHCD's CSV files, .npz; whole, and wrong in every way."""

from __future__ import annotations

import gzip
import io
import os
import struct
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qnnkit import recipes
from qnnkit.data import load
from qnnkit.runs import Run

KINDS = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


@pytest.fixture(autouse=True)
def no_store(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def content(values: np.ndarray, magic: int | None = None) -> bytes:
    magic = 0x800 + values.ndim if magic is None else magic
    return struct.pack(f">I{values.ndim}I", magic, *values.shape) + values.astype(np.uint8).tobytes()


def whole(n: int = 60, n_classes: int = 10) -> dict[str, bytes]:
    """The four files of a small dataset, by name."""
    files = {}
    for seed, (images, labels) in enumerate((KINDS[:2], KINDS[2:])):
        files[images] = content(noise(n, 5, 7, seed=seed))
        files[labels] = content(np.arange(n) % n_classes)
    return files


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, each in files.items():
        (folder / name).write_bytes(each)
    return folder


def told(error: type[Exception], name: str, **options) -> str:
    with pytest.raises(error) as caught:
        load(name, **options)
    text = str(caught.value)
    assert text.startswith("Argument `") and text.count("\n") == 0 and text.endswith("."), text
    return text


def test_every_form_of_the_four_files_gives_the_same_images(tmp_path):
    files = whole()
    plain = load("mnist", root=write(tmp_path / "plain", files))
    assert plain.image_size == (5, 7) and (len(plain.train), len(plain.validation), len(plain.test)) == (
        48,
        12,
        60,
    )
    first = plain.test.images[plain.test.sources.index("test/3"), 0].numpy()
    assert (first == noise(60, 5, 7, seed=1)[3]).all()
    packed = {f"{name}.gz": gzip.compress(each) for name, each in files.items()}
    dotted = {name.replace("-idx", ".idx"): each for name, each in files.items()}
    deeper = write(tmp_path / "root" / "MNIST" / "raw", files).parent.parent
    archive = tmp_path / "all.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for name, each in packed.items():
            file.writestr(f"mnist/{name}", each)
    roots = [write(tmp_path / "packed", packed), write(tmp_path / "dotted", dotted), deeper, archive]
    for root in roots:
        assert load("mnist", root=root).fingerprint() == plain.fingerprint()
    assert load("fashion_mnist", root=archive).classes[9] == "Ankle boot"


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        (KINDS[0], lambda each: each[:1000], "984 bytes instead of 2,100"),
        (KINDS[0], lambda each: each[:9], "without a header"),
        (KINDS[0], lambda each: b"", "without a header"),
        (KINDS[0], lambda each: each + b"more", "2,104 bytes instead of 2,100"),
        (KINDS[0], lambda each: gzip.compress(each)[:-400], "Compressed file ended"),
        (KINDS[0], lambda each: gzip.compress(each)[:40] + b"xxxxxxx" * 300, "CRC check failed"),
        (KINDS[0], lambda each: content(np.zeros(60)), "magic number 2049 instead of 2051"),
        (KINDS[1], lambda each: content(np.arange(60) % 10, magic=12), "magic number 12"),
        (KINDS[1], lambda each: content(np.arange(59) % 10), "a label for each image, but is {'train': '60 images, 59 labels'}"),  # noqa: E501
        (KINDS[1], lambda each: content(np.r_[np.arange(58) % 10, 10, 255]), "labels in 0..9, but is {'train-labels-idx1-ubyte': '10 in row 58, 255 in row 59'}"),  # noqa: E501
        (KINDS[2], lambda each: content(noise(60, 6, 7)), "images of one size"),
        (KINDS[0], lambda each: struct.pack(">4I", 0x803, 2**32 - 1, 2**32 - 1, 9), "0 bytes instead of 166"),
        (KINDS[3], lambda each: content(np.zeros(60)), "None is left for test"),
    ],
)  # fmt: skip
def test_files_that_are_wrong(tmp_path, name, change, expected):
    files = whole()
    files[name] = change(files[name])
    assert expected in told(ValueError, "mnist", root=write(tmp_path / "x", files))


def test_what_is_missing_is_named_with_where_to_get_it(tmp_path):
    files = whole()
    del files[KINDS[3]]
    text = told(FileNotFoundError, "mnist", root=write(tmp_path / "three", files))
    assert "t10k-labels-idx1-ubyte, but" in text and "https://" in text and "set download to true" in text
    for root in (None, tmp_path / "nowhere", write(tmp_path / "empty", {})):
        for name in ("mnist", "fashion_mnist", "kmnist", "emnist", "ahcd"):
            text = told(FileNotFoundError, name, root=root)
            assert "https://" in text and text.endswith("to have it fetched.")
    assert not (tmp_path / "cache").exists()  # looking makes nothing


def emnist_files(variant: str, labels: np.ndarray) -> dict[str, bytes]:
    return {
        f"emnist-{variant}-{side}-{kind}": each
        for side, seed in (("train", 0), ("test", 1))
        for kind, each in (
            ("images-idx3-ubyte", content(noise(len(labels), 6, 6, seed=seed))),
            ("labels-idx1-ubyte", content(labels)),
        )
    }


def test_emnist_is_put_upright_and_its_variants_have_their_classes(tmp_path):
    letters = emnist_files("letters", 1 + np.arange(26 * 4) % 26)
    splits = load("emnist", root=write(tmp_path / "one", letters))
    assert splits.n_classes == 26 and splits.classes[:2] == ("a", "b") and splits.notes == ()
    row = splits.test.sources.index("test/5")
    assert (splits.test.images[row, 0].numpy() == noise(104, 6, 6, seed=1)[5].T).all()
    assert splits.test.labels[row] == 5
    both = write(tmp_path / "both", letters | emnist_files("balanced", np.arange(47 * 4) % 47))
    many = load("emnist", root=both)
    assert many.n_classes == 47 and many.notes == ("Took the variant 'balanced' of balanced, letters.",)
    assert many.classes[:11] == (*"0123456789", "A") and many.classes[36:] == tuple("abdefghnqrt")
    assert load("emnist", root=both, variant="letters").fingerprint() == splits.fingerprint()
    chosen = recipes.settings("digits_quanv", dataset="emnist", data_dir=str(both), variant="letters")
    assert Run(tmp_path / "run", chosen).splits.fingerprint() == splits.fingerprint()  # through a run
    with pytest.raises(ValueError, match="`variant` must be a known name, but is 'leters'"):
        Run(tmp_path / "run", chosen.override(variant="leters")).load_data()
    assert "emnist-digits-train-images" in told(FileNotFoundError, "emnist", root=both, variant="digits")
    assert "Did you mean 'letters'" in told(ValueError, "emnist", root=both, variant="leters")
    zero = write(tmp_path / "zero", emnist_files("letters", np.arange(26 * 4) % 26))
    assert "labels in 1..26" in told(ValueError, "emnist", root=zero)


def csv(folder: Path, train: np.ndarray, labels: np.ndarray) -> Path:
    folder.mkdir()
    test = noise(56, 1024, seed=5)
    for side, pixels, values in (("Train", train, labels), ("Test", test, np.arange(56) % 28 + 1)):
        np.savetxt(folder / f"csv{side}Images {len(pixels)}x1024.csv", pixels, "%d", ",")
        np.savetxt(folder / f"csv{side}Label {len(values)}x1.csv", values, "%d")
    return folder


def test_ahcd_that_is_wrong(tmp_path):
    pixels, labels = noise(140, 1024).astype(int), np.arange(140) % 28 + 1
    splits = load("ahcd", root=csv(tmp_path / "good", pixels, labels))
    row = splits.train.sources.index("train/7") if "train/7" in splits.train.sources else None
    if row is not None:
        assert (splits.train.images[row, 0].numpy() == pixels[7].reshape(32, 32).T).all()
    wrong = {
        "a label for each image, but is {'train': '140 images, 139 labels'}": (pixels, labels[:139]),
        "labels in 1..28, but is {'csvTrainLabel 140x1.csv': '0 in row 0, 29 in row 139'}": (
            pixels, np.r_[0, labels[1:-1], 29]),
        "pixels in 0..255": (np.where(pixels == pixels.max(), 300, pixels), labels),
        "rows of 1,024 numbers": (pixels[:, :1000], labels),
    }  # fmt: skip
    for number, (expected, (images, values)) in enumerate(wrong.items()):
        assert expected in told(ValueError, "ahcd", root=csv(tmp_path / str(number), images, values))
    (tmp_path / "good" / "csvTrainLabel 140x1.csv").write_text("1\nalef\n")
    assert "CSV files of whole numbers" in told(ValueError, "ahcd", root=tmp_path / "good")


def npz(path: Path, **arrays) -> Path:
    np.savez(path, **arrays)
    return path.with_suffix(".npz")


def test_npz_in_every_form(tmp_path):
    images, labels = noise(40, 5, 4), np.arange(40) % 4
    plain = load("npz", root=npz(tmp_path / "plain.npz", images=images, labels=labels))
    assert plain.classes == ("0", "1", "2", "3") and len(plain.train) == 24 and plain.notes == ()
    same = {
        "real": {"images": images / np.float32(255), "labels": labels},
        "wide": {"X_train": images.astype(np.int64), "Y_train": labels[:, None].astype(np.uint8)},
        "last": {"x": images[..., None], "y": labels},
        "first": {"images": images[:, None], "labels": labels},
        "fortran": {"images": np.asfortranarray(images), "labels": labels},
    }
    for name, arrays in same.items():
        assert load("npz", root=npz(tmp_path / f"{name}.npz", **arrays)).fingerprint() == plain.fingerprint()
    colour = npz(
        tmp_path / "colour.npz", x_train=noise(40, 5, 4, 3), y_train=labels, x_test=noise(8, 5, 4, 3, seed=1),
        y_test=labels[:8], classes=np.array(["ant", "bee", "cat", "dog"]),
    )  # fmt: skip
    splits = load("npz", root=colour)
    assert splits.channels == 3 and splits.classes == ("ant", "bee", "cat", "dog") and len(splits.test) == 8
    assert (len(splits.train), len(splits.validation)) == (32, 8)
    assert load("npz", root=colour, grey=True, image_size=8).train.images.shape == (32, 1, 8, 8)
    named = npz(tmp_path / "named.npz", images=images, labels=np.array(list("abcd"))[labels])
    assert load("npz", root=named).classes == ("a", "b", "c", "d")
    letters = np.array(list("abcd"))[labels]
    other = load("npz", root=npz(tmp_path / "order.npz", images=images, labels=letters, classes=list("dcba")))
    assert other.classes == ("d", "c", "b", "a")
    for label, source in zip(other.test.labels.tolist(), other.test.sources, strict=True):
        assert "dcba"[label] == letters[int(source)]
    sides = {"val_images": images[:8], "val_labels": labels[:8], "more": labels}
    three = load("npz", root=npz(tmp_path / "three.npz", images=images, labels=labels, **sides))
    assert (len(three.train), len(three.validation), len(three.test)) == (32, 8, 8)
    assert three.notes[0] == "Left out arrays of other names: more."
    assert three.notes[1].startswith("There is no test part")


def test_npz_that_is_wrong(tmp_path):
    images, labels = noise(40, 5, 4), np.arange(40) % 4
    test = {"x_train": images, "y_train": labels, "x_test": images[:8]}
    wrong = {
        "arrays of images and labels, but is {'pictures': (40, 5, 4)}": {"pictures": images},
        "a label for each image, but is {'any': '40 images, 39 labels'}": {"images": images, "labels": labels[1:]},  # noqa: E501
        "labels of 0 or above, but is {'any': '-1'}": {"images": images, "labels": labels - 1},
        "labels among 0, 1, 2, 3, but is {'test': '9'}": {**test, "y_test": np.r_[labels[:7], 9]},
        "labels among 0, 1, but is {'any': '2, 3'}": {"images": images, "labels": labels, "classes": ["a", "b"]},  # noqa: E501
        "in 0..255 or real ones in 0..1, but is {'images': 'float64 in 0..255'}": {
            "images": np.where(images == images.max(), 255.0, images * (images > 9)), "labels": labels},
        "of shape (n, height, width)": {"images": images[0], "labels": labels},
        "labels of shape (n,)": {"images": images, "labels": np.eye(4)[labels]},
        "images of one size": {**test, "x_test": noise(8, 6, 4), "y_test": labels[:8]},
        "two or more classes": {"images": images, "labels": labels * 0},
        "classes of shape (n_classes,)": {"images": images, "labels": labels, "classes": np.str_("abcd")},
        "Object arrays cannot be loaded": {"images": np.array([{}], dtype=object), "labels": labels},
    }  # fmt: skip
    for number, (expected, arrays) in enumerate(wrong.items()):
        assert expected in told(ValueError, "npz", root=npz(tmp_path / f"{number}.npz", **arrays))
    good = npz(tmp_path / "good.npz", images=images, labels=labels)
    (tmp_path / "cut.npz").write_bytes(good.read_bytes()[:300])
    assert "a whole .npz file" in told(ValueError, "npz", root=tmp_path / "cut.npz")
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"shape": (2**40, 5, 4), "fortran_order": False, "descr": "|u1"}
    )
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as file:
        file.writestr("images.npy", head.getvalue() + b"0" * 800)
    assert "a whole .npz file" in told(ValueError, "npz", root=tmp_path / "huge.npz")
    told(FileNotFoundError, "npz", root=tmp_path / "nowhere.npz")
    told(ValueError, "npz")


def test_an_option_that_a_dataset_has_not(tmp_path):
    text = told(ValueError, "digits", label_pattern=r"(\d)")
    assert text.startswith("Argument `label_pattern` must be left out for 'digits'") and "flat_folder" in text
    assert "mnist, fashion_mnist" in told(ValueError, "digits", download=True)
    assert "Did you mean 'image_size'" in told(ValueError, "digits", imagesize=8)
    for fraction in (0, 1.5, -1):
        assert "`train_fraction`" in told(ValueError, "digits", train_fraction=fraction)


def real(*names: str) -> Path:
    path = Path(os.environ.get("QNNKIT_TEST_DATA", ""), *names)
    if not os.environ.get("QNNKIT_TEST_DATA") or not path.exists():
        pytest.skip(f"QNNKIT_TEST_DATA has no {'/'.join(names)}")
    return path


@pytest.mark.data
def test_real_mnist(record_property):
    root, begun = real("mnist"), time.perf_counter()
    splits = load("mnist", root=root)
    record_property("seconds", time.perf_counter() - begun)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (48_000, 12_000, 10_000)
    assert splits.image_size == (28, 28) and splits.channels == 1 and splits.notes == ()
    counts = splits.train.labels.bincount() + splits.validation.labels.bincount()
    assert counts.tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert splits.test.labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    seven = splits.test.images[splits.test.sources.index("test/0"), 0]
    assert splits.test.labels[0] == 7 and seven.sum() > 0
    assert time.perf_counter() - begun < 15  # one or two seconds on an idle machine
    quarter = load("mnist", root=root, train_fraction=0.25)
    assert abs(len(quarter.train) - 12_000) <= 10 and quarter.test.fingerprint() == splits.test.fingerprint()


@pytest.mark.data
def test_real_ahcd_stands_upright():
    splits = load("ahcd", root=real("ahcd", "ahcd_csv.zip"))
    pictures = real("ahcd", "ahcd_test_png.zip")
    assert splits.image_size == (32, 32) and splits.n_classes == 28 and splits.notes == ()
    counts = splits.train.labels.bincount() + splits.validation.labels.bincount()
    assert counts.tolist() == [480] * 28 and splits.test.labels.bincount().tolist() == [120] * 28
    agree, turned = [], []
    with zipfile.ZipFile(pictures) as archive:
        for row in range(0, 3360, 60):
            label = int(splits.test.labels[row]) + 1
            with Image.open(io.BytesIO(archive.read(f"test/id_{row + 1}_label_{label}.png"))) as image:
                ink = np.asarray(image) > 127
            ours = splits.test.images[row, 0].numpy() > 127
            agree.append((ours == ink).mean())
            turned.append((ink == ours.T).mean())
    assert np.mean(agree) > 0.9 > np.mean(turned)
