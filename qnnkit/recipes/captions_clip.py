"""Your own images with captions (a folder with captions.json, .jsonl, .csv or .tsv), by CLIP with circuits.

`size=77m` and `pretrained=FOLDER` are for a GPU.
"""

from qnnkit.recipes import digits_clip


class Settings(digits_clip.Settings):
    dataset: str = "captions"
    image_size: int | None = 32
    patch_size: int | None = 8
    epochs: int = 60


load, build, task, check = digits_clip.load, digits_clip.build, digits_clip.task, digits_clip.check
