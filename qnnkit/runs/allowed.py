"""What a run's settings may be, beyond what each says of itself: names that exist, and fit each other."""

from __future__ import annotations

from pathlib import Path

from qnnkit import checks, workspace
from qnnkit.config import DataConfig, ModelConfig, RunConfig, TrainingConfig
from qnnkit.runs.trackers import TRACKERS

OF_NETS = ("classical", "no_entanglement", "frozen_random", "no_quantum", "classical_trained")
OF_ADAPTERS = ("lora", "vera", "no_entanglement", "frozen_random")
"""Controls of nets, and those of adapters."""


def check_base(config: RunConfig) -> None:
    """Refuses an adapter to weights that nobody trained; a plan may ask what it would take all the same."""
    if config.model.adapter and config.model.pretrained is None:
        step = "Give the folder or Hub name of a trained model, such as the model/ of a finished run."
        rule = "name the weights that an adapter changes"
        raise ValueError(checks.message("pretrained", rule, None, step))


ONLY_FOR = {"label_smoothing": "images", "augmentation": "images", "chunk": "captions"}
"""Settings of a training that mean nothing to other kinds of data."""
OF_AN_ADAPTER = ("adapter_weights", "rank", "alpha", "targets", "base_precision")


def _check_kind(config: RunConfig) -> None:
    """Refuses settings that would change nothing, and would make another experiment all the same."""
    from qnnkit import data

    usual, kind = TrainingConfig(), data.kind(config.data.dataset)
    for name, only in ONLY_FOR.items():
        value = getattr(config.training, name)
        if kind != only and value != getattr(usual, name):
            raise ValueError(checks.message(name, f"be left out for {kind}", value, f"It is for {only}."))
    for name in OF_AN_ADAPTER:
        value = getattr(config.model, name)
        if not config.model.adapter and value != getattr(ModelConfig(), name):
            raise ValueError(checks.message(name, "be left out", value, "It is for an adapter: set one."))


def check_names(config: RunConfig) -> None:
    """Refuses what only the registries can: unknown datasets, models, circuits."""
    from qnnkit import adapters, circuits, data, models

    checks.choice("dataset", config.data.dataset, data.DATASETS)
    checks.choice("model", config.model.model, models.MODELS)
    checks.choice("circuit", config.model.circuit, circuits.ANSAETZE)
    checks.choice("embedding", config.model.embedding, circuits.EMBEDDINGS)
    if config.model.adapter:
        checks.choice("adapter", config.model.adapter, adapters.names())
    if config.controls and not models.has_circuit(config.model):
        step = "Set controls=() for a model without a circuit."
        raise ValueError(checks.message("controls", "be left out", list(config.controls), step))
    if models.kind(config.model.model) != data.kind(config.data.dataset):
        rule = f"take {data.kind(config.data.dataset)}, as {config.data.dataset} has them"
        fitting = [name for name in models.MODELS if models.kind(name) == data.kind(config.data.dataset)]
        raise ValueError(checks.message("model", rule, config.model.model, f"Use {', '.join(fitting)}."))
    if config.model.adapter and models.kind(config.model.model) != "tokens":
        step = "Only language models are adapted."
        raise ValueError(checks.message("adapter", "be left out", config.model.adapter, step))
    if config.model.four_bit and not (config.model.adapter and config.model.pretrained):
        rule = "be left out without an adapter on published weights, which alone stay as they are"
        step = "Give adapter=lora and pretrained=FOLDER (or a name on the Hub), or four_bit=false."
        raise ValueError(checks.message("four_bit", rule, True, step))
    _check_kind(config)
    known = OF_ADAPTERS if config.model.adapter else OF_NETS
    for name in config.controls:
        checks.choice("control", name, known)
    for name in config.trackers:
        checks.choice("tracker", name, TRACKERS)
    usual = DataConfig()
    for option in set(DataConfig.model_fields) - {"dataset", "data_dir", "train_fraction"}:
        value = getattr(config.data, option)
        if value != getattr(usual, option) and not data.takes(config.data.dataset, option):
            raise ValueError(data.not_taken(config.data.dataset, option, value))
    place = config.data.data_dir
    if place is None or workspace.is_url(place) or config.data.download:
        return  # what an address holds, only the dataset knows
    if not Path(place).exists():
        step = "Give the folder, archive, file or URL that holds the dataset."
        raise FileNotFoundError(checks.message("data_dir", "be an existing folder or file", place, step))
