"""Widgets for gradients: which gates learn, how a net sees an image, what one weight does."""

from qnnkit.inspector.panel import Inspector
from qnnkit.inspector.views import Choice

__all__ = ["Choice", "Inspector"]
"""`Inspector`: sliders and figures over a run, or the figures alone where no front end answers."""
