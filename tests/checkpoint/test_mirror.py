"""qnnkit.checkpoint: mirrored files arrive intact on disks that are slow, failing, full or gone."""

import contextlib
import errno
import hashlib
import json
import os
import random
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch
from filelock import Timeout
from torch import nn

from qnnkit import workspace
from qnnkit.checkpoint import Store, own_generators, weights
from qnnkit.checkpoint import mirror as there
from qnnkit.checkpoint.mirror import NOTE, STATE, Mirror, restore, settle, visible
from tests.acted import read_lines
from tests.forked import until
from tests.same import raises, same
from tests.toys import damage, disk_order, room_for

NET = "checkpoints/hybrid-seed0"


def begin(folder, seed=0):
    """A run folder as `open_run` leaves it."""
    workspace.make_folder(folder)
    workspace.write_json(folder / "provenance.json", {"machine": "test"})
    workspace.write_json(folder / "config.json", {"seed": seed})


def train(folder, step, size=1000, keep=2):
    """One step as training does it: write a row and an immutable checkpoint, then delete old ones."""
    workspace.append_line(folder / "metrics.jsonl", {"step": step, "loss": 1 / (1 + step)})
    net = workspace.make_folder(folder / NET)
    content = random.Random(step).randbytes(size)
    name = f"checkpoint-{step:06d}-{hashlib.sha256(content).hexdigest()[:16]}.safetensors"
    workspace.write_bytes(net / name, content)
    for path in sorted(net.glob("checkpoint-*"))[:-keep]:
        path.unlink()


def contents(folder):
    return {name: (folder / name).read_bytes() for name in visible(folder)}


def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def require_whole(folder):
    """Asserts what every restored state must satisfy; returns the step to resume from."""
    assert json.loads((folder / "config.json").read_bytes())
    rows = [row["step"] for row in read_lines(folder / "metrics.jsonl")]
    step = -1
    for path in sorted((folder / NET).glob("checkpoint-*")):
        content, step = path.read_bytes(), int(path.name.split("-")[1])
        assert content == random.Random(step).randbytes(len(content))
        assert step in rows, "the rows are older than the checkpoint"
    return step


@pytest.fixture(autouse=True)
def quick_turns(monkeypatch):
    monkeypatch.setattr("qnnkit.checkpoint.mirror.PAUSES", (0.01, 0.01))


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


@pytest.fixture
def made(local, remote):
    """A mirror of a run of one step, fully mirrored."""
    train(local, 0)
    made_ = Mirror(local, remote)
    assert made_.sync()
    return made_


def mirror(local, remote, **settings):
    """A fast mirror, and the list of its messages."""
    notes = []
    made = Mirror(local, remote, **{"interval": 0.02, "patience": 30.0} | settings)
    made.tell = notes.append
    return made, notes


def again(remote, tmp_path):
    """What a new machine would restore."""
    fresh = tmp_path / "fresh" / "run"
    shutil.rmtree(fresh.parent, ignore_errors=True)
    return fresh, restore(remote, fresh)


def assert_comes_back(remote, tmp_path, wanted):
    """Asserts that a new machine restores the contents of the folder `wanted`."""
    fresh, notes = again(remote, tmp_path)
    assert notes == [] and contents(fresh) == contents(wanted)
    return fresh


def without(folder, *paths):
    return {name: content for name, content in contents(folder).items() if name not in paths}


# --- contents of the mirror --------------------------------------------------------------------------------


def test_mirrored_files_keep_their_names_and_are_restored(local, remote, tmp_path):
    """On one new machine after another."""
    workspace.write_bytes(workspace.make_folder(local / "figures") / "loss.png", b"\x89PNG")
    for name, size in (("empty.txt", 0), ("none.jsonl", 0), ("a.bin", 3 << 20), ("03.failed.ipynb", 9)):
        (local / name).write_bytes(bytes(size))
    (local / "link.txt").symlink_to(local / "a.bin")
    for name in (".hidden", "03_train.running.ipynb", ".ipynb_checkpoints/a.ipynb"):
        (workspace.make_folder((local / name).parent) / Path(name).name).write_text("stays here")
    machine = local
    for step in range(5):
        made, notes = mirror(machine, remote)
        with made:
            train(machine, step)
        assert notes == [] and restore(remote, machine) == [], "already as new as the remote"
        before = {name: (remote / name).stat().st_ctime_ns for name in names(remote)}
        fresh = Mirror(machine, remote)  # the next process's mirror
        assert not fresh.sync() and not fresh.sync(read_back=True), "nothing is written without changes"
        assert {name: (remote / name).stat().st_ctime_ns for name in names(remote)} == before
        wanted, machine = machine, tmp_path / f"machine {step}" / "run"
        assert restore(remote, machine) == []
        assert contents(machine) == contents(wanted) == contents(remote) and require_whole(machine) == step
        assert names(remote) == sorted([*contents(remote), STATE])
    assert {"03.failed.ipynb", "figures/loss.png"} < {*visible(remote)}
    assert not [name for name in visible(remote) if re.search(r"^\.|/\.|running|link", name)]


def test_a_copy_is_on_disk_before_it_gets_its_name(local, remote, monkeypatch):
    workspace.make_folder(remote)
    done = disk_order(monkeypatch)
    with (local / "config.json").open("rb") as file:
        there.copy(file, "config.json", remote)
    assert done == [("flush", (remote / "config.json").stat().st_ino), ("replace", "config.json")]


# --- changes -----------------------------------------------------------------------------------------------


def test_a_change_that_alters_neither_time_nor_size(local, remote, tmp_path):
    made, path = Mirror(local, remote), local / "log.txt"
    for text in (b"aaaa", b"bbbb", b"cccc"):
        workspace.write_bytes(path, text)
        os.utime(path, (1e9, 1e9))
        made.sync()
        assert_comes_back(remote, tmp_path, local)


def test_foreign_files_are_never_deleted_or_taken_for_a_run(local, remote, other):
    remote.mkdir()
    (remote / "thesis.txt").write_text("three years of work")
    assert restore(remote, other) == [] and not other.parent.exists()
    for name in ("result.json", "notebooks/03_train.ipynb"):
        workspace.write_json(workspace.make_folder((local / name).parent) / Path(name).name, {})
    Mirror(local, remote).sync()
    (local / "result.json").rename(local / "result.epochs-2.json")  # the run is extended to more epochs
    (local / "notebooks/03_train.ipynb").unlink()
    Mirror(local, remote).sync()  # another process
    assert contents(remote) == contents(local) | {"thesis.txt": b"three years of work"}


@pytest.mark.parametrize("when", ["metrics.jsonl", "checkpoint-", "config.json"])
@pytest.mark.parametrize("keep", [1, 9])
def test_result_checkpoints_and_rows_match_each_other(local, remote, tmp_path, monkeypatch, when, keep):
    """Training continues while the mirror reads; files pruned meanwhile are unused or still readable."""

    def trained(step):
        train(local, step, keep=keep)
        workspace.write_json(local / "result.json", {"steps": step})

    def meanwhile(path):
        marks = stamp(path)
        if when in path.name and (step := next(steps, None)):
            trained(step)
        return marks

    trained(0)
    stamp, steps = there.stamp, iter(range(1, 4))
    monkeypatch.setattr(there, "stamp", meanwhile)
    Mirror(local, remote).sync()
    fresh, _ = again(remote, tmp_path)
    require_whole(fresh)
    rows = [row["step"] for row in read_lines(fresh / "metrics.jsonl")]
    assert workspace.read_json(fresh / "result.json")["steps"] in rows


# --- disks -------------------------------------------------------------------------------------------------


def in_mirror(monkeypatch, operation, do):
    """Calls `do` in the mirror's thread before a system call."""
    real = getattr(os, operation)

    def changed(*args, **named):
        if threading.current_thread().name == "mirror":
            do()
        return real(*args, **named)

    monkeypatch.setattr(os, operation, changed)


@pytest.mark.parametrize("hangs", [False, True])
def test_a_slow_disk_does_not_delay_training_and_a_hanging_one_is_abandoned(
    local, remote, tmp_path, monkeypatch, hangs
):
    answer = threading.Event()
    made, notes = mirror(local, remote, patience=0.05 if hangs else 30)
    in_mirror(monkeypatch, "fsync", lambda: answer.wait(60))
    with pytest.raises(OSError, match="it does not answer") if hangs else contextlib.nullcontext(), made:
        for step in range(3):
            train(local, step)  # while the disk is slow
        assert not (remote / STATE).exists()
        if not hangs:
            answer.set()
    answer.set()
    made._thread.join()
    assert_comes_back(remote, tmp_path, local)
    assert notes == []


@contextlib.contextmanager
def trouble(monkeypatch, operation, number):
    """Makes a system call of the mirror's thread fail; without one, the disk is full."""
    if operation is None:
        with room_for(100_000):
            yield
        return
    with monkeypatch.context() as patched:
        in_mirror(patched, operation, raises(OSError(number, os.strerror(number))))
        yield


@pytest.mark.parametrize(
    ("operation", "number", "end"),
    [
        ("fsync", errno.EIO, "mended"), ("replace", errno.EIO, "mended"), (None, errno.EFBIG, "mended"),
        ("replace", errno.EROFS, "for good"), (None, errno.EFBIG, "for good"),
        ("fsync", errno.EIO, "the body fails too"),
    ],
)  # fmt: skip
def test_a_failing_disk_keeps_the_previous_state(made, remote, tmp_path, monkeypatch, operation, number, end):
    """Reported once; if it persists, again at the end, by an error that an error of the body precedes."""
    train(made.local, 1, size=200_000)
    later, notes = mirror(made.local, remote)
    errors = {"mended": (), "for good": OSError, "the body fails too": ZeroDivisionError}
    lasting = contextlib.ExitStack()
    lasting.enter_context(trouble(monkeypatch, operation, number))
    with lasting, pytest.raises(errors[end]) if errors[end] else contextlib.nullcontext() as caught, later:
        until(lambda: notes)
        assert require_whole(again(remote, tmp_path)[0]) == 0
        if end == "mended":
            lasting.close()
            until(lambda: len(notes) == 2)
        _ = 1 / (end != "the body fails too")
    word, where = os.strerror(number), f"Everything is in `{made.local}`"
    assert re.search(f"waits: .*{word}.* qnnkit tries again; training continues", notes.pop(0))
    if end == "mended":
        assert "works again" in notes.pop()
    else:
        sentence = str(caught.value) if end == "for good" else notes.pop()
        assert re.search(f"mirrored completely to .*{word}.* {where}.* run the same command again", sentence)
        made.sync()
    assert notes == [] and not list(remote.glob(".draft"))
    assert_comes_back(remote, tmp_path, made.local)


def test_a_missing_folder_is_neither_written_nor_copied(made, local, remote):
    """An ordinary, empty folder replaces a Drive that is no longer mounted."""
    mounted = remote.parent.rename(remote.parent.with_name("away"))
    remote.parent.mkdir()
    train(local, 1)
    with pytest.raises(FileNotFoundError):
        made.sync()
    assert not any(remote.parent.iterdir())
    remote.parent.rmdir()
    mounted.rename(remote.parent)
    assert made.sync() and contents(remote) == contents(local)
    before = names(remote)
    shutil.rmtree(local)
    with pytest.raises(OSError, match="Keep one of the two"):
        made.sync()
    assert names(remote) == before


@pytest.mark.parametrize("harm", ["flip", "cut", "delete", "swap"])
@pytest.mark.parametrize("what", [f"{NET}/checkpoint-0*", "metrics.jsonl", "provenance.json", STATE])
def test_the_end_repairs_files_that_cannot_be_read_back(made, local, remote, tmp_path, harm, what):
    damage(next(remote.glob(what)), harm)
    if what == STATE and harm in ("flip", "cut"):  # as if written by another machine
        with pytest.raises(FileExistsError, match="Keep one of the two"):
            made.sync()
        return
    assert made.sync(read_back=True) and not made.sync(read_back=True)
    assert_comes_back(remote, tmp_path, local)


# --- kills -------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process ends at this point."""


@pytest.mark.parametrize(("before", "result"), [(0, "first"), (2, "first"), (2, "another")])
def test_a_kill_at_every_disk_operation(tmp_path, monkeypatch, before, result):
    """Kills before each operation that changes a disk, one after the other; see `make torture`.

    Each time the run can be resumed: by a new machine, by the same one, and by a process that works in the
    remote folder.
    """
    real, left = {name: getattr(os, name) for name in ("fsync", "replace", "unlink", "mkdir")}, 0

    def counted(operation, *args, **named):
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        return operation(*args, **named)

    for moment in range(1000):
        folder = tmp_path / str(moment)
        local, remote, worked_in = folder / "disk" / "run", folder / "drive" / "run", folder / "worked in"
        begin(local)
        for step in range(before):
            train(local, step, keep=1)
            if result == "another":
                workspace.write_json(local / "result.json", {"steps": step})
            Mirror(local, remote).sync()
        train(local, before, keep=1)
        workspace.write_json(local / "result.json", {"steps": before})
        left = moment
        with monkeypatch.context() as patched, contextlib.suppress(Killed):
            for name, operation in real.items():
                patched.setattr(os, name, partial(counted, operation))
            Mirror(local, remote).sync()
        finished = left >= 0
        fresh, notes = again(remote, folder)
        assert notes == []
        if fresh.exists() or before:
            step = require_whole(fresh)
            assert step >= before - 1, "an existing checkpoint is gone"
            if (fresh / "result.json").exists():
                assert contents(local).items() <= contents(fresh).items() or step == before - 1
                assert workspace.read_json(fresh / "result.json") == {"steps": step}
        workspace.make_folder(remote)
        shutil.copytree(remote, worked_in)
        settle(worked_in)
        assert contents(worked_in) == contents(remote)
        Mirror(local, remote).sync()  # the same machine resumes
        assert_comes_back(remote, folder, local)
        assert contents(remote) == contents(local) and not list(remote.glob(".draft"))
        if finished:
            assert moment > 8
            return
    raise AssertionError("it never finished")


# --- damage ------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:File `.*` has .* damaged lines:UserWarning")
@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "delete", "swap", "folder", "link"])
@pytest.mark.parametrize("what", [f"{NET}/checkpoint-*1-*", "metrics.jsonl", STATE, "config.json"])
def test_damage_to_a_mirrored_file_harms_nothing_else(local, remote, tmp_path, harm, what):
    for step in (0, 1):
        train(local, step)
    Mirror(local, remote).sync()
    path = next(remote.glob(what))
    name = path.relative_to(remote).as_posix()
    damage(path, harm)
    if name == "config.json" and harm not in ("flip", "cut"):  # JSON parsing misses those two
        with pytest.raises(ValueError, match=r"config\.json.*Restore it"):
            again(remote, tmp_path)
        assert names(tmp_path / "fresh") in ([], [".run.mirror.lock"])
        return
    fresh, notes = again(remote, tmp_path)
    assert notes == [] and without(fresh, name, "moved", f"{NET}/moved") == without(local, name)
    train(fresh, 7)  # the new machine resumes, and its mirror is intact again
    if harm != "folder":  # such a folder is somebody else's
        made = Mirror(fresh, remote)
        assert made.sync() and not made.sync(read_back=True)
        assert_comes_back(remote, tmp_path / "newest", fresh)


@pytest.mark.parametrize("version", ["mirrored_0_1", "mirrored_0_1_marks"])
def test_a_workspace_of_an_older_version_opens(tmp_path, version):
    """A new machine restores it, the original machine restores it again, and the nets load."""
    shutil.unpack_archive(Path(__file__).with_name(f"{version}.zip"), tmp_path)
    local, remote = tmp_path / "local", tmp_path / "drive"
    fresh, before = assert_comes_back(remote, tmp_path, local), contents(local)
    [note] = restore(remote, local)
    assert "was moved to" in note and contents(local) == before
    for folder in (local, fresh):
        state = Store(folder / NET, {"net": "hybrid", "seed": 0}).restore()
        with own_generators():
            torch.manual_seed(0)  # frozen weights of a named base were not saved, and are drawn again
            model = nn.Sequential(nn.Linear(64, 17).requires_grad_(False), nn.Linear(17, 2))
        weights.load(model, state.pop("model"))
        assert (model[1].weight == 0.5).all() and (model[1].bias == 0.25).all()
        plain = (1, 2.5, "text", True, None, float("inf"), {(0, "a"): [torch.arange(3), ()], 7: 1, "7": 2})
        turned = torch.exp(1j * torch.arange(2, dtype=torch.float64))
        assert same(state, {"progress": {"updates": 3}, "part": None, "plain": (*plain, turned)})
    train(local, 2)
    assert Mirror(local, remote).sync() and contents(local) == contents(remote)


# --- several machines --------------------------------------------------------------------------------------


def test_only_one_mirror_uses_a_folder_and_the_next_takes_over(local, remote, tmp_path):
    first, _ = mirror(local, remote)
    second, notes = mirror(local, remote)
    never, _ = mirror(local, remote.with_name("never"))
    first.__enter__()
    until(lambda: (remote / STATE).exists())
    with never:
        train(local, 0)
    assert restore(remote, local) == [] and not never.remote.exists()
    with second:
        first.__exit__(None, None, None)
        train(local, 3)
        until(lambda: contents(remote) == contents(local))
    assert_comes_back(remote, tmp_path, local)
    assert notes == [] and require_whole(local) == 3


def test_a_new_run_is_mirrored_long_before_the_first_interval_ends(local, remote, monkeypatch):
    monkeypatch.setattr(there, "SOON", 0.02)
    begin(local)
    with mirror(local, remote, interval=999.0)[0]:
        until(lambda: (remote / STATE).exists())
        assert contents(remote) == contents(local)


def test_a_machine_that_lost_the_run_to_another_stops(made, local, remote, other, tmp_path):
    (later, notes), theirs = mirror(local, remote), Mirror(other, remote)
    assert restore(remote, other) == [] and not theirs.sync()  # reading a run does not take it over
    train(other, 1)
    assert theirs.sync()
    with pytest.raises(OSError, match="another copy of this run has been mirrored"), later:
        train(local, 2)
        until(lambda: notes)
        with pytest.raises(Timeout):  # nothing may replace it while it is in use
            there.lock_of(local).acquire(timeout=0)
    assert len(notes) == 1 and not any(remote.glob(f"{NET}/checkpoint-000002-*"))
    assert not theirs.sync(read_back=True)
    assert_comes_back(remote, tmp_path, other)


def test_a_copy_of_other_origin_never_overwrites_the_mirror(made, local, remote, other):
    """Nor a run that no mirror wrote; see `test_a_machine_that_lost_the_run_to_another_stops`."""
    begin(other, seed=8)
    (remote / STATE).unlink()
    with pytest.raises(FileExistsError, match="Keep one of the two"):
        Mirror(other, remote).sync()
    assert contents(remote) == contents(local)


def test_a_process_in_the_remote_folder_takes_the_run_over(remote, other, tmp_path):
    begin(remote)
    train(remote, 0)
    assert restore(remote, other) == [] and contents(other) == contents(remote), "it was written by no mirror"
    train(other, 1)
    made = Mirror(other, remote)
    assert made.sync()
    for step in (2, 3):
        settle(remote)
        train(remote, step)
    train(other, 5)
    with pytest.raises(FileExistsError):
        made.sync()
    assert require_whole(assert_comes_back(remote, tmp_path, remote)) == 3


# --- restoring over existing folders -----------------------------------------------------------------------


@pytest.mark.parametrize("why", ["outrun", "of unknown origin"])
def test_a_different_local_folder_is_moved_aside(made, local, remote, other, why):
    if why == "outrun":
        restore(remote, other)
        train(other, 1)
        Mirror(other, remote).sync()
    else:
        (local / NOTE).unlink()
    workspace.write_json(local / "mine.json", {"only": "here"})
    before = contents(local)
    notes = restore(remote, local)
    assert contents(local) == contents(remote)
    [aside] = local.parent.glob(".run.set-aside-*")
    assert str(aside) in notes[0] and contents(aside) == before
    assert restore(remote, local) == []


def test_an_empty_local_folder_is_filled_and_an_up_to_date_one_or_a_file_stays(made, remote, other, tmp_path):
    other.mkdir(parents=True)
    assert restore(remote, other) == [] and contents(other) == contents(made.local)
    train(other, 1)  # not mirrored yet
    before = contents(other)
    assert restore(remote, other) == [] and contents(other) == before
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError, match="choose another name"):
        restore(remote, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("what", ["a checkpoint that cannot be read", "no answer"])
def test_a_remote_that_cannot_be_restored(made, local, remote, other, monkeypatch, what):
    """qnnkit continues with a local copy; without one nothing starts."""
    train(local, 1)
    Mirror(shutil.copytree(local, other.with_name("third")), remote).sync()

    failing, copy, read = raises(OSError(errno.EIO, os.strerror(errno.EIO))), there.copy, there._read
    if what == "no answer":
        monkeypatch.setattr(there, "_read", lambda path: (failing if path.name == STATE else read)(path))
    else:
        monkeypatch.setattr(there, "copy", lambda *args: (failing if ".safe" in args[1] else copy)(*args))
    with pytest.raises(OSError, match="Mount Drive") as caught:
        restore(remote, other)
    assert caught.value.errno == errno.EIO
    assert not contents(other) and not list(other.parent.glob(".run.restoring"))
    before = contents(local)
    [note] = restore(remote, local)
    assert f"`{local}`" in note and "continues" in note and contents(local) == before


@pytest.mark.parametrize("keep", [1, 9])
def test_the_other_machine_writes_while_its_folder_is_restored(made, local, remote, other, monkeypatch, keep):
    """If a checkpoint vanishes meanwhile, the error asks for the same command; rows are never older."""
    train(local, 1)
    copy, steps = there.copy, iter([2])
    made.sync()

    def meanwhile(file, name, folder):
        copy(file, name, folder)
        if folder.is_relative_to(other.parent) and (step := next(steps, None)):
            train(local, step, keep=keep)
            made.sync()

    monkeypatch.setattr(there, "copy", meanwhile)
    if keep == 1:
        with pytest.raises(OSError, match="run the same command again"):
            restore(remote, other)
        assert not contents(other)
    assert restore(remote, other) == [] and require_whole(other) == (2 if keep == 1 else 1)


def test_concurrent_restores_copy_once_and_remove_what_a_kill_left(local, remote, other):
    train(local, 0, size=5 << 20)
    Mirror(local, remote).sync()
    left = workspace.make_folder(other.with_name(".run.restoring"))
    (left / "config.json").write_text("half")
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(restore, remote, other) for _ in range(4)]
        for each in waiting:
            assert each.result() == [] and (other / "config.json").exists()
    assert contents(other) == contents(local)
    assert sorted(path.name for path in other.parent.iterdir()) == [".run.mirror.lock", "run"]
