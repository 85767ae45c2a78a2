"""What a run found: the table of nets, sentences about it, and one HTML page that stands by itself."""

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
]
