"""qnnkit.runs.origin: equal code has equal hashes, whoever asks; nothing names a person or a host."""

import hashlib
import json
import platform
import subprocess
from importlib import metadata

import pytest

from qnnkit.runs import origin

NOTHING = hashlib.sha256().hexdigest()


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
    monkeypatch.setattr(origin, "_package", lambda: package)
    return package


def git(folder, *words):
    subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)


def test_the_origin_of_a_run_here():
    found = origin.origin()
    assert found["packages"]["torch"] == metadata.version("torch")
    assert {"pennylane", "accelerate", "numpy"} <= set(found["packages"])
    assert found["machine"]["cores"] >= 1 and found["machine"]["memory_gb"] > 0
    told = json.dumps(found, allow_nan=False)
    assert not platform.node() or f'"{platform.node()}' not in told
    before = {"begun", "qnnkit", "commit", "commit_changed", "python", "platform", "packages"}
    assert before <= set(found), "what provenance.json had stays"


def test_a_clean_checkout_has_the_hash_of_nothing(checkout):
    assert origin.diff_hash() == NOTHING
    assert origin.origin()["commit_changed"] is False


def test_every_change_has_a_hash_of_its_own(checkout):
    seen = [origin.diff_hash()]
    (checkout / "__init__.py").write_text("one = 2\n")
    seen.append(origin.diff_hash())
    git(checkout, "add", ".")
    assert origin.diff_hash() == seen[-1], "staged or not is no matter"
    (checkout / "é new.py").write_text("")
    seen.append(origin.diff_hash())
    (checkout / "é new.py").write_text("two = 2\n")
    seen.append(origin.diff_hash())
    (checkout / "picture.bin").write_bytes(bytes(range(256)))
    git(checkout, "add", "picture.bin")
    seen.append(origin.diff_hash())
    assert None not in seen and len(set(seen)) == len(seen)
    assert origin.origin()["commit_changed"] is True


def test_what_lies_outside_the_package_is_no_matter(checkout):
    (checkout.parent / "notes.txt").write_text("untracked")
    assert origin.diff_hash() == NOTHING


def test_a_persons_settings_of_git_change_no_hash(checkout):
    (checkout / "__init__.py").write_text("one = 2\n")
    before = origin.diff_hash()
    settings = {"diff.noprefix": "true", "color.ui": "always", "diff.external": "false", "diff.context": "9"}
    for name, value in settings.items():
        git(checkout, "config", "--global", name, value)
    assert origin.diff_hash() == before


def test_an_installed_package_inside_another_projects_checkout(checkout, monkeypatch):
    inside = checkout.parent / ".venv" / "package"
    inside.mkdir(parents=True)
    (inside / "__init__.py").write_text("")
    monkeypatch.setattr(origin, "_package", lambda: inside)
    found = origin.origin()
    assert (found["commit"], found["commit_changed"], found["diff"]) == (None, None, None)


def test_without_git(monkeypatch, tmp_path):
    monkeypatch.setattr(origin, "_package", lambda: tmp_path)
    assert origin.diff_hash() is None
    monkeypatch.setenv("PATH", str(tmp_path))
    found = origin.origin()
    assert (found["commit"], found["diff"]) == (None, None)
