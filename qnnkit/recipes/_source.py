"""The Python text of recipes: of files and what they import beside them, of objects in a notebook's cells."""

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
from collections.abc import Mapping
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

from qnnkit import checks
from qnnkit.settings import digest_of

PARTS = ("Settings", "load", "build", "task", "controls", "check")


class RecipeError(ValueError):
    """What went wrong in a user's recipe, and on which line."""


def digest(texts: Mapping[str, str], preset: Mapping[str, Any]) -> str:
    """SHA-256 (hex) over the syntax of sources: comments and docstrings do not count."""
    syntax = {name: _syntax(text) for name, text in texts.items()}
    return digest_of({"syntax": syntax, "preset": {**preset}})


@functools.lru_cache(maxsize=64)
def _syntax(text: str) -> Any:
    return _plain(ast.parse(text))


def presets(text: str) -> dict[str, dict[str, Any]]:
    """The literal `PRESETS = {...}` of a recipe's source: settings by name."""
    found = _presets(text)
    return {} if found is None else ast.literal_eval(found)


def with_one_preset(text: str, settings: Mapping[str, Any]) -> str:
    """A recipe's source with these settings as the only entry of `PRESETS`, if it has any."""
    before = ast.get_source_segment(text, found) if (found := _presets(text)) else None
    return text if before is None else text.replace(before, repr({"mine": dict(settings)}))


def _presets(text: str) -> Any:
    for node in ast.parse(text).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(each, ast.Name) and each.id == "PRESETS" for each in targets):
            return node.value  # type: ignore[union-attr]
    return None


def texts_of(file: str) -> tuple[str, dict[str, str]]:
    """Source of a file, and of those of its folder that it imports, and they in turn.

    Raises:
        ValueError: It cannot be read or parsed.
    """
    path = Path(file)
    root = path.parent
    try:
        source = _read(path)
        ast.parse(source)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        told = f"it is not Python: {getattr(error, 'msg', error)}."
        raise RecipeError(f"Recipe `{path}`{f', line {line}' if line else ''}: {told}") from None
    finder = ModuleFinder([str(root)], excludes=["qnnkit"])  # the kit is no neighbour, wherever it lies
    finder.run_script(file)
    for name in finder.badmodules:
        if (root / f"{name.replace('.', '/')}.py").is_file():  # no Python any more: its import says so
            sys.modules.pop(name, None)
    modules = {name: getattr(each, "__file__", None) for name, each in finder.modules.items()}
    files = {Path(each or root / f"{name}.py") for name, each in modules.items()}
    found = [each for each in sorted(files - {path}) if each.is_file()]  # one may have a built-in's name
    return source, {each.relative_to(root).as_posix(): _read(each) for each in found}


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
    texts: dict[str, str] = {}
    kind = code if inspect.isclass(code) else type(code)
    parts = {name: getattr(code, name) for name in PARTS if hasattr(code, name)}
    waiting = [*({kind.__name__: kind} if _is_yours(kind) else parts).items()]
    while waiting:
        name, value = waiting.pop()
        value = inspect.unwrap(getattr(value, "func", value) if type(value).__name__ == "QNode" else value)
        if isinstance(value, bool | int | float | str):
            texts[name] = f"{name} = {value!r}"
        elif name not in texts and (inspect.isclass(value) or inspect.isfunction(value)) and _is_yours(value):
            texts[name] = _text(name, value)
            used = getattr(value, "__globals__", vars(sys.modules[value.__module__]))
            named = {node.id for node in ast.walk(ast.parse(texts[name])) if isinstance(node, ast.Name)}
            waiting += [(word, used[word]) for word in named & used.keys()]
    return "\n\n".join(texts[name] for name in sorted(texts)) + "\n"


def _is_yours(found: Any) -> bool:
    """Whether a function or class is of a notebook, or of a file that is no library's."""
    module = sys.modules.get(found.__module__ or "builtins")
    return module is None or not of_library(getattr(module, "__file__", None) or f"<{module.__name__}>")


def of_library(file: str) -> bool:
    """Whether a file is Python's, an installed library's, or the kit's."""
    libraries = [sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    return file.startswith((*libraries, str(Path(__file__).parents[1]), "<frozen", "<string>", "<builtins>"))


def _text(name: str, value: Any) -> str:
    """Source of a function or class; Python before 3.13 finds no classes of a cell.

    Raises:
        ValueError: It has none.
    """
    with contextlib.suppress(OSError, TypeError):
        return textwrap.dedent(inspect.getsource(value)).strip()
    cells = [file for file in linecache.cache if "ipykernel" in file or file.startswith("<ipython")]
    for text in ("".join(linecache.getlines(file)) for file in reversed(cells)):
        with contextlib.suppress(SyntaxError, IndexError):
            node: Any = ast.parse(text)
            for part in value.__qualname__.split("."):
                node = [each for each in node.body if getattr(each, "name", None) == part][-1]
            return ast.get_source_segment(text, node) or ""
    rule, step = "be written in a cell or a file", "Its source is part of what a run is: write it to a file."
    raise ValueError(checks.message("recipe", rule, f"{name}: {value!r}"[:120], step))


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
