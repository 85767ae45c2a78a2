"""The page of a batch: what it says is what the run folders say, and no folder can break it."""

import itertools
import json
import os
import re
import shutil
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path

import pytest

from qnnkit import report, runs
from qnnkit.report import batch as page_of
from qnnkit.report import write_batch_page
from qnnkit.stats import SCORES

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture
def quickly(monkeypatch):
    """lightning.qubit is not timed."""


class Workspace:
    """Writes a batch: real run folders, begun, trained in words, finished by the real report."""

    def __init__(self, root: Path):
        self.root, self.folder, self.runs = root, root / "batches" / "grid", []
        self.folder.mkdir(parents=True)

    def plan(self, id_, **settings):
        self.runs.append({"id": id_, "folder": f"../../runs/{id_}", "settings": settings})
        content = {"name": "grid", "recipe": "digits_quanv", "runs": self.runs}
        (self.folder / "batch.json").write_text(json.dumps(content))
        return self.root / "runs" / id_

    def begin(self, id_, scores, n_seeds=2, epochs=3, **settings):
        """A run whose hybrid net ends at `scores`, one per seed."""
        folder = self.plan(id_, **settings)
        run = runs.open_run(folder, "digits_quanv", controls=["classical"], n_seeds=n_seeds, **settings)
        for seed, score in enumerate(scores):
            for net, offset in (("hybrid", 0.0), ("classical", -0.05)):
                for epoch in range(1, epochs + 1):
                    accuracy = score + offset - 0.1 * (epochs - epoch) / epochs
                    row = {"event": "epoch", "net": net, "seed": seed, "epoch": epoch, "seconds": 0.5}
                    row |= {"validation_loss": 1 / epoch, "train_loss": 2 / epoch - score - offset}
                    run.log("metrics", row | {"validation_accuracy": accuracy})
        return run

    def finish(self, id_, scores, **settings):
        run = self.begin(id_, scores, n_seeds=len(scores), **settings)
        for seed, score in enumerate(scores):
            for net, offset in (("hybrid", 0.0), ("classical", -0.05)):
                row = {"event": "test", "net": net, "seed": seed, "validation_accuracy": score + offset}
                row |= {"test_accuracy": score + offset - 0.02, "test_loss": 1.0, "seconds_per_epoch": 0.5}
                run.log("metrics", row | {"quantum": 24, "classical": 12658, "frozen": 0})
        report.finish(run)
        return run


@pytest.fixture
def space(tmp_path, quickly):
    return Workspace(tmp_path)


FOUR: list[Workspace] = []  # made once, and copied for every test


@pytest.fixture
def four(space, tmp_path_factory):
    """Two that finished, one that failed with a notebook, one that waits."""
    if not FOUR:
        FOUR.append(make_four(Workspace(tmp_path_factory.mktemp("four"))))
    shutil.copytree(FOUR[0].root, space.root, dirs_exist_ok=True)
    space.runs.extend(FOUR[0].runs)
    return space


def make_four(space):
    good = space.finish("digits-good", [0.95, 0.97], n_layers=2, learning_rate=0.01)
    (good.folder / "notebooks").mkdir()
    (good.folder / "notebooks" / "03_train.ipynb").write_text("{}")
    (good.folder / "notebooks" / "04_analyze.running.ipynb").write_text("{}")
    space.finish("digits-fair", [0.85, 0.87], n_layers=10, learning_rate=0.001)
    failed = space.begin("digits-lost", [0.5], n_layers=3, learning_rate=0.1)
    (failed.folder / "notebooks").mkdir()
    (failed.folder / "notebooks" / "03_train.failed.ipynb").write_text("{}")
    write_failure(failed.folder, "The training loss is not finite at epoch 2, batch 3.")
    space.plan("digits-next", n_layers=4, learning_rate=None)
    return space


def write_failure(folder, error, state="failed", notebook="notebooks/03_train.failed.ipynb"):
    content = {"state": state, "error": error, "notebook": notebook}
    (folder / "failed.json").write_text(json.dumps(content))


class Page(HTMLParser):
    """Tags, and the text of every cell of the table, by row."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.table, self.text, self.inside = [], [], "", None
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.inside = tag if tag in ("script", "style") else self.inside
        if tag == "tr":
            self.table.append([])
        elif tag in ("td", "th"):
            self.table[-1].append("")

    def handle_endtag(self, tag):
        self.inside = None if tag == self.inside else self.inside

    def handle_data(self, data):
        if self.inside:
            return
        self.text += data
        if self.table and self.table[-1]:
            self.table[-1][-1] += data

    def rows(self):
        head, *rest = [[re.sub(r"\s+", " ", cell).strip() for cell in row] for row in self.table]
        return {row[1]: dict(zip(head, row, strict=True)) for row in rest}


def read(space):
    html = write_batch_page(space.folder).read_text()
    return html, Page(html)


# --- what it says ------------------------------------------------------------------------------------------


def test_the_table_says_what_the_runs_say(four):
    _, page = read(four)
    rows = page.rows()
    good = rows["digits-good"]
    assert (good["n_layers"], good["learning_rate"], good["state"]) == ("2", "0.01", "finished")
    # t of two values: 12.706 * 1 point; no interval goes beyond 100 %
    assert good["hybrid, test accuracy (%)"] == "94.0 (81.3 to 100.0)"
    assert good["classical, test accuracy (%)"] == "89.0 (76.3 to 100.0)"
    assert (good["validation accuracy (%)"], good["weights"], good["s / epoch"]) == (
        "96.0",
        "24 + 12,658",
        "0.50",
    )
    assert "1 verdict" in good["verdicts, notebooks"]
    assert "min_accuracy: pass: test accuracy of 94.0 % reaches 90.0 %" in good["verdicts, notebooks"]
    lost = rows["digits-lost"]
    assert (
        lost["state"] == "failed"
        and lost["hybrid, test accuracy (%)"] == ""
        and lost["validation accuracy (%)"] == "50.0"
    )
    assert "not finite at epoch 2, batch 3." in lost["verdicts, notebooks"]
    assert rows["digits-next"]["state"] == "waiting" and rows["digits-next"]["learning_rate"] == "none"
    assert "It has no folder yet." in rows["digits-next"]["verdicts, notebooks"]
    assert "4 runs: 2 finished, 1 failed, 1 waiting" in re.sub(r"\s+", " ", page.text)


def test_links_lead_to_files_that_are_there(four):
    _, page = read(four)
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert links == [
        "../../runs/digits-good/report.html",
        "../../runs/digits-good/notebooks/03_train.ipynb",
        "../../runs/digits-fair/report.html",
        "../../runs/digits-lost/notebooks/03_train.failed.ipynb",
    ]
    assert all((four.folder / link).is_file() for link in links)
    titles = [attributes.get("title") for tag, attributes in page.tags if tag == "a"]
    assert titles == [None, "03_train", None, "03_train (failed)"] and "03 (failed)" in page.text


def test_the_page_fetches_nothing(four):
    html, page = read(four)
    assert [tag for tag, found in page.tags if "src" in found or tag in ("link", "iframe", "object")] == []
    assert "@import" not in html and "url(" not in html
    assert [url for url in re.findall(r"https?://[^\"'\s]+", html) if "www.w3.org" not in url] == []


def test_the_best_setting_and_that_this_is_optimistic(four):
    _, page = read(four)
    told = (
        "Best validation accuracy of 2 finished runs: 96.0 %, with n_layers 2, learning_rate 0.01. It is the "
    )
    assert told + "largest of 2 numbers that each vary by chance, so it is optimistic" in page.text
    assert "told for each run by its own verdicts" in page.text


def test_a_higher_score_of_an_unfinished_run_is_not_the_best(space):
    space.finish("a", [0.8], n_layers=1)
    space.begin("b", [0.99], n_layers=2)
    _, page = read(space)
    assert "One run has finished: n_layers 1, validation accuracy 80.0 %." in page.text
    assert page.rows()["b"]["state"] == "unfinished"


def test_a_shared_best_names_them_all(space):
    for n in (1, 2):
        space.finish(f"run-{n}", [0.8], n_layers=n)
    told = "2 of 2 finished runs share the best validation accuracy, 80.0 %: n_layers 1; n_layers 2."
    assert told in read(space)[1].text


def test_of_a_loss_the_least_is_best(space):
    """In its own units; a run that is compared by another number keeps out of the table."""
    for id_, loss in (("text-worse", 3.25), ("text-best", 2.5), ("image", 0.5)):
        folder = space.plan(id_, learning_rate=loss / 100)
        folder.mkdir(parents=True)
        rows = [{"net": "hybrid", "seed": 0, "event": "epoch", "epoch": 1, "validation_loss": loss + 0.5}]
        rows += [rows[0] | {"event": "epoch", "epoch": 2, "validation_loss": loss}]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        net = {"net": "hybrid", "score": loss - 0.25, "low": loss - 0.5, "high": loss, "seconds_per_epoch": 1}
        name = "accuracy" if id_ == "image" else "loss"
        (folder / "result.json").write_text(json.dumps({"nets": [net], "score": name, "verdicts": []}))
    path = space.folder / "batch.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"score": asdict(SCORES["loss"])}))
    html, page = read(space)
    told = "Best validation loss of 2 finished runs: 2.500 nats / token, with learning_rate 0.025. It is the "
    assert told + "smallest of 2 numbers" in page.text and "Its test loss was not used to choose" in page.text
    row = page.rows()["text-best"]
    assert row["hybrid, test loss (nats / token)"] == "2.250 (2.000 to 2.500)"
    assert row["validation loss (nats / token)"] == "2.500" and "loss (less is better): mean" in page.text
    assert embedded(html)["text-best"]["curves"]["hybrid"]["validation"] == [3.0, 2.5], "no percentages"
    other = page.rows()["image"]
    assert other["hybrid, test loss (nats / token)"] == "" and other["state"] == "unfinished"
    assert "are compared by accuracy, those of the batch by loss." in other["verdicts, notebooks"]


def test_nothing_has_finished(space):
    space.plan("a", n_layers=1)
    assert "No run has finished yet" in read(space)[1].text


def test_curves_are_means_over_seeds(four):
    html, _ = read(four)
    data = embedded(html)
    curve = data["digits-good"]["curves"]["hybrid"]
    assert curve["epoch"] == [1, 2, 3] and curve["loss"] == [1.04, 0.04, -0.29333]
    assert curve["validation"] == pytest.approx([89.333, 92.667, 96.0], abs=1e-3)
    assert data["digits-good"]["curves"]["classical"]["validation"][-1] == pytest.approx(91.0)
    assert data["digits-next"]["curves"] == {}


def test_a_long_curve_is_thinned(space):
    space.begin("a", [0.9], n_seeds=1, epochs=1001)
    epochs = embedded(read(space)[0])["a"]["curves"]["hybrid"]["epoch"]
    assert len(epochs) <= page_of.POINTS and epochs[0] == 1 and epochs[-1] > 990


def test_a_run_that_finished_after_a_failure_is_finished(four):
    folder = four.root / "runs" / "digits-good"
    write_failure(folder, "The kernel died.")
    row = read(four)[1].rows()["digits-good"]
    assert row["state"] == "finished" and "kernel died" not in row["verdicts, notebooks"]


def test_a_pruned_run(four):
    write_failure(four.root / "runs" / "digits-lost", "Worse than the median.", "pruned", None)
    assert read(four)[1].rows()["digits-lost"]["state"] == "pruned"


def test_five_hundred_runs(space):
    for index in range(500):
        space.runs.append(
            {"id": f"run-{index}", "folder": f"../../runs/{index}", "settings": {"seed": index}}
        )
    space.plan("last", seed=500)
    html, page = read(space)
    assert len(page.rows()) == 501 and len(html) < 2_000_000


# --- folders that are damaged, and names that are hostile --------------------------------------------------


def embedded(html):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html)[1])


@pytest.mark.parametrize(
    ("file", "content", "state", "told"),
    [
        ("result.json", "{", "unfinished", "result.json cannot be read (JSONDecodeError)."),
        ("result.json", "[]", "unfinished", "result.json is damaged."),
        ("result.json", "{}", "unfinished", "result.json is damaged: it tells nothing of the run's own net."),
        ("result.json", '{"nets": [{"net": "hybrid", "accuracy": NaN}]}', "unfinished", "is damaged"),
        ("result.json", '{"nets": 5, "verdicts": 7}', "unfinished", "result.json is damaged"),
        ("result.json", b"\xff\xfe", "unfinished", "result.json cannot be read (UnicodeDecodeError)."),
        ("result.json", None, "unfinished", "result.json cannot be read (IsADirectoryError)."),
        ("failed.json", "half", "finished", "failed.json cannot be read"),
        ("metrics.jsonl", '{"event": "epoch"}\nnonsense\n[1]\n', "finished", "2 of its lines cannot be read"),
        ("metrics.jsonl", '{"event": "epoch", "net": "hybrid", "epoch": 1}\n', "finished", ""),
        ("metrics.jsonl", None, "finished", "Its folder cannot be read (IsADirectoryError"),
        ("notebooks", "a file", "finished", ""),
    ],
)
def test_a_damaged_folder_costs_one_row(four, file, content, state, told):
    path = four.root / "runs" / "digits-good" / file
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    rows = read(four)[1].rows()
    assert told in rows["digits-good"]["verdicts, notebooks"]
    if file != "metrics.jsonl" or content is not None:
        assert rows["digits-good"]["state"] == state
    assert rows["digits-fair"]["state"] == "finished"


def test_an_epoch_that_is_being_written_is_left_out(four):
    path = four.root / "runs" / "digits-good" / "metrics.jsonl"
    before = embedded(read(four)[0])
    with path.open("a") as file:
        file.write('{"event": "epoch", "net": "hyb')
    html, page = read(four)
    assert embedded(html) == before and "damaged" not in page.rows()["digits-good"]["verdicts, notebooks"]


def test_no_batch_and_a_damaged_one(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"must hold a batch, but is .* Begin one: qnnkit batch FILE"):
        write_batch_page(tmp_path)
    for content in ("{", "[]", '{"runs": 5}'):
        (tmp_path / "batch.json").write_text(content)
        with pytest.raises(ValueError, match=r"batch\.json` is damaged .* Run the same qnnkit batch again"):
            write_batch_page(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_a_classical_reference_stands_beside_hybrid_nets(space):
    """A run without a circuit has its own net in place of the hybrid one, and nothing on the page is lost."""
    space.finish("with", [0.95, 0.97], n_layers=2)
    run = space.finish("without", [0.85, 0.87], n_layers=3)
    for name in ("metrics.jsonl", "result.json"):
        path = run.folder / name
        path.write_text(path.read_text().replace('"hybrid"', '"reference"'))
    html, page = read(space)
    row = page.rows()["without"]
    assert row["state"] == "finished" and row["reference, test accuracy (%)"].startswith("84.0")
    assert (
        row["validation accuracy (%)"] == "86.0"
        and row["weights"] == "24 + 12,658"
        and row["s / epoch"] == "0.50"
    )
    assert page.rows()["with"]["reference, test accuracy (%)"] == ""
    assert embedded(html)["without"]["curves"].keys() == {"reference", "classical"}


def test_several_recipes_are_named(space):
    space.finish("one", [0.95], n_layers=1)
    path = space.folder / "batch.json"
    content = json.loads(path.read_text()) | {"recipe": ["digits_quanv", "folder_quanv"]}
    path.write_text(json.dumps(content))
    assert "Batch of the recipes digits_quanv, folder_quanv. 1 run" in read(space)[1].text


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


def test_hostile_words_stay_text(space):
    """A setting, an id, an error, a verdict, a notebook and a folder that would be HTML or an address."""
    space.finish("fine", [0.9], n_layers=1)
    for folder in ("javascript:alert(3)", '"onmouseover="alert(4)'):
        path = space.root / "runs" / folder
        (path / "notebooks").mkdir(parents=True)
        (path / "report.html").write_text("")
        (path / "notebooks" / "<b>03.ipynb").write_text("{}")
        write_failure(path, HOSTILE)
        settings = {HOSTILE: HOSTILE, "n_layers": 1}
        space.runs.append({"id": HOSTILE + folder, "folder": f"../../runs/{folder}", "settings": settings})
    space.plan("last")
    result = space.root / "runs" / "fine" / "result.json"
    result.write_text(json.dumps(json.loads(result.read_text()) | {"verdicts": [HOSTILE]}))
    html, page = read(space)
    assert [found for tag, found in page.tags if tag == "script"] == [
        {"type": "application/json", "id": "data"},
        {},
    ]
    assert html.count("</script>") == 2 and not [tag for tag, _ in page.tags if tag in ("img", "b")]
    events = {name for _, found in page.tags for name in found if name.startswith("on")}
    assert events <= {"onsubmit"}
    assert all(found["href"].startswith("../../runs/") for tag, found in page.tags if tag == "a")
    assert HOSTILE in page.text and f"{HOSTILE}javascript:alert(3)" in embedded(html)


# --- in a browser ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-quic"],
        )
        yield chromium
        chromium.close()


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_sorting_filtering_and_curves(browser, four):
    space = four
    space.finish("digits-poor", [0.75, 0.77], n_layers=1, learning_rate=0.03)
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    complaints = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
    page.goto(write_batch_page(space.folder).as_uri())
    rows, head = page.locator("#runs tbody tr"), page.locator("#runs thead th")

    def order():
        return rows.evaluate_all("all => all.filter(r => !r.hidden).map(r => r.dataset.run.slice(7))")

    def lines():
        return page.locator("#charts path[data-run]").evaluate_all(
            "all => all.map(p => [p.dataset.run.slice(7), p.dataset.net, p.getAttribute('stroke-dasharray')])"
        )

    # Numbers sort as numbers (10 after 4), what is missing stays below, a second click reverses.
    page.get_by_role("button", name="n_layers").click()
    assert order() == ["poor", "good", "lost", "next", "fair"]
    assert head.nth(2).get_attribute("aria-sort") == "ascending"
    page.get_by_role("button", name="n_layers").press("Enter")
    assert order() == ["fair", "next", "lost", "good", "poor"]
    assert head.nth(2).get_attribute("aria-sort") == "descending"
    page.get_by_role("button", name="learning_rate").click()
    assert order() == ["fair", "good", "poor", "lost", "next"], "words come after numbers"
    page.get_by_role("button", name="hybrid, test").click()
    assert order()[:3] == ["poor", "fair", "good"] and set(order()[3:]) == {"lost", "next"}
    page.get_by_role("button", name="hybrid, test").click()
    assert order()[:3] == ["good", "fair", "poor"] and set(order()[3:]) == {"lost", "next"}
    assert head.nth(2).get_attribute("aria-sort") is None

    page.locator("select[data-column='2']").select_option("finished")
    assert order() == ["good", "fair", "poor"]
    page.locator("#text").fill("12,658 0.001")
    assert order() == ["fair"] and page.locator("#shown").inner_text() == "1 of 5 shown."
    page.locator("#text").fill("")
    page.locator("select[data-column='2']").select_option("")
    assert len(order()) == 5

    assert page.locator(".scroll").evaluate("each => each.scrollWidth <= each.clientWidth"), (
        "all columns seen"
    )
    boxes = head.locator("button").evaluate_all("all => all.map(b => b.getBoundingClientRect().toJSON())")
    ends = [(box["right"], after["left"]) for box, after in itertools.pairwise(boxes)]
    assert all(right <= left for right, left in ends), "no heading runs into the next"

    # The best three are drawn at first: two charts, each with hybrid solid and classical dashed.
    assert page.locator("#charts svg").count() == 2
    assert {run for run, *_ in lines()} == {"good", "fair", "poor"} and len(lines()) == 12
    assert {(net, dash) for _, net, dash in lines()} == {("hybrid", "none"), ("classical", "6 4")}
    kept = os.environ.get("QNNKIT_SCREENSHOTS")
    if kept:
        page.screenshot(path=Path(kept) / "batch_1280.png", full_page=True)
    page.get_by_label("curves of digits-fair").uncheck()
    assert {run for run, *_ in lines()} == {"good", "poor"}
    page.get_by_label("curves of digits-lost").check()
    assert {run for run, *_ in lines()} == {"good", "poor", "lost"}
    assert page.get_by_label("curves of digits-next").is_disabled()
    page.get_by_role("button", name="none", exact=True).click()
    assert lines() == [] and page.locator("#legend li").count() == 0
    for text in ("epoch", "validation accuracy (%)", "training loss"):
        page.get_by_role("button", name="best three").click()
        assert page.locator("#charts text", has_text=re.compile(f"^{re.escape(text)}$")).count() >= 1
    page.set_viewport_size({"width": 390, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert complaints == []
    page.close()


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_hundreds_of_runs_are_drawn_seven_at_a_time(browser, space):
    for index in range(300):
        folder = space.plan(f"run-{index}", seed=index, learning_rate=0.1 / (index + 1))
        folder.mkdir(parents=True)
        rows = [
            {"event": "epoch", "net": "hybrid", "seed": 0, "epoch": epoch, "train_loss": 1 / epoch}
            | {"validation_accuracy": 0.5 + 0.001 * index + 0.01 * epoch}
            for epoch in (1, 2)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    complaints = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(write_batch_page(space.folder).as_uri())
    for index in range(10, 14):
        page.get_by_label(f"curves of run-{index}", exact=True).check()
    assert page.locator("#charts path[data-run]").count() == 2 * 7
    assert page.get_by_label("curves of run-20", exact=True).is_disabled()
    assert "Seven runs are chosen" in page.locator("#said").inner_text()
    colours = page.locator("#legend path").evaluate_all("all => all.map(p => p.getAttribute('stroke'))")
    assert len(set(colours)) == 7
    page.get_by_label("curves of run-11", exact=True).uncheck()
    page.get_by_label("curves of run-20", exact=True).check()
    assert complaints == []
    page.close()
