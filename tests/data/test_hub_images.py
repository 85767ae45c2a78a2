"""Images of the Hub: what `datasets` reads becomes splits; where it is not installed, one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from qnnkit import data, recipes
from qnnkit.data import load
from qnnkit.runs.folder import Run
from tests.toys import fill, refused


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two classes in train/ and test/, which `datasets` reads offline as it reads the Hub's."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    both = (("train", 10), ("test", 4))
    names = [f"{side}/{name}/{i}.png" for side, n in both for name in ("cat", "dog") for i in range(n)]
    return fill(tmp_path / "pets", names)


def test_it_is_a_dataset_of_images_with_their_options(tmp_path):
    assert data.kind("hub:anyone/anything") == "images"
    assert data.takes("hub:anyone/anything", "grey") and not data.takes("hub:anyone/anything", "download")
    with refused("label_pattern"):
        load("hub:anyone/anything", label_pattern="(x)")
    named = recipes.settings("digits_quanv", dataset="hub:anyone/anything", data_dir=str(tmp_path))
    for dataset in (named, named.override(dataset="digits")):  # neither reads a folder
        with refused("data_dir"):
            data.of(dataset)


def test_what_datasets_reads(folder, tmp_path):
    splits = load(f"hub:{folder}")
    direct = load("class_folder", root=folder)
    assert splits.classes == ("cat", "dog") and splits.image_size == (6, 5) and splits.channels == 1
    assert len(splits.test) == 8 and len(splits.train) + len(splits.validation) == 20
    assert sorted(map(bytes, splits.test.images.numpy())) == sorted(map(bytes, direct.test.images.numpy()))
    assert splits.fingerprint() == load(f"hub:{folder}").fingerprint()
    assert load(f"hub:{folder}", image_size=4, grey=False).train.images.shape[1:] == (3, 4, 4)
    run = Run(tmp_path / "run", recipes.settings("digits_quanv", dataset=f"hub:{folder}"))
    assert run.recipe.load(run.config).fingerprint() == splits.fingerprint()
    (folder / "train" / "cat" / "0.png").write_bytes(b"no image")
    assert load(f"hub:{folder}").notes[0].startswith("Left out 1 of 28 images that cannot be read: train/0 (")
    with refused("dataset"):
        load(f"hub:{tmp_path / 'nowhere'}")
