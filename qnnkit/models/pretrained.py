"""Published weights of a transformers model, from a folder or the Hub: safetensors, and every one of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qnnkit import checks


@contextlib.contextmanager
def without_bars() -> Iterator[None]:
    """No progress bar of transformers inside: a net is built many times, and each time is short."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def load(kind: Any, name: str, *, what: str, model_type: str) -> Any:
    """The model called `name`, a class of transformers' `kind`; nothing but safetensors is read.

    Args:
        kind: The class, with `from_pretrained`.
        name: Local folder, or name on the Hugging Face Hub.
        what: What it is to be, in words.
        model_type: What its config.json calls it.

    Raises:
        ValueError: It cannot be reached, is something else, or lacks a weight.
    """
    folder = Path(name).expanduser()
    place, from_disk = (str(folder), {"local_files_only": True}) if folder.is_dir() else (name, {})
    options = {"use_safetensors": True, "output_loading_info": True}
    step = "Give a local folder with config.json and model.safetensors, or None to start from scratch."

    def refuse(rule: str, value: str, reason: str) -> ValueError:
        return ValueError(checks.message("pretrained", rule, value, f"{reason} {step}"))

    try:
        with without_bars():
            try:  # what was fetched before is not asked for again
                net, told = kind.from_pretrained(place, local_files_only=True, **options)
            except OSError:
                if from_disk:
                    raise
                net, told = kind.from_pretrained(place, **options)
    except Exception as error:  # a damaged file makes the reader raise almost anything
        reason = str(error).strip().split("\n")[0].rstrip(".!") or type(error).__name__
        raise refuse(f"be a {what} that can be read here", name, f"It was not read: {reason}.") from None
    if net.config.model_type != model_type:
        raise refuse(f"be a {what}", net.config.model_type, "Other nets have other layers.")
    if lacking := [*told["missing_keys"], *(key for key, *_ in told["mismatched_keys"])]:
        some = f"{len(lacking)} weights, {sorted(lacking)[0]} first, would be left as they are drawn."
        raise refuse(f"hold every weight of its {what}", name, f"It does not: {some}")
    return net
