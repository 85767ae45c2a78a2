"""The Hugging Face Hub: what transformers reads by name, and labelled images through `datasets`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qnnkit import checks, words
from qnnkit.data.folders import SIDES
from qnnkit.data.images import form_of, split_stack, stack_files
from qnnkit.data.places import first, left_out
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
    folder = Path(name).expanduser()
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
                if folder.is_dir() or folder.is_absolute():
                    raise
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
        found: Any = datasets.load_dataset(path, configuration or None)
    except Exception as error:  # missing, gated, offline, made by a script: each has an error of its own
        rule, reason = "be a dataset of the Hub that can be read", words.first_line(error)
        raise ValueError(checks.message("dataset", rule, f"hub:{name}", f"It says: {reason}.")) from None
    features = next(iter(found.values())).features
    image, label = (
        next((key for key, feature in features.items() if isinstance(feature, kind)), None)
        for kind in (datasets.Image, datasets.ClassLabel)
    )
    if image is None or label is None:
        step = "Of text, write `to_json('a.jsonl')` and use the dataset text."
        rule = "hold a column of images and one of class labels"
        raise ValueError(checks.message("dataset", rule, f"hub:{name} with {first(list(features))}", step))
    sides = [side for side in found if side in SIDES] or [*found][:1]
    parts = {side: found[side].cast_column(image, datasets.Image(decode=False)) for side in sides}
    rows = [
        (SIDES[side] if len(sides) > 1 else "any", number, f"{side}/{row}")
        for side, part in parts.items()
        for row, number in enumerate(part[label])
    ]
    files = [each for each in rows if each[1] is not None and each[1] >= 0]

    def content(source: str) -> bytes:
        side, _, row = source.rpartition("/")
        each = parts[side][int(row)][image]
        return each["bytes"] or Path(each["path"]).read_bytes()

    why = {"splits": [side for side in found if side not in parts]}
    why["columns"] = [key for key in features if key not in (image, label)]
    why["images without a label"] = [each[2] for each in rows if each[1] is None or each[1] < 0]
    classes = tuple(features[label].names)
    stack = stack_files(content, files, classes, **form_of(options))
    return split_stack(f"hub:{name}", stack, notes=left_out(why), **options)
