"""The inspector itself: widgets, and the pictures of what they are set to."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import html
import threading
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from qnnkit import checks
from qnnkit.data import ImageSplits
from qnnkit.inspector.views import Choice, Views
from qnnkit.runs import Run


class Inspector:
    """Shows a run, whether finished or not: gradients, circuit, images, and what one weight does.

    A notebook shows it as widgets, and the same figures as a picture where nobody can move a slider. The
    run's folder is only read. A program may set the single widgets (`net`, `weight`, `shift`, ...) as a
    person does.

    Everything is computed and drawn on the thread that made it, a kernel's own: calls on another thread
    (JupyterLab's subshells) go to that thread's event loop. The widgets are read there, so the newest value
    counts.

    Args:
        run: Whose gradients and nets.
        net: Begins with this one; the run's own by default.
        seed: Begins with this one; the run's first by default.
        layer: Begins with this one; the first circuit by default.

    Raises:
        ValueError: The run has no such net, seed or layer, or no labelled images.

    Example:
        Inspector(run)  # as the last line of a cell
    """

    def __init__(self, run: Run, net: str | None = None, seed: int | None = None, layer: str | None = None):
        net, seed = net or run.nets[0], run.config.seed if seed is None else seed
        checks.choice("net", net, run.nets)
        checks.choice("seed", str(seed), [*map(str, run.seeds)])
        if not isinstance(run.splits, ImageSplits):
            step = "Its gradients are in gradients.read(run.folder).frame()."
            raise ValueError(checks.message("run", "be of labelled images", run.splits.name, step))
        self.run, self.showing = run, False
        self.thread, self.loop = threading.get_ident(), None
        with contextlib.suppress(RuntimeError):  # a program without a loop
            self.loop = asyncio.get_running_loop()
        views = Views(run, net, seed, layer)
        self._make(views)
        self._show(views, views.first)
        for each in self.inputs.values():
            each.observe(lambda event: self._follow(), names="value")

    def _make(self, views: Views) -> None:
        """The widgets; of layers, weights and epochs the options follow from what is chosen."""
        import ipywidgets as widgets

        style: dict[str, Any] = {"description_width": "100px"}
        plain: dict[str, Any] = {"style": style, "layout": {"width": "300px"}}
        layout = {"width": "98%", "max_width": "640px"}
        wide: dict[str, Any] = {"style": style, "layout": layout, "continuous_update": False}
        self.net = widgets.Dropdown(options=self.run.nets, description="Net", **plain)
        self.seed = widgets.Dropdown(options=list(self.run.seeds), description="Seed", **plain)
        self.layer = widgets.Dropdown(options=views.layers, description="Layer", **plain)
        self.weight = widgets.SelectionSlider(options=[("none", 0)], description="Weight", **wide)
        self.epoch = widgets.SelectionSlider(options=[("none", 0)], description="Epoch", **wide)
        images = [(views.classes[label], place) for place, label in enumerate(views.labels.tolist())]
        wide_buttons = {**style, "button_width": "auto"}
        self.image = widgets.ToggleButtons(options=images, description="Image of", style=wide_buttons)
        self.shift = widgets.FloatSlider(
            0, min=-np.pi, max=np.pi, step=np.pi / 50, description="Move by", **wide
        )
        self.inputs = {name: getattr(self, name) for name in asdict(views.first)}
        self.message, self.moved = widgets.HTML(), widgets.HTML()
        # Below their least width nobody can read them: they scroll instead. The circuit is lower, so that a
        # weight, its gate and its move are on one screen of 900 pixels.
        fit = {"max_width": "98%", "height": "auto", "align_self": "flex-start", "min_width": "620px"}
        low = fit | {"min_width": "auto", "max_height": "420px", "width": "auto"}
        looks = {"circuit": low, "what_if": fit, "image": fit, "gradients": fit}
        self.pngs = {part: widgets.Image(format="png", layout=look) for part, look in looks.items()}
        titles = ("An image through the net", "Gradients of the layer")
        image, layer = (widgets.HTML(f"<h4 style='margin: 12px 0 4px'>{title}</h4>") for title in titles)
        self.moving = widgets.VBox(
            [self.weight, self.pngs["circuit"], self.shift, self.moved, self.pngs["what_if"]]
        )
        top = widgets.HBox([self.net, self.seed, self.layer], layout={"flex_flow": "row wrap"})
        below = [image, self.image, self.pngs["image"], layer, self.epoch, self.pngs["gradients"]]
        self.widget = widgets.VBox([top, self.message, self.moving, *below], layout={"overflow": "auto"})

    def sentences(self) -> list[str]:
        """Whose weights are shown, what is missing, what training warned of, which weights cannot learn."""
        return self.views.sentences(self.choice.epoch)

    def pictures(self) -> list[bytes]:
        """PNGs of what is shown, from top to bottom."""
        return [image.value for image in self.pngs.values() if image.layout.display != "none"]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from qnnkit import plots

        view = {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}
        return {
            "text/plain": "\n".join([f"Inspector of {self.run.folder.name}", *self.sentences()]),
            "image/png": base64.b64encode(plots.stacked(self.pictures())).decode(),
            "application/vnd.jupyter.widget-view+json": view,
        }

    def _follow(self) -> None:
        """Shows what the widgets are set to; another layer with its newest epoch and largest gradient."""
        if self.loop and threading.get_ident() != self.thread:
            self.loop.call_soon_threadsafe(self._follow)
            return
        if self.showing:  # set by `_show`, not by a person
            return
        self.showing, views, old = True, self.views, self.choice
        try:
            asked = new = Choice(**{name: each.value for name, each in self.inputs.items()})
            if (new.net, new.seed, new.layer) != (old.net, old.seed, old.layer):
                layer = new.layer if (new.net, new.seed) == (old.net, old.seed) else None
                views = Views(self.run, new.net, new.seed, layer)
                new = replace(views.first, image=new.image, shift=new.shift)
            self._show(views, new, asked)
        except Exception as error:  # whatever becomes of a folder while someone looks at it
            self._set(old)
            why = " ".join(str(error).split()) or type(error).__name__
            self._say([f"The pictures are as they were, because this could not be drawn: {why}"])
        finally:
            self.showing = False

    def _show(self, views: Views, choice: Choice, asked: Choice | None = None) -> None:
        """Draws a choice; widgets are left alone where they ask for it: a person may have moved on."""
        pngs, moved = views.redraw(choice)
        self.views, self.choice = views, choice  # all that may fail has gone well
        for part, widget in self.pngs.items():
            widget.layout.display = None if part in pngs else "none"
            widget.value = pngs.get(part, b"")
        self.moving.layout.display = "none" if views.circuit is None else None
        for widget, options in (
            (self.layer, views.layers),
            (self.weight, [(name, i) for i, name in enumerate(views.names)] or [("none", 0)]),
            (self.epoch, [(str(epoch) if epoch else "as it is", epoch) for epoch in views.training.epochs]),
        ):
            if list(widget.options) != options:
                widget.options, asked = options, None
        if choice != asked:
            self._set(choice)
        self.moved.value = moved
        self._say(self.sentences())

    def _set(self, choice: Choice) -> None:
        for name, value in asdict(choice).items():
            self.inputs[name].value = value

    def _say(self, sentences: list[str]) -> None:
        self.message.value = "<br>".join(html.escape(sentence, quote=False) for sentence in sentences)
