"""What transformers reads by name: a folder, what was fetched before, or the Hugging Face Hub."""

from __future__ import annotations

import contextlib
import logging
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SECONDS = 10
"""Within which the Hub must answer at all."""


def read(reader: Any, name: str | Path, **options: Any) -> Any:
    """`reader.from_pretrained(name, ...)`; the network is asked only for what is not on this machine.

    Args:
        reader: A class of transformers.
        name: Local folder, or name on the Hub.
        options: For `from_pretrained`; code that lies beside the files is never run.

    Raises:
        ValueError: It cannot be read; the message is the reason alone, without a full stop.
    """
    folder = Path(name).expanduser()
    is_here = folder.is_dir()
    place = str(folder.absolute()) if is_here else str(name)
    options |= {"trust_remote_code": False}
    try:
        with quiet():
            if is_here or folder.is_absolute() or _fetched(place):
                local = {**options, "local_files_only": True}
                if reader.__name__.startswith("AutoModel"):  # which looks for an adapter beside the model too
                    local["adapter_kwargs"] = {"local_files_only": True}
                try:
                    return reader.from_pretrained(place, **local)
                except OSError:
                    if is_here or folder.is_absolute():
                        raise
            if (why := _unreachable()) is not None:
                raise ValueError(f"it is not, or not all of it, on this machine, and {why}")
            return reader.from_pretrained(place, **options)
    except Exception as error:  # a damaged file makes the reader raise almost anything
        reason = str(error).strip().split("\n")[0].rstrip(".!:") or type(error).__name__
        if "gated" in str(error).lower():
            reason += " (accept its terms on its page, then log in by `hf auth login`)"
        raise ValueError(reason) from None


def _fetched(name: str) -> bool:
    """Whether something of that name was fetched before."""
    from huggingface_hub import try_to_load_from_cache

    files = ("config.json", "tokenizer_config.json", "tokenizer.json")
    return any(isinstance(try_to_load_from_cache(name, file), str) for file in files)


def _unreachable() -> str | None:
    """Why the Hub does not answer; None if it does. Its own client would try for a minute."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE forbids to ask the Hub"
    try:
        urllib.request.urlopen(urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=SECONDS)
    except urllib.error.HTTPError:
        return None  # an answer, if no kind one
    except OSError as error:
        return f"the Hugging Face Hub cannot be reached ({getattr(error, 'reason', None) or error})"
    return None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without progress bars of transformers, and without the Hub's words on what it tries again.

    A net is built many times, and each time is short; what fails is told in one sentence.
    """
    from transformers.utils import logging as bars

    shown, client = bars.is_progress_bar_enabled(), logging.getLogger("huggingface_hub")
    level = client.level
    bars.disable_progress_bar()
    client.setLevel(logging.ERROR)
    try:
        yield
    finally:
        client.setLevel(level)
        if shown:
            bars.enable_progress_bar()
