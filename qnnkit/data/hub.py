"""Reading models and tokenizers from a folder or the Hugging Face Hub."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from qnnkit import words


def read(reader: Any, name: str | Path, **options: Any) -> Any:
    """Returns `reader.from_pretrained(name, ...)`; only files that are not on this machine are downloaded.

    Args:
        reader: A class of transformers.
        name: Local folder, or name on the Hub.
        options: Arguments of `from_pretrained`; code stored with the model is never run.

    Raises:
        ValueError: It cannot be read; the message is only the reason, without a full stop.
    """
    from transformers.utils.logging import disable_progress_bar

    folder = Path(name).expanduser()
    place = str(folder.absolute()) if folder.is_dir() else str(name)
    options |= {"trust_remote_code": False}
    local = {**options, "local_files_only": True}
    if reader.__name__.startswith("AutoModel"):  # these also look for an adapter next to the model
        local["adapter_kwargs"] = {"local_files_only": True}
    disable_progress_bar()  # a net is built many times, quickly each time
    try:
        with contextlib.suppress(OSError):
            return reader.from_pretrained(place, **local)
        return reader.from_pretrained(place, **options)
    except Exception as error:  # a damaged file makes the reader raise almost anything
        raise ValueError(words.first_line(error)) from None


def folder_of(name: str | Path) -> Path:
    """Returns the folder of a model's JSON files: `name` if it is a local folder, else a download."""
    from huggingface_hub import snapshot_download

    folder = Path(name).expanduser()
    return folder if folder.is_dir() else Path(snapshot_download(str(name), allow_patterns=["*.json"]))
