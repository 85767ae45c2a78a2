"""Tokenizers of documents and of captions: trained on the data at hand, or read from a folder or the Hub."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from qnnkit import checks
from qnnkit.data import hub

# --- documents ---------------------------------------------------------------------------------------------

END = "<|endoftext|>"
"""The token that ends a document, and pads sequences that must be equally long."""
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
        vocabulary: Tokens; 257 (the 256 bytes and the end of a document) are there in any case.

    Returns:
        A `PreTrainedTokenizerFast` of transformers.

    Example:
        >>> tokenizer = trained(["to be or not to be"], 260)
        >>> tokenizer.decode(tokenizer.encode("to be, Brötchen"))
        'to be, Brötchen'

    Reference:
        Sennrich et al. 2016, arXiv:1508.07909, algorithm 1; over bytes: Radford et al. 2019 (GPT-2).
    """
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    inner: Any = ByteLevelBPETokenizer()
    inner.train_from_iterator(texts, vocabulary, min_frequency=2, show_progress=False, special_tokens=[END])
    names: dict[str, Any] = {"eos_token": END, "pad_token": END, "clean_up_tokenization_spaces": False}
    return PreTrainedTokenizerFast(tokenizer_object=inner._tokenizer, **names)


def loaded(name: str | Path) -> Any:
    """The tokenizer in a model's folder, or of a model on the Hugging Face Hub; no code of it is run.

    Raises:
        ValueError: There is none that can be read, or it has no token that ends a document.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = hub.read(AutoTokenizer, name)
        if tokenizer.eos_token_id is None:
            raise ValueError("it has no eos_token: set it and save the tokenizer again")
    except ValueError as error:
        rule = "be a folder or hub name with a tokenizer that can be read here"
        step = f"It was not read: {error}. Give a folder with tokenizer.json, or leave it out to train one."
        raise ValueError(checks.message("tokenizer", rule, str(name), step)) from None
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def with_chat_template(tokenizer: Any, documents: Iterable[Any]) -> list[str]:
    """Gives a tokenizer without a chat template a plain one if a document is a chat; and a sentence on it."""
    if tokenizer.chat_template or not any(document.messages for document in documents):
        return []
    tokenizer.chat_template = PLAIN_CHAT
    return ["The tokenizer has no chat template: chats are written as `User:` and `Assistant:`."]


# --- captions ----------------------------------------------------------------------------------------------

PAD, UNKNOWN, BEGIN, EOS = "<pad>", "<unk>", "<bos>", "<eos>"
SPECIAL = (PAD, UNKNOWN, BEGIN, EOS)
"""In this order: transformers takes an end of number 2 for an old mistake, and pools texts elsewhere."""
LENGTH = 32
"""Tokens of a caption by default; captions of COCO have about a dozen words."""
VOCABULARY = 8192
"""Most words that a trained tokenizer knows; one token stands for all others."""


def of_captions(wanted: str | Path | None, captions: Sequence[str], length: int | None = None) -> Any:
    """A tokenizer of transformers for captions: each between a begin and an end, which CLIP pools texts at.

    Args:
        wanted: None trains one on the captions, in small letters: a token for each word and each mark. A
            folder, or a name on the Hub, is read.
        captions: What it is trained on: the training captions alone.
        length: Tokens of a caption, begin and end among them (`model_max_length`); by default 32, or what
            the tokenizer that is read says.

    Raises:
        ValueError: It cannot be read, puts no end behind a text, or `length` leaves no room for a word.

    Example:
        >>> tokenizer = of_captions(None, ["A photo of a cat.", "A dog"], 6)
        >>> ids, mask = encode(tokenizer, ["a dog", "a photo of a cat and of a dog"])
        >>> tokenizer.decode(ids[1], skip_special_tokens=True), mask[0].tolist()
        ('a photo of a', [1, 1, 1, 1, 0, 0])
    """
    if length is not None and length < 3:
        step = "Use 32 for captions of a sentence."
        raise ValueError(checks.message("sequence_length", "be 3 or more", length, step))
    made = _words(captions) if wanted is None else loaded(wanted)
    made.model_max_length = length or (made.model_max_length if made.model_max_length < 10**6 else LENGTH)
    if (ids := made("a")["input_ids"])[-1] != made.eos_token_id:
        step = "Take one made for CLIP, or leave it out to train one."
        raise ValueError(checks.message("tokenizer", "end every text with its end token", ids, step))
    return made


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
    """Tokens of captions, and which of them count (1) or are padding (0); both int64, (n, length)."""
    asked: dict[str, Any] = {"padding": "max_length", "truncation": True, "return_tensors": "pt"}
    made = tokenizer(list(texts), return_attention_mask=True, **asked)
    return made["input_ids"], made["attention_mask"]


def losses(tokenizer: Any, texts: Sequence[str]) -> list[str]:
    """A sentence on what of these captions is lost: their ends, and words that are not known."""
    ids = tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
    room, unknown = tokenizer.model_max_length - 2, {tokenizer.unk_token_id} - {tokenizer.eos_token_id}
    cut = sum(len(each) > room for each in ids)
    strange = sum(not unknown.isdisjoint(each) for each in ids)
    told = f"{cut:,} are cut to {room} tokens (sequence_length), {strange:,} have words that it does not know"
    return [f"Tokenizer: of {len(ids):,} captions {told}."] if cut or strange else []
