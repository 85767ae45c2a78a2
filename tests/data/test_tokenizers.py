"""Tokenizers of captions: what they learn, what they cut, and that they come back from a folder."""

from __future__ import annotations

import pytest
import torch

from qnnkit.data.tokenizers import EOS, SPECIAL, encode, losses, of_captions, trained
from tests.toys import refused

TEXTS = ["A dog runs, fast.", "a dog sleeps", "The cat and the dog"]
LONG = " ".join(["dog"] * 40)


@pytest.fixture(scope="module")
def tokenizer():
    return of_captions(None, TEXTS, 12)


def test_texts_come_back_between_a_begin_and_an_end(tokenizer):
    ids, mask = encode(tokenizer, ["a dog sleeps", "THE CAT", LONG])
    assert ids.shape == mask.shape == (3, 12) and ids.dtype == mask.dtype == torch.int64
    told = [tokenizer.decode(row, skip_special_tokens=True) for row in ids]
    assert told == ["a dog sleeps", "the cat", " ".join(["dog"] * 10)]
    assert tokenizer.eos_token_id == SPECIAL.index(EOS) != 2  # where transformers pools texts elsewhere
    for row, counts in zip(ids, mask, strict=True):
        n = int(counts.sum())
        assert row[0] == tokenizer.bos_token_id and row[n - 1] == tokenizer.eos_token_id
        assert (row[n:] == tokenizer.pad_token_id).all() and counts[:n].all() and not counts[n:].any()


def test_what_is_lost_is_told(tokenizer):
    assert losses(tokenizer, ["a dog sleeps"]) == []
    [note] = losses(tokenizer, [LONG, "a dog", "a zebra sleeps"])
    assert "of 3 captions 1 are cut to 10 tokens (sequence_length), 1 have words" in note


def test_it_comes_back_from_a_folder(tokenizer, tmp_path):
    from transformers import AutoTokenizer

    tokenizer.save_pretrained(tmp_path)
    texts = [*TEXTS, "a zebra!"]
    loaded = of_captions(tmp_path, ["other"])
    assert loaded.model_max_length == 12 and loaded.get_vocab() == tokenizer.get_vocab()
    for one, other in zip(encode(loaded, texts), encode(tokenizer, texts), strict=True):
        assert torch.equal(one, other)
    plain = AutoTokenizer.from_pretrained(str(tmp_path))
    assert plain(texts[0])["input_ids"] == tokenizer(texts[0])["input_ids"]
    assert encode(of_captions(tmp_path, (), 5), texts)[0].shape == (4, 5)


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
