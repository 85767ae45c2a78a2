"""Results of a run or a batch: tables of nets, verdicts, and one HTML page that needs no other file.

For a run, `summary` and `table` have a row per net, `judge` one per success criterion. For a batch,
`read_study` has all finished runs as one table. `means` and `comparisons` take either (`frame_of` a run).
"""

from qnnkit.report.batch_page import analyze_batch, write_batch_page
from qnnkit.report.run import finish, judge, summary, table
from qnnkit.report.shown import mistakes, preview
from qnnkit.report.study import Study, draw, read_study
from qnnkit.report.tables import by_group, comparisons, forest, frame_of, headline, means, metrics, verdict
from qnnkit.report.verify import verify as verify_run

__all__ = [
    "Study", "analyze_batch", "by_group", "comparisons", "draw", "finish", "forest", "frame_of", "headline",
    "judge", "means", "metrics", "mistakes", "preview", "read_study", "summary", "table", "verdict",
    "verify_run", "write_batch_page",
]  # fmt: skip
