"""How a run begins: the commit and whether it was changed; nothing names a person or a host."""

import json
import platform
import subprocess
from importlib import metadata

import pytest

from qnnkit.runs import opening


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A committed package of one file, in a repository of its own."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    package = tmp_path / "repository" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("one = 1\n")
    git(tmp_path, "config", "--global", "user.email", "someone@example.invalid")
    git(tmp_path, "config", "--global", "user.name", "Someone")
    git(package, "init", "-q", "..")
    git(package, "add", ".")
    git(package, "commit", "-qm", "first")
    monkeypatch.setattr(opening.qnnkit, "__file__", str(package / "__init__.py"))
    return package


def git(folder, *words):
    return subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)


def test_the_origin_of_a_run_here():
    found = opening.origin()
    assert found["packages"]["torch"] == metadata.version("torch")
    assert {"pennylane", "accelerate", "numpy"} <= set(found["packages"])
    assert " core" in found["machine"]["name"] and found["machine"]["memory_bytes"] > 0
    told = json.dumps(found, allow_nan=False)
    assert not platform.node() or f'"{platform.node()}' not in told
    before = {"begun", "qnnkit", "commit", "commit_changed", "python", "platform", "packages"}
    assert before <= set(found), "what provenance.json had stays"


def test_a_changed_checkout_is_said_to_be(checkout):
    found, head = opening.origin(), git(checkout, "rev-parse", "HEAD").stdout.decode().strip()
    assert (found["commit"], found["commit_changed"]) == (head, False)
    (checkout.parent / "notes.txt").write_text("untracked")
    assert opening.origin()["commit_changed"] is False, "what lies outside the package is no matter"
    (checkout / "new.py").write_text("")
    assert opening.origin()["commit_changed"] is True
    (checkout / "new.py").unlink()
    (checkout / "__init__.py").write_text("one = 2\n")
    assert opening.origin()["commit_changed"] is True


@pytest.mark.parametrize("where", ["in another project's checkout", "without git"])
def test_what_git_does_not_know_has_no_commit(checkout, monkeypatch, tmp_path, where):
    inside = checkout.parent / ".venv" / "package"
    inside.mkdir(parents=True)
    (inside / "__init__.py").write_text("")
    monkeypatch.setattr(opening.qnnkit, "__file__", str(inside / "__init__.py"))
    if where == "without git":
        monkeypatch.setenv("PATH", str(tmp_path))
    found = opening.origin()
    assert (found["commit"], found["commit_changed"]) == (None, None)
