"""The Python text of recipes: of files and what they import beside them, of objects in a notebook's cells."""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import inspect
import json
import linecache
import os
import pickle
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
        ValueError: Something cannot be told, so nobody could tell one experiment from another.
    """
    texts: dict[str, str] = {}
    imports: set[str] = set()
    own = code if inspect.isclass(code) else type(code)
    names = {name for kind in own.__mro__ if not _is_foreign(kind) for name in vars(kind)}
    names |= set(vars(code)) if not inspect.isclass(code) and hasattr(code, "__dict__") else set()
    waiting = [(name, getattr(code, name)) for name in sorted(names | set(PARTS)) if hasattr(code, name)]
    waiting = [(name, value) for name, value in waiting if name in PARTS or not name.startswith("__")]
    while waiting:
        name, value = waiting.pop()
        if name in texts or value is None:
            continue
        value = getattr(value, "func", value) if type(value).__name__ == "QNode" else value
        function = inspect.unwrap(value) if inspect.isroutine(value) else value
        if not (inspect.isclass(function) or inspect.isfunction(function) or inspect.ismethod(function)):
            texts[name] = f"{name} = {_value(name, value)}"
            if not _is_foreign(type(value)):
                waiting.append((f"type of {name}", type(value)))
            if isinstance(value, functools.partial):
                waiting.append((f"function of {name}", value.func))
            continue
        if _is_foreign(function) and (name not in PARTS or _is_kit(function)):
            imports.add(f"from {function.__module__} import {function.__name__} as {name}")
            continue
        try:
            texts[name] = textwrap.dedent(_text(function)).strip()
        except (OSError, TypeError):
            raise _untold(name, value) from None
        used = dict(getattr(function, "__globals__", vars(sys.modules[function.__module__])))
        if inspect.isfunction(function) and function.__closure__:
            cells = zip(function.__code__.co_freevars, function.__closure__, strict=True)
            used |= {word: cell.cell_contents for word, cell in cells if word != "__class__"}
        for word in {node.id for node in ast.walk(ast.parse(texts[name])) if isinstance(node, ast.Name)}:
            found = used.get(word)
            if not inspect.ismodule(found):
                waiting += [(word, found)] if found is not None and found is not code else []
                continue
            imports.add(f"import {found.__name__} as {word}")
            if _is_local(getattr(found, "__file__", None)):
                source, others = texts_of(str(found.__file__))
                texts |= {f"module {found.__name__}": source}
                texts |= {f"module {found.__name__}: {other}": text for other, text in others.items()}
    return "\n\n".join(["\n".join(sorted(imports)), *(texts[name] for name in sorted(texts))]) + "\n"


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


def _value(name: str, found: Any) -> str:
    """A value as Python writes it; of an array, or any other object, its hash.

    Raises:
        ValueError: Nothing tells it from another.
    """
    if hasattr(found, "__array__"):
        array = np.asarray(found.detach().cpu() if hasattr(found, "detach") else found)
        return repr(f"array of shape {array.shape}, {hashlib.sha256(array.tobytes()).hexdigest()}")
    if isinstance(found, set | frozenset):
        return f"{{{', '.join(sorted(map(repr, found)))}}}"
    with contextlib.suppress(TypeError, ValueError):
        json.dumps(found)
        return repr(found)
    told = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(found))
    if isinstance(found, functools.partial):
        return repr(f"partial of {found.args!r}, {sorted(found.keywords.items())!r}")
    if " object" not in told and "<" not in told.removeprefix("<"):
        return repr(told)
    try:
        return repr(f"{type(found).__name__} {hashlib.sha256(pickle.dumps(found)).hexdigest()}")
    except Exception:  # whatever an object does when it is asked for its state
        raise _untold(name, found) from None


def _untold(name: str, value: Any) -> ValueError:
    step = "Its source is part of what a run is. Write the recipe to a file and name that."
    return ValueError(
        checks.message("recipe", "be written in a cell or a file", f"{name}: {value!r}"[:120], step)
    )


def _text(value: Any) -> str:
    """Source of a function or class; classes of a cell are found by their full name and methods' files."""
    if not inspect.isclass(value):
        return inspect.getsource(value)
    with contextlib.suppress(OSError, TypeError):
        return inspect.getsource(value)
    files = [each.__code__.co_filename for each in vars(value).values() if inspect.isfunction(each)]
    files += reversed(
        [name for name in linecache.cache if "ipykernel" in name or name.startswith("<ipython")]
    )
    for file in files:
        text = "".join(linecache.getlines(file))
        with contextlib.suppress(SyntaxError):
            node: Any = ast.parse(text)
            for part in value.__qualname__.split("."):
                inner = [each for each in node.body if getattr(each, "name", None) == part]
                node = inner[-1] if inner else None
                if node is None:
                    break
            if isinstance(node, ast.ClassDef):
                return ast.get_source_segment(text, node) or ""
    raise OSError(f"no source of {value.__qualname__}")


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
