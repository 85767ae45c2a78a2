"""The tokenizer of captions: what it learns, what it cuts, and that it comes back from a folder."""

from __future__ import annotations

import pytest
import torch

from qnnkit.data.tokenizers import EOS, SPECIAL, CaptionTokenizer, caption_tokenizer
from tests.toys import refused

TEXTS = ["A dog runs, fast.", "a dog sleeps", "The cat and the dog"]


@pytest.fixture
def tokenizer():
    return CaptionTokenizer.train(TEXTS, sequence_length=12, vocabulary=400)


def test_texts_come_back(tokenizer):
    ids, mask = tokenizer.encode(["a dog sleeps", "THE CAT"])
    assert ids.shape == mask.shape == (2, 12) and ids.dtype == mask.dtype == torch.int64
    assert [tokenizer.decode(row) for row in ids] == ["a dog sleeps", "the cat"]
    none, _ = tokenizer.encode([])
    assert none.shape == (0, 12) and tokenizer.losses([]) == []
    assert tokenizer.eos_id == SPECIAL.index(EOS) != 2  # of number 2 transformers pools texts elsewhere
    for row, counts in zip(ids, mask, strict=True):
        n = int(counts.sum())
        assert row[0] == tokenizer.bos_id and row[n - 1] == tokenizer.eos_id
        assert (row[n:] == tokenizer.pad_id).all() and counts[:n].all() and not counts[n:].any()


def test_a_long_text_keeps_its_end(tokenizer):
    [row], [counts] = tokenizer.encode([" ".join(["dog"] * 40)])
    assert counts.all() and row[-1] == tokenizer.eos_id
    assert "to 10 tokens (sequence_length)" in tokenizer.losses([" ".join(["dog"] * 40), "a dog"])[0]
    assert tokenizer.losses([" ".join(["dog"] * 40), "a dog"])[0].startswith("Cut 1 of 2 captions")
    assert tokenizer.losses(["a dog sleeps"]) == []


def test_it_comes_back_from_a_folder(tokenizer, tmp_path):
    from transformers import AutoTokenizer

    tokenizer.save_pretrained(tmp_path)
    texts = [*TEXTS, "a zebra!"]
    loaded = CaptionTokenizer.load(tmp_path)
    assert loaded.sequence_length == 12 and len(loaded) == len(tokenizer)
    for one, other in zip(loaded.encode(texts), tokenizer.encode(texts), strict=True):
        assert torch.equal(one, other)
    plain = AutoTokenizer.from_pretrained(str(tmp_path))
    assert plain(texts[0])["input_ids"] == tokenizer.inner(texts[0])["input_ids"]
    assert CaptionTokenizer.load(tmp_path, sequence_length=5).encode(texts)[0].shape == (4, 5)


def test_words_that_it_has_not_seen():
    words = CaptionTokenizer.train(TEXTS, sequence_length=12)
    assert caption_tokenizer(words, ["other"], None) is words
    assert caption_tokenizer(None, TEXTS, 8).inner.get_vocab() == words.inner.get_vocab()
    frequent = CaptionTokenizer.train(TEXTS, vocabulary=len(SPECIAL) + 2)
    assert set(frequent.inner.get_vocab()) == {*SPECIAL, "dog", "a"}
    ids, _ = words.encode(["a zebra sleeps"])
    assert ids[0].tolist().count(words.inner.unk_token_id) == 1
    assert words.losses(["a zebra sleeps", "dog"]) == [
        "Tokenizer: 25.0 % of the words of all captions are none that it knows."
    ]


def endless():
    """A tokenizer of transformers that puts no end."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({"a": 0, "</s>": 1, "?": 2}, unk_token="?"))
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>", unk_token="?")


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda folder: CaptionTokenizer.train(TEXTS, sequence_length=2), "sequence_length"),
        (lambda folder: CaptionTokenizer.train(TEXTS, vocabulary=4), "vocabulary"),
        (lambda folder: CaptionTokenizer(endless(), 8), "tokenizer"),
        (lambda folder: CaptionTokenizer.load(folder), "tokenizer"),
        (lambda folder: CaptionTokenizer.load("nobody/nothing"), "tokenizer"),
    ],
)
def test_refusals(tmp_path, monkeypatch, make, argument):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with refused(argument):
        make(tmp_path)
