"""The Hugging Face Hub: what transformers reads by name, and labelled images through `datasets`."""

from __future__ import annotations

import contextlib
import logging
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qnnkit import checks, words
from qnnkit.data.folders import SIDES
from qnnkit.data.images import form_of, split_stack, stack_files
from qnnkit.data.places import first, left_out, refusal
from qnnkit.data.splits import ImageSplits

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
    is_local = folder.is_dir() or folder.is_absolute()
    place = str(folder.absolute()) if folder.is_dir() else str(name)
    options |= {"trust_remote_code": False}
    local = {**options, "local_files_only": True}
    if reader.__name__.startswith("AutoModel"):  # which looks for an adapter beside the model too
        local["adapter_kwargs"] = {"local_files_only": True}
    try:
        with quiet():
            try:
                return reader.from_pretrained(place, **local)
            except OSError:
                if is_local:
                    raise
            if (why := _unreachable()) is not None:
                raise ValueError(f"it is not, or not all of it, on this machine, and {why}")
            return reader.from_pretrained(place, **options)
    except Exception as error:  # a damaged file makes the reader raise almost anything
        reason = words.first_line(error)
        if "gated" in str(error).lower():
            reason += " (accept its terms on its page, then log in by `hf auth login`)"
        raise ValueError(reason) from None


class Described:
    """Reads the folder of a model's JSON files: a local one as it is, those of a name from the Hub."""

    @staticmethod
    def from_pretrained(name: str, *, local_files_only: bool = False, **options: Any) -> Path:
        """For `read`."""
        from huggingface_hub import snapshot_download

        if Path(name).is_dir():
            return Path(name)
        return Path(snapshot_download(name, allow_patterns=["*.json"], local_files_only=local_files_only))


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

    A net is built many times, and each time is short; what fails is reported in one sentence.
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


def hub_images(name: str, root: str | Path | None = None, **options: Any) -> ImageSplits:
    """The images and class labels of a dataset on the Hub, in its first columns of these kinds.

    Splits called train, validation (or val) and test are kept; of a single one they are drawn. Other columns,
    and other splits, are named in a note. `datasets` keeps what it has fetched in its own cache.

    Args:
        name: As on the Hub; with a configuration as "name:configuration".
        root: Must be left out.
        options: As in `class_folder`.

    Raises:
        ValueError: The dataset cannot be read, or holds no labelled images.
    """
    if root:
        step = "Leave it out, or choose a dataset of files."
        raise refusal("be left out for a dataset of the Hub", str(root), step)
    import datasets

    path, _, configuration = name.partition(":")
    try:
        found: Any = datasets.load_dataset(path, configuration or None)
    except Exception as error:  # missing, gated, offline, made by a script: each has an error of its own
        rule, reason = "be a dataset of the Hub that can be read", words.first_line(error)
        raise ValueError(checks.message("dataset", rule, f"hub:{name}", f"It says: {reason}.")) from None
    features = next(iter(found.values())).features
    kinds = (datasets.Image, datasets.ClassLabel)
    image, label = (
        next((key for key in features if isinstance(features[key], kind)), None) for kind in kinds
    )
    if image is None or label is None:
        step = "Of text, write `to_json('a.jsonl')` and use the dataset text."
        rule = "hold a column of images and one of class labels"
        raise ValueError(checks.message("dataset", rule, f"hub:{name} with {first(list(features))}", step))
    parts = {side: found[side] for side in found if side in SIDES} or dict(list(found.items())[:1])
    parts = {side: part.cast_column(image, datasets.Image(decode=False)) for side, part in parts.items()}
    files, unlabelled = [], []
    for side, part in parts.items():
        of = SIDES[side] if len(parts) > 1 else "any"
        for row, number in enumerate(part[label]):
            known = number is not None and number >= 0
            (files if known else unlabelled).append((of, number, f"{side}/{row}"))

    def content(source: str) -> bytes:
        side, _, row = source.rpartition("/")
        each = parts[side][int(row)][image]
        return each["bytes"] or Path(each["path"]).read_bytes()

    why = {"splits": [side for side in found if side not in parts]}
    why["columns"] = [key for key in features if key not in (image, label)]
    why["images without a label"] = [source for _, _, source in unlabelled]
    classes = tuple(features[label].names)
    stack = stack_files(content, files, classes, notes=left_out(why), **form_of(options))
    return split_stack(f"hub:{name}", stack, **options)
