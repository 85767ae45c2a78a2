"""The kernel of a notebook that `qnnkit run` executes: `python -m qnnkit.kernel -f CONNECTION`.

ipykernel answers a request to end in its control thread, and closes the sockets of that thread meanwhile in
the main one. In some of a hundred kernels the first then waits ten seconds for the second's output, or both
take one socket and the process aborts. Here the control thread has ended before anything is closed.
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
