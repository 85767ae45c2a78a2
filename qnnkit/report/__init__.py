"""What a run found: the table of nets, sentences about it, and one HTML page that stands by itself."""

from qnnkit.report.batch import write_batch_page
from qnnkit.report.criteria import judge
from qnnkit.report.groups import by_group, keep_groups
from qnnkit.report.robustness import robustness
from qnnkit.report.run import (
    finish,
    scores,
    summary,
    table,
    verdicts,
)
from qnnkit.report.shown import mistakes, preview
from qnnkit.report.study import Study, comparisons, conclusions, figures, means, read_study, write_study
from qnnkit.report.tables import told_comparisons, told_means
from qnnkit.report.verify import verify as verify_run

__all__ = [
    "Study",
    "comparisons",
    "conclusions",
    "figures",
    "finish",
    "judge",
    "means",
    "mistakes",
    "by_group",
    "keep_groups",
    "preview",
    "read_study",
    "scores",
    "robustness",
    "summary",
    "table",
    "told_comparisons",
    "told_means",
    "verdicts",
    "verify_run",
    "write_batch_page",
    "write_study",
]
