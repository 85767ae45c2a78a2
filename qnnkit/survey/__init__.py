"""What a machine can do, measured, kept in a file, and compared with others."""

from qnnkit.survey import platform
from qnnkit.survey.file import default_place, facts, figures, load, write

__all__ = ["default_place", "facts", "figures", "load", "platform", "write"]
