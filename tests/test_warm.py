"""qnnkit.warm: forked processes share imported modules and no other state."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import nbformat
import psutil
import pytest

from qnnkit import warm
from tests import forked

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")

SPOILS = """
from matplotlib import pyplot; pyplot.plot([1, 2]); pyplot.show()
import os, torch
os.environ["SPOILT"] = torch.mine = "1"
torch.set_default_dtype(torch.float64)
"""
LOOKS = """
import os, sys
there = "torch" in sys.modules and "lark" not in sys.modules
import torch
torch.ones(200, 200) @ torch.ones(200, 200)
print(there, "SPOILT" in os.environ, hasattr(torch, "mine"), torch.get_default_dtype(), os.getcwd())
"""
ENDS = """
import atexit, sys, threading, time
from pathlib import Path
control, stream = get_ipython().kernel.parent.control_thread, type(sys.stdout)

def flush(self, once=stream.flush):
    if threading.current_thread() is control:
        time.sleep(0.3)
    once(self)

stream.flush = flush
atexit.register(lambda: Path("ended").write_text(str(control.is_alive())))
"""
DIES = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
CHAIN = """
import os, sys, tempfile
from qnnkit import warm
os.chdir(sys.argv[2])
os.mkdir(folder := sys.argv[2] + "/" + 99 * "t"); tempfile.tempdir = folder  # too long for sockets
warm._begun = sys.argv[1] == "warm"
from qnnkit import runs
for name in ("spoils", "looks"):
    runs.launch(f"{name}.ipynb", f"out/{name}.ipynb", {})
try:
    runs.launch("dies.ipynb", "out/dies.ipynb", {})
except runs.NotebookError as error:
    print(error)
"""


@pytest.fixture(scope="module", params=["warm", pytest.param("cold", marks=pytest.mark.slow)])
def chain(request, tmp_path_factory):
    """Three notebooks one after another, forked or each separately: (folder, output, way)."""
    folder = tmp_path_factory.mktemp(request.param)
    for name, code in {"spoils": SPOILS + ENDS, "looks": LOOKS, "dies": DIES}.items():
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code.strip())])
        nbformat.write(book, folder / f"{name}.ipynb")
    done = forked.python(CHAIN, request.param, folder, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout, request.param


def outputs(path):
    return [output for cell in nbformat.read(path, 4).cells for output in cell.get("outputs", [])]


def test_no_state_of_a_notebook_reaches_the_next(chain):
    folder, _, way = chain
    (output,) = outputs(folder / "out" / "looks.ipynb")
    assert output.text == f"{way == 'warm'} False False torch.float32 .\n"  # the workspace


def test_pyplot_draws_into_the_notebook(chain):
    kinds = [kind for each in outputs(chain[0] / "out" / "spoils.ipynb") for kind in each.get("data", {})]
    assert "image/png" in kinds


def test_a_kernel_that_is_not_forked_imports_only_what_its_cells_use():
    """An earlier import of matplotlib would choose another backend than the notebook's."""
    command = [sys.executable, "-X", "importtime", "-m", "qnnkit.kernel", "--version"]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "ipykernel" in loaded and "matplotlib" not in loaded and "torch" not in loaded


def test_a_kernel_closes_nothing_that_its_control_thread_needs(chain):
    assert (chain[0] / "ended").read_text() == "False"


def test_frozen_objects_are_freed_at_the_end_with_triton_which_would_report_them():
    code = "import atexit, gc, importlib, sys, qnnkit.kernel\nsys.modules['triton'] = sys\n"
    code += "importlib.reload(qnnkit.kernel)\natexit._run_exitfuncs()\nprint(gc.get_freeze_count())"
    assert forked.python(code).stdout == "0\n"


def test_a_kernel_that_dies_is_reported(chain):
    assert "dies.ipynb stopped: its kernel died" in chain[1] and "gradient_checkpointing" in chain[1]
    assert {path.name for path in (chain[0] / "out").glob("dies.*")} == {"dies.failed.ipynb"}


INTERRUPTED = """
    import os, signal, sys
    from qnnkit import runs, warm

    made, forked = [], warm.Forked

    def interrupted(*given):
        made.append(forked(*given))
        os.kill(os.getpid(), signal.SIGINT)
        return made[0]

    warm.Forked = interrupted
    try:
        runs.launch(sys.argv[1], sys.argv[2], {})
    except KeyboardInterrupt:
        print([process.returncode is not None for process in made])
"""


def test_a_kernel_that_is_interrupted_before_it_is_ready_ends(chain, tmp_path):
    done = forked.python(INTERRUPTED, chain[0] / "looks.ipynb", tmp_path / "copy.ipynb")
    assert done.stdout == "[True]\n", done.stderr


IMPORTS = "import os, signal, subprocess, sys, time\nfrom pathlib import Path\nfrom qnnkit import warm\n"


def python(code, folder, module="threadpoolctl"):
    """A process that has started the fork server, which imports one module, and then runs `code`."""
    begin = "preload = warm.forkserver.set_forkserver_preload\n"
    begin += f"warm.forkserver.set_forkserver_preload = lambda names: preload([{module!r}])\nwarm.begin()\n"
    words = [sys.executable, "-c", IMPORTS + begin + textwrap.dedent(code)]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120)


SAYS = """
import atexit, multiprocessing, os, sys, threadpoolctl, time
atexit.register(print, "at exit")
alone = os.getsid(0) == os.getpid() and multiprocessing.get_start_method() == "fork"
[threads] = {each["num_threads"] for each in threadpoolctl.threadpool_info()}  # of NumPy
print(sys.argv[1:], os.getcwd(), os.environ["MINE"], "PATH" in os.environ, threads, alone)
time.sleep(float(sys.argv[2]))
sys.exit(int(sys.argv[1]))
"""
STARTS = """
env = {"MINE": "x", "OMP_NUM_THREADS": "2"}
for status, seconds in (("3", "0"), ("raises", "0"), ("5", "60")):
    process = warm.start([sys.executable, "-m", "says", status, seconds], env, Path("log"))
    try:
        process.wait(0.1 if seconds == "60" else 30)
    except subprocess.TimeoutExpired:
        process.terminate()
    print(isinstance(process, warm.Forked), process.wait(30))
"""


def test_a_forked_process_behaves_like_a_new_one(tmp_path):
    """Arguments, folder, environment, log, threads, exit status, exit handlers and termination."""
    (tmp_path / "says.py").write_text(SAYS)
    done = python(STARTS, tmp_path, "numpy")
    assert done.stdout == "True 3\nTrue 1\nTrue -15\n", done.stderr
    assert (tmp_path / "log").read_text().startswith(f"['3', '0'] {tmp_path} x False 2 True\nat exit\n")
    assert "ValueError" in (tmp_path / "log").read_text()


def test_state_of_a_process_reaches_none_that_it_starts(tmp_path):
    """A forked process that forks another by the same server imports nothing again."""
    (tmp_path / "heavy.py").write_text("state = 0\n")
    starts = "warm.start([sys.executable, '-m', {!r}], os.environ, Path('log')).wait(60)\n"
    (tmp_path / "starts.py").write_text(IMPORTS + "if __name__ == '__main__': " + starts.format("says"))
    says = "import sys; there = 'heavy' in sys.modules; import heavy; print(there, heavy.state)"
    (tmp_path / "says.py").write_text(says)
    code = "import heavy; heavy.state = 5\n" + starts.format("starts")
    done = python(code, tmp_path, "heavy")
    assert (tmp_path / "log").read_text() == "True 0\n", done.stderr


KILLED = """
    process = warm.start([sys.executable, "-m", "waits"], os.environ, Path("log"))
    while not Path("log").exists() or not Path("log").stat().st_size:
        time.sleep(0.02)
    print(warm.forkserver._forkserver._forkserver_pid, process.pid, flush=True)
    if "{}" == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", ["ends", "kill"])
def test_forked_processes_end_with_their_parent(tmp_path, how):
    (tmp_path / "waits.py").write_text("import time; print('begun', flush=True); time.sleep(600)")
    done = python(KILLED.format(how), tmp_path)
    assert done.returncode == (-signal.SIGKILL if how == "kill" else 0), (tmp_path / "log").read_text()
    end, left = time.monotonic() + 60, [int(pid) for pid in done.stdout.split()]
    while any(map(psutil.pid_exists, left)) and time.monotonic() < end:
        time.sleep(0.02)
    assert len(left) == 2 and not any(map(psutil.pid_exists, left))


def test_a_forked_process_gets_ctrl_c_even_if_its_server_ignores_it(tmp_path, monkeypatch):
    """As if a shell started the command in the background, where Ctrl-C is ignored."""
    code = "import os, signal\nos._exit(signal.getsignal(signal.SIGINT) is not signal.default_int_handler)"
    (tmp_path / "hears.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    if not (child := os.fork()):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            warm._become(["hears"], {**os.environ, warm.PARENT: "1"}, None)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
