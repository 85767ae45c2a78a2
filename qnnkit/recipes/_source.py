"""The Python text of recipes: of files, of the files next to them that they import, of objects in cells."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import linecache
import sys
import sysconfig
import textwrap
import tokenize
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qnnkit import checks
from qnnkit.settings import digest_of

PARTS = ("Settings", "load", "build", "task", "controls", "check")


class RecipeError(ValueError):
    """What went wrong in a user's recipe, and on which line."""


def located(reference: str, error: BaseException) -> RecipeError:
    """What a recipe's code has raised, with the last line of the user's own that was run."""
    where = f"Recipe `{reference}`"
    if frames := user_frames(error):
        file, last = Path(frames[-1].filename), frames[-1]
        where += f", {file.name}" * (file.suffix == ".py" and file.name != Path(reference).name)
        where += f", line {last.lineno}" + f", in {last.name}" * (last.name != "<module>")
    return RecipeError(f"{where}: {type(error).__name__}: {str(error) or 'no message'}")


def user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The lines of an error's trace that are neither Python's, nor a library's, nor the kit's."""
    return [each for each in traceback.extract_tb(error.__traceback__) if not of_library(each.filename)]


def digest(texts: Mapping[str, str]) -> str:
    """SHA-256 (hex) over the syntax of sources, by name: comments and docstrings do not count.

    Raises:
        SyntaxError: One of them is not Python.
    """
    syntax = {name: _syntax(name, text) for name, text in texts.items()}
    return digest_of({"syntax": syntax, "preset": {}})  # runs on record have the second key


@functools.lru_cache(maxsize=64)
def _syntax(name: str, text: str) -> Any:
    return _plain(ast.parse(text, name or "recipe"))


def texts_of(path: Path) -> tuple[str, dict[str, str]]:
    """Source of a file, and of those of its folder that it imports, and they in turn, by name.

    Raises:
        SyntaxError, ValueError: It is not Python, or in another encoding than it says.
    """
    source, texts = _read(path), dict[str, str]()

    def gather(name: str, text: str) -> None:
        for file in sorted(_imported(name, text)):
            if file not in texts and (place := path.parent / file) != path and place.is_file():
                gather(file, texts.setdefault(file, _read(place)))

    gather(path.name, source)
    return source, texts


def _imported(name: str, text: str) -> set[str]:
    """Files of the folder of a recipe that one of them, or the recipe, may import."""
    words = set[str]()
    for node in ast.walk(ast.parse(text, name)):
        if isinstance(node, ast.Import):
            words |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = name.split("/")[: -node.level] if node.level else []
            words |= {".".join([*package, node.module or each.name, each.name]) for each in node.names}
    parts = [word.split(".") for word in words if word.partition(".")[0] != "qnnkit"]  # wherever the kit lies
    stems = {"/".join(each[:n]) for each in parts for n in range(1, len(each) + 1)}
    return {f"{stem}{ending}" for stem in stems for ending in (".py", "/__init__.py")}


def _read(path: Path) -> str:
    with tokenize.open(path) as file:  # as Python reads it, whatever its encoding
        return file.read()


def source_of(code: Any) -> str:
    """Source of an object's class, and of the functions, classes and QNodes of yours that it names, in turn.

    Of other values that are named, numbers and texts count. What an instance holds, a closure has kept or an
    imported module does is not part of it: write such a recipe to a file.

    Raises:
        ValueError: Something has no source, so nobody could tell one experiment from another.
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
    """Whether a function or class is of a notebook, or of a file that is no library's."""
    module = sys.modules.get(value.__module__ or "builtins")
    return module is None or not of_library(getattr(module, "__file__", None) or f"<{module.__name__}>")


def of_library(file: str) -> bool:
    """Whether a file is Python's, an installed library's, or the kit's."""
    libraries = [sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    return file.startswith((*libraries, str(Path(__file__).parents[1]), "<frozen", "<string>", "<builtins>"))


def _text(value: Any) -> str:
    """Source of a function or class; Python before 3.13 finds no classes of a cell.

    Raises:
        ValueError: It has none.
    """
    with contextlib.suppress(OSError, TypeError):
        return textwrap.dedent(inspect.getsource(value)).strip()
    cells = [file for file in linecache.cache if "ipykernel" in file or file.startswith("<ipython")]
    for text in ("".join(linecache.getlines(file)) for file in reversed(cells)):
        for node in ast.parse(text).body:
            if getattr(node, "name", None) == value.__name__:
                return ast.get_source_segment(text, node) or ""
    rule, step = "be written in a cell or a file", "Its source is part of what a run is: write it to a file."
    raise ValueError(checks.message("recipe", rule, repr(value), step))


def _plain(node: Any) -> Any:
    """A syntax tree as plain values, without docstrings.

    Alike in every Python: `ast.dump` tells what is empty, or does not.
    """
    if isinstance(node, list):
        return [_plain(each) for each in node]
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = {name: _plain(value) for name, value in ast.iter_fields(node) if value not in (None, [])}
    if isinstance(body := getattr(node, "body", None), list):
        told = [each for each in body if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)]
        fields["body"] = _plain([each for each in body if each not in told] or [ast.Pass()])
    return {type(node).__name__: fields}
