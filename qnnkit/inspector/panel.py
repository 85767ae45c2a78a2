"""`Inspector`: sliders, buttons and figures over a run, or the figures alone where no front end answers."""

from __future__ import annotations

import base64
import contextlib
import functools
import html
import io
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from qnnkit import checks
from qnnkit.inspector import views
from qnnkit.inspector.source import Source
from qnnkit.inspector.views import Choice
from qnnkit.runs import Run

if TYPE_CHECKING:
    from qnnkit.plots import Picture

PARTS = ("gradients", "circuit", "image", "what_if")
REDRAWN = {
    **dict.fromkeys(("net", "seed", "refresh"), PARTS),
    **dict.fromkeys(("layer", "weight"), ("gradients", "circuit", "what_if")),
    **dict.fromkeys(("epoch", "step"), ("gradients", "circuit")),
    "image": ("image", "what_if"),
}
"""What a person changes -> what is drawn anew; moving the weight ("shift") draws only what moves."""
THUMBNAIL = 64
"""Pixels a side of the picture on a button."""
CHOSEN, FOCUS = "#D55E00", "#0072B2"

STYLE = """<style>
.{name}.jupyter-button {{width: 72px; height: 96px; padding: 70px 2px 0; line-height: 22px;
  border-radius: 4px; background: #f5f5f5 no-repeat 4px 4px / {side}px {side}px;
  color: #111; image-rendering: pixelated; overflow: hidden;}}
.{name}.jupyter-button:focus-visible {{outline: 3px solid {focus}; outline-offset: 1px;}}
.{name}-chosen.jupyter-button {{box-shadow: 0 0 0 3px {chosen} !important;}}
{pictures}
</style>"""

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
        self._tree: Any = None

    def figures(self) -> dict[str, Picture]:
        """Of what is chosen, as far as it has them: "gradients", "circuit", "image", "what_if"."""
        with self.alone():
            return views.figures(self.source, self.choice)

    def sentences(self) -> list[str]:
        """What is missing, what training warned of in the chosen epoch, which weights cannot learn."""
        with self.alone():
            return views.sentences(self.source, self.choice)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """One thread at a time: JupyterLab calls widgets back on several, beside the one that runs cells."""
        with self.lock:
            yield
        if self._tree is not None:
            self._tree.work()

    @property
    def widget(self) -> Any:
        """The ipywidgets tree, made when first asked for."""
        with self.lock:
            if self._tree is None:
                self._tree = Panel(self)
            return self._tree.whole

    @property
    def panel(self) -> Panel:
        """The single widgets, by which a program may do what a person does."""
        _ = self.widget
        return self._tree

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from qnnkit import plots

        panel, chosen = self.panel, self.choice
        told = f"Inspector of {self.run.folder.name}: net {chosen.net}, seed {chosen.seed}, {chosen.layer}"
        bundle: dict[str, Any] = {"text/plain": "\n".join([told, *self.sentences()])}
        with self.alone():
            bundle["image/png"] = base64.b64encode(plots.stacked(panel.pictures())).decode()
        view = {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}
        return bundle | {"application/vnd.jupyter.widget-view+json": view}


class Panel:
    """The widgets of an inspector; what they show comes from `views`, what is chosen stands in its `choice`.

    Whichever thread a widget calls back on only notes what was asked; of each widget the newest counts. One
    thread at a time does what is noted, in that order, and draws.

    Args:
        inspector: Whose choice they change.
    """

    def __init__(self, inspector: Inspector):
        import ipywidgets as widgets

        self.inspector, self.own = inspector, threading.local()  # own.sets: this thread sets widgets itself
        self.asked: dict[str, Any] = {}  # what a person changes -> to what, the oldest first
        self.sent: dict[str, Any] = {}  # when a front end sent the newest of each kind
        self.guard = threading.Lock()  # of both
        run, wide = inspector.run, widgets.Layout(width="98%", max_width="640px")
        style = {"description_width": "100px"}
        plain: dict[str, Any] = {"style": style, "layout": widgets.Layout(width="300px")}
        choice = inspector.choice
        self.net = widgets.Dropdown(options=run.nets, value=choice.net, description="Net", **plain)
        self.seed = widgets.Dropdown(options=list(run.seeds), value=choice.seed, description="Seed", **plain)
        self.layer = widgets.Dropdown(options=[choice.layer], description="Layer", **plain)
        slider: dict[str, Any] = {"options": [("none", 0)], "style": style, "layout": wide}
        self.weight = widgets.SelectionSlider(description="Weight", continuous_update=False, **slider)
        self.epoch = widgets.SelectionSlider(description="Epoch", continuous_update=False, **slider)
        self.step = widgets.SelectionSlider(description="Update", continuous_update=False, **slider)
        self.shift = widgets.FloatSlider(
            min=-np.pi, max=np.pi, step=np.pi / 50, description="Move by", style=style, layout=wide
        )
        self.refresh = widgets.Button(
            description="Refresh", tooltip="Read the run's folder again", icon="refresh"
        )
        self.told, self.moved = widgets.HTML(), widgets.HTML()
        self.gradients, self.image, self.what_if = (_picture(widgets, min_width="620px") for _ in range(3))
        # So that a weight, its gate and its move are on one screen of 900 pixels.
        self.circuit = _picture(widgets, max_height="420px", width="auto")
        self.headings = widgets.HTML(), widgets.HTML()
        self.images = self._buttons(widgets)
        wrap = widgets.Layout(flex_flow="row wrap", width="98%")
        gap = widgets.Layout(flex_flow="row wrap", width="98%", grid_gap="8px", padding="4px")
        self.moving = widgets.VBox([self.headings[1], self.shift, self.moved, self.what_if])
        self.whole = widgets.VBox(
            [
                widgets.HBox([self.net, self.seed, self.layer, self.refresh], layout=wrap),
                self.told,
                self.weight,
                self.circuit,
                self.moving,
                self.headings[0],
                self.style,
                widgets.HBox(self.images, layout=gap),
                self.image,
                widgets.HTML(HEADING.format("Gradients of the chosen layer")),
                self.epoch,
                self.step,
                self.gradients,
            ],
            layout=widgets.Layout(overflow="auto"),
        )
        self._draw(*PARTS)
        self._offer()
        for what in ("net", "seed", "layer", "weight", "epoch", "step", "shift"):
            getattr(self, what).observe(functools.partial(self._ask, what), names="value")
        self.refresh.on_click(functools.partial(self._ask, "refresh"))

    def _buttons(self, widgets: Any) -> list[Any]:
        """A button per image, its picture in a style sheet: reached by Tab, pressed by Enter or Space."""
        images, labels = self.inspector.source.choosable
        self.told_classes = [self.inspector.source.class_name(int(label)) for label in labels]
        self.style = widgets.HTML()
        name = f"qnnkit-{self.style.model_id[:8]}"
        pictures = "\n".join(
            f'.{name}-{i} {{background-image: url("{_thumbnail(image.numpy())}") !important;}}'
            for i, image in enumerate(images)
        )
        self.style.value = STYLE.format(
            name=name, side=THUMBNAIL, focus=FOCUS, chosen=CHOSEN, pictures=pictures
        )
        self.chosen_class, found = f"{name}-chosen", []
        for i, told in enumerate(self.told_classes):
            button = widgets.Button(description=told, tooltip=f"Image {i} of class {told}")
            button.add_class(name)
            button.add_class(f"{name}-{i}")
            button.on_click(lambda _, place=i: self._ask("image", {"new": place}))
            found.append(button)
        return found

    def pictures(self) -> list[bytes]:
        """PNGs of what is shown, from top to bottom."""
        images = (self.circuit, self.what_if, self.image, self.gradients)
        return [image.value for image in images if image.layout.display != "none"]

    # --- what may be chosen -----------------------------------------------------------------------

    def _offer(self) -> None:
        """Sets what every widget offers and shows to what is chosen; nobody is told of it."""
        source, choice = self.inspector.source, self.inspector.choice
        net, training = source.net(choice.net, choice.seed), source.training(choice.net, choice.seed)
        names, steps = net.weight_names(choice.layer), training.steps(choice.epoch)
        with self._setting():
            self.layer.options = list(net.layers)
            self.net.value, self.seed.value, self.layer.value = choice.net, choice.seed, choice.layer
            offered = (
                (self.weight, [(name, i) for i, name in enumerate(names)] or [("none", 0)], choice.weight),
                (
                    self.epoch,
                    [("as it is", 0) if epoch == 0 else (str(epoch), epoch) for epoch in training.epochs],
                    choice.epoch,
                ),
                (self.step, [("all", 0), *((str(step), i) for i, step in enumerate(steps, 1))], choice.step),
            )
            for slider, options, value in offered:
                if list(slider.options) != options:
                    slider.options = options
                slider.value, slider.disabled = value, len(options) < 2
            self.shift.value = choice.shift
            self.headings[0].value = HEADING.format(f"An image through the net {net.told}: press one")
            heading = f"What if the chosen weight were another, in the net {net.told}?"
            self.headings[1].value = HEADING.format(heading)
            self.moving.layout.display = None if names else "none"
            for i, button in enumerate(self.images):
                chosen = i == choice.image
                (button.add_class if chosen else button.remove_class)(self.chosen_class)
                button.description = f"✓ {self.told_classes[i]}" if chosen else self.told_classes[i]

    def _draw(self, *parts: str) -> None:
        """Draws some of `PARTS` anew."""
        source, choice = self.inspector.source, self.inspector.choice
        draw = {"gradients": views.of_layer, "circuit": views.of_circuit, "image": views.of_image}
        drawn = {part: draw[part](source, choice) for part in parts if part in draw}
        pngs = {part: figure and figure.png() for part, figure in drawn.items()}
        sentences = views.sentences(source, choice)
        if "what_if" in parts:
            self.moves = views.what_if(source, choice)
            self._move()
        for part, png in pngs.items():  # all that may fail has gone well
            _show(getattr(self, part), png)
        self._tell(sentences)

    def _tell(self, sentences: Sequence[str]) -> None:
        self.told.value = "<br>".join(html.escape(sentence, quote=False) for sentence in sentences)

    def _undo(self, choice: Choice, error: Exception) -> None:
        """Back to a former choice, as far as what is left of the run allows; the reason is told."""
        self.inspector.choice = choice
        with self._setting():
            self.net.value, self.seed.value = choice.net, choice.seed
        with contextlib.suppress(Exception):  # the reason is the same, and is told below
            self._offer()
        why = " ".join(str(error).split()) or type(error).__name__
        self._tell([f"The pictures are as they were, because this could not be drawn: {why}"])

    def _move(self) -> None:
        """Shows what the chosen shift does."""
        if self.moves is None:
            _show(self.what_if, None)
            return
        (moves, figure), shift = self.moves, self.inspector.choice.shift
        there = moves.at(shift) if shift else moves.before
        figure.move(shift, there.values, there.class_probs, there.loss)
        _show(self.what_if, figure.png())
        self.moved.value = (
            f"The net {moves.told}, on {moves.n_images} validation images: loss {moves.before.loss:.4f}, "
            f"and <b>{there.loss:.4f}</b> with the weight moved by {shift:+.2f} rad."
        )

    # --- whose turn it is --------------------------------------------------------------------------

    @contextlib.contextmanager
    def _setting(self) -> Iterator[None]:
        """What this thread sets inside is nothing that a person does."""
        self.own.sets = True
        try:
            yield
        finally:
            self.own.sets = False

    def _ask(self, what: str, event: Any) -> None:
        """Notes what a person does, and does it unless another thread is at work, which then will."""
        if getattr(self.own, "sets", False):
            return
        value, sent = event["new"] if isinstance(event, dict) else None, _sent()
        with self.guard:
            if sent is not None:
                if sent < self.sent.get(what, sent):
                    return  # threads overtake one another
                self.sent[what] = sent
            self.asked.pop(what, None)  # the newest counts, and comes last
            self.asked[what] = value
        self.work()

    def work(self) -> None:
        """Does what is asked, until nothing is."""
        lock = self.inspector.lock
        while self.asked and lock.acquire(blocking=False):
            try:
                while (asked := self._next()) is not None:
                    before = self.inspector.choice
                    try:
                        self._do(*asked)
                    except Exception as error:  # whatever becomes of a folder while someone looks at it
                        self._undo(before, error)
            finally:
                lock.release()

    def _next(self) -> tuple[str, Any] | None:
        with self.guard:
            what = next(iter(self.asked), None)
            return None if what is None else (what, self.asked.pop(what))

    def _do(self, what: str, value: Any) -> None:
        """What a person asks for; nothing where it is of a net or layer that was chosen before."""
        source, now = self.inspector.source, self.inspector.choice
        if what == "shift":
            self.inspector.choice = replace(now, shift=value)
            self._move()
            return
        if what in ("net", "seed", "layer"):
            if what == "layer" and value not in source.net(now.net, now.seed).layers:
                return
            found = views.first_choice(source, **{"net": now.net, "seed": now.seed, what: value})
            found = replace(found, image=now.image, shift=now.shift)
        elif what == "refresh":  # to the newest epoch of the same layer
            source.refresh()
            found = replace(now, epoch=source.training(now.net, now.seed).epochs[-1], step=0)
        else:
            if what != "image" and value not in dict(getattr(self, what).options).values():
                return
            found = replace(now, **({"step": 0} if what == "epoch" else {}), **{what: value})
        self.inspector.choice = found
        self._draw(*REDRAWN[what])
        self._offer()


def _sent() -> Any:
    """When a front end sent the message that this thread answers; None without one."""
    from IPython import get_ipython

    try:
        return get_ipython().kernel.get_parent()["header"]["date"]  # pyright: ignore
    except (AttributeError, KeyError, TypeError):  # no kernel, or not within a message
        return None


def _show(image: Any, png: bytes | None) -> None:
    """A picture in an image widget, or nothing in its place."""
    image.layout.display = "none" if png is None else None
    if png is not None:
        image.value = png


def _picture(widgets: Any, **least: str) -> Any:
    # Narrower than its least width nobody reads it: what has less room scrolls.
    fit = {"max_width": "98%", "height": "auto", "align_self": "flex-start", **least}
    return widgets.Image(format="png", layout=widgets.Layout(**fit))  # its own: each is hidden by itself


def _thumbnail(image: np.ndarray) -> str:
    """An image of shape (channels, height, width) as a data: URI, at most `THUMBNAIL` pixels a side."""
    from PIL import Image

    grey = image.shape[0] == 1
    small = Image.fromarray(image[0] if grey else np.moveaxis(image, 0, -1))
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    small.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
