"""Piano rolls: nothing overlaps, axes are named, and they show the notes."""

from __future__ import annotations

import io

import matplotlib as mpl
import pytest
from PIL import Image

from qnnkit.plots.notes import piano_roll, pitch_name
from qnnkit.plots.picture import COLOURS, Picture, as_png
from tests.test_plots import legible


def roll(n_steps: int, low: int = 48, high: int = 76) -> dict:
    notes = [(i, low + i * 5 % (high - low + 1), 1 + i % 7) for i in range(n_steps)]
    return {"given": notes[: n_steps // 2], "generated": notes[n_steps // 2 :]}


THREE = {"chorale (base)": roll(64), "chorale (bach)": roll(200), "chorale (x)": roll(9)}

FIGURES = {
    "one": lambda: piano_roll({"a chorale": roll(64)}),
    "three": lambda: piano_roll(THREE),
    "voices": lambda: piano_roll({"a": {name: [(0, 50 + i, 16)] for i, name in enumerate("SATB")}}),
    "wide": lambda: piano_roll({"a": roll(40, 0, 127), "b": roll(40, 0, 127)}, n_steps=32),
    "long": lambda: piano_roll({"a": roll(6000)}),
    "none": lambda: piano_roll({"nothing": {"given": []}}),
    "one note": lambda: piano_roll({"$ one": {"given": [(3, 60, 1)]}}),
}


@pytest.mark.parametrize("name", FIGURES)
def test_nothing_overlaps_or_sticks_out(name):
    figure = FIGURES[name]()
    assert isinstance(figure, Picture) and any(axes.axison for axes in figure.axes)
    legible(figure)
    with Image.open(io.BytesIO(as_png(figure))) as image:
        assert image.format == "PNG" and max(image.size) < 2500


def test_axes_are_named():
    figure = FIGURES["three"]()
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "", "bar of 16 sixteenths"]
    assert figure._supylabel.get_text() == "pitch"
    assert [axes.get_title(loc="left") for axes in figure.axes] == list(THREE)


def test_a_roll_shows_its_notes():
    figure = piano_roll(
        {"a": {"given": [(0, 60, 4)], "new": [(4, 64, 2), (6, 48, 1)]}, "b": {"new": [(0, 55, 32)]}}
    )
    above, below = figure.axes
    shown = [[segments.get_segments() for segments in axis.collections] for axis in figure.axes]
    notes = [[[(x0, x1, y0) for (x0, y0), (x1, _) in part] for part in parts] for parts in shown]
    assert notes == [[[(1, 1.225, 60)], [(1.25, 1.3625, 64), (1.375, 1.43125, 48)]], [[(1, 2 + 0.8, 55)]]]
    colours = [tuple(part.get_color()[0]) for axis in figure.axes for part in axis.collections]
    given, new = (mpl.colors.to_rgba(COLOURS[i]) for i in (0, 1))
    assert colours == [given, new, new]
    assert above.get_xlim() == below.get_xlim() == (1, 3)
    assert above.get_ylim() == below.get_ylim() == (46, 66)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["given", "new"]
    labels = [text.get_text() for text in below.get_yticklabels()]
    assert {"C3", "C4"} <= set(labels)


def test_pitch_names():
    names = {0: "C-1", 21: "A0", 60: "C4", 61: "C♯4", 108: "C8", 127: "G9"}
    assert {pitch: pitch_name(pitch) for pitch in names} == names
