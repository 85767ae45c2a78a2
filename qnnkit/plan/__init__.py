"""Memory, time and money as predicted, before anything large is run."""

from qnnkit.plan.prediction import HOST, PARTS, Prediction, Work

__all__ = ["HOST", "PARTS", "Prediction", "Work"]
