"""What a run found: the table of nets, sentences about it, and one HTML page that stands by itself."""

from qnnkit.report.batch import analyze_batch, write_batch_page
from qnnkit.report.criteria import judge
from qnnkit.report.groups import by_group, keep_groups
from qnnkit.report.paper import write_paper
from qnnkit.report.robustness import robustness
from qnnkit.report.run import finish, scores, summary, table, verdicts
from qnnkit.report.shown import mistakes, preview
from qnnkit.report.study import Study, comparisons, means, metrics, read_study, verdict
from qnnkit.report.verify import verify as verify_run

__all__ = [
    "Study",
    "analyze_batch",
    "by_group",
    "comparisons",
    "finish",
    "judge",
    "keep_groups",
    "means",
    "metrics",
    "mistakes",
    "preview",
    "read_study",
    "robustness",
    "scores",
    "summary",
    "table",
    "verdict",
    "verdicts",
    "verify_run",
    "write_batch_page",
    "write_paper",
]
