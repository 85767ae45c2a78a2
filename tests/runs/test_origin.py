"""How a run begins: the commit and whether it was changed; nothing names a person or a host."""

import json
import platform
import subprocess
from importlib import metadata

import pytest

from qnnkit.runs import opening


def git(folder, *words):
    done = subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A committed package of one file, in a repository of its own."""
    package = tmp_path / "repository" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("one = 1\n")
    git(package, "init", "-q", "..")
    git(package, "add", ".")
    someone = "-c", "user.email=someone@example.invalid", "-c", "user.name=Someone"
    git(package, *someone, "commit", "-qm", "first")
    monkeypatch.setattr(opening.qnnkit, "__file__", str(package / "__init__.py"))
    return package


def test_the_origin_of_a_run_here():
    found = opening.origin()
    assert found["packages"]["torch"] == metadata.version("torch")
    assert {"pennylane", "accelerate", "numpy"} <= set(found["packages"])
    assert " core" in found["machine"]["name"] and found["machine"]["memory_bytes"] > 0
    told = json.dumps(found, allow_nan=False)
    assert not platform.node() or f'"{platform.node()}' not in told


def test_a_changed_checkout_is_said_to_be(checkout, monkeypatch, tmp_path):
    head = git(checkout, "rev-parse", "HEAD")

    def seen():
        return opening.origin()["commit"], opening.origin()["commit_changed"]

    (checkout.parent / "notes.txt").write_text("untracked")
    assert seen() == (head, False), "what lies outside the package is no matter"
    for name in ("new.py", "__init__.py"):
        (checkout / name).write_text("one = 2\n")
        assert seen() == (head, True)
        git(checkout, "clean", "-qf")
    inside = checkout.parent / ".venv" / "package"  # in another project's checkout
    inside.mkdir(parents=True)
    (inside / "__init__.py").write_text("")
    monkeypatch.setattr(opening.qnnkit, "__file__", str(inside / "__init__.py"))
    assert seen() == (None, None)
    monkeypatch.setenv("PATH", str(tmp_path))  # without git
    assert seen() == (None, None)
