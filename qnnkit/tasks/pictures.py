"""New images and arrays as a trained net takes them, and what of them that changes."""

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
    """An image as the net takes it, uint8 (1, channels, height, width), and what of it is changed.

    Args:
        given: A file, or pixels: uint8, (height, width) or (height, width, 3).
        about: What the run keeps of its data.

    Raises:
        ValueError: It is no image.
    """
    size, grey, notes = tuple(about.image_size), about.channels == 1, []
    if isinstance(given, str | Path):
        path = place(given)
        try:
            found = read(path.read_bytes()).pixels
        except Exception as error:  # a damaged file makes Pillow raise almost anything
            reason = words.first_line(error).partition(" <_io")[0]
            rule, step = "be an image that can be read", f"Pillow says: {reason}. Save it again as PNG."
            raise ValueError(checks.message("inputs", rule, str(given), step)) from None
    else:
        found = np.asarray(eight_bit(given))
        if found.dtype != np.uint8 or not found.size or (found.ndim != 2 and found.shape[2:] != (3,)):
            rule = "be uint8 of shape (height, width) or (height, width, 3)"
            told = f"{found.dtype} of shape {found.shape}"
            raise ValueError(checks.message("inputs", rule, told, "Give pixels of 0 to 255."))
    height, width = found.shape[:2]
    if grey and found.ndim == 3:
        notes.append("It is in colour, and the training images are grey: its colours are left out.")
    if abs(np.log((width / height) / (size[1] / size[0]))) > np.log(1.2):
        notes.append(f"It is {width}x{height}, and is squeezed to the training images' {size[1]}x{size[0]}.")
    tensor = torch.from_numpy(fit(found, size, "L" if grey else "RGB").copy())
    tensor = (tensor[None] if grey else tensor.permute(2, 0, 1)).unsqueeze(0).contiguous()
    return tensor, notes


def array(given: Any, about: Any) -> tuple[Tensor, bool]:
    """A file or an array as the net takes it, and whether it is one sample without a batch.

    Args:
        given: An array, a .npy file, or a table (.csv, .tsv) with a row of numbers for each sample.
        about: What the run keeps of its data.

    Raises:
        ValueError: There is no such file, or its shape is another.
    """
    name = str(given) if isinstance(given, str | Path) else "a table"
    if isinstance(given, str | Path):
        path = place(given)
        try:
            is_table = path.suffix.lower() in (".csv", ".tsv")
            given = _table(path, about.columns) if is_table else np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError):
            rule = "be .npy files, or tables of numbers"
            step = "Write one by numpy.save, of shape (n, ...) or of one sample."
            raise ValueError(checks.message("inputs", rule, name, step)) from None
    if hasattr(given, "columns"):
        given = _numbers(given, about.columns, name)
    dtype, *shape = about.shapes[""]
    values = tensor_of("inputs", given)
    if dtype == "uint8" != str(values.dtype)[6:]:
        step = "Give numbers of 0 to 255 as uint8, as the training data were."
        raise ValueError(checks.message("inputs", "be bytes", str(values.dtype), step))
    values = values.to(getattr(torch, dtype))
    if list(values.shape) == shape:
        return values.unsqueeze(0), True
    if list(values.shape[1:]) == shape:
        return values, False
    several = ", ".join(map(str, ["n", *shape]))
    rule, step = f"have shape {tuple(shape)} or ({several})", "That is what the net was trained on."
    raise ValueError(checks.message("inputs", rule, tuple(values.shape), step))


def _table(path: Path, columns: Sequence[str]) -> Any:
    """The rows of a table; a first line that is no numbers, or has all of `columns`, names the columns.

    Raises:
        ValueError: Rows differ in length, or there are none.
    """
    import pandas as pd

    text, mark = separated(Reader(Place(path.parent, path.parent, only=path.name)).text(plain(path.name)))
    cells: Any = pd.read_csv(io.StringIO(text), sep=mark, header=None, na_values=["?", "-"], dtype=str)
    heading: Any = cells.iloc[0]
    names = [str(name).strip() for name in heading]
    is_text = heading.notna() & pd.isna(pd.to_numeric(heading, errors="coerce"))  # a gap is no name
    if is_text.any() or (columns and {*columns} <= {*names}):
        cells = cells[1:].set_axis(names, axis="columns")
    return cells


def _numbers(table: Any, columns: Sequence[str], name: str) -> np.ndarray:
    """The columns that the net was trained on, in its order: by their names, if both tables have names.

    Raises:
        ValueError: A column is missing, or a cell has no number.
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
        told = f"{name}, whose column {wrong[0]} has a cell without one"
        raise ValueError(checks.message("inputs", "be tables of numbers", told, step))
    return numbers.to_numpy(float, copy=True)


def named(given: Any) -> str:
    """An input in a word."""
    return str(given) if isinstance(given, str | Path) else f"array of shape {np.asarray(given).shape}"


def place(given: str | Path) -> Path:
    """A file as it is named, or in the workspace.

    Raises:
        ValueError: Nothing is there, or a folder.
    """
    path = Path(given) if Path(given).exists() else workspace.place(given)
    if path.is_file():
        return path
    step = f"Of a folder give the files, as {given}/* does."
    raise ValueError(checks.message("inputs", "be existing files, not folders", str(given), step))
