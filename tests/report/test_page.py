"""An executed notebook as the body of a page: the sections after its parameters that have output."""

from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from qnnkit.report import page


def code(source, *outputs, tag=None, status="completed"):
    about = {"tags": [tag] if tag else [], "papermill": {"status": status}}
    return new_code_cell(source, outputs=list(outputs), metadata=about)


def test_the_body_has_output_by_section_without_code_and_set_up(tmp_path: Path) -> None:
    """A section may begin within a cell; those without results or already on top of the page are omitted."""
    text = new_output("stream", name="stdout", text="97.6 % <script>alert(1)</script>")
    picture = new_output("display_data", data={"image/png": "iVBORw0KGgo="})
    cells = [
        new_markdown_cell("# Title"),
        code("first = 1", tag="setup"),
        new_markdown_cell("## Parameters"),
        code("run_dir: str = 'a'", tag="parameters"),
        code("run_dir = 'b'", tag="injected-parameters"),
        new_markdown_cell("## Circuits\n\nHow to read them."),
        code("None"),
        new_markdown_cell("## Prose alone\n\nWith *stress*."),
        new_markdown_cell("## Verdict"),
        code("1", new_output("stream", name="stdout", text="the verdict"), tag=page.ON_TOP),
        new_markdown_cell("## First"),
        code("print('secret source')", text, picture),
        new_markdown_cell('How to read it.\n\n## A "second"'),
        code("2", picture),
        new_markdown_cell("Read.\n\n## Unfinished"),
        code("3", picture),
        code("4", status="running"),
    ]
    nbformat.write(new_notebook(cells=cells), tmp_path / "04_analyze.ipynb")
    body = page.body(tmp_path / "04_analyze.ipynb")
    assert [title for _, title in body.sections] == ["Prose alone", "First", 'A "second"']
    for shown in ("<em>stress</em>", "97.6 % &lt;script", 'alt="First"', "alt='A \"second\"'"):
        assert shown in body.html
    for gone in ("secret source", "Title", "Parameters", "run_dir", "¶", "verdict", "Circuits"):
        assert gone not in body.html
