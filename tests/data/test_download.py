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
    with toys.refused("root", OSError) as told:
        load("mnist")
    assert reason in str(told.value) and public.PUBLIC["mnist"]["page"] in str(told.value)
    assert not [*store.glob("mnist/*")]
    del told
    gc.collect()
    server.files[first] = files[first]
    server.asked.clear()
    splits = load("mnist")
    assert len(splits.test) == 40 and len(server.asked) == 4
    assert load("mnist").fingerprint() == splits.fingerprint() and len(server.asked) == 4
    own = load("mnist", root=archive(store / "all.zip", files))
    assert own.fingerprint() == splits.fingerprint()


def test_an_archive_at_an_address_is_copied_once_and_whole(server, tmp_path, store):
    whole = archive(tmp_path / "all.zip", idx_files(suffix=".gz")).read_bytes()
    server.files["data/all.zip"], server.cuts = whole, [len(whole) // 2]
    for name, reason in (("all.zip", "IncompleteRead"), ("none.zip", "404 Client Error")):
        with toys.refused("root", OSError) as told:
            load("mnist", root=f"{server.url}data/{name}")
        assert reason in str(told.value)
    assert not [*store.glob("copies/*/all.zip")] and not [*store.glob("copies/.*")]
    for _ in range(2):
        assert len(load("mnist", root=f"{server.url}data/all.zip").test) == 40
    assert server.asked.count("data/all.zip") == 2


@pytest.mark.data
def test_real_files_have_the_checksums():
    for name, file in (("mnist", None), ("ahcd", "ahcd_csv.zip")):
        for there, checksum in public.PUBLIC[name]["files"].items():
            content = toys.real(name, file or there).read_bytes()
            assert checksum == f"sha256:{hashlib.sha256(content).hexdigest()}"
