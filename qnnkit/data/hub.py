"""The Hugging Face Hub: what transformers reads by name."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from qnnkit import words


def read(reader: Any, name: str | Path, **options: Any) -> Any:
    """`reader.from_pretrained(name, ...)`; the network is asked only for what is not on this machine.

    Args:
        reader: A class of transformers.
        name: Local folder, or name on the Hub.
        options: For `from_pretrained`; code next to the files is never run.

    Raises:
        ValueError: It cannot be read; the message is the reason alone, without a full stop.
    """
    from transformers.utils.logging import disable_progress_bar

    folder = Path(name).expanduser()
    place = str(folder.absolute()) if folder.is_dir() else str(name)
    options |= {"trust_remote_code": False}
    local = {**options, "local_files_only": True}
    if reader.__name__.startswith("AutoModel"):  # which looks for an adapter next to the model too
        local["adapter_kwargs"] = {"local_files_only": True}
    disable_progress_bar()  # a net is built many times, and each time is short
    try:
        with contextlib.suppress(OSError):
            return reader.from_pretrained(place, **local)
        return reader.from_pretrained(place, **options)
    except Exception as error:  # a damaged file makes the reader raise almost anything
        raise ValueError(words.first_line(error)) from None


def folder_of(name: str | Path) -> Path:
    """The folder of a model's JSON files: a local one as it is, or those of a name on the Hub."""
    from huggingface_hub import snapshot_download

    folder = Path(name).expanduser()
    return folder if folder.is_dir() else Path(snapshot_download(str(name), allow_patterns=["*.json"]))
