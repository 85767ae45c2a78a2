"""Piano rolls and matrices of losses: nothing overlaps, axes are named, and they show what they are given."""

from __future__ import annotations

import io

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

from qnnkit.plots.music import loss_matrices, piano_roll, pitch_name
from qnnkit.plots.picture import COLOURS, Picture
from tests.test_plots import legible


def one_matrix(nats, adapters, composers):
    return loss_matrices({"": np.asarray(nats, dtype=float)}, adapters, composers)


def roll(n_steps: int, low: int = 48, high: int = 76) -> dict:
    notes = [(i, low + i * 5 % (high - low + 1), 1 + i % 7) for i in range(n_steps)]
    return {"given": notes[: n_steps // 2], "generated": notes[n_steps // 2 :]}


THREE = {"chorale (base)": roll(64), "chorale (bach)": roll(200), "chorale (x)": roll(9)}
NATS = [[0.9, 1.0], [0.7, 1.2], [0.8, 0.95]]
MANY = ([f"adapter of {i}" for i in range(6)], [f"composer {i}" for i in range(10)])
HALF = np.array([[np.nan, np.nan], [0.012, 0.2], [0.1, 0.0004]])
KINDS = {"quantum_peft": np.array(NATS), "lora": np.array([*NATS[:2], [np.nan, np.nan]])}


def kinds(n: int = 1, **settings):
    panels = {f"{kind}{i or ''}": values for i in range(n) for kind, values in KINDS.items()}
    halves = dict.fromkeys(panels, HALF)
    names = ["base", "bach", "mozart"], ["bach", "mozart"]
    return loss_matrices(panels, *names, half_widths=halves, framed=[(1, 0), (2, 1)], **settings)


FIGURES = {
    "kinds": kinds,
    "kinds-many": lambda: kinds(4),
    "one": lambda: piano_roll({"a chorale": roll(64)}),
    "three": lambda: piano_roll(THREE),
    "voices": lambda: piano_roll({"a": {name: [(0, 50 + i, 16)] for i, name in enumerate("SATB")}}),
    "wide": lambda: piano_roll({"a": roll(40, 0, 127), "b": roll(40, 0, 127)}, n_steps=32),
    "long": lambda: piano_roll({"a": roll(6000)}),
    "none": lambda: piano_roll({"nothing": {"given": []}}),
    "one note": lambda: piano_roll({"$ one": {"given": [(3, 60, 1)]}}, steps_per_bar=12),
    "matrix": lambda: one_matrix(NATS, ["base", "bach", "mozart"], ["bach", "mozart"]),
    "matrix-one": lambda: one_matrix([[0.9]], ["base"], ["bach"]),
    "matrix-many": lambda: one_matrix(np.arange(60).reshape(6, 10) % 7 / 3, *MANY),
    "matrix-long": lambda: one_matrix(np.eye(3), ["W" * 40, "b", "$"], ["x" * 60, "y", "nottingham"]),
}


@pytest.mark.parametrize("name", FIGURES)
def test_nothing_overlaps_or_sticks_out(name):
    figure = FIGURES[name]()
    assert isinstance(figure, Picture) and any(axes.axison for axes in figure.axes)
    legible(figure)
    with Image.open(io.BytesIO(figure.png())) as image:
        assert image.format == "PNG" and max(image.size) < 2500


def test_axes_are_named():
    figure = FIGURES["three"]()
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "", "bar of 16 sixteenths"]
    assert figure._supylabel.get_text() == "pitch"
    assert [axes.get_title(loc="left") for axes in figure.axes] == list(THREE)
    matrix, bar = FIGURES["matrix"]().axes
    assert (matrix.get_xlabel(), matrix.get_ylabel()) == ("music of", "adapter")
    assert bar.get_ylabel() == "nats per token above the best"


def test_a_roll_shows_its_notes():
    figure = piano_roll(
        {"a": {"given": [(0, 60, 4)], "new": [(4, 64, 2), (6, 48, 1)]}, "b": {"new": [(0, 55, 32)]}}
    )
    above, below = figure.axes
    corners = [[path.get_extents() for path in bars.get_paths()] for bars in above.collections]
    shown = [[(box.x0, box.x1, (box.y0 + box.y1) / 2) for box in boxes] for boxes in corners]
    assert shown == [[(0, 4, 60)], [(4, 6, 64), (6, 7, 48)]]
    colours = [tuple(bars.get_facecolor()[0]) for bars in [*above.collections, *below.collections]]
    given, new = (mpl.colors.to_rgba(COLOURS[i]) for i in (0, 1))
    assert colours == [given, new, new]
    assert above.get_xlim() == below.get_xlim() == (0, 32)
    assert above.get_ylim() == below.get_ylim() == (46, 66)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["given", "new"]
    assert [text.get_text() for text in below.get_xticklabels()] == ["1", "2"]
    assert [text.get_text() for text in below.get_yticklabels()] == ["C3", "G3", "C4"]


def test_pitch_names():
    names = {0: "C-1", 21: "A0", 60: "C4", 61: "C♯4", 108: "C8", 127: "G9"}
    assert {pitch: pitch_name(pitch) for pitch in names} == names


def test_the_matrix_marks_the_best_of_each_column():
    axes = FIGURES["matrix"]().axes[0]
    cells = {(round(text.get_position()[1]), round(text.get_position()[0])): text for text in axes.texts}
    assert cells[1, 0].get_text() == "0.700" and cells[2, 1].get_text() == "0.950"
    assert [place for place, text in cells.items() if text.get_weight() == "bold"] == [(1, 0), (2, 1)]
    assert axes.images[0].get_array()[0].tolist() == pytest.approx([0.2, 0.05])


def test_a_panel_for_each_kind_with_its_intervals_and_frames():
    figure = kinds(rows="net")
    first, second, bar = figure.axes
    assert [axes.get_title(loc="left") for axes in (first, second)] == ["quantum_peft", "lora"]
    assert first.get_ylabel() == second.get_ylabel() == "net" and second.get_xlabel() == "music of"
    assert bar.get_ylabel() == "nats per token above the best"
    told = {text.get_text() for text in second.texts}
    assert told == {"0.900", "1.000", "0.700 ± 0.012", "1.200 ± 0.200"}, "nothing where nothing is known"
    frames = [
        [(round(patch.get_x() + 0.47), round(patch.get_y() + 0.44)) for patch in axes.patches]
        for axes in (first, second)
    ]
    assert frames == [[(0, 1), (1, 2)], [(0, 1)]]
    assert first.images[0].get_clim() == second.images[0].get_clim(), "one bar for all"
