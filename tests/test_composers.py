"""Music as runs: a base, an adapter for each composer, what each is worth on whose music, and its sound."""

import gzip
import json
import re

import numpy as np
import pytest
import torch

from benchmarks import composers as benchmark
from qnnkit import music, report, runs, workspace
from qnnkit.data.music import by_composer
from qnnkit.data.music_events import MusicTokenizer, Piece
from qnnkit.report import composers
from qnnkit.report.batch import write_batch_page

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

TINY = {"sequence_length": 64, "batch_size": 8, "device": "cpu", "threads": 1, "gradient_samples": 0}
SEEDS = 2
THREE = ("bach", "mozart", "nottingham")
THIRDS = {"bach": 4, "mozart": 3, "nottingham": 5}


def written_music(path, third, n):
    pieces = {
        f"{third}-{shift}": [[60 + shift % 5 + each] for _ in range(12) for each in (0, third, 7, 12)]
        for shift in range(n)
    }
    content = json.dumps(pieces).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """What the benchmark writes at toy size, of three composers; a fourth has too few pieces for splits."""
    root = tmp_path_factory.mktemp("composers")
    (root / "source" / "music").mkdir(parents=True)
    for name, file in benchmark.FILES.items():
        written_music(root / "source" / "music" / file, THIRDS[name], 12)
    (root / "out" / "composers" / "data").mkdir(parents=True)
    written_music(root / "out" / "composers" / "data" / "scarce.json", 6, 2)
    settings = TINY | {"epochs": 1}
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QNNKIT_TEST_DATA", str(root / "source"))
        benchmark.main([*words, "--seeds", str(SEEDS), "--out", str(root / "out")])
    return root / "out"


@pytest.fixture(scope="module")
def home(out):
    return out / "composers" / "data"


@pytest.fixture(scope="module")
def base(out):
    return runs.open_run(out / "composers" / "base")


@pytest.fixture(scope="module")
def pair(out):
    """Finished runs of both composers: a quantum adapter, and LoRA beside it."""
    return [runs.open_run(out / "composers" / name) for name in ("bach", "mozart")]


# --- a base, shown and heard -------------------------------------------------------------------------------


def test_music_is_trained_written_drawn_and_heard(base):
    assert base.result["nets"][0]["score"] < torch.tensor(163.0).log()
    report.keep_samples(base)
    picture, *sounds = report.keep_mistakes(base, 1)
    assert {path.stem for path in (base.folder / "figures").iterdir()} >= {"01_rolls", "05_music"}
    assert len(music.read_midi(base.folder / "music" / "1.mid")) > 0
    assert (base.folder / "model" / "model.safetensors").exists() and picture is not None
    [html] = [sound.data for sound in sounds]
    assert re.search(
        r"<p>(bach|nottingham) \S+: the last bar that was given, and 3 that the net writes</p>", html
    )
    assert 'src="data:audio/wav;base64,' in html
    seconds = 4 * 2.0 + 1  # bars at 120 quarters a minute, and the last tone's end
    assert len(html) == pytest.approx(seconds * 8000 * 2 * 4 / 3, rel=0.01)


def test_blocks_overlap_as_a_run_asks(base, home, tmp_path):
    usual = base.splits
    none, half = (runs.Run(tmp_path, base.config.override(overlap=n)).load_data() for n in (0, 32))
    assert len(none.train) <= len(usual.train) < len(half.train)
    for split in ("validation", "test"):
        assert torch.equal(none.split(split).labels, half.split(split).labels)
    assert none.train.n_predicted < usual.train.n_predicted < half.train.n_predicted
    with pytest.raises(ValueError, match=r"`overlap` must lie in 0\.\.32, half a block of 64") as told:
        runs.open_run(tmp_path / "run", "music_llama", data_dir=str(home), overlap=64, **TINY)
    assert "\n" not in str(told.value) and not (tmp_path / "run" / "config.json").exists()


# --- one run's adapters on everybody's music ---------------------------------------------------------------


def test_every_net_is_judged_on_every_composer(pair, base, capsys):
    run = pair[0]
    rows = run.result["composers"]
    assert [(row["net"], row["kind"], row["seed"], row["composer"]) for row in rows] == [
        *(("base", "base", None, name) for name in THREE),
        *(
            (net, kind, seed, name)
            for net, kind in (("hybrid", "quantum_peft"), ("lora", "lora"))
            for seed in range(SEEDS)
            for name in THREE
        ),
    ]
    assert {row["composer"] for row in rows if row["trained"]} == {"bach"}
    of_base = {row["composer"]: row["nats_per_token"] for row in rows if row["net"] == "base"}
    plain, parts = runs.trained(base), by_composer(base.splits)
    for name in ("bach", "nottingham"):
        assert of_base[name] == pytest.approx(music.mean_nats(plain, parts[name], "test"), rel=1e-5)
    home = [row for row in rows if row["net"] == "lora" and row["trained"]]
    finals = run.finals().query("net == 'lora'").sort_values("seed")
    assert [row["nats_per_token"] for row in home] == pytest.approx(finals["test_loss"].tolist(), rel=1e-5)
    assert {row["tokens"] for row in home} == {run.splits.test.n_predicted}
    table, _ = report.keep_composers(run, rows)
    assert list(table.index) == ["base", "hybrid", "lora"] and list(table) == ["bach (trained)", *THREE[1:]]
    assert table.loc["base", "mozart"] == f"{of_base['mozart']:.4f}" and " ± " in table.loc["lora", "mozart"]
    told = capsys.readouterr().out
    assert "On bach (trained on it) hybrid has" in told and "On mozart (not trained on it)" in told
    assert (run.folder / "figures" / "05_composers.png").exists()
    assert report.finish(run)["composers"] == rows, "a report that is written anew keeps them"
    assert "Loss on each composer&#39;s music" in run.report.read_text()


def test_it_stays_cheap(pair, base, capsys, monkeypatch):
    monkeypatch.setattr(composers, "MOST_COMPOSERS", 2)
    one = report.losses_by_composer(base, most_blocks=1)
    told = capsys.readouterr().out
    assert "2 of 4 composers are judged, those of the training first." in told
    assert "Of each composer at most 1 blocks are read, spread over its test pieces." in told
    whole = report.losses_by_composer(base)
    assert [row["tokens"] < all_["tokens"] for row, all_ in zip(one, whole, strict=True)] == [True, True]
    assert {row["net"] for row in whole} == {"reference"}, "a net without an adapter has no base"


def test_a_composer_that_cannot_be_read_is_left_out(pair, capsys):
    rows = report.losses_by_composer(pair[1], most_blocks=1)
    assert {row["composer"] for row in rows} == set(THREE)
    assert "scarce is left out. Argument `data_dir` must hold enough pieces" in capsys.readouterr().out


def test_other_data_have_no_composers(tmp_path, capsys):
    run = runs.open_run(tmp_path / "run", "digits_quanv")
    assert report.losses_by_composer(run) == [] and report.keep_composers(run, []) == []
    assert "The run is not one of music" in capsys.readouterr().out


# --- the matrix over runs ----------------------------------------------------------------------------------


def test_the_matrix_of_runs(pair):
    found = music.matrix_of_runs([run.folder for run in pair])
    assert list(found) == ["quantum_peft", "lora"]
    matrix = found["lora"]
    assert matrix.rows == ("base", "bach", "mozart") and matrix.composers == THREE
    assert matrix.seeds == (0, 1) and matrix.means().shape == (3, 3)
    mine = [
        row["nats_per_token"] for row in pair[1].result["composers"]
        if (row["net"], row["composer"]) == ("lora", "bach")
    ]  # fmt: skip
    assert matrix.means()[2, 0] == pytest.approx(np.mean(mine))
    assert np.isnan(matrix.half_widths()[0]).all() and np.isfinite(matrix.half_widths()[1:]).all()
    assert report.matrices_picture(found).png()[:4] == b"\x89PNG"


def test_the_benchmark_writes_what_it_found(out, pair):
    written = json.loads((out / "composers.json").read_text())
    assert written["rows"] == {run.folder.name: run.result["composers"] for run in pair}
    matrices = music.matrix_of_runs([run.folder for run in pair])
    assert written["sentences"] == [matrix.sentence for matrix in matrices.values()]
    assert written["weights"]["hybrid"] == pytest.approx(written["weights"]["lora"], rel=0.05)
    assert (out / "composers.png").read_bytes()[:4] == b"\x89PNG"


def written(folder, trained_on, seeds, nats, base=(1.0, 2.0)):
    """A finished run's losses: nats[composer] by seed."""
    composers = ("bach", "mozart")
    rows = [
        {"net": net, "kind": kind, "seed": seed, "composer": name, "trained": name == trained_on,
         "split": "test", "nats_per_token": value, "tokens": 9}
        for net, kind, seed, values in [
            ("base", "base", None, base),
            *(("hybrid", "qpa", seed, each) for seed, each in zip(seeds, nats, strict=True)),
        ]
        for name, value in zip(composers, values, strict=True)
    ]  # fmt: skip
    workspace.write_json(workspace.make_folder(folder) / "result.json", {"composers": rows})
    return folder


def test_what_the_matrix_says(tmp_path):
    bach = written(tmp_path / "a", "bach", (0, 1), [(0.7, 2.1), (0.8, 2.2)])
    mozart = written(tmp_path / "b", "mozart", (0, 5), [(1.1, 1.5), (0.9, 1.6)])
    good = music.matrix_of_runs([bach, mozart])["qpa"]
    assert good.is_diagonal and good.seeds == (0, 1, 5)
    assert good.sentence == (
        "qpa, test pieces, 3 seeds: each adapter is the best on its own composer at every seed: "
        "bach 0.7500 ± 0.6353 (next: mozart 0.9000), mozart 1.5500 ± 0.6353 (next: base 2.0000)."
    )
    more = written(tmp_path / "c", "bach", (2,), [(0.95, 2.0)])
    bad = music.matrix_of_runs([bach, mozart, more])["qpa"]
    assert not bad.is_diagonal and bad.beaten() == [("bach", 2, 0.95, "mozart", 0.9)]
    assert "not the best on its own composer is bach at seed 2 (0.9500, mozart 0.9000)." in bad.sentence
    assert bad.table().loc["mozart", "bach"] == "1.0000 ± 1.2706"
    alone = music.matrix_of_runs([more])["qpa"]
    assert alone.is_diagonal and alone.table().loc["bach", "bach"] == "0.9500"


def test_runs_that_have_no_matrix(tmp_path, base):
    bach = written(tmp_path / "a", "bach", (0,), [(0.7, 2.1)])
    other = written(tmp_path / "b", "mozart", (0,), [(0.7, 2.1)], base=(1.0, 2.1))
    for folders, told in (
        ([], "`folders` must name one at least"),
        ([bach, bach], "`folders` must hold each seed of bach once"),
        ([bach, other], "`folders` must hold adapters of one base, judged on the same pieces"),
        ([bach, base.folder], "`folders` must hold losses by composer beside a base"),
    ):
        with pytest.raises(ValueError, match=told) as caught:
            music.matrix_of_runs(folders)
        assert "\n" not in str(caught.value)
    with pytest.raises(FileNotFoundError, match="`folders` must hold finished runs"):
        music.matrix_of_runs([tmp_path / "nobody"])


def test_the_page_of_a_batch_shows_it(pair, tmp_path):
    planned = [
        {"id": name, "folder": str(run.folder), "settings": {"composers": [name], "n_layers": 2}}
        for name, run in zip(("bach", "mozart"), pair, strict=True)
    ]
    waiting = {"id": "x", "folder": str(tmp_path / "x"), "settings": {"composers": ["scarce"], "n_layers": 2}}
    workspace.write_json(tmp_path / "batch.json", {"name": "b", "recipe": "x", "runs": [*planned, waiting]})
    page = write_batch_page(tmp_path).read_text()
    assert "<h2>Adapter by composer</h2>" in page and "<h3>n_layers 2</h3>" in page
    for matrix in music.matrix_of_runs([run.folder for run in pair]).values():
        assert f"<li>{matrix.sentence}</li>" in page
    assert page.count("data:image/png;base64,") == 1
    workspace.write_json(tmp_path / "batch.json", {"name": "b", "recipe": "x", "runs": planned[:1]})
    assert "Adapter by composer" not in write_batch_page(tmp_path).read_text()
    twice = [planned[0], planned[0] | {"id": "again"}]
    workspace.write_json(tmp_path / "batch.json", {"name": "b", "recipe": "x", "runs": twice})
    assert "There is no matrix: Argument `folders` must hold each" in write_batch_page(tmp_path).read_text()


# --- switching ---------------------------------------------------------------------------------------------


def test_adapters_of_several_runs_play_in_turn(pair, home, base, tmp_path):
    prompt = Piece("tune", ((60,), (64,), (67,)) * 4)
    one, other = (run.folder for run in pair)
    model = music.load_adapters({"bach": one, "mozart": other / "adapter"})
    played = music.for_each_adapter(model, MusicTokenizer(), prompt, 24, seed=1)
    assert list(played) == ["base", "bach", "mozart"]
    for name, run in (("base", base), ("bach", pair[0]), ("mozart", pair[1])):
        alone = music.continue_piece(runs.trained(run), MusicTokenizer(), prompt, 24, seed=1)
        assert played[name].piece.steps == alone.piece.steps, name
    assert len({each.piece.steps for each in played.values()}) == 3
    assert not any(weight.requires_grad for weight in model.parameters())
    settings = {"pretrained": str(base.folder / "model"), "adapter": "lora", "controls": [], "epochs": 1}
    settings |= TINY | {"data_dir": str(home), "composers": ["mozart"], "n_seeds": 1}
    for kind in ("lora", "vera"):
        run = runs.open_run(tmp_path / kind, "music_adapter", **settings | {"adapter": kind})
        list(runs.train_all(run))
        report.finish(run)
    both = music.load_adapters({"bach": one, "mozart": tmp_path / "lora"})  # circuits gave LoRA's weights
    assert music.adapter_names(both) == ("bach", "mozart")
    with pytest.raises(ValueError, match="`folders` must hold adapters of one kind, but is") as caught:
        music.load_adapters({"bach": one, "mozart": tmp_path / "vera"})
    assert "\n" not in str(caught.value) and "'mozart': 'vera'" in str(caught.value)
    second = music.load_adapters({"mozart": tmp_path / "lora"}, base.folder / "model")
    assert list(music.for_each_adapter(second, MusicTokenizer(), prompt, 4)) == ["base", "mozart"]
    with pytest.raises(FileNotFoundError, match="`folders` must hold adapters"):
        music.load_adapters({"x": home})
    with pytest.raises(ValueError, match="`folders` must name one adapter at least"):
        music.load_adapters({})
