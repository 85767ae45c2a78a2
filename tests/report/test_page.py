"""An executed notebook as the body of a page: what follows its parameters and has shown something."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from qnnkit.report import page
from qnnkit.runs.chain import ANNOUNCED

PICTURE = "iVBORw0KGgo="


def code(source, *outputs, tags=()):
    return new_code_cell(source, outputs=list(outputs), metadata={"tags": list(tags)})


def says(text):
    return new_output("stream", name="stdout", text=text)


def shows(**data):
    return new_output("display_data", data={name.replace("_", "/"): value for name, value in data.items()})


@pytest.fixture
def notebook(tmp_path):
    def write(*cells):
        path = tmp_path / "04_analyze.running.ipynb"
        front = [new_markdown_cell("# Title"), code("first = 1", tags=["setup"])]
        front += [new_markdown_cell("## Parameters"), code("run_dir: str = 'a'", tags=["parameters"])]
        front += [code("run_dir = 'b'", tags=["injected-parameters"])]
        nbformat.write(new_notebook(cells=[*front, *cells]), path)
        return path

    return write


def test_what_was_shown_by_section_without_code_and_without_the_way_there(notebook):
    """A section may begin within a cell; one without results, or on top of the page already, is not shown."""
    path = notebook(
        new_markdown_cell("## Circuits\n\nHow to read them."),
        code("None"),
        new_markdown_cell("## Prose alone\n\nWith *stress*."),
        new_markdown_cell("## Verdict"),
        code("1", says("the verdict"), tags=[page.ON_TOP]),
        new_markdown_cell("## First"),
        code("print('secret source')", says("97.6 % <script>alert(1)</script>"), shows(image_png=PICTURE)),
        new_markdown_cell('How to read it.\n\n## A "second"'),
        code("2", shows(image_png=PICTURE)),
        new_markdown_cell("Read.\n\n## Empty"),
        code("3"),
    )
    found = page.body(path)
    assert [title for _, title in found.sections] == ["Prose alone", "First", 'A "second"']
    for shown in ("<em>stress</em>", "97.6 % &lt;script", 'alt="First"', "alt='A \"second\"'"):
        assert shown in found.html
    for gone in ("secret source", "Title", "Parameters", "run_dir", "¶", "verdict", "Circuits"):
        assert gone not in found.html


def test_only_the_notebook_that_is_being_launched_counts(notebook, tmp_path, monkeypatch):
    running, copy = notebook(), tmp_path / "04_analyze.ipynb"
    assert page.executed(copy) is None
    monkeypatch.setenv(ANNOUNCED, str(running))
    assert page.executed(copy) == running
    assert page.executed(tmp_path / "other" / "04_analyze.ipynb") is None, "of another run"
    running.unlink()
    assert page.executed(copy) is None
