"""Tokenizers of captions: what they learn, what they cut, and that they come back from a folder."""

from __future__ import annotations

import pytest
import torch

from qnnkit.data.tokenizers import EOS, SPECIAL, encode, losses, of_captions
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
    assert encode(tokenizer, [])[0].shape == (0, 12)
    assert tokenizer.eos_token_id == SPECIAL.index(EOS) != 2  # where transformers pools texts elsewhere
    for row, counts in zip(ids, mask, strict=True):
        n = int(counts.sum())
        assert row[0] == tokenizer.bos_token_id and row[n - 1] == tokenizer.eos_token_id
        assert (row[n:] == tokenizer.pad_token_id).all() and counts[:n].all() and not counts[n:].any()


def test_what_is_lost_is_told(tokenizer):
    cut, unknown = "Cut 1 of 2 captions to 10 tokens (sequence_length).", "Tokenizer: 25.0 % of the words"
    for texts, begins in (
        ([], []),
        (["a dog sleeps"], []),
        ([LONG, "a dog"], [cut]),
        (["a zebra sleeps", "dog"], [unknown]),
    ):
        for note, begin in zip(losses(tokenizer, texts), begins, strict=True):
            assert note.startswith(begin)
    ids, _ = encode(tokenizer, ["a zebra sleeps"])
    assert ids[0].tolist().count(tokenizer.unk_token_id) == 1


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
    assert of_captions(tokenizer, ["other"]) is tokenizer and tokenizer.model_max_length == 12


def endless():
    """A tokenizer of transformers that puts no end."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({"a": 0, "</s>": 1, "?": 2}, unk_token="?"))
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>", unk_token="?")


@pytest.mark.parametrize(
    ("wanted", "length", "argument"),
    [
        (None, 2, "sequence_length"),
        (endless, 8, "tokenizer"),
        ("{folder}", None, "tokenizer"),
        ("nobody/nothing", None, "tokenizer"),
    ],
)
def test_refusals(tmp_path, monkeypatch, wanted, length, argument):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    wanted = wanted.format(folder=tmp_path) if isinstance(wanted, str) else wanted and wanted()
    with refused(argument):
        of_captions(wanted, TEXTS, length)
