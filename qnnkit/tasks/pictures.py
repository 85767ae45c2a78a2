"""Conversion of new images and arrays to inputs of a trained net, with notes on what changes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qnnkit import checks, words, workspace
from qnnkit.data.arrays import tensor_of
from qnnkit.data.images import eight_bit, fit, read
from qnnkit.data.places import Place, first, plain
from qnnkit.data.records import Reader, separated


def pixels(given: Any, about: Any) -> tuple[Tensor, list[str]]:
    """Returns an image as the net takes it, uint8 (1, channels, height, width), and notes on changes.

    Args:
        given: A file, or pixels: uint8, (height, width) or (height, width, 3).
        about: Description of the training data stored in the run.

    Raises:
        ValueError: It is not an image.
    """
    size, grey, notes = tuple(about.image_size), about.channels == 1, []
    if isinstance(given, str | Path):
        path = place(given)
        try:
            image = read(path.read_bytes()).pixels
        except Exception as error:  # a damaged file makes Pillow raise almost anything
            reason = words.first_line(error).partition(" <_io")[0]
            rule, step = "be a readable image", f"Pillow says: {reason}. Save it again as PNG."
            raise ValueError(checks.message("inputs", rule, str(given), step)) from None
    else:
        image = np.asarray(eight_bit(given))
        if image.dtype != np.uint8 or not image.size or (image.ndim != 2 and image.shape[2:] != (3,)):
            rule = "be uint8 of shape (height, width) or (height, width, 3)"
            value = f"{image.dtype} of shape {image.shape}"
            raise ValueError(checks.message("inputs", rule, value, "Give pixels of 0 to 255."))
    height, width = image.shape[:2]
    if grey and image.ndim == 3:
        notes.append("It is in colour, but the training images are grey: it was converted to grey.")
    if abs(np.log((width / height) / (size[1] / size[0]))) > np.log(1.2):
        notes.append(f"It is {width}x{height} and was squeezed to {size[1]}x{size[0]}, as in training.")
    values = np.atleast_3d(fit(image, size, "L" if grey else "RGB"))  # (height, width, channels)
    return torch.from_numpy(values.transpose(2, 0, 1)[None].copy()), notes


def array(given: Any, about: Any) -> tuple[Tensor, bool]:
    """Returns a file or array as the net takes it, and whether it was a single sample without batch axis.

    Args:
        given: An array, a .npy file, or a table (.csv, .tsv) with a row of numbers for each sample.
        about: Description of the training data stored in the run.

    Raises:
        ValueError: The file does not exist, or its shape does not match.
    """
    name = str(given) if isinstance(given, str | Path) else "a table"
    if isinstance(given, str | Path):
        path = place(given)
        try:
            is_table = path.suffix.lower() in (".csv", ".tsv")
            given = _table(path, about.columns) if is_table else np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError):
            rule = "be .npy files, or tables of numbers"
            step = "Write one with numpy.save, of shape (n, ...) or of one sample."
            raise ValueError(checks.message("inputs", rule, name, step)) from None
    if hasattr(given, "columns"):
        given = _numbers(given, about.columns, name)
    dtype, *shape = about.shapes[""]
    values = tensor_of("inputs", given)
    if dtype == "uint8" != str(values.dtype)[6:]:
        step = "Give numbers of 0 to 255 as uint8, like the training data."
        raise ValueError(checks.message("inputs", "be bytes", str(values.dtype), step))
    values = values.to(getattr(torch, dtype))
    if list(values.shape) == shape:
        return values.unsqueeze(0), True
    if list(values.shape[1:]) == shape:
        return values, False
    several = ", ".join(map(str, ["n", *shape]))
    rule, step = f"have shape {tuple(shape)} or ({several})", "The net was trained on this shape."
    raise ValueError(checks.message("inputs", rule, tuple(values.shape), step))


def _table(path: Path, columns: Sequence[str]) -> Any:
    """Reads a table; if its first line has text, or all of `columns`, it names the columns.

    Raises:
        ValueError: Rows differ in length, or there are none.
    """
    import pandas as pd

    text, mark = separated(Reader(Place(path.parent, path.parent, only=path.name)).text(plain(path.name)))
    cells: Any = pd.read_csv(io.StringIO(text), sep=mark, header=None, na_values=["?", "-"], dtype=str)
    heading: Any = cells.iloc[0]
    names = [str(name).strip() for name in heading]
    is_text = heading.notna() & pd.isna(pd.to_numeric(heading, errors="coerce"))  # a gap is not text
    if is_text.any() or (columns and {*columns} <= {*names}):
        cells = cells[1:].set_axis(names, axis="columns")
    return cells


def _numbers(table: Any, columns: Sequence[str], name: str) -> np.ndarray:
    """Returns the columns that the net was trained on, in order; by name, if both tables have names.

    Raises:
        ValueError: A column is missing, or a cell is not a number.
    """
    import pandas as pd

    step = "Make the columns as the recipe's `load` does."
    table = pd.DataFrame(table.to_pandas() if hasattr(table, "to_pandas") else table)  # Arrow's, polars'
    if columns and isinstance(next(iter(table.columns), 0), str):
        if missing := [column for column in columns if column not in table]:
            rule = f"have the columns that the net was trained on: {first([*columns], 10)}"
            raise ValueError(checks.message("inputs", rule, f"{name} without {missing[0]}", step))
        table = table[[*columns]]
    numbers = table.astype(object).apply(pd.to_numeric, errors="coerce")  # dates would be nanoseconds
    if wrong := [*table.columns[numbers.isna().any()]]:
        value = f"{name}, whose column {wrong[0]} has a cell without one"
        raise ValueError(checks.message("inputs", "be tables of numbers", value, step))
    return numbers.to_numpy(float, copy=True)


def named(given: Any) -> str:
    """Returns a short name of an input."""
    return str(given) if isinstance(given, str | Path) else f"array of shape {np.asarray(given).shape}"


def place(given: str | Path) -> Path:
    """Returns the path of a file, relative to the current folder or the workspace.

    Raises:
        ValueError: It does not exist, or is a folder.
    """
    path = Path(given) if Path(given).exists() else workspace.place(given)
    if path.is_file():
        return path
    step = f"For a folder, give its files, such as {given}/*."
    raise ValueError(checks.message("inputs", "be existing files, not folders", str(given), step))
