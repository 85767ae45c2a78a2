"""Music as runs: a base, an adapter for each composer, and what each is worth on whose music."""

import gzip
import itertools
import json

import pandas as pd
import pytest
import torch

from qnnkit import adapters, report, runs, stats, tasks
from qnnkit.data import pieces
from qnnkit.data.pieces import collect, of_steps
from qnnkit.models import causal_lm
from tests.toys import by_composer

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


def trained(folder, recipe, **settings):
    run = runs.open_run(folder, recipe, **TINY, epochs=1, **settings)
    list(runs.train_all(run))
    report.finish(run)
    return run


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Music of three composers; a fourth has too few pieces for splits."""
    place = tmp_path_factory.mktemp("composers")
    for name, third in THIRDS.items():
        written_music(place / f"{name}.json{'.gz' * (name == 'nottingham')}", third, 12)
    written_music(place / "scarce.json", 6, 2)
    return place


@pytest.fixture(scope="module")
def base(home, tmp_path_factory):
    folder = tmp_path_factory.mktemp("base") / "run"
    return trained(folder, "music_llama", data_dir=str(home), composers=["bach", "nottingham"])


@pytest.fixture(scope="module")
def pair(home, base, tmp_path_factory):
    """Finished runs of both composers: a quantum adapter, and LoRA beside it."""
    folder, common = tmp_path_factory.mktemp("adapters"), {"data_dir": str(home), "n_seeds": SEEDS}
    common |= {"pretrained": str(base.folder / "model"), "controls": ["lora"]}
    return [
        trained(folder / name, "music_adapter", composers=[name], **common) for name in ("bach", "mozart")
    ]


# --- a base ----------------------------------------------------------------------------------------------


def test_music_is_trained_written_and_drawn(base):
    assert base.result["nets"][0]["score"] < torch.tensor(950.0).log()
    report.preview(base)
    [picture] = report.mistakes(base, 1)
    assert {path.stem for path in (base.folder / "figures").iterdir()} >= {"01_rolls", "05_music"}
    [written], _ = collect(base.folder / "music" / "1.mid")
    assert written.score.note_num() > 0
    assert (base.folder / "model" / "model.safetensors").exists() and picture is not None


# --- one run's adapters on everybody's music ---------------------------------------------------------------


def test_every_net_is_judged_on_every_composer(pair, base):
    run = pair[0]
    finals = run.finals()
    assert [name for name in finals if "_on_" in name] == [
        f"test_{kind}_on_{name}" for name in THREE for kind in ("loss", "base")
    ], "of the fourth there is too little"
    plain, parts = runs.trained(base), by_composer(base.splits)
    for name in ("bach", "nottingham"):
        expected = tasks.Language().loss(plain, parts[name])
        assert finals[f"test_base_on_{name}"].tolist() == pytest.approx([expected] * len(finals), rel=1e-5)
    assert finals["test_loss_on_bach"].tolist() == pytest.approx(finals["test_loss"].tolist(), rel=1e-5)
    table, halves = report.by_group(finals)
    assert list(table.index) == ["base", "hybrid", "lora"] and list(table) == list(THREE)
    assert table.loc["base", "mozart"] == pytest.approx(finals["test_base_on_mozart"][0])
    assert halves.loc["lora", "mozart"] > 0
    assert report.by_group(pd.DataFrame({"net": ["hybrid"], "test_accuracy": [0.5]}))[0].empty


def test_it_stays_cheap(base, monkeypatch):
    assert list(tasks.Music().judge(None, base.splits, {"loss": 1})) == ["perplexity"]
    monkeypatch.setattr("qnnkit.tasks.music.MOST_BLOCKS", 1)
    found = tasks.Music(settings=base.config).composers
    assert list(found) == list(THREE) and {len(each.test) for each in found.values()} == {1}
    assert not any("base_on" in name for name in base.finals()), "a net without an adapter has no base"


# --- the matrix over runs ----------------------------------------------------------------------------------


def test_the_matrix_over_composers_is_a_pivot_of_the_frame(pair):
    whole = runs.frame([run.folder for run in pair])
    frame = whole.explode("composers")
    columns = [f"test_loss_on_{name}" for name in THREE]
    table = frame.pivot_table(index=["net", "composers"], values=columns)
    means, halves = report.by_group(frame, ("net", "composers"))
    assert list(means.index) == ["base", "hybrid, bach", "lora, bach", "hybrid, mozart", "lora, mozart"]
    assert report.by_group(whole, ("net", "composers"))[0].equals(means), "lists are told as their words"
    for net, own in table.index:
        expected = [table.loc[(net, own), column] for column in columns]
        assert means.loc[f"{net}, {own}"].tolist() == pytest.approx(expected)
    assert halves.loc["base"].isna().all() and halves.drop("base").gt(0).all().all()
    values = frame.query("net == 'lora' and composers == 'mozart'")["test_loss_on_bach"].tolist()
    mean, _, high = stats.mean_interval(values)
    assert halves.loc["lora, mozart", "bach"] == pytest.approx(high - mean)


def test_nets_on_several_bases_stand_without_one(pair):
    rows = runs.frame([run.folder for run in pair]).reset_index(drop=True)
    rows.loc[0, "test_base_on_bach"] *= 1.1
    assert "base" not in report.by_group(rows)[0].index
    one = report.by_group(rows[:1])[1]
    assert one.isna().all().all(), "one seed says nothing of the spread"


# --- switching ---------------------------------------------------------------------------------------------


def test_adapters_of_several_runs_play_in_turn(pair, base):
    prompt, model = of_steps([[60], [64], [67]] * 4), causal_lm(base.folder / "model")
    tokens = pieces.tokenizer_of(base.folder / "model")

    def played(net):
        ids = torch.tensor([pieces.writing(tokens).encode(prompt)[0]])
        with torch.no_grad():
            return net.eval()(ids).logits, tasks.continue_piece(net, tokens, prompt, seed=1)

    for run, name in zip(pair, ("bach", "mozart"), strict=True):
        model = adapters.load(model, run.folder / "adapter", name)
    found = []
    for run, name in zip(pair, ("bach", "mozart"), strict=True):
        model.set_adapter(name)
        found.append(played(model))
        assert found[-1][1] == played(runs.trained(run))[1], name
    with model.disable_adapter():
        found.append(played(model))
    assert found[-1][1] == played(runs.trained(base))[1]
    assert all(not torch.allclose(one, two) for (one, _), (two, _) in itertools.combinations(found, 2))
