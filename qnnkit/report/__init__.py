"""What a run found: the table of nets, sentences about it, and one HTML page that stands by itself."""

from qnnkit.report.batch_page import analyze_batch, write_batch_page
from qnnkit.report.compared import by_group, comparisons, means, verdict
from qnnkit.report.criteria import judge
from qnnkit.report.paper import write_paper
from qnnkit.report.run import finish, scores, summary, table, verdicts
from qnnkit.report.shown import mistakes, preview
from qnnkit.report.study import Study, metrics, read_study
from qnnkit.report.verify import verify as verify_run

__all__ = [
    "Study", "analyze_batch", "by_group", "comparisons", "finish", "judge", "means", "metrics",
    "mistakes", "preview", "read_study", "scores", "summary", "table", "verdict", "verdicts",
    "verify_run", "write_batch_page", "write_paper",
]  # fmt: skip
