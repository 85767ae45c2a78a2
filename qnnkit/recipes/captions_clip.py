"""CLIP with circuits on your own images with captions (a folder with captions.json, .csv or similar).

`size=77m` (76.7 million weights with `head=full`) and `pretrained=FOLDER` need a GPU, or much time on a Mac.
"""

from qnnkit import checks, data, models
from qnnkit.recipes import digits_clip


class Settings(digits_clip.Settings):
    dataset: str = "captions"
    image_size: int | None = None  # None: these two follow from `size`
    patch_size: int | None = None
    epochs: int = 60


def load(settings):
    side = 224 if settings.pretrained else models.CLIP[checks.choice("size", settings.size, models.CLIP)][3]
    return data.of(settings.override(image_size=settings.image_size or side))


build, task, check = digits_clip.build, digits_clip.task, digits_clip.check
