"""What a trained net makes of the test split, and where it errs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qnnkit.data import ImageSplits
from qnnkit.report.run import predict
from qnnkit.runs import Run

if TYPE_CHECKING:
    from qnnkit.plots import Picture


def keep_mistakes(run: Run, n_worst: int) -> list[Picture]:
    """Draws and keeps what the run's own net, first seed, says of the test split.

    Args:
        run: Whose net is trained.
        n_worst: Examples to show of what it gets most wrong.

    Returns:
        Of images the confusion matrix and the most wrong ones.
    """
    from qnnkit import plots

    splits = run.splits
    assert isinstance(splits, ImageSplits)
    found = predict(run)
    figure = plots.confusion(found.confusion(), splits.classes)
    told = "Test images, first seed; rows are the truth, and off the diagonal is wrong."
    kept = [run.keep(figure, "05_confusion", "Confusion matrix", told)]
    worst, test, names = found.worst(n_worst), splits.test, splits.classes
    titles = [
        f"{names[found.labels[i]]}, not {names[found.predicted[i]]}\n"
        f"({100 * found.class_probs[i].max():.0f} % sure)\n{test.sources[i]}"
        for i in worst
    ]
    figure = plots.labelled_images(test.images.numpy()[worst], titles)
    told = "The truth, what the net says and how sure it is, and the file."
    return [*kept, run.keep(figure, "06_worst", "Most wrong", told)]
