"""The settings of each kind of data, for recipes to derive theirs from, and the datasets that they name."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from qnnkit import checks
from qnnkit.settings import SPLITTING, Base, Place, Words


class Pictures(Base):
    """What kinds with images have in common."""

    data_dir: Place | None = None
    """Folder, archive or address of images (and captions), for data that do not ship with a dependency."""
    image_size: int | None = Field(default=None, ge=2)
    """Side to which images are resized, in pixels; None keeps the most common size, with captions 64."""
    grey: bool | None = None
    """Convert to grey (True) or colour (False); None keeps grey where every image is grey."""


class Images(Pictures):
    """Images into classes."""

    kind: ClassVar[str] = "images"
    dataset: str = "digits"
    """Which: digits, class_folder, flat_folder, mnist, fashion_mnist, kmnist, ahcd."""
    label_pattern: str | None = None
    """Regular expression whose first group is the label in a file's name; for the dataset flat_folder."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of each label that is spread over all classes."""
    augmentation: Literal["none", "affine"] = "none"
    """How training images vary by epoch: affine turns, shifts, scales and shears them a little."""


class Captions(Pictures):
    """Images with captions."""

    kind: ClassVar[str] = "captions"
    dataset: str = "captions"
    """Which: captions (a folder of images with a file of captions), or digit_captions."""
    sequence_length: int | None = Field(default=None, ge=2)
    """Most tokens of a caption, begin and end included; None takes 32 (digits: 8) or the tokenizer's own."""
    tokenizer: Place | None = None
    """Folder, or name on the Hub, of a tokenizer; None takes that of `pretrained`, or words as they are."""


class Tokens(Base):
    """What kinds of tokens have in common."""

    kind: ClassVar[str] = "tokens"
    data_dir: Place | None = None
    """A file or a folder of texts, chats or instructions; or of MIDI by composer, or JSON of 16ths."""
    sequence_length: int | None = Field(default=None, ge=2)
    """Tokens of a block; None takes 256 of text, 1,024 of music."""


class Text(Tokens):
    """Text in tokens."""

    dataset: Literal["text"] = "text"
    """Text alone."""
    vocabulary: int | None = Field(default=None, ge=257)
    """Tokens that a tokenizer learns from the training text; None takes 1,024."""
    tokenizer: Place | None = None
    """Folder, or name on the Hub, of one; None takes that of `pretrained`, or learns one."""
    part: str | None = None
    """Regular expression: which documents or speeches are used; with a "!" before it, which are not."""


class Music(Tokens):
    """Music in tokens."""

    dataset: Literal["music"] = "music"
    """Music alone."""
    composers: Words | None = None
    """Names of the composers whose pieces are used; None takes all."""
    tokens: Literal["remi", "midi_v1", "midi_v2"] = "remi"
    """Tokens of a net from scratch: remi (MidiTok's), midi_v1 or midi_v2 (events of SkyTNT's midi_model)."""
    transpose: int | None = Field(default=None, ge=0, le=12)
    """Most semitones by which training pieces move up or down in each epoch; None takes 5, 0 moves none."""


NO_OPTIONS = ("dataset", "data_dir", "label_smoothing", "augmentation")
"""Settings above that are no options of `data.load`."""


def of(settings: Any) -> Any:
    """The splits that settings name; a recipe's `load` is often this alone.

    Args:
        settings: Derived from one of the kinds above and from `qnnkit.Settings`.

    Raises:
        ValueError: The dataset is unknown or of another kind, takes no such option, or its files are wrong.
        OSError: They are not there.
    """
    from qnnkit import data

    name, place = settings.dataset, settings.data_dir
    if data.kind(name) != settings.kind:
        choices = [other for other in data.DATASETS if data.kind(other) == settings.kind]
        rule = f"hold {settings.kind}, as the recipe wants them"
        raise ValueError(checks.message("dataset", rule, name, f"Use {', '.join(choices)}."))
    declared = {option for kind in (Images, Captions, Text, Music) for option in kind.model_fields}
    options, known = {"root": place}, data.options_of(name)
    renames = {"root": "data_dir"}  # arguments have other names in notebooks and on the command line
    for option in (declared & set(type(settings).model_fields)) - {*NO_OPTIONS} | {*SPLITTING}:
        value = settings.of_kit(option)
        is_asked = value != type(settings).model_fields[option].default
        if value is not None and (is_asked or option in known):
            options[option] = value
    if "tokenizer" in known - options.keys() and settings.of_kit("pretrained"):
        options["tokenizer"] = settings.of_kit("pretrained")  # whose tokens its model knows
        renames["tokenizer"] = "pretrained"
    with checks.renamed(renames):
        return data.load(name, **options)
