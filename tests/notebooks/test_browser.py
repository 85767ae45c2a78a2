"""What a person sees: notebooks run in JupyterLab, and a run's report, in headless Chromium."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from qnnkit import runs
from tests.colab import code_cells
from tests.forked import begun
from tests.showing import needs_chromium
from tests.torture import kill

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
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
"""Notebook -> pictures that it shows, but for those of the inspector."""
LESS = "samples = 1; plateau_qubits = 2; try_updates = 2; hardware_images = 0; n_worst = 6"
"""Parameters of notebooks, which compute less here than by default."""
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")
SMALL = {"epochs": 2, "n_seeds": 1, "controls": ["classical"], "stride": 2, "train_fraction": 0.2}

pytestmark = [pytest.mark.browser, needs_chromium]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a run, and the code of its notebooks in one, which one kernel runs."""
    home, cells = tmp_path_factory.mktemp("lab"), []
    for name in PICTURES:
        for cell in code_cells(NOTEBOOKS / f"{name}.ipynb"):
            tags = cell.metadata.get("tags", [])
            cells += [] if "setup" in tags else [cell.source, *([LESS] if "parameters" in tags else [])]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, home / "all.ipynb")
    settings = home / "settings" / "@jupyterlab" / "notebook-extension" / "tracker.jupyterlab-settings"
    settings.parent.mkdir(parents=True)
    settings.write_text(json.dumps({"windowingMode": "none"}))  # else what is out of view is not drawn
    runs.open_run(home / "runs" / "first", "digits_quanv", **SMALL)
    return home


@pytest.fixture(scope="module")
def lab(home: Path) -> Iterator[str]:
    """Address of a JupyterLab that serves the workspace."""
    places = {"CONFIG_DIR": "config", "DATA_DIR": "data", "RUNTIME_DIR": "runtime"}
    environment = dict(os.environ) | {f"JUPYTER_{name}": f"{home / place}" for name, place in places.items()}
    environment |= {"JUPYTERLAB_SETTINGS_DIR": f"{home / 'settings'}", "QNNKIT_HOME": f"{home}"}
    command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root", "--port=0"]
    command += ["--IdentityProvider.token=", "--LabApp.news_url=", "--LabApp.expose_app_in_browser=True"]
    command += [f"--ServerApp.root_dir={home}", "--ServerApp.disable_check_xsrf=True"]
    log = home / "lab.log"
    with log.open("w") as file:
        options: dict[str, Any] = {"stdout": file, "stderr": file, "cwd": home}
        server = subprocess.Popen(command, **options, env=environment | {"PYTHONWARNINGS": "ignore"})
    try:
        begun(server, lambda: ADDRESS.search(log.read_text()), log)
        yield ADDRESS.search(log.read_text())[0]
    finally:
        kill(server)
        server.wait()


def _watch(page) -> list[str]:
    """Collects what the page complains of."""
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
    return complaints


@pytest.fixture(scope="module")
def opened(browser, lab: str) -> tuple[Any, list[str]]:
    """The notebook in JupyterLab, all of whose cells were run, and what its page complains of."""
    page = browser.new_page(viewport={"width": 1300, "height": 900})
    page.goto(f"{lab}/lab/tree/all.ipynb?reset")
    page.locator(".jp-Notebook .jp-Cell").first.wait_for(timeout=60_000)
    complaints, done = _watch(page), page.evaluate(RUN_ALL)
    assert page.locator(".jp-RenderedText[data-mime-type*='stderr']").all_inner_texts() == [] and done
    page.evaluate(AT_REST)
    return page, complaints


def test_notebooks_run_in_jupyterlab(opened: tuple[Any, list[str]]) -> None:
    """Every picture is shown, and no output is wider than its place."""
    page, complaints = opened
    pictures = page.locator(".jp-OutputArea img:not(.widget-image)")
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


def _changed(page, before: list[str] | None = None, which: set[int] = frozenset()) -> list[str]:
    """The inspector's pictures, once those in `which` are others and the rest as they were before."""
    for _ in range(600):
        pictures = page.locator("img.widget-image").evaluate_all("all => all.map(image => image.src)")
        pairs = enumerate(zip(before or pictures, pictures, strict=True))
        if {i for i, (old, new) in pairs if old != new} == which:
            return pictures
        page.wait_for_timeout(50)
    raise AssertionError(f"of the pictures {which} should have changed, of {len(before)}")


def test_the_inspector_answers_in_jupyterlab(opened: tuple[Any, list[str]]) -> None:
    """On the finished run: sliders by keyboard, an image by Enter, and the pictures follow."""
    page, complaints = opened
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
        leasts = (480, 620, 620, 620)  # the circuit is as high as fits beside what moves its weights
        assert all(least <= each <= max(620, room_width) for least, each in zip(leasts, widths, strict=True))
        sliders = slider.evaluate_all("all => all.map(one => one.clientWidth)")
        assert all(250 < each <= room_width for each in sliders)
    assert complaints == []


def test_the_report_is_legible(browser, home: Path, opened: tuple[Any, list[str]]) -> None:
    """At the width of a laptop and of a phone: every picture shown, nothing wider than the page."""
    for width in (1280, 390):
        page = browser.new_page(viewport={"width": width, "height": 900})
        complaints = _watch(page)
        page.goto((home / "runs" / "first" / "report.html").as_uri())
        assert page.locator("figure img").evaluate_all("all => all.every(i => i.naturalWidth > 0)")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("table").first.locator("tr").count() == 1 + 2
        assert complaints == []
        page.close()
