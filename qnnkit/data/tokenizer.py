"""Tokenizers of language models: trained on the documents at hand, or a model's own."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from qnnkit import checks
from qnnkit.data import hub

END = "<|endoftext|>"
"""The token that ends a document, and fills up where sequences must be equally long."""
FEWEST = 257
"""The single bytes and END: a tokenizer of so many tokens reads English letter by letter."""
PLAIN_CHAT = (
    "{% for message in messages %}"
    "{% if not loop.first %}{{ '\\n' }}{% endif %}"
    "{{ message['role'] | capitalize }}: {{ message['content'] }}"
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
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=END, clean_up_tokenization_spaces=False
    )


def loaded(name: str | Path) -> Any:
    """The tokenizer in a model's folder, or of a model on the Hugging Face Hub; no code of it is run.

    Raises:
        ValueError: There is none that can be read, or it has no token that ends a document.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = hub.read(AutoTokenizer, name)
    except ValueError as error:
        rule = "be a folder or hub name with a tokenizer that can be read here"
        step = f"It was not read: {error}. Give the folder that a model was saved to, or None to train one."
        raise ValueError(checks.message("tokenizer", rule, str(name), step)) from None
    if tokenizer.eos_token_id is None:
        step = "Set its eos_token and save it anew."
        raise ValueError(checks.message("tokenizer", "have an eos_token", str(name), step))
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer
