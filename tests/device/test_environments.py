"""environment.yml and requirements-colab.txt require what pyproject.toml lists, and all of it exists."""

import os
import re
import subprocess
import sys
import tomllib
import venv
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from packaging.requirements import Requirement
from packaging.version import Version
from uv import find_uv_bin

from tests.wheels import outside

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
ENVIRONMENT = yaml.safe_load((ROOT / "environment.yml").read_text())
LINES = {  # the lines that each passes to pip
    "environment.yml": ENVIRONMENT["dependencies"][-1]["pip"],
    "requirements-colab.txt": (ROOT / "requirements-colab.txt").read_text().splitlines(),
}


def by_name(lines: list[str]) -> dict[str, Requirement]:
    """Package -> its requirement in `lines`; a package that is named twice is an error."""
    wanted = [Requirement(line) for line in lines if line and not line.startswith("#")]
    versions = {each.name: each for each in wanted}
    assert len(versions) == len(wanted)
    return versions


def colab_image() -> dict[str, Requirement]:
    """What Colab's image has (tests/notebooks/colab_image.txt). Its torch is a +cu128 build, not on PyPI."""
    lines = (ROOT / "tests" / "notebooks" / "colab_image.txt").read_text().splitlines()
    return by_name(["torch==2.11.0", *lines])


def asked(source: str) -> list[str]:
    """The requirements of pyproject.toml that `source` selects by its extras."""
    (line,) = (line for line in LINES[source] if line and not line.startswith("#"))
    match = re.fullmatch(r"-e \.\[([a-z,]+)\]", line)
    assert match, "only pyproject.toml may list packages"
    return [*PROJECT["dependencies"], *(each for name in match[1].split(",") for each in EXTRAS[name])]


def test_the_kit_accepts_the_versions_of_colabs_image() -> None:
    """Otherwise pip would replace packages there, or fail."""
    for line in [*PROJECT["dependencies"], *(each for lines in EXTRAS.values() for each in lines)]:
        ours = Requirement(line)
        if has := colab_image().get(ours.name):
            version = Version(str(has.specifier).removeprefix("==").replace("*", "0"))
            assert version in ours.specifier, f"{line}, but Colab has {version}"


def test_the_promised_extras_are_installed() -> None:
    for source in LINES:
        names = by_name(asked(source)).keys()
        # lightning.gpu, MIDI, 06_study and batches, sweeps, trackers
        assert {"pennylane-lightning-gpu", "miditok", "symusic", "distributed", "optuna"} <= names
        assert {"mlflow-skinny", "nbstripout"} <= names
    # Only Python and pip may come from conda: a package from two sources ends up installed twice.
    assert ENVIRONMENT["dependencies"][:-1] == ["python=3.12", "pip"]
    assert ENVIRONMENT["variables"] == {"PYTORCH_ENABLE_MPS_FALLBACK": "1"}


def resolve(folder: Path, lines: list[str], *options: str, **variables: str) -> dict[str, Version]:
    """The versions that uv chooses for `lines` from metadata; skips if no registry answers."""
    (folder / "wanted.in").write_text("\n".join(lines) + "\n")
    command = [find_uv_bin(), "pip", "compile", "--only-binary", ":all:", "--no-annotate", "--no-header"]
    # Without this, uv first tries to download the Python that it resolves for.
    settings = {**os.environ, "UV_PYTHON_DOWNLOADS": "never", "UV_HTTP_TIMEOUT": "15", **variables}
    done = subprocess.run(
        [*command, "wanted.in", *options],
        cwd=folder, env=settings, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    if "Failed to fetch" in done.stderr:
        pytest.skip(f"no package registry answered: {done.stderr.strip().splitlines()[-1].strip()}")
    assert done.returncode == 0, done.stderr
    chosen = by_name(done.stdout.splitlines())
    return {name: Version(str(each.specifier).removeprefix("==")) for name, each in chosen.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "python", "platform"),
    [
        ("requirements-colab.txt", "3.13", "x86_64-manylinux_2_35"),
        ("environment.yml", "3.12", "aarch64-apple-darwin"),
        ("environment.yml", "3.12", "x86_64-manylinux_2_35"),
    ],
)
def test_the_requirements_resolve(tmp_path: Path, source: str, python: str, platform: str) -> None:
    options = ["-c", "image.txt", "--python-version", python, "--python-platform", platform]
    image = colab_image() if "colab" in source else by_name(["torch>=2.6", "numpy>=2.0"])
    (tmp_path / "image.txt").write_text("".join(f"{each}\n" for each in image.values()))
    chosen = resolve(tmp_path, asked(source), *options, MACOSX_DEPLOYMENT_TARGET="14.0")
    assert all(chosen[name] in each.specifier for name, each in image.items() if name in chosen)
    assert {chosen[name].release[:2] for name in ("pennylane", "pennylane-lightning")} == {(0, 45)}
    assert ("pennylane-lightning-gpu" in chosen) == ("apple" not in platform)


@pytest.mark.slow
def test_a_run_with_the_lowest_versions(wheel: Path, tmp_path: Path) -> None:
    """With the lowest versions of pyproject.toml, as far as they fit together; torch is the installed one."""
    (tmp_path / "at_hand.txt").write_text(f"torch=={Version(torch.__version__).public}\n")
    options = ["--resolution", "lowest-direct", "--override", "at_hand.txt"]
    options += ["--python-version", f"{sys.version_info[0]}.{sys.version_info[1]}"]
    chosen = resolve(tmp_path, PROJECT["dependencies"], *options)
    venv.create(tmp_path / "venv", with_pip=True)
    of_cuda = re.compile("nvidia|cuda|triton") if torch.version.cuda is None else re.compile("(?!)")
    lines = [f"{name}=={version}\n" for name, version in chosen.items() if not of_cuda.match(name)]
    (tmp_path / "lowest.txt").write_text("".join(lines))
    run = partial(outside, tmp_path, "env", "-u", "PIP_NO_INDEX", f"QNNKIT_HOME={tmp_path}")
    run("venv/bin/pip", "install", "--quiet", "--no-deps", "-r", "lowest.txt", wheel)
    run("venv/bin/python", "-c", "import peft, seaborn")  # they import the packages that they build on
    run("venv/bin/qnnkit", "run", "--recipe", "digits_quanv", "--run-dir", "run", "--epochs", "1")
    assert (tmp_path / "run" / "result.json").exists()
