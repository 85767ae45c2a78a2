"""All files of a run folder outlast the machine, even before training."""

import threading

import pytest

from qnnkit import runs, workspace
from tests import forked

SCRIPT = """
from qnnkit import runs

run = runs.open_run("runs/one", "digits_quanv", train_fraction=0.1)
run.log("gradients", {"event": "check", "error": 0.25})
"""


def test_a_failing_drive_is_reported_and_gets_the_run_by_the_same_command(both):
    (both / "drive" / "runs").write_text("no folder can be made here")
    done = forked.python(SCRIPT)
    assert "not be mirrored completely" in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr
    run = runs.open_run("runs/one")
    assert run.rows("gradients") == [{"event": "check", "error": 0.25}]
    workspace.write_json(run.folder / "result.json", {"nets": 1})
    with pytest.raises(OSError, match="could not be mirrored completely"):
        runs.chain.finished(run)
    (both / "drive" / "runs").unlink()
    assert runs.chain.finished(run) == {"nets": 1}
    assert (both / "drive" / "runs" / "one" / "result.json").exists()


def test_a_run_that_is_continued_in_drives_copy(both, monkeypatch):
    """A Mac opens it there; a new machine continues from that, and the first gets an error."""
    done = forked.python(SCRIPT)
    assert (done.returncode, done.stderr) == (0, "")
    monkeypatch.delenv("QNNKIT_LOCAL")
    runs.open_run("runs/one").log("gradients", {"event": "check", "error": 0.5})
    monkeypatch.setenv("QNNKIT_LOCAL", str(both / "disk"))
    with pytest.warns(UserWarning, match="was moved to"):
        assert [row["error"] for row in runs.open_run("runs/one").rows("gradients")] == [0.25, 0.5]
    threads = [thread.name for thread in threading.enumerate()]
    assert not any("mirror" in name for name in threads), "reading takes no run over"
