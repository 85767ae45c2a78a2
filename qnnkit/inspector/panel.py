"""`Inspector`: sliders and figures over a run, or the figures alone where no front end answers."""

from __future__ import annotations

import asyncio
import base64
import html
import threading
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

import numpy as np

from qnnkit import checks
from qnnkit.inspector import views
from qnnkit.inspector.source import Source
from qnnkit.inspector.views import DEPENDS, Choice, Views
from qnnkit.runs import Run

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

    def sentences(self) -> list[str]:
        """Whose weights are shown, what is missing, what training warned of, which weights cannot learn."""
        return views.sentences(self.source, self.choice)

    @cached_property
    def panel(self) -> Panel:
        """The single widgets, by which a program may do what a person does."""
        return Panel(self)

    @property
    def widget(self) -> Any:
        """The ipywidgets tree, made when first asked for."""
        return self.panel.whole

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from qnnkit import plots

        panel, chosen = self.panel, self.choice
        title = f"Inspector of {self.run.folder.name}: net {chosen.net}, seed {chosen.seed}, {chosen.layer}"
        view = {"version_major": 2, "version_minor": 0, "model_id": panel.whole.model_id}
        return {
            "text/plain": "\n".join([title, *self.sentences()]),
            "image/png": base64.b64encode(plots.stacked(panel.pictures())).decode(),
            "application/vnd.jupyter.widget-view+json": view,
        }


class Panel:
    """The widgets of an inspector, and the pictures of what they are set to.

    All is computed and drawn on the thread that made it, a kernel's own: what a widget calls back on another
    (JupyterLab's subshells) is put on that thread's event loop. There the widgets are read: so the newest
    counts, whatever came between.

    Args:
        inspector: Whose choice they change.
    """

    def __init__(self, inspector: Inspector):
        import ipywidgets as widgets

        self.inspector, self.views, self.following = inspector, Views(inspector.source), False
        self.thread = threading.get_ident()
        try:
            self.loop = asyncio.get_running_loop()
        except RuntimeError:  # in a program without one
            self.loop = None
        run, source, choice = inspector.run, inspector.source, inspector.choice
        style, wide = {"description_width": "100px"}, widgets.Layout(width="98%", max_width="640px")
        plain: dict[str, Any] = {"style": style, "layout": widgets.Layout(width="300px")}
        slider: dict[str, Any] = {"style": style, "layout": wide, "continuous_update": False}
        self.net = widgets.Dropdown(options=run.nets, description="Net", **plain)
        self.seed = widgets.Dropdown(options=list(run.seeds), description="Seed", **plain)
        self.layer = widgets.Dropdown(options=[choice.layer], description="Layer", **plain)
        self.weight = widgets.SelectionSlider(options=[("none", 0)], description="Weight", **slider)
        self.epoch = widgets.SelectionSlider(options=[("none", 0)], description="Epoch", **slider)
        labels = source.choosable[1].tolist()
        self.image = widgets.ToggleButtons(
            options=[(source.classes[label], place) for place, label in enumerate(labels)],
            description="Image of",
            style=style | {"button_width": "auto"},
        )
        angle: dict[str, float] = {"min": -np.pi, "max": np.pi, "step": np.pi / 50}
        self.shift = widgets.FloatSlider(description="Move by", style=style, layout=wide, **angle)
        self.refresh = widgets.Button(
            description="Refresh", tooltip="Read the run's folder again", icon="refresh"
        )
        self.message, self.moved, self.said = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self.pngs = {part: _picture(widgets, part) for part in DEPENDS}
        headings = (
            "What if the chosen weight were another?",
            "An image through the net",
            "Gradients of the chosen layer",
        )
        moving, image, layer = (widgets.HTML(HEADING.format(heading)) for heading in headings)
        self.moving = widgets.VBox([moving, self.shift, self.moved, self.pngs["what_if"]])
        wrap = widgets.Layout(flex_flow="row wrap", width="98%")
        top = widgets.HBox([self.net, self.seed, self.layer, self.refresh], layout=wrap)
        rows = [top, self.message, self.weight, self.pngs["circuit"], self.moving]
        rows += [image, self.image, self.said, self.pngs["image"], layer, self.epoch, self.pngs["gradients"]]
        self.whole = widgets.VBox(rows, layout=widgets.Layout(overflow="auto"))
        self.inputs = {name: getattr(self, name) for name in asdict(choice)}
        self._draw(choice, set(DEPENDS))
        self._offer(choice)
        for each in self.inputs.values():
            each.observe(lambda event: self._ask(), names="value")
        self.refresh.on_click(lambda button: self._ask(stale=True))

    def pictures(self) -> list[bytes]:
        """PNGs of what is shown, from top to bottom."""
        return [image.value for image in self.pngs.values() if image.layout.display != "none"]

    def _ask(self, stale: bool = False) -> None:
        if self.loop is None or threading.get_ident() == self.thread:
            self._follow(stale)
        else:
            self.loop.call_soon_threadsafe(self._follow, stale)

    def _follow(self, stale: bool) -> None:
        """Draws what the widgets are set to, where it differs from what is shown."""
        if self.following:  # what is set here, by `_set`
            return
        now, self.following = self.inspector.choice, True
        try:
            new, offer = self._wanted(now, stale)
            different = {name for name, value in asdict(new).items() if value != getattr(now, name)}
            if stale or different:
                self._draw(new, {part for part in DEPENDS if stale or DEPENDS[part] & different})
            self.inspector.choice = new
            if offer:
                self._offer(new)
        except Exception as error:  # whatever becomes of a folder while someone looks at it
            self._set(now)
            why = " ".join(str(error).split()) or type(error).__name__
            self._say([f"The pictures are as they were, because this could not be drawn: {why}"])
        finally:
            self.following = False

    def _wanted(self, now: Choice, stale: bool) -> tuple[Choice, bool]:
        """What the widgets are set to, and whether other weights and epochs are to be offered for it."""
        new = Choice(**{name: each.value for name, each in self.inputs.items()})
        source = self.inspector.source
        if stale:  # to the newest epoch of the same layer
            source.refresh()
            self.views = Views(source)
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
        pngs, sentences = self.views.redraw(choice, parts), views.sentences(self.inspector.source, choice)
        said = self.views.says(choice)
        for part, png in pngs.items():  # all that may fail has gone well
            self.pngs[part].layout.display = "none" if png is None else None
            if png is not None:
                self.pngs[part].value = png
        if pngs.get("what_if"):
            moves, there = self.views.move(choice)
            self.moved.value = (
                f"Loss on {moves.n_images} validation images: {moves.before.loss:.4f}, and "
                f"<b>{there.loss:.4f}</b> with the weight moved by {choice.shift:+.2f} rad."
            )
        self.said.value = html.escape(said, quote=False)
        self._say(sentences)

    def _say(self, sentences: list[str]) -> None:
        self.message.value = "<br>".join(html.escape(sentence, quote=False) for sentence in sentences)


def _picture(widgets: Any, part: str) -> Any:
    # Narrower than its least width nobody reads it: what has less room scrolls. The circuit is lower, so that
    # a weight, its gate and its move are on one screen of 900 pixels.
    least = {"max_height": "420px", "width": "auto"} if part == "circuit" else {"min_width": "620px"}
    fit = {"max_width": "98%", "height": "auto", "align_self": "flex-start", **least}
    return widgets.Image(format="png", layout=widgets.Layout(**fit))  # its own: each is hidden by itself
