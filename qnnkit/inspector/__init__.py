"""Widgets for gradients: which gates learn, how a net sees an image, what one weight does."""

from qnnkit.inspector.panel import Inspector
from qnnkit.inspector.views import Choice

__all__ = ["Choice", "Inspector"]
"""`Inspector` shows sliders and figures of a run, or only the figures if no front end answers."""
