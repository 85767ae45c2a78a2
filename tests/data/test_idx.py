"""Datasets that come as arrays: idx files, AHCD's CSV files, .npz; whole, and wrong in every way."""

from __future__ import annotations

import gzip
import io
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qnnkit.data import load
from tests.toys import archive, idx_bytes, idx_files, noise, real, refused

KINDS = tuple(f"{side}-{kind}-ubyte" for side in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))


@pytest.fixture(autouse=True)
def no_store(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def whole() -> dict[str, bytes]:
    return idx_files(60, (5, 7))


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, each in files.items():
        (folder / name).write_bytes(each)
    return folder


def test_every_form_of_the_four_files_gives_the_same_images(tmp_path):
    files = whole()
    plain = load("mnist", root=write(tmp_path / "plain", files))
    sizes = [len(plain.split(name)) for name in ("train", "validation", "test")]
    assert plain.image_size == (5, 7) and sizes == [48, 12, 60]
    first = plain.test.images[plain.test.sources.index("test/3"), 0].numpy()
    assert (first == noise(60, 5, 7, seed=1)[3]).all()
    packed = {f"{name}.gz": gzip.compress(each) for name, each in files.items()}
    dotted = {name.replace("-idx", ".idx"): each for name, each in files.items()}
    deeper = write(tmp_path / "root" / "MNIST" / "raw", files).parent.parent
    zipped = archive(tmp_path / "all.zip", {f"mnist/{name}": each for name, each in packed.items()})
    roots = [write(tmp_path / "packed", packed), write(tmp_path / "dotted", dotted), deeper, zipped]
    for root in roots:
        assert load("mnist", root=root).fingerprint() == plain.fingerprint()
    assert load("fashion_mnist", root=zipped).classes[9] == "Ankle boot"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (KINDS[0], lambda each: each[:1000]),
        (KINDS[0], lambda each: b""),
        (KINDS[0], lambda each: each + b"more"),
        (KINDS[0], lambda each: gzip.compress(each)[:-400]),
        (KINDS[0], lambda each: gzip.compress(each)[:40] + b"xxxxxxx" * 300),
        (KINDS[0], lambda each: idx_bytes(np.zeros(60))),  # labels
        (KINDS[1], lambda each: idx_bytes(np.arange(59) % 10)),
        (KINDS[1], lambda each: idx_bytes(np.r_[np.arange(58) % 10, 10, 255])),
        (KINDS[2], lambda each: idx_bytes(noise(60, 6, 7))),  # another size
        (KINDS[3], lambda each: idx_bytes(np.zeros(60))),  # one class alone
    ],
)
def test_files_that_are_wrong(tmp_path, name, change):
    files = whole()
    files[name] = change(files[name])
    with refused("root"):
        load("mnist", root=write(tmp_path / "x", files))


def test_what_is_missing_is_named_with_where_to_get_it(tmp_path):
    files = whole()
    del files[KINDS[3]]
    for root in (write(tmp_path / "three", files), None, tmp_path / "nowhere"):
        for name in ("mnist", "ahcd"):
            with refused("root", FileNotFoundError) as told:
                load(name, root=root)
            assert all(each in str(told.value) for each in ("test labels", "https://", "download to true"))
    assert not (tmp_path / "cache").exists()  # looking makes nothing


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
    of = int(splits.train.sources[0].partition("/")[2])
    assert (splits.train.images[0, 0].numpy() == pixels[of].reshape(32, 32).T).all()
    wrong = [
        (pixels, labels[:139]),
        (pixels, np.r_[0, labels[1:-1], 29]),
        (np.where(pixels == pixels.max(), 300, pixels), labels),
        (pixels[:, :1000], labels),
    ]
    for number, (images, values) in enumerate(wrong):
        with refused("root"):
            load("ahcd", root=csv(tmp_path / str(number), images, values))
    (tmp_path / "good" / "csvTrainLabel 140x1.csv").write_text("1\nalef\n")
    with refused("root"):
        load("ahcd", root=tmp_path / "good")


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
        "first": {"images": images[:, None], "labels": labels},
        "in and out": {"Inputs": images, "targets": labels},
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
    letters = np.array(list("abcd"))[labels]
    other = load("npz", root=npz(tmp_path / "order.npz", images=images, labels=letters, classes=list("dcba")))
    assert other.classes == ("d", "c", "b", "a")
    for label, source in zip(other.test.labels.tolist(), other.test.sources, strict=True):
        assert "dcba"[label] == letters[int(source)]
    sides = {"val_images": images[:8], "val_labels": labels[:8], "more": labels}
    three = load("npz", root=npz(tmp_path / "three.npz", images=images, labels=labels, **sides))
    assert (len(three.train), len(three.validation), len(three.test)) == (32, 8, 8)
    assert three.notes[0] == "Left out 1 arrays of other names: more."
    assert three.notes[1].startswith("There is no test part")


IMAGES, LABELS = noise(40, 5, 4), np.arange(40) % 4
PARTS = {"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES[:8], "y_test": LABELS[:8]}
WRONG = {
    "other names": {"pictures": IMAGES},
    "a label too few": {"images": IMAGES, "labels": LABELS[1:]},
    "a label below 0": {"images": IMAGES, "labels": LABELS - 1},
    "a class of the test part alone": PARTS | {"y_test": np.r_[LABELS[:7], 9]},
    "a class without a name": {"images": IMAGES, "labels": LABELS, "classes": ["a", "b"]},
    "real numbers to 255": {"images": np.where(IMAGES > 250, 255.0, IMAGES), "labels": LABELS},
    "one image": {"images": IMAGES[0], "labels": LABELS},
    "one-hot labels": {"images": IMAGES, "labels": np.eye(4)[LABELS]},
    "two sizes": PARTS | {"x_test": noise(8, 6, 4)},
    "one class": {"images": IMAGES, "labels": LABELS * 0},
    "names that are no list": {"images": IMAGES, "labels": LABELS, "classes": np.str_("abcd")},
    "objects": {"images": np.array([{}], dtype=object), "labels": LABELS},
}


@pytest.mark.parametrize("arrays", WRONG.values(), ids=WRONG)
def test_npz_that_is_wrong(tmp_path, arrays):
    with refused("classes" if "classes" in arrays and np.ndim(arrays["classes"]) == 0 else "root"):
        load("npz", root=npz(tmp_path / "x.npz", **arrays))


def test_npz_that_is_damaged_or_claims_too_much(tmp_path, monkeypatch):
    good = npz(tmp_path / "good.npz", images=IMAGES, labels=LABELS)
    (tmp_path / "cut.npz").write_bytes(good.read_bytes()[:300])
    head, claim = io.BytesIO(), {"shape": (2**40, 5, 4), "fortran_order": False, "descr": "|u1"}
    np.lib.format.write_array_header_1_0(head, claim)
    archive(tmp_path / "huge.zip", {"images.npy": head.getvalue() + b"0" * 800}).rename(tmp_path / "huge.npz")
    for name in ("cut", "huge", "nowhere"):
        with refused("root"):
            load("npz", root=tmp_path / f"{name}.npz")
    monkeypatch.setattr(sys.modules["qnnkit.data.arrays"], "MAX_BYTES", 800)
    with refused("root"):
        load("npz", root=good)


@pytest.mark.data
def test_real_mnist():
    splits = load("mnist", root=real("mnist"))
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (48_000, 12_000, 10_000)
    assert splits.image_size == (28, 28) and splits.channels == 1 and splits.notes == ()
    counts = splits.train.labels.bincount() + splits.validation.labels.bincount()
    assert counts.tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert splits.test.labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    seven = splits.test.images[splits.test.sources.index("test/0"), 0]
    assert splits.test.labels[0] == 7 and seven.sum() > 0


@pytest.mark.data
def test_real_ahcd_stands_upright():
    splits = load("ahcd", root=real("ahcd", "ahcd_csv.zip"))
    pictures = real("ahcd", "ahcd_test_png.zip")
    assert splits.image_size == (32, 32) and splits.n_classes == 28 and splits.notes == ()
    counts = splits.train.labels.bincount() + splits.validation.labels.bincount()
    assert counts.tolist() == [480] * 28 and splits.test.labels.bincount().tolist() == [120] * 28
    agree, turned = [], []
    with zipfile.ZipFile(pictures) as there:
        for row in range(0, 3360, 60):
            label = int(splits.test.labels[row]) + 1
            with Image.open(io.BytesIO(there.read(f"test/id_{row + 1}_label_{label}.png"))) as image:
                ink = np.asarray(image) > 127
            ours = splits.test.images[row, 0].numpy() > 127
            agree.append((ours == ink).mean())
            turned.append((ink == ours.T).mean())
    assert np.mean(agree) > 0.9 > np.mean(turned)
