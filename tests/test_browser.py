"""What a person sees: a notebook run in JupyterLab, and a run's report, in headless Chromium."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

RUN_ALL = """async () => {
  const app = window.jupyterapp;
  await app.restored;
  await app.shell.currentWidget.sessionContext.ready;  // a click before that is lost now and then
  app.commands.execute('notebook:run-all-cells');
}"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-quic"],
        )
        yield chromium
        chromium.close()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[str]:
    """Address of a JupyterLab that serves a copy of the notebooks; runs go to tmp_path."""
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    environment = os.environ | {
        "QNNKIT_HOME": str(tmp_path),
        "JUPYTER_CONFIG_DIR": str(tmp_path / "config"),
        "JUPYTER_DATA_DIR": str(tmp_path / "data"),
        "PYTHONWARNINGS": "ignore",
    }
    command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root", "--port=0"]
    command += ["--IdentityProvider.token=", "--LabApp.news_url=", "--LabApp.expose_app_in_browser=True"]
    command += [f"--ServerApp.root_dir={tmp_path}"]
    log = tmp_path / "lab.log"
    with log.open("w") as stream:
        server = subprocess.Popen(command, stdout=stream, stderr=stream, env=environment, cwd=tmp_path)
    try:
        yield _address(log, server)
    finally:
        server.terminate()
        server.wait(timeout=20)


def _address(log: Path, server: subprocess.Popen) -> str:
    import time

    for _ in range(300):
        found = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
        if found:
            return found.group()
        assert server.poll() is None, log.read_text()
        time.sleep(0.2)
    raise AssertionError(f"JupyterLab did not start:\n{log.read_text()}")


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


def test_the_gradient_check_runs_in_jupyterlab(browser, lab: str, tmp_path: Path) -> None:
    page = browser.new_page(
        viewport={"width": 1300, "height": 7000}
    )  # tall: JupyterLab draws what is in view
    badge = {"content_type": "image/svg+xml", "body": "<svg xmlns='http://www.w3.org/2000/svg'/>"}
    page.route("https://colab.research.google.com/**", lambda route: route.fulfill(**badge))
    page.goto(f"{lab}/lab/tree/notebooks/02_gradient_check.ipynb")
    page.locator(".jp-Notebook .jp-Cell").first.wait_for(timeout=60_000)
    complaints = _watch(page)
    page.evaluate(RUN_ALL)
    pictures = page.locator(".jp-Notebook .jp-OutputArea img")
    for _ in range(240):
        if pictures.count() == 3 or page.locator(".jp-RenderedText[data-mime-type*='stderr']").count():
            break
        page.wait_for_timeout(500)
    page.wait_for_timeout(1000)
    _kept(page, "02_gradient_check.png")
    assert page.locator(".jp-RenderedText[data-mime-type*='stderr']").all_inner_texts() == []
    assert pictures.count() == 3
    for picture in pictures.all():
        size = picture.evaluate("image => [image.naturalWidth, image.clientWidth]")
        assert size[0] > 300 and size[1] > 300, "a picture is empty or not shown"
    rows = (tmp_path / "runs" / "first" / "gradients.jsonl").read_text().splitlines()
    checked = [json.loads(row) for row in rows if json.loads(row)["event"] == "check"]
    assert {row["method"] for row in checked} == {
        "fused",
        "backprop",
        "parameter-shift",
        "adjoint",
        "finite-diff",
    }
    assert all(row["passed"] for row in checked)
    assert complaints == []
    page.close()


def test_the_report_is_legible(browser, tmp_path: Path) -> None:
    """At the width of a laptop and of a phone: every picture shown, nothing wider than the page."""
    from qnnkit import plots, report, runs

    run = runs.open_run(tmp_path / "run", "digits_quanv", epochs=1, n_seeds=1)
    for net in run.nets:
        row = {"event": "test", "net": net, "seed": 0, "test_accuracy": 0.5, "seconds_per_epoch": 0.1}
        run.log("metrics", row | {"quantum": 24, "classical": 12658, "frozen": 0})
    figure = plots.comparison({"hybrid": [0.9]}, {"hybrid": (0.9, 0.8, 1.0)})
    run.keep(figure, "one", "Title", "How to read it.")
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
