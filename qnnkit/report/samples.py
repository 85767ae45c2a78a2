"""What a run's data look like: pictures for the kind of data that they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qnnkit.data import ImageSplits, write_sample
from qnnkit.data.splits import SPLITS
from qnnkit.runs import Run

if TYPE_CHECKING:
    from qnnkit.plots import Picture


def keep_samples(run: Run) -> Picture:
    """Draws and keeps some training samples: images of each class."""
    from qnnkit import plots

    splits = run.splits
    assert isinstance(splits, ImageSplits)
    train = splits.train
    figure = plots.class_samples(train.images.numpy(), train.labels.numpy(), splits.classes)
    return run.keep(figure, "01_classes", "Images of each class", "One class a row, from the training split.")


def keep_counts(run: Run) -> Picture:
    """Draws and keeps how much there is in each split: images of each class."""
    from qnnkit import plots

    splits = run.splits
    assert isinstance(splits, ImageSplits)
    counts = {
        name: splits.split(name).labels.bincount(minlength=splits.n_classes).tolist() for name in SPLITS
    }
    figure = plots.class_balance(counts, splits.classes)
    told = "Images of each class in each split; in brackets, all of it."
    return run.keep(figure, "01_balance", "Class balance", told)


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
