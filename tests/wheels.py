"""qnnkit as installed from its wheel, for a user without a checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Packages of extras only: hidden in the environment that holds the wheel.
EXTRAS = (
    *("dask", "distributed", "hypothesis", "jupyterlab", "optuna", "pytest"),
    *("rfc3987_syntax", "tensorboard"),  # the first belongs to jupyterlab, and takes a second to import
)


def clean_environment() -> dict[str, str]:
    """Environment variables without any path to this checkout or the internet."""
    leave_out = ("PYTHON", "QNNKIT_", "PIP_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(leave_out)}
    return kept | {"PIP_NO_INDEX": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def outside(folder: Path, *command: object) -> subprocess.CompletedProcess[str]:
    """Runs a command in `folder`, without any path to this checkout; it must succeed."""
    words = list(map(str, command))
    done = subprocess.run(words, cwd=folder, env=clean_environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy, because setuptools leaves files behind."""
    made, source = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("qnnkit", "notebooks"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", made)
    outside(source, *pip, source)
    return next(made.glob("qnnkit-*.whl"))


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and those packages of this environment that it needs to run."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--no-deps")
    outside(folder, *pip, wheel)
    # The path of an editable qnnkit is in a .pth file, which is not read here.
    lines = (sysconfig.get_path("purelib"), f"import sys; sys.modules.update(dict.fromkeys({EXTRAS}))")
    packages = next((folder / "lib").glob("python*/site-packages"))
    (packages / "zz_packages.pth").write_text("\n".join(lines))
    (folder / "share" / "jupyter").symlink_to(Path(sys.prefix, "share", "jupyter"))  # nbconvert's templates
    return folder
