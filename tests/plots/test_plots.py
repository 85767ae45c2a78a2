"""Figures: at real sizes nothing overlaps, every axis has a label, and no global state changes."""

import io
from unittest import mock

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from PIL import Image

from qnnkit import plots
from tests.toys import noise

LONG, MATHS = "alternaria_leaf_spot_on_apple", r"$\no maths$"
TITLE = f"{LONG}\nnot {MATHS}\n100 %"
CLASSES = {
    "one": ["one"],
    "arabic": list("ابتثجحخدذرزسشصضطظعغفقكلمنهوي"),
    "long": [LONG, "a", MATHS, "x" * 200, "W" * 40, "$"],
}
PIXEL = 1.0
SETTINGS = {name: value for name, value in mpl.rcParams.items() if "backend" not in name}


def layer_gradients():
    gradients = np.linspace(-2, 1, 30).reshape(6, 5) ** 3
    columns = {"epoch": np.repeat([1, 2, 3], 4), "step": np.arange(12) + 1, "norm": np.geomspace(1e-4, 1, 12)}
    for name, ratios in {"snr": (0.5, 0.4), "snr_low": (0.2, 0.1), "snr_high": (0.8, 0.9)}.items():
        columns[name] = np.repeat([*ratios, np.nan], 4)
    return plots.layer_gradients(pd.DataFrame(columns), (7, 12), gradients, 2)


def roll(n_steps: int, low: int = 48, high: int = 76) -> dict:
    notes = [(i, low + i * 5 % (high - low + 1), 1 + i % 7) for i in range(n_steps)]
    return {"given": notes[: n_steps // 2], "generated": notes[n_steps // 2 :]}


def confusion_of(names: list[str]):
    """Counts of four digits on the diagonal, and of two in the first row and column."""
    counts = np.diag([1087] * len(names))
    counts[0, 1:] = counts[1:, 0] = 88
    return plots.confusion(counts, names)


FIGURES = {
    **{f"confusion-{name}": lambda names=names: confusion_of(names) for name, names in CLASSES.items()},
    "confusion-many": lambda: plots.confusion(np.eye(31, dtype=int), [str(i) for i in range(31)]),
    "confusion-empty": lambda: plots.confusion(np.zeros((2, 2), dtype=int), ["a", "b"]),
    "layer_gradients": layer_gradients,
    "images-long": lambda: plots.labelled_images(noise(7, 3, 14, 14), [TITLE] * 7),
    "images-none": lambda: plots.labelled_images(noise(0, 1, 14, 14), []),
    "roll-three": lambda: plots.piano_roll({"(base)": roll(64), "(bach)": roll(200), "$ x": roll(9)}),
    "roll-wide": lambda: plots.piano_roll({"a": roll(40, 0, 127), "b": roll(40, 0, 127)}, n_steps=32),
    "roll-long": lambda: plots.piano_roll({"a": roll(2000)}),
    "roll-none": lambda: plots.piano_roll({"nothing": {"given": []}}),
}


def overlap(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether boxes of shapes (n, 4) and (m, 4) overlap pairwise by more than a pixel."""
    shared = np.minimum(one[:, None, 2:], other[:, 2:]) - np.maximum(one[:, None, :2], other[:, :2])
    both = (shared > PIXEL).all(-1)
    return bool(np.triu(both, 1).any() if one is other else both.any())


def legible(figure) -> None:
    """Asserts that no text overlaps or sticks out, and that every axes has room."""
    drawn, draw = [], Text.draw
    with mock.patch.object(Text, "draw", lambda text, *args: drawn.append(text) or draw(text, *args)):
        FigureCanvasAgg(figure).draw()
    inside = [text for axes in figure.axes if axes.axison for text in axes.texts]
    around = [text for text in drawn if text.get_visible() and text.get_text().strip() and text not in inside]
    labels, cells, axes = (
        np.array([each.get_window_extent().extents for each in artists]).reshape(-1, 4)
        for artists in (around, inside, figure.axes)
    )
    low, high = np.hsplit(np.concatenate([labels, cells]), 2)
    assert (low > -PIXEL).all() and (high < figure.bbox.size + PIXEL).all()
    for one, other in ((labels, labels), (cells, cells), (labels, axes), (axes, axes)):
        assert not overlap(one, other)
    assert (axes[:, 2:] - axes[:, :2] > 5).all()


@pytest.mark.parametrize("name", FIGURES)
def test_nothing_overlaps_or_sticks_out(name):
    legible(FIGURES[name]())


def test_axes_have_labels_and_a_png_leaves_no_state_behind():
    from matplotlib import pyplot

    backend, figure = mpl.get_backend(), FIGURES["confusion-one"]()
    names = [(axes.get_xlabel(), axes.get_ylabel()) for axes in figure.axes]
    assert names == [("predicted class", "true class"), ("", "test samples")]
    with Image.open(io.BytesIO(plots.as_png(figure, Title="Größe", Description="What it shows."))) as image:
        about = {"Title": "Größe", "Description": "What it shows.", "Software": "qnnkit"}
        assert about.items() <= image.text.items() and len(image.convert("L").getcolors()) > 1
    assert figure._repr_png_()[:8] == b"\x89PNG\r\n\x1a\n" and pyplot.get_fignums() == []
    assert {name: mpl.rcParams[name] for name in SETTINGS} == SETTINGS and mpl.get_backend() == backend


@pytest.mark.filterwarnings("ignore:The copy keyword is deprecated")  # from seaborn.objects, about pandas 3
def test_values_at_the_limit_of_a_score_stay_clear_of_the_frame():
    import seaborn.objects as so

    rows = {"net": ["a", "b"], "low": [0.0, 50.0], "high": [100.0, 100.0]}
    plot = so.Plot(rows, y="net").add(so.Range(), orient="y", xmin="low", xmax="high")
    figure = plots.stamped(plot.add(so.Dot(), x="high", color="net"), "stamp", 4, 2)
    assert figure.axes[0].get_xlim() == pytest.approx((-8, 108))
    legible(figure)
    [legend] = figure.legends
    assert not legend.get_window_extent().overlaps(figure.axes[0].get_window_extent())


def test_live_draws_at_first_soon_after_and_when_stopped(monkeypatch):
    """A slow first drawing, which imports modules, does not delay the second."""
    shown, clock = [], iter(range(0, 100, 2))
    monkeypatch.setattr("qnnkit.plots.picture.time.perf_counter", lambda: next(clock))
    monkeypatch.setattr("IPython.display.display", lambda figure, display_id: mock.Mock(update=shown.append))
    with pytest.raises(KeyboardInterrupt), plots.Live(lambda: object()) as live:  # each drawing takes 2 s
        live.update()
        live.update()  # too soon after one that took 2 s
        assert len(shown) == 1
        raise KeyboardInterrupt
    assert len(shown) == 2 and shown[0] is not shown[1]


# --- contents of the figures ----------------------------------------------------------------------------


def test_colour_images_keep_their_channels_and_confusion_rows_are_the_truth():
    image = np.zeros((2, 3, 2, 2), dtype=np.uint8)
    image[0, 0] = 255
    [axes, *_] = (figure := plots.labelled_images(image, ["red 赤", "black"])).axes
    assert plots.as_png(figure), "a letter that no font has raised matplotlib's warning"
    assert axes.images[0].get_array()[0, 0].tolist() == [255, 0, 0]
    assert (axes.get_title(), axes.images[0].get_clim()) == ("red 赤", (0, 255))
    figure = plots.confusion(np.array([[5, 1], [0, 7]]), ["a", "b"])
    cells = {text.get_position(): text.get_text() for text in figure.axes[0].texts}
    assert cells == {(0, 0): "5", (1, 0): "1", (1, 1): "7"}  # (column, row)


def test_a_roll_shows_its_notes():
    rows = {"a": {"given": [(0, 60, 4)], "new": [(4, 64, 2), (6, 48, 1)]}, "b": {"new": [(0, 55, 32)]}}
    figure = plots.piano_roll(rows)
    shown = [[segments.get_segments() for segments in axis.collections] for axis in figure.axes]
    notes = [[[(x0, x1, y0) for (x0, y0), (x1, _) in part] for part in parts] for parts in shown]
    assert notes == [[[(1, 1.225, 60)], [(1.25, 1.3625, 64), (1.375, 1.43125, 48)]], [[(1, 2 + 0.8, 55)]]]
    assert [(axis.get_xlim(), axis.get_ylim()) for axis in figure.axes] == [((1, 3), (46, 66))] * 2
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["given", "new"]
    assert [axis.get_xlabel() for axis in figure.axes] == ["", "bar of 16 sixteenths"]
    assert [figure.axes[1].yaxis.get_major_formatter()(pitch) for pitch in (48, 60)] == ["C3", "C4"]
