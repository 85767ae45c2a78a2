"""What a run's data look like: pictures and tables for the kind of data that they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qnnkit.data import ImageSplits, write_sample
from qnnkit.data.captions import CaptionSplits
from qnnkit.data.music import first_pieces
from qnnkit.data.music_events import MusicTokenizer
from qnnkit.data.splits import SPLITS
from qnnkit.data.tensors import TensorSplits
from qnnkit.data.tokens import TokenSplits
from qnnkit.report import own
from qnnkit.runs import Run

if TYPE_CHECKING:
    import pandas as pd

    from qnnkit.plots import Picture

IMAGES, PIECES, TEXTS = 12, 3, 5
"""How many are shown."""
CHARACTERS = 300
"""Of the beginning of a text."""
BARS = 8


def keep_samples(run: Run) -> Picture | pd.DataFrame:
    """Some training samples, drawn and kept; of text a table.

    Of labelled images some of each class; of captions images with what is said of them; of music piano rolls;
    of text the beginnings of some blocks, with where they are from.
    """
    splits = run.splits
    drawn = own.shown(run, "preview", splits, name="01_preview", title="Some of the data")
    if drawn is not None:
        return drawn
    if isinstance(splits, TensorSplits):
        return own.samples(splits)
    if isinstance(splits, ImageSplits):
        return _classes(run, splits)
    if isinstance(splits, CaptionSplits):
        return _captioned(run, splits)
    assert isinstance(splits, TokenSplits)
    return _rolls(run, splits) if isinstance(splits.tokenizer, MusicTokenizer) else _beginnings(splits)


def keep_counts(run: Run) -> Picture | pd.DataFrame:
    """How much there is in each split: images of each class, drawn and kept; of other data a table."""
    import pandas as pd

    from qnnkit import plots

    splits = run.splits
    if isinstance(splits, TensorSplits):
        return own.counts(splits)
    if isinstance(splits, ImageSplits):
        counts = {
            name: splits.split(name).labels.bincount(minlength=splits.n_classes).tolist() for name in SPLITS
        }
        figure = plots.class_balance(counts, splits.classes)
        told = "Images of each class in each split; in brackets, all of it."
        return run.keep(figure, "01_balance", "Class balance", told)
    rows: list[dict[str, Any]] = []
    for name in SPLITS:
        part = splits.split(name)
        if isinstance(splits, CaptionSplits):
            rows.append({"split": name, "images": len(part), "captions": sum(map(len, part.captions))})
        else:
            tokens, predicted = part.input_ids.numel(), part.n_predicted
            rows.append({"split": name, "blocks": len(part), "tokens": tokens, "predicted": predicted})
    return pd.DataFrame(rows).set_index("split")


def keep_sample(run: Run, per_class: int) -> None:
    """Writes a small class-balanced sample of the training images to the run folder, once, and says where.

    Args:
        run: The run.
        per_class: Images of each class; fewer where a class has fewer.
    """
    splits, folder = run.splits, run.folder / "sample"
    if not isinstance(splits, ImageSplits):
        print("A sample folder is made of labelled images only.")
        return
    if not folder.exists():
        fewest = int(splits.train.labels.bincount(minlength=splits.n_classes).min())
        write_sample(splits, folder, per_class=min(per_class, fewest), seed=run.config.seed)
    print("The sample is in", folder, "and is made once per run")


def _classes(run: Run, splits: ImageSplits) -> Picture:
    from qnnkit import plots

    train = splits.train
    figure = plots.class_samples(train.images.numpy(), train.labels.numpy(), splits.classes)
    return run.keep(figure, "01_classes", "Images of each class", "One class a row, from the training split.")


def _captioned(run: Run, splits: CaptionSplits) -> Picture:
    from qnnkit import plots

    train = splits.train
    titles = [captions[0] for captions in train.captions[:IMAGES]]
    figure = plots.labelled_images(train.images[:IMAGES].numpy(), titles)
    told = "The first of what is said of each, from the training split."
    return run.keep(figure, "01_captions", "Images and captions", told)


def _rolls(run: Run, splits: TokenSplits) -> Picture:
    from qnnkit import plots

    pieces = first_pieces(splits, "train", PIECES)
    rolls = {f"{piece.composer} {piece.name}": {"piece": piece.notes()} for piece in pieces}
    figure = plots.piano_roll(rolls, n_steps=16 * BARS)
    return run.keep(
        figure, "01_rolls", "Beginnings of pieces", f"The first {BARS} bars, a row for each piece."
    )


def _beginnings(splits: TokenSplits) -> pd.DataFrame:
    import pandas as pd

    train = splits.train
    step = max(1, len(train) // TEXTS)
    return pd.DataFrame(
        [
            {
                "from": train.sources[row],
                "begins": splits.tokenizer.decode(train.input_ids[row].tolist())[:CHARACTERS],
            }
            for row in range(0, len(train), step)[:TEXTS]
        ]
    )
