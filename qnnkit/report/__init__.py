"""What a run found: the table of nets, sentences about it, and one HTML page that stands by itself."""

from qnnkit.report.batch import write_batch_page
from qnnkit.report.circuits import keep_circuit, keep_errors, keep_maps, keep_robustness, robustness
from qnnkit.report.run import (
    Predictions,
    beside_lightning,
    curves,
    finish,
    predict,
    render,
    summary,
    table,
    verdicts,
)
from qnnkit.report.verify import verify as verify_run

__all__ = [
    "Predictions",
    "beside_lightning",
    "curves",
    "finish",
    "keep_circuit",
    "keep_errors",
    "keep_maps",
    "keep_robustness",
    "predict",
    "render",
    "robustness",
    "summary",
    "table",
    "verdicts",
    "verify_run",
    "write_batch_page",
]
