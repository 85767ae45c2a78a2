"""`Inspector`: sliders and figures over a run, or the figures alone where no front end answers."""

from __future__ import annotations

import asyncio
import base64
import contextlib
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

    Everything is computed and drawn on the thread that made it, a kernel's own: calls on another thread
    (JupyterLab's subshells) go to that thread's event loop. The widgets are read there, so the newest value
    counts.

    Args:
        inspector: Whose choice they change.
    """

    def __init__(self, inspector: Inspector):
        import ipywidgets as widgets

        self.inspector, self.views, self.showing = inspector, Views(inspector.source), False
        self.thread, self.loop = threading.get_ident(), None
        with contextlib.suppress(RuntimeError):  # a program without a loop
            self.loop = asyncio.get_running_loop()
        run, source, choice = inspector.run, inspector.source, inspector.choice
        style: dict[str, Any] = {"description_width": "100px"}
        plain: dict[str, Any] = {"style": style, "layout": {"width": "300px"}}
        wide: dict[str, Any] = {"style": style, "layout": {"width": "98%", "max_width": "640px"}}
        wide["continuous_update"] = False
        none, angle = [("none", 0)], {"min": -np.pi, "max": np.pi, "step": np.pi / 50}
        images = [(source.classes[label], place) for place, label in enumerate(source.choosable[1].tolist())]
        self.net = widgets.Dropdown(options=run.nets, description="Net", **plain)
        self.seed = widgets.Dropdown(options=list(run.seeds), description="Seed", **plain)
        self.layer = widgets.Dropdown(options=[choice.layer], description="Layer", **plain)
        self.weight = widgets.SelectionSlider(options=none, description="Weight", **wide)
        self.epoch = widgets.SelectionSlider(options=none, description="Epoch", **wide)
        self.image = widgets.ToggleButtons(
            options=images, description="Image of", style=style | {"button_width": "auto"}
        )
        self.shift = widgets.FloatSlider(description="Move by", **wide, **angle)
        self.refresh = widgets.Button(
            description="Refresh", tooltip="Read the run's folder again", icon="refresh"
        )
        self.message, self.moved, self.said = widgets.HTML(), widgets.HTML(), widgets.HTML()
        # Below their least width nobody can read them: they scroll instead. The circuit is lower, so that a
        # weight, its gate and its move are on one screen of 900 pixels.
        least = {part: {"min_width": "620px"} for part in DEPENDS} | {
            "circuit": {"max_height": "420px", "width": "auto"}
        }
        fit = {"max_width": "98%", "height": "auto", "align_self": "flex-start"}
        self.pngs = {part: widgets.Image(format="png", layout=fit | least[part]) for part in DEPENDS}

        def heading(text: str) -> Any:
            return widgets.HTML(f"<h4 style='margin: 12px 0 4px'>{text}</h4>")

        top = widgets.HBox([self.net, self.seed, self.layer, self.refresh])
        top.layout.flex_flow = "row wrap"
        what_if = heading("What if the chosen weight were another?")
        self.moving = widgets.VBox([what_if, self.shift, self.moved, self.pngs["what_if"]])
        self.whole = widgets.VBox(
            [
                *(top, self.message, self.weight, self.pngs["circuit"], self.moving),
                *(heading("An image through the net"), self.image, self.said, self.pngs["image"]),
                *(heading("Gradients of the chosen layer"), self.epoch, self.pngs["gradients"]),
            ],
            layout={"overflow": "auto"},
        )
        self.inputs = {name: getattr(self, name) for name in asdict(choice)}
        self._show(choice)
        for each in self.inputs.values():
            each.observe(lambda event: self._ask(), names="value")
        self.refresh.on_click(lambda button: self._ask(refresh=True))

    def pictures(self) -> list[bytes]:
        """PNGs of what is shown, from top to bottom."""
        return [image.value for image in self.pngs.values() if image.layout.display != "none"]

    def _ask(self, refresh: bool = False) -> None:
        if self.loop is None or threading.get_ident() == self.thread:
            self._follow(refresh)
        else:
            self.loop.call_soon_threadsafe(self._follow, refresh)

    def _follow(self, refresh: bool) -> None:
        """Shows what the widgets are set to."""
        if self.showing:  # set by `_show`, not by a person
            return
        self.showing = True
        try:
            asked = Choice(**{name: each.value for name, each in self.inputs.items()})
            self._show(self._wanted(asked, refresh), asked)
        except Exception as error:  # whatever becomes of a folder while someone looks at it
            self._set(self.inspector.choice)
            why = " ".join(str(error).split()) or type(error).__name__
            self._say([f"The pictures are as they were, because this could not be drawn: {why}"])
        finally:
            self.showing = False

    def _wanted(self, new: Choice, refresh: bool) -> Choice:
        """What the widgets are set to; of another net or layer its newest epoch and largest gradient."""
        old, source = self.inspector.choice, self.inspector.source
        if refresh:
            source.refresh()
            self.views = Views(source)
            return replace(new, epoch=source.training(new.net, new.seed).epochs[-1])
        if (new.net, new.seed, new.layer) == (old.net, old.seed, old.layer):
            return new
        layer = new.layer if (new.net, new.seed) == (old.net, old.seed) else None
        first = views.first_choice(source, new.net, new.seed, layer)
        return replace(first, image=new.image, shift=new.shift)

    def _show(self, choice: Choice, asked: Choice | None = None) -> None:
        """Draws a choice; widgets are left alone where they ask for it: a person may have moved on."""
        source, pngs, said = self.inspector.source, self.views.redraw(choice), self.views.says(choice)
        sentences = views.sentences(source, choice)
        net, epochs = source.net(choice.net, choice.seed), source.training(choice.net, choice.seed).epochs
        weights = [(name, i) for i, name in enumerate(net.weight_names(choice.layer))]
        self.inspector.choice = choice  # all that may fail has gone well
        for part, png in pngs.items():
            self.pngs[part].layout.display = "none" if png is None else None
            self.pngs[part].value = self.pngs[part].value if png is None else png
        self.moving.layout.display = None if weights else "none"
        for widget, options in (
            (self.layer, list(net.layers)),
            (self.weight, weights or [("none", 0)]),
            (self.epoch, [(str(epoch) if epoch else "as it is", epoch) for epoch in epochs]),
        ):
            if list(widget.options) != options:
                widget.options, asked = options, None
            widget.disabled = len(options) < 2
        if choice != asked:
            self._set(choice)
        self.moved.value = self.views.moved(choice) if weights else ""
        self.said.value = html.escape(said, quote=False)
        self._say(sentences)

    def _set(self, choice: Choice) -> None:
        for name, value in asdict(choice).items():
            self.inputs[name].value = value

    def _say(self, sentences: list[str]) -> None:
        self.message.value = "<br>".join(html.escape(sentence, quote=False) for sentence in sentences)
