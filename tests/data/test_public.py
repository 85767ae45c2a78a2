"""MNIST, similar sets and AHCD: downloads from a local server, every form of the files, every fault."""

import functools
import gc
import gzip
import hashlib
import http.server
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from qnnkit.data import load, public
from qnnkit.data.splits import SPLITS
from tests.toys import ahcd_files, archive, idx_bytes, idx_files, no_workspace, noise, real, refused, write

KINDS = tuple(f"{side}-{kind}-ubyte" for side in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))


@pytest.fixture
def server(tmp_path_factory):
    """A served folder, the requests so far, and the bytes after which the next answer breaks off."""
    served = SimpleNamespace(folder=tmp_path_factory.mktemp("served"), asked=[], cut=None)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def copyfile(self, source: Any, outputfile: Any) -> None:
            outputfile.write(source.read()[: served.cut])

        def log_message(self, *args: object) -> None:
            served.asked.append(self.path)

    handler = functools.partial(Handler, directory=served.folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        served.url = f"http://127.0.0.1:{web.server_port}/"
        threading.Thread(target=web.serve_forever, args=(0.05,)).start()
        yield served
        web.shutdown()


@pytest.fixture(autouse=True)
def store(monkeypatch, tmp_path) -> Path:
    return no_workspace(monkeypatch, tmp_path)


FAULTS = [
    ("", "cut", "IncompleteRead"),
    ("", "wrong", "does not match"),
    ("all.zip", "cut", "IncompleteRead"),
    ("all.zip", "gone", "404 Client Error"),
]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # pooch closes no socket
@pytest.mark.parametrize(("name", "fault", "reason"), FAULTS)
def test_a_broken_download_leaves_no_files(server, store, monkeypatch, name, fault, reason):
    """The four files of the dataset, or an archive at an address."""
    files = idx_files(suffix=".gz")
    sums = {each: f"md5:{hashlib.md5(content).hexdigest()}" for each, content in files.items()}
    entry = public.PUBLIC["mnist"] | {"address": server.url, "files": sums}
    monkeypatch.setitem(public.PUBLIC, "mnist", entry)
    archive(write(server.folder, files) / "all.zip", files)
    root, first = name and server.url + name, server.folder / (name or KINDS[0] + ".gz")
    content = first.read_bytes()
    server.cut = 70 if fault == "cut" else None
    if fault == "gone":
        first.unlink()
    elif fault == "wrong":
        first.write_bytes(content[::-1])
    with refused("root", OSError) as caught:
        load("mnist", root=root)
    assert reason in str(caught.value) and (root or entry["page"]) in str(caught.value)
    assert not [*store.glob("mnist/*"), *store.glob("copies/*/*.zip"), *store.glob("copies/.*")]
    del caught
    gc.collect()
    first.write_bytes(content)
    server.asked, server.cut = [], None
    splits = load("mnist", root=root)
    assert len(splits.test) == 40 and load("mnist", root=root).fingerprint() == splits.fingerprint()
    assert len(server.asked) == (1 if root else 4)


@pytest.mark.data
def test_real_files_match_the_checksums():
    assert load("mnist", root=real("mnist")).test.labels[0] == 7
    for name, file in (("mnist", None), ("ahcd", "ahcd_csv.zip")):
        for there, checksum in public.PUBLIC[name]["files"].items():
            assert checksum == f"sha256:{hashlib.sha256(real(name, file or there).read_bytes()).hexdigest()}"


# --- files -------------------------------------------------------------------------------------------------

WHOLE = idx_files((60, 60), (5, 7))


def test_every_form_of_the_four_files_gives_the_same_images(tmp_path):
    plain = load("mnist", root=write(tmp_path / "plain", WHOLE))
    sizes = [len(plain.split(name)) for name in ("train", "validation", "test")]
    assert plain.image_size == (5, 7) and sizes == [48, 12, 60]
    first = plain.test.images[plain.test.sources.index("mnist/63"), 0].numpy()
    assert (first == noise(60, 5, 7, seed=1)[3]).all()
    packed = {f"MNIST/raw/{name}.gz": gzip.compress(each) for name, each in WHOLE.items()}
    dotted = {name.replace("-idx", ".idx"): each for name, each in WHOLE.items()}
    zipped = archive(tmp_path / "all.zip", packed)
    for root in (write(tmp_path / "packed", packed), write(tmp_path / "dotted", dotted), zipped):
        assert load("mnist", root=root).fingerprint() == plain.fingerprint()
    assert load("fashion_mnist", root=zipped).classes[9] == "Ankle boot"


LABELS, LETTERS = "csvTrainLabel 112x1.csv", "csvTestImages 56x1024.csv"
WRONG = [
    (KINDS[0], lambda each: each + b"more"),
    (KINDS[0], lambda each: gzip.compress(each)[:-400]),
    (KINDS[0], lambda each: gzip.compress(each)[:40] + b"xxxxxxx" * 300),
    (KINDS[0], lambda each: idx_bytes(np.zeros(60))),  # labels
    (KINDS[1], lambda each: idx_bytes(np.arange(59) % 10)),
    (KINDS[1], lambda each: idx_bytes(np.r_[np.arange(58) % 10, 10, 255])),
    (KINDS[2], lambda each: idx_bytes(noise(60, 6, 7))),  # a different size
    (KINDS[3], None),
    (LABELS, lambda each: each.partition(b"\n")[2]),
    *((LABELS, lambda each, to=to: re.sub(rb"^\d+", to, each)) for to in (b"0", b"alef")),
    (LETTERS, lambda each: re.sub(rb"^\d+", b"300", each)),
]


@pytest.mark.parametrize(("name", "change"), WRONG)
def test_wrong_or_missing_files_raise_an_error(tmp_path, name, change):
    folder = ahcd_files(tmp_path / "x") if name.endswith("csv") else write(tmp_path, WHOLE)
    content = (folder / name).read_bytes()
    (folder / name).unlink()
    if change is not None:
        (folder / name).write_bytes(change(content))
    with refused("root") as caught:
        load("ahcd" if name.endswith("csv") else "mnist", root=folder)
    assert change is not None or ("Its test labels" in str(caught.value) and "https://" in str(caught.value))


@pytest.mark.data
def test_real_ahcd_equals_its_pictures_upright():
    splits = load("ahcd", root=real("ahcd", "ahcd_csv.zip"))
    assert splits.image_size == (32, 32) and splits.n_classes == 28 and splits.notes == ()
    counts = splits.train.labels.bincount() + splits.validation.labels.bincount()
    assert counts.tolist() == [480] * 28 and splits.test.labels.bincount().tolist() == [120] * 28
    pngs = load("flat_folder", root=real("ahcd", "ahcd_test_png.zip"), label_pattern=r"label_(\d+)")
    assert pngs.classes == tuple(str(label) for label in range(1, 29)) and "Left" not in "".join(pngs.notes)
    parts = [pngs.split(name) for name in SPLITS]
    numbers = [int(source.split("_")[1]) for part in parts for source in part.sources]  # id_3360_label_28.png
    images, labels = (torch.cat([vars(part)[kind] for part in parts]) for kind in ("images", "labels"))
    ink, ours = images[np.argsort(numbers)] > 127, splits.test.images > 127
    assert labels[np.argsort(numbers)].equal(splits.test.labels)
    assert (ours == ink).float().mean() > 0.9 > (ours.mT == ink).float().mean()
