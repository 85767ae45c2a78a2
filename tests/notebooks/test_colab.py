"""colab_setup.ipynb, and the first cell of each numbered notebook, on a stand-in for a Colab machine.

The stand-in is a folder: a Python that sees the packages of this one but installs only into itself, a
`google.colab` that mounts a folder, and a repository that holds qnnkit with a command that only records its
arguments. git and pip are real.
"""

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from qnnkit import runs, workspace
from qnnkit.checkpoint.mirror import Mirror
from tests.colab import (
    MOVING_PIP,
    NUMBERED,
    ROOT,
    Machine,
    code_cells,
    machine_at,
    make_machine,
    sentence,
    setup_cell,
    without_address,
    write,
)
from tests.toys import no_workspace


@pytest.fixture
def machine(new_machine: Path, tmp_path: Path) -> Machine:
    """A fresh Colab machine."""
    return machine_at(new_machine, tmp_path / "machine")


@pytest.fixture(scope="module")
def new_machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a fresh machine, which tests copy."""
    pytest.importorskip("pip", reason="the notebook needs pip")
    made = make_machine(tmp_path_factory.mktemp("machine") / "new")
    made.publish({"qnnkit/__init__.py": f"{(ROOT / 'qnnkit' / '__init__.py').read_text()}\nedition = 1\n"})
    return made.folder


@pytest.fixture(scope="module")
def day(new_machine: Path, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A machine that a notebook's first cell has set up: each test continues where the last one ended."""
    machine = machine_at(new_machine, tmp_path_factory.mktemp("day") / "machine")
    machine.set_up()
    return machine


# --- outside Colab ---


def test_outside_colab_nothing_happens(machine: Machine) -> None:
    machine.colab = False
    printed = machine.run_cells(run_main_job=True).stdout
    assert re.fullmatch(r"This is not Colab, so this notebook does nothing\. [^\n]+\n", printed)
    assert list(machine.content.iterdir()) == []
    assert machine.asked() == []


# --- on Colab ---


def test_set_up_twice_and_a_day_later(day: Machine) -> None:
    about = {"home": str(day.workspace), "local": f"{day.checkout}-local"}
    assert day.mounts() == [str(day.content / "drive")]
    assert day.head() == day.head(day.folder / "author")
    assert (day.checkout / ".git" / "shallow").exists() and day.workspace.is_dir()
    assert day.asked() == [{"arguments": ["doctor"], **about}]
    held = (day.content / "qnnkit-constraints.txt").read_text().splitlines()
    assert held == [f"{name}=={metadata.version(name)}" for name in ("torch", "numpy")]

    # A day later: the machine still runs, a run is on Drive, and the repository has two new commits.
    write(day.workspace / "runs" / "first" / "result.json", "{}")
    day.publish({"qnnkit/__init__.py": "edition = 2\n"})
    newest = day.publish({"qnnkit/extra.py": "more = True\n"})
    code = "\n\n".join([*day.cells(run_main_job=True), "import qnnkit; print('edition', qnnkit.edition)"])
    again = day.run_code(code)
    assert again.returncode == 0, again.stderr
    assert again.stdout.endswith("edition 2\n"), "the same kernel has imported it"
    assert len(day.mounts()) == 1 and day.head() == newest
    assert "was here before. It is up to date" in again.stdout
    assert (day.workspace / "runs" / "first" / "result.json").read_text() == "{}"
    main_job = ["run", "--recipe", "digits_quanv", "--run-dir", "runs/first"]
    assert day.asked()[1:] == [{"arguments": each, **about} for each in (["doctor"], main_job)]

    # A new kernel imports the package, although a folder of the same name is where it starts.
    done = day.run_code("import qnnkit; print(qnnkit.edition, qnnkit.__file__)")
    assert done.stdout.split() == ["2", str(day.checkout / "qnnkit" / "__init__.py")], done.stderr


def test_stop_ends_the_running_command(machine: Machine) -> None:
    """The command interrupts only its notebook, as a front end may do, and would run for a minute."""
    stop = "import os, time; print('id', os.getpid(), flush=True)\n"
    stop += "time.sleep(1); os.kill(os.getppid(), 2); time.sleep(60)"  # after its line was read
    command = f"run({[str(machine.python), '-c', stop]!r}, otherwise='')"
    kernel = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)"  # as in a kernel
    done = machine.run_code("\n\n".join([kernel, *machine.cells(until="def run("), command]))
    assert sentence(done) == "KeyboardInterrupt"
    with pytest.raises(ProcessLookupError):
        os.kill(int(re.search(r"^id (\d+)$", done.stdout, re.MULTILINE)[1]), 0)


# --- fetching and updating ---


LACKS = "it holds commits or files that 'main' lacks"


@pytest.mark.parametrize(
    ("kind", "why"),
    [("edit", "it holds edits of yours"), ("commit", LACKS), ("file", LACKS), ("no network", "file://")],
)
def test_a_users_changes_are_kept(machine: Machine, kind: str, why: str) -> None:
    until, other = "Its last commit:", {}
    assert machine.run_cells(until=until).returncode == 0
    mine = machine.checkout / ("qnnkit/__init__.py" if kind == "edit" else "idea.py")
    if kind == "no network":
        other = {"repository": (machine.folder / "nowhere").as_uri()}
    else:
        mine.write_text("edition = 'mine'\n")
    if kind == "commit":
        machine.git(machine.checkout, "add", "idea.py")
        machine.git(machine.checkout, "commit", "--quiet", "--message", "My idea")
    before = machine.head()
    machine.publish({"idea.py": "edition = 'theirs'\n"})
    done = machine.run_cells(until=until, **other)
    assert done.returncode == 0 and f"stays as it is, because {why}" in done.stdout
    assert machine.head() == before and (kind == "no network" or mine.read_text() == "edition = 'mine'\n")


@pytest.mark.parametrize("change", [{"branch": "mian"}, {"repository": "file:///nowhere"}, {}])
def test_a_failed_clone_is_reported_in_one_sentence(machine: Machine, change: dict[str, str]) -> None:
    if not change:  # a folder that is no checkout is kept
        write(machine.checkout / "thesis.txt", "three years of work\n")
    done = machine.run_cells(until="Its last commit:", **change)
    assert "could not be cloned into" in done.stderr and "add the secret GITHUB_TOKEN" in sentence(done)
    assert [path.name for path in machine.checkout.glob("*")] == ([] if change else ["thesis.txt"])


# --- source of the code ----------


NO_ADDRESS = (
    "RuntimeError: No repository is named to fetch qnnkit from: fill in `repository` above, such as "
    "https://github.com/owner/name, and run this notebook again."
)


@pytest.mark.parametrize(
    ("change", "refuses", "words"),
    [({"repository": ""}, {}, NO_ADDRESS), ({}, {"STAND_IN_REFUSES_DRIVE": "1"}, "access was not allowed")],
)
def test_nothing_is_fetched_without_an_address_or_drive(machine: Machine, change, refuses, words) -> None:
    code = without_address("\n\n".join(machine.cells(**change)))
    done = machine.run_code(code, GIT_TRACE=str(machine.folder / "git.txt"), **refuses)
    assert words in sentence(done) and (not refuses or "Drive could not be mounted" in sentence(done))
    assert machine.fetched() == machine.mounts() == [], "Drive was mounted needlessly"
    assert list(machine.content.iterdir()) == []


def test_parameter_variable_remote_and_written_address_in_this_order(machine: Machine) -> None:
    machine.git(machine.content, "init", "--quiet", str(machine.checkout))
    machine.git(machine.checkout, "remote", "add", "origin", "file:///remote")

    def taken(repository: str = "", **variables: str) -> str:
        code = without_address("\n\n".join(machine.cells(until="address = ", repository=repository)))
        code = code.replace('""  # written', '"file:///written"  # written') + "\nprint(address)"
        return machine.run_code(code, **variables).stdout.strip()

    assert taken("file:///parameter", QNNKIT_REPOSITORY="file:///variable") == "file:///parameter"
    assert taken(QNNKIT_REPOSITORY="file:///variable") == "file:///variable"
    assert taken() == "file:///remote"
    machine.git(machine.checkout, "remote", "remove", "origin")
    assert taken() == "file:///written"


# --- the address in badges, cells and pyproject.toml ---


NOTEBOOKS = ("colab_setup.ipynb", *(f"notebooks/{path.name}" for path in NUMBERED))
EVERYWHERE = {"README.md": 1, "pyproject.toml": 1, **dict.fromkeys(NOTEBOOKS, 2)}
"""How often each file contains the address; a notebook has it in its badge and in its cell."""


def make_address(root: Path, repo: str = "") -> subprocess.CompletedProcess[str]:
    command = ["make", "address", f"PYTHON={sys.executable}", *([f"REPO={repo}"] if repo else [])]
    path = {"PATH": os.environ["PATH"]}  # without variables of the `make` that runs these tests
    return subprocess.run(command, cwd=root, env=path, capture_output=True, text=True, check=False)


def texts(root: Path) -> dict[str, str]:
    """Every file of a tree except git's own."""
    files = [path for path in root.rglob("*") if path.is_file() and ".git" not in path.parts]
    return {path.relative_to(root).as_posix(): path.read_text() for path in files}


def named(texts: dict[str, str], repo: str) -> dict[str, int]:
    """Path -> how often the file names the address, if it does."""
    return {path: text.count(repo) for path, text in texts.items() if repo in text}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the files that `make address` reads and writes."""
    root = tmp_path / "tree"
    (root / "docs").mkdir(parents=True)
    for name in ("Makefile", "README.md", "pyproject.toml", "colab_setup.ipynb", "docs/address.py"):
        shutil.copy(ROOT / name, root / name)
    shutil.copytree(ROOT / "notebooks", root / "notebooks", ignore=shutil.ignore_patterns(".*", "[!0-9]*"))
    return root


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize(
    ("repo", "remote", "message"),
    [
        ("a-fork/kit", "", ""),
        ("", "https://student:secret@github.com/a-fork/kit.git", ""),
        ("", "git@github.com:a-fork/kit.git", ""),
        ("", "https://gitlab.com/a/kit", "is empty, and the git remote `origin` is not on GitHub."),
        ("kit", "", "REPO must be owner/name on GitHub, but is 'kit'. Type: make address"),
        ('a/k"+evil', "", "REPO must be owner/name on GitHub, but is 'a/k\"+evil'."),
        ("a-fork/kit", "lost place", "must hold one place for the address, but holds 0."),
    ],
)
def test_make_address_rewrites_every_address_or_reports_an_error(
    tree: Path, repo: str, remote: str, message: str
) -> None:
    """Also over another address, or over the same one."""
    assert make_address(tree, "Owner2/of.mine").returncode == 0
    if remote == "lost place":
        notebook = tree / "notebooks" / NUMBERED[-1].name
        notebook.write_text(notebook.read_text().replace("  # written by `make address`", ""))
    elif remote:
        subprocess.run(["git", "init", "--quiet", tree], check=True)
        subprocess.run(["git", "-C", tree, "remote", "add", "origin", remote], check=True)
    before, done, again = texts(tree), make_address(tree, repo), make_address(tree, repo)
    assert message in done.stderr and (done.returncode == 0) == (not message) == ("a-fork" in done.stdout)
    after, written = texts(tree), "Owner2/of.mine" if message else "a-fork/kit"
    assert again.returncode == done.returncode and (after == before) == bool(message)
    assert named(after, written) == EVERYWHERE
    for file, opened in [*zip(NOTEBOOKS, NOTEBOOKS, strict=True), ("README.md", NOTEBOOKS[0])]:
        assert f"/{written}/blob/main/{opened})" in after[file], "the badge opens another notebook"
    for path, text in after.items():
        pairs = zip(before[path].splitlines(), text.splitlines(), strict=True)
        assert sum(old != new for old, new in pairs) == (0 if message else EVERYWHERE.get(path, 0)), path
    command = [sys.executable, "-m", "ruff", "check", "--select=E501", "--no-cache", tree]
    assert subprocess.run(command, check=False).returncode == 0, "a line is too long"


# --- torch and numpy ---


@pytest.mark.parametrize(
    ("fault", "message", "printed"),
    [
        ("another numpy is asked for", "pip could not install the", "Cannot install numpy==1.0"),
        ("pip moves numpy", "pip replaced {'torch':", "To be left alone"),
        ("doctor fails", "qnnkit is installed but its check failed;", "no such thing as a circuit"),
    ],
    ids=lambda text: text[:12],
)
def test_a_step_that_fails_stops_the_notebook(machine: Machine, fault, message, printed) -> None:
    if fault == "another numpy is asked for":
        machine.publish({"requirements-colab.txt": "numpy==1.0\n"})
    else:
        machine.publish({"qnnkit/__main__.py": "raise SystemExit('no such thing as a circuit')\n"})
        pip = MOVING_PIP if fault == "pip moves numpy" else ""
        write(machine.folder / "colab" / "pip" / "__init__.py", "")
        write(machine.folder / "colab" / "pip" / "__main__.py", pip)
    done = machine.run_cells(run_main_job=True)
    assert sentence(done).startswith(f"RuntimeError: {message}") and machine.asked() == []
    assert printed in done.stdout


# --- the first cell of the numbered notebooks ---


def test_all_notebooks_have_the_same_set_up_cell_of_five_lines() -> None:
    assert all(code_cells(path)[0].source == setup_cell(NUMBERED[0]) == setup_cell(path) for path in NUMBERED)
    assert len(setup_cell(NUMBERED[0]).splitlines()) == 5


@pytest.mark.parametrize(
    ("colab", "installed", "address", "message"),
    [
        (True, True, "", ""),
        (False, True, "file:///nowhere", ""),
        (False, False, "file:///nowhere", "Type `make run`"),
        (True, False, "", "on Colab, fill in `address`"),
        (True, False, "file:///nowhere", "git could not fetch `address`"),
    ],
)
def test_the_set_up_cell_does_nothing_with_qnnkit_and_else_says_what_is_missing(
    machine: Machine, colab: bool, installed: bool, address: str, message: str
) -> None:
    machine.colab = colab
    if installed:
        site = next((machine.folder / "venv" / "lib").glob("python*/site-packages"))
        write(site / "qnnkit" / "__init__.py", "")
    trace = machine.folder / "git.txt"
    code = f"import sys\nbefore = list(sys.path)\n{machine.first_cell(address)}\nassert sys.path == before"
    done = machine.run_ipython(code, GIT_TRACE=str(trace))
    printed = done.stdout + done.stderr
    assert message in printed and (done.returncode == 0) == installed == (not printed), printed
    assert trace.exists() == ("git could" in message), "git was called needlessly, or not at all"
    assert list(machine.content.iterdir()) == [] and machine.mounts() == []


# --- after a restart, a crash, or a lost Drive --------------------------------------------------------------


@pytest.fixture
def on_colab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this process believe that it runs on a Colab machine without a workspace."""
    no_workspace(monkeypatch, tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(workspace, "on_colab", lambda: True)


@pytest.mark.usefixtures("on_colab")
def test_nothing_is_written_below_a_mount_point_without_drive(tmp_path: Path) -> None:
    mount, home = tmp_path / "drive", tmp_path / "drive" / "MyDrive" / "qnnkit"
    workspace.remember(home, tmp_path / "local", mount)
    assert workspace.home() == home and workspace.shelf("features") is None
    for writes in (
        lambda: runs.open_run("runs/first", "digits_quanv"),
        lambda: workspace.make_folder(home / "runs"),
        lambda: workspace.write_json(home / "machines.json", {}),
        lambda: workspace.whole_folder(home / "tensors").__enter__(),
        lambda: Mirror(tmp_path, home / "runs" / "first").sync(),
    ):
        with pytest.raises(OSError, match=rf"Drive is not mounted at `{mount}`.* `google.colab.drive.mount"):
            writes()
    assert not mount.exists()


@pytest.mark.usefixtures("on_colab")
def test_a_run_on_a_temporary_disk_is_announced() -> None:
    with pytest.warns(UserWarning, match="This run will vanish"):
        runs.open_run("runs/first", "digits_quanv", threads=1)


def test_a_lost_drive_is_mounted_again_and_files_in_the_way_are_moved(day: Machine) -> None:
    """By the first cell of a notebook on a machine that is set up; its kernel has ended since."""
    home, local = str(day.workspace), f"{day.checkout}-local"
    before, mount = len(day.mounts()), day.lose_drive()
    write(mount / "MyDrive" / "my runs" / "notes.txt", "three years of work\n")
    places = "from qnnkit import workspace; print(workspace.home(), workspace.local_home(), sep='\\n')"
    done = day.run_ipython(f"{day.first_cell()}\n{places}")
    assert done.stdout.splitlines()[-2:] == [home, local], done.stderr
    assert f"{mount} held MyDrive, which blocks mounting: now in" in done.stdout, done.stdout + done.stderr
    [notes] = Path(local).glob("found_below_drive_*/MyDrive/my runs/notes.txt")
    assert notes.read_text() == "three years of work\n"
    assert len(day.mounts()) == before + 1 and (mount / "MyDrive").is_symlink()


def test_a_token_from_colabs_secrets_goes_to_git_and_is_never_written(machine: Machine) -> None:
    asks = "r, w = os.pipe(); os.write(w, b'protocol=https\\nhost=a.org\\n\\n'); os.close(w); os.dup2(r, 0)"
    code = "\n\n".join([*machine.cells(until="def git("), asks, "print(git('credential', 'fill').stdout)"])
    assert "password" not in machine.run_code(code).stdout
    done = machine.run_code(code, STAND_IN_SECRET_GITHUB_TOKEN="of-mine")
    assert "username=token" in done.stdout and "password=of-mine" in done.stdout, done.stderr
    files = [path for path in machine.folder.rglob("*") if path.is_file()]
    assert not [path for path in files if b"of-mine" in path.read_bytes()]
