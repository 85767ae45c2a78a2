"""Fetching over real HTTP from a server of our own: whole and checked, or one clear sentence."""

from __future__ import annotations

import hashlib
import http.server
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from qnnkit.data import download, load, places, public
from qnnkit.data.fetch import local
from qnnkit.data.text_files import documents
from tests import toys
from tests.toys import archive, idx_files, no_workspace


@dataclass
class Served:
    """What a server gives, how it misbehaves, and what it was asked for."""

    files: dict[str, bytes] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)  # bytes after which a connection breaks, one answer each
    ranges: bool = True
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def server():
    served = Served()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name, wanted = self.path.lstrip("/"), self.headers.get("Range")
            served.asked.append((name, wanted))
            if name not in served.files:
                self.send_error(404)
                return
            content, start = served.files[name], 0
            if wanted and served.ranges:
                start = int(wanted.removeprefix("bytes=").partition("-")[0])
                if start >= len(content):
                    self.send_error(416)
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            else:
                self.send_response(200)
            self.send_header("ETag", hashlib.md5(content).hexdigest())
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            cut = served.cuts.pop(0) if served.cuts else len(content)
            self.wfile.write(content[start : start + cut])
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


CONTENT = np.random.default_rng(0).bytes(2_000_000)
RIGHT = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


def refused(urls: list[str], path: Path, checksum: str | None = RIGHT) -> str:
    with toys.refused("download", OSError) as told:
        download(urls, path, checksum=checksum)
    assert str(path) in str(told.value) and not path.exists()
    return str(told.value)


def test_a_file_comes_once_with_a_bar(server, tmp_path, capsys):
    server.files["x.bin"] = CONTENT
    for _ in range(2):
        path = download([f"{server.url}x.bin"], tmp_path / "in" / "x.bin", checksum=RIGHT)
        assert path.read_bytes() == CONTENT
    assert server.asked == [("x.bin", None)]
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["x.bin"]
    assert "x.bin: 100%" in capsys.readouterr().err
    (tmp_path / "in" / "x.bin").write_bytes(CONTENT[:-1])  # damaged since
    md5 = f"md5:{hashlib.md5(CONTENT).hexdigest()}"
    assert download([f"{server.url}x.bin"], tmp_path / "in" / "x.bin", checksum=md5).read_bytes() == CONTENT


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_connection_is_gone_on_with(server, tmp_path, ranges):
    server.files["x.bin"], server.ranges = CONTENT, ranges
    server.cuts = [700_000, 600_000] if ranges else [700_000, 900_000]
    assert download([f"{server.url}x.bin"], tmp_path / "x.bin", checksum=RIGHT).read_bytes() == CONTENT
    asked = [wanted for _, wanted in server.asked]
    assert asked[:2] == [None, "bytes=700000-"] and len(asked) == 3
    assert asked[2] == ("bytes=1300000-" if ranges else "bytes=900000-")


def test_a_later_call_goes_on(server, tmp_path):
    server.files["x.bin"], server.cuts = CONTENT, [500_000, 0]
    text = refused([f"{server.url}x.bin"], tmp_path / "x.bin")
    assert "the connection broke again and again" in text and "500,000 bytes have come and are kept" in text
    assert (tmp_path / "x.bin.part").read_bytes() == CONTENT[:500_000]
    server.asked.clear()
    assert download([f"{server.url}x.bin"], tmp_path / "x.bin", checksum=RIGHT).read_bytes() == CONTENT
    assert server.asked == [("x.bin", "bytes=500000-")] and not (tmp_path / "x.bin.part").exists()


@pytest.mark.parametrize("before", [b"other" * 1000, CONTENT, CONTENT + b"more"])
def test_what_lay_there_before_is_checked(server, tmp_path, before):
    server.files["x.bin"] = CONTENT
    (tmp_path / "x.bin.part").write_bytes(before)
    assert download([f"{server.url}x.bin"], tmp_path / "x.bin", checksum=RIGHT).read_bytes() == CONTENT


def test_the_next_address_is_tried_and_every_reason_told(server, tmp_path, monkeypatch):
    server.files |= {"wrong.bin": CONTENT[::-1], "x.bin": CONTENT, "large.bin": bytes(3_000_000)}
    closed, unknown = "http://127.0.0.1:1/x.bin", "http://nowhere.invalid/x.bin"
    bad = [closed, unknown, f"{server.url}nowhere.bin", f"{server.url}wrong.bin", "ftp://example.org/x.bin"]
    text = refused(bad, tmp_path / "x.bin")
    told = ("Connection refused", "not reached: ", "HTTP 404 Not Found", "the checksum is wrong")
    assert all(reason in text for reason in (*told, "No connection adapters were found for 'ftp://"))
    assert list(tmp_path.glob("*x.bin*")) == []
    assert download([*bad, f"{server.url}x.bin"], tmp_path / "x.bin", checksum=RIGHT).read_bytes() == CONTENT
    monkeypatch.setattr(places, "MAX_BYTES", 2_500_000)
    assert "larger than 4 GiB (3,000,000 bytes)" in refused([f"{server.url}large.bin"], tmp_path / "y.bin")
    server.files["large.zip"] = server.files["large.bin"]
    with pytest.raises(OSError, match=r"failed \(larger than 4 GiB \(3,000,000 bytes\)\): check"):
        local(f"{server.url}large.zip")


def test_a_dataset_is_fetched_only_when_asked(server, tmp_path, store, monkeypatch):
    files = idx_files(suffix=".gz")
    server.files |= files
    sums = {name: f"md5:{hashlib.md5(each).hexdigest()}" for name, each in files.items()}
    entry = public.PUBLIC["mnist"] | {"mirrors": [f"{server.url}gone/", server.url], "files": sums}
    monkeypatch.setitem(public.PUBLIC, "mnist", entry)
    with pytest.raises(FileNotFoundError, match="set download to true"):
        load("mnist")
    assert server.asked == [] and not store.exists()
    splits = load("mnist", download=True)
    assert len(splits.test) == 40 and len(server.asked) == 8  # the first mirror has none
    assert sorted(path.name for path in (store / "mnist").iterdir()) == sorted(files)
    assert load("mnist").fingerprint() == load("mnist", download=True).fingerprint() == splits.fingerprint()
    assert len(server.asked) == 8

    own = tmp_path / "own"
    assert load("mnist", root=own, download=True).fingerprint() == splits.fingerprint()
    assert sorted(path.name for path in own.iterdir()) == sorted(files)
    (own / "t10k-labels-idx1-ubyte.gz").unlink()
    (own / "train-images-idx3-ubyte.gz").rename(own / "train-images-idx3-ubyte")  # your own, as it is
    server.asked.clear()
    assert load("mnist", root=own, download=True).fingerprint() == splits.fingerprint()
    assert {name.rpartition("/")[2] for name, _ in server.asked} == {"t10k-labels-idx1-ubyte.gz"}

    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path / "home"))  # a workspace keeps its own
    assert load("mnist", download=True).fingerprint() == splits.fingerprint()
    assert len(list((tmp_path / "home" / "datasets" / "mnist").iterdir())) == 4


@pytest.mark.parametrize(("name", "n_files"), [("none.zip", 0), ("part.tar", 3), ("whole.zip", 4)])
def test_a_download_does_not_fill_an_archive(tmp_path, name, n_files):
    files = list(idx_files(suffix=".gz").items())[:n_files]
    if n_files:
        archive(tmp_path / name, dict(files))
    if n_files == 4:
        assert len(load("mnist", root=tmp_path / name, download=True).test) == 40  # nothing is missing
        return
    with toys.refused("root", FileNotFoundError) as told:
        load("mnist", root=tmp_path / name, download=True)
    assert "set download to true" not in str(told.value) and (tmp_path / name).exists() == bool(n_files)


def test_an_archive_at_an_address(server, tmp_path, store):
    server.files["data/all.zip"] = archive(tmp_path / "all.zip", idx_files(suffix=".gz")).read_bytes()
    first = load("mnist", root=f"{server.url}data/all.zip")
    assert load("mnist", root=f"{server.url}data/all.zip").fingerprint() == first.fingerprint()
    assert server.asked == [("data/all.zip", None)] * 3  # what is said of it, twice; all of it, once
    with pytest.raises(OSError, match=r"Argument `root` must be within reach.*\(HTTP 404 Not Found\)"):
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
    with pytest.warns(UserWarning, match=r"\(HTTP 404 Not Found\); the copy from before is used"):
        assert documents(f"{server.url}a.txt")[0][0].text == texts[1].strip()


def test_checksums_are_of_the_length_of_their_kind():
    for entry in public.PUBLIC.values():
        assert set(entry) == {"page", "mirrors", "files", "needs"} and entry["mirrors"]
        assert all(re.fullmatch("https://.*/", mirror) for mirror in entry["mirrors"])
        for checksum in entry["files"].values():
            kind, _, told = checksum.partition(":")
            assert len(bytes.fromhex(told)) == hashlib.new(kind).digest_size


@pytest.mark.data
def test_real_files_have_the_checksums():
    for name, file in (("mnist", None), ("ahcd", "ahcd_csv.zip")):
        for there, checksum in public.PUBLIC[name]["files"].items():
            content = toys.real(name, file or there).read_bytes()
            assert checksum == f"sha256:{hashlib.sha256(content).hexdigest()}"


def test_a_file_where_a_folder_is_wanted(server, tmp_path):
    server.files["x.bin"] = CONTENT
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NotADirectoryError, match="a file is in its place"):
        download([f"{server.url}x.bin"], tmp_path / "file" / "x.bin", checksum=RIGHT)
