"""Language models and CLIP as workloads: of a named size, or of a configuration that is at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from qnnkit import adapters, checks
from qnnkit.models import clip
from qnnkit.models.blocks import seeded
from qnnkit.models.causal_lm import LLAMA, llama_config
from qnnkit.plan.workload import Workload
from qnnkit.settings import Settings
from qnnkit.tasks import OwnLoss

SIZES = {"llama": LLAMA, "clip": clip.CLIP}
USUAL_LENGTH = 256
"""Tokens, where nobody says."""


def of_transformer(
    kind: str,
    size: str,
    training: Settings | None = None,
    *,
    n_samples: int = 1000,
    sequence_length: int | None = None,
    lora_rank: int | None = None,
    four_bit: bool = False,
) -> Workload:
    """A transformers model trained on sequences of tokens, and images beside them for CLIP.

    Args:
        kind: "llama" or "clip"; a folder may hold any causal language model for the one, a CLIP for the
            other.
        size: Named in SIZES, or a local folder with a `config.json`; no weights are read.
        training: Batch size, precision, optimizer and so on.
        n_samples: Sequences (or pairs) in an epoch.
        sequence_length: Tokens of each; 256 by default for language models, CLIP's own otherwise.
        lora_rank: Trains low-rank updates of this rank in place of the weights.
        four_bit: Whether the weights are then kept in 4 bits where there is CUDA (QLoRA).

    Raises:
        ValueError: The kind or size is unknown, the folder holds no such model, or a sequence is longer than
            the model can take; or 4 bits are asked for weights that train.
    """
    checks.choice("model", kind, SIZES)
    checks.positive("n_samples", n_samples)
    if four_bit and not lora_rank:
        raise ValueError(checks.message("four_bit", "come with a lora_rank", True, "Add --lora-rank 8."))
    config = _config(kind, size)
    text = config.text_config if kind == "clip" else config
    longest = getattr(text, "max_position_embeddings", None)  # some models have no such limit
    length = sequence_length or (longest if kind == "clip" else min(USUAL_LENGTH, longest or USUAL_LENGTH))
    if longest is not None and length > longest:
        rule = f"be at most {longest}, the positions that this model knows"
        raise ValueError(checks.message("sequence_length", rule, length, "Cut the samples shorter."))

    def build(workload: Workload, traced: bool) -> nn.Module:
        from transformers import AutoModelForCausalLM, CLIPModel

        with seeded(0):
            model: Any = CLIPModel(config) if kind == "clip" else AutoModelForCausalLM.from_config(config)
            return adapters.adapt(model, r=workload.lora_rank) if workload.lora_rank else model

    def samples(workload: Workload, n: int) -> dict[str, torch.Tensor]:
        assert workload.sequence_length
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(0, _vocabulary(config), (n, workload.sequence_length), generator=generator)
        if kind != "clip":
            return {"input_ids": tokens, "labels": tokens}
        vision = config.vision_config
        pixels = torch.zeros(n, vision.num_channels, vision.image_size, vision.image_size)
        return {"input_ids": tokens, "pixel_values": pixels}

    def loader(workload: Workload, n_batches: int) -> DataLoader:
        n = min(n_batches * workload.training.batch_size, workload.n_samples)
        rows = _Rows(samples(workload, n))
        # Without a generator of its own a loader draws from torch's.
        return DataLoader(rows, workload.training.batch_size, generator=torch.Generator())

    return Workload(
        name=f"{kind} {Path(size).name}",
        training=training or Settings(batch_size=8, learning_rate=3e-4, optimizer="adamw"),
        n_samples=n_samples,
        build=build,
        batch=samples,
        loader=loader,
        task=OwnLoss(together=kind == "clip"),
        sequence_length=length,
        lora_rank=lora_rank,
        four_bit=four_bit,
    )


def _config(kind: str, size: str) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = Path(size).expanduser()
    if size not in SIZES[kind] and not folder.is_dir():
        step = "Or name a local folder that holds a config.json."
        raise ValueError(checks.message("size", f"be one of {', '.join(SIZES[kind])}", size, step))
    if size not in SIZES[kind]:
        try:
            config = AutoConfig.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError) as error:
            rule = "hold the config.json of a model that transformers knows"
            raise ValueError(checks.message("size", rule, size, str(error).split("\n")[0])) from None
        if (config.model_type == "clip") != (kind == "clip"):
            step = "Ask for --model clip, or llama for any causal language model."
            raise ValueError(checks.message("size", f"hold a model of kind {kind}", config.model_type, step))
        if kind == "llama" and type(config) not in AutoModelForCausalLM._model_mapping:
            rule = "hold a causal language model"
            raise ValueError(checks.message("size", rule, config.model_type, "Choose another folder."))
        return config
    if kind == "llama":
        config = llama_config(size)
        config.use_cache = False  # as the task asks for
        return config
    return clip.configuration(size)


def _vocabulary(config: Any) -> int:
    return int(getattr(config, "text_config", config).vocab_size)


class _Rows(Dataset):
    """Samples of a batch, one by one."""

    def __init__(self, batch: dict[str, torch.Tensor]):
        self.batch = batch

    def __len__(self) -> int:
        return len(next(iter(self.batch.values())))

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {name: values[index] for name, values in self.batch.items()}
