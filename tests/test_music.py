"""Music that a net writes through windows and adapters, losses by composer, and sound."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from symusic import Note, Score, Tempo, Track
from torch import nn

from qnnkit.data.music_tokens import writing
from qnnkit.data.pieces import collect, of_steps
from qnnkit.models.blocks import seeded
from qnnkit.tasks import continue_piece, synthesise
from tests import nets
from tests.test_music_data import BAR, BORDERS, BOS, EOS, TOKENS, band, heard
from tests.toys import real

SIZE = len(TOKENS)
PROMPT = of_steps([[48, 60, 64], [48, 60, 64], [48, 62], [48, 62]] * 4)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Nets that were not trained hardly ever end a bar."""
    monkeypatch.setattr("qnnkit.tasks.music.MOST_TOKENS", 300)


def llama(seed: int = 0, positions: int = 64) -> nn.Module:
    """A tiny net whose random weights have strong opinions."""
    ids = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": TOKENS.pad_token_id}
    model = nets.llama(seed, vocab_size=SIZE, intermediate_size=32, max_position_embeddings=positions, **ids)
    with seeded(seed), torch.no_grad():
        nn.init.normal_(model.lm_head.weight, std=2.0)
        bias = torch.zeros(SIZE)
        bias[BAR] = 4.0  # so that bars come to an end
        model.lm_head.bias = nn.Parameter(bias)
    return model


# --- generation


def test_a_continuation_goes_on_from_what_is_given_by_its_seed():
    model, before = llama().train(), torch.get_rng_state()
    given = TOKENS.decode(TOKENS.encode(band()).ids)
    played = continue_piece(model, TOKENS, band(), 3, seed=3)
    assert torch.equal(torch.get_rng_state(), before) and model.training
    assert heard(played) > heard(given) and heard(given) == heard(band())
    assert [round(each.qpm) for each in played.tempos][:2] == [87, 143]
    assert {-1, 0, 40, 73} <= {program for program, *_ in heard(played)}
    assert continue_piece(model, TOKENS, band(), 3, seed=3) == played
    assert continue_piece(model, TOKENS, band(), 3, seed=4) != played
    assert continue_piece(model, TOKENS, Score(24), 2).note_num()


def test_windows_begin_at_a_bar_or_a_position_and_no_position_is_passed(monkeypatch, recwarn):
    model, contexts, seen = llama(positions=64), [], []
    generate = model.generate
    note = lambda module, given, named: seen.append(int(named["position_ids"].max()))  # noqa: E731
    model.model.register_forward_pre_hook(note, with_kwargs=True)

    def spy(input_ids, **options):
        contexts.append(input_ids[0].tolist())
        return generate(input_ids=input_ids, **options)

    monkeypatch.setattr(model, "generate", spy)
    continue_piece(model, TOKENS, band(), 2, seed=1)  # longer than a window
    assert len(contexts) > 2 and max(seen) in (62, 63) and not recwarn.list
    assert all(context[0] in BORDERS or not BORDERS & {*context} for context in contexts)
    assert max(map(len, contexts)) <= 32 and sum(context[0] in BORDERS for context in contexts) > 2


def test_only_music_is_drawn():
    """A net that wants nothing but marks and pitches without programs still plays, and time goes forward."""
    model = llama(positions=2048)
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.bias[[0, BOS, EOS]] = 40.0
        model.lm_head.bias[TOKENS.token_ids_of_type("Pitch")] = 20.0
    assert continue_piece(model, TOKENS, PROMPT, 2).note_num() > PROMPT.note_num()
    allowed, ids = writing(TOKENS).allowed, [BOS]
    generator = torch.Generator().manual_seed(0)
    for _ in range(2000):
        may = allowed(torch.tensor([ids]), torch.zeros(1, SIZE + 3))[0].isfinite()
        assert may.any() and not may[SIZE:].any() and not may[TOKENS.special_tokens_ids].any()
        ids.append(int(torch.multinomial(may.double(), 1, generator=generator)))
    moments, bars = [], 0
    for name in map(TOKENS.__getitem__, ids):
        bars += name == "Bar_None"
        moments += [(bars, int(name.partition("_")[2]))] if name.startswith("Position") else []
    assert moments == sorted(set(moments)) and bars > 1
    n_notes = sum(TOKENS[token].startswith("Duration") for token in ids)
    assert abs(TOKENS.decode(ids[1:]).note_num() - n_notes) <= 0 < n_notes


@pytest.mark.data
def test_every_real_token_is_one_that_may_come_next():
    allowed = writing(TOKENS).allowed
    for piece in collect(real("music", "nottingham_midi.zip"))[0][::300]:
        ids = [BOS, *TOKENS.encode(piece.score).ids]
        for i in range(1, len(ids)):
            assert allowed(torch.tensor([ids[:i]]), torch.zeros(1, SIZE))[0, ids[i]] == 0, TOKENS[ids[i]]


def test_the_likeliest_and_what_is_refused():
    greedy = continue_piece(llama(), TOKENS, PROMPT, 3, temperature=0)
    for settings in ({"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-6}):
        assert continue_piece(llama(), TOKENS, PROMPT, 3, seed=9, **settings) == greedy
    for settings in ({"n_bars": 0}, {"temperature": -0.1}, {"top_p": -0.5}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            continue_piece(llama(), TOKENS, PROMPT, **settings)
    broken = llama()
    nn.init.constant_(broken.lm_head.weight, torch.nan)
    with pytest.raises(FloatingPointError, match="not finite"):
        continue_piece(broken, TOKENS, PROMPT)


# --- sound


def tone(pitch: int, velocity: int = 80, drum: bool = False, tempo: float = 60) -> Score:
    score, track = Score(24), Track(is_drum=drum)
    track.notes.append(Note(0, 48, pitch, velocity))
    score.tracks.append(track)
    score.tempos.append(Tempo(0, tempo))
    return score


def test_sound():
    sound = synthesise(tone(69), rate=8000)  # two quarters, a second each
    assert sound.dtype == np.float32 and sound.shape == (3 * 8000 + 1,)
    strength = np.abs(np.fft.rfft(sound[:16000]))
    assert np.argmax(strength) == 880 and np.abs(sound).max() == pytest.approx(0.9)  # bins of half a hertz
    assert np.abs(sound[int(2.1 * 8000) :]).max() == 0  # it ends with the piece
    ends = np.abs([*sound[:4], *sound[np.flatnonzero(sound)[-4:]]])
    assert ends.max() < 0.03  # no click
    assert len(synthesise(tone(69, tempo=120), rate=8000)) == 2 * 8000 + 1
    drum = np.abs(np.fft.rfft(synthesise(tone(36, drum=True), rate=8000)))
    assert drum.max() < 20 * np.median(drum) < strength.max()  # noise has no pitch
    assert not synthesise(Score(24)).any() and len(synthesise(Score(24))) == 22051
    with pytest.raises(ValueError, match="rate"):
        synthesise(Score(24), rate=0)
