"""Labelled images of the Hugging Face Hub, through `datasets` (extra `hub`): `dataset="hub:ylecun/mnist"`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qnnkit import checks
from qnnkit.data.assemble import as_size, split_stack, stack_pictures
from qnnkit.data.images import read
from qnnkit.data.layout import SIDES
from qnnkit.data.places import first
from qnnkit.data.splits import ImageSplits


def hub_images(
    name: str, root: None = None, *, image_size: int | None = None, grey: bool | None = None, **options: Any
) -> ImageSplits:
    """The images and class labels of a dataset on the Hub, in its first columns of these kinds.

    Splits called train, validation (or val) and test are kept; of a single one they are drawn. `datasets`
    4.0 and later run no code of a dataset. It keeps what it has fetched in its own cache.

    Args:
        name: As on the Hub; with a configuration as "name:configuration".
        root: Must be left out.
        image_size: As in `class_folder`.
        grey: As in `class_folder`.
        options: As in `class_folder`.

    Raises:
        ValueError: `datasets` is not installed, the dataset cannot be read, or it holds no labelled images.
    """
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError:
        rule, step = "be a dataset that can be read here", "Run: pip install 'qnnkit[hub]'."
        raise ValueError(checks.message("dataset", rule, f"hub:{name}", step)) from None
    try:
        found = datasets.load_dataset(*name.split(":"))
    except Exception as error:  # missing, gated, offline, made by a script: each has an error of its own
        told = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
        rule = "be a dataset of the Hub that can be read"
        raise ValueError(checks.message("dataset", rule, f"hub:{name}", f"It says: {told}.")) from None
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
    others = [side for side in found if side not in parts]
    notes = [f"Splits left out: {first(others)}."] if others else []
    pictures, sides, failed = [], [], []
    for side, part in parts.items():
        for row, each in enumerate(part.cast_column(image, datasets.Image(decode=False))):
            source = f"{side}/{row}"
            try:
                if each[label] is None or each[label] < 0:
                    raise ValueError("no label")
                content = each[image]["bytes"] or Path(each[image]["path"]).read_bytes()
                pictures.append(read(content, each[label], source, as_size(image_size)))
                sides.append(SIDES.get(side, "any") if len(parts) > 1 else "any")
            except Exception as error:  # a damaged image makes Pillow raise almost anything
                failed.append(f"{source} ({str(error).partition(' <_io')[0][:80]})")
    if failed:
        notes.append(f"Left out {len(failed):,} images that cannot be used: {first(failed)}.")
    classes = tuple(features[label].names)
    stack = stack_pictures(pictures, sides, classes, notes, image_size=image_size, grey=grey)
    return split_stack(f"hub:{name}", stack, **options)
