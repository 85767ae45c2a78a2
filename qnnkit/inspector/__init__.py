"""Widgets over gradients: which gates learn, what an image becomes, what one weight does."""

from qnnkit.inspector.panel import Inspector
from qnnkit.inspector.views import Choice

__all__ = ["Choice", "Inspector"]
