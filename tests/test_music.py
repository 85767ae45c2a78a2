"""Music that a net writes through windows and adapters, losses by composer, and sound."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from qnnkit import recipes
from qnnkit.adapters import adapt
from qnnkit.data.music_blocks import music
from qnnkit.data.music_events import DURATION, END, PAD, PITCH, SIZE, START, TIME, MusicTokenizer, Piece
from qnnkit.data.tokens import IGNORED
from qnnkit.models.blocks import seeded
from qnnkit.tasks import Music, continue_piece, evaluate, synthesise
from qnnkit.tasks.sampling import _draw
from tests import nets
from tests.toys import by_composer, refused

TOKENIZER = MusicTokenizer()
PROMPT = Piece("prompt", ((48, 60, 64), (48, 60, 64), (48, 62), (48, 62)) * 3, "ann")


def llama(seed: int = 0, positions: int = 64, sharpness: float = 8.0) -> nn.Module:
    """A tiny net whose random weights have strong opinions."""
    ids = {"bos_token_id": START, "eos_token_id": END, "pad_token_id": PAD}
    sizes = {"vocab_size": SIZE, "intermediate_size": 32, "max_position_embeddings": positions}
    model = nets.llama(seed, **sizes, **ids)
    with seeded(seed):
        nn.init.normal_(model.lm_head.weight, std=sharpness / 4)
    return model


class Plain(nn.Module):
    """A net that keeps no cache and tells no window; notes what it is asked."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner, self.asked = inner, []

    def forward(self, input_ids):
        self.asked.append(input_ids[0].tolist())
        return SimpleNamespace(logits=self.inner(input_ids=input_ids).logits)


class Script(nn.Module):
    """Always wants the next event of a list, whatever it is asked."""

    def __init__(self, ids):
        super().__init__()
        self.ids, self.asked = iter(ids), []

    def forward(self, input_ids):
        self.asked.append(input_ids[0].tolist())
        return SimpleNamespace(logits=30.0 * nn.functional.one_hot(torch.tensor([[next(self.ids)]]), SIZE))


# --- generation


def test_a_continuation():
    model, before = llama().train(), torch.get_rng_state()
    played = continue_piece(model, PROMPT, 50, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    assert played.steps[:12] == PROMPT.steps and len(played) == 62
    assert played.composer == "ann" and model.training
    assert continue_piece(model, PROMPT, 50, seed=3) == played != continue_piece(model, PROMPT, 50, seed=4)
    assert any(note.start >= 12 for note in played.notes())
    nothing = continue_piece(model, Piece("new", ()), 20)
    assert len(nothing) == 20 and nothing.notes()


@pytest.mark.parametrize("window", [32, 64])
def test_the_cache_changes_nothing_and_the_window_slides(window):
    model = llama()
    cached = continue_piece(model, PROMPT, 200, seed=1, window=window)
    plain = Plain(model)
    slow = continue_piece(plain, PROMPT, 200, seed=1, window=window)
    assert cached == slow
    ids, slides = plain.asked[0], 0
    assert ids == [START, *TOKENIZER.encode(PROMPT, marks=False)][: len(ids)]
    for before, now in zip(plain.asked, plain.asked[1:], strict=False):
        assert len(now) < window
        if len(now) == len(before) + 1:
            assert now[:-1] == before
        else:  # the last half of what was there, from the first time in it
            slides += 1
            whole = [*before, now[-1]]
            half = whole[len(whole) - window // 2 :]
            assert len(whole) == window and now == half[len(half) - len(now) :]
            skipped = half[: len(half) - len(now)]
            assert TIME <= now[0] < DURATION and not any(TIME <= token < DURATION for token in skipped)
    assert slides >= 2


def test_whatever_the_model_wants_to_play_is_played_through_all_windows():
    """A scripted piece with long notes, struck anew, comes out note by note: no window loses any."""
    steps = [(36, 60 + i % 3, 72 - i // 7 % 5) for i in range(150)]
    again = [(), *((36,) if i % 40 == 0 else () for i in range(1, 150))]
    piece = Piece("prompt", tuple(steps), again=tuple(again))
    script = Script(TOKENIZER.encode(piece, marks=False))
    played = continue_piece(script, Piece("prompt", ()), 150, window=32, seed=5)
    assert played == piece and max(map(len, script.asked)) == 31


def test_only_music_is_drawn():
    """A net that wants nothing but padding, ends and pitches without durations still plays."""

    class Stubborn(nn.Module):
        def forward(self, input_ids):
            logits = torch.zeros(1, 1, SIZE)
            logits[..., [PAD, START, END]] = 40.0
            logits[..., PITCH:] = 20.0
            return SimpleNamespace(logits=logits)

    played = continue_piece(Stubborn(), PROMPT, 6)
    assert len(played) == 18 and played.notes()


def test_the_likeliest():
    greedy = continue_piece(llama(), PROMPT, 30, temperature=0)
    for settings in ({"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-6}):
        assert continue_piece(llama(), PROMPT, 30, seed=9, **settings) == greedy


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0.5, 0.25, 0.15, 0.1]),
        ({"top_k": 2}, [2 / 3, 1 / 3, 0, 0]),
        ({"top_p": 0.49}, [1, 0, 0, 0]),
        ({"top_p": 0.51}, [2 / 3, 1 / 3, 0, 0]),
        ({"top_p": 0.8}, [0.5 / 0.9, 0.25 / 0.9, 0.15 / 0.9, 0]),
        ({"temperature": 0.5}, [0.25 / 0.345, 0.0625 / 0.345, 0.0225 / 0.345, 0.01 / 0.345]),
    ],
)
def test_draws_have_their_probabilities(settings, expected):
    tokens = [70, 20, 100, 40]  # in any order
    logits, allowed = torch.full((SIZE,), 5.0), torch.zeros(SIZE, dtype=torch.bool)
    logits[tokens] = torch.tensor([0.5, 0.25, 0.15, 0.1]).log()
    allowed[tokens] = True
    settings = {"temperature": 1.0, "top_p": 1.0, "top_k": None} | settings
    generator = torch.Generator().manual_seed(0)
    drawn = [_draw(logits, allowed, **settings, generator=generator) for _ in range(4000)]
    assert set(drawn) <= set(tokens)
    shares = [drawn.count(token) / 4000 for token in tokens]
    assert shares == pytest.approx(expected, abs=0.03)  # four standard errors
    assert all(share == 0 for share, wanted in zip(shares, expected, strict=True) if wanted == 0)


def logits_as(values: torch.Tensor) -> nn.Module:
    net = Script([3])
    net.forward = lambda input_ids: SimpleNamespace(logits=values[None, None])
    return net


@pytest.mark.parametrize(
    ("argument", "net", "settings"),
    [
        ("n_steps", llama, {"n_steps": 0}),
        ("temperature", llama, {"temperature": -0.1}),
        ("top_p", llama, {"top_p": 0.0}),
        ("top_k", llama, {"top_k": 0}),
        *(("window", llama, {"window": window}) for window in (31, 65)),
        ("model", lambda: logits_as(torch.zeros(10)), {}),
    ],
)
def test_refusals(argument, net, settings):
    with refused(argument):
        continue_piece(net(), PROMPT, **{"n_steps": 4} | settings)


def test_logits_that_are_not_finite_and_a_padded_vocabulary():
    with pytest.raises(FloatingPointError, match="not finite"):
        continue_piece(logits_as(torch.full((SIZE,), torch.nan)), PROMPT, 4)
    assert continue_piece(logits_as(torch.arange(200.0)), PROMPT, 4).notes()


# --- losses


def written(folder, name, first, n):
    pieces = {f"{i}": [[first + (i + j) % 5] for j in range(30 + 7 * i)] for i in range(n)}
    (folder / f"{name}.json").write_text(json.dumps(pieces))


@pytest.fixture(scope="module")
def splits(tmp_path_factory):
    """Two composers who share no pitch, in blocks that are padded."""
    folder = tmp_path_factory.mktemp("music")
    for name, first in (("ann", 40), ("bob", 70)):
        written(folder, name, first, 6)
    return by_composer(music(folder, sequence_length=64))


class Unigram(nn.Module):
    """Foretells each token by how often it is, wherever it stands."""

    def __init__(self, counts: torch.Tensor):
        super().__init__()
        self.logits = nn.Parameter((counts.double() + 0.5).log())

    def forward(self, input_ids, use_cache=False):
        return SimpleNamespace(logits=self.logits.expand(*input_ids.shape, SIZE))


def unigram(part) -> Unigram:
    labels = part.train.labels[:, 1:]
    return Unigram(torch.bincount(labels[labels != IGNORED], minlength=SIZE))


def mean_nats(model, splits, split="validation", **options):
    return evaluate(model, splits, split, **options)["loss"]


def test_mean_nats(splits):
    """Over tokens, not over blocks; padding counts for nothing; every batch size gives the same."""
    model = unigram(splits["bob"])
    log_probs = model.logits.detach().log_softmax(0)
    labels = splits["ann"].validation.labels[:, 1:]
    expected = float(-log_probs[labels[labels != IGNORED]].mean())
    for batch_size in (1, 2, 99):
        found = mean_nats(model, splits["ann"], batch_size=batch_size)
        assert found == pytest.approx(expected, rel=1e-5)
    blocks = [float(-log_probs[row[row != IGNORED]].mean()) for row in labels]
    assert abs(np.mean(blocks) - expected) > 1e-4 * expected
    uniform = Unigram(torch.zeros(SIZE)).train()
    assert mean_nats(uniform, splits["ann"], "test") == pytest.approx(math.log(SIZE), rel=1e-5)
    assert uniform.training


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_a_net_is_judged_on_every_composer(tmp_path, capsys):
    for name, first, n in (("ann", 40, 6), ("bob", 70, 6), ("scarce", 50, 2)):
        written(tmp_path, name, first, n)
    given = {"data_dir": str(tmp_path), "composers": ["bob"], "sequence_length": 64}
    task, model = Music(settings=recipes.settings("music_llama", **given)), nets.shaken(adapt(llama()))
    found = task.judge(model, {"loss": 1.0})
    assert list(found) == ["perplexity", "loss_on_bob", "base_on_bob", "loss_on_ann", "base_on_ann"]
    for name in ("ann", "bob"):
        alone = music(tmp_path / f"{name}.json", sequence_length=64)
        assert found[f"loss_on_{name}"] == pytest.approx(mean_nats(model, alone, "test"))
        assert found[f"base_on_{name}"] == pytest.approx(mean_nats(llama(), alone, "test"), rel=1e-6)
        assert found[f"loss_on_{name}"] != pytest.approx(found[f"base_on_{name}"], rel=1e-3)
    told = capsys.readouterr().out
    assert "scarce is left out of the losses by composer. Argument `data_dir` must hold enough" in told
    assert list(Music().judge(model, {"loss": 1.0})) == ["perplexity"]


# --- sound


def test_sound():
    sound = synthesise(Piece("a", ((69,),) * 8), bpm=60, rate=8000)
    assert sound.dtype == np.float32 and sound.shape == (3 * 8000 + 1,)
    strength = np.abs(np.fft.rfft(sound[:16000]))
    assert np.argmax(strength) == 880 and np.abs(sound).max() == pytest.approx(0.9)  # bins of half a hertz
    assert np.abs(sound[int(2.1 * 8000) :]).max() == 0  # it ends with the piece
    ends = np.abs([*sound[:4], *sound[np.flatnonzero(sound)[-4:]]])
    assert ends.max() < 0.03  # no click
    assert not synthesise(Piece("a", ((),) * 8)).any() and len(synthesise(Piece("a", ()))) == 22051
    assert np.isfinite(synthesise(Piece("a", (tuple(range(128)),)))).all()
    for name in ("bpm", "rate"):
        with refused(name):
            synthesise(Piece("a", ()), **{name: 0})
