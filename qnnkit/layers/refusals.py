"""Why a circuit cannot take what it was given: one sentence each, found before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qnnkit import checks, words
from qnnkit.device import machine

STATE_DEVICES = ("default.qubit", "lightning.qubit")
"""PennyLane devices that hold a whole state in the machine's memory."""
NEAR = 64
"""Other numbers of features are tried up to so many, and up to so many more or fewer."""
AMPLITUDES = {2**n_wires for n_wires in range(6, 13)}
"""Larger ones that a circuit may well take."""


def no_features(inputs: Any) -> Exception:
    """The error for inputs without an axis of features."""
    if not isinstance(inputs, Tensor):
        step = "Convert it with torch.as_tensor."
        return TypeError(checks.message("inputs", "be a tensor", type(inputs).__name__, step))
    rule, step = "have the shape (..., n_features), with n_features above 0", "Add the features' axis."
    return ValueError(checks.message("inputs", rule, tuple(inputs.shape), step))


def wrong_number_of_features(
    tapes: Callable[[Tensor], Any], rows: Tensor, shape: Sequence[int], error: Exception
) -> None:
    """Explains a QNode's error, if the QNode would take these rows with more or fewer features.

    Args:
        tapes: Builds the circuit for rows.
        rows: For which it raised `error`, of shape (batch, n_features) or (n_features,).
        shape: That the inputs were given in.
        error: What it raised.

    Raises:
        ValueError: It would; the message names the nearest such number.
    """
    n = rows.shape[-1]
    counts = {*range(1, NEAR + 1), *range(max(1, n - NEAR), n + NEAR + 1), *AMPLITUDES} - {n}
    for count in sorted(counts, key=lambda count: abs(count - n)):
        try:
            tapes(rows[..., torch.arange(count, device=rows.device) % n])
        except Exception:  # as many do not fit, either
            continue
        step = f"The QNode raised {words.error_line(error)}."
        raise ValueError(checks.message("inputs", f"have {count} features", tuple(shape), step)) from error


def too_large(device: Any, tapes: Sequence[Any]) -> str | None:
    """Why the state of a circuit cannot be held by its PennyLane device; None if it can, or is none.

    Completes "because ...".

    Args:
        device: Of PennyLane.
        tapes: Of the circuit; none for the largest that the device may have.
    """
    if device.name not in STATE_DEVICES:
        return None
    every = device.name == "lightning.qubit" or any(
        each.obs is None and not each.wires for tape in tapes for each in tape.measurements
    )
    wires = set(device.wires or ())
    n_wires = max((len(set(tape.wires) | (wires if every else set())) for tape in tapes), default=len(wires))
    size, (memory, _) = 2**n_wires * np.dtype(getattr(device, "c_dtype", complex)).itemsize, machine.memory()
    if size <= memory:
        return None
    return f"a state of {n_wires} wires takes {_gib(size)}, and this machine has {_gib(memory)}"


def _gib(size: int) -> str:
    return f"{size / 2**30:{'.0f' if size >= 10 * 2**30 else '.2g'}} GiB"
