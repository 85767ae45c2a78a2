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

pytestmark = [pytest.mark.browser, needs_chromium]
LESS = {"samples": 1, "plateau_qubits": 4, "plateau_starts": 20, "hardware_images": 0}
"""Parameters of notebooks, which compute less here than by default."""
SMALL = {"epochs": 2, "n_seeds": 1, "controls": ["classical"], "stride": 2, "train_fraction": 0.2}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a copy of the notebooks, and the run that they are of."""
    home = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "notebooks", home / "notebooks")
    for path in (home / "notebooks").glob("*.ipynb"):
        less = re.sub(
            rf"({'|'.join(LESS)}): int = \w+", lambda it: f"{it[1]}: int = {LESS[it[1]]}", path.read_text()
        )
        path.write_text(less)
    runs.open_run(home / "runs" / "first", "digits_quanv", **SMALL)
    return home


@pytest.fixture(scope="module")
def lab(home: Path) -> Iterator[str]:
    """Address of a JupyterLab that serves the workspace."""
    places = {"QNNKIT_HOME": home, "JUPYTER_CONFIG_DIR": home / "config", "JUPYTER_DATA_DIR": home / "data"}
    places["JUPYTER_RUNTIME_DIR"] = home / "runtime"
    environment = (
        os.environ | {name: str(path) for name, path in places.items()} | {"PYTHONWARNINGS": "ignore"}
    )
    command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root", "--port=0"]
    command += ["--IdentityProvider.token=", "--LabApp.news_url=", "--LabApp.expose_app_in_browser=True"]
    command += [f"--ServerApp.root_dir={home}", "--ServerApp.disable_check_xsrf=True"]
    with (home / "lab.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=home)
    try:
        for _ in range(1200):
            if addresses := re.findall(r"http://127\.0\.0\.1:\d+", (home / "lab.log").read_text()):
                break
            assert server.poll() is None, (home / "lab.log").read_text()
            time.sleep(0.05)
        yield addresses[0]
    finally:
        kill(server)
        server.wait()


def _run(page) -> None:
    """Runs all cells; none may fail, or say something on stderr."""
    done = page.evaluate(RUN_ALL)
    assert page.locator(".jp-RenderedText[data-mime-type*='stderr']").all_inner_texts() == [] and done
    page.evaluate(AT_REST)


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


def _open(browser, lab: str, name: str):
    """A notebook in JupyterLab, and what its page complains of from then on."""
    # Tall: JupyterLab draws what is in view.
    page = browser.new_page(viewport={"width": 1300, "height": 9000})
    badge = {"content_type": "image/svg+xml", "body": "<svg xmlns='http://www.w3.org/2000/svg'/>"}
    page.route("https://colab.research.google.com/**", lambda route: route.fulfill(**badge))
    page.goto(f"{lab}/lab/tree/notebooks/{name}.ipynb?reset")
    page.locator(".jp-Notebook .jp-Cell").first.wait_for(timeout=60_000)
    return page, _watch(page)


SLOW = pytest.param("02_gradient_check", 4, marks=pytest.mark.slow)


@pytest.mark.parametrize(("name", "n_pictures"), [SLOW, ("03_train", 1), ("04_analyze", 4)])
def test_a_notebook_runs_in_jupyterlab(browser, lab: str, home: Path, name: str, n_pictures: int) -> None:
    """One after the other, on one run: every picture is shown, and no output is wider than its place."""
    page, complaints = _open(browser, lab, name)
    _run(page)
    pictures = page.locator(".jp-Notebook .jp-OutputArea img")
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


def _changed(page, before: list[str] | None = None, which: set[int] = frozenset()) -> list[str]:
    """The inspector's pictures, once those in `which` are others and the rest as they were before."""
    for _ in range(600):
        pictures = page.locator("img.widget-image").evaluate_all("all => all.map(image => image.src)")
        pairs = enumerate(zip(before or pictures, pictures, strict=True))
        if {i for i, (old, new) in pairs if old != new} == which:
            return pictures
        page.wait_for_timeout(50)
    raise AssertionError(f"of the pictures {which} should have changed, of {len(before)}")


def test_the_inspector_answers_in_jupyterlab(browser, lab: str, home: Path) -> None:
    """On a finished run: sliders by keyboard, an image by Enter, and the pictures follow."""
    list(runs.train_all(runs.open_run(home / "runs" / "first")))
    page, complaints = _open(browser, lab, "04b_inside")
    _run(page)
    _kept(page, "04b_inside.png")
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
        sliders = slider.evaluate_all("all => all.map(one => one.clientWidth)")
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
