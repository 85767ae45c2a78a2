"""What a machine can do, measured, kept in a file, and compared with others."""

from qnnkit.survey import circuits, net, platform
from qnnkit.survey.command import compare_machines, measure_machine, picture, simulators_picture
from qnnkit.survey.comparison import Comparison, Row, compare, comparison_table, files, side_by_side
from qnnkit.survey.file import default_place, facts, figures, load, write
from qnnkit.survey.operations import Operation, profile
from qnnkit.survey.printed import table
from qnnkit.survey.whole import take

__all__ = [
    "Comparison",
    "Operation",
    "Row",
    "circuits",
    "compare",
    "compare_machines",
    "comparison_table",
    "default_place",
    "facts",
    "figures",
    "files",
    "load",
    "measure_machine",
    "net",
    "picture",
    "platform",
    "profile",
    "side_by_side",
    "simulators_picture",
    "table",
    "take",
    "write",
]
