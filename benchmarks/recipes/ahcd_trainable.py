"""Arabic letters by a trainable quanvolution in the best body that two cores train in minutes."""

from qnnkit.recipes import letters


class Settings(letters.Settings):
    dataset: str = "ahcd"
    image_size: int | None = None
    grey: bool | None = None
    blocks: int = 2
    maps: int = 8
    hidden: int = 256
    dropout: float = 0.2
    epochs: int = 30


load, build, task = letters.load, letters.build, letters.task
