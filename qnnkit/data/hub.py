"""The Hugging Face Hub: what transformers reads by name, and labelled images through `datasets`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from qnnkit import checks, words
from qnnkit.data.folders import SIDES
from qnnkit.data.images import split_stack, stack_files
from qnnkit.data.places import Member, first, left_out
from qnnkit.data.splits import ImageSplits


def read(reader: Any, name: str | Path, **options: Any) -> Any:
    """`reader.from_pretrained(name, ...)`; the network is asked only for what is not on this machine.

    Args:
        reader: A class of transformers.
        name: Local folder, or name on the Hub.
        options: For `from_pretrained`; code that lies beside the files is never run.

    Raises:
        ValueError: It cannot be read; the message is the reason alone, without a full stop.
    """
    from transformers.utils.logging import disable_progress_bar

    folder = Path(name).expanduser()
    place = str(folder.absolute()) if folder.is_dir() else str(name)
    options |= {"trust_remote_code": False}
    local = {**options, "local_files_only": True}
    if reader.__name__.startswith("AutoModel"):  # which looks for an adapter beside the model too
        local["adapter_kwargs"] = {"local_files_only": True}
    disable_progress_bar()  # a net is built many times, and each time is short
    try:
        with contextlib.suppress(OSError):
            return reader.from_pretrained(place, **local)
        return reader.from_pretrained(place, **options)
    except Exception as error:  # a damaged file makes the reader raise almost anything
        raise ValueError(words.first_line(error)) from None


class Described:
    """Reads the folder of a model's JSON files: a local one as it is, those of a name from the Hub."""

    @staticmethod
    def from_pretrained(name: str, *, local_files_only: bool = False, **options: Any) -> Path:
        """For `read`."""
        from huggingface_hub import snapshot_download

        if Path(name).is_dir():
            return Path(name)
        return Path(snapshot_download(name, allow_patterns=["*.json"], local_files_only=local_files_only))


def hub_images(name: str, **options: Any) -> ImageSplits:
    """The images and class labels of a dataset on the Hub, in its first columns of these kinds.

    Splits called train, validation (or val) and test are kept; of a single one they are drawn. Other columns,
    and other splits, are named in a note. `datasets` keeps what it has fetched in its own cache.

    Args:
        name: As on the Hub; with a configuration as "name:configuration".
        options: As in `class_folder`.

    Raises:
        ValueError: The dataset cannot be read, or holds no labelled images.
    """
    import datasets

    path, _, configuration = name.partition(":")
    try:
        loaded: Any = datasets.load_dataset(path, configuration or None)
    except Exception as error:  # missing, gated, offline, made by a script: each has an error of its own
        rule, reason = "be a dataset of the Hub that can be read", words.first_line(error)
        raise ValueError(checks.message("dataset", rule, f"hub:{name}", f"It says: {reason}.")) from None
    features = next(iter(loaded.values())).features
    image, label = (
        next((key for key, feature in features.items() if isinstance(feature, kind)), None)
        for kind in (datasets.Image, datasets.ClassLabel)
    )
    if image is None or label is None:
        step = "Of text, write `to_json('a.jsonl')` and use the dataset text."
        rule = "hold a column of images and one of class labels"
        raise ValueError(checks.message("dataset", rule, f"hub:{name} with {first(list(features))}", step))
    sides = [side for side in loaded if side in SIDES] or [*loaded][:1]
    parts = {side: loaded[side].cast_column(image, datasets.Image(decode=False)) for side in sides}
    files = [
        (SIDES[side] if len(sides) > 1 else "any", number, Member(f"{side}/{row}", 0, part._fingerprint))
        for side, part in parts.items()
        for row, number in enumerate(part[label])
        if number is not None and number >= 0
    ]

    def content(source: str) -> bytes:
        side, _, row = source.rpartition("/")
        each = parts[side][int(row)][image]
        return each["bytes"] or Path(each["path"]).read_bytes()

    why = {"splits": [side for side in loaded if side not in parts]}
    why["columns"] = [key for key in features if key not in (image, label)]
    notes = left_out(why)
    if n := sum(map(len, parts.values())) - len(files):
        notes.append(f"Left out {n:,} images without a label.")
    stack = stack_files(content, files, options.pop("image_size", None), options.pop("grey", None))
    return split_stack(f"hub:{name}", stack, tuple(features[label].names), notes=notes, **options)
