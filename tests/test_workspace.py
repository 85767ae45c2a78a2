"""qnnkit.workspace: files are written completely or not at all, on disks that are really full or closed."""

import errno
import json
import signal
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from qnnkit import workspace
from qnnkit.runs.folder import without_places
from tests import forked
from tests.same import raises
from tests.toys import closed, disk_order, refused, room_for

ROOM = 65_536  # bytes that still fit on a "full disk"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# --- complete files ----------------------------------------------------------------------------------------


def test_a_new_file_is_on_disk_before_it_replaces_the_old_one(tmp_path, monkeypatch):
    done = disk_order(monkeypatch)
    (tmp_path / "a.json").write_bytes(b"first, longer")
    workspace.write_bytes(tmp_path / "a.json", b"whole")
    assert (tmp_path / "a.json").read_bytes() == b"whole" and names(tmp_path) == ["a.json"]
    assert done == [("flush", (tmp_path / "a.json").stat().st_ino), ("replace", "a.json")]


def test_a_full_disk_or_a_wrong_value_keeps_the_old_file(tmp_path):
    path = tmp_path / "result.json"
    workspace.write_json(path, {"accuracy": 0.5})
    with room_for(ROOM), pytest.raises(OSError, match="Free some space") as caught:
        workspace.write_bytes(path, bytes(2 * ROOM))
    assert caught.value.errno == errno.EFBIG and str(path) in caught.value.strerror
    with pytest.raises(ValueError, match="JSON"):  # other programs could not read it
        workspace.write_json(path, {"accuracy": float("nan")})
    assert workspace.read_json(path) == {"accuracy": 0.5} and names(tmp_path) == ["result.json"]


WRITES = {
    "old.json": lambda path: workspace.write_bytes(path, b"new"),
    "metrics.jsonl": lambda path: workspace.append_line(path, {"epoch": 1}),
    **dict.fromkeys(("", "new/er", "private/home/run"), workspace.make_folder),  # the last is invisible
}


def fill(folder):
    (folder / "old.json").write_text("{}\n")
    (folder / "private").mkdir(mode=0)


@pytest.mark.parametrize("name", WRITES)
def test_nothing_is_written_into_a_closed_folder(name):
    with closed(fill) as folder:
        with pytest.raises(PermissionError, match="Choose a folder that you may write to"):
            WRITES[name](folder / name)
        assert (folder / "old.json").read_text() == "{}\n" and names(folder) == ["old.json", "private"]


SAVES = """
    import os, signal, sys
    from qnnkit import workspace
    moments = iter(range(3))
    def pass_moment():
        if next(moments) == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
    with workspace.whole_folder(sys.argv[1]) as draft:
        (draft / "weights").write_text("new")
        sys.addaudithook(lambda event, given: event == "os.rename" and pass_moment())
        pass_moment()
"""


@pytest.mark.parametrize("moment", [0, 1, 2])
def test_the_next_call_removes_what_a_kill_left_next_to_a_folder(tmp_path, moment):
    """Killed while writing, before the old folder moves away, and before the new one takes its place."""
    folder = tmp_path / "my.model"
    with workspace.whole_folder(folder) as draft:
        (draft / "weights").write_text("old")
    killed = forked.python(SAVES, folder, moment)
    assert killed.returncode == -signal.SIGKILL and len(names(tmp_path)) == 3, killed.stderr
    with workspace.whole_folder(folder) as draft:
        assert (folder / "weights").read_text() == "old"
        (draft / "weights").write_text("newer")
    assert names(tmp_path) == ["my.model"] and (folder / "weights").read_text() == "newer"


# --- lines -------------------------------------------------------------------------------------------------


def test_a_folder_is_written_by_one_call_at_a_time(tmp_path):
    """Each call sees what the other has made; files with similar names are kept."""
    made, alike = [], tmp_path / ".model.b.part"
    alike.mkdir()

    def save(number):
        with workspace.whole_folder(tmp_path / "model") as draft:
            made.append(sorted(path.name for path in (tmp_path / "model").glob("*")))
            for name in ("weights", "card"):
                (draft / name).write_text(str(number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(save, range(4)))
    assert made == [[], *3 * [["card", "weights"]]] and alike.is_dir()
    assert len({path.read_text() for path in (tmp_path / "model").iterdir()}) == 1


LONG = {"note": "x" * 200_000}


@pytest.mark.parametrize("first", [[], [{"epoch": 1}]])
@pytest.mark.parametrize("room", [0, 7, len(json.dumps(LONG))])
def test_a_partial_line_after_a_kill_or_full_disk_is_ignored_and_replaced(tmp_path, room, first):
    path = tmp_path / "metrics.jsonl"
    path.touch()
    for row in first:
        workspace.append_line(path, row)
    with room_for(path.stat().st_size + room), pytest.raises(OSError, match="Free some space"):
        workspace.append_line(path, LONG)
    assert workspace.parse_lines(path.read_bytes())[0] == first
    workspace.append_line(path, {"epoch": 3})
    assert workspace.parse_lines(path.read_bytes()) == ([*first, {"epoch": 3}], 0)


# --- places ------------------------------------------------------------------------------------------------


def test_home_is_the_named_folder_or_the_one_around_notebooks(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for named, path in ((f"{tmp_path}/not there", "not there"), ("~/drive", "drive"), (__file__, __file__)):
        monkeypatch.setenv("QNNKIT_HOME", named)
        assert workspace.home() == tmp_path / path and workspace.place("runs") == tmp_path / path / "runs"
        assert workspace.place(tmp_path / "run") == tmp_path / "run", "an absolute path stays"
    monkeypatch.setenv("QNNKIT_HOME", "")
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    assert workspace.home() == tmp_path / "notebooks"  # a folder of that name may be unrelated
    (tmp_path / "notebooks" / "03_train.ipynb").touch()
    assert workspace.home() == tmp_path


def test_a_user_without_a_home_still_has_a_workspace(tmp_path, monkeypatch):
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path))
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", raises(KeyError))  # as in a container
    assert workspace.place("~/a") == tmp_path / "~/a" and without_places(f"{tmp_path}/a") == "./a"


@pytest.mark.parametrize("there", ["NFC", "NFD"])
def test_accents_are_matched_in_the_forms_of_mac_and_linux(tmp_path, there):
    (tmp_path / unicodedata.normalize(there, "Zähler")).mkdir()
    for form in ("NFC", "NFD"):
        assert workspace.place(tmp_path / unicodedata.normalize(form, "Zähler")).is_dir()


# --- a fast local disk before a slow home ------------------------------------------------------------------


@pytest.mark.parametrize("asked", ["runs/x", "runs/../runs/x", "{}/drive/a/../runs/x", "{}/My Drive/runs/x"])
@pytest.mark.parametrize("home", ["drive", "My Drive"], ids=["as it is", "behind a link"])
def test_runs_are_redirected_to_the_local_folder(both, monkeypatch, asked, home):
    (both / "My Drive").symlink_to(both / "drive")
    monkeypatch.setenv("QNNKIT_HOME", str(both / home))
    folder = workspace.run_folder(asked.format(both))
    assert folder == both / "disk" / "runs" / "x"
    assert workspace.remote_of(folder) == both / home / "runs" / "x"
    assert workspace.run_folder(folder) == folder  # as a notebook gets it
    assert workspace.place("data") == both / home / "data", "only runs are redirected"
    assert workspace.shelf("measured") == both / home / "measured"


@pytest.mark.parametrize("asked", ["{}/elsewhere/x", "{}/drive", "{}/drive2/x", "{}/drive/../x"])
def test_runs_elsewhere_are_not_redirected(both, monkeypatch, asked):
    folder = Path(asked.format(both))
    assert workspace.run_folder(folder) == folder and workspace.remote_of(folder) is None
    monkeypatch.setenv("QNNKIT_LOCAL", "")  # without a local folder runs stay at home
    assert workspace.run_folder("runs/x") == workspace.place("runs/x") == both / "drive" / "runs" / "x"
    assert workspace.remote_of(both / "drive" / "runs" / "x") is None


def test_no_run_starts_if_home_is_not_mounted(both):
    (both / "drive").rmdir()
    with pytest.raises(FileNotFoundError, match=r"`QNNKIT_HOME` must be an existing folder.*Mount Drive"):
        workspace.run_folder("runs/x")
    # A run that has already begun continues without it.
    folder = both / "disk" / "runs" / "x"
    assert workspace.run_folder(folder) == folder
    assert workspace.remote_of(folder) == both / "drive" / "runs" / "x"


@pytest.mark.parametrize(
    ("local", "home"),
    [("{}/disk", ""), ("disk", "{}/drive"), ("{}/drive/disk", "{}/drive"), ("{}/disk", "{}/disk/drive")],
)
def test_impossible_local_folders_raise_an_error(both, monkeypatch, local, home):
    monkeypatch.setenv("QNNKIT_LOCAL", local.format(both))
    monkeypatch.setenv("QNNKIT_HOME", home.format(both))
    with refused("QNNKIT_LOCAL"):
        workspace.run_folder("runs/x")
