"""Tokenizers of captions: what they learn, what they cut, and that they come back from a folder."""

from __future__ import annotations

import pytest
import torch

from qnnkit.data.tokenizers import EOS, SPECIAL, encode, losses, of_captions, trained
from tests.toys import refused

TEXTS = ["A dog runs, fast.", "a dog sleeps", "The cat and the dog"]
LONG = " ".join(["dog"] * 40)


def test_texts_come_back_between_a_begin_and_an_end_also_from_a_folder(tmp_path):
    tokenizer = of_captions(None, TEXTS, 12)
    ids, mask = encode(tokenizer, ["a dog sleeps", "THE CAT", LONG])
    assert ids.shape == mask.shape == (3, 12) and ids.dtype == mask.dtype == torch.int64
    told = [tokenizer.decode(row, skip_special_tokens=True) for row in ids]
    assert told == ["a dog sleeps", "the cat", " ".join(["dog"] * 10)]
    assert tokenizer.eos_token_id == SPECIAL.index(EOS) != 2  # where transformers pools texts elsewhere
    for row, n in zip(ids.tolist(), mask.sum(1).tolist(), strict=True):
        assert (row[0], row[n - 1]) == (tokenizer.bos_token_id, tokenizer.eos_token_id)
        assert {*row[n:]} <= {tokenizer.pad_token_id}
    assert losses(tokenizer, ["a dog sleeps"]) == []
    [note] = losses(tokenizer, [LONG, "a dog", "a zebra sleeps"])
    assert "of 3 captions 1 are cut to 10 tokens (sequence_length), 1 have words" in note
    tokenizer.save_pretrained(tmp_path)
    loaded = of_captions(tmp_path, ["other"])
    again = encode(loaded, ["a dog sleeps", "THE CAT", LONG])
    assert torch.equal(again[0], ids) and torch.equal(again[1], mask)
    assert encode(of_captions(tmp_path, (), 5), TEXTS)[0].shape == (3, 5)


@pytest.mark.parametrize(
    ("wanted", "length", "argument"),
    [(None, 2, "sequence_length"), ("{}", 8, "tokenizer"), ("nobody/nothing", None, "tokenizer")],
)
def test_refusals(tmp_path, monkeypatch, wanted, length, argument):
    """Of one that puts no end behind a text, and of what is no tokenizer."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    trained(TEXTS, 300).save_pretrained(tmp_path)
    with refused(argument):
        of_captions(wanted and wanted.format(tmp_path), TEXTS, length)
