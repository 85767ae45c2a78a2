"""The kernel of a notebook that `qnnkit run` executes: `python -m qnnkit.kernel -f CONNECTION`.

The fork server of `qnnkit.warm` imports it, and with it what notebooks use.

ipykernel answers a shutdown request in its control thread, while the main thread stops the thread that
publishes output; sometimes the control thread then waits for that thread for ten seconds. This kernel ends
the control thread before it closes anything else.
"""

import atexit
import gc
import importlib
import sys
from pathlib import Path

if __name__ == "__main__" and (sys.path[0] == "" or Path(sys.path[0]) == Path.cwd()):
    del sys.path[0]  # as ipykernel's launcher does: only cells import from the current folder

from ipykernel.kernelapp import IPKernelApp

if __name__ != "__main__":  # imported by the fork server; a kernel of its own imports what its cells use
    gc.disable()  # it would take a third of the import time, and free almost nothing
    sys.modules["rfc3987_syntax"] = None  # pyright: ignore[reportArgumentType]  see warm.begin
    for name in (
        *("qnnkit.report", "torch._dynamo", "accelerate", "pandas", "tqdm", "papermill", "threadpoolctl"),
        *("matplotlib.figure", "matplotlib.backends.backend_agg", "nbconvert", "pandas.io.formats.style"),
        *("seaborn", "sklearn.datasets", "sklearn.ensemble", "sklearn.model_selection"),
    ):
        importlib.import_module(name)
    del sys.modules["rfc3987_syntax"]
    gc.freeze()
    gc.enable()
    if "triton" in sys.modules:  # torch with CUDA loads it, and it reports frozen objects as leaks at the end
        atexit.register(gc.unfreeze)


class KernelApp(IPKernelApp):
    """ipykernel's application, without a race at its end."""

    def start(self) -> None:
        try:
            super().start()
        finally:
            if self.control_thread is not None and self.control_thread.is_alive():
                self.control_thread.stop()
                self.control_thread.join()


if __name__ == "__main__":
    KernelApp.launch_instance()
