"""What a person sees: a notebook run in JupyterLab, and a run's report, in headless Chromium."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from qnnkit import report, runs
from tests.showing import log_test, needs_chromium
from tests.torture import kill

ROOT = Path(__file__).parents[2]
RUN_ALL = """async () => {
  const app = window.jupyterapp;
  await app.restored;
  const context = app.shell.currentWidget.sessionContext;
  await context.ready;  // a click before that is lost now and then, as one before the kernel answers
  const idle = kernel => kernel?.connectionStatus === 'connected' && kernel.status === 'idle';
  while (!idle(context.session?.kernel))
    await new Promise(resolve => setTimeout(resolve, 50));
  app.commands.execute('notebook:run-all-cells');
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

CHOICES = ".widget-toggle-buttons button"
pytestmark = [pytest.mark.browser, needs_chromium]


LESS = {
    "02_gradient_check": {"samples": 1, "plateau_qubits": 4, "plateau_starts": 20},
    "04b_inside": {"hardware_images": 0},
}
"""Parameters of notebooks, which compute less here than by default."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a copy of the notebooks."""
    home = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "notebooks", home / "notebooks")
    for name, parameters in LESS.items():
        path = home / "notebooks" / f"{name}.ipynb"
        text = path.read_text().replace("runs/first", "runs/inspected" if "inside" in name else "runs/first")
        for parameter, value in parameters.items():
            text, n = re.subn(rf"{parameter}: int = \w+ ", f"{parameter}: int = {value} ", text)
            assert n == 1, parameter
        path.write_text(text)
    runs.open_run(home / "runs" / "first", "digits_quanv", epochs=1, n_seeds=1)
    return home


@pytest.fixture(scope="module")
def lab(home: Path) -> Iterator[str]:
    """Address of a JupyterLab that serves the workspace."""
    environment = os.environ | {
        "QNNKIT_HOME": str(home),
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "PYTHONWARNINGS": "ignore",
    }
    command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root", "--port=0"]
    command += ["--IdentityProvider.token=", "--LabApp.news_url=", "--LabApp.expose_app_in_browser=True"]
    command += [f"--ServerApp.root_dir={home}", "--ServerApp.disable_check_xsrf=True"]
    log = home / "lab.log"
    with log.open("w") as stream:
        server = subprocess.Popen(command, stdout=stream, stderr=stream, env=environment, cwd=home)
    try:
        yield _address(log, server)
    finally:
        kill(server)
        server.wait()


def _address(log: Path, server: subprocess.Popen) -> str:
    for _ in range(1200):
        found = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
        if found:
            return found.group()
        assert server.poll() is None, log.read_text()
        time.sleep(0.05)
    raise AssertionError(f"JupyterLab did not start:\n{log.read_text()}")


def _finished(page, output: Any) -> None:
    """Waits for an output of a notebook, or for an error in it; nothing may be told on stderr."""
    errors = page.locator(".jp-RenderedText[data-mime-type*='stderr']")
    output.or_(errors).first.wait_for(timeout=120_000)
    assert errors.all_inner_texts() == []


def _watch(page) -> list[str]:
    """Collects what the page complains of."""
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
    return complaints


def _kept(page, name: str, **options) -> None:
    """A screenshot, where QNNKIT_SCREENSHOTS says that one is wanted."""
    folder = os.environ.get("QNNKIT_SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder) / name, **options)


def _open(browser, lab: str, name: str, width: int, height: int = 9000):
    """A notebook in JupyterLab, and what its page complains of from then on."""
    # Tall: JupyterLab draws what is in view.
    page = browser.new_page(viewport={"width": width, "height": height})
    badge = {"content_type": "image/svg+xml", "body": "<svg xmlns='http://www.w3.org/2000/svg'/>"}
    page.route("https://colab.research.google.com/**", lambda route: route.fulfill(**badge))
    page.goto(f"{lab}/lab/tree/notebooks/{name}.ipynb?reset")
    page.locator(".jp-Notebook .jp-Cell").first.wait_for(timeout=60_000)
    return page, _watch(page)


@pytest.mark.parametrize(
    ("name", "n_pictures"), [("02_gradient_check", 4), ("03_train", 1), ("04_analyze", 4)]
)
def test_a_notebook_runs_in_jupyterlab(browser, lab: str, home: Path, name: str, n_pictures: int) -> None:
    """One after the other, on one run: every picture is shown, and no output is wider than its place."""
    page, complaints = _open(browser, lab, name, 1300)
    page.evaluate(RUN_ALL)
    last = {"03_train": "frozen_random", "04_analyze": "report.html"}
    pictures = page.locator(".jp-Notebook .jp-OutputArea img")
    output = page.locator(".jp-OutputArea-output", has_text=last[name]) if name in last else pictures.nth(3)
    _finished(page, output.last)
    page.evaluate(AT_REST)
    assert pictures.count() == n_pictures
    for width in (1300, 800):
        page.set_viewport_size({"width": width, "height": 9000})
        page.wait_for_timeout(500)
        _kept(page, f"{name}_{width}.png")
        outputs = page.locator(".jp-OutputArea-output")
        over = outputs.evaluate_all("all => all.map(o => o.scrollWidth - o.clientWidth).filter(n => n > 1)")
        assert over == [] or width == 800, "an output is wider than its place"
        sizes = pictures.evaluate_all("all => all.map(image => [image.naturalWidth, image.clientWidth])")
        assert min(min(size) for size in sizes) > 300, "a picture is empty or not shown"
    assert complaints == []
    page.close()


def _sources(page) -> list[str]:
    return page.locator("img.widget-image").evaluate_all("all => all.map(image => image.src)")


def _at_rest(page) -> list[str]:
    """The pictures once the kernel has nothing to do: the last one is drawn, maybe more than once."""
    page.evaluate(AT_REST)
    return _sources(page)


def _changed(page, before: list[str], which: set[int]) -> list[str]:
    """The pictures once those in `which` are others; the rest must be as they were."""
    for _ in range(600):
        now = _sources(page)
        if {i for i, pair in enumerate(zip(before, now, strict=True)) if pair[0] != pair[1]} == which:
            return now
        page.wait_for_timeout(50)
    raise AssertionError(f"of the pictures {which} should have changed, of {len(before)}")


def test_the_inspector_answers_in_jupyterlab(browser, lab: str, home: Path) -> None:
    """On a finished run: sliders by keyboard, an image by Enter, and the pictures follow."""
    settings = {"epochs": 2, "n_seeds": 1, "controls": ["classical"], "stride": 2, "train_fraction": 0.2}
    run = runs.open_run(home / "runs" / "inspected", "digits_quanv", **settings)
    list(runs.train_all(run))
    page, complaints = _open(browser, lab, "04b_inside", 1300)
    page.evaluate(RUN_ALL)
    _finished(page, page.locator(".jp-OutputArea-output", has_text="report.html"))
    _kept(page, "04b_inside.png")
    before = _at_rest(page)
    assert len(before) == 4
    handle = ".noUi-handle"
    for place, key, which in (
        (page.locator(".widget-hslider", has_text="Epoch").locator(handle), "ArrowLeft", {0, 3}),
        (page.locator(CHOICES).nth(3), "Enter", {1, 2}),
        (page.locator(".widget-hslider", has_text="Move by").locator(handle), "ArrowRight", {1}),
    ):
        place.focus()
        page.keyboard.press(key)
        before = _changed(page, before, which)
    assert page.get_by_text("moved by +0.06 rad").count() == 1
    top = page.locator(".widget-hslider", has_text="Weight").bounding_box()
    bottom = page.locator("img.widget-image").nth(1).bounding_box()
    assert bottom["y"] + bottom["height"] - top["y"] < 900, "weight, gate and move are not on one screen"
    assert complaints == []
    page.evaluate("() => window.jupyterapp.commands.execute('application:toggle-left-area')")
    for width in (1300, 800):
        page.set_viewport_size({"width": width, "height": 9000})
        page.wait_for_timeout(500)
        room = page.locator(".jp-OutputArea-output", has=page.locator("img.widget-image")).last
        room_width = room.evaluate("area => area.clientWidth")
        widths = page.locator("img.widget-image").evaluate_all("all => all.map(one => one.clientWidth)")
        leasts = (480, 620, 620, 620)  # the circuit is as high as fits beside what moves its weights
        assert all(least <= each <= max(620, room_width) for least, each in zip(leasts, widths, strict=True))
        sliders = page.locator(".widget-hslider").evaluate_all("all => all.map(one => one.clientWidth)")
        assert all(250 < each <= room_width for each in sliders)
        _kept(page, f"inspector_{width}.png")
    page.close()


def test_the_report_is_legible(browser, tmp_path: Path) -> None:
    """At the width of a laptop and of a phone: every picture shown, nothing wider than the page."""
    run = runs.open_run(tmp_path / "run", "digits_quanv", epochs=1, n_seeds=1)
    for net in run.nets:
        log_test(run, net, 0, 0.5)
    run.save_figure(Figure(figsize=(3, 2)), "one", "Title", "How to read it.")
    report.finish(run)
    for width in (1280, 390):
        page = browser.new_page(viewport={"width": width, "height": 900})
        complaints = _watch(page)
        page.goto(run.report.as_uri())
        assert page.locator("figure img").evaluate_all("all => all.every(i => i.naturalWidth > 0)")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("table").first.locator("tr").count() == 1 + len(run.nets)
        assert complaints == []
        _kept(page, f"report_{width}.png", full_page=True)
        page.close()
