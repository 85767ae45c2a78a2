"""qnnkit.warm: forked processes begin with what is imported, and with nothing else of one another."""

import json
import signal
import subprocess
import sys
import textwrap
import time

import nbformat
import psutil
import pytest

from tests import forked

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")

SPOILS = """
import builtins, os, random, sys
os.environ["SPOILT"] = "1"
import numpy, torch, pandas, matplotlib
mine = builtins.mine = torch.mine = 1
torch.set_default_dtype(torch.float64); torch.manual_seed(5); torch.set_grad_enabled(False)
torch.nn.Linear.forward = None
numpy.random.seed(5); pandas.set_option("display.max_rows", 3); matplotlib.rcParams["lines.linewidth"] = 9
"""
LOOKS = """
import json, os, sys
there = "torch" in sys.modules
import builtins, numpy, torch, pandas, matplotlib
left = [name for name, where in {"mine": globals(), "torch": vars(torch)}.items() if "mine" in where]
left += ["builtins"] * hasattr(builtins, "mine") + ["environment"] * ("SPOILT" in os.environ)
left += ["forward"] * (torch.nn.Linear.forward is None) + ["gradients"] * (not torch.is_grad_enabled())
left += ["dtype"] * (torch.get_default_dtype() is not torch.float32)
left += ["seed"] * (torch.initial_seed() == 5) + ["pandas"] * (pandas.get_option("display.max_rows") == 3)
left += ["matplotlib"] * (matplotlib.rcParams["lines.linewidth"] == 9)
torch.ones(200, 200) @ torch.ones(200, 200)
print(json.dumps({"imported": there, "left": left, "cwd": os.getcwd(), "path": sys.path[:2]}))
"""
DRAWS = "from matplotlib import pyplot; pyplot.plot([1, 2]); pyplot.show()"
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
THERE = "import json, sys; print(json.dumps('torch' in sys.modules))"
DIES = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
CHAIN = """
import os, sys, psutil
from qnnkit import warm
os.chdir(sys.argv[2])
if sys.argv[1] == "warm":
    warm.begin()
from qnnkit import runs
for name in ("spoils", "looks", "draws"):
    runs.launch(f"{name}.ipynb", f"out/{name}.ipynb", {})
try:
    runs.launch("dies.ipynb", "out/dies.ipynb", {})
except runs.NotebookError as error:
    print(error)
if sys.argv[1] == "warm":
    (nursery,) = psutil.Process().children()
    nursery.kill()
    runs.launch("there.ipynb", "out/alone.ipynb", {})
    assert psutil.Process().children(recursive=True) in ([], [nursery])
"""


@pytest.fixture(scope="module", params=["warm", pytest.param("cold", marks=pytest.mark.slow)])
def chain(request, tmp_path_factory):
    """Four notebooks one after the other, forked or each by itself: (folder, what was told, way)."""
    folder = tmp_path_factory.mktemp(request.param)
    books = {"spoils": SPOILS, "looks": LOOKS, "draws": f"{DRAWS}\n{ENDS}", "dies": DIES, "there": THERE}
    for name, code in books.items():
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        book = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
        book.cells = [nbformat.v4.new_code_cell(code.strip())]
        nbformat.write(book, folder / f"{name}.ipynb")
    done = forked.python(CHAIN, request.param, folder, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout, request.param


def outputs(path):
    return [output for cell in nbformat.read(path, 4).cells for output in cell.get("outputs", [])]


def test_nothing_of_one_notebook_reaches_the_next(chain):
    folder, _, way = chain
    (told,) = outputs(folder / "out" / "looks.ipynb")
    found = json.loads(told.text)
    assert found["left"] == [] and found["cwd"] == "."  # the workspace
    assert found["imported"] == (way == "warm")


def test_pyplot_draws_into_the_notebook(chain):
    kinds = [kind for each in outputs(chain[0] / "out" / "draws.ipynb") for kind in each.get("data", {})]
    assert "image/png" in kinds


def test_a_kernel_closes_nothing_that_its_control_thread_still_needs(chain):
    assert (chain[0] / "ended").read_text() == "False"


def test_a_kernel_that_dies_is_told(chain):
    assert "dies.ipynb stopped: its kernel died" in chain[1] and "gradient_checkpointing" in chain[1]
    assert {path.name for path in (chain[0] / "out").glob("dies.*")} == {"dies.failed.ipynb"}


def test_without_the_process_that_is_forked_a_notebook_runs_by_itself(chain):
    folder, _, way = chain
    if way == "warm":
        (told,) = outputs(folder / "out" / "alone.ipynb")
        assert json.loads(told.text) is False


INTERRUPTED = """
    import os, signal, sys, threading, time
    import psutil
    from qnnkit import runs

    def hear():
        while not psutil.Process().children():
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=hear).start()
    try:
        runs.launch(sys.argv[1], sys.argv[2], {})
    except KeyboardInterrupt:
        print(psutil.Process().children())
"""


def test_a_kernel_that_is_interrupted_before_it_is_ready_is_ended(chain, tmp_path):
    done = forked.python(INTERRUPTED, chain[0] / "draws.ipynb", tmp_path / "copy.ipynb")
    assert done.stdout == "[]\n", done.stderr


FEW = "warm.MODULES = ('torch', 'threadpoolctl')"  # all that it imports is in tests/forked.py


def python(code, tmp_path, begins=True):
    """What `code` prints, in a process that has called `warm.begin()`."""
    first = f"import sys; from qnnkit import warm\n{FEW}\n" + "warm.begin()\n" * begins
    words = [sys.executable, "-c", first + textwrap.dedent(code)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_forked_process_is_as_one_of_its_own(tmp_path):
    """Arguments, folder, environment, log, threads, exit status, what is done at exit, its end."""
    (tmp_path / "says.py").write_text(
        textwrap.dedent("""
        import atexit, os, signal, sys, time, torch
        atexit.register(print, "at exit")
        alone = os.getsid(0) == os.getpid()
        print(sys.argv[1:], os.getcwd(), os.environ["MINE"], torch.get_num_threads(), alone)
        if sys.argv[1] == "waits":
            time.sleep(60)
        if sys.argv[1] == "raises":
            raise ValueError("no")
        sys.exit(int(sys.argv[1]))
        """)
    )
    code = """
    import os, subprocess, sys, time
    from pathlib import Path
    env = dict(os.environ) | {"MINE": "x", "OMP_NUM_THREADS": "2"}
    for word in ("0", "3", "raises", "waits"):
        process = warm.start([sys.executable, "-m", "says", word], env, Path(f"{word}.log"))
        assert isinstance(process, warm.Forked)
        if word == "waits":
            try:
                process.wait(0.1)
            except subprocess.TimeoutExpired:
                process.terminate()
        print(process.wait(30))
    """
    assert python(code, tmp_path).split() == ["0", "3", "1", "-15"]
    assert (tmp_path / "3.log").read_text() == f"['3'] {tmp_path} x 2 True\nat exit\n"
    assert "ValueError: no" in (tmp_path / "raises.log").read_text()


def test_it_ends_with_who_began_it(tmp_path):
    code = "import psutil; print(*[each.pid for each in psutil.Process().children()])"
    (pid,) = python(code, tmp_path).split()
    assert not psutil.pid_exists(int(pid))


SLOW = """
import os, time

forked = []  # by whom: asked before, since the child's own parent may already be gone

def orphaned():
    end = time.monotonic() + 60
    while os.getppid() == forked[-1] and time.monotonic() < end:
        time.sleep(0.01)

os.register_at_fork(before=lambda: forked.append(os.getpid()), after_in_child=orphaned)
"""
KILLED = """
    import os, signal, sys, time
    from pathlib import Path
    from qnnkit import warm
    sys.path.insert(0, "")
    warm.MODULES = {modules}
    warm.begin()
    env = dict(os.environ) | {{"JPY_PARENT_PID": str(os.getpid())}}
    made = Path("connection.json").absolute()
    process = warm.start([sys.executable, "-m", *{words}, str(made)], env, Path("log"))
    print(process.pid, flush=True)
    while {waits} and not made.exists() and process.poll() is None:
        time.sleep(0.02)
    if not {waits} or process.poll() is None:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("kind", ["a process that has not begun", "a kernel"])
def test_it_ends_with_a_parent_that_is_killed(tmp_path, kind):
    """One that has not begun does not begin: it would have nobody to end with, and wait for ever."""
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "says.py").write_text("open('said', 'w')")
    of_kernel = ("torch", "threadpoolctl", "ipykernel.kernelapp"), ["qnnkit.kernel", "-f"], True
    modules, command, waits = of_kernel if kind == "a kernel" else (("slow",), ["says"], False)
    code = textwrap.dedent(KILLED.format(modules=modules, words=command, waits=waits))
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == -signal.SIGKILL, (tmp_path / "log").read_text()
    end = time.monotonic() + 60
    while psutil.pid_exists(int(done.stdout)) and time.monotonic() < end:
        time.sleep(0.02)
    assert not psutil.pid_exists(int(done.stdout)) and not (tmp_path / "said").exists()


def test_a_process_that_has_computed_begins_it_too(tmp_path):
    """What it has done reaches nobody; and what is forked of it has nothing to do with what it began."""
    (tmp_path / "says.py").write_text("import torch; print(torch.initial_seed() == 5)")
    code = """
    import os, sys, torch
    from pathlib import Path
    torch.manual_seed(5)
    torch.ones(500, 500) @ torch.ones(500, 500)
    warm.begin()
    if not os.fork():
        assert not warm.ready([sys.executable, "-m"])
        sys.exit()
    os.wait()
    process = warm.start([sys.executable, "-m", "says"], os.environ, Path("log"))
    assert isinstance(process, warm.Forked)
    print(process.wait(60))
    """
    assert python(code, tmp_path, begins=False) == "0\n"
    assert (tmp_path / "log").read_text() == "False\n"


def test_where_an_import_has_opened_a_gpu_a_process_begins_anew(tmp_path):
    (tmp_path / "opens.py").write_text("import torch; torch.cuda._is_in_bad_fork = lambda: True")
    (tmp_path / "says.py").write_text("import sys; print('torch' in sys.modules, sys.argv[1:])")
    code = """
    import os, sys
    from pathlib import Path
    from qnnkit import warm
    sys.path.insert(0, "")
    warm.MODULES = ("torch", "threadpoolctl", "opens")
    warm.begin()
    print(warm.start([sys.executable, "-m", "says", "x"], dict(os.environ), Path("log")).wait(60))
    """
    words = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "0\n", done.stderr
    assert (tmp_path / "log").read_text() == "False ['x']\n"
