"""Causal language models: a Llama of a named size from scratch, or any model that transformers loads."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch

from qnnkit import checks
from qnnkit.data import hub
from qnnkit.device import choose
from qnnkit.models.blocks import published, seeded
from qnnkit.settings import Base, Place

# hidden size, layers, heads, key-value heads, inner size, vocabulary
LLAMA = {
    "tiny": (128, 4, 4, 4, 344, 4096),
    "small": (384, 6, 6, 6, 1024, 8192),
    "medium": (768, 12, 12, 12, 2048, 16384),
    "3b": (3072, 28, 24, 8, 8192, 128256),  # as Llama 3.2
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class LanguageModelSettings(Base):
    """Which language model; `LanguageModelSettings.model_fields[NAME].description` is a setting's meaning."""

    size: str = "tiny"
    """Size of a model from scratch: tiny, small, medium, 3b; of midi_model tiny, small, medium, large."""
    pretrained: Place | None = None
    """Folder, or name on the Hugging Face Hub, of a model's weights; None starts from scratch."""


def language_model(settings: Any, splits: Any, seed: int) -> Any:
    """The language model that settings describe, for the tokens of the data.

    Args:
        settings: Derived from `LanguageModelSettings`; `base_precision` and `four_bit` are used if present.
            On the device "meta" only the configuration is read, and the weights take no memory.
        splits: Data whose `sizes` are the vocabulary and the sequence length.
        seed: Fixes initial weights.

    Raises:
        ValueError: As in `causal_lm`.
    """
    name = settings.pretrained or settings.size
    options = {"dtype": settings.of_kit("base_precision", "float32"), **splits.sizes}
    if settings.device == "meta":
        return without_weights(name, **options)
    if settings.of_kit("four_bit", False):
        options |= {"four_bit": True, "device": choose(settings.device)}
    return causal_lm(name, seed=seed, **options)


def llama_config(size: str, *, vocabulary: int | None = None, length: int | None = None) -> Any:
    """The configuration of a Llama of a named size.

    Args:
        size: One of LLAMA.
        vocabulary: Number of tokens; None takes the size's own.
        length: Longest context in tokens; None takes 2,048, or 131,072 for "3b".

    Raises:
        ValueError: No size has that name.
    """
    from transformers import LlamaConfig

    hidden, n_layers, heads, kv_heads, inner, default = LLAMA[checks.choice("size", size, LLAMA)]
    return LlamaConfig(
        vocab_size=default if vocabulary is None else vocabulary,
        hidden_size=hidden,
        num_hidden_layers=n_layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=inner,
        max_position_embeddings=length or (131072 if size == "3b" else 2048),
        tie_word_embeddings=size == "3b",
    )


def causal_lm(
    size_or_folder: str | Path,
    *,
    vocabulary: int | None = None,
    length: int | None = None,
    events: str | None = None,
    seed: int = 0,
    dtype: str = "float32",
    device: torch.device | str = "cpu",
    four_bit: bool = False,
) -> Any:
    """A causal language model: from scratch by size, or with the weights of a folder or of the Hub.

    Args:
        size_or_folder: "tiny", "small", "medium" or "3b"; else a local folder, or a name on the Hugging Face
            Hub, of a model that transformers supports or of SkyTNT's midi_model. Only safetensors are read,
            and no code stored with them is run.
        vocabulary: Number of tokens: the size of a new model's vocabulary (None: the size's own), the minimum
            for a loaded one.
        length: Tokens of a sequence: the longest context of a new model (None: 2,048, for "3b" 131,072), the
            minimum for a loaded one.
        events: For a new midi_model, with the sizes "tiny", "small", "medium" and "large" (the last two as
            published): "v1" or "v2", the version of its `MidiEvents`. None makes a Llama.
        seed: Fixes initial weights; the caller's generators do not change.
        dtype: "float32", "bfloat16" or "float16".
        device: Device of 4-bit weights; other weights are on the CPU. With "meta", weights take no memory,
            and the same errors are raised.
        four_bit: Keep frozen weights of a loaded model as in QLoRA, if there are CUDA and bitsandbytes: NF4
            with double quantisation; embedding, norms and head in float32 (Dettmers et al. 2023,
            arXiv:2305.14314).

    Returns:
        A model of transformers: `model(input_ids=..., labels=...)` returns `.logits` of shape
        (batch, length, vocabulary).

    Raises:
        ValueError: The folder or name cannot be read (missing, gated, offline, without safetensors), the
            model has too few tokens or too short a context, `dtype` or `events` is unknown, or a number is
            below 1.
    """
    from transformers import AutoModelForCausalLM

    kind, name = DTYPES[checks.choice("dtype", dtype, DTYPES)], str(size_or_folder)
    place = torch.device("meta" if torch.device(device).type == "meta" else "cpu")
    if config := _from_scratch(name, vocabulary, length, events):
        with seeded(seed), place:
            return _cast(AutoModelForCausalLM.from_config(config), kind)
    computes = in_four_bits(name, device)[0] if four_bit else None
    options: dict[str, Any] = {"dtype": "auto"} | ({"device_map": place} if place.type == "meta" else {})
    options |= _in_nf4(computes, device) if computes else {}
    about: Any = {"what": "causal language model", "otherwise": f"one of the sizes {', '.join(LLAMA)}"}
    model = published(AutoModelForCausalLM, name, argument="model", **about, **options)
    _require_fit(model.config, name, vocabulary, length)
    if computes is None:
        return _cast(model, kind)
    from peft import prepare_model_for_kbit_training

    return prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)


def _from_scratch(name: str, vocabulary: int | None, length: int | None, events: str | None) -> Any:
    """The configuration of a new model; None for a name that is not a size."""
    from qnnkit.models import midi_model  # registers the model with transformers

    for argument, number in {"vocabulary": vocabulary, "length": length}.items():
        checks.positive(argument, 1 if number is None else number)
    if events and (name in midi_model.SIZES or name in LLAMA):
        with checks.renamed({"version": "events"}):
            return midi_model.config_of(name, version=events, length=length)
    return llama_config(name, vocabulary=vocabulary, length=length) if name in LLAMA else None


def _in_nf4(computes: torch.dtype, device: torch.device | str) -> dict[str, Any]:
    """Options of `from_pretrained` for weights in 4 bits."""
    from transformers import BitsAndBytesConfig

    nf4: Any = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
    nf4 = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=computes, **nf4)
    return {"device_map": {"": torch.device(device)}, "quantization_config": nf4}


def _cast(model: Any, dtype: torch.dtype) -> Any:
    """Casts a model's weights; buffers stay, because rounded frequencies would falsify positions."""
    for weight in model.parameters():
        weight.data = weight.data.to(dtype)
    return model


def in_four_bits(
    folder: str | Path, device: torch.device | str, dtype: str = "float32"
) -> tuple[torch.dtype | None, str]:
    """The dtype of products if a model's weights can be kept in 4 bits, else None; and a sentence about it.

    4 bits need CUDA and bitsandbytes. Products are computed in bfloat16 if the GPU supports it, else in
    float16. The sentence names the dtype, or says why weights stay in `dtype`.
    """
    device, missing = torch.device(device), None
    if device.type != "cuda":
        missing = f"4 bits need a CUDA device, and this is {device.type}"
    elif importlib.util.find_spec("bitsandbytes") is None:
        missing = "bitsandbytes is not installed (pip install bitsandbytes)"
    elif str(folder) in LLAMA:
        missing = "a model from scratch has no pretrained weights to keep in 4 bits"
    if missing:
        return None, f"Weights are in {dtype}, not in 4 bits: {missing}."
    computes = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return computes, f"Weights are in 4 bits (NF4), products in {str(computes).removeprefix('torch.')}."


def without_weights(
    size_or_folder: str | Path,
    *,
    vocabulary: int | None = None,
    length: int | None = None,
    events: str | None = None,
    dtype: str = "float32",
) -> Any:
    """A model as from `causal_lm`, read from its configuration only: all weights are on the meta device.

    Raises:
        ValueError: The configuration cannot be read.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    name = str(size_or_folder)
    config: Any = _from_scratch(name, vocabulary, length, events)
    if config is None:
        try:
            config = hub.read(AutoConfig, name)
        except ValueError as error:
            rule = "hold the config.json of a model that transformers supports"
            raise ValueError(checks.message("model", rule, name, f"It was not read: {error}.")) from None
        _require_fit(config, name, vocabulary, length)
    with torch.device("meta"):
        return _cast(AutoModelForCausalLM.from_config(config), DTYPES[dtype])


def _require_fit(config: Any, name: str, vocabulary: int | None, length: int | None) -> None:
    """Raises a ValueError if a model's vocabulary or context is too small."""
    available, longest = config.vocab_size, getattr(config, "max_position_embeddings", None)
    if vocabulary is not None and vocabulary > available:
        step = "Use the tokenizer of that folder for the data."
        rule = f"be at most {available:,}, the vocabulary of {name}"
        raise ValueError(checks.message("vocabulary", rule, vocabulary, step))
    if length is not None and longest is not None and length > longest:
        rule = f"be at most {longest:,}, the context length of {name}"
        raise ValueError(checks.message("sequence_length", rule, length, "Cut the text into shorter blocks."))
