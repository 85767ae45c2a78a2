"""The Python text of recipes: of files and what they import beside them, of objects in a notebook's cells."""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import inspect
import json
import linecache
import sys
import textwrap
from collections.abc import Iterator, Mapping
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
    return _plain(_bare(ast.parse(text)))


@functools.lru_cache(maxsize=64)
def presets(text: str) -> tuple[str, ...]:
    """Names in the literal `PRESETS = {...}` of a recipe's source."""
    for node in ast.parse(text).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(each, ast.Name) and each.id == "PRESETS" for each in targets):
            return tuple(key.value for key in node.value.keys)  # type: ignore[union-attr]
    return ()


def texts_of(file: str) -> tuple[str, dict[str, str]]:
    """Source of a file, and of those beside it that it imports, and they in turn.

    Raises:
        ValueError: One cannot be parsed.
    """
    path, found = Path(file), {}
    waiting = [path]
    while waiting:
        here = waiting.pop()
        try:
            text = here.read_text()
            tree = ast.parse(text)
        except SyntaxError as error:
            told = f"Recipe `{here}`, line {error.lineno}: it is not Python: {error.msg}."
            raise RecipeError(told) from None
        found[here] = text
        for name in _imports(tree):
            parts = name.split(".")
            for n in range(1, len(parts) + 1):
                place = path.parent.joinpath(*parts[:n])
                for candidate in (place.with_suffix(".py"), place / "__init__.py"):
                    if candidate.is_file() and candidate not in found and candidate not in waiting:
                        waiting.append(candidate)
    source = found.pop(path)
    return source, {each.relative_to(path.parent).as_posix(): text for each, text in sorted(found.items())}


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def source_of(code: Any) -> str:
    """Source of an object's parts and of what they use of a notebook's cells, each once, in order of name.

    Raises:
        ValueError: It cannot be found, so nobody could tell one experiment from another.
    """
    texts: dict[str, str] = {}
    imports: set[str] = set()
    waiting = [(part, getattr(code, part)) for part in PARTS if hasattr(code, part)]
    while waiting:
        name, value = waiting.pop()
        if name in texts:
            continue
        try:
            texts[name] = textwrap.dedent(_text(value)).strip()
        except (OSError, TypeError):
            rule = "be written in a cell or a file"
            step = "Its source is part of what a run is. Write the recipe to a file and name that."
            raise ValueError(checks.message("recipe", rule, f"{name} of {code!r}", step)) from None
        function = inspect.unwrap(value) if inspect.isroutine(value) else value
        used = getattr(function, "__globals__", vars(sys.modules[function.__module__]))
        for word in {node.id for node in ast.walk(ast.parse(texts[name])) if isinstance(node, ast.Name)}:
            found = used.get(word)
            own = getattr(found, "__module__", None) == getattr(function, "__module__", None)
            if own and (inspect.isclass(found) or inspect.isfunction(found)):
                waiting.append((word, found))
            elif inspect.ismodule(found):
                imports.add(f"import {found.__name__} as {word}")
            elif inspect.isclass(found) or inspect.isfunction(found):
                imports.add(f"from {found.__module__} import {found.__name__} as {word}")
            elif word not in texts and (told := _value(found)) is not None:
                texts[word] = f"{word} = {told}"
    return "\n\n".join(["\n".join(sorted(imports)), *(texts[name] for name in sorted(texts))]) + "\n"


def _value(found: Any) -> str | None:
    """A number, text, list or dictionary as Python writes it; of an array its shape and hash."""
    if hasattr(found, "__array__"):
        array = np.asarray(found.detach().cpu() if hasattr(found, "detach") else found)
        return repr(f"array of shape {array.shape}, {hashlib.sha256(array.tobytes()).hexdigest()}")
    with contextlib.suppress(TypeError, ValueError):
        json.dumps(found)
        return None if found is None else repr(found)
    return None


def _text(value: Any) -> str:
    """Source of a function or class; classes of a cell are found by their methods' file."""
    value = inspect.unwrap(value) if inspect.isroutine(value) else value
    if not inspect.isclass(value):
        return inspect.getsource(value)
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):
        files = [each.__code__.co_filename for each in vars(value).values() if inspect.isfunction(each)]
        files += [name for name in linecache.cache if "ipykernel" in name or name.startswith("<ipython")]
        for file in reversed(files):
            text = "".join(linecache.getlines(file))
            with contextlib.suppress(SyntaxError):
                for node in ast.walk(ast.parse(text)):
                    if isinstance(node, ast.ClassDef) and node.name == value.__name__:
                        return ast.get_source_segment(text, node) or ""
        raise


def _plain(node: Any) -> Any:
    """A syntax tree as plain values, alike in every Python: `ast.dump` tells what is empty, or does not."""
    if isinstance(node, list):
        return [_plain(each) for each in node]
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = {name: _plain(value) for name, value in ast.iter_fields(node) if value not in (None, [])}
    return {type(node).__name__: fields}


def _bare(tree: ast.Module) -> ast.Module:
    """A syntax tree without docstrings."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = [
                each
                for each in body
                if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
            ]
            node.body = kept or [ast.Pass()]  # type: ignore[attr-defined]
    return tree
