"""transformers' CLIP: images and texts as unit vectors in one space, through a linear or a quantum head."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from qnnkit import checks
from qnnkit.models.blocks import normalised, not_bytes, pixels, precise, published, seeded
from qnnkit.models.circuit_part import CircuitSettings, circuit_layer
from qnnkit.settings import Place

# both towers: hidden size, layers, heads; image side, patch, projection, vocabulary
CLIP = {
    "tiny": (64, 2, 4, 32, 8, 64, 1024),
    "small": (256, 4, 4, 64, 8, 256, 4096),
    "77m": (512, 10, 8, 224, 32, 512, 22400),
}
HEADS = ("full", "linear", "quantum")
LARGEST_LOGIT_SCALE = math.log(100)
"""Largest logarithm of the factor between cosines and logits; Radford et al. 2021, section 2.5."""

# Mean and standard deviation, by colour, of the photographs that published weights were trained on.
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


class ClipSettings(CircuitSettings):
    """Settings of `Clip`; `ClipSettings.model_fields[NAME].description` is the meaning of one."""

    size: str = "tiny"
    """Size of a CLIP from scratch: tiny, small or 77m (76.7 million weights)."""
    patch_size: int | None = Field(default=None, ge=1)
    """Side of the image patches, in pixels; None takes the size's own."""
    pretrained: Place | None = None
    """Folder, or name on the Hugging Face Hub, of a CLIP's weights; None starts from scratch."""
    head: Literal["full", "linear", "quantum"] = "quantum"
    """Projection: one matrix, through n_qubits numbers, or through a circuit of n_qubits wires."""
    n_qubits: int = Field(default=4, ge=1)
    """Wires of a circuit."""


class Clip(nn.Module):
    """A vision and a text transformer whose outputs are projected, normalised and compared by their cosine.

    The projection of each tower is "full" (one matrix, as published), "linear" (down to `n_qubits` numbers
    and up, a control) or "quantum" (down to angles in (0, pi), a circuit, up).

    Args:
        tokenizer: Tokenizer of the captions: vocabulary, length and end of the texts.
        channels: Channels of the images.
        image_size: (height, width) of the images, which must be equal.
        size: Size of a model from scratch, a key of `CLIP`.
        patch_size: Side of the patches in pixels; None takes the size's own.
        pretrained: Folder or name of a CLIP's weights, which determine the sizes; heads other than "full"
            still start from scratch.
        head: "full", "linear" or "quantum".
        n_qubits: Wires of a circuit, or numbers of a linear head.
        seed: Fixes every initial weight; no global generator is used.
        circuit: Further arguments of `circuit_layer`.

    Raises:
        ValueError: A name is unknown, `n_qubits` is below 1, the images do not fit the patches, images or
            tokenizer do not fit the published model, or `pretrained` cannot be read or is not a CLIP; in a
            call, `pixel_values` are not uint8.

    Reference:
        Radford et al. 2021, arXiv:2103.00020, sections 2.3 to 2.5.

    Example:
        >>> from qnnkit.data.captions import digit_captions
        >>> splits = digit_captions()
        >>> clip = Clip(**splits.sizes, patch_size=4)
        >>> images, texts = clip(**next(iter(splits.batches("test", 5, shuffle=False))))
        >>> images.shape, texts.shape
        (torch.Size([5, 64]), torch.Size([5, 64]))
    """

    def __init__(
        self,
        tokenizer: Any,
        channels: int,
        image_size: tuple[int, int],
        *,
        size: str = "tiny",
        patch_size: int | None = None,
        pretrained: str | None = None,
        head: str = "quantum",
        n_qubits: int = 4,
        seed: int = 0,
        **circuit: Any,
    ):
        super().__init__()
        from transformers import CLIPModel

        checks.choice("head", head, HEADS)
        checks.positive("n_qubits", n_qubits)
        if image_size[0] != image_size[1]:
            step = "Load the images with an image_size."
            raise ValueError(checks.message("image_size", "be square", tuple(image_size), step))
        with seeded(seed):
            if pretrained is None:
                sides: dict[str, Any] = {"image_size": image_size[0], "patch_size": patch_size}
                sizes = configuration(size, channels=channels, tokenizer=tokenizer, **sides)
                self.net: Any = CLIPModel(sizes)
            else:
                self.net = _published(pretrained, tokenizer, channels, image_size[0])
            self.in_channels = int(self.net.config.vision_config.num_channels)
            towers = {"visual_projection": self.net.vision_model, "text_projection": self.net.text_model}
            for index, (name, tower) in enumerate(towers.items() if head != "full" else ()):
                middle, n_features = None, n_qubits
                if head == "quantum":
                    middle, n_features = circuit_layer(n_qubits, seed=seed * 1000 + index, **circuit)
                ends = tower.config.hidden_size, self.net.config.projection_dim
                setattr(self.net, name, Projection(ends[0], n_features, n_qubits, ends[1], middle))

    def forward(
        self, pixel_values: Tensor, input_ids: Tensor, attention_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Embeddings of images and of texts, unit vectors (batch, n_dimensions) in float32 (or float64).

        Args:
            pixel_values: Images, uint8, (batch, channels, height, width).
            input_ids: Texts as token ids of the tokenizer, (batch, length).
            attention_mask: Mask of the tokens that count, (batch, length).
        """
        return self.embed_images(pixel_values), self.embed_texts(input_ids, attention_mask)

    def embed_images(self, pixel_values: Tensor) -> Tensor:
        """Embeddings of images, as in `forward`."""
        if pixel_values.dtype != torch.uint8:
            raise not_bytes(pixel_values, argument="pixel_values")
        images = normalised(pixels(pixel_values, self), self.in_channels, CLIP_MEAN, CLIP_STD)
        return _directions(self.net.visual_projection(self.net.vision_model(images).pooler_output))

    def embed_texts(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Embeddings of texts, as in `forward`."""
        encoded = self.net.text_model(input_ids=input_ids, attention_mask=attention_mask)
        return _directions(self.net.text_projection(encoded.pooler_output))

    def scale(self) -> Tensor:
        """The factor between cosines and logits: the exponential of a trained weight, at most 100.

        In training the weight itself is clamped: beyond the bound it would have no gradient to return.
        """
        weight: Tensor = self.net.logit_scale
        if not self.training:
            return weight.clamp(max=LARGEST_LOGIT_SCALE).exp()
        with torch.no_grad():
            weight.clamp_(max=LARGEST_LOGIT_SCALE)
        return weight.exp()


class Projection(nn.Module):
    """Features -> few numbers -> (angles -> a circuit ->) an embedding.

    Args:
        n_inputs: Number of a tower's features.
        n_features: Number of values that these are reduced to.
        n_outputs: Number of a circuit's outputs.
        n_dimensions: Length of the embedding.
        circuit: Maps angles of shape (batch, n_features) to values of shape (batch, n_outputs); None uses the
            numbers unchanged.
    """

    def __init__(
        self, n_inputs: int, n_features: int, n_outputs: int, n_dimensions: int, circuit: nn.Module | None
    ):
        super().__init__()
        self.down = nn.Linear(n_inputs, n_features)
        self.circuit = circuit
        self.up = nn.Linear(n_outputs, n_dimensions, bias=False)
        # Initialised as transformers' CLIP projections: features of order 1 stay of order 1.
        nn.init.normal_(self.down.weight, std=n_inputs**-0.5)
        nn.init.zeros_(self.down.bias)
        nn.init.normal_(self.up.weight, std=n_outputs**-0.5)

    def forward(self, features: Tensor) -> Tensor:
        few = precise(self.down, features)
        if self.circuit is not None:
            few = self.circuit(math.pi * torch.sigmoid(few))
        return self.up(few)


def configuration(
    size: str = "tiny",
    *,
    channels: int = 3,
    image_size: int | None = None,
    patch_size: int | None = None,
    tokenizer: Any = None,
) -> Any:
    """transformers' configuration of a CLIP of a named size.

    Args:
        size: Name of the size, a key of `CLIP`.
        channels: Channels of the images.
        image_size: Side of the images, in pixels; the size's own by default.
        patch_size: Side of a patch, in pixels; the size's own by default.
        tokenizer: Determines the length of texts, the vocabulary and its special tokens; without one, the
            size does. "77m" keeps its number of weights even for a smaller vocabulary: some embedding rows
            and positions are then unused.

    Raises:
        ValueError: The size is unknown, patches do not fill the images, or the tokenizer's end has id 2.
    """
    from transformers import CLIPConfig

    hidden, n_layers, heads, side, patch, projection, vocabulary = CLIP[checks.choice("size", size, CLIP)]
    side, patch = image_size or side, patch_size or patch
    if patch < 1 or side % patch:
        fitting = [str(each) for each in range(2, side + 1) if side % each == 0]
        step = f"For images of {side} pixels, use one of {', '.join(fitting)}."
        raise ValueError(checks.message("patch_size", "divide the side of the images", patch, step))
    length, special = 77, {"bos_token_id": vocabulary - 2, "eos_token_id": vocabulary - 1}
    if tokenizer is not None:
        if tokenizer.eos_token_id == 2:  # a legacy id: texts would be read at their largest token
            rule, step = "have an end token with an id other than 2", "Omit it to train one."
            raise ValueError(checks.message("tokenizer", rule, tokenizer.eos_token_id, step))
        least = (length, vocabulary) if size == "77m" else (0, 0)
        length, vocabulary = max(least[0], tokenizer.model_max_length), max(least[1], len(tokenizer))
        special = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
        begin = tokenizer.bos_token_id
        special["bos_token_id"] = tokenizer.eos_token_id if begin is None else begin
    tower = {
        "hidden_size": hidden,
        "num_hidden_layers": n_layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        "projection_dim": projection,
    }
    text = {**tower, "vocab_size": vocabulary, "max_position_embeddings": length, **special}
    vision = {**tower, "image_size": side, "patch_size": patch, "num_channels": channels}
    return CLIPConfig(text_config=text, vision_config=vision, projection_dim=projection)


def _published(name: str, tokenizer: Any, channels: int, side: int) -> Any:
    """A CLIP with published weights, if it fits the images and texts."""
    from transformers import CLIPModel

    net = published(CLIPModel, name, what="CLIP", model_type="clip")
    text, vision = net.config.text_config, net.config.vision_config
    if vision.image_size != side:
        step = f"Load the images with image_size={vision.image_size}."
        raise ValueError(checks.message("image_size", f"be {vision.image_size}, as {name} reads", side, step))
    if channels > vision.num_channels:
        step = "Load the images with grey=True."
        raise ValueError(checks.message("channels", f"be {vision.num_channels} for {name}", channels, step))
    fits = len(tokenizer) <= text.vocab_size and tokenizer.model_max_length <= text.max_position_embeddings
    if not fits or text.eos_token_id not in (2, tokenizer.eos_token_id):
        most = f"{text.vocab_size} tokens, {text.max_position_embeddings} in a text, end {text.eos_token_id}"
        value = f"of {len(tokenizer)} tokens, {tokenizer.model_max_length} in a text"
        value += f", end {tokenizer.eos_token_id}"
        step = f"Load the data with tokenizer={name!r}."
        raise ValueError(checks.message("tokenizer", f"be that of {name} ({most})", value, step))
    return net


def _directions(vectors: Tensor) -> Tensor:
    """The vectors normalised to length 1, in float32 at least."""
    return nn.functional.normalize(vectors.to(torch.promote_types(vectors.dtype, torch.float32)), dim=-1)
