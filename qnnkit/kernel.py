"""The kernel of a notebook that `qnnkit run` executes: `python -m qnnkit.kernel -f CONNECTION`.

What notebooks use is imported here: the fork server of `qnnkit.warm` has imported this module.

ipykernel answers a request to end in its control thread, while the main thread stops the one that publishes
what is printed; now and then the first then waits for it in vain, for ten seconds. Here the control thread
has ended before anything else is closed.
"""

import gc
import importlib
import sys
from pathlib import Path

if __name__ == "__main__" and (sys.path[0] == "" or Path(sys.path[0]) == Path.cwd()):
    del sys.path[0]  # as ipykernel's launcher: what lies in the current folder is for the cells alone

from ipykernel.kernelapp import IPKernelApp

gc.disable()  # takes a third of the time of imports, and finds next to nothing
sys.modules["rfc3987_syntax"] = None  # pyright: ignore[reportArgumentType]  see warm.begin
for name in (
    *("qnnkit.report", "torch._dynamo", "accelerate", "pandas", "tqdm", "papermill", "threadpoolctl"),
    *("matplotlib.figure", "matplotlib.backends.backend_agg", "nbconvert"),
):
    importlib.import_module(name)
del sys.modules["rfc3987_syntax"]
gc.freeze()
gc.enable()


class KernelApp(IPKernelApp):
    """ipykernel's own, which ends without a race."""

    def start(self) -> None:
        try:
            super().start()
        finally:
            if self.control_thread is not None and self.control_thread.is_alive():
                self.control_thread.stop()
                self.control_thread.join()


if __name__ == "__main__":
    KernelApp.launch_instance()
