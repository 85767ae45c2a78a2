"""Tokenizers of documents and of captions: trained on the data, or read from a folder or the Hub."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from qnnkit import checks
from qnnkit.data import hub

# --- documents ---------------------------------------------------------------------------------------------

END = "<|endoftext|>"
"""Token that ends a document, and pads sequences to equal length."""
PLAIN_CHAT = (
    "{% for message in messages %}"
    "{% if not loop.first %}{{ '\\n' }}{% endif %}"
    "{{ message['role'] | capitalize }}: {{ message['content'] }}"
    "{% if message['tool_calls'] %}{{ message['tool_calls'] | tojson }}{% endif %}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '\\nAssistant:' }}{% endif %}"
)
"""Chat template for tokenizers that have none: `User: ...`, `Assistant: ...`."""


def trained(texts: Iterable[str], vocabulary: int) -> Any:
    """Trains a byte-level BPE tokenizer, which encodes any text and decodes it unchanged.

    The same texts give the same tokenizer. It is smaller than `vocabulary` if too few pairs occur twice.

    Args:
        texts: Training texts; of a dataset, only the training documents.
        vocabulary: Number of tokens, 257 (the 256 bytes and the end of a document) or more.

    Returns:
        A `PreTrainedTokenizerFast` of transformers.

    Raises:
        ValueError: `vocabulary` is below 257.

    Example:
        >>> tokenizer = trained(["to be or not to be"], 260)
        >>> tokenizer.decode(tokenizer.encode("to be, Brötchen"))
        'to be, Brötchen'

    Reference:
        Sennrich et al. 2016, arXiv:1508.07909, algorithm 1; over bytes: Radford et al. 2019 (GPT-2).
    """
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    checks.positive("vocabulary", vocabulary, "257 is one token per byte.", above=256)
    inner: Any = ByteLevelBPETokenizer()
    inner.train_from_iterator(texts, vocabulary, min_frequency=2, show_progress=False, special_tokens=[END])
    names: dict[str, Any] = {"eos_token": END, "pad_token": END, "clean_up_tokenization_spaces": False}
    return PreTrainedTokenizerFast(tokenizer_object=inner._tokenizer, **names)


def loaded(name: str | Path) -> Any:
    """Reads the tokenizer of a model in a folder or on the Hugging Face Hub, without running its code.

    Raises:
        ValueError: It cannot be read, or has no token that ends a document.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = hub.read(AutoTokenizer, name)
        if tokenizer.eos_token_id is None:
            raise ValueError("it has no eos_token: set it and save the tokenizer again")
    except ValueError as error:
        rule = "be a folder or hub name with a readable tokenizer"
        step = f"Reading says: {error}. Give a folder with tokenizer.json, or leave it out to train one."
        raise ValueError(checks.message("tokenizer", rule, str(name), step)) from None
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def with_chat_template(tokenizer: Any, documents: Iterable[Any]) -> list[str]:
    """Adds a plain chat template if a document is a chat and the tokenizer has none; returns a note on it."""
    if tokenizer.chat_template or not any(document.messages for document in documents):
        return []
    tokenizer.chat_template = PLAIN_CHAT
    return ["The tokenizer has no chat template: chats are written as `User:` and `Assistant:`."]


# --- captions ----------------------------------------------------------------------------------------------

PAD, UNKNOWN, BEGIN, EOS = "<pad>", "<unk>", "<bos>", "<eos>"
SPECIAL = (PAD, UNKNOWN, BEGIN, EOS)
"""Special tokens, in order. If EOS were number 2, transformers would assume an old bug and pool elsewhere."""
LENGTH = 32
"""Default number of tokens of a caption; captions of COCO have about a dozen words."""
VOCABULARY = 8192
"""Most tokens of a trained word tokenizer; UNKNOWN stands for all other words."""


def of_captions(wanted: str | Path | None, captions: Sequence[str], length: int | None = None) -> Any:
    """Returns a tokenizer of transformers for captions, with a begin and an end, at which CLIP pools texts.

    Args:
        wanted: Folder, or name on the Hub, to read it from; None trains one on the captions, in lower case,
            with a token for each word and punctuation mark.
        captions: Training texts: only the training captions.
        length: Tokens of a caption, including begin and end (`model_max_length`); by default 32, or the limit
            of the tokenizer that is read.

    Raises:
        ValueError: It cannot be read, does not end texts with its end token, or `length` is below 3.

    Example:
        >>> tokenizer = of_captions(None, ["A photo of a cat.", "A dog"], 6)
        >>> ids, mask = encode(tokenizer, ["a dog", "a photo of a cat and of a dog"])
        >>> tokenizer.decode(ids[1], skip_special_tokens=True), mask[0].tolist()
        ('a photo of a', [1, 1, 1, 1, 0, 0])
    """
    if length is not None and length < 3:
        step = "Use 32 for captions of a sentence."
        raise ValueError(checks.message("sequence_length", "be 3 or more", length, step))
    tokenizer = _words(captions) if wanted is None else loaded(wanted)
    limit = tokenizer.model_max_length
    tokenizer.model_max_length = length or (limit if limit < 10**6 else LENGTH)
    if (ids := tokenizer("a")["input_ids"])[-1] != tokenizer.eos_token_id:
        step = "Use a tokenizer made for CLIP, or leave it out to train one."
        raise ValueError(checks.message("tokenizer", "end every text with its end token", ids, step))
    return tokenizer


def _words(captions: Iterable[str]) -> Any:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    inner: Any = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    special: dict[str, Any] = {"special_tokens": list(SPECIAL), "show_progress": False}
    inner.train_from_iterator(captions, trainers.WordLevelTrainer(vocab_size=VOCABULARY, **special))
    ends = [(name, SPECIAL.index(name)) for name in (BEGIN, EOS)]
    inner.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A {EOS}", special_tokens=ends)
    names = {"pad_token": PAD, "unk_token": UNKNOWN, "bos_token": BEGIN, "eos_token": EOS}
    return PreTrainedTokenizerFast(tokenizer_object=inner, **names)


def encode(tokenizer: Any, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Returns tokens of captions, and a mask that is 0 for padding and else 1; both int64, (n, length)."""
    options: dict[str, Any] = {"padding": "max_length", "truncation": True, "return_tensors": "pt"}
    batch = tokenizer(list(texts), return_attention_mask=True, **options)
    return batch["input_ids"], batch["attention_mask"]


def losses(tokenizer: Any, texts: Sequence[str]) -> list[str]:
    """Returns a note on captions that are cut or have unknown words; [] if there are none."""
    ids = tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
    room, unknown = tokenizer.model_max_length - 2, {tokenizer.unk_token_id} - {tokenizer.eos_token_id}
    cut = sum(len(each) > room for each in ids)
    strange = sum(not unknown.isdisjoint(each) for each in ids)
    what = f"{cut:,} are cut to {room} tokens (sequence_length), {strange:,} have words that it does not know"
    return [f"Tokenizer: of {len(ids):,} captions, {what}."] if cut or strange else []
