"""Source code of recipes: of files, of the files next to them that they import, and of objects in cells."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import inspect
import linecache
import sys
import sysconfig
import textwrap
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qnnkit import checks
from qnnkit.settings import digest_of

PARTS = ("Settings", "load", "build", "task", "controls", "check")


class RecipeError(ValueError):
    """An error in a user's recipe, with its line; a ValueError."""


def located(reference: str, error: BaseException) -> RecipeError:
    """Returns a RecipeError for an error in a recipe's code, with the last line of user code that ran."""
    where = f"Recipe `{reference}`"
    if frames := user_frames(error):
        file, last = Path(frames[-1].filename), frames[-1]
        where += f", {file.name}" * (file.suffix == ".py" and file.name != Path(reference).name)
        where += f", line {last.lineno}" + f", in {last.name}" * (last.name != "<module>")
    return RecipeError(f"{where}: {type(error).__name__}: {str(error) or 'no message'}")


def user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Returns the frames of an error's traceback outside of Python, installed libraries and qnnkit."""
    return [each for each in traceback.extract_tb(error.__traceback__) if not of_library(each.filename)]


def digest(texts: Mapping[str, str]) -> str:
    """SHA-256 (hex) of the syntax of named sources, without comments and docstrings.

    Raises:
        SyntaxError: One of them is not Python.
    """
    syntax = {name: _syntax(name, text) for name, text in texts.items()}
    return digest_of({"syntax": syntax, "preset": {}})  # the second key is part of recorded digests


@functools.lru_cache(maxsize=64)
def _syntax(name: str, text: str) -> Any:
    return _plain(ast.parse(text, name or "recipe"))


def texts_of(path: Path) -> tuple[str, dict[str, str]]:
    """Returns the source of a file, and {name: source} of files in its folder that it imports, recursively.

    Raises:
        SyntaxError, ValueError: A file is not Python, or not in the encoding that it declares.
    """
    decoded = importlib.util.decode_source  # in the declared encoding, as Python reads it
    source, texts = decoded(path.read_bytes()), dict[str, str]()

    def gather(name: str, text: str) -> None:
        for file in sorted(_imported(name, text)):
            if file not in texts and (place := path.parent / file) != path and place.is_file():
                gather(file, texts.setdefault(file, decoded(place.read_bytes())))

    gather(path.name, source)
    return source, texts


def _imported(name: str, text: str) -> set[str]:
    """Returns the names of files of the recipe's folder that a source text may import."""
    words = set[str]()
    for node in ast.walk(ast.parse(text, name)):
        if isinstance(node, ast.Import):
            words |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = name.split("/")[: -node.level] if node.level else []
            words |= {".".join([*package, node.module or each.name, each.name]) for each in node.names}
    parts = [word.split(".") for word in words if word.partition(".")[0] != "qnnkit"]  # even if next to it
    stems = {"/".join(each[:n]) for each in parts for n in range(1, len(each) + 1)}
    return {f"{stem}{ending}" for stem in stems for ending in (".py", "/__init__.py")}


def source_of(code: Any) -> str:
    """Returns the source of an object's class and, recursively, of your functions, classes and QNodes in it.

    Global numbers and strings that it uses are included. Attributes of instances, values in closures and
    imported modules are not: write such a recipe to a file.

    Raises:
        ValueError: The source of something is missing, so different experiments could not be distinguished.
    """
    kind = code if inspect.isclass(code) else type(code)
    texts: dict[str, str] = {}
    waiting = [(kind.__name__, kind)]
    while waiting:
        name, value = waiting.pop()
        value = inspect.unwrap(getattr(value, "func", value) if type(value).__name__ == "QNode" else value)
        if isinstance(value, bool | int | float | str):
            texts[name] = f"{name} = {value!r}"
        elif name not in texts and (inspect.isclass(value) or inspect.isfunction(value)) and _is_yours(value):
            texts[name] = _text(value)
            used = vars(sys.modules[value.__module__])
            named = {node.id for node in ast.walk(ast.parse(texts[name])) if isinstance(node, ast.Name)}
            waiting += [(word, used[word]) for word in named & used.keys()]
    return "\n\n".join(texts[name] for name in sorted(texts)) + "\n" if texts else _text(kind)


def _is_yours(value: Any) -> bool:
    """Returns whether a function or class is from a notebook, or from a file outside of libraries."""
    module = sys.modules.get(value.__module__ or "builtins")
    return module is None or not of_library(getattr(module, "__file__", None) or f"<{module.__name__}>")


def of_library(file: str) -> bool:
    """Returns whether a file belongs to Python, an installed library, or qnnkit."""
    libraries = [sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    return file.startswith((*libraries, str(Path(__file__).parents[1]), "<frozen", "<string>", "<builtins>"))


def _text(value: Any) -> str:
    """Returns the source of a function or class; before Python 3.13, `inspect` misses classes in cells.

    Raises:
        ValueError: The source is not available.
    """
    with contextlib.suppress(OSError, TypeError):
        return textwrap.dedent(inspect.getsource(value)).strip()
    cells = [file for file in linecache.cache if "ipykernel" in file or file.startswith("<ipython")]
    for text in ("".join(linecache.getlines(file)) for file in reversed(cells)):
        for node in ast.parse(text).body:
            if getattr(node, "name", None) == value.__name__:
                return ast.get_source_segment(text, node) or ""
    rule, step = "be written in a cell or a file", "Its source identifies the run: write it to a file."
    raise ValueError(checks.message("recipe", rule, repr(value), step))


def _plain(node: Any) -> Any:
    """Returns a syntax tree as plain values, without docstrings.

    The result is the same in every Python version, unlike `ast.dump`, which may list empty fields.
    """
    if isinstance(node, list):
        return [_plain(each) for each in node]
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = {name: _plain(value) for name, value in ast.iter_fields(node) if value not in (None, [])}
    if isinstance(body := getattr(node, "body", None), list):
        texts = [each for each in body if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)]
        fields["body"] = _plain([each for each in body if each not in texts] or [ast.Pass()])
    return {type(node).__name__: fields}
