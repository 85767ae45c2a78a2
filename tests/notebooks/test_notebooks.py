"""The notebooks' form, the chain at toy size, and how both look in headless Chromium.

Results are read from files, never from printed text.
"""

import ast
import contextlib
import itertools
import json
import re
import shutil
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from typer.testing import CliRunner

from qnnkit import cli, runs
from tests.colab import code_cells
from tests.forked import begun, start
from tests.torture import kill
from tests.wheels import outside

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "notebooks").glob("*.ipynb"))
SETUP = ROOT / "colab_setup.ipynb"
PARAMETER = re.compile(
    r"^\w+: (int|float|str|bool|list) = "
    r'("[^"=]*"|-?\d+(\.\d+)?(e-?\d+)?|\[[-\d., ]+\]|True|False|None)  # [^=]+$'
)
OF_IPYKERNEL = re.compile(  # printed if a machine stalls for 10 s, or while a kernel ends
    r"IOStream\.flush timed out\n|ERROR:tornado\.general:Uncaught exception in ZMQStream callback\n"
    r"Traceback .*\n(  .*\n)*zmq\.error\.ZMQError: Socket operation on non-socket\n"
)


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def tags(cell: nbformat.NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


# --- form -----------------------------------------------------------------------------------------


MORE = ("05_benchmark", "06_study", "07_circuit", "08_midi_model")


def test_there_are_ten_notebooks_of_at_most_eighty_cells() -> None:
    assert tuple(path.stem for path in SOURCES) == (*runs.NOTEBOOKS, *MORE)
    sizes = {path.stem: len(code_cells(path)) for path in SOURCES}
    assert sum(sizes.values()) <= 80 and max(sizes.values()) <= 12


@pytest.mark.parametrize("path", [*SOURCES, SETUP], ids=lambda path: path.stem)
def test_a_source_is_clean_and_its_cells_are_short(path: Path) -> None:
    """No outputs or private metadata; code after prose; the parameters as papermill can read them."""
    notebook = read(path)
    nbformat.validate(notebook)
    cells, metadata = notebook.cells, notebook.metadata
    assert metadata.kernelspec.name == "python3"
    on_colab = {"accelerator", "colab"} if path == SETUP else set()
    assert set(metadata) <= {"kernelspec", "language_info"} | on_colab
    assert set(metadata.get("colab", ())) <= {"gpuType"}
    assert all(set(cell.metadata) <= {"tags"} for cell in cells)
    for before, cell in itertools.pairwise(cells):
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None
            assert len(cell.source.splitlines()) <= 15, cell.source
            assert before.cell_type == "markdown" or path == SETUP, cell.source
        elif path.stem[:2] in ("04", "06"):  # a page may omit a section of them
            assert "\n## " not in cell.source, cell.source
    assert cells[0].cell_type == cells[-1].cell_type == "markdown"
    assert all(f"**{word}**" in cells[0].source for word in ("Question:", "Reads", "Writes", "Takes"))
    assert any("**Prediction:**" in cell.source for cell in cells if cell.cell_type == "markdown")
    (cell,) = [cell for cell in cells if "parameters" in tags(cell)]
    lines = cell.source.splitlines()
    assert all(PARAMETER.match(line) for line in lines), lines
    declared = runs.chain.declared(path)
    assert list(declared) == [line.split(":")[0] for line in lines]
    assert all(entry["inferred_type_name"] != "None" and entry["help"] for entry in declared.values())


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_cell_changes_a_parameter(path: Path) -> None:
    """Otherwise the given value is lost; only 03 may, in the cell with the reader's circuit."""
    names = set(runs.chain.declared(path)) - ({"recipe", "run_dir"} if path.stem == "03_train" else set())
    for cell in code_cells(path):
        if not {"parameters", "setup"} & set(tags(cell)):
            stored = [node for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Name)]
            changed = {node.id for node in stored if isinstance(node.ctx, ast.Store)} & names
            assert not changed, cell.source


# --- the chain ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    """A complete run at toy size, by the command that users type, in an empty folder without a checkout."""
    home, before = tmp_path_factory.mktemp("chain"), files(installed.parent)
    small = ("n_seeds=1", 'controls=["classical"]', "stride=2", "threads=1", "device=cpu", "samples=1")
    small += ("plateau_qubits=2", "hardware_images=2", "try_updates=2", "n_worst=6")
    words = [word for each in small for word in ("--set", each)]
    words += ["--recipe", "digits_quanv", "--run-dir", "runs/first", "--epochs", "2"]
    done = outside(home, installed / "bin" / "qnnkit", "run", *words)
    assert re.sub(OF_IPYKERNEL, "", done.stderr) == ""
    for index, name in enumerate(runs.NOTEBOOKS, start=1):
        assert f"[{index}/6] {name} ..." in done.stdout and f"[{index}/6] {name}: done" in done.stdout
    assert re.search(r"hybrid +seed 0 +epoch +1/2 ", done.stdout), "an epoch has no line"
    assert {path.name for path in home.iterdir()} == {"runs"} and files(installed.parent) == before
    return runs.open_run(home / "runs" / "first")


def test_the_wheel_carries_notebooks_recipes_and_templates(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert sorted(Path(name).name for name in names if name.endswith(".ipynb")) == [p.name for p in SOURCES]
    paths = {path.relative_to(ROOT).as_posix() for path in files(ROOT / "qnnkit") if path.suffix != ".pyc"}
    assert {name for name in paths if not name.endswith(".md")} <= set(names)


def test_the_chain_leaves_a_finished_run(finished: runs.Run) -> None:
    for name in runs.NOTEBOOKS:
        shown = [o for cell in code_cells(finished.notebook(name)) for o in cell.outputs]
        assert not [o for o in shown if o.output_type == "error" or o.get("name") == "stderr"]
    assert not list(finished.folder.rglob("*.running.ipynb"))
    hybrid, classical = finished.result["nets"]
    assert (hybrid["net"], classical["net"]) == ("hybrid", "classical")
    assert hybrid["quantum"] + hybrid["classical"] == classical["classical"], "the control is not matched"
    assert 0.3 < hybrid["score"] <= 1, "two epochs are enough to beat guessing at 0.1"
    assert hybrid["score"] == runs.frame(finished).query("net == 'hybrid'")["test_accuracy"].item()
    conditions = [(row["condition"], row["strength"]) for row in finished.result["robustness"]]
    assert len(conditions) == 9 and conditions[0] == ("exact", None) and ("shots", 1000) in conditions
    names = [path.stem for path in (finished.folder / "figures").glob("*.png")]
    assert len([name for name in names if name.startswith("02_")]) == 3 and len(names) == 12
    assert len(list((finished.folder / "sample").glob("*/*.png"))) == 200
    provenance = json.loads((finished.folder / "provenance.json").read_text())
    assert provenance["data"] == finished.splits.fingerprint() and provenance["doctor"]["simulators"]
    assert provenance["plan"]["seconds_per_epoch"] > 0 and provenance["plan"]["peak_bytes"] > 1e8


def test_the_page_of_the_chain_shows_what_its_notebooks_show(finished: runs.Run) -> None:
    page = finished.report.read_text()
    assert f"on cpu, {finished.provenance['machine']['name']}; seeds" in page
    cells = [cell for name in (runs.ANALYZE, runs.INSIDE) for cell in code_cells(finished.notebook(name))]
    shown = [output.get("data", {}) for cell in cells for output in cell.outputs]
    assert page.count("data:image/png;base64,") == sum("image/png" in data for data in shown) == 9
    links = re.findall(r'href="(notebooks/[^"]*)"', page)
    assert len(links) == 6 and all((finished.folder / link).is_file() for link in links)
    for title in ("How would it perform on hardware?", "Does the net use its circuit?", "Contents"):
        assert title in page
    unwanted = ("open_run", "Write the report", "Add to the report")
    assert not [text for text in unwanted if text in page], "code, or the cell that writes the page, is shown"
    (widget,) = [data for data in shown if "widget" in str(data.keys())]
    assert len(widget["image/png"]) > 50_000, "a picture next to the widgets is missing"
    assert len(json.dumps(read(finished.notebook(runs.INSIDE)).metadata.widgets)) < 1_000_000


def test_the_report_is_written_again_from_the_users_own_notebook(
    finished: runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the parameters of the notebook, in a workspace that holds another 04."""
    shutil.copytree(finished.folder, tmp_path / "runs" / "copy")
    mine = read(ROOT / "notebooks" / "04_analyze.ipynb")
    first = next(i for i, cell in enumerate(mine.cells) if "parameters" in tags(cell))
    section = [nbformat.v4.new_markdown_cell("## My section"), nbformat.v4.new_code_cell("n_worst")]
    mine.cells[first + 3 : -3] = section  # between the cell that opens the run and the report
    (tmp_path / "notebooks").mkdir()
    nbformat.write(mine, tmp_path / "notebooks" / "04_analyze.ipynb")
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path))
    done = CliRunner().invoke(cli.app, ["report", "runs/copy"])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "runs" / "copy" / "report.html").read_text()
    assert "My section" in page and "<pre>6</pre>" in page and "The trained circuit" in page
    assert runs.open_run(tmp_path / "runs" / "copy").result["nets"] == finished.result["nets"]


def test_a_circuit_in_a_cell_is_trained_with_its_controls(tmp_path: Path) -> None:
    """In its own folder, as a recipe whose source is saved; the recipe's run stays unchanged."""
    options = {"run_dir": str(tmp_path / "run"), "epochs": 1, "n_seeds": 1, "own_circuit": True}
    runs.launch(ROOT / "notebooks/03_train.ipynb", tmp_path / "out.ipynb", options)
    assert not (tmp_path / "run").exists()
    finals = runs.frame(tmp_path / "run-own")
    assert finals["net"].tolist()[0] == "hybrid" and len(finals) == 5
    assert finals["quantum"].tolist()[0] == 24
    assert "def circuit(inputs, weights):" in (tmp_path / "run-own" / "recipe.py").read_text()


# --- in a browser -----------------------------------------------------------------------------------

RUN_ALL = """async () => {
  const app = window.jupyterapp;
  await app.restored;
  const context = app.shell.currentWidget.sessionContext;
  await context.ready;  // a click before that is lost now and then, as one before the kernel answers
  const idle = kernel => kernel?.connectionStatus === 'connected' && kernel.status === 'idle';
  while (!idle(context.session?.kernel))
    await new Promise(resolve => setTimeout(resolve, 50));
  return await app.commands.execute('notebook:run-all-cells');
}"""
AT_REST = """async () => {
  const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
  for (let quiet = 0; quiet < 5; quiet++) {  // nor in the next half second, in which it answers what was said
    await new Promise(resolve => setTimeout(resolve, 100));
    if (kernel.status !== 'idle') quiet = -1;
  }
  await kernel.requestExecute({code: '', silent: true}).done;  // after what was put on its main loop
  await new Promise(resolve => setTimeout(resolve, 200));
}"""
PICTURES = {"02_gradient_check": 3, "03_train": 1, runs.ANALYZE: 4, runs.INSIDE: 4}
"""Notebook -> number of its pictures, except those of the inspector."""
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")
LAB = """
    import sys
    sys.modules["rfc3987_syntax"] = None
    from jupyter_client.provisioning import local_provisioner
    from jupyterlab.labapp import main
    from qnnkit import warm

    def forked(command, env, **options):
        words = [sys.executable, "-m", "qnnkit.kernel", *command[3:], "--IPKernelApp.parent_handle=0"]
        return warm.Forked(words, env | {"MPLBACKEND": "module://matplotlib_inline.backend_inline"})

    if warm.ready([sys.executable, "-m"]):
        local_provisioner.launch_kernel = forked
    main()
"""
"""JupyterLab; its kernels are forked, as those of `qnnkit run`."""


@pytest.fixture(scope="module")
def lab(finished: runs.Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a JupyterLab that serves the chain's workspace.

    It has one notebook of all executed ones, and one with the cells of the last one that the inspector needs.
    """
    home, place = finished.folder.parents[1], tmp_path_factory.mktemp("lab")
    executed = [cell for name in PICTURES for cell in code_cells(finished.notebook(name))]
    shown = [(cell.source, cell.outputs) for cell in executed if "Inspector" not in cell.source]
    needed = ("run_dir: str", "run = runs.open_run(", "images = ", "inspector.Inspector(")
    inside = [cell.source for cell in code_cells(ROOT / "notebooks" / f"{runs.INSIDE}.ipynb")]
    live = [(source, []) for source in inside if any(line in source for line in needed)]
    for name, cells in {"shown": shown, "live": live}.items():
        book = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(source, outputs=outputs) for source, outputs in cells],
            metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
        )
        nbformat.write(book, home / f"{name}.ipynb")
    settings = place / "settings" / "@jupyterlab" / "notebook-extension" / "tracker.jupyterlab-settings"
    settings.parent.mkdir(parents=True)
    settings.write_text(json.dumps({"windowingMode": "none"}))  # otherwise cells out of view are not drawn
    environment = {"QNNKIT_HOME": f"{home}", "PYTHONWARNINGS": "ignore"}
    environment |= {f"JUPYTER_{name}_DIR": f"{place / name}" for name in ("CONFIG", "DATA", "RUNTIME")}
    environment["JUPYTERLAB_SETTINGS_DIR"] = f"{place / 'settings'}"
    command = ["--no-browser", "--allow-root", "--port=0"]
    command += ["--IdentityProvider.token=", "--LabApp.news_url=", "--LabApp.expose_app_in_browser=True"]
    command += [f"--ServerApp.root_dir={home}", "--ServerApp.disable_check_xsrf=True"]
    (log := place / "lab.log").touch()
    with contextlib.chdir(home):
        server = start("tests.forked", log, textwrap.dedent(LAB), *command, log=log, env=environment)
    try:
        begun(server, lambda: ADDRESS.search(log.read_text()), log)
        yield ADDRESS.search(log.read_text())[0]
    finally:
        kill(server)
        server.wait()


def _watch(page) -> list[str]:
    """Collects the errors of the page."""
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
    return complaints


@pytest.mark.browser
def test_the_report_is_legible(browser: Any, finished: runs.Run) -> None:
    """At the width of a laptop and of a phone, every picture is shown and nothing is wider than the page."""
    for width in (1280, 390):
        page = browser.new_page(viewport={"width": width, "height": 900})
        complaints = _watch(page)
        page.goto(finished.report.as_uri())
        assert page.locator("figure img").evaluate_all("all => all.every(i => i.naturalWidth > 0)")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("table").first.locator("tr").count() == 1 + 2
        assert complaints == []
        page.close()


def _opened(browser: Any, address: str) -> tuple[Any, list[str]]:
    """A notebook in JupyterLab, and the errors of its page."""
    page = browser.new_page(viewport={"width": 1300, "height": 900})
    page.goto(f"{address}?reset")
    page.locator(".jp-Notebook .jp-Cell").first.wait_for(timeout=60_000)
    return page, _watch(page)


@pytest.mark.browser
def test_executed_notebooks_are_legible_in_jupyterlab(browser: Any, lab: str) -> None:
    """Every picture is shown, and no output is wider than its place."""
    page, complaints = _opened(browser, f"{lab}/lab/tree/shown.ipynb")
    pictures = page.locator(".jp-OutputArea img:not(.widget-image)")
    pictures.nth(sum(PICTURES.values()) - 1).wait_for()
    assert pictures.count() == sum(PICTURES.values())
    for width in (1300, 800):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(500)
        outputs = page.locator(".jp-OutputArea-output")
        over = outputs.evaluate_all("all => all.map(o => o.scrollWidth - o.clientWidth).filter(n => n > 1)")
        assert over == [] or width == 800, "an output is wider than its place"
        sizes = pictures.evaluate_all("all => all.map(image => [image.naturalWidth, image.clientWidth])")
        assert min(min(size) for size in sizes) > 300, "a picture is empty or not shown"
    assert complaints == []
    page.close()


def _changed(page, before: list[str] | None = None, which: set[int] = frozenset()) -> list[str]:
    """The inspector's pictures, once those in `which` have changed and the others have not."""
    for _ in range(600):
        pictures = page.locator("img.widget-image").evaluate_all("all => all.map(image => image.src)")
        pairs = enumerate(zip(before or pictures, pictures, strict=True))
        if {i for i, (old, new) in pairs if old != new} == which:
            return pictures
        page.wait_for_timeout(50)
    raise AssertionError(f"of the pictures {which} should have changed, of {len(before)}")


@pytest.mark.browser
def test_a_notebook_runs_and_the_inspector_answers_in_jupyterlab(browser: Any, lab: str) -> None:
    """On the finished run, sliders move by keyboard, Enter picks an image, and the pictures follow."""
    page, complaints = _opened(browser, f"{lab}/lab/tree/live.ipynb")
    done = page.evaluate(RUN_ALL)
    assert page.locator(".jp-RenderedText[data-mime-type*='stderr']").all_inner_texts() == [] and done
    page.evaluate(AT_REST)
    assert page.locator(".jp-OutputArea img:not(.widget-image)").count() == 2
    before, slider = _changed(page), page.locator(".widget-hslider")
    assert len(before) == 4
    for place, key, which in (
        (slider.filter(has_text="Epoch").locator(".noUi-handle"), "ArrowLeft", {0, 3}),
        (page.locator(".widget-toggle-buttons button").nth(3), "Enter", {1, 2}),
        (slider.filter(has_text="Move by").locator(".noUi-handle"), "ArrowRight", {1}),
    ):
        place.focus()
        page.keyboard.press(key)
        before = _changed(page, before, which)
    assert page.get_by_text("moved by +0.06 rad").count() == 1
    top = slider.filter(has_text="Weight").bounding_box()
    bottom = page.locator("img.widget-image").nth(1).bounding_box()
    assert bottom["y"] + bottom["height"] - top["y"] < 900, "weight, gate and move are not on one screen"
    page.evaluate("() => window.jupyterapp.commands.execute('application:toggle-left-area')")
    for width in (1300, 800):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(500)
        room = page.locator(".jp-OutputArea-output", has=page.locator("img.widget-image")).last
        room_width = room.evaluate("area => area.clientWidth")
        widths = page.locator("img.widget-image").evaluate_all("all => all.map(one => one.clientWidth)")
        leasts = (480, 620, 620, 620)  # the circuit is as high as fits next to the widgets of its weights
        assert all(least <= each <= max(620, room_width) for least, each in zip(leasts, widths, strict=True))
        sliders = slider.evaluate_all("all => all.map(one => one.clientWidth)")
        assert all(250 < each <= room_width for each in sliders)
    assert complaints == []
