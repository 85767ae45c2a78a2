"""MNIST's idx files and AHCD's CSV files: whole, and wrong in every way."""

from __future__ import annotations

import gzip
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qnnkit.data import load
from tests.toys import ahcd_files, archive, idx_bytes, idx_files, noise, real, refused

KINDS = tuple(f"{side}-{kind}-ubyte" for side in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))


@pytest.fixture(autouse=True)
def no_store(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def whole() -> dict[str, bytes]:
    return idx_files((60, 60), (5, 7))


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
    first = plain.test.images[plain.test.sources.index("mnist/63"), 0].numpy()
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
    (tmp_path / "ahcd").mkdir()
    for name, root in (("mnist", write(tmp_path / "three", files)), ("ahcd", tmp_path / "ahcd")):
        with refused("root") as told:
            load(name, root=root)
        assert "Its t" in str(told.value) and "https://" in str(told.value)
    with refused("root", FileNotFoundError):
        load("mnist", root=tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("csvTrainLabel 112x1.csv", lambda text: text.partition("\n")[2]),
        ("csvTrainLabel 112x1.csv", lambda text: "29" + text[1:]),
        ("csvTrainLabel 112x1.csv", lambda text: "0" + text[1:]),
        ("csvTrainLabel 112x1.csv", lambda text: "1\nalef\n"),
        ("csvTestImages 56x1024.csv", lambda text: "300" + text[text.index(",") :]),
        ("csvTestImages 56x1024.csv", lambda text: text.replace(",", " ", 1)),
    ],
)
def test_ahcd_that_is_wrong(tmp_path, name, change):
    folder = ahcd_files(tmp_path / "x")
    file = folder / name
    file.write_text(change(file.read_text()))
    with refused("root"):
        load("ahcd", root=folder)


@pytest.mark.data
def test_real_mnist():
    splits = load("mnist", root=real("mnist"))
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (48_000, 12_000, 10_000)
    assert splits.image_size == (28, 28) and splits.channels == 1 and splits.notes == ()
    counts = splits.train.labels.bincount() + splits.validation.labels.bincount()
    assert counts.tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert splits.test.labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    seven = splits.test.images[splits.test.sources.index("mnist/60000"), 0]
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
