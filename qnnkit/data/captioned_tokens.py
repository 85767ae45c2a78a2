"""Captions as tokens: a tokenizer trained on them, or one that transformers reads from a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qnnkit import checks
from qnnkit.data import hub

KINDS = ("words", "bpe")
PAD, UNKNOWN, BEGIN, END = "<pad>", "<unk>", "<bos>", "<eos>"
SPECIAL = (PAD, UNKNOWN, BEGIN, END)
"""In this order: an end of number 2 is to transformers an old mistake, and has it read texts elsewhere."""
MAX_LENGTH = 32
"""Tokens of a text, where nobody says; captions of COCO have about a dozen words."""
VOCABULARY = 8192
"""Most tokens that training may find, where nobody says."""


class CaptionTokenizer:
    """Texts as numbers between a begin and an end, padded to one length.

    CLIP reads a text off its end, so one that is too long is cut before it.

    Args:
        inner: A tokenizer of transformers that has a begin, an end and a padding, and puts the first two.
        sequence_length: Tokens of a text, begin and end among them.

    Raises:
        ValueError: `sequence_length` leaves no room for a word, or the tokenizer puts no end.

    Example:
        >>> tokenizer = CaptionTokenizer.train(["A photo of a cat.", "A dog"], sequence_length=6)
        >>> ids, mask = tokenizer.encode(["a dog", "a photo of a cat and of a dog"])
        >>> tokenizer.decode(ids[1]), mask[0].tolist()
        ('a photo of a', [1, 1, 1, 1, 0, 0])
    """

    def __init__(self, inner: Any, sequence_length: int):
        if sequence_length < 3:
            step = "Use 32 for captions of a sentence."
            raise ValueError(checks.message("sequence_length", "be 3 or more", sequence_length, step))
        if inner.pad_token_id is None and inner.eos_token_id is not None:
            inner.pad_token = inner.eos_token
        self.inner, self.sequence_length = inner, sequence_length
        ids = inner("a")["input_ids"]
        if inner.eos_token_id is None or ids[-1] != inner.eos_token_id:
            step = "Take one made for CLIP, or train one: tokenizer='words'."
            raise ValueError(checks.message("tokenizer", "end every text with its end token", ids, step))

    @classmethod
    def train(
        cls,
        captions: Sequence[str],
        *,
        kind: str = "words",
        vocabulary: int = VOCABULARY,
        sequence_length: int = MAX_LENGTH,
    ) -> CaptionTokenizer:
        """One whose tokens are those of the captions, in small letters.

        Args:
            captions: What it learns from: the training captions alone.
            kind: "words" has a token for each word and each mark, and one for all words it has not seen;
                "bpe" for pieces of words, of which any text can be put together (Sennrich et al. 2015,
                arXiv:1508.07909).
            vocabulary: Most tokens; the most frequent are kept.
            sequence_length: Tokens of a text.
        """
        from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
        from transformers import PreTrainedTokenizerFast

        checks.choice("tokenizer", kind, KINDS)
        least = len(SPECIAL) + 1 + (256 if kind == "bpe" else 0)
        if vocabulary < least:
            rule = f"be {least} or more for {kind!r}"
            raise ValueError(checks.message("vocabulary", rule, vocabulary, "Use 4096."))
        shape: dict[str, Any] = {
            "vocab_size": vocabulary,
            "special_tokens": list(SPECIAL),
            "show_progress": False,
        }
        if kind == "words":
            made = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
            made.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[attr-defined]
            trainer: Any = trainers.WordLevelTrainer(**shape)
        else:
            made = Tokenizer(models.BPE(unk_token=UNKNOWN))
            made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)  # type: ignore[attr-defined]
            made.decoder = decoders.ByteLevel()  # type: ignore[attr-defined]
            trainer = trainers.BpeTrainer(
                initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), **shape
            )
        steps: list[Any] = [normalizers.NFC(), normalizers.Lowercase()]
        made.normalizer = normalizers.Sequence(steps)  # type: ignore[attr-defined]
        made.train_from_iterator(captions, trainer)
        ends = [(name, made.token_to_id(name)) for name in (BEGIN, END)]
        made.post_processor = processors.TemplateProcessing(  # type: ignore[attr-defined]
            single=f"{BEGIN} $A {END}", special_tokens=ends
        )
        names = {"pad_token": PAD, "unk_token": UNKNOWN, "bos_token": BEGIN, "eos_token": END}
        inner = PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=sequence_length, **names)
        return cls(inner, sequence_length)

    @classmethod
    def load(cls, name: str | Path, *, sequence_length: int | None = None) -> CaptionTokenizer:
        """One from a local folder, or from the Hugging Face Hub by name.

        Args:
            name: Folder that `save_pretrained` has written, here or in transformers; or a name on the Hub.
            sequence_length: Tokens of a text; the tokenizer's own by default.

        Raises:
            ValueError: It cannot be read, or is not made for whole texts.
        """
        from transformers import AutoTokenizer

        try:
            inner: Any = hub.read(AutoTokenizer, name)
        except ValueError as error:
            step = f"It was not read: {error}. Give a folder with tokenizer.json, or train one: 'words'."
            rule = "be a tokenizer that can be read here"
            raise ValueError(checks.message("tokenizer", rule, str(name), step)) from None
        own = inner.model_max_length
        return cls(inner, sequence_length or (own if own < 10**6 else MAX_LENGTH))

    def encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Tokens and which of them count (1) or only fill up (0); both int64, (n, sequence_length)."""
        if not texts:
            none = torch.zeros(0, self.sequence_length, dtype=torch.int64)
            return none, none.clone()
        shape: dict[str, Any] = {
            "padding": "max_length",
            "truncation": True,
            "max_length": self.sequence_length,
        }
        found = self.inner(list(texts), return_tensors="pt", return_attention_mask=True, **shape)
        return found["input_ids"], found["attention_mask"]

    def decode(self, ids: Any) -> str:
        """The text of tokens, without begin, end and padding."""
        return self.inner.decode(ids, skip_special_tokens=True).strip()

    def told(self, texts: Sequence[str]) -> list[str]:
        """Sentences on what of these texts is lost: their ends, and words that it does not know."""
        if not texts:
            return []
        found = self.inner(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        room, notes = self.sequence_length - 2, []
        if cut := sum(len(ids) > room for ids in found):
            notes.append(f"Cut {cut:,} of {len(texts):,} captions to {room} tokens (sequence_length).")
        unknown = sum(ids.count(self.inner.unk_token_id) for ids in found)
        if unknown and self.inner.unk_token_id != self.eos_id:
            share = 100 * unknown / sum(map(len, found))
            notes.append(f"Tokenizer: {share:.1f} % of the words of all captions are none that it knows.")
        return notes

    def __len__(self) -> int:
        return len(self.inner)

    @property
    def eos_id(self) -> int:
        """Number of the end token."""
        return self.inner.eos_token_id

    @property
    def pad_id(self) -> int:
        """Number of what fills up."""
        return self.inner.pad_token_id

    @property
    def bos_id(self) -> int | None:
        """Number of the begin token."""
        return self.inner.bos_token_id

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes it to a folder, from which `load` and transformers' AutoTokenizer read it."""
        self.inner.model_max_length = self.sequence_length
        self.inner.save_pretrained(str(folder))


def tokenizer_of(
    wanted: str | Path | CaptionTokenizer | None, captions: Sequence[str], sequence_length: int | None
) -> CaptionTokenizer:
    """What `captions` calls its tokenizer: one that is there, one of a kind to train, or one to load."""
    if isinstance(wanted, CaptionTokenizer):
        return wanted
    if wanted is None or wanted in KINDS:
        kind, length = str(wanted or "words"), sequence_length or MAX_LENGTH
        return CaptionTokenizer.train(captions, kind=kind, sequence_length=length)
    return CaptionTokenizer.load(wanted, sequence_length=sequence_length)
