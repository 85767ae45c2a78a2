"""What a run found: the table of nets, sentences about it, and one HTML page that stands by itself."""

from qnnkit.report.batch import write_batch_page
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
    "predict",
    "render",
    "summary",
    "table",
    "verdicts",
    "verify_run",
    "write_batch_page",
]
