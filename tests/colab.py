"""A folder that imitates a Colab machine.

It has its own Python, which sees the packages of another but installs only into itself, a `google.colab`
that mounts a folder, and a repository that holds qnnkit. git and pip are real.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "colab_setup.ipynb"
NUMBERED = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))

# What Python runs first on the stand-in machine. Colab imports google.colab before the first cell, and its
# Drive is a mount point, which a test cannot create without root.
SITECUSTOMIZE = """
import pathlib
import google.colab.drive
really_is_mount = pathlib.Path.is_mount
pathlib.Path.is_mount = lambda path: str(path) in google.colab.drive.mounted() or really_is_mount(path)
"""

# Like Colab's, it mounts only on an empty folder. Files on Drive outlast the mount and the machine.
DRIVE = """
import os, pathlib
stand_in = pathlib.Path(os.environ["STAND_IN"])
log = stand_in / "mounted.txt"

def mounted():
    known = log.read_text().splitlines() if log.exists() else []
    return [path for path in known if pathlib.Path(path, "MyDrive").is_symlink()]

def mount(mountpoint):
    if "STAND_IN_REFUSES_DRIVE" in os.environ:
        raise ValueError("mount failed: access was not allowed")
    pathlib.Path(mountpoint).mkdir(parents=True, exist_ok=True)
    if any(pathlib.Path(mountpoint).iterdir()):
        raise ValueError("Mountpoint must not already contain files")
    (stand_in / "gdrive").mkdir(exist_ok=True)
    pathlib.Path(mountpoint, "MyDrive").symlink_to(stand_in / "gdrive")
    with log.open("a") as file:
        file.write(mountpoint + "\\n")
"""

# A notebook recognises Colab by this.
SHELL = """
from IPython.terminal.interactiveshell import TerminalInteractiveShell

class Shell(TerminalInteractiveShell):
    pass
"""

USERDATA = """
import os

def get(name):
    return os.environ["STAND_IN_SECRET_" + name]  # as Colab's, it raises an error where there is none
"""

# The command line of the stand-in package: it records the command and its workspace.
MAIN = """
import json, os, pathlib, sys
from qnnkit import workspace
print("stand-in qnnkit", *sys.argv[1:])
asked = {"arguments": sys.argv[1:], "home": str(workspace.home()), "local": str(workspace.local_home())}
with pathlib.Path(os.environ["STAND_IN"], "asked.jsonl").open("a") as log:
    log.write(json.dumps(asked) + "\\n")
"""

PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "qnnkit"
version = "0.1.0"
"""

# A build backend: an editable install of qnnkit that needs no setuptools from a registry.
BACKEND = """
import pathlib, zipfile

def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    name = "qnnkit-0.1.0-py3-none-any.whl"
    about = "qnnkit-0.1.0.dist-info"
    with zipfile.ZipFile(pathlib.Path(wheel_directory, name), "w") as wheel:
        wheel.writestr("qnnkit.pth", str(pathlib.Path.cwd()) + "\\n")
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\\nName: qnnkit\\nVersion: 0.1.0\\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{about}/RECORD", "")
    return name
"""

# A pip that does what must never happen: it puts another numpy before the image's.
MOVING_PIP = """
import pathlib, sysconfig
about = pathlib.Path(sysconfig.get_path("purelib"), "numpy-0.0.1.dist-info")
about.mkdir(exist_ok=True)
(about / "METADATA").write_text("Metadata-Version: 2.1\\nName: numpy\\nVersion: 0.0.1\\n")
"""


def write(path: Path, text: str) -> None:
    """Writes `text` to `path` and creates its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text).lstrip())


class Machine:
    """A folder that imitates a Colab machine; see the top of this file."""

    def __init__(self, folder: Path):
        self.folder, self.colab = folder, True
        self.content = folder / "content"  # as /content on Colab: where notebooks start
        # Has the package's name and is where notebooks start, as on Colab: a trap for imports.
        self.checkout = self.content / "qnnkit"
        self.workspace = self.content / "drive" / "MyDrive" / "my runs"
        self.python = folder / "venv" / "bin" / "python"
        self.repository = (folder / "repository.git").as_uri()  # git ignores --depth for a plain path

    def environment(self, **variables: str) -> dict[str, str]:
        """The environment variables of every process on this machine."""
        leave_out = ("QNNKIT_", "JUPYTER", "PYTHON", "GIT_", "XDG_", "IPYTHON")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(leave_out)}
        colab = {"PYTHONPATH": str(self.folder / "colab")} if self.colab else {}
        places = {"STAND_IN": str(self.folder), "HOME": str(self.folder / "home")}
        # No index: every requirement is already installed.
        return inherited | colab | places | {"PIP_NO_INDEX": "1", "GIT_CONFIG_NOSYSTEM": "1"} | variables

    def run(self, *command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs a command where a notebook would start."""
        options: dict = {"cwd": self.content, "env": self.environment(**variables), "timeout": 300}
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, **options)

    def git(self, folder: Path, *words: str) -> str:
        """The output of git, which must succeed."""
        done = self.run("git", "-C", folder, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def publish(self, files: dict[str, str]) -> str:
        """Commits `files` to the repository that notebooks clone; returns the commit."""
        author = self.folder / "author"
        for name, text in files.items():
            write(author / name, text)
        self.git(author, "add", "--all")
        self.git(author, "commit", "--quiet", "--message", f"Write {', '.join(files)}")
        self.git(author, "push", "--quiet", str(self.folder / "repository.git"), "main")
        return self.head(author)

    def head(self, folder: Path | None = None) -> str:
        """The current commit of a checkout."""
        return self.git(folder or self.checkout, "rev-parse", "HEAD")

    def cells(self, until: str = "", **changes: object) -> list[str]:
        """The notebook's code with replaced parameters, up to the cell that contains `until`."""
        values = {"repository": self.repository, "checkout": str(self.checkout), "run_main_job": False}
        values |= {"drive_mount": str(self.content / "drive"), "drive_folder": str(self.workspace), **changes}
        sources = []
        for cell in code_cells(NOTEBOOK):
            sources.append(cell.source)
            if "parameters" in cell.metadata.get("tags", []):
                sources += [f"{name} = {value!r}" for name, value in values.items()]
            if until and until in cell.source:
                return sources
        assert not until, f"no cell holds {until!r}"
        return sources

    def run_cells(self, until: str = "", **changes: object) -> subprocess.CompletedProcess[str]:
        """Runs the notebook's code in plain Python, which is faster than a kernel."""
        return self.run_code("\n\n".join(self.cells(until, **changes)))

    def fetched(self) -> list[str]:
        """The git commands that fetched code, as traced by `GIT_TRACE` in `git.txt`."""
        return [each for each in self.lines("git.txt") if re.search("built-in: git (clone|fetch|pull)", each)]

    def run_code(self, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs `code` without `__file__`, as in a notebook."""
        return self.run(self.python, "-c", code, **variables)

    def run_ipython(self, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs `code` as one cell, which may contain lines that begin with ! or %."""
        shell = "--TerminalIPythonApp.interactive_shell_class=google.colab._shell.Shell"
        options = ["--colors=NoColor", *([shell] if self.colab else [])]
        return self.run(self.python, "-m", "IPython", *options, "-c", code, **variables)

    def lines(self, name: str) -> list[str]:
        """The lines of a file that the stand-ins write."""
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def mounts(self) -> list[str]:
        """The places where Drive was mounted, one entry per mount."""
        return self.lines("mounted.txt")

    def lose_drive(self) -> Path:
        """Removes Drive's mount, which leaves an empty folder."""
        (self.content / "drive" / "MyDrive").unlink()
        return self.content / "drive"

    def first_cell(self, address: str | None = None) -> str:
        """The first cell of a numbered notebook with this machine's paths, and an address or its own."""
        cell, address = self.placed(setup_cell(NUMBERED[0])), self.repository if address is None else address
        return cell.replace('address = ""', f'address = "{address}"')

    def set_up(self) -> None:
        """Runs that cell, as a user on Colab would."""
        self.publish({"colab_setup.ipynb": self.placed(NOTEBOOK.read_text())})
        done = self.run_ipython(self.first_cell())
        assert done.returncode == 0, done.stdout + done.stderr

    def placed(self, text: str) -> str:
        text = without_address(text).replace("/content/", f"{self.content}/")
        return text.replace("MyDrive/qnnkit", "MyDrive/my runs")

    def asked(self) -> list[dict[str, object]]:
        """The commands that the stand-in package recorded."""
        return [json.loads(line) for line in self.lines("asked.jsonl")]


def code_cells(path: Path) -> list[nbformat.NotebookNode]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The last line of a failure, which a reader of the notebook sees at the bottom."""
    assert done.returncode != 0
    return done.stderr.strip().splitlines()[-1]


def without_address(source: str) -> str:
    """A cell as it is before `make address`."""
    return re.sub(r'(\\?")[^"]*"(?=  # written by `make address`)', r"\1\1", source)


def setup_cell(path: Path) -> str:
    """The only cell with the tag `setup`."""
    tagged = [cell.source for cell in code_cells(path) if "setup" in cell.metadata.get("tags", [])]
    assert len(tagged) == 1, f"{path.name} has {len(tagged)} cells tagged setup"
    return tagged[0]


def make_machine(folder: Path, python: str = sys.executable, *, command: str | None = MAIN) -> Machine:
    """A new machine.

    Args:
        folder: Its place, which is created.
        python: The Python whose packages it sees.
        command: The code of `python -m qnnkit`; None for the kit's code.
    """
    made = Machine(folder)
    made.content.mkdir(parents=True)
    subprocess.run([python, "-m", "venv", "--without-pip", "--symlinks", folder / "venv"], check=True)
    # It sees that Python's packages last, and cannot change them: pip removes nothing outside a venv.
    ask = "import sys, sysconfig; print(sysconfig.get_path('purelib'), sys.prefix, sep='\\n')"
    packages, prefix = made.run(python, "-c", ask).stdout.splitlines()
    (folder / "venv" / "share").mkdir(exist_ok=True)
    (folder / "venv" / "share" / "jupyter").symlink_to(f"{prefix}/share/jupyter")  # nbconvert's templates
    site = next((folder / "venv" / "lib").glob("python*/site-packages"))
    slow = "import sys; sys.modules['rfc3987_syntax'] = None"  # JupyterLab's; importing it takes seconds
    (site / "zz_base.pth").write_text(f"{packages}\n{slow}\n")
    write(folder / "home" / ".gitconfig", "[user]\nname = A. Student\nemail = student@example.org\n")
    stubs = {"__init__": "", "_shell": SHELL, "drive": DRIVE, "output": "", "userdata": USERDATA}
    for name, text in stubs.items():
        write(folder / "colab" / "google" / "colab" / f"{name}.py", text)
    write(folder / "colab" / "sitecustomize.py", SITECUSTOMIZE)
    for name, options in {"repository.git": ["--bare"], "author": []}.items():
        made.git(made.content, "init", "--quiet", "--initial-branch=main", *options, str(folder / name))
    leave_out = shutil.ignore_patterns("__pycache__", *([] if command is None else ["__main__.py"]))
    for name in ("qnnkit", "notebooks"):
        shutil.copytree(ROOT / name, folder / "author" / name, ignore=leave_out)
    files = {} if command is None else {"qnnkit/__main__.py": command}
    files |= {"pyproject.toml": PYPROJECT, "backend.py": BACKEND, ".gitignore": "__pycache__/\n"}
    files["requirements-colab.txt"] = "-e .\ntorch\nnumpy\nnbformat>=5.10\n"
    made.publish(files)
    return made


def machine_at(new_machine: Path, folder: Path, drive: Path | None = None) -> Machine:
    """A copy of a new machine, with the files that are already on Drive."""
    machine = Machine(Path(shutil.copytree(new_machine, folder, symlinks=True)))
    if drive is not None:
        (machine.folder / "gdrive").symlink_to(drive)
    return machine
