"""The Python text of recipes: of files and what they import beside them, of objects in a notebook's cells."""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import inspect
import linecache
import re
import sys
import sysconfig
import textwrap
import tokenize
from collections.abc import Mapping
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

import numpy as np

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
    """A recipe's source without the entries of `PRESETS` but the one of these settings."""
    lines, found = text.splitlines(keepends=True), _presets(text)
    for key, value in reversed([*zip(found.keys, found.values, strict=True)] if settings else []):
        if ast.literal_eval(value) != settings:
            del lines[key.lineno - 1 : value.end_lineno]
    return "".join(lines)


def _presets(text: str) -> Any:
    for node in ast.parse(text).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(each, ast.Name) and each.id == "PRESETS" for each in targets):
            return node.value  # type: ignore[union-attr]
    return None


def texts_of(file: str, module: str = "") -> tuple[str, dict[str, str]]:
    """Source of a file, and of those of its folder that it imports, and they in turn.

    Args:
        file: Of the recipe.
        module: Its dotted name, if it is in a package: then the files are those of the package.

    Raises:
        ValueError: It cannot be read or parsed.
    """
    path = Path(file)
    root = path.parents[module.count(".") + (path.stem == "__init__")] if module else path.parent
    try:
        source = _read(path)
        ast.parse(source)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        told = f"it is not Python: {getattr(error, 'msg', error)}."
        raise RecipeError(f"Recipe `{path}`{f', line {line}' if line else ''}: {told}") from None
    finder = ModuleFinder([str(root)], excludes=["qnnkit"])  # the kit is no neighbour, wherever it lies
    finder.import_hook(module) if module else finder.run_script(file)
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
    """Source of an object's parts, and of what of yours they name, each once, in order of name.

    That is functions, classes, QNodes, values with a text of their own (numbers, lists, arrays), what a
    function has kept from the one that made it, and files of yours that are imported. Functions that a
    partial or a list holds have no such text.

    Raises:
        ValueError: Something has neither source nor text, so nobody could tell one experiment from another.
    """
    texts: dict[str, str] = {}
    kinds = (code if inspect.isclass(code) else type(code)).__mro__
    own = [name for each in (*filter(_is_yours, kinds), code) for name in getattr(each, "__dict__", ())]
    names = {*PARTS, *(name for name in own if not name.startswith("__"))}
    waiting = [(name, getattr(code, name)) for name in sorted(names) if hasattr(code, name)]
    while waiting:
        name, value = waiting.pop()
        if name in texts or value is None or value is code:
            continue
        value = inspect.unwrap(getattr(value, "func", value) if type(value).__name__ == "QNode" else value)
        if inspect.ismodule(value):
            texts[name] = f"import {value.__name__} as {name}"
            if _is_yours(value):
                text, others = texts_of(str(value.__file__))
                texts |= {f"{name}: {other}": each for other, each in {"": text, **others}.items()}
        elif not (inspect.isclass(value) or inspect.isroutine(value)):
            texts[name] = f"{name} = {_value(name, value)}"
            waiting += [(f"type of {name}", type(value))] if _is_yours(type(value)) else []
        elif not _is_yours(value) and (name not in PARTS or str(value.__module__).startswith("qnnkit.")):
            texts[name] = f"from {value.__module__} import {value.__name__} as {name}"
        else:
            texts[name] = _text(name, value)
            used = dict(getattr(value, "__globals__", vars(sys.modules[value.__module__])))
            used |= inspect.getclosurevars(value).nonlocals if inspect.isfunction(value) else {}
            named = {node.id for node in ast.walk(ast.parse(texts[name])) if isinstance(node, ast.Name)}
            waiting += [(word, used[word]) for word in sorted(named & used.keys())]
    return "\n\n".join(texts[name] for name in sorted(texts)) + "\n"


def _value(name: str, value: Any) -> str:
    """A value as Python writes it, or a string of its own text; of an array its hash.

    Raises:
        ValueError: Its text does not tell it from another.
    """
    if hasattr(value, "__array__"):
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        value = f"{array.dtype} of shape {array.shape}, {hashlib.sha256(array.tobytes()).hexdigest()}"
    value = sorted(map(repr, value)) if isinstance(value, set | frozenset) else value
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
    if any(sign in text for sign in (" object", "<function", "...", "dtype('O')")):
        raise _untold(name, value)
    plain = isinstance(value, bool | int | float | complex | str | bytes | list | tuple | dict)
    return text if plain else repr(text)


def _is_yours(found: Any) -> bool:
    """Whether a module, function or class is of a notebook, or of a file that is no library's."""
    module = found if inspect.ismodule(found) else sys.modules.get(found.__module__ or "builtins")
    if module is None or module.__name__ == "__main__":
        return True
    return not of_library(getattr(module, "__file__", None) or "<frozen")


def of_library(file: str) -> bool:
    """Whether a file is Python's, an installed library's, or the kit's."""
    libraries = [sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    return file.startswith((*libraries, str(Path(__file__).parents[1]), "<frozen", "<string>"))


def _untold(name: str, value: Any) -> ValueError:
    rule, step = "be written in a cell or a file", "Its source is part of what a run is: write it to a file."
    return ValueError(checks.message("recipe", rule, f"{name}: {value!r}"[:120], step))


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
    raise _untold(name, value)


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
