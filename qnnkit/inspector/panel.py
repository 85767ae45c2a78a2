"""The inspector: widgets, and pictures of what they are set to."""

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
    """Shows a run, finished or not: gradients, circuit, images, and what one weight does.

    A notebook shows it as widgets; without a front end, it shows the same figures as a picture. The run's
    folder is only read. A program can set the widgets (`net`, `weight`, `shift`, ...) as a person does.

    Everything is computed and drawn on the thread that created the inspector, which is the kernel's own.
    Calls on another thread (JupyterLab's subshells) go to the event loop of this thread. It reads the widgets
    then, so that the newest value counts.

    Args:
        run: Run to show.
        net: Net to begin with; default: the run's main net.
        seed: Seed to begin with; default: the run's first.
        layer: Layer to begin with; default: the first circuit.

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
            step = "Read its gradients by gradients.read(run.folder).frame()."
            raise ValueError(checks.message("run", "have labelled images", run.splits.name, step))
        self.run, self.showing = run, False
        self.thread, self.loop = threading.get_ident(), None
        with contextlib.suppress(RuntimeError):  # a program without an event loop
            self.loop = asyncio.get_running_loop()
        views = Views(run, net, seed, layer)
        self._make(views)
        self._show(views, views.first)
        for widget in self.inputs.values():
            widget.observe(lambda event: self._follow(), names="value")

    def _make(self, views: Views) -> None:
        """Makes the widgets. The options of layers, weights and epochs follow from what is chosen."""
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
        # Narrower pictures would be unreadable, so they scroll instead. The circuit is lower, so that a
        # weight, its gate and its move fit on one screen of 900 pixels.
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
        """Sentences: which net is shown, what is missing, warnings of training, weights that cannot learn."""
        return self.views.sentences(self.choice.epoch)

    def pictures(self) -> list[bytes]:
        """PNGs of the visible pictures, from top to bottom."""
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
        """Shows what the widgets are set to. A new layer starts at its newest epoch and largest gradient."""
        if self.loop and threading.get_ident() != self.thread:
            self.loop.call_soon_threadsafe(self._follow)
            return
        if self.showing:  # set by `_show`, not by a person
            return
        self.showing, views, old = True, self.views, self.choice
        try:
            wanted = new = Choice(**{name: widget.value for name, widget in self.inputs.items()})
            if (new.net, new.seed, new.layer) != (old.net, old.seed, old.layer):
                layer = new.layer if (new.net, new.seed) == (old.net, old.seed) else None
                views = Views(self.run, new.net, new.seed, layer)
                new = replace(views.first, image=new.image, shift=new.shift)
            self._show(views, new, wanted)
        except Exception as error:  # a folder may change while it is shown
            self._set(old)
            why = " ".join(str(error).split()) or type(error).__name__
            self._say([f"The pictures have not changed, because the new ones could not be drawn: {why}"])
        finally:
            self.showing = False

    def _show(self, views: Views, choice: Choice, wanted: Choice | None = None) -> None:
        """Draws a choice. Widgets that ask for it are not set, as a person may already have moved them."""
        pngs, moved = views.redraw(choice)
        self.views, self.choice = views, choice  # nothing below can fail
        for part, widget in self.pngs.items():
            widget.layout.display = None if part in pngs else "none"
            widget.value = pngs.get(part, b"")
        self.moving.layout.display = "none" if views.circuit is None else None
        for widget, options in (
            (self.layer, views.layers),
            (self.weight, [(name, i) for i, name in enumerate(views.names)] or [("none", 0)]),
            (self.epoch, [(str(epoch) if epoch else "now", epoch) for epoch in views.training.epochs]),
        ):
            if list(widget.options) != options:
                widget.options, wanted = options, None
        if choice != wanted:
            self._set(choice)
        self.moved.value = moved
        self._say(self.sentences())

    def _set(self, choice: Choice) -> None:
        for name, value in asdict(choice).items():
            self.inputs[name].value = value

    def _say(self, sentences: list[str]) -> None:
        self.message.value = "<br>".join(html.escape(sentence, quote=False) for sentence in sentences)
