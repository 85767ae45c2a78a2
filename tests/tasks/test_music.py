"""Runs on music: a base, an adapter per composer, their loss on every composer, and written music."""

from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from symusic import Score
from torch import nn

from qnnkit import report, runs, stats, tasks
from qnnkit.data.pieces import collect, of_steps, writing
from qnnkit.models.blocks import seeded
from qnnkit.tasks import continue_piece
from qnnkit.tasks.language import continuation
from tests import nets
from tests.data.test_music_data import BOS, EOS, TOKENS, band, heard
from tests.toys import by_composer, music, refused, trained

TINY = {"sequence_length": 64, "batch_size": 8, "device": "cpu", "threads": 1, "gradient_samples": 0}
TINY |= {"epochs": 1}
THREE = ("bach", "mozart", "nottingham")
ADAPTED = THREE[:2]


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
    run = trained(folder, "music_llama", **TINY, data_dir=str(home), composers=["bach", "nottingham"])
    report.finish(run)
    return run


@pytest.fixture(scope="module")
def pair(home, base, tmp_path_factory):
    """Runs of both composers: a quantum adapter and LoRA."""
    folder, common = tmp_path_factory.mktemp("adapters"), TINY | {"data_dir": str(home), "n_seeds": 2}
    common |= {"pretrained": str(base.folder / "model"), "controls": ["lora"]}
    return [trained(folder / name, "music_adapter", composers=[name], **common) for name in ADAPTED]


def test_a_music_model_is_trained_and_its_music_written_and_plotted(base):
    assert base.result["nets"][0]["score"] < torch.tensor(950.0).log()
    assert report.preview(base) != report.mistakes(base, 0) == []
    [picture] = report.mistakes(base, 1)
    assert {path.stem for path in (base.folder / "figures").iterdir()} >= {"01_rolls", "05_music"}
    [written], _ = collect(base.folder / "music" / "1.mid")
    assert written.score.note_num() > 0
    assert (base.folder / "model" / "model.safetensors").exists() and picture is not None


def test_every_net_is_evaluated_on_every_composer(pair, base, monkeypatch):
    finals = runs.frame(pair[0])
    columns = [f"test_{kind}_on_{name}" for name in THREE for kind in ("loss", "base")]
    assert [name for name in finals if "_on_" in name] == columns, "the fourth has too few pieces"
    plain, parts = runs.trained(base), by_composer(base.splits)
    for name in ("bach", "nottingham"):
        expected = tasks.Language().loss(plain, parts[name])
        assert finals[f"test_base_on_{name}"].tolist() == pytest.approx([expected] * len(finals), rel=1e-5)
    assert finals["test_loss_on_bach"].tolist() == pytest.approx(finals["test_loss"].tolist(), rel=1e-5)
    assert not any("base_on" in name for name in runs.frame(base)), "a net without an adapter has no base"
    assert list(tasks.Music().judge(None, base.splits, {"loss": 1})) == ["perplexity"]
    monkeypatch.setattr("qnnkit.tasks.music.MOST_BLOCKS", 1)
    cheap = tasks.Music(settings=base.config).composers
    assert list(cheap) == list(THREE) and {len(each.test) for each in cheap.values()} == {1}


def test_composers_are_evaluated_on_the_split_of_each_seed(home, tmp_path):
    settings = TINY | {"data_dir": str(home), "composers": ["bach"], "n_seeds": 2, "vary_split": True}
    finals = runs.frame(trained(tmp_path / "run", "music_llama", **settings))
    assert finals["test_loss_on_bach"].tolist() == pytest.approx(finals["test_loss"].tolist(), rel=1e-5)


def test_the_matrix_over_composers_is_a_pivot_of_the_frame(pair):
    table = runs.frame([run.folder for run in pair]).reset_index(drop=True)
    frame, columns = table.explode("composers"), [f"test_loss_on_{name}" for name in THREE]
    means, halves = report.by_group(frame, ("net", "composers"))
    assert list(means.index) == ["base", "hybrid, bach", "lora, bach", "hybrid, mozart", "lora, mozart"]
    assert report.by_group(table, ("net", "composers"))[0].equals(means), "lists are shown as words"
    for (net, composer), expected in frame.groupby(["net", "composers"])[columns].mean().iterrows():
        assert means.loc[f"{net}, {composer}"].tolist() == pytest.approx(expected.tolist())
    assert means.loc["base", "mozart"] == pytest.approx(table["test_base_on_mozart"][0])
    values = frame.query("net == 'lora' and composers == 'mozart'")["test_loss_on_bach"].tolist()
    mean, _, high = stats.mean_interval(values)
    assert halves.loc["lora, mozart", "bach"] == pytest.approx(high - mean)
    table.loc[0, "test_base_on_bach"] *= 1.1
    assert "base" not in report.by_group(table)[0].index, "nets on different bases share none"
    assert report.by_group(table[:1])[1].isna().all().all(), "one seed has no spread"
    assert report.by_group(pd.DataFrame({"net": ["hybrid"], "test_accuracy": [0.5]}))[0].empty


# --- continuing a beginning -------------------------------------------------------------------------------

PROMPT = of_steps([[48, 60, 64], [48, 60, 64], [48, 62], [48, 62]] * 4)


def llama(seed: int = 0, positions: int = 256) -> nn.Module:
    """A tiny net with large random weights."""
    ids = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": TOKENS.pad_token_id}
    sizes = {"vocab_size": len(TOKENS), "intermediate_size": 32, "max_position_embeddings": positions}
    model = nets.llama(seed, **sizes, **ids)
    with seeded(seed), torch.no_grad():
        nn.init.normal_(model.lm_head.weight, std=2.0)
    return model


def test_a_continuation_follows_the_prompt_and_depends_on_the_seed():
    model = llama(positions=512).train()
    prompt = TOKENS.decode(TOKENS.encode(band()).ids)
    played = continue_piece(model, TOKENS, band(), 64, seed=3)
    assert model.training
    assert heard(prompt) == heard(band()) and heard(played) > heard(prompt)
    assert [round(each.qpm) for each in played.tempos][:2] == [87, 143]
    assert {-1, 0, 40, 73} <= {program for program, *_ in heard(played)}
    assert continue_piece(model, TOKENS, band(), 64, seed=3) == played
    assert continue_piece(model, TOKENS, band(), 64, seed=4) != played
    assert continue_piece(model, TOKENS, Score(24), 64).note_num()


def test_only_valid_music_is_written():
    """A net that prefers markers and pitches without programs still writes notes."""
    model = llama(positions=128)
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.bias = nn.Parameter(torch.zeros(len(TOKENS)))
        model.lm_head.bias[TOKENS.special_tokens_ids] = 40.0
        model.lm_head.bias[TOKENS.token_ids_of_type("Pitch")] = 20.0
    options = {"ids": TOKENS.encode(PROMPT).ids, "n": 64, "logits_processor": [writing(TOKENS).allowed]}
    new = continuation(model, **options)
    with refused("top_p"):
        continuation(model, **options, top_p=5)
    assert not {*TOKENS.special_tokens_ids} & {*new}
    n_notes = sum(TOKENS[token].startswith("Duration") for token in new)
    assert continue_piece(model, TOKENS, PROMPT).note_num() - PROMPT.note_num() == n_notes > 0


def test_every_token_of_a_piece_is_an_allowed_next_token():
    ids, allowed = [BOS, *TOKENS.encode(band()).ids], writing(TOKENS).allowed
    for i in range(1, len(ids)):
        assert allowed(torch.tensor([ids[:i]]), torch.zeros(1, len(TOKENS)))[0, ids[i]] == 0


def test_the_likeliest_continuation_and_errors():
    greedy = continue_piece(llama(), TOKENS, PROMPT, 48, temperature=0)
    for settings in ({"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-6}):
        assert continue_piece(llama(), TOKENS, PROMPT, 48, seed=9, **settings) == greedy
    for settings in ({"n": 0}, {"n": 256}, {"temperature": -0.1}, {"top_p": -0.5}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            continue_piece(llama(), TOKENS, PROMPT, **settings)


def test_pieces_of_equal_name_get_separate_files(home, monkeypatch):
    monkeypatch.setattr("qnnkit.tasks.music.continue_piece", lambda net, tokens, score: score)
    files = [row["file"] for row in tasks.Music().predict(None, [home], SimpleNamespace(tokenizer=None))]
    assert len({*files}) == len(files) > 9
