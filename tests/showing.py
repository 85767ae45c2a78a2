"""Helpers for tests of pages: parsed pages, results written by hand, and Chromium."""

import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-quic"],
        )
        yield chromium
        chromium.close()


class Page(HTMLParser):
    """The tags with their attributes, and the text outside of styles and scripts."""

    def __init__(self, html: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.text, self.inside = "", None
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = tag if tag in ("script", "style") else self.inside

    def handle_endtag(self, tag):
        self.inside = None if tag == self.inside else self.inside

    def handle_data(self, data):
        self.text += "" if self.inside else data.replace("\u00a0", " ")


def log_test(run: Any, net: str, seed: int, accuracy: float, **more: Any) -> None:
    """Logs the last row of a training."""
    row = {"event": "test", "net": net, "seed": seed, "best_epoch": 2, "validation_accuracy": 0.5}
    row |= {"test_accuracy": accuracy, "test_loss": 1.0, "seconds_per_epoch": 0.5}
    run.log("metrics", row | {"quantum": 24, "classical": 100, "frozen": 0} | more)
