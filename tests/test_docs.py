"""README and documentation: links, commands and programs work, and the site builds without a warning."""

import importlib.util
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer

from benchmarks import adapting, claims, noisy, placing, plateau, predicting, results, run, torchlayer
from qnnkit import cli, recipes, report, runs
from tests import toys

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = ("qnnkit", "make", "python", "papermill", "torchrun")

CANNOT = {
    r"make (run|test|bench)": "makes an environment from PyPI; other tests run what they start",
    r"make address": "tests/notebooks/test_colab.py runs it on a copy",
    r"pip install|\S*pre-commit|\S*nbstripout|git config": "changes the environment",
    r"\. \.venv": "only names the environment of the shell",
    r"wsl|sudo apt": "Windows and Ubuntu",
    r"export": "Google Drive on a Mac",
    r"accelerate launch": "several GPUs",
    r"python -m benchmarks\.": "takes minutes; tests/test_benchmarks.py runs parts of some",
    r".*meta-llama/": "the Hugging Face Hub and a model of 13 GB",
    r"qnnkit run --recipe resnet_circuit": "downloads MNIST",
}
"""Commands of shell blocks that no test runs -> the reason."""
QUICK = {"epochs": 1, "n_seeds": 1, "threads": 1}
QUICK |= {"plateau_qubits": 2, "plateau_starts": 8, "hardware_images": 0}  # for notebooks
"""Settings of runs, unless the command sets them: minutes become seconds."""
COMMANDS = typer.main.get_command(cli.app).commands
RECIPE = "class Settings(qnnkit.Settings)"
ELSEWHERE = (RECIPE, "class Standardised", "Mine, epochs", "runs/wave/model", "load_dataset")
"""Marks of Python blocks that are recipes, or that test_your_own.py or test_tensors.py runs instead."""
COLAB = "'!cd' /content/qnnkit '&&' "


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def shell_lines(page: Path) -> list[str]:
    """The commands of a page's shell blocks, without comments."""
    lines = [line for block in blocks(page, "sh") for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.join(words) for line in lines if (words := shlex.split(line, comments=True))]


def mentioned(page: Path) -> list[str]:
    """Commands in the prose, such as `qnnkit watch RUN`."""
    codes = re.findall(r"`([^`\n]+)`", prose(page))
    return [code for code in codes if code.split()[0] in PROGRAMS and " " in code]


def programs(page: Path) -> str:
    """The Python blocks of a page, as one program."""
    return "\n".join(each for each in blocks(page, "python") if not any(mark in each for mark in ELSEWHERE))


def reason(command: str) -> str | None:
    return next((why for pattern, why in CANNOT.items() if re.match(pattern, command)), None)


def pages(wanted) -> list:
    return [pytest.param(page, id=page.stem) for page in PAGES if wanted(page)]


# --- texts and links ---------------------------------------------------------------------------------------


def test_the_readme_fits_on_one_screen() -> None:
    assert len((ROOT / "README.md").read_text()) <= 9000


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.stem)
def test_every_relative_link_and_picture_is_there(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if not target.startswith(("https://", "http://", "api/")):  # the build of the site writes api/
            assert (page.parent / target).exists(), target


def test_every_page_is_in_the_site_and_every_guide_in_the_readme() -> None:
    listed = re.findall(r"^(\w+)$", (ROOT / "docs" / "index.md").read_text(), flags=re.MULTILINE)
    assert sorted(listed) == sorted(page.stem for page in PAGES[2:] if page.stem != "index")
    readme = (ROOT / "README.md").read_text()
    guides = listed[: listed.index("predicted")]
    assert [name for name in guides if f"(docs/{name}.md)" not in readme] == []


@pytest.mark.parametrize(
    ("file", "table", "page"),
    [
        ("ahcd/means", results.table, "docs/results.md"),
        ("letters/means", results.table, "docs/results.md"),
        ("mnist/means", results.table, "docs/results.md"),
        ("clip/means", results.table, "docs/results.md"),
        ("speakers/means", results.table, "docs/results.md"),
        ("composers/groups", results.groups_table, "docs/results.md"),
        ("plateau_rates", plateau.table, "docs/results.md"),
        ("noise", noisy.table, "docs/results.md"),
        ("adapting", adapting.table, "docs/results.md"),
        ("placing", placing.markdown, "docs/measure.md"),
        ("predicted", predicting.page, "docs/predicted.md"),
        ("claims", claims.table, "docs/claims.md"),
        ("bench", run.widths, "docs/simulator.md"),
        ("bench", run.table, "docs/simulator.md"),
        ("bench", run.table, "README.md"),
        ("bench", run.moved, "docs/move.md"),
        ("torchlayer", torchlayer.table, "docs/move.md"),
        ("torchlayer", torchlayer.table, "README.md"),
    ],
)
def test_tables_of_results_are_those_of_their_files(
    file: str, table: Callable[[pd.DataFrame], str], page: str
) -> None:
    frame = pd.read_csv(ROOT / "docs" / "results" / f"{file}.csv")
    assert table(frame) in (ROOT / page).read_text()


def test_the_readme_shows_the_results_of_its_run() -> None:
    result = json.loads((ROOT / "docs" / "results" / "digits.json").read_text())  # from `make run`
    page = (ROOT / "README.md").read_text()
    assert report.table(result["nets"]).to_string() in page and result["verdict"] in page


def test_the_map_of_the_modules_matches_the_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    house = importlib.import_module("house")
    assert house.PAGE.read_text() == house.page(), "Write it again: python docs/house.py"


# --- commands ----------------------------------------------------------------------------------------------


def exists(words: list[str]) -> bool:
    """Whether a command's target, module, subcommand and options exist."""
    if words[0] == "make":
        return bool(re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE))
    if words[:2] == ["python", "-m"]:
        # a search for pip changes what this process imports as distutils
        return words[2] == "pip" or importlib.util.find_spec(words[2]) is not None
    if words[0] == "python":
        return words[1] == "-c" or (ROOT / words[1]).exists()
    if words[0] != "qnnkit":
        return True
    known = COMMANDS[words[1]]
    options = {name for each in known.params for name in (*each.opts, *each.secondary_opts)}
    pairs = [*itertools.pairwise(words)]
    given = {value.partition("=")[0] for word, value in pairs if word == "--set"}
    asked = [value for word, value in pairs if word == "--recipe" and value in recipes.RECIPES]
    names = recipes.RECIPES[asked[0]].Settings.model_fields if asked else given
    return {word for word in words if word.startswith("--")} <= options and given <= set(names)


@pytest.mark.parametrize("page", pages(lambda page: mentioned(page) or shell_lines(page)))
def test_every_command_exists(page: Path) -> None:
    for command in [*mentioned(page), *shell_lines(page)]:
        words = shlex.split(command.removeprefix(COLAB))
        assert words[0] not in PROGRAMS or exists(words), command


@pytest.fixture
def home(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace that is the current folder and has small data under the names of the pages."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in ("benchmarks", "notebooks"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name in ("docs", "data", "my_music"):
        (tmp_path / name).mkdir()
    for path in (ROOT / "docs").glob("*.yaml"):  # fewer and shorter runs
        text = re.sub(r"epochs: \d+", "epochs: 1", path.read_text())
        text = re.sub(r"n_seeds: 10?\b", "n_seeds: 2", text)
        text = text.replace("seeds: [0, 1, 2]", "seeds: [0]").replace("n_layers: [1, 2]", "n_layers: [1]")
        (tmp_path / "docs" / path.name).write_text(text.replace("[0.1, 0.25, 0.5, 1.0]", "[0.5]"))
    (tmp_path / "colab.yaml").write_text("device: cpu\n")
    for folder, name in (("my_images", "{1}/{0}.png"), ("my_characters", "{0}_{1:02}.png")):
        toys.fill(tmp_path / folder, [name.format(i, i % 3) for i in range(60)], size=(32, 32))
    shutil.copy(tmp_path / "my_images" / "0" / "0.png", tmp_path / "new.png")
    toys.pack(tmp_path / "my_images", tmp_path / "my_images.zip", "my_images/")
    toys.pack(toys.ahcd_files(tmp_path / "ahcd", 40, 10), tmp_path / "ahcd_csv.zip")
    shutil.copy(tmp_path / "ahcd_csv.zip", tmp_path / "data")
    write_words(home)
    return home


def write_words(home: Path) -> None:
    """Speeches, images with captions, and pieces of two composers."""
    said = "love night sun moon sword kiss name rose day grave light speak".split()  # noqa: SIM905
    speakers = "ROMEO", "JULIET", "NURSE"
    lines = (f"{who}:\n{' '.join(said[i % 7 :])}.\n" for i in range(60) for who in speakers)
    (home / "shakespeare.txt").write_text("\n".join(lines))
    records = [{"image": f"{i}.png", "captions": [f"{a} {said[i % 12]}" for a in "at"]} for i in range(40)]
    toys.fill(home / "my_captions", [each["image"] for each in records], size=(32, 32, 3))
    (home / "my_captions" / "captions.json").write_text(json.dumps(records))
    for name, third in (("bach", 4), ("mozart", 3)):
        toys.music(home / "my_music" / f"{name}.json", third, n=20, length=40)


def write_recipe(page: Path, home: Path) -> None:
    """Writes the recipe of a page under the name that its commands use."""
    for block in blocks(page, "python"):
        if RECIPE in block:
            (home / ("moons.py" if page.stem == "README" else "mine.py")).write_text(block)


def quick(command: str, begun: set[str]) -> list[str]:
    """A command's words for this interpreter, with small runs and quick measurements."""
    words = shlex.split(command.removeprefix(COLAB))
    modules = {"qnnkit": "qnnkit", "papermill": "papermill", "torchrun": "torch.distributed.run"}
    program, more = words[0], []
    words[:1] = [sys.executable, "-m", modules[program]] if program in modules else [sys.executable]
    if program == "papermill":
        more = ["-p", "n_seeds", "1"]
    elif program == "qnnkit" and "measure" in words:
        more = ["--quick"]
    elif "--run-dir" in words and (folder := words[words.index("--run-dir") + 1]) not in begun:
        begun.add(folder)
        said = {word.lstrip("-").partition("=")[0] for word in words}
        names = list(QUICK)[: 3 if program == "torchrun" or "train" in words else None]  # no notebooks
        more = [word for name in names if name not in said for word in ("--set", f"{name}={QUICK[name]}")]
    return [*words, *more]


def succeeds(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


def test_the_recipe_of_the_readme_trains_with_every_control(home: Path) -> None:
    write_recipe(ROOT / "README.md", home)
    assert len([line for line in (home / "moons.py").read_text().splitlines() if line.strip()]) <= 22
    state = np.random.get_state()  # noqa: NPY002  `qml.device` draws its seed from NumPy's generator
    run = runs.open_run("runs/moons", "moons.py", epochs=1, threads=1)
    np.random.set_state(state)  # noqa: NPY002
    nets = [final["net"] for final in runs.train_all(run)]
    assert sorted(nets) == ["classical", "frozen_random", "hybrid", "no_entanglement", "no_quantum"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", pages(lambda page: programs(page) or not all(map(reason, shell_lines(page))))
)
def test_every_command_and_program_of_a_page_runs(page: Path, home: Path) -> None:
    write_recipe(page, home)
    begun: set[str] = set()
    for command in shell_lines(page):
        if not reason(command):
            succeeds(quick(command, begun))
    if program := programs(page):
        succeeds([sys.executable, "-W", "ignore", "-c", program])


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("sphinx") is None, reason="no Sphinx here: make docs installs it"
)
def test_the_site_builds_offline_without_a_warning(tmp_path: Path) -> None:
    unwanted = shutil.ignore_patterns(".git", ".venv", "_build", "__pycache__", "runs")
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=unwanted)
    for path in ROOT.glob("*.md"):
        shutil.copy(path, tmp_path)
    for name in ("qnnkit", "notebooks", "benchmarks"):
        (tmp_path / name).symlink_to(ROOT / name)
    nowhere = {f"{kind}_proxy": "http://127.0.0.1:9" for kind in ("http", "https")}
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs", "built"]
    offline = os.environ | nowhere | {"PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, cwd=tmp_path, env=offline, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "qnnkit.layers.QuantumLayer" in (tmp_path / "built" / "api" / "layers.html").read_text()
