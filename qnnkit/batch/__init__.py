"""Many runs from one file: planned together, executed in parallel, and resumed after any kill.

`run_batch` executes a file; `read` returns the states of its runs.
"""

from qnnkit.batch.batch_file import BatchConfig, read_config
from qnnkit.batch.engine import batch_folder, run_batch
from qnnkit.runs.state import of_batch as read

__all__ = ["BatchConfig", "batch_folder", "read", "read_config", "run_batch"]
