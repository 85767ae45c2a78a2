"""The origin of a run: the commit and whether it has changes; no user or host name."""

import json
import platform
import subprocess
from importlib import metadata

from qnnkit.runs import opening


def git(folder, *words):
    someone = "-c", "user.email=someone@example.invalid", "-c", "user.name=Someone"
    command = ["git", "-C", str(folder), *someone, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_origin_has_the_commit_and_says_if_the_checkout_was_changed(tmp_path, monkeypatch):
    file = tmp_path / "checkout" / "package" / "__init__.py"
    file.parent.mkdir(parents=True)
    file.write_text("one = 1\n")
    monkeypatch.setattr(opening.qnnkit, "__file__", str(file))

    def seen():
        origin = opening.origin()
        assert origin["machine"]["versions"]["torch"] == metadata.version("torch")
        assert origin["machine"]["memory_bytes"] > 0
        assert not platform.node() or f'"{platform.node()}' not in json.dumps(origin, allow_nan=False)
        return origin["commit"]

    git(tmp_path, "init", "-q")
    assert seen() is None, "another project's checkout"
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"], ["rev-parse", "HEAD"]):
        head = git(tmp_path / "checkout", *words)
    assert seen() == head
    file.write_text("one = 2\n")
    assert seen() == f"{head}-dirty"
    monkeypatch.setenv("PATH", str(tmp_path))  # without git
    assert seen() is None
