"""The page of a batch: what it says is what the run folders say, and no folder can break it."""

import json
import re
import shutil

import pytest

from qnnkit import report, runs
from qnnkit.report import write_batch_page
from qnnkit.report.batch_page import runs_table
from tests.showing import Batch, Page, log_epochs, log_test


class Workspace(Batch):
    """Real run folders, begun, trained in words, finished by the real report."""

    def begin(self, id_, scores, n_seeds=2, finish=False, **settings):
        """A run whose hybrid net ends at `scores`, one per seed."""
        folder = self.plan(id_, settings)
        run = runs.open_run(folder, "digits_quanv", controls=["classical"], n_seeds=n_seeds, **settings)
        for seed, score in enumerate(scores):
            for net, accuracy in (("hybrid", score), ("classical", score - 0.05)):
                log_epochs(run, net, seed, [accuracy - 0.1, accuracy])
                more = {"validation_accuracy": accuracy, "classical": 12658}
                if finish:
                    log_test(run, net, seed, accuracy - 0.02, **more)
        return run

    def finish(self, id_, scores, **settings):
        run = self.begin(id_, scores, n_seeds=len(scores), finish=True, **settings)
        report.finish(run)
        return run


@pytest.fixture
def space(tmp_path):
    return Workspace(tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two that finished, one that failed with a notebook, one that waits."""
    space = Workspace(tmp_path_factory.mktemp("four"))
    good = space.finish("digits-good", [0.95, 0.97], n_layers=2, learning_rate=0.01)
    (good.folder / "notebooks").mkdir()
    (good.folder / "notebooks" / "03_train.ipynb").write_text("{}")
    (good.folder / "notebooks" / "04_analyze.running.ipynb").write_text("{}")
    space.finish("digits-fair", [0.85, 0.87], n_layers=10, learning_rate=0.001)
    failed = space.begin("digits-lost", [0.5], n_layers=3, learning_rate=0.1)
    (failed.folder / "notebooks").mkdir()
    (failed.folder / "notebooks" / "03_train.failed.ipynb").write_text("{}")
    write_failure(failed.folder, "The training loss is not finite at epoch 2, batch 3.")
    space.plan("digits-next", {"n_layers": 4, "learning_rate": None})
    return space


@pytest.fixture
def four(space, made):
    """A copy of them."""
    shutil.copytree(made.root, space.root, dirs_exist_ok=True)
    space.runs.extend(made.runs)
    return space


def write_failure(folder, error, state="failed", notebook="notebooks/03_train.failed.ipynb"):
    content = {"state": state, "error": error, "notebook": notebook}
    (folder / "failed.json").write_text(json.dumps(content))


def read(space):
    html = write_batch_page(space.folder).read_text()
    return html, Page(html)


def rows(space):
    return runs_table(report.read_study(space.folder)).set_index("run").to_dict("index")


# --- what it says ------------------------------------------------------------------------------------------


def test_the_table_says_what_the_runs_say(four):
    found = rows(four)
    good = found["digits-good"]
    assert (good["n_layers"], good["learning_rate"], good["state"]) == ("2", "0.01", "finished")
    # t of two values: 12.706 * 1 point; no interval goes beyond 100 %
    assert good["hybrid, test accuracy (%)"] == "94.0 (81.3 to 100.0)"
    assert good["classical, test accuracy (%)"] == "89.0 (76.3 to 100.0)"
    names = ("validation accuracy, mean", "circuit weights", "other weights", "s / epoch")
    assert [good[name] for name in names] == ["96.0", "24", "12,658", "0.50"]
    lost, waiting = found["digits-lost"], found["digits-next"]
    assert lost["state"] == "failed" and lost["hybrid, test accuracy (%)"] == ""
    assert "not finite at epoch 2, batch 3." in lost["notes"]
    assert waiting["state"] == "waiting" and waiting["learning_rate"] == "none"
    text = re.sub(r"\s+", " ", read(four)[1].text)
    assert "2 finished, 1 failed, 1 waiting" in text
    assert "All comparisons: 0 better, 0 worse, 0 equivalent, 3 undecided of 3." in text
    assert text.count("the choice of test samples") == 1


def test_a_run_that_was_extended_is_listed_as_it_is_now(four):
    """It was planned with one epoch."""
    path = four.root / "runs" / "digits-good" / "config.json"
    assert json.loads(path.read_text())["epochs"] == 12
    content = json.loads((four.folder / "batch.json").read_text())
    content["runs"][0]["settings"]["epochs"] = 1
    (four.folder / "batch.json").write_text(json.dumps(content))
    assert rows(four)["digits-good"]["epochs"] == "12"


def test_links_lead_to_files_that_are_there_and_nothing_is_fetched(four):
    _, page = read(four)
    assert [tag for tag, found in page.tags if "src" in found or tag in ("link", "iframe", "object")] == []
    links = [found["href"] for tag, found in page.tags if tag == "a"]
    expected = {
        "../../runs/digits-good/report.html",
        "../../runs/digits-fair/report.html",
        "../../runs/digits-lost/notebooks/03_train.failed.ipynb",
    }
    assert set(links) == expected and all((four.folder / link).is_file() for link in links)


def test_a_run_that_finished_after_a_failure_is_finished_and_one_may_be_pruned(four):
    write_failure(four.root / "runs" / "digits-good", "The kernel died.")
    write_failure(four.root / "runs" / "digits-lost", "Worse than the median.", "pruned", None)
    good, lost = (rows(four)[name] for name in ("digits-good", "digits-lost"))
    assert good["state"] == "finished" and "kernel died" not in good["notes"] and lost["state"] == "pruned"


# --- folders that are damaged, and names that are hostile --------------------------------------------------


@pytest.mark.filterwarnings("ignore:File `.*` has .* damaged lines:UserWarning")
@pytest.mark.parametrize(
    ("file", "content", "state_is_lost"),
    [
        ("result.json", "{", True), ("result.json", "[]", True), ("result.json", b"\xff\xfe", True),
        ("result.json", '{"nets": 5, "verdicts": 7}', False), ("config.json", "[]", True),
        ("failed.json", "half", False), ("metrics.jsonl", '{"event": "epoch"}\nnonsense\n[1]\n', True),
        ("metrics.jsonl", None, True), ("notebooks", "a file", False),
    ],
)  # fmt: skip
def test_a_damaged_folder_costs_one_row(four, file, content, state_is_lost):
    path = four.root / "runs" / "digits-good" / file
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    found = rows(four)
    assert found["digits-fair"]["state"] == "finished" and read(four)[0]
    state = "unfinished" if state_is_lost else "finished"
    assert found["digits-good"]["state"] == state
    assert found["digits-good"]["notes"] or not state_is_lost
    scores = [told for name, told in found["digits-good"].items() if "test accuracy" in name]
    assert any(scores) is not state_is_lost


def test_no_batch_and_a_damaged_one(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"must hold a batch, but is .* Begin one: qnnkit batch FILE"):
        write_batch_page(tmp_path)
    (tmp_path / "batch.json").write_text("{")
    with pytest.raises(ValueError, match=r"batch\.json` is damaged .* delete it and run the same command"):
        write_batch_page(tmp_path)
    assert not (tmp_path / "report.html").exists()


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


def test_hostile_words_stay_text(space):
    """A setting, an id, an error, a notebook and a folder that would be HTML or an address."""
    space.finish("fine", [0.9], n_layers=1)
    for folder in ("javascript:alert(3)", '"onmouseover="alert(4)'):
        path = space.root / "runs" / folder
        (path / "notebooks").mkdir(parents=True)
        (path / "report.html").write_text("")
        (path / "notebooks" / "<b>03.ipynb").write_text("{}")
        write_failure(path, HOSTILE)
        settings = {HOSTILE: HOSTILE, "n_layers": 1}
        space.runs.append({"id": HOSTILE + folder, "folder": f"../../runs/{folder}", "settings": settings})
    space.plan("last", {})
    html, page = read(space)
    assert "<script>alert" not in html and not [tag for tag, _ in page.tags if tag in ("img", "b")]
    assert not {name for _, found in page.tags for name in found if name.startswith("on")}
    links = [found["href"] for tag, found in page.tags if tag == "a"]
    assert all(link.startswith("../../runs/") for link in links)
    assert HOSTILE in page.text
