"""`Inspector`: sliders and figures over a run, or the figures alone where no front end answers."""

from __future__ import annotations

import base64
import contextlib
import html
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

import numpy as np

from qnnkit import checks
from qnnkit.inspector import views
from qnnkit.inspector.source import Source
from qnnkit.inspector.views import Choice
from qnnkit.runs import Run

LAYER = {"net", "seed", "layer", "weight", "epoch"}
DEPENDS = {
    "circuit": LAYER,
    "what_if": LAYER - {"epoch"} | {"image"},
    "image": {"net", "seed", "image"},
    "gradients": LAYER,
}
"""Figure -> what it shows; moving the weight ("shift") draws only what moves. From top to bottom."""
HEADING = "<h4 style='margin: 12px 0 4px'>{}</h4>"


class Inspector:
    """Looks into a run, be it finished, under way or only begun: gradients, circuit, images, what if.

    A notebook shows it as widgets, and the same figures as a picture where nobody can move a slider. The
    run's folder is only read.

    Args:
        run: Whose gradients and nets.
        net: Begins with this one; the run's own by default.
        seed: Begins with this one; the run's first by default.
        layer: Begins with this one; the first circuit by default.

    Raises:
        ValueError: The run has no such net, seed or layer.

    Example:
        Inspector(run)  # as the last line of a cell
    """

    def __init__(self, run: Run, net: str | None = None, seed: int | None = None, layer: str | None = None):
        net, seed = net or run.nets[0], run.config.seed if seed is None else seed
        checks.choice("net", net, run.nets)
        if seed not in run.seeds:
            step = f"The run has {run.seeds.start} to {run.seeds.stop - 1}."
            raise ValueError(checks.message("seed", "be one of the run's", seed, step))
        self.run, self.source = run, Source(run)
        self.choice = views.first_choice(self.source, net, seed, layer)
        self.lock = threading.Lock()

    def sentences(self) -> list[str]:
        """Whose weights are shown, what is missing, what training warned of, which weights cannot learn."""
        with self._alone():
            return views.sentences(self.source, self.choice)

    @cached_property
    def panel(self) -> Panel:
        """The single widgets, by which a program may do what a person does."""
        with self.lock:
            return Panel(self)

    @property
    def widget(self) -> Any:
        """The ipywidgets tree, made when first asked for."""
        return self.panel.whole

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One thread at a time: JupyterLab calls widgets back on several, beside the one that runs cells."""
        with self.lock:
            yield
        if "panel" in vars(self):
            self.panel.work()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from qnnkit import plots

        panel, chosen = self.panel, self.choice
        title = f"Inspector of {self.run.folder.name}: net {chosen.net}, seed {chosen.seed}, {chosen.layer}"
        bundle: dict[str, Any] = {"text/plain": "\n".join([title, *self.sentences()])}
        with self._alone():
            bundle["image/png"] = base64.b64encode(plots.stacked(panel.pictures())).decode()
        view = {"version_major": 2, "version_minor": 0, "model_id": panel.whole.model_id}
        return bundle | {"application/vnd.jupyter.widget-view+json": view}


class Panel:
    """The widgets of an inspector, and the figures of what they are set to.

    Whichever thread a widget calls back on only notes that something has changed. One thread at a time reads
    what the widgets are set to by then, and draws what differs: so the newest counts, whatever came between.

    Args:
        inspector: Whose choice they change.
    """

    def __init__(self, inspector: Inspector):
        import ipywidgets as widgets

        self.inspector, self.changed, self.stale = inspector, False, False
        run, choice, labels = inspector.run, inspector.choice, inspector.source.choosable[1].tolist()
        style, wide = {"description_width": "100px"}, widgets.Layout(width="98%", max_width="640px")
        plain: dict[str, Any] = {"style": style, "layout": widgets.Layout(width="300px")}
        slider: dict[str, Any] = {"style": style, "layout": wide, "continuous_update": False}
        self.net = widgets.Dropdown(options=run.nets, description="Net", **plain)
        self.seed = widgets.Dropdown(options=list(run.seeds), description="Seed", **plain)
        self.layer = widgets.Dropdown(options=[choice.layer], description="Layer", **plain)
        self.weight = widgets.SelectionSlider(options=[("none", 0)], description="Weight", **slider)
        self.epoch = widgets.SelectionSlider(options=[("none", 0)], description="Epoch", **slider)
        names = [(inspector.source.class_name(label), place) for place, label in enumerate(labels)]
        self.image = widgets.ToggleButtons(
            options=names, description="Image of", style=style | {"button_width": "auto"}
        )
        self.shift = widgets.FloatSlider(
            min=-np.pi, max=np.pi, step=np.pi / 50, description="Move by", style=style, layout=wide
        )
        self.refresh = widgets.Button(
            description="Refresh", tooltip="Read the run's folder again", icon="refresh"
        )
        self.message, self.moved = widgets.HTML(), widgets.HTML()
        self.pngs = {part: _picture(widgets, part) for part in DEPENDS}
        wrap = widgets.Layout(flex_flow="row wrap", width="98%")
        heading = widgets.HTML(HEADING.format("What if the chosen weight were another?"))
        self.moving = widgets.VBox([heading, self.shift, self.moved, self.pngs["what_if"]])
        self.whole = widgets.VBox(
            [
                widgets.HBox([self.net, self.seed, self.layer, self.refresh], layout=wrap),
                self.message,
                self.weight,
                self.pngs["circuit"],
                self.moving,
                widgets.HTML(HEADING.format("An image through the net")),
                self.image,
                self.pngs["image"],
                widgets.HTML(HEADING.format("Gradients of the chosen layer")),
                self.epoch,
                self.pngs["gradients"],
            ],
            layout=widgets.Layout(overflow="auto"),
        )
        self.inputs = {name: getattr(self, name) for name in asdict(choice)}
        self._draw(choice, set(DEPENDS))
        self._offer(choice)
        for each in self.inputs.values():
            each.observe(self._ask, names="value")
        self.refresh.on_click(self._ask_to_refresh)

    def pictures(self) -> list[bytes]:
        """PNGs of what is shown, from top to bottom."""
        return [image.value for image in self.pngs.values() if image.layout.display != "none"]

    def work(self) -> None:
        """Follows what was changed, until nothing is; returns at once where another thread does so."""
        lock = self.inspector.lock
        while self.changed and lock.acquire(blocking=False):
            try:
                self.changed = False
                self._follow()
            finally:
                lock.release()

    def _ask(self, event: Any) -> None:
        self.changed = True
        self.work()

    def _ask_to_refresh(self, button: Any) -> None:
        self.stale = True
        self._ask(button)

    def _follow(self) -> None:
        now = self.inspector.choice
        try:
            new, offer = self._wanted(now)
            different = {name for name, value in asdict(new).items() if value != getattr(now, name)}
            parts = set(DEPENDS) if self.stale else {p for p in DEPENDS if DEPENDS[p] & different}
            if parts:
                self._draw(new, parts)
            elif different:
                self._move(new)
            self.inspector.choice, self.stale = new, False
            if offer:
                self._offer(new)
        except Exception as error:  # whatever becomes of a folder while someone looks at it
            self.stale = False
            self._set(now)
            why = " ".join(str(error).split()) or type(error).__name__
            self._say([f"The pictures are as they were, because this could not be drawn: {why}"])

    def _wanted(self, now: Choice) -> tuple[Choice, bool]:
        """What the widgets are set to, and whether other weights and epochs are to be offered for it."""
        new, source = (
            Choice(**{name: each.value for name, each in self.inputs.items()}),
            self.inspector.source,
        )
        if self.stale:  # to the newest epoch of the same layer
            source.refresh()
            return replace(new, epoch=source.training(new.net, new.seed).epochs[-1]), True
        if (new.net, new.seed, new.layer) == (now.net, now.seed, now.layer):
            return new, False
        layer = new.layer if (new.net, new.seed) == (now.net, now.seed) else None
        found = views.first_choice(source, new.net, new.seed, layer)
        return replace(found, image=new.image, shift=new.shift), True

    def _offer(self, choice: Choice) -> None:
        """Sets what every widget offers and shows to what is chosen."""
        net = self.inspector.source.net(choice.net, choice.seed)
        epochs = self.inspector.source.training(choice.net, choice.seed).epochs
        names = net.weight_names(choice.layer)
        self.moving.layout.display = None if names else "none"
        for widget, options in (
            (self.layer, list(net.layers)),
            (self.weight, [(name, i) for i, name in enumerate(names)] or [("none", 0)]),
            (self.epoch, [(str(epoch) if epoch else "as it is", epoch) for epoch in epochs]),
        ):
            if list(widget.options) != options:
                widget.options = options
            widget.disabled = len(options) < 2
        self._set(choice)

    def _set(self, choice: Choice) -> None:
        for name, value in asdict(choice).items():
            self.inputs[name].value = value

    def _draw(self, choice: Choice, parts: set[str]) -> None:
        source = self.inspector.source
        draw = {"gradients": views.of_layer, "circuit": views.of_circuit, "image": views.of_image}
        drawn = {part: draw[part](source, choice) for part in draw if part in parts}
        pngs = {part: figure and figure.png() for part, figure in drawn.items()}
        sentences = views.sentences(source, choice)
        if "what_if" in parts:
            self.moves = views.what_if(source, choice)
            self._move(choice)
        for part, png in pngs.items():  # all that may fail has gone well
            self._show(part, png)
        self._say(sentences)

    def _move(self, choice: Choice) -> None:
        """Shows what the chosen shift does."""
        if self.moves is None:
            self._show("what_if", None)
            return
        (moves, figure), shift = self.moves, choice.shift
        there = moves.at(shift) if shift else moves.before
        figure.move(shift, there.values, there.class_probs, there.loss)
        self._show("what_if", figure.png())
        self.moved.value = (
            f"Loss on {moves.n_images} validation images: {moves.before.loss:.4f}, and "
            f"<b>{there.loss:.4f}</b> with the weight moved by {shift:+.2f} rad."
        )

    def _show(self, part: str, png: bytes | None) -> None:
        """A picture, or nothing in its place."""
        self.pngs[part].layout.display = "none" if png is None else None
        if png is not None:
            self.pngs[part].value = png

    def _say(self, sentences: list[str]) -> None:
        self.message.value = "<br>".join(html.escape(sentence, quote=False) for sentence in sentences)


def _picture(widgets: Any, part: str) -> Any:
    # Narrower than its least width nobody reads it: what has less room scrolls. The circuit is lower, so that
    # a weight, its gate and its move are on one screen of 900 pixels.
    least = {"max_height": "420px", "width": "auto"} if part == "circuit" else {"min_width": "620px"}
    fit = {"max_width": "98%", "height": "auto", "align_self": "flex-start", **least}
    return widgets.Image(format="png", layout=widgets.Layout(**fit))  # its own: each is hidden by itself
