"""A trainable quanvolution on your own images, with a folder for each class (data_dir/<class>/*.png)."""

from qnnkit.recipes import digits_quanv


class Settings(digits_quanv.Settings):
    dataset: str = "class_folder"
    image_size: int | None = 16
    grey: bool | None = True
    stride: int = 2
    epochs: int = 20
    min_accuracy: float | None = None
    max_memory_gb: float | None = None


load, build, task = digits_quanv.load, digits_quanv.build, digits_quanv.task
