"""SkyTNT's `midi_model`: two Llamas that write MIDI, one event of eight tokens at a time.

`net` reads events, each as the sum of its tokens' embeddings. From its output for the events so far, the
smaller `net_token` writes the next event token by token. Weights have the published names and shapes
(github.com/SkyTNT/midi-model), so folders load and save in that form. Here the tokens form one sequence,
eight to an event, and the model predicts the next token like any causal language model of transformers.
"""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import (  # noqa: TID253  imported only with such a model
    AutoConfig,
    AutoModelForCausalLM,
    DynamicCache,
    GenerationMixin,
    LlamaConfig,
    LlamaModel,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import CausalLMOutputWithPast  # noqa: TID253

from qnnkit import checks
from qnnkit.data.midi_events import PAD, WIDTH, MidiEvents

# hidden size, layers, heads and inner size of `net`; `net_token` has a quarter of the last three
SIZES = {
    "tiny": (128, 4, 4, 344),
    "small": (384, 8, 8, 1024),
    "medium": (1024, 12, 16, 4096),  # as published
    "large": (1024, 24, 16, 4096),  # as published
}
_NAMES = inspect.signature(vars(GenerationMixin)["prepare_inputs_for_generation"]).parameters
CACHE = "cache" if "cache" in _NAMES else "past_key_values"
"""transformers' name of the argument for the key-value cache: `cache` from 5.24 on."""
LONGEST = 4096
"""Longest context of a published model, in events."""


class MidiConfig(PreTrainedConfig):
    """The config.json of a `midi_model`: its tokenizer, and the configurations of its two Llamas."""

    model_type = "midi_model"
    usual_targets: ClassVar[list[str]] = ["q_proj", "v_proj"]
    """Layers that an adapter changes by default: PEFT's defaults for a Llama, in both Llamas."""
    sub_configs: ClassVar[dict[str, Any]] = {"net_config": LlamaConfig, "net_token_config": LlamaConfig}

    def __init__(
        self, tokenizer: Any = None, net_config: Any = None, net_token_config: Any = None, **options: Any
    ):
        self.tokenizer = tokenizer or {"version": "v2", "optimise_midi": True}
        self.net_config = _llama(net_config)
        self.net_token_config = _llama(net_token_config)
        super().__init__(**options)

    @property
    def events(self) -> MidiEvents:
        """The tokenizer that turns MIDI into tokens and back."""
        return MidiEvents(self.tokenizer["version"])

    @property
    def vocab_size(self) -> int:
        """Number of different tokens."""
        return self.net_config.vocab_size

    @property
    def max_position_embeddings(self) -> int:
        """Longest context in tokens, eight to an event."""
        return WIDTH * self.net_config.max_position_embeddings

    @property
    def hidden_size(self) -> int:
        """Length of the vectors that represent an event or a token."""
        return self.net_config.hidden_size


def _llama(config: Any) -> LlamaConfig:
    return LlamaConfig(**config) if isinstance(config, dict) else config or LlamaConfig()


class _Seen(DynamicCache):
    """The key-value caches of `net`, for complete events, and of `net_token`, for the current event."""

    def begin(self) -> None:
        self.tokens = DynamicCache()


class MidiModel(PreTrainedModel, GenerationMixin):
    """The model, configured by a `MidiConfig`; `config_of` makes one of a named size."""

    config_class = MidiConfig
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules: ClassVar[list[str]] = ["LlamaDecoderLayer"]

    def __init__(self, config: MidiConfig):
        super().__init__(config)
        self.net = LlamaModel(config.net_config)
        self.net_token = LlamaModel(config.net_token_config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The embeddings of `net`; `net_token` has its own."""
        return self.net.embed_tokens

    def forward(
        self,
        input_ids: Tensor,
        labels: Tensor | None = None,
        past_key_values: _Seen | None = None,
        cache: _Seen | None = None,
        attention_mask: Tensor | None = None,
        use_cache: bool | None = None,
        **_: Any,
    ) -> CausalLMOutputWithPast:
        """Logits of the next token after each token.

        Args:
            input_ids: Tokens (batch, n) that start at the beginning of an event; the last may be incomplete.
            labels: `input_ids`, with -100 for tokens to ignore; `loss` is then the mean cross-entropy.
            past_key_values: Cache of `generate`; the logits are then only those after the last token.
            cache: The same cache; transformers uses this name from 5.24 on.
            attention_mask: Ignored: each token attends to all tokens before it, as in the model's training.
            use_cache: Ignored: only `generate` keeps a cache.

        Returns:
            `logits` of shape (batch, n, vocabulary). The first seven are 0, because no event precedes theirs.
        """
        seen = cache if past_key_values is None else past_key_values
        if seen is not None:
            return CausalLMOutputWithPast(logits=self._next(input_ids, seen))
        length = input_ids.shape[1]
        events = nn.functional.pad(input_ids, (0, -length % WIDTH), value=PAD).unflatten(1, (-1, WIDTH))
        hidden = self.net(inputs_embeds=self.net.embed_tokens(events).sum(2), use_cache=False)[0]
        after = nn.functional.pad(events[:, 1:, :-1], (0, 0, 0, 1), value=PAD)  # (batch, events, 7)
        begun = torch.cat([hidden.unsqueeze(2), self.net_token.embed_tokens(after)], 2).flatten(0, 1)
        output = self.net_token(inputs_embeds=begun, use_cache=False)[0]
        logits = self.lm_head(output).view(len(input_ids), -1, self.config.vocab_size)
        logits = nn.functional.pad(logits, (0, 0, WIDTH - 1, 0))[:, :length]
        if labels is None:
            return CausalLMOutputWithPast(logits=logits)
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        return CausalLMOutputWithPast(loss=loss, logits=logits)

    def _next(self, ids: Tensor, seen: _Seen) -> Tensor:
        """The logits after the last token, (batch, 1, vocabulary); adds missing events to `seen`."""
        n_cached, n_complete = seen.get_seq_length(), ids.shape[1] // WIDTH
        output = None
        if n_complete > n_cached:
            events = ids[:, n_cached * WIDTH : n_complete * WIDTH].unflatten(1, (-1, WIDTH))
            embedded = self.net.embed_tokens(events).sum(2)
            hidden = self.net(inputs_embeds=embedded, use_cache=True, **{CACHE: seen})[0]
            seen.begin()
            output = self._write(hidden[:, -1:], seen)
        begun = ids[:, n_complete * WIDTH + seen.tokens.get_seq_length() - 1 :]
        if begun.shape[1]:
            output = self._write(self.net_token.embed_tokens(begun), seen)
        assert output is not None, "no new token"
        return self.lm_head(output[:, -1:])

    def _write(self, embedded: Tensor, seen: _Seen) -> Tensor:
        return self.net_token(inputs_embeds=embedded, use_cache=True, **{CACHE: seen.tokens})[0]

    def prepare_inputs_for_generation(self, input_ids: Tensor, **kwargs: Any) -> dict[str, Any]:
        """All tokens so far; the cache determines which of them are new."""
        return {"input_ids": input_ids, CACHE: kwargs.get(CACHE)}

    def generate(self, *args: Any, **options: Any) -> Any:
        """transformers' `generate`. Prompts consist of complete events and begin with that of `BOS`."""
        inherited: Any = super()  # transformers' stubs want the cache as the last argument
        return inherited.generate(*args, **{CACHE: _Seen()} | options)


def config_of(size: str, *, version: str = "v2", length: int | None = None) -> MidiConfig:
    """The configuration of a model of a named size, one of SIZES.

    Args:
        size: One of SIZES; "medium" and "large" are those of the published models.
        version: Version of its tokenizer, "v1" or "v2".
        length: Longest context in tokens; None takes 32,768, which are 4,096 events.
    """
    hidden, layers, heads, inner = SIZES[checks.choice("size", size, SIZES)]
    common: dict[str, Any] = {
        "vocab_size": len(MidiEvents(version)),
        "hidden_size": hidden,
        "pad_token_id": PAD,
        "max_position_embeddings": -(-length // WIDTH) if length else LONGEST,
        "use_cache": False,
    }
    parts = [
        LlamaConfig(
            num_hidden_layers=layers // n,
            num_attention_heads=heads // n,
            intermediate_size=inner // n,
            **common,
        )
        for n in (1, 4)
    ]
    return MidiConfig({"version": version, "optimise_midi": True}, *parts)


AutoConfig.register("midi_model", MidiConfig, exist_ok=True)
AutoModelForCausalLM.register(MidiConfig, MidiModel, exist_ok=True)
