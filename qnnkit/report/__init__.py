"""What a run found: the table of nets, sentences about it, and one HTML page that stands by itself."""

from qnnkit.report.batch import analyze_batch, write_batch_page
from qnnkit.report.circuits import keep_circuit, keep_errors, keep_maps, keep_robustness, robustness
from qnnkit.report.criteria import judge
from qnnkit.report.groups import by_group, keep_groups
from qnnkit.report.inspection import keep_inspection, look_inside
from qnnkit.report.learning import (
    gradient_table,
    keep_expressivity,
    keep_gates,
    keep_landscape,
    keep_plateau,
    keep_sizes,
)
from qnnkit.report.run import (
    curves,
    finish,
    scores,
    summary,
    table,
    verdicts,
)
from qnnkit.report.shown import keep_mistakes, keep_preview, keep_sample
from qnnkit.report.study import Study, comparisons, means, metrics, read_study, verdict
from qnnkit.report.verify import verify as verify_run

__all__ = [
    "Study",
    "analyze_batch",
    "comparisons",
    "curves",
    "gradient_table",
    "finish",
    "judge",
    "means",
    "metrics",
    "keep_circuit",
    "keep_errors",
    "keep_expressivity",
    "keep_gates",
    "keep_landscape",
    "keep_plateau",
    "keep_inspection",
    "look_inside",
    "keep_maps",
    "keep_mistakes",
    "keep_robustness",
    "by_group",
    "keep_groups",
    "keep_preview",
    "keep_sample",
    "keep_sizes",
    "read_study",
    "scores",
    "robustness",
    "summary",
    "table",
    "verdict",
    "verdicts",
    "verify_run",
    "write_batch_page",
]
