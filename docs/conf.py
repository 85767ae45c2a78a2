"""Sphinx's settings of the documentation site: `make docs` builds it into docs/_build/html."""

import json
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import qnnkit  # noqa: E402

project, release = "qnnkit", qnnkit.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
html_theme, html_title = "furo", "qnnkit"
html_show_copyright, nb_execution_mode = False, "off"
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False

suppress_warnings = ["ref.python"]  # several classes are called Training: a type alone does not say which

# Parts of the package that have a page; the others are the inner workings of these.
PARTS = sorted(
    path.stem
    for path in (ROOT / "qnnkit").iterdir()
    if (path / "__init__.py").exists() or path.stem in ("circuits", "noise", "settings")
)


def write_pages(app):
    """A page for each part, and the notebooks: neither is kept in git."""
    api, notebooks = (Path(app.srcdir) / name for name in ("api", "notebooks"))
    for folder in (api, notebooks):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    for name in PARTS:
        lines = [f"# {name}", "```{eval-rst}", f".. automodule:: qnnkit.{name}", "   :members:", "```"]
        (api / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (api / "settings_of_recipes.md").write_text(settings_page(), encoding="utf-8")
    for path in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        notebook["metadata"]["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}
        (notebooks / path.name).write_text(json.dumps(notebook), encoding="utf-8")


def settings_page():
    """Every setting with its default and meaning: those of all recipes, then what each recipe changes."""
    common = qnnkit.Settings.model_fields
    lines = ["# Every setting", "", "`qnnkit recipes NAME` prints those of one recipe.", ""]
    lines += ["## All recipes", "", *rows(common)]
    for name, recipe in qnnkit.RECIPES.items():
        fields = recipe.Settings.model_fields
        same = [key for key in common if fields[key].get_default() == common[key].get_default()]
        lines += ["", f"## {name}", "", *rows({k: v for k, v in fields.items() if k not in same})]
    return "\n".join(lines) + "\n"


def rows(fields):
    """A table of settings."""
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    for name, field in fields.items():
        default = str(field.get_default(call_default_factory=True)).replace("|", "\\|")
        lines.append(f"| `{name}` | `{default}` | {(field.description or '').replace('|', chr(92) + '|')} |")
    return lines


def as_rst(app, what, name, obj, options, lines):
    """Docstrings write code as Markdown does, `like this`; reStructuredText wants two backticks."""
    pieces = re.split(r"(?<!`)(`[^`]+`)(?!`)", "\n".join(lines))
    for i, piece in enumerate(pieces):
        if i % 2:
            pieces[i] = f"`{piece}`" + (r"\ " if re.match(r"\w", pieces[i + 1]) else "")
        else:  # but for lines of doctests
            mark = r"^\s*(?:>>>|\.\.\. ).*$|(\||(?<=\w)_(?!\w))"
            pieces[i] = re.sub(mark, lambda m: "\\" * bool(m[1]) + m[0], piece, flags=re.MULTILINE)
    lines[:] = "".join(pieces).splitlines()


def setup(app):
    app.connect("builder-inited", write_pages)
    app.connect("autodoc-process-docstring", as_rst)
