"""Self-contained HTML pages: a head, and an executed notebook without its code."""

from __future__ import annotations

import base64
import itertools
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from qnnkit import workspace
from qnnkit.runs.chain import ANNOUNCED

ON_TOP = "on_top"
"""Tag of a cell whose section a page omits: its head has the content, or the cell writes the page."""
_HEADING = re.compile(r'<h2 id="([^"]*)">(.*?)</h2>', re.DOTALL)
_ANCHOR = re.compile(r'<a class="anchor-link".*?</a>', re.DOTALL)


class Body(NamedTuple):
    """Content of a notebook as HTML."""

    html: str
    sections: list[tuple[str, str]]
    """Anchor and title of each section, as HTML."""


def render(template: str, **values: Any) -> str:
    """Fills in a template of this folder. Text is escaped."""
    from jinja2 import Environment, PackageLoader

    environment = Environment(loader=PackageLoader("qnnkit.report", "."), autoescape=True)
    return environment.get_template(template).render(**values)


def embedded(png: bytes) -> str:
    """An image as a data URL, which needs no file."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def executed(copy: Path) -> Path | None:
    """The notebook whose executed copy will be `copy`, if this kernel is executing it now."""
    announced = os.environ.get(ANNOUNCED)
    running = copy.absolute().with_suffix(".running.ipynb")
    return running if announced and Path(announced) == running and running.is_file() else None


def body(notebook: Path) -> Body:
    """Text and results of an executed notebook after its parameters, without code.

    If the notebook is still being executed, only its finished sections are included.

    Args:
        notebook: Notebook from papermill, which saves the results so far before each cell.
    """
    import nbformat
    from nbconvert import HTMLExporter

    workspace.read_json(notebook)  # nbformat would not say which file is damaged
    shown: Any = nbformat.read(notebook, as_version=4)
    cells = shown.cells
    tagged = [i for i, cell in enumerate(cells) if "parameters" in str(cell.metadata.get("tags"))]
    start, end = max(tagged, default=-1) + 1, len(cells)
    running = [i for i, cell in enumerate(cells) if _status(cell) in ("running", "pending")]
    if running:
        end = max(_sections(cells[: running[0]]), default=running[0])
    shown.cells = _with_results(cells[start:end])
    _describe_images(shown.cells)
    wanted = dict.fromkeys(("exclude_input", "exclude_output_prompt", "embed_images"), True)
    html, _ = HTMLExporter(template_name="basic", **wanted).from_notebook_node(shown)
    content = _ANCHOR.sub("", html)
    return Body(content, _HEADING.findall(content))


def _status(cell: Any) -> str | None:
    return cell.metadata.get("papermill", {}).get("status") if cell.cell_type == "code" else None


def _title(cell: Any) -> str | None:
    """The last section heading in a cell."""
    lines = cell.source.splitlines() if cell.cell_type == "markdown" else []
    return next((line.removeprefix("## ") for line in reversed(lines) if line.startswith("## ")), None)


def _sections(cells: list[Any]) -> list[int]:
    """Indices of the cells that begin a section."""
    return [place for place, cell in enumerate(cells) if _title(cell) is not None]


def _with_results(cells: list[Any]) -> list[Any]:
    """Cells without the sections that the head has, and without those whose code has no results."""
    sections = []
    for start, end in itertools.pairwise([0, *_sections(cells), len(cells)]):
        code = [cell for cell in cells[start:end] if cell.cell_type == "code"]
        on_top = any(ON_TOP in cell.metadata.get("tags", ()) for cell in code)
        if not on_top and (not code or any(cell.outputs for cell in code)):
            sections += cells[start:end]
    return sections


def _describe_images(cells: list[Any]) -> None:
    """Adds the section's title as alternative text to each image that has none."""
    title = ""
    for cell in cells:
        title = _title(cell) or title
        for output in cell.get("outputs", ()):
            for kind in output.get("data", {}):
                if kind.startswith("image/"):
                    output.metadata.setdefault(kind, {}).setdefault("alt", title)
