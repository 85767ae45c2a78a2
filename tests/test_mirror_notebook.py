"""What a person's notebook leaves in a run folder outlasts the machine, before anything is trained."""

import subprocess
import sys

import pytest

from qnnkit import runs

SCRIPT = """
from IPython.core.interactiveshell import InteractiveShell

{shell}
from qnnkit import runs

run = runs.open_run("runs/one", "digits_quanv", train_fraction=0.1)
run.log("gradients", {{"event": "check", "error": 0.25}})
"""


@pytest.mark.parametrize(("shell", "rows"), [("InteractiveShell.instance()", 1), ("", 0)])
def test_a_notebook_opened_from_a_badge_is_mirrored(shell, rows, tmp_path, monkeypatch):
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path / "drive"))
    monkeypatch.setenv("QNNKIT_LOCAL", str(tmp_path / "machine"))
    (tmp_path / "drive").mkdir()
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(shell=shell)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("QNNKIT_LOCAL", str(tmp_path / "another"))  # the first machine is gone
    if not rows:  # a script mirrors while it trains
        with pytest.raises(FileNotFoundError):
            runs.open_run("runs/one")
        return
    assert runs.open_run("runs/one").rows("gradients") == [{"event": "check", "error": 0.25}]
