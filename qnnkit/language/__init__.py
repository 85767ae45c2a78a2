"""What is done with a trained language model: text from it, its loss on held-out text, files of it."""

from qnnkit.language.evaluation import evaluate, without_adapter
from qnnkit.language.generation import Generated, generate, speed
from qnnkit.language.saving import merge, save_adapter, save_model

__all__ = [
    "Generated",
    "evaluate",
    "generate",
    "merge",
    "save_adapter",
    "save_model",
    "speed",
    "without_adapter",
]
