"""One uniform message for a bad value: what it is, the rule, the value, the next step."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    import torch


MANY = 20
"""Choices that a message does not list, if it can name the nearest."""


class Message(str):
    """A refusal's sentence that knows its parts."""

    parts: tuple[Any, ...]


def message(name: str, rule: str, value: object, next_step: str) -> Message:
    """The sentence that every refusal of qnnkit is made of.

    Example:
        >>> message("wires", "lie in 0..3", (0, 4), "Raise n_qubits or drop wire 4.")
        'Argument `wires` must lie in 0..3, but is (0, 4). Raise n_qubits or drop wire 4.'
    """
    made = Message(f"Argument `{name}` must {rule}, but is {value!r}. {next_step}")
    made.parts = name, rule, value, next_step
    return made


@contextlib.contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """A refusal of an argument names it as the caller's user knows it: by `names`, where they have it.

    Example:
        >>> with renamed({"root": "data_dir"}):
        ...     raise ValueError(message("root", "hold images", "x", "Add some."))
        Traceback (most recent call last):
        ValueError: Argument `data_dir` must hold images, but is 'x'. Add some.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        *before, sentence = error.args or [None]
        if not isinstance(sentence, Message) or sentence.parts[0] not in names:
            raise
        name, *others = sentence.parts
        raise type(error)(*before, message(names[name], *others)) from None


def nearest(value: str, choices: Iterable[str]) -> str | None:
    """The choice that is spelt most like `value`, or None when none is close.

    Example:
        >>> nearest("epocs", ["epochs", "seed"])
        'epochs'
    """
    found = difflib.get_close_matches(value, list(choices), n=1, cutoff=0.5)
    return found[0] if found else None


def choice(name: str, value: str, choices: Collection[str], more: str = "") -> str:
    """`value` itself, if it is one of `choices`.

    Raises:
        ValueError: It is not. The message has the nearest choice, then all of them (unless there are many and
            `more` says where to find them), then `more`.
    """
    if value in choices:
        return value
    guess = nearest(str(value), choices)
    hint = f"Did you mean {guess!r}? " if guess else ""
    names = "" if guess and len(choices) > MANY and more else f"The choices are {', '.join(choices)}. "
    step = f"{hint}{names}{more}".rstrip()
    raise ValueError(message(name, "be a known name", value, step))


def positive(name: str, value: float, next_step: str = "Use 1 or more.") -> None:
    """Raises ValueError unless `value` is above zero."""
    if not value > 0:
        raise ValueError(message(name, "be above 0", value, next_step))


def last_axis(name: str, tensor: torch.Tensor, size: int, next_step: str) -> None:
    """Raises ValueError unless the last axis of `tensor` has length `size`."""
    if tensor.ndim == 0 or tensor.shape[-1] != size:
        raise ValueError(message(name, f"have shape (..., {size})", tuple(tensor.shape), next_step))


def axes(name: str, tensor: torch.Tensor, names: str, next_step: str) -> None:
    """Raises ValueError unless `tensor` has as many axes as `names` has, such as "batch, height, width"."""
    if tensor.ndim != len(names.split(",")):
        raise ValueError(message(name, f"have the axes ({names})", tuple(tensor.shape), next_step))


def folder(name: str, path: str | Path, next_step: str) -> Path:
    """`path` as a Path, if a folder is there.

    Raises:
        FileNotFoundError: Nothing is there.
        NotADirectoryError: A file is there.
    """
    path = Path(path)
    if path.is_dir():
        return path
    error = NotADirectoryError if path.exists() else FileNotFoundError
    raise error(message(name, "be an existing folder", str(path), next_step))


def read_yaml(path: Path, kind: str) -> Any:
    """The plain values in a YAML file that a person wrote; nothing in it is ever executed.

    Args:
        path: The file.
        kind: What it is called in a refusal, such as "batch file".

    Raises:
        ValueError: It is no plain YAML, gives a key twice or links.
        OSError: It cannot be read.
    """
    try:
        text = path.expanduser().read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(message("file", "be a YAML text", str(path), "Save it as UTF-8.")) from None
    except OSError as error:
        sentence = f"Cannot read {kind} `{path}` ({error.strerror}). Give its path."
        raise type(error)(error.errno, sentence) from None
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise ValueError("it links with `*`; write the value out")  # nested, they make gigabytes
        return yaml.load(text, _OnceLoader)  # a SafeLoader
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split()).rstrip(".")
        step = "Write plain keys, numbers, texts and lists only."
        raise ValueError(
            f"{kind.capitalize()} `{path}` must be plain YAML, but is not{where}: {problem}. {step}"
        ) from None


class _OnceLoader(yaml.SafeLoader):
    """Refuses a key that is given twice, of which YAML would silently keep the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            is_word = isinstance(key.value, str)
            if not is_word or key.value in seen:
                fault = f"`{key.value}` is given twice" if is_word else "a key is no word"
                raise yaml.constructor.ConstructorError(None, None, fault, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)
