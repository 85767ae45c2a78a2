"""The Python text of recipes: of files and what they import beside them, of objects in a notebook's cells."""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import inspect
import linecache
import os
import re
import sys
import textwrap
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qnnkit import checks, workspace
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
    for node in ast.parse(text).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(each, ast.Name) and each.id == "PRESETS" for each in targets):
            return ast.literal_eval(node.value)  # type: ignore[union-attr]
    return {}


def texts_of(file: str, root: Path | None = None) -> tuple[str, dict[str, str]]:
    """Source of a file, and of those that it imports from its folder, and they in turn.

    Args:
        file: Of the recipe.
        root: Folder that its imports are meant from; its own without it.

    Raises:
        ValueError: One cannot be read or parsed.
    """
    path, found = Path(file), {}
    root = root or path.parent
    waiting = [path]
    while waiting:
        here = waiting.pop()
        try:
            with tokenize.open(here) as opened:  # as Python reads it, whatever its encoding
                text = opened.read()
            tree = ast.parse(text)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None)
            told = f"it is not Python: {getattr(error, 'msg', error)}."
            raise RecipeError(f"Recipe `{here}`{f', line {line}' if line else ''}: {told}") from None
        found[here] = text
        for base, name in _imports(tree, here, root):
            parts = name.split(".") if name else []
            for n in range(len(parts) + 1):
                place = base.joinpath(*parts[:n])
                for candidate in (
                    (place.with_suffix(".py"), place / "__init__.py") if n or base != root else ()
                ):
                    if candidate.is_file() and candidate not in found and candidate not in waiting:
                        waiting.append(candidate)
    source = found.pop(path)
    return source, {os.path.relpath(each, root).replace(os.sep, "/"): found[each] for each in sorted(found)}


def _imports(tree: ast.AST, here: Path, root: Path) -> Iterator[tuple[Path, str]]:
    """Folder and dotted name of what may be imported; the kit's own are no neighbours, wherever they lie."""
    for node in ast.walk(tree):
        names, base = [], root
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = here.parents[node.level - 1] if node.level else root
            stem = node.module or ""
            names = [stem, *(f"{stem}.{alias.name}".lstrip(".") for alias in node.names)]
        yield from ((base, name) for name in names if name.split(".")[0] != "qnnkit")


def source_of(code: Any) -> str:
    """Source of an object's parts and of what they use of a notebook's cells, each once, in order of name.

    Functions, classes, QNodes and values that the code names count, of a class all that it defines, of an
    instance its state, and files of the workspace that it imports.

    Raises:
        ValueError: Something has no source and no plain value, so nobody could tell one experiment from
            another.
    """
    texts: dict[str, str] = {}
    imports: set[str] = set()
    kinds = [
        kind for kind in (code if inspect.isclass(code) else type(code)).__mro__ if not _is_foreign(kind)
    ]
    names = {*PARTS, *(name for each in (*kinds, code) for name in getattr(each, "__dict__", ()))}
    names = {name for name in names if hasattr(code, name) and (name in PARTS or not name.startswith("__"))}
    waiting = [(name, getattr(code, name)) for name in sorted(names)]
    while waiting:
        name, value = waiting.pop()
        if name in texts or value is None or value is code:
            continue
        value = getattr(value, "func", value) if type(value).__name__ == "QNode" else value
        function = inspect.unwrap(value) if inspect.isroutine(value) else value
        if inspect.ismodule(value):
            imports.add(f"import {value.__name__} as {name}")
            if _is_local(getattr(value, "__file__", None)):
                texts[name], others = texts_of(str(value.__file__))
                texts |= {f"{name}: {other}": text for other, text in others.items()}
        elif not (inspect.isclass(function) or inspect.isroutine(function)):
            texts[name] = f"{name} = {_value(name, value)}"
            if not _is_foreign(type(value)):
                waiting.append((f"type of {name}", type(value)))
        elif _is_foreign(function) and (name not in PARTS or _is_kit(function)):
            imports.add(f"from {function.__module__} import {function.__name__} as {name}")
        else:
            texts[name] = _text(name, function)
            used = dict(getattr(function, "__globals__", vars(sys.modules[function.__module__])))
            used |= inspect.getclosurevars(function).nonlocals if inspect.isfunction(function) else {}
            named = {node.id for node in ast.walk(ast.parse(texts[name])) if isinstance(node, ast.Name)}
            waiting += [(word, used[word]) for word in sorted(named & used.keys())]
    return "\n\n".join(["\n".join(sorted(imports)), *(texts[name] for name in sorted(texts))]) + "\n"


def _value(name: str, value: Any) -> str:
    """A value as Python writes it; of an array its hash.

    Raises:
        ValueError: Its text does not tell it from another.
    """
    if hasattr(value, "__array__"):
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        if not array.dtype.hasobject:
            return repr(
                f"{array.dtype} of shape {array.shape}, {hashlib.sha256(array.tobytes()).hexdigest()}"
            )
    value = sorted(map(repr, value)) if isinstance(value, set | frozenset) else value
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
    if any(sign in text for sign in (" object", "<function", "...")):
        raise _untold(name, value)
    return (
        text
        if isinstance(value, bool | int | float | complex | str | bytes | list | tuple | dict)
        else repr(text)
    )


def _is_local(file: str | None) -> bool:
    """Whether a module's file is the user's own: beside the workspace, no library's."""
    if not file or "site-packages" in file or Path(file).is_relative_to(sys.prefix):
        return False
    return any(Path(file).is_relative_to(folder) for folder in (Path.cwd(), workspace.home().absolute()))


def _is_kit(found: Any) -> bool:
    return str(getattr(found, "__module__", None)).split(".")[0] == "qnnkit"


def _is_foreign(found: Any) -> bool:
    """Whether a function or class is a library's: its source is no part of the recipe."""
    module = sys.modules.get(getattr(found, "__module__", None) or "builtins")
    if _is_kit(found) or getattr(module, "__name__", "") == "builtins":
        return True
    file = getattr(module, "__file__", None)
    return module is not None and module.__name__ != "__main__" and not _is_local(file)


def _untold(name: str, value: Any) -> ValueError:
    step = "Its source is part of what a run is. Write the recipe to a file and name that."
    return ValueError(
        checks.message("recipe", "be written in a cell or a file", f"{name}: {value!r}"[:120], step)
    )


def _text(name: str, value: Any) -> str:
    """Source of a function or class; Python before 3.13 finds no classes of a cell, but their methods.

    Raises:
        ValueError: It has none.
    """
    with contextlib.suppress(OSError, TypeError):
        return textwrap.dedent(inspect.getsource(value)).strip()
    files = [each.__code__.co_filename for each in vars(value).values() if inspect.isfunction(each)]
    files += [
        file for file in reversed(linecache.cache) if "ipykernel" in file or file.startswith("<ipython")
    ]
    for file in files:
        text = "".join(linecache.getlines(file))
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
