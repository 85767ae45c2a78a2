"""The kernel of a notebook that `qnnkit run` executes: `python -m qnnkit.kernel -f CONNECTION`.

ipykernel answers a request to end in its control thread, while the main thread stops the one that publishes
what is printed; now and then the first then waits for it in vain, for ten seconds. Here the control thread
has ended before anything else is closed.
"""

import sys
from pathlib import Path

if __name__ == "__main__" and (sys.path[0] == "" or Path(sys.path[0]) == Path.cwd()):
    del sys.path[0]  # as ipykernel's launcher: what lies in the current folder is for the cells alone

from ipykernel.kernelapp import IPKernelApp


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
