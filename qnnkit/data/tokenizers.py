"""Tokenizers of documents and of captions: trained on the data at hand, or read from a folder or the Hub."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qnnkit import checks
from qnnkit.data import hub

# --- documents ---------------------------------------------------------------------------------------------

END = "<|endoftext|>"
"""The token that ends a document, and pads sequences that must be equally long."""
FEWEST = 257
"""The single bytes and END: a tokenizer of so many tokens reads English letter by letter."""
PLAIN_CHAT = (
    "{% for message in messages %}"
    "{% if not loop.first %}{{ '\\n' }}{% endif %}"
    "{{ message['role'] | capitalize }}: {{ message['content'] }}"
    "{% if message['tool_calls'] %}{{ message['tool_calls'] | tojson }}{% endif %}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '\\nAssistant:' }}{% endif %}"
)
"""How a chat is written where a tokenizer has no template of its own: `User: ...`, `Assistant: ...`."""


def trained(texts: Iterable[str], vocabulary: int) -> Any:
    """A byte-level BPE tokenizer of these texts: it can write any text, and reads it back unchanged.

    The same texts give the same tokenizer. Where they have too few pairs that occur twice, it has fewer
    tokens than asked for.

    Args:
        texts: What it is trained on; of a dataset, the training documents alone.
        vocabulary: Tokens, 257 at least (the 256 bytes and the end of a document).

    Returns:
        A `PreTrainedTokenizerFast` of transformers.

    Raises:
        ValueError: `vocabulary` is too small.

    Example:
        >>> tokenizer = trained(["to be or not to be"], 260)
        >>> tokenizer.decode(tokenizer.encode("to be, Brötchen"))
        'to be, Brötchen'

    Reference:
        Sennrich et al. 2016, arXiv:1508.07909, algorithm 1; over bytes: Radford et al. 2019 (GPT-2).
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    if vocabulary < FEWEST:
        rule = f"be {FEWEST} or more: every byte, and the end of a document"
        raise ValueError(checks.message("vocabulary", rule, vocabulary, "Use 1024 for a small dataset."))
    inner: Any = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token=END, pad_token=END, clean_up_tokenization_spaces=False
    )


def loaded(name: str | Path) -> Any:
    """The tokenizer in a model's folder, or of a model on the Hugging Face Hub; no code of it is run.

    Raises:
        ValueError: There is none that can be read, or it has no token that ends a document.
    """
    tokenizer = _read(name)
    if tokenizer.eos_token_id is None:
        step = "Set its eos_token and save it anew."
        raise ValueError(checks.message("tokenizer", "have an eos_token", str(name), step))
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def with_chat_template(tokenizer: Any) -> list[str]:
    """Gives a tokenizer without a chat template a plain one; a sentence on it, if it had none."""
    if tokenizer.chat_template:
        return []
    tokenizer.chat_template = PLAIN_CHAT
    return ["The tokenizer has no chat template: chats are written as `User:` and `Assistant:`."]


def _read(name: str | Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return hub.read(AutoTokenizer, name)
    except ValueError as error:
        rule = "be a folder or hub name with a tokenizer that can be read here"
        step = f"It was not read: {error}. Give a folder with tokenizer.json, or leave it out to train one."
        raise ValueError(checks.message("tokenizer", rule, str(name), step)) from None


# --- captions ----------------------------------------------------------------------------------------------

PAD, UNKNOWN, BEGIN, EOS = "<pad>", "<unk>", "<bos>", "<eos>"
SPECIAL = (PAD, UNKNOWN, BEGIN, EOS)
"""In this order: transformers takes an end of number 2 for an old mistake, and pools texts elsewhere."""
MAX_LENGTH = 32
"""Tokens of a text by default; captions of COCO have about a dozen words."""
VOCABULARY = 8192
"""Most tokens of a trained tokenizer by default."""


class CaptionTokenizer:
    """Texts as numbers between a begin and an end, padded to one length.

    CLIP pools a text at its end token, so one that is too long is cut before it.

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
            step = "Take one made for CLIP, or leave it out to train one."
            raise ValueError(checks.message("tokenizer", "end every text with its end token", ids, step))

    @classmethod
    def train(
        cls, captions: Sequence[str], *, vocabulary: int = VOCABULARY, sequence_length: int = MAX_LENGTH
    ) -> CaptionTokenizer:
        """A tokenizer trained on captions, in small letters: a token for each word and each mark.

        Args:
            captions: What it is trained on: the training captions alone.
            vocabulary: Most tokens; the most frequent are kept, and one stands for all other words.
            sequence_length: Tokens of a text.
        """
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
        from transformers import PreTrainedTokenizerFast

        if vocabulary <= len(SPECIAL):
            rule = f"be {len(SPECIAL) + 1} or more"
            raise ValueError(checks.message("vocabulary", rule, vocabulary, "Use 4096."))
        made: Any = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
        made.pre_tokenizer = pre_tokenizers.Whitespace()
        made.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
        trainer = trainers.WordLevelTrainer(
            vocab_size=vocabulary, special_tokens=list(SPECIAL), show_progress=False
        )
        made.train_from_iterator(captions, trainer)
        ends = [(name, made.token_to_id(name)) for name in (BEGIN, EOS)]
        made.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A {EOS}", special_tokens=ends)
        names = {"pad_token": PAD, "unk_token": UNKNOWN, "bos_token": BEGIN, "eos_token": EOS}
        inner = PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=sequence_length, **names)
        return cls(inner, sequence_length)

    @classmethod
    def load(cls, name: str | Path, *, sequence_length: int | None = None) -> CaptionTokenizer:
        """The tokenizer in a local folder, or on the Hugging Face Hub by name.

        Args:
            name: Folder that `save_pretrained` has written, here or in transformers; or a name on the Hub.
            sequence_length: Tokens of a text; the tokenizer's own by default.

        Raises:
            ValueError: It cannot be read, or is not made for whole texts.
        """
        inner = _read(name)
        longest = inner.model_max_length
        return cls(inner, sequence_length or (longest if longest < 10**6 else MAX_LENGTH))

    def encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Tokens, and which of them count (1) or are padding (0); both int64, (n, sequence_length)."""
        if not texts:
            none = torch.zeros(0, self.sequence_length, dtype=torch.int64)
            return none, none.clone()
        found = self.inner(
            list(texts),
            padding="max_length",
            truncation=True,
            max_length=self.sequence_length,
            return_tensors="pt",
            return_attention_mask=True,
        )
        return found["input_ids"], found["attention_mask"]

    def decode(self, ids: Any) -> str:
        """The text of tokens, without begin, end and padding."""
        return self.inner.decode(ids, skip_special_tokens=True).strip()

    def losses(self, texts: Sequence[str]) -> list[str]:
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
        """Number of the padding."""
        return self.inner.pad_token_id

    @property
    def bos_id(self) -> int | None:
        """Number of the begin token."""
        return self.inner.bos_token_id

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes it to a folder, from which `load` and transformers' AutoTokenizer read it."""
        self.inner.model_max_length = self.sequence_length
        self.inner.save_pretrained(str(folder))


def caption_tokenizer(
    wanted: str | Path | CaptionTokenizer | None, captions: Sequence[str], sequence_length: int | None
) -> CaptionTokenizer:
    """The tokenizer that `captions` is asked for: the one given, one that is trained, or one to load."""
    if isinstance(wanted, CaptionTokenizer):
        return wanted
    if wanted is None:
        return CaptionTokenizer.train(captions, sequence_length=sequence_length or MAX_LENGTH)
    return CaptionTokenizer.load(wanted, sequence_length=sequence_length)
