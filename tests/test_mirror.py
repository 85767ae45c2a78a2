"""qnnkit.checkpoint: what is mirrored arrives whole, on disks that are slow, failing, full or gone."""

import contextlib
import errno
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from qnnkit import workspace
from qnnkit.checkpoint import local as local_side
from qnnkit.checkpoint import stored
from qnnkit.checkpoint.mirror import Mirror
from qnnkit.checkpoint.publisher import Publisher, TakenOver
from qnnkit.checkpoint.restore import evict, restore

NOBODY = 65534
KILLS = int(os.environ.get("QNNKIT_TEST_KILLS", "4"))
PATIENCE = 20  # seconds until something that must happen counts as not happening
NET = "checkpoints/hybrid-seed0"


def begin(folder, seed=0):
    """A run folder as `open_run` leaves it."""
    workspace.make_folder(folder)
    workspace.write_json(folder / "provenance.json", {"machine": "test"})
    workspace.write_json(folder / "config.json", {"seed": seed})


def train(folder, step, size=1000, keep=2):
    """One step as training leaves it: a row, an immutable checkpoint, the pointer, then the old ones go."""
    workspace.append_line(folder / "metrics.jsonl", {"step": step, "loss": 1 / (1 + step)})
    net = workspace.make_folder(folder / NET)
    content = random.Random(step).randbytes(size)
    name = f"step-{step}-{hashlib.sha256(content).hexdigest()[:8]}.safetensors"
    workspace.write_bytes(net / name, content)
    workspace.write_json(net / "current.json", {"current": name})
    found = sorted(net.glob("step-*"), key=lambda path: int(path.name.split("-")[1]))
    for path in found[:-keep]:
        path.unlink()


def contents(folder):
    return {name: (folder / name).read_bytes() for name in local_side.visible(folder)}


def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def require_whole(folder):
    """What must hold in every restored state; gives the step that training would go on from."""
    assert json.loads((folder / "config.json").read_bytes())
    if not (folder / NET / "current.json").exists():
        return -1
    current = json.loads((folder / NET / "current.json").read_bytes())["current"]
    content = (folder / NET / current).read_bytes()
    step = int(current.split("-")[1])
    assert content == random.Random(step).randbytes(len(content))
    lines = (folder / "metrics.jsonl").read_bytes()
    assert lines.endswith(b"\n")
    assert step in [json.loads(line)["step"] for line in lines.splitlines()], "rows older than the checkpoint"
    return step


def until(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


@contextlib.contextmanager
def room_for(n_bytes):
    """No file of this process grows past `n_bytes`: what the kernel says is EFBIG, as a quota would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def local(tmp_path):
    begin(tmp_path / "disk" / "run")
    return tmp_path / "disk" / "run"


@pytest.fixture
def remote(tmp_path):
    (tmp_path / "drive").mkdir()
    return tmp_path / "drive" / "run"


@pytest.fixture
def other(tmp_path):
    """The same run folder on another machine."""
    return tmp_path / "other disk" / "run"


def mirror(local, remote, **settings):
    """A mirror that is quick, and whose sentences are kept."""
    told = []
    made = Mirror(local, remote, **{"interval": 0.02, "flush": 30.0, "tell": told.append} | settings)
    return made, told


def again(remote, tmp_path):
    """What a new machine would get."""
    fresh = tmp_path / "fresh" / "run"
    shutil.rmtree(fresh.parent, ignore_errors=True)
    notes = restore(remote, fresh)
    return fresh, notes


# --- the stored form ---------------------------------------------------------------------------------------


def test_what_is_mirrored_comes_back(local, remote, tmp_path):
    made, told = mirror(local, remote)
    with made:
        for step in range(5):
            train(local, step)
        workspace.write_bytes(workspace.make_folder(local / "figures") / "loss.png", b"\x89PNG")
        (local / "empty.txt").touch()
        (local / "none.jsonl").touch()
    fresh, notes = again(remote, tmp_path)
    assert (notes, told) == ([], [])
    assert contents(fresh) == contents(local)
    assert require_whole(fresh) == 4


def test_people_find_files_under_their_own_names(local, remote):
    publisher = Publisher(local, remote)
    publisher.sync()
    workspace.write_json(local / "provenance.json", {"machine": "test", "more": True})
    workspace.append_line(local / "metrics.jsonl", {"step": 0})
    publisher.sync()
    newer = hashlib.sha256((local / "provenance.json").read_bytes()).hexdigest()[:8]
    assert names(remote) == [
        "CURRENT", "config.json", "manifest-000001.json", "manifest-000002.json", "manifest-000003.json",
        "metrics.000000000-000000012.jsonl", f"provenance.{newer}.json", "provenance.json",
    ]  # fmt: skip
    assert (remote / "CURRENT").read_text() == "manifest-000003.json\n"


def test_without_changes_nothing_is_written(local, remote):
    publisher = Publisher(local, remote)
    assert publisher.sync()
    before = {name: (remote / name).stat() for name in names(remote)}
    assert not publisher.sync()
    assert not Publisher(local, remote).sync()  # nor by the next process
    assert {name: (remote / name).stat() for name in names(remote)} == before


def test_what_is_stored_is_never_written_again(local, remote):
    publisher, seen, before = Publisher(local, remote), {}, set()
    for step in range(40):
        train(local, step)
        workspace.write_json(local / "provenance.json", {"step": step % 3})
        publisher.sync()
        for name in set(names(remote)) - {"CURRENT"}:
            status = (remote / name).stat()
            look = (status.st_ino, status.st_mtime_ns, (remote / name).read_bytes())
            if name in seen and name in before:
                assert seen[name] == look, name
            seen[name] = look
        before = set(names(remote))


def test_the_number_of_files_stays_small(local, remote, tmp_path):
    publisher, draw = Publisher(local, remote), random.Random(1)
    for step in range(80):
        train(local, step)
        for _ in range(draw.randrange(4)):
            workspace.append_line(local / "gradients.jsonl", {"note": "x" * draw.randrange(300)})
        publisher.sync()
        state = next(stored.states(remote))
        assert all(len(pieces) <= local_side.SEGMENTS for pieces in state.files.values())
        assert len(names(remote)) < 70
        if step % 10 == 0:
            fresh, _ = again(remote, tmp_path)
            assert contents(fresh) == contents(local)
    publisher.check()
    assert len(list(remote.glob("manifest-*"))) == stored.KEEP
    written = sum((remote / name).stat().st_size for name in names(remote) if stored.is_segment(name))
    kept = sum(path.stat().st_size for path in local.glob("*.jsonl"))
    assert written < 3 * kept


def test_merging_copies_each_line_few_times(local, remote, monkeypatch):
    copied, write = [], stored.write_draft

    def counting(draft, chunks):
        chunks = list(chunks)
        copied.append((draft, sum(map(len, chunks))))
        write(draft, chunks)

    monkeypatch.setattr(stored, "write_draft", counting)
    publisher = Publisher(local, remote)
    for step in range(200):
        workspace.append_line(local / "metrics.jsonl", {"step": step, "note": "x" * 100})
        publisher.sync()
    lines = sum(
        size for draft, size in copied if "manifest" not in draft.name and "CURRENT" not in draft.name
    )
    assert lines < 7 * (local / "metrics.jsonl").stat().st_size


def test_hidden_running_and_linked_files_stay_here(local, remote, tmp_path):
    (tmp_path / "elsewhere.txt").write_text("mine")
    (local / "link.txt").symlink_to(tmp_path / "elsewhere.txt")
    (local / ".hidden").write_text("")
    notebooks = workspace.make_folder(local / "notebooks")
    for name in ("03_train.running.ipynb", "03_train.failed.ipynb"):
        (notebooks / name).write_text("{}")
    workspace.make_folder(local / ".ipynb_checkpoints")
    (local / ".ipynb_checkpoints" / "a.ipynb").write_text("{}")
    Publisher(local, remote).sync()
    state = next(stored.states(remote))
    assert set(state.files) == {"config.json", "provenance.json", "notebooks/03_train.failed.ipynb"}


def test_the_same_large_content_is_stored_once(local, remote, tmp_path):
    content = random.Random(0).randbytes(2 << 20)
    for name in ("best.safetensors", "last.safetensors"):
        workspace.write_bytes(local / name, content)
    Publisher(local, remote).sync()
    assert len(list(remote.glob("*.safetensors"))) == 1
    fresh, _ = again(remote, tmp_path)
    assert contents(fresh) == contents(local)


def test_small_files_of_the_same_content_keep_their_names(local, remote, tmp_path):
    for name in ("a.txt", "b.txt"):
        (local / name).write_text("same")
    Publisher(local, remote).sync()
    assert {"a.txt", "b.txt"} <= set(names(remote))


def test_files_named_like_the_mirrors_own(local, remote, tmp_path):
    for name in ("CURRENT", "manifest-000001.json", "manifest-000002.json"):
        (local / name).write_text("mine")
    Publisher(local, remote).sync()
    fresh, _ = again(remote, tmp_path)
    assert contents(fresh) == contents(local)


def test_no_file_stays_open(local, remote):
    publisher = Publisher(local, remote)
    opened = Path("/proc/self/fd")
    before = len(list(opened.iterdir())) if opened.exists() else 0
    for step in range(3):
        train(local, step, size=3 << 20)
        publisher.sync()
    assert before == (len(list(opened.iterdir())) if opened.exists() else 0)


# --- what changed ------------------------------------------------------------------------------------------


def test_a_file_of_the_same_size_under_a_clock_gone_back(local, remote, tmp_path):
    publisher, path = Publisher(local, remote), local / "result.json"
    for text in ("aaaa", "bbbb", "cccc"):
        workspace.write_bytes(path, text.encode())
        os.utime(path, (1e9, 1e9))  # long ago, and the same each time
        publisher.sync()
        fresh, _ = again(remote, tmp_path)
        assert (fresh / "result.json").read_text() == text


def test_a_file_written_in_place_within_a_tick(local, remote, tmp_path, monkeypatch):
    fstat = os.fstat

    def coarse(descriptor):  # a disk whose clock does not move between two writes
        status = fstat(descriptor)
        return SimpleNamespace(
            st_size=status.st_size, st_ino=status.st_ino, st_mtime=time.time(), st_mtime_ns=0, st_ctime_ns=0
        )

    publisher, path = Publisher(local, remote), local / "log.txt"
    for text in ("aaaa", "bbbb", "cccc"):
        path.write_text(text)
        with monkeypatch.context() as patched:
            patched.setattr(os, "fstat", coarse)
            publisher.sync()
        fresh, _ = again(remote, tmp_path)
        assert (fresh / "log.txt").read_text() == text


def test_unchanged_files_are_not_read(local, remote, monkeypatch):
    for path in local.iterdir():
        os.utime(path, (1e9, 1e9))
    workspace.write_bytes(local / "big.bin", bytes(100))
    os.utime(local / "big.bin", (1e9, 1e9))
    publisher = Publisher(local, remote)
    publisher.sync()
    read = []
    monkeypatch.setattr(local_side, "stretch", lambda *given: read.append(given) or iter(()))
    publisher.sync()
    assert read == []


@pytest.mark.parametrize(
    "lines", [[], [b"x\n"], [b"other\n", b"lines\n"], [b"0\n", b"1\n", b"2\n", b"new\n"]]
)
def test_lines_that_no_longer_begin_as_they_did(local, remote, tmp_path, lines):
    publisher, path = Publisher(local, remote), local / "metrics.jsonl"
    for index in range(4):
        with path.open("ab") as file:
            file.write(f"{index}\n".encode())
        publisher.sync()
    path.write_bytes(b"".join(lines))
    publisher.sync()
    fresh, _ = again(remote, tmp_path)
    assert (fresh / "metrics.jsonl").read_bytes() == b"".join(lines)


def test_half_a_line_is_not_stored(local, remote, tmp_path):
    publisher, path = Publisher(local, remote), local / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"st')
    publisher.sync()
    fresh, _ = again(remote, tmp_path)
    assert (fresh / "metrics.jsonl").read_bytes() == b'{"step": 1}\n'
    workspace.append_line(path, {"step": 2})  # takes the half line back
    publisher.sync()
    fresh, _ = again(remote, tmp_path)
    assert contents(fresh) == contents(local)


def test_deleted_files_go_with_the_states_that_named_them(local, remote):
    publisher = Publisher(local, remote)
    (local / "note.txt").write_text("gone soon")
    publisher.sync()
    (local / "note.txt").unlink()
    for step in range(stored.KEEP):
        assert (remote / "note.txt").exists()
        workspace.append_line(local / "metrics.jsonl", {"step": step})
        publisher.sync()
    assert not (remote / "note.txt").exists()


def test_files_of_others_are_never_deleted(local, remote):
    remote.mkdir()
    (remote / "thesis.txt").write_text("three years of work")
    (remote / "provenance.json").write_text("somebody else's")
    (remote / "config.txt").write_text("mine")
    (local / "config.txt").write_text("mine")  # found there: not the mirror's to delete
    publisher = Publisher(local, remote)
    publisher.sync()
    (remote / "config.json").write_text("edited on Drive by hand")
    for name in ("config.txt", "config.json"):
        (local / name).unlink()
    for step in range(2 * stored.KEEP):
        train(local, step)
        publisher.sync()
    assert (remote / "thesis.txt").read_text() == "three years of work"
    assert (remote / "provenance.json").read_text() == "somebody else's"
    assert (remote / "config.txt").read_text() == "mine"
    assert (remote / "config.json").read_text() == "edited on Drive by hand"


def test_a_checkpoint_that_goes_while_one_looks(local, remote, tmp_path, monkeypatch):
    train(local, 0)
    publisher, look, steps = Publisher(local, remote), local_side._look, iter(range(1, 4))

    def meanwhile(path, known):
        found = look(path, known)
        if path.name == "current.json" and (step := next(steps, None)):
            train(local, step, keep=1)  # what the pointer named is gone
        return found

    monkeypatch.setattr(local_side, "_look", meanwhile)
    publisher.sync()
    fresh, _ = again(remote, tmp_path)
    assert require_whole(fresh) == 3


@pytest.mark.parametrize("when", ["metrics.jsonl", "current.json", "config.json"])
def test_rows_are_never_older_than_checkpoints(local, remote, tmp_path, monkeypatch, when):
    train(local, 0)
    publisher, look, steps = Publisher(local, remote), local_side._look, iter(range(1, 3))

    def meanwhile(path, known):
        found = look(path, known)
        if path.name == when and (step := next(steps, None)):
            train(local, step, keep=9)
        return found

    monkeypatch.setattr(local_side, "_look", meanwhile)
    publisher.sync()
    fresh, _ = again(remote, tmp_path)
    require_whole(fresh)


def test_a_pointer_to_nothing_is_never_published(local, remote, tmp_path):
    publisher = Publisher(local, remote)
    train(local, 0)
    publisher.sync()
    workspace.write_json(local / NET / "current.json", {"current": "step-9-00000000.safetensors"})
    workspace.append_line(local / "metrics.jsonl", {"step": 1})
    publisher.sync()
    fresh, _ = again(remote, tmp_path)
    assert require_whole(fresh) == 0
    assert len((fresh / "metrics.jsonl").read_bytes().splitlines()) == 2


def test_states_are_whole_while_training_writes(local, remote, tmp_path):
    publisher, done, failed = Publisher(local, remote), threading.Event(), []

    def training():
        try:
            for step in range(100_000):
                train(local, step, keep=1)
                if done.is_set():
                    return
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=training)
    thread.start()
    try:
        steps = []
        for _ in range(15):
            publisher.sync()
            fresh, notes = again(remote, tmp_path)
            assert notes == []
            steps.append(require_whole(fresh))
    finally:
        done.set()
        thread.join()
    assert failed == []
    assert steps == sorted(steps)


# --- disks -------------------------------------------------------------------------------------------------


def test_a_slow_disk_does_not_hold_training_up(local, remote, tmp_path, monkeypatch):
    fsync, slow = os.fsync, threading.Event()

    def slowed(descriptor):
        if threading.current_thread().name == "mirror":
            slow.wait(PATIENCE)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slowed)
    made, told = mirror(local, remote)
    with made:
        for step in range(3):
            train(local, step)  # while the disk takes its time
        assert not (remote / "CURRENT").exists()
        slow.set()
    fresh, _ = again(remote, tmp_path)
    assert contents(fresh) == contents(local)
    assert told == []


@pytest.mark.parametrize("broken", ["fsync", "replace", "mkdir"])
def test_a_disk_that_fails_for_a_while(local, remote, tmp_path, monkeypatch, broken):
    real, failing, failures = getattr(os, broken), threading.Event(), []
    failing.set()

    def moody(*given, **named):
        if failing.is_set() and threading.current_thread().name == "mirror":
            failures.append(given)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(*given, **named)

    monkeypatch.setattr(os, broken, moody)
    monkeypatch.setattr(Mirror, "_patience", lambda self: 0.01)
    made, told = mirror(local, remote)
    with made:
        train(local, 0)
        until(lambda: len(failures) > 3)
        failing.clear()
        until(lambda: len(told) == 2)
        train(local, 1)
    assert len(told) == 2
    assert "waits: " in told[0]
    assert "works again" in told[1]
    fresh, _ = again(remote, tmp_path)
    assert contents(fresh) == contents(local)
    assert not list(remote.glob(".draft-*"))


def test_a_disk_that_stays_broken_is_told_at_the_end(local, remote, monkeypatch):
    remote.parent.rmdir()
    remote.parent.write_text("a file, where a folder should be")
    monkeypatch.setattr(Mirror, "_patience", lambda self: 0.01)
    made, told = mirror(local, remote, flush=0.05)
    with (
        pytest.raises(
            OSError, match=r"could not be mirrored whole to .* Everything is in .*/disk/run`"
        ) as caught,
        made,
    ):
        train(local, 0)
    assert "run the same command again" in str(caught.value)
    assert len(told) == 1
    assert "training goes on" in told[0]
    assert require_whole(local) == 0


def test_the_bodys_own_error_goes_first(local, remote):
    remote.parent.rmdir()
    remote.parent.write_text("a file, where a folder should be")
    made, told = mirror(local, remote, flush=0.05)
    with pytest.raises(ZeroDivisionError) as caught, made:
        _ = 1 / 0
    assert "could not be mirrored whole" in caught.value.__notes__[0]
    assert "could not be mirrored whole" in told[-1]


def test_a_disk_that_hangs_is_given_up(local, remote, monkeypatch):
    fsync, answer = os.fsync, threading.Event()

    def hanging(descriptor):
        if threading.current_thread().name == "mirror":
            answer.wait(PATIENCE)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", hanging)
    made, _ = mirror(local, remote, flush=0.05)
    try:
        with pytest.raises(OSError, match="it does not answer"), made:
            pass
    finally:
        answer.set()
        made._thread.join()


def test_a_full_disk_keeps_the_state_before(local, remote, tmp_path):
    publisher = Publisher(local, remote)
    train(local, 0)
    publisher.sync()
    train(local, 1, size=200_000)
    for _ in range(2):
        with room_for(100_000), pytest.raises(OSError, match="cannot write") as caught:
            publisher.sync()
        assert caught.value.errno == errno.EFBIG
        fresh, _ = again(remote, tmp_path)
        assert require_whole(fresh) == 0
    publisher.sync()
    fresh, _ = again(remote, tmp_path)
    assert require_whole(fresh) == 1
    assert not list(remote.glob(".draft-*"))


def test_what_arrived_is_not_sent_again_after_a_failure(local, remote, monkeypatch):
    train(local, 0, size=50_000)
    publisher, write, sent = Publisher(local, remote), stored.write_draft, []

    def counting(draft, chunks):
        chunks = list(chunks)
        if chunks[0].startswith(b'{"step"') and "failure" not in sent:  # the lines, which come last
            sent.append("failure")
            raise OSError(errno.EIO, "failed")
        sent.append(sum(map(len, chunks)))
        write(draft, chunks)

    monkeypatch.setattr(stored, "write_draft", counting)
    with pytest.raises(OSError, match="failed"):
        publisher.sync()
    publisher.sync()
    assert sent.count(50_000) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_a_closed_folder_keeps_its_state(monkeypatch):
    with tempfile.TemporaryDirectory() as name:  # not tmp_path: nobody may not even look into that
        Path(name).chmod(0o777)
        local, remote = Path(name, "disk"), Path(name, "drive")
        os.seteuid(NOBODY)
        try:
            begin(local)
            train(local, 0)
            remote.mkdir()
            publisher = Publisher(local, remote)
            publisher.sync()
            remote.chmod(0o555)
            before = names(remote)
            train(local, 1)
            with pytest.raises(PermissionError, match="cannot write"):
                publisher.sync()
            assert names(remote) == before
            assert restore(remote, Path(name, "fresh")) == []
            assert require_whole(Path(name, "fresh")) == 0
            remote.chmod(0o755)
            (remote / NET).chmod(0o755)
            publisher.sync()
            publisher.check()
        finally:
            os.seteuid(0)


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this system has no second disk to test with")
def test_a_drive_that_is_no_longer_mounted_is_not_written_to(local, tmp_path):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as mounted:
        drive = tmp_path / "drive"
        drive.symlink_to(mounted)
        if drive.stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("/dev/shm is no disk of its own")
        publisher = Publisher(local, drive / "run")
        publisher.sync()
        drive.unlink()
        drive.mkdir()
        train(local, 0)
        with pytest.raises(OSError, match="is Drive still mounted"):
            publisher.sync()
        assert names(drive) == []
        drive.rmdir()
        drive.symlink_to(mounted)
        assert publisher.sync()


def test_a_local_folder_that_is_gone_empties_nothing(local, remote):
    publisher = Publisher(local, remote)
    publisher.sync()
    before = names(remote)
    shutil.rmtree(local)
    with pytest.raises(FileNotFoundError, match="is gone"):
        publisher.sync()
    assert names(remote) == before


@pytest.mark.parametrize("harm", ["flip", "cut", "delete", "swap"])
def test_the_end_mends_what_cannot_be_read_back(local, remote, tmp_path, harm):
    train(local, 0)
    made, told = mirror(local, remote)
    with made:
        until(
            lambda: (remote / "CURRENT").exists() and stored.read_manifest(remote, made._publisher.note.base)
        )
        until(lambda: any(remote.glob(f"{NET}/step-0-*")) and any(remote.glob("metrics.*")))
        damage(next(remote.glob(f"{NET}/step-0-*")), harm)
        damage(next(remote.glob("metrics.*")), harm)
    fresh, notes = again(remote, tmp_path)
    assert notes == []
    assert contents(fresh) == contents(local)
    assert any("cannot be read back" in each for each in told)


@pytest.mark.parametrize("what", ["CURRENT", "manifest-*.json"])
def test_the_end_mends_the_pointer_and_the_manifest(local, remote, tmp_path, what):
    publisher = Publisher(local, remote)
    publisher.sync()
    for path in remote.glob(what):
        path.write_bytes(b"")
    with pytest.raises(OSError, match="cannot be read back"):
        publisher.check()
    publisher.sync()
    publisher.check()
    fresh, _ = again(remote, tmp_path)
    assert contents(fresh) == contents(local)


def test_settings_that_cannot_be(local, remote):
    with pytest.raises(ValueError, match="`interval` must be above 0"):
        Mirror(local, remote, interval=0)
    for inside in (local, local / "drive", local.parent):
        with pytest.raises(ValueError, match="`remote` must lie apart"):
            Mirror(local, inside)


# --- kills -------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Nothing of the process goes on after this."""


def test_a_kill_at_every_single_step(tmp_path, monkeypatch):
    """Each operation that changes a disk is, in turn, the first that no longer happens."""
    real = {name: getattr(os, name) for name in ("fsync", "replace", "unlink", "mkdir")}
    left = 0

    def counted(name):
        def do(*given, **named):
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return real[name](*given, **named)

        return do

    for moment in range(1000):
        folder = tmp_path / str(moment)
        local, remote = folder / "disk" / "run", folder / "drive" / "run"
        begin(local)
        publisher, states = Publisher(local, remote), []
        for step in range(5):
            train(local, step)
            if step < 4:
                publisher.sync()
                states = [contents(local)]
        states.append(contents(local))
        left = moment
        with monkeypatch.context() as patched:
            for name in real:
                patched.setattr(os, name, counted(name))
            with contextlib.suppress(Killed):
                publisher.sync()
        finished = left >= 0
        fresh, notes = again(remote, folder)
        assert notes == []
        assert contents(fresh) in states
        Publisher(local, remote).sync()  # the same machine goes on
        assert stored.pointed(remote) == stored.numbers(remote)[0]
        assert contents(again(remote, folder)[0]) == contents(local)
        assert not list(remote.glob(".draft-*"))
        if finished:
            assert moment > 8
            return
    raise AssertionError("it never finished")


def test_a_kill_at_every_step_of_the_first_state(tmp_path, monkeypatch):
    real = {name: getattr(os, name) for name in ("fsync", "replace", "mkdir")}
    left = 0

    def counted(name):
        def do(*given, **named):
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return real[name](*given, **named)

        return do

    for moment in range(1000):
        folder = tmp_path / str(moment)
        local, remote = folder / "disk" / "run", folder / "drive" / "run"
        begin(local)
        train(local, 0)
        publisher, left = Publisher(local, remote), moment
        with monkeypatch.context() as patched:
            for name in real:
                patched.setattr(os, name, counted(name))
            with contextlib.suppress(Killed):
                publisher.sync()
        fresh, notes = again(remote, folder)  # everything, or nothing at all
        assert notes == []
        assert not fresh.exists() or contents(fresh) in ({}, contents(local))
        begin(fresh)  # a new machine can begin there, whatever the kill left
        Publisher(fresh, remote).sync()
        if left >= 0:
            return
    raise AssertionError("it never finished")


CHILD = """
    import sys, types, random
    package = types.ModuleType("qnnkit.checkpoint")  # without torch, which these parts do not need
    package.__path__ = [sys.argv[1] + "/qnnkit/checkpoint"]
    sys.modules["qnnkit.checkpoint"] = package
    sys.path.insert(0, sys.argv[1])
    import hashlib, json
    from pathlib import Path
    from qnnkit import workspace
    from qnnkit.checkpoint.mirror import Mirror

    NET = "checkpoints/hybrid-seed0"
    {train}
    local, remote, first = Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    with Mirror(local, remote, interval=0.001):
        print("begun", flush=True)
        for step in range(first, 10**9):
            train(local, step)
"""


def test_real_kills_at_random_moments(local, remote, tmp_path):
    import inspect

    code = textwrap.dedent(CHILD).replace("{train}", inspect.getsource(train))
    draw, step, machine = random.Random(7), -1, local
    for kill in range(KILLS):
        root = str(Path(workspace.__file__).parent.parent)
        command = [sys.executable, "-c", code, root, str(machine), str(remote), str(step + 1)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "begun\n"
        time.sleep(draw.uniform(0, 0.4))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if kill % 2:  # the machine went with the process
            machine = tmp_path / f"machine {kill}" / "run"
            assert restore(remote, machine) == []
            found = require_whole(machine) if (machine / "config.json").exists() else -1
            if not (machine / "config.json").exists():
                begin(machine)
            step = found
        else:
            assert restore(remote, machine) == []
            step = require_whole(machine)
        lines = machine / "metrics.jsonl"
        rows = lines.read_bytes().splitlines(keepends=True) if lines.exists() else []
        lines.write_bytes(b"".join(rows))
    publisher = Publisher(machine, remote)
    publisher.sync()
    publisher.check()
    fresh, notes = again(remote, tmp_path)
    assert notes == []
    assert contents(fresh) == contents(machine) | {
        name: b"".join(line for line in content.splitlines(keepends=True) if line.endswith(b"\n"))
        for name, content in contents(machine).items()
        if name.endswith(".jsonl")
    }


# --- damage ------------------------------------------------------------------------------------------------


def damage(path, harm):
    content = path.read_bytes()
    if harm == "flip":
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    elif harm == "cut":
        path.write_bytes(content[:-1])
    elif harm == "empty":
        path.write_bytes(b"")
    elif harm == "delete":
        path.unlink()
    elif harm == "swap":
        path.write_bytes(random.Random(3).randbytes(len(content)))
    elif harm == "folder":
        path.unlink()
        path.mkdir()
    elif harm == "link":
        path.rename(path.with_name("moved"))
        path.symlink_to(path.with_name("moved"))


HARMS = ["flip", "cut", "empty", "delete", "swap", "folder", "link"]


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_checkpoint_is_left_out(local, remote, tmp_path, harm):
    train(local, 0)
    train(local, 1)
    Publisher(local, remote).sync()
    path = next(remote.glob(f"{NET}/step-1-*"))
    damage(path, harm)
    fresh, notes = again(remote, tmp_path)
    assert len(notes) == 1
    assert path.name in notes[0]
    left = contents(local)
    del left[path.relative_to(remote).as_posix()]
    assert contents(fresh) == left


@pytest.mark.parametrize("harm", HARMS)
def test_damaged_lines_end_where_they_are_damaged(local, remote, tmp_path, harm):
    publisher = Publisher(local, remote)
    for step in range(3):
        workspace.append_line(local / "metrics.jsonl", {"step": step})
        publisher.sync()
    for number in stored.numbers(remote)[1:]:  # no older state to fall back to
        (remote / stored.manifest_name(number)).unlink()
    damage(sorted(remote.glob("metrics.*"))[1], harm)
    fresh, notes = again(remote, tmp_path)
    assert workspace.read_lines(fresh / "metrics.jsonl") == [{"step": 0}]
    assert len(notes) == 1
    assert "metrics.jsonl is damaged" in notes[0]
    # The new machine goes on, and what it stores is whole again.
    workspace.append_line(fresh / "metrics.jsonl", {"step": 7})
    publisher = Publisher(fresh, remote)
    publisher.sync()
    publisher.check()
    newest, notes = again(remote, tmp_path / "newest")
    assert notes == []
    assert contents(newest) == contents(fresh)


@pytest.mark.parametrize("harm", HARMS)
def test_an_older_whole_state_is_better_than_a_damaged_one(local, remote, tmp_path, harm):
    publisher = Publisher(local, remote)
    train(local, 0)
    publisher.sync()
    before = contents(local)
    train(local, 1)
    publisher.sync()
    damage(next(remote.glob(f"{NET}/step-1-*")), harm)
    fresh, notes = again(remote, tmp_path)
    assert contents(fresh) == before
    assert len(notes) == 1
    assert "goes on from state 2" in notes[0]


@pytest.mark.parametrize("harm", [harm for harm in HARMS if harm != "cut"])  # its last byte says nothing
def test_a_damaged_manifest(local, remote, tmp_path, harm):
    publisher = Publisher(local, remote)
    train(local, 0)
    publisher.sync()
    before = contents(local)
    train(local, 1)
    publisher.sync()
    damage(remote / "manifest-000003.json", harm)
    fresh, _ = again(remote, tmp_path)
    assert contents(fresh) == before
    Publisher(fresh, remote).sync()  # and it goes on under a number that is free
    assert (remote / "CURRENT").read_text() == "manifest-000004.json\n"


def test_swapped_manifests_are_not_believed(local, remote, tmp_path):
    publisher = Publisher(local, remote)
    for step in range(2):
        train(local, step)
        publisher.sync()
    shutil.copy(remote / "manifest-000002.json", remote / "manifest-000003.json")
    assert stored.read_manifest(remote, 3) is None


@pytest.mark.parametrize("text", [b"", b"manifest-000099.json\n", b"../../etc/passwd", b"\xff\xfe", None])
def test_a_damaged_pointer(local, remote, tmp_path, text):
    publisher = Publisher(local, remote)
    for step in range(2):
        train(local, step)
        publisher.sync()
    (remote / "CURRENT").unlink()
    if text is not None:
        (remote / "CURRENT").write_bytes(text)
    fresh, notes = again(remote, tmp_path)
    assert notes == []
    assert contents(fresh) == contents(local)


@pytest.mark.parametrize("harm", HARMS)
def test_settings_damaged_in_every_state(local, remote, tmp_path, harm):
    Publisher(local, remote).sync()
    damage(remote / "config.json", harm)
    with pytest.raises(ValueError, match=r"no state in it has a whole config\.json\. Put its files back"):
        again(remote, tmp_path)
    assert not (tmp_path / "fresh" / "run" / "config.json").exists()


def test_settings_of_an_older_state(local, remote, tmp_path):
    publisher = Publisher(local, remote)
    publisher.sync()
    before = contents(local)
    workspace.write_json(local / "config.json", {"seed": 5})
    publisher.sync()
    damage(next(remote.glob("config.*.json")), "flip")
    fresh, notes = again(remote, tmp_path)
    assert contents(fresh) == before
    assert "goes on from state 2" in notes[0]


def test_no_manifest_is_whole(local, remote, tmp_path):
    Publisher(local, remote).sync()
    for path in remote.glob("manifest-*"):
        damage(path, "flip")
    with pytest.raises(ValueError, match="no state in it has a whole"):
        again(remote, tmp_path)


# --- manifests that mean harm ------------------------------------------------------------------------------


def forge(remote, files, number=9):
    """A manifest whose hash is right and whose content is whatever somebody likes."""
    state = {"format": 1, "number": number, "owner": "somebody", "files": files}
    digest = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
    (remote / f"manifest-{number:06d}.json").write_text(json.dumps({"sha256": digest, "manifest": state}))
    (remote / "CURRENT").write_text(f"manifest-{number:06d}.json\n")


def piece(path, name=None, **changes):
    content = path.read_bytes()
    made = {"name": name or path.name, "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    return made | {"found": False} | changes


def test_the_forgery_works(remote, tmp_path):
    """Else the tests below would pass for the wrong reason."""
    remote.mkdir()
    (remote / "config.json").write_text("{}")
    forge(remote, {"config.json": [piece(remote / "config.json")]})
    fresh, notes = again(remote, tmp_path)
    assert (contents(fresh), notes) == ({"config.json": b"{}"}, [])


@pytest.mark.parametrize(
    "path",
    [
        "../escaped", "a/../../escaped", "/tmp/escaped", "a//b", "", ".", "..", "a/.", "./a", ".mirror.json",
        ".ipython/startup.py", "a/.hidden", "C:\\escaped", "..\\escaped", "a\0b", "a/", "config.json/below",
        "\ud800",
    ],
)  # fmt: skip
@pytest.mark.parametrize("where", ["path", "name"])
def test_no_path_leads_out(remote, tmp_path, path, where):
    remote.mkdir()
    (remote / "config.json").write_text("{}")
    (remote.parent / "escaped").write_text("secret")
    files = {"config.json": [piece(remote / "config.json")]}
    evil = piece(remote / "config.json")
    files[path if where == "path" else "stolen.txt"] = [evil if where == "path" else evil | {"name": path}]
    forge(remote, files)
    if (where, path) == ("name", "config.json/below"):
        assert "stolen.txt is damaged" in again(remote, tmp_path)[1][0]
        return
    with pytest.raises(ValueError, match="no state in it has a whole"):
        again(remote, tmp_path)
    assert names(tmp_path / "fresh") == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["drive", "fresh"]


@pytest.mark.parametrize("deep", [False, True])
def test_links_lead_nowhere(remote, tmp_path, deep):
    remote.mkdir()
    (remote / "config.json").write_text("{}")
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "key").write_text("secret")
    (remote / "link").symlink_to(tmp_path / "private" / ("" if deep else "key"))
    name = "link/key" if deep else "link"
    forge(remote, {"config.json": [piece(remote / "config.json")], "stolen": [piece(remote / name, name)]})
    fresh, notes = again(remote, tmp_path)
    assert set(contents(fresh)) == {"config.json"}
    assert "stolen is damaged" in notes[0]


@pytest.mark.parametrize(
    "change",
    [
        {"size": -1}, {"size": 2.0}, {"size": "2"}, {"size": True}, {"size": None}, {"sha256": "00"},
        {"sha256": None}, {"more": 1}, {"name": 5}, {"found": "yes"},
    ],
)  # fmt: skip
def test_values_of_other_kinds_are_refused(remote, tmp_path, change):
    remote.mkdir()
    (remote / "config.json").write_text("{}")
    forge(remote, {"config.json": [piece(remote / "config.json") | change]})
    with pytest.raises(ValueError, match="no state in it has a whole"):
        again(remote, tmp_path)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[]", "{}", "null", '{"sha256": 1, "manifest": 2}', "NaN", "\0"]
)
def test_manifests_that_are_none(remote, tmp_path, text):
    remote.mkdir()
    (remote / "manifest-000001.json").write_text(text)
    assert stored.read_manifest(remote, 1) is None


def test_sizes_are_looked_at_before_anything_is_read(remote, tmp_path, monkeypatch):
    remote.mkdir()
    (remote / "config.json").write_text("{}")
    with (remote / "huge").open("wb") as file:
        file.truncate(1 << 40)  # a sparse terabyte
    small = {"name": "huge", "sha256": "0" * 64, "size": 5, "found": False}
    forge(remote, {"config.json": [piece(remote / "config.json")], "huge": [small]})
    assert "huge is damaged" in again(remote, tmp_path)[1][0]
    forge(remote, {"config.json": [piece(remote / "config.json")], "huge": [small | {"size": 1 << 40}]})
    if shutil.disk_usage(tmp_path).free < 1 << 40:
        with pytest.raises(OSError, match="which this disk has not") as caught:
            again(remote, tmp_path)
        assert caught.value.errno == errno.ENOSPC


# --- several machines --------------------------------------------------------------------------------------


def test_only_one_mirror_works_on_a_folder(local, remote):
    first, _ = mirror(local, remote)
    with first:
        until(lambda: (remote / "CURRENT").exists())
        second, told = mirror(local, remote.with_name("never"), flush=0.05)
        with second:
            train(local, 0)
        assert restore(remote, local) == []
    assert told == []
    assert not remote.with_name("never").exists()
    assert require_whole(local) == 0


def test_a_mirror_takes_over_when_the_first_ends(local, remote, tmp_path):
    first, _ = mirror(local, remote)
    second, _ = mirror(local, remote)
    first.__enter__()
    with second:
        first.__exit__(None, None, None)
        train(local, 3)
        until(lambda: second._publisher is not None)
    assert require_whole(again(remote, tmp_path)[0]) == 3


def test_another_process_has_the_folder(local, remote):
    code = "import sys, filelock\nwith filelock.FileLock(sys.argv[1]): print(flush=True); input()"
    command = [sys.executable, "-c", code, str(local / local_side.LOCK)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        made, told = mirror(local, remote)
        with made:
            pass
        assert (told, remote.exists()) == ([], False)
        process.communicate("\n")
    with mirror(local, remote)[0]:
        pass
    assert (remote / "CURRENT").exists()


def test_new_machines_go_on_again_and_again(local, remote, tmp_path):
    machine = local
    for step in range(8):
        made, told = mirror(machine, remote)
        with made:
            train(machine, step)
        assert told == []
        assert restore(remote, machine) == []  # it is as new as the remote, whoever wrote the states before
        fresh = tmp_path / f"machine {step}" / "run"
        assert restore(remote, fresh) == []
        assert contents(fresh) == contents(machine)
        machine = fresh
    assert len(names(remote)) < 40


def test_the_machine_that_was_overtaken_stops(local, remote, other, tmp_path):
    made, told = mirror(local, remote)
    with pytest.raises(OSError, match="Another copy of this run has been mirrored"), made:
        train(local, 0)
        until(
            lambda: (
                (remote / "CURRENT").exists() and any(remote.glob(f"{NET}/*")) and any(remote.glob("metr*"))
            )
        )
        until(lambda: restore(remote, other) == [] and (other / NET / "current.json").exists())
        begin(other, seed=1)
        theirs = Publisher(other, remote)
        theirs.sync()
        train(local, 1)
        until(lambda: told)
        assert local_side.hold(local) is None  # nothing may be put in its place while it is worked on
        assert not any(remote.glob(f"{NET}/step-1-*"))
    assert len(told) == 1
    train(other, 1)
    theirs.sync()
    theirs.check()
    assert contents(again(remote, tmp_path)[0]) == contents(other)


def test_being_overtaken_is_noticed_before_anything_is_published(local, remote, other):
    mine = Publisher(local, remote)
    mine.sync()
    restore(remote, other)
    Publisher(other, remote).sync()  # says so at once, though nothing of the run has changed
    train(local, 0)
    with pytest.raises(TakenOver, match="Keep one of the two"):
        mine.sync()
    assert next(stored.states(remote)).owner == local_side.read_note(other).owner


def test_the_state_of_another_under_the_same_number(local, remote):
    mine = Publisher(local, remote)
    mine.sync()
    newest = next(stored.states(remote))
    (remote / stored.manifest_name(newest.number)).unlink()
    stored.publish(remote, newest.model_copy(update={"owner": "f" * 32}))
    with pytest.raises(TakenOver, match="Keep one of the two"):
        mine.check()


def test_a_copy_that_does_not_come_from_there_is_not_mirrored_over_it(local, remote, other):
    Publisher(local, remote).sync()
    begin(other, seed=8)
    with pytest.raises(TakenOver):
        Publisher(other, remote).sync()
    assert (remote / "config.json").read_bytes() == (local / "config.json").read_bytes()


# --- restoring onto what is there --------------------------------------------------------------------------


def test_where_there_is_no_run_nothing_happens(remote, other):
    assert restore(remote, other) == []
    remote.mkdir()
    (remote / "thesis.txt").write_text("no run")
    assert restore(remote, other) == []
    assert not other.exists()


def test_a_local_folder_as_new_as_the_remote_stays(local, remote):
    Publisher(local, remote).sync()
    train(local, 0)  # not mirrored yet
    before = contents(local)
    assert restore(remote, local) == []
    assert contents(local) == before


def test_a_local_folder_that_was_outrun_is_set_aside(local, remote, other):
    Publisher(local, remote).sync()
    restore(remote, other)
    train(other, 0)
    Publisher(other, remote).sync()
    workspace.write_json(local / "mine.json", {"only": "here"})
    before = contents(local)
    notes = restore(remote, local)
    assert contents(local) == contents(other)
    [aside] = local.parent.glob(".run.set-aside-*")
    assert str(aside) in notes[0]
    assert contents(aside) == before
    assert restore(remote, local) == []


def test_a_local_folder_of_unknown_origin_is_set_aside(local, remote, other):
    Publisher(local, remote).sync()
    begin(other, seed=3)
    before = contents(other)
    assert "set aside" in restore(remote, other)[0]
    assert contents(other) == contents(local)
    assert contents(next(other.parent.glob(".run.set-aside-*"))) == before


@pytest.mark.parametrize("inside", [[], [".mirror.lock"], [".probe.12"]])
def test_an_empty_local_folder_is_filled(local, remote, other, inside):
    Publisher(local, remote).sync()
    other.mkdir(parents=True)
    for name in inside:
        (other / name).touch()
    restore(remote, other)
    assert contents(other) == contents(local)


def test_a_file_where_the_folder_should_be(local, remote, tmp_path):
    Publisher(local, remote).sync()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError, match="Choose another run_dir"):
        restore(remote, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_run_that_no_mirror_wrote(remote, other, tmp_path):
    begin(remote)
    for step in range(3):
        train(remote, step)
    before = {name: (remote / name).read_bytes() for name in names(remote)}
    assert restore(remote, other) == []
    assert contents(other) == contents(remote)
    for step in range(3, 8):
        train(other, step)
        with mirror(other, remote)[0]:
            pass
    fresh, notes = again(remote, tmp_path)
    assert notes == []
    assert contents(fresh) == contents(other)
    assert {name: (remote / name).read_bytes() for name in before} == before  # nothing of it was touched


def test_a_remote_that_does_not_answer(local, remote, other, monkeypatch):
    train(local, 0)
    Publisher(local, remote).sync()
    read = stored.read_piece

    def failing(folder, part):
        if part.name.endswith(".safetensors"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(folder, part)

    monkeypatch.setattr(stored, "read_piece", failing)
    with pytest.raises(OSError, match="See that Drive is mounted") as caught:
        restore(remote, other)  # rather than a run without its checkpoint
    assert caught.value.errno == errno.EIO
    assert names(other.parent) == []
    monkeypatch.setattr(stored, "numbers", lambda folder: list((folder / "config.json").iterdir()))
    assert "does not answer" in restore(remote, local)[0]


def test_a_kill_while_restoring_leaves_nothing(local, remote, other, monkeypatch):
    Publisher(local, remote).sync()
    left = other.with_name(".run.restoring-0123abcd")
    left.mkdir(parents=True)
    (left / "config.json").write_text("half")
    restore(remote, other)
    assert contents(other) == contents(local)
    assert sorted(path.name for path in other.parent.iterdir()) == ["run"]


# --- freeing local disk ------------------------------------------------------------------------------------


@pytest.fixture
def workspaces(tmp_path, monkeypatch):
    """QNNKIT_HOME and QNNKIT_LOCAL, with three runs that have finished one after the other."""
    (tmp_path / "drive").mkdir()
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path / "drive"))
    monkeypatch.setenv("QNNKIT_LOCAL", str(tmp_path / "disk"))
    folders = [workspace.run_folder(f"runs/{name}") for name in ("a", "b", "c")]
    for age, folder in zip((3, 1, 2), folders, strict=True):
        begin(folder)
        train(folder, 0, size=10_000)
        workspace.write_json(folder / "result.json", {})
        os.utime(folder / "result.json", (1e9 - age, 1e9 - age))
        Publisher(folder, workspace.remote_of(folder)).sync()
    return folders


def test_the_oldest_finished_runs_go_first(workspaces):
    a, b, c = workspaces
    before = contents(a)
    assert evict() == []  # 20 GB are plenty
    assert evict(25_000) == [a]
    assert evict(15_000) == [c]
    assert not a.exists() and not c.exists() and b.exists()
    assert restore(workspace.remote_of(a), a) == []
    assert contents(a) == before
    assert evict(0) == [b, a]
    assert sorted(path.name for path in a.parent.iterdir()) == []


def test_the_limit_is_told_by_the_environment(workspaces, monkeypatch):
    monkeypatch.setenv("QNNKIT_LOCAL_GB", "0.000025")
    assert evict() == workspaces[:1]
    for value in ("much", "-1", "nan", "inf"):
        monkeypatch.setenv("QNNKIT_LOCAL_GB", value)
        with pytest.raises(ValueError, match="QNNKIT_LOCAL_GB must be a number of gigabytes"):
            evict()


@pytest.mark.parametrize(
    "why", ["unfinished", "newer", "extra", "damaged", "missing", "no remote", "in use", "shorter"]
)
def test_what_is_not_safe_elsewhere_stays(workspaces, why):
    a, b, c = workspaces
    remote, lock = workspace.remote_of(a), None
    if why == "unfinished":
        (a / "result.json").unlink()
        Publisher(a, remote).sync()
    elif why == "newer":
        workspace.write_json(a / "provenance.json", {"newer": True})
    elif why == "extra":
        (a / "note.txt").write_text("not mirrored yet")
    elif why == "damaged":
        damage(next(remote.glob(f"{NET}/step-*")), "flip")
    elif why == "missing":
        (remote / "config.json").unlink()
    elif why == "no remote":
        shutil.rmtree(remote)
    elif why == "in use":
        lock = local_side.hold(a)
    elif why == "shorter":
        workspace.append_line(a / "metrics.jsonl", {"step": 1})
    before = contents(a)
    assert evict(0) == [c, b]
    assert contents(a) == before
    if lock is not None:
        lock.release()


def test_nothing_else_is_touched(workspaces, monkeypatch):
    root = workspaces[0].parent.parent
    (root / "features").mkdir()
    (root / "features" / "big.bin").write_bytes(bytes(100_000))
    begin(root / "runs" / "plain")  # never mirrored
    workspace.write_json(root / "runs" / "plain" / "result.json", {})
    half = root / "runs" / ".old.evicted-0123abcd"
    half.mkdir()
    (half / "config.json").write_text("half deleted")
    assert len(evict(0)) == 3
    assert names(root) == [
        "features/big.bin", "runs/plain/config.json", "runs/plain/provenance.json", "runs/plain/result.json",
    ]  # fmt: skip
    monkeypatch.delenv("QNNKIT_LOCAL")
    assert evict(0) == []
