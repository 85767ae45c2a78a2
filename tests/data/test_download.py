"""Fetching over real HTTP from a server of our own: whole and checked, or one clear sentence."""

from __future__ import annotations

import gc
import hashlib
import http.server
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from qnnkit.data import load, public
from qnnkit.data.text import documents
from tests import toys
from tests.toys import archive, idx_files, no_workspace


@dataclass
class Served:
    """What a server gives, how it misbehaves, and what it was asked for."""

    files: dict[str, bytes] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)  # bytes after which a connection breaks, one answer each
    asked: list[str] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def server():
    served = Served()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.lstrip("/")
            served.asked.append(name)
            if name not in served.files:
                self.send_error(404)
                return
            content = served.files[name]
            self.send_response(200)
            self.send_header("ETag", hashlib.md5(content).hexdigest())
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: served.cuts.pop(0) if served.cuts else len(content)])
            self.close_connection = True

        def log_message(self, *given: object) -> None:
            pass

    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{web.server_port}/"
    thread = threading.Thread(target=web.serve_forever, args=(0.05,))
    thread.start()
    yield served
    web.shutdown()
    thread.join()
    web.server_close()


@pytest.fixture(autouse=True)
def store(monkeypatch, tmp_path) -> Path:
    return no_workspace(monkeypatch, tmp_path)


@pytest.fixture
def files(server, monkeypatch) -> dict[str, bytes]:
    """The four files of a small MNIST, which the server gives."""
    files = idx_files(suffix=".gz")
    server.files |= files
    sums = {name: f"md5:{hashlib.md5(each).hexdigest()}" for name, each in files.items()}
    entry = public.PUBLIC["mnist"] | {"address": server.url, "files": sums}
    monkeypatch.setitem(public.PUBLIC, "mnist", entry)
    return files


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # pooch leaves a socket open
@pytest.mark.parametrize(
    ("kind", "reason"),
    [("cut", "IncompleteRead"), ("wrong", "does not match"), ("no", "404")],
)
def test_what_does_not_come_whole_is_refused_and_leaves_nothing(server, files, store, kind, reason):
    first = next(iter(files))
    server.files[first] = files[first][::-1] if kind == "wrong" else files[first]
    server.cuts = [70] if kind == "cut" else []
    server.files.pop(first if kind == "no" else None, None)
    with toys.refused("download", OSError) as told:
        load("mnist", download=True)
    assert reason in str(told.value) and str(store / "mnist" / first) in str(told.value)
    assert not [*store.glob("mnist/*")]
    del told
    gc.collect()
    server.files[first] = files[first]
    assert len(load("mnist", download=True).test) == 40


def test_a_dataset_is_fetched_only_when_asked(server, files, tmp_path, store, monkeypatch):
    with pytest.raises(FileNotFoundError, match="set download to true"):
        load("mnist")
    assert server.asked == [] and not store.exists()
    splits = load("mnist", download=True)
    assert len(splits.test) == 40 and len(server.asked) == 4
    assert sorted(path.name for path in (store / "mnist").iterdir()) == sorted(files)
    assert load("mnist").fingerprint() == load("mnist", download=True).fingerprint() == splits.fingerprint()
    assert len(server.asked) == 4

    own = tmp_path / "own"
    assert load("mnist", root=own, download=True).fingerprint() == splits.fingerprint()
    assert sorted(path.name for path in own.iterdir()) == sorted(files)
    (own / "t10k-labels-idx1-ubyte.gz").unlink()
    (own / "train-images-idx3-ubyte.gz").rename(own / "train-images-idx3-ubyte")  # your own, as it is
    server.asked.clear()
    assert load("mnist", root=own, download=True).fingerprint() == splits.fingerprint()
    assert server.asked == ["t10k-labels-idx1-ubyte.gz"]

    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path / "home"))  # a workspace keeps its own
    assert load("mnist", download=True).fingerprint() == splits.fingerprint()
    assert len(list((tmp_path / "home" / "datasets" / "mnist").iterdir())) == 4


def test_a_download_does_not_fill_an_archive(tmp_path):
    archive(tmp_path / "part.tar", dict([*idx_files(suffix=".gz").items()][:3]))
    for name in ("none.zip", "part.tar"):
        with toys.refused("root", FileNotFoundError):
            load("mnist", root=tmp_path / name, download=True)
    assert not (tmp_path / "none.zip").exists()


def test_an_archive_at_an_address(server, tmp_path, store):
    server.files["data/all.zip"] = archive(tmp_path / "all.zip", idx_files(suffix=".gz")).read_bytes()
    first = load("mnist", root=f"{server.url}data/all.zip")
    assert load("mnist", root=f"{server.url}data/all.zip").fingerprint() == first.fingerprint()
    assert server.asked == ["data/all.zip"] * 3  # what is said of it, twice; all of it, once
    with pytest.raises(OSError, match=r"Argument `root` must be within reach.*404 Client Error"):
        load("mnist", root=f"{server.url}data/none.zip")


def test_a_file_that_changed_at_its_address_is_copied_again(server):
    texts = [f"{word} " * 400 for word in ("first", "other")]  # of one length
    for content in texts:
        server.files["a.txt"] = content.encode()
        for _ in range(2):
            server.asked.clear()
            assert documents(f"{server.url}a.txt")[0][0].text == content.strip()
        assert len(server.asked) == 1
    del server.files["a.txt"]
    with pytest.warns(UserWarning, match=r"\(404 Client Error.*\); the copy from before is used"):
        assert documents(f"{server.url}a.txt")[0][0].text == texts[1].strip()


@pytest.mark.data
def test_real_files_have_the_checksums():
    for name, file in (("mnist", None), ("ahcd", "ahcd_csv.zip")):
        for there, checksum in public.PUBLIC[name]["files"].items():
            content = toys.real(name, file or there).read_bytes()
            assert checksum == f"sha256:{hashlib.sha256(content).hexdigest()}"


def test_a_copy_that_breaks_off_is_not_taken_for_whole(server, tmp_path, store):
    whole = archive(tmp_path / "all.zip", idx_files(suffix=".gz")).read_bytes()
    server.files["all.zip"], server.cuts = whole, [len(whole), len(whole) // 2]
    with toys.refused("root", OSError):
        load("mnist", root=f"{server.url}all.zip")
    assert not [*store.glob("copies/*/all.zip")] and not [*store.glob("copies/.*")]
    assert len(load("mnist", root=f"{server.url}all.zip").test) == 40
