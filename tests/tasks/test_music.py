"""Music that a net writes behind a beginning."""

from __future__ import annotations

import pytest
import torch
from symusic import Score
from torch import nn

from qnnkit.data.pieces import collect, of_steps, writing
from qnnkit.models.blocks import seeded
from qnnkit.tasks import continue_piece
from qnnkit.tasks.language import continuation
from tests import nets
from tests.data.test_music_data import BOS, EOS, TOKENS, band, heard
from tests.toys import real

PROMPT = of_steps([[48, 60, 64], [48, 60, 64], [48, 62], [48, 62]] * 4)


def llama(seed: int = 0, positions: int = 256) -> nn.Module:
    """A tiny net whose random weights have strong opinions."""
    ids = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": TOKENS.pad_token_id}
    sizes = {"vocab_size": len(TOKENS), "intermediate_size": 32, "max_position_embeddings": positions}
    model = nets.llama(seed, **sizes, **ids)
    with seeded(seed), torch.no_grad():
        nn.init.normal_(model.lm_head.weight, std=2.0)
    return model


def test_a_continuation_goes_on_from_what_is_given_by_its_seed():
    model = llama(positions=512).train()
    given = TOKENS.decode(TOKENS.encode(band()).ids)
    played = continue_piece(model, TOKENS, band(), seed=3)
    assert model.training
    assert heard(given) == heard(band()) and heard(played) > heard(given)
    assert [round(each.qpm) for each in played.tempos][:2] == [87, 143]
    assert {-1, 0, 40, 73} <= {program for program, *_ in heard(played)}
    assert continue_piece(model, TOKENS, band(), seed=3) == played
    assert continue_piece(model, TOKENS, band(), seed=4) != played
    assert continue_piece(model, TOKENS, Score(24)).note_num()


def test_only_music_is_written():
    """A net that wants nothing but marks and pitches without programs still plays."""
    model = llama()
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.bias = nn.Parameter(torch.zeros(len(TOKENS)))
        model.lm_head.bias[TOKENS.special_tokens_ids] = 40.0
        model.lm_head.bias[TOKENS.token_ids_of_type("Pitch")] = 20.0
    given = {"ids": TOKENS.encode(PROMPT).ids, "n": 128, "allowed": writing(TOKENS).allowed}
    new = continuation(model, **given)
    assert not {*TOKENS.special_tokens_ids} & {*new}
    n_notes = sum(TOKENS[token].startswith("Duration") for token in new)
    assert continue_piece(model, TOKENS, PROMPT).note_num() - PROMPT.note_num() == n_notes > 0


@pytest.mark.data
def test_every_real_token_is_one_that_may_come_next():
    allowed = writing(TOKENS).allowed
    for piece in collect(real("music", "nottingham_midi.zip"))[0][::300]:
        ids = [BOS, *TOKENS.encode(piece.score).ids]
        for i in range(1, len(ids)):
            assert allowed(torch.tensor([ids[:i]]), torch.zeros(1, len(TOKENS)))[0, ids[i]] == 0


def test_the_likeliest_and_what_is_refused():
    greedy = continue_piece(llama(), TOKENS, PROMPT, temperature=0)
    for settings in ({"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-6}):
        assert continue_piece(llama(), TOKENS, PROMPT, seed=9, **settings) == greedy
    for settings in ({"n": 0}, {"n": 256}, {"temperature": -0.1}, {"top_p": -0.5}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            continue_piece(llama(), TOKENS, PROMPT, **settings)
