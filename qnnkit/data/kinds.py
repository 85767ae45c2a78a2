"""Settings of each kind of data, for recipes to derive from, and loading the datasets that they name."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from qnnkit import checks
from qnnkit.settings import SPLITTING, Base, Place, Words


class Pictures(Base):
    """Settings of all kinds with images."""

    data_dir: Place | None = None
    """Folder, archive or address of images (and captions); not needed for data that a dependency ships."""
    image_size: int | None = Field(default=None, ge=2)
    """Side to which images are resized, in pixels; None takes the most common size, or 64 with captions."""
    grey: bool | None = None
    """Convert to grey (True) or colour (False); None takes grey if every image is grey."""


class Images(Pictures):
    """Settings of labelled images; `Images.model_fields[NAME].description` is the meaning of one."""

    kind: ClassVar[str] = "images"
    dataset: str = "digits"
    """Name of the dataset: digits, class_folder, flat_folder, mnist, fashion_mnist, kmnist, ahcd."""
    label_pattern: str | None = None
    """Regular expression whose first group is the label in a file's name; only for flat_folder."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of each label that is spread over all classes."""
    augmentation: Literal["none", "affine"] = "none"
    """Changes to training images in each epoch: affine rotates, shifts, scales and shears them a little."""


class Captions(Pictures):
    """Settings of images with captions; `Captions.model_fields[NAME].description` is the meaning of one."""

    kind: ClassVar[str] = "captions"
    dataset: str = "captions"
    """Name of the dataset: captions (a folder of images with a file of captions), or digit_captions."""
    sequence_length: int | None = Field(default=None, ge=2)
    """Most tokens of a caption, with begin and end; None takes 32 (digits: 8) or the tokenizer's limit."""
    tokenizer: Place | None = None
    """Folder, or name on the Hub, of a tokenizer; None takes that of `pretrained`, or trains one of words."""


class Tokens(Base):
    """Settings of all kinds of tokens."""

    kind: ClassVar[str] = "tokens"
    data_dir: Place | None = None
    """File or folder of texts, chats or instructions; or of MIDI by composer, or of JSON of 16ths."""
    sequence_length: int | None = Field(default=None, ge=2)
    """Tokens in a block; None takes 256 for text and 1,024 for music."""


class Text(Tokens):
    """Settings of text; `Text.model_fields[NAME].description` is the meaning of one."""

    dataset: Literal["text"] = "text"
    """Name of the dataset; always text."""
    vocabulary: int | None = Field(default=None, ge=257)
    """Size of a tokenizer that is trained on the training text; None takes 1,024."""
    tokenizer: Place | None = None
    """Folder, or name on the Hub, of a tokenizer; None takes that of `pretrained`, or trains one."""
    part: str | None = None
    """Regular expression that selects documents or speeches; with a leading "!", it excludes them."""


class Music(Tokens):
    """Settings of music; `Music.model_fields[NAME].description` is the meaning of one."""

    dataset: Literal["music"] = "music"
    """Name of the dataset; always music."""
    composers: Words | None = None
    """Names of the composers whose pieces are used; None takes all."""
    tokens: Literal["remi", "midi_v1", "midi_v2"] = "remi"
    """Tokens of a net from scratch: remi (MidiTok's), midi_v1 or midi_v2 (events of SkyTNT's midi_model)."""
    transpose: int | None = Field(default=None, ge=0, le=12)
    """Most semitones by which training pieces are transposed in each epoch; None takes 5, 0 turns it off."""


NO_OPTIONS = ("dataset", "data_dir", "label_smoothing", "augmentation")
"""Settings of the classes above that `data.load` does not take."""


def of(settings: Any) -> Any:
    """Loads the dataset that the settings name; often used as a recipe's `load`.

    Args:
        settings: Settings whose class derives from `Images`, `Captions`, `Text` or `Music`, and from
            `qnnkit.Settings`.

    Raises:
        ValueError: The dataset is unknown or of another kind, does not take an option, or has invalid files.
        OSError: The files are missing or cannot be fetched.
    """
    from qnnkit import data

    name, place = settings.dataset, settings.data_dir
    if data.kind(name) != settings.kind:
        choices = [other for other in data.DATASETS if data.kind(other) == settings.kind]
        rule = f"be a dataset of {settings.kind}, which the recipe needs"
        raise ValueError(checks.message("dataset", rule, name, f"Use {', '.join(choices)}."))
    declared = {option for kind in (Images, Captions, Text, Music) for option in kind.model_fields}
    options, accepted = {"root": place}, data.options_of(name)
    renames = {"root": "data_dir"}  # names in notebooks and on the command line
    for option in (declared & set(type(settings).model_fields)) - {*NO_OPTIONS} | {*SPLITTING}:
        value = settings.of_kit(option)
        is_asked = value != type(settings).model_fields[option].default
        if value is not None and (is_asked or option in accepted):
            options[option] = value
    if "tokenizer" in accepted - options.keys() and settings.of_kit("pretrained"):
        options["tokenizer"] = settings.of_kit("pretrained")  # the model's own tokenizer
        renames["tokenizer"] = "pretrained"
    with checks.renamed(renames):
        return data.load(name, **options)
