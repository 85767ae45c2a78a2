"""Music as runs: a base, an adapter for each composer, and what each is worth on whose music."""

import itertools

import pandas as pd
import pytest
import torch

from qnnkit import adapters, report, runs, stats, tasks
from qnnkit.data import pieces
from qnnkit.data.pieces import collect, of_steps
from qnnkit.models import causal_lm
from tests.toys import by_composer, music

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

TINY = {"sequence_length": 64, "batch_size": 8, "device": "cpu", "threads": 1, "gradient_samples": 0}
THREE = ("bach", "mozart", "nottingham")
ADAPTED = THREE[:2]


def trained(folder, recipe, **settings):
    run = runs.open_run(folder, recipe, **TINY, epochs=1, **settings)
    list(runs.train_all(run))
    report.finish(run)
    return run


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Music of three composers; a fourth has too few pieces for splits."""
    place = tmp_path_factory.mktemp("composers")
    for third, name in enumerate(("mozart.json", "bach.json", "nottingham.json.gz"), start=3):
        music(place / name, third)
    music(place / "scarce.json", 6, 2)
    return place


@pytest.fixture(scope="module")
def base(home, tmp_path_factory):
    folder = tmp_path_factory.mktemp("base") / "run"
    return trained(folder, "music_llama", data_dir=str(home), composers=["bach", "nottingham"])


@pytest.fixture(scope="module")
def pair(home, base, tmp_path_factory):
    """Finished runs of both composers: a quantum adapter, and LoRA beside it."""
    folder, common = tmp_path_factory.mktemp("adapters"), {"data_dir": str(home), "n_seeds": 2}
    common |= {"pretrained": str(base.folder / "model"), "controls": ["lora"]}
    return [trained(folder / name, "music_adapter", composers=[name], **common) for name in ADAPTED]


def test_music_is_trained_written_and_drawn(base):
    assert base.result["nets"][0]["score"] < torch.tensor(950.0).log()
    report.preview(base)
    [picture] = report.mistakes(base, 1)
    assert {path.stem for path in (base.folder / "figures").iterdir()} >= {"01_rolls", "05_music"}
    [written], _ = collect(base.folder / "music" / "1.mid")
    assert written.score.note_num() > 0
    assert (base.folder / "model" / "model.safetensors").exists() and picture is not None


def test_every_net_is_judged_on_every_composer(pair, base, monkeypatch):
    finals = pair[0].finals()
    assert [name for name in finals if "_on_" in name] == [
        f"test_{kind}_on_{name}" for name in THREE for kind in ("loss", "base")
    ], "of the fourth there is too little"
    plain, parts = runs.trained(base), by_composer(base.splits)
    for name in ("bach", "nottingham"):
        expected = tasks.Language().loss(plain, parts[name])
        assert finals[f"test_base_on_{name}"].tolist() == pytest.approx([expected] * len(finals), rel=1e-5)
    assert finals["test_loss_on_bach"].tolist() == pytest.approx(finals["test_loss"].tolist(), rel=1e-5)
    assert not any("base_on" in name for name in base.finals()), "a net without an adapter has no base"
    assert list(tasks.Music().judge(None, base.splits, {"loss": 1})) == ["perplexity"]
    monkeypatch.setattr("qnnkit.tasks.music.MOST_BLOCKS", 1)
    cheap = tasks.Music(settings=base.config).composers
    assert list(cheap) == list(THREE) and {len(each.test) for each in cheap.values()} == {1}


def test_the_matrix_over_composers_is_a_pivot_of_the_frame(pair):
    whole = runs.frame([run.folder for run in pair]).reset_index(drop=True)
    frame, columns = whole.explode("composers"), [f"test_loss_on_{name}" for name in THREE]
    means, halves = report.by_group(frame, ("net", "composers"))
    assert list(means.index) == ["base", "hybrid, bach", "lora, bach", "hybrid, mozart", "lora, mozart"]
    assert report.by_group(whole, ("net", "composers"))[0].equals(means), "lists are told as their words"
    for (net, own), expected in frame.groupby(["net", "composers"])[columns].mean().iterrows():
        assert means.loc[f"{net}, {own}"].tolist() == pytest.approx(expected.tolist())
    assert means.loc["base", "mozart"] == pytest.approx(whole["test_base_on_mozart"][0])
    assert halves.loc["base"].isna().all() and halves.drop("base").gt(0).all().all()
    values = frame.query("net == 'lora' and composers == 'mozart'")["test_loss_on_bach"].tolist()
    mean, _, high = stats.mean_interval(values)
    assert halves.loc["lora, mozart", "bach"] == pytest.approx(high - mean)
    whole.loc[0, "test_base_on_bach"] *= 1.1
    assert "base" not in report.by_group(whole)[0].index, "nets on several bases have none in common"
    assert report.by_group(whole[:1])[1].isna().all().all(), "one seed says nothing of the spread"
    assert report.by_group(pd.DataFrame({"net": ["hybrid"], "test_accuracy": [0.5]}))[0].empty


def test_adapters_of_several_runs_are_switched(pair, base):
    written = pieces.writing(pieces.tokenizer_of(base.folder / "model"))
    ids = torch.tensor([written.encode(of_steps([[60], [64], [67]] * 4))[0]])

    def given(net):
        with torch.no_grad():
            return net.eval()(ids).logits

    model, expected = causal_lm(base.folder / "model"), [given(runs.trained(run)) for run in (*pair, base)]
    for run, name in zip(pair, ADAPTED, strict=True):
        model = adapters.load(model, run.folder / "adapter", name)
    found = [model.set_adapter(name) or given(model) for name in ADAPTED]
    with model.disable_adapter():
        found.append(given(model))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert all(not torch.allclose(one, two) for one, two in itertools.combinations(found, 2))
