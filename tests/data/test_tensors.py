"""`data.arrays`: a user's tensors, arrays and lists: fixed splits, and errors for bad ones."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from qnnkit import data
from qnnkit.data import ImageSplits, TensorSplits
from qnnkit.data.splits import SPLITS
from qnnkit.settings import Settings
from tests.toys import fill, noise, refused

N = 40
X = torch.randn(N, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
LABELS = torch.arange(N) % 4


def split(inputs=X, targets=LABELS, classes=None, sides=None, **settings):
    return data.arrays(Settings(**settings), inputs, targets, classes=classes, sides=sides)


def rows(splits: TensorSplits, name: str) -> list[int]:
    return [int(source.split("/")[1]) for source in splits.split(name).sources]


# --- results ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("targets", [LABELS, X[:, 0], X[:, :2]], ids=["labels", "numbers", "vectors"])
def test_every_row_is_in_one_split_with_its_target(targets):
    splits = split(targets=targets, validation_fraction=0.1, test_fraction=0.3)
    assert isinstance(splits, TensorSplits) and [len(splits.split(name)) for name in SPLITS] == [24, 4, 12]
    assert sorted(row for name in SPLITS for row in rows(splits, name)) == list(range(N))
    for name in SPLITS:
        part, indices = splits.split(name), rows(splits, name)
        assert indices == sorted(indices) and torch.equal(part.inputs, X[indices].float())
        expected = targets[indices].float() if targets.is_floating_point() else targets[indices]
        assert torch.equal(part.targets, expected) and part.targets.dtype == expected.dtype
    assert splits.sizes["input_shape"] == (3,) and splits.sizes["target_shape"] == tuple(targets.shape[1:])
    assert splits.sizes.get("n_classes") == splits.n_classes == (4 if targets is LABELS else None)
    assert torch.equal(splits.example(2), splits.train.inputs[:2])
    some = split(targets=targets, train_fraction=0.5)
    assert some.fingerprint() == split(targets=targets).keep(0.5).fingerprint()


def test_rows_in_two_splits_are_reported():
    splits = split(X[:20].repeat(2, 1))
    [note], sides = splits.notes, {row: name for name in SPLITS for row in rows(splits, name)}
    n = sum(sides[row] != sides[row + 20] for row in range(20))
    assert note.startswith(f"Duplicates: {n} of 16 samples of validation and test are ") and 0 < n < 16
    assert split().notes == () and split(X[:, 0]).notes == ()


IDS = torch.arange(N)[:, None] * 1000
ODD = "Targets 1, 3, 5, 7 are classes, numbered from 0. For a regression, pass floats."
CHANGED = [
    *((IDS.to(dtype) + 2**24 - 1, LABELS, "Rounded 39 of the inputs (above 16,7") for dtype in (int, float)),
    (X, 2 * LABELS + 1, ODD),
    (X, 0 * LABELS, ODD.replace("1, 3, 5, 7", "0")),
    (X.mul(99).byte()[:, :, None], 2 * LABELS + 1, ODD),
]


@pytest.mark.parametrize(("inputs", "targets", "note_start"), CHANGED)
def test_converted_numbers_are_reported(inputs, targets, note_start):
    assert any(note.startswith(note_start) for note in split(inputs, targets).notes)


def test_pillow_images_give_pixels_not_palette_indices():
    images = [Image.fromarray(noise(8, 8, 3, seed=seed)).quantize(9) for seed in range(N)]
    pixels = np.stack([np.asarray(image.convert("RGB")) for image in images])
    assert split(images).fingerprint() == split(pixels).fingerprint()


def test_labels_are_split_per_class():
    uneven = torch.tensor([0] * 30 + [1] * 10)
    splits = split(targets=uneven, classes=np.array(["no", "yes"]))
    assert splits.classes == ("no", "yes") and splits.n_classes == 2
    assert [splits.split(name).labels.bincount().tolist() for name in SPLITS] == [[18, 6], [6, 2], [6, 2]]
    few = split(targets=uneven, train_fraction=0.1)
    assert few.train.labels.unique().tolist() == [0, 1], "a small share keeps every class"
    for values, names in ((2 * LABELS + 1, "1 3 5 7"), (LABELS - 1, "-1 0 1 2")):
        gaps = split(targets=values)
        assert gaps.classes == tuple(names.split()) and torch.equal(gaps.train.labels, split().train.labels)


@pytest.mark.parametrize("shape", [(3,), (6, 5)], ids=["numbers", "images"])
def test_given_splits_are_kept(shape):
    inputs = torch.randint(256, (N, *shape), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    sides = ["train"] * 24 + ["test"] * 8 + ["validation"] * 8
    splits = split(inputs, sides=pd.Series(sides))
    drawn = split(inputs[:32], LABELS[:32], sides=sides[:32])
    assert [rows(splits, name) for name in SPLITS] == [[*range(24)], [*range(32, 40)], [*range(24, 32)]]
    assert rows(drawn, "test") == [*range(24, 32)] and len(drawn.validation) == 5
    for wrong in (sides[1:], ["train"] * (N - 1) + ["valid"]):
        with refused("sides"):
            split(inputs, sides=wrong)


LIKE = {
    "numbers": lambda x: x.numpy().tolist(),
    "tensors": list,
    "a frame": lambda x: pd.DataFrame(x.numpy()).squeeze(),
    "a graph": lambda x: x.clone().requires_grad_(),
    "mixed columns": lambda x: pd.DataFrame(x.numpy()).astype(object).squeeze(),
    "backwards": lambda x: x.numpy()[::-1].copy()[::-1],
    "big endian": lambda x: x.numpy().astype(">f8"),
    "read only": lambda x: np.broadcast_to(x.numpy(), x.shape),
}


@pytest.mark.parametrize("like", LIKE.values(), ids=LIKE)
def test_the_same_numbers_in_another_form_are_the_same_data(like):
    splits = split(like(X), like(X[:, 0]))
    assert splits.fingerprint() == split(targets=X[:, 0]).fingerprint()
    assert not splits.train.inputs.requires_grad


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.bool])
def test_any_integer_type_gives_labels_and_features_of_a_linear_layer(dtype):
    counts = (torch.arange(N * 5) % 200).reshape(N, 5).to(dtype)
    splits = split(counts, (LABELS % 2).to(dtype))
    assert splits.fingerprint() == split(counts.float(), LABELS % 2).fingerprint()


@pytest.mark.parametrize("shape", [(6, 5), (1, 6, 5), (3, 6, 5), (6, 5, 1), (6, 5, 3)])
def test_arrays_of_bytes_are_images(shape):
    images = torch.randint(256, (N, *shape), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    splits = split(images, classes=list("abcd"))
    assert isinstance(splits, ImageSplits) and splits.classes == tuple("abcd")
    assert splits.sizes == {"channels": 3 if 3 in shape else 1, "image_size": (6, 5), "n_classes": 4}
    for name in SPLITS:
        part, indices = splits.split(name), rows(splits, name)
        expected = images[indices].movedim(-1, 1) if shape[2:] and shape[2] < 4 else images[indices]
        assert torch.equal(part.images, expected.reshape(part.images.shape))
        assert torch.equal(part.labels, LABELS[indices])
        other = replace(splits, **{name: replace(part, labels=part.labels.roll(1))})
        assert other.fingerprint() != splits.fingerprint(), "labels do not count"
    assert isinstance(split(images, X[:, 0]), TensorSplits), "the images have no labels"


def test_the_fingerprint_covers_numbers_targets_and_splits():
    changed, copy = X.clone(), X.float()
    changed[7, 1] += 1e-3
    splits = [split(copy), split(changed), split(targets=LABELS.roll(1)), split(split_seed=3)]
    splits += [split(train_fraction=0.5), split(targets=LABELS.double()), split(X[:, :, None])]
    copy.zero_()  # the user changes the tensor later
    prints = [each.fingerprint() for each in splits]
    assert len(set(prints)) == len(prints) and prints[0] == split(X.clone()).fingerprint()


def test_hub_images_load_by_the_code_of_the_docs(tmp_path):
    """`datasets` reads a local folder offline in the same way as one of the Hub."""
    both = (("train", 10), ("test", 4))
    names = [f"{side}/{name}/{i}.png" for side, n in both for name in ("cat", "dog") for i in range(n)]
    folder = fill(tmp_path / "pets", names)
    page = (Path(__file__).parents[2] / "docs" / "your_own.md").read_text()
    [lines] = [block for block in page.split("```python\n") if "load_dataset" in block]
    scope: dict = {}
    exec(lines.partition("```")[0].replace("ylecun/mnist", str(folder)), scope)
    splits, direct = scope["load"](Settings()), data.load("class_folder", root=folder)
    assert sorted(map(bytes, splits.test.images.numpy())) == sorted(map(bytes, direct.test.images.numpy()))
    assert len(splits.train) + len(splits.validation) == 20 and splits.classes == ("0", "1")


# --- errors -------------------------------------------------------------------------------------------------


def broken(value: float) -> torch.Tensor:
    """1e300 is finite in float64 but not in float32, in which nets compute."""
    return X.clone().index_fill_(0, torch.tensor([3, 5]), value)


WRONG = [
    *(("inputs", broken(value), LABELS, None) for value in (float("nan"), float("inf"), 1e300)),
    ("inputs", [[1.0, 2.0], [3.0], [4.0, 5.0]], LABELS, None),
    ("inputs", X.to(torch.complex64), LABELS, None),
    ("inputs", np.ma.masked_greater(X.numpy(), 1), LABELS, None),
    ("inputs", X[:2], LABELS[:2], None),
    ("inputs", np.zeros((N, 0, 0), np.uint8), LABELS, None),
    ("inputs", pd.DataFrame({"x": [1.0] * N, "day": pd.date_range("2026", periods=N)}), LABELS, None),
    ("targets", X, ["a"] * N, None),
    ("targets", X, LABELS[:-1], None),
    ("inputs", {0: X, 1: X, 2: X}, [0, 1, 0], None),
    ("targets", X, torch.arange(N), None),
    ("targets", X, LABELS - 1, list("abcd")),
    ("targets", X, LABELS, "abcd"),
    ("targets", X.byte().reshape(N, 1, 3), LABELS * 0, None),
    ("classes", X, LABELS, ["a", "b", "b", "c"]),
    ("classes", X, X[:, 0], ["a", "b"]),
]


@pytest.mark.parametrize(("argument", "inputs", "targets", "classes"), WRONG)
def test_input_that_cannot_be_split_raises_an_error(argument, inputs, targets, classes):
    with refused(argument):
        split(inputs, targets, classes)
