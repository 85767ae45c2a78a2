"""The page of a batch: it agrees with the run folders, and no folder can break it."""

import json
import re
import shutil

import pytest

from qnnkit import report, stats
from qnnkit.report import write_batch_page
from qnnkit.report.batch_page import runs_table
from tests.report.test_study import TWO, space  # noqa: F401  one is a fixture
from tests.showing import Page


@pytest.fixture
def four(space):  # noqa: F811
    """Two finished runs, one that failed with a notebook, and one that waits."""
    good = {"hybrid": [0.93, 0.95], "classical": [0.88, 0.90]}
    space.write("digits-good", good, n_layers=2, learning_rate=0.01)
    space.write("digits-fair", TWO, n_layers=10, learning_rate=0.001)
    lost = space.write("digits-lost", TWO, n_layers=3, learning_rate=0.1)
    (lost / "result.json").unlink()
    for name in ("digits-good", "digits-fair"):
        (space.root / "runs" / name / "report.html").write_text("")
    for name in ("digits-good/notebooks/03_train", "digits-lost/notebooks/03_train.failed"):
        path = space.root / "runs" / f"{name}.ipynb"
        path.parent.mkdir()
        path.write_text("{}")
    write_failure(lost, "The training loss is not finite at epoch 2, batch 3.")
    space.plan("digits-next", {"n_layers": 4, "learning_rate": None})
    return space


def write_failure(folder, error, state="failed"):
    (folder / "failed.json").write_text(json.dumps({"state": state, "error": error}))


def read(place):
    html = write_batch_page(place.folder).read_text()
    return html, Page(html)


def rows(place):
    return runs_table(report.read_study(place.folder)).set_index("run").to_dict("index")


# --- contents ----------------------------------------------------------------------------------------------


def test_the_table_agrees_with_the_runs(four):
    attrs = rows(four)
    good = attrs["digits-good"]
    assert (good["n_layers"], good["learning_rate"], good["state"]) == ("2", "0.01", "finished")
    # t for two values: 12.706 * 1 point; no interval exceeds 100 %
    assert good["hybrid, test accuracy (%)"] == "94.0 (81.3 to 100.0)"
    assert good["classical, test accuracy (%)"] == "89.0 (76.3 to 100.0)"
    names = ("validation accuracy, mean", "circuit weights", "other weights", "s / epoch")
    assert [good[name] for name in names] == ["89.0", "24", "1,000", "0.25"]
    lost, waiting = attrs["digits-lost"], attrs["digits-next"]
    assert lost["state"] == "failed" and lost["hybrid, test accuracy (%)"] == ""
    assert "not finite at epoch 2, batch 3." in lost["notes"]
    assert waiting["state"] == "waiting" and waiting["learning_rate"] == "none"
    _, page = read(four)
    text = re.sub(r"\s+", " ", page.text)
    assert "2 finished, 1 failed, 1 waiting" in text
    assert "All comparisons: 0 better, 0 worse, 0 equivalent, 3 undecided of 3." in text
    assert text.count("the choice of test samples") == 1
    assert [tag for tag, attrs in page.tags if "src" in attrs or tag in ("link", "iframe", "object")] == []
    links = {attrs["href"] for tag, attrs in page.tags if tag == "a"}
    places = "good/report.html", "fair/report.html", "lost/notebooks/03_train.failed.ipynb"
    assert links == {f"../../runs/digits-{place}" for place in places}


def test_a_run_is_listed_in_its_current_state(four):
    """One was planned with one epoch and extended, one finished after a failure, and one is pruned."""
    content = json.loads((four.folder / "batch.json").read_text())
    content["runs"][0]["settings"]["epochs"] = 1
    (four.folder / "batch.json").write_text(json.dumps(content))
    write_failure(four.root / "runs" / "digits-good", "The kernel died.")
    write_failure(four.root / "runs" / "digits-lost", "Worse than the median.", "pruned")
    good, lost = (rows(four)[name] for name in ("digits-good", "digits-lost"))
    assert (good["epochs"], good["state"], lost["state"]) == ("2", "finished", "pruned")
    assert "kernel died" not in good["notes"]


# --- damaged folders and hostile names ---------------------------------------------------------------------

UNFINISHED, UNTOLD = "not finished.", "metrics.jsonl has no test accuracy of "


@pytest.mark.filterwarnings("ignore:File `.*` has .* damaged lines:UserWarning")
@pytest.mark.parametrize(
    ("file", "content", "why"),
    [
        ("result.json", b"{", UNFINISHED), ("result.json", None, UNFINISHED),
        ("result.json", b'{"nets": 5, "verdicts": 7}', ""), ("failed.json", b"half", ""),
        ("config.json", b"[]", "config.json is missing or damaged."), ("notebooks", b"a file", ""),
        ("metrics.jsonl", b'{"event": "epoch"}\nnonsense\n[1]\n', UNTOLD + "hybrid, seed 0."),
        ("metrics.jsonl", "the last row", UNTOLD + "classical, seed 1."),
        ("metrics.jsonl", "a folder", UNTOLD + "hybrid, seed 0."),
    ],
)  # fmt: skip
def test_a_damaged_folder_is_skipped_and_named_in_its_row(four, file, content, why):
    path = four.root / "runs" / "digits-good" / file
    before = path.read_bytes() if path.is_file() else b""
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    if content == "a folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(b"".join(before.splitlines(True)[:-1]) if content == "the last row" else content)
    study = four.read()
    table = runs_table(study).set_index("run").to_dict("index")
    assert table["digits-fair"]["state"] == "finished" and read(four)[0]
    assert study.left_out.get("digits-good", "").endswith(why) and study.finished == 2 - bool(why)
    assert len(study.frame) == 4 * study.finished and (study.planned, len(table)) == (4, 4)
    scores = [cell for name, cell in table["digits-good"].items() if "test accuracy" in name]
    assert any(scores) is (not why)
    if why != UNFINISHED:
        assert table["digits-good"]["state"] == ("unfinished" if why else "finished")
        assert table["digits-good"]["notes"].endswith(why)


def test_a_run_with_another_score_is_skipped(four):
    four.write("clip", TWO, recipe="digits_clip", score=stats.RECALL)
    why = "nets are compared by recall@1, but by accuracy in the batch."
    assert four.read().left_out["clip"] == rows(four)["clip"]["notes"] == why


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


def test_hostile_words_are_shown_as_text(space):  # noqa: F811
    """A setting, an id, an error, a notebook and a folder that contain HTML or an address."""
    space.write("fine", TWO, n_layers=1)
    for folder in ("javascript:alert(3)", '"onmouseover="alert(4)#'):
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
    assert not {name for _, attrs in page.tags for name in attrs if name.startswith("on")}
    links = [attrs["href"] for tag, attrs in page.tags if tag == "a"]
    assert len(links) == 2 and all(link.startswith("../../runs/") and "#" not in link for link in links)
    assert HOSTILE in page.text
