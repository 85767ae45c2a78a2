"""HTML pages that stand by themselves: a head, then an executed notebook without its code."""

from __future__ import annotations

import base64
import itertools
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from qnnkit.report.latex import escaped
from qnnkit.runs.launch import ANNOUNCED

SETUP = ("parameters", "injected-parameters")
TEX_MARKS: dict[str, Any] = {
    "block_start_string": "<%", "block_end_string": "%>", "trim_blocks": True, "lstrip_blocks": True,
    "variable_start_string": "<<", "variable_end_string": ">>",
    "comment_start_string": "<#", "comment_end_string": "#>",
}  # fmt: skip
_HEADING = re.compile(r'<h2 id="([^"]*)">(.*?)</h2>', re.DOTALL)
_ANCHOR = re.compile(r'<a class="anchor-link".*?</a>', re.DOTALL)


class Body(NamedTuple):
    """What a notebook shows, as HTML."""

    html: str
    sections: list[tuple[str, str]]
    """Anchor and title of each section, as HTML."""


def render(template: str, **values: Any) -> str:
    """A template of this folder, filled in.

    Text is escaped in HTML. In LaTeX `<< name | tex >>` is escaped, and `<< name >>` is LaTeX itself.
    """
    from jinja2 import Environment, PackageLoader

    marks: dict[str, Any] = TEX_MARKS if template.endswith(".tex") else {"autoescape": True}
    environment = Environment(loader=PackageLoader("qnnkit.report", "."), **marks)
    environment.filters |= {"unbroken": unbroken, "tex": escaped}
    return environment.get_template(template).render(**values)


def unbroken(text: Any) -> str:
    """A number with its interval, "97.6 (95.2 to 99.2)", that breaks before its bracket only."""
    return str(text).replace(" to ", "\u00a0to\u00a0")


def executed(copy: Path) -> Path | None:
    """The notebook whose executed copy will be `copy`, if this kernel is executing it just now."""
    announced = os.environ.get(ANNOUNCED)
    running = copy.absolute().with_suffix(".running.ipynb")
    return running if announced and Path(announced) == running and running.is_file() else None


def body(notebook: Path) -> Body:
    """The text and results of an executed notebook: of what follows its parameters, without code.

    Of a notebook that is still being executed, the sections that have ended.

    Args:
        notebook: As papermill writes it; it saves before each cell what the cells before have shown.
    """
    import nbformat
    from nbconvert import HTMLExporter

    shown: Any = nbformat.read(notebook, as_version=4)
    cells = shown.cells
    tagged = [i for i, cell in enumerate(cells) if set(SETUP) & set(cell.metadata.get("tags", ()))]
    start, end = max(tagged, default=-1) + 1, len(cells)
    running = [i for i, cell in enumerate(cells) if _status(cell) in ("running", "pending")]
    if running:
        end = max(_sections(cells[: running[0]]), default=running[0])
    shown.cells = _with_results(cells[start:end])
    _describe_images(shown.cells)
    exporter = HTMLExporter(
        template_name="basic",
        exclude_input=True,
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        embed_images=True,
    )
    content, _ = exporter.from_notebook_node(shown)
    content = _ANCHOR.sub("", content)
    return Body(content, _HEADING.findall(content))


def figures(paths: Iterable[Path]) -> Body:
    """Figures as notebooks have saved them: what a page shows while no notebook has been executed."""
    from PIL import Image

    shown = []
    for path in paths:
        try:
            with Image.open(path) as image:
                title, description = (str(image.info.get(name, "")) for name in ("Title", "Description"))
        except OSError:
            lost = "This figure is damaged. Run the notebook that draws it again."
            shown.append((path.name, lost, ""))
            continue
        source = f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"
        shown.append((title, description, source))
    return Body(render("figures.html", figures=shown), [])


def _status(cell: Any) -> str | None:
    return cell.metadata.get("papermill", {}).get("status") if cell.cell_type == "code" else None


def _title(cell: Any) -> str | None:
    """The last heading of a section in a cell."""
    lines = cell.source.splitlines() if cell.cell_type == "markdown" else []
    return next((line.removeprefix("## ") for line in reversed(lines) if line.startswith("## ")), None)


def _sections(cells: list[Any]) -> list[int]:
    """The places of the cells that begin a section."""
    return [place for place, cell in enumerate(cells) if _title(cell) is not None]


def _with_results(cells: list[Any]) -> list[Any]:
    """Without the sections whose code has shown nothing, such as one on circuits of a net that has none."""
    found = []
    for start, end in itertools.pairwise([0, *_sections(cells), len(cells)]):
        code = [cell for cell in cells[start:end] if cell.cell_type == "code"]
        if not code or any(cell.outputs for cell in code):
            found += cells[start:end]
    return found


def _describe_images(cells: list[Any]) -> None:
    """Gives each image the title of its section for those who cannot see it, unless it says more itself."""
    title = ""
    for cell in cells:
        title = _title(cell) or title
        for output in cell.get("outputs", ()):
            for kind in output.get("data", {}):
                if kind.startswith("image/"):
                    output.metadata.setdefault(kind, {}).setdefault("alt", title)
