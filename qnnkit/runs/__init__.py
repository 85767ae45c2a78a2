"""Run folders, the nets trained in them, and the strict launch of notebooks."""

from qnnkit.runs.chain import (
    NOTEBOOKS,
    analyze,
    check_finished,
    chosen,
    epoch_line,
    finished,
    logged,
    of_notebooks,
    run_notebooks,
)
from qnnkit.runs.export import export, merge
from qnnkit.runs.folder import Run
from qnnkit.runs.forking import fork
from qnnkit.runs.launch import NotebookError, check_parameters, declared, find_notebook, launch
from qnnkit.runs.nets import best, build, count_parameters, first_batch, seen_by, trained
from qnnkit.runs.opening import open_run
from qnnkit.runs.placing import placed
from qnnkit.runs.planning import to_plan
from qnnkit.runs.reading import frame
from qnnkit.runs.status import Status
from qnnkit.runs.trainings import Stopped, Training, train_all, training
from qnnkit.runs.using import load_model, predict, prediction_line
from qnnkit.runs.watching import watch

__all__ = [
    "NOTEBOOKS",
    "NotebookError",
    "Run",
    "Status",
    "Stopped",
    "Training",
    "analyze",
    "best",
    "build",
    "check_finished",
    "check_parameters",
    "chosen",
    "count_parameters",
    "declared",
    "epoch_line",
    "export",
    "find_notebook",
    "finished",
    "first_batch",
    "fork",
    "frame",
    "launch",
    "load_model",
    "logged",
    "merge",
    "of_notebooks",
    "open_run",
    "placed",
    "predict",
    "prediction_line",
    "run_notebooks",
    "seen_by",
    "to_plan",
    "train_all",
    "trained",
    "training",
    "watch",
]
