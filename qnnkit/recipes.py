"""The named, complete settings that notebooks and `qnnkit run` offer."""

from __future__ import annotations

from qnnkit import checks
from qnnkit.config import CriteriaConfig, DataConfig, ModelConfig, RunConfig, TrainingConfig
from qnnkit.language.presets import BASES, PRESETS

ALL_CONTROLS = ("classical", "no_entanglement", "frozen_random", "no_quantum")
# A frozen circuit at random angles has nothing to learn from another one, but much from a layer that trains.
OF_FROZEN = ("classical", "classical_trained", "no_entanglement", "no_quantum")

OF_ADAPTER = ("lora", "vera", "no_entanglement", "frozen_random")

# Letters turned, shifted and scaled a little; found on the validation images of AHCD.
LETTERS = TrainingConfig(
    epochs=30,
    batch_size=128,
    learning_rate=4e-3,
    quantum_learning_rate=2e-2,
    optimizer="adamw",
    weight_decay=0.02,
    warmup_epochs=2,
    label_smoothing=0.1,
    augmentation="affine",
)
# Unclipped, contrastive nets this small stay at chance; in larger batches they want more epochs.
CLIP = TrainingConfig(
    epochs=20,
    batch_size=32,
    learning_rate=1e-3,
    quantum_learning_rate=1e-2,
    optimizer="adamw",
    weight_decay=0.05,
    warmup_epochs=2,
    clip_norm=1.0,
)
MUSIC = TrainingConfig(
    epochs=2,
    batch_size=8,
    learning_rate=2e-3,
    optimizer="adamw",
    weight_decay=0.01,
    warmup_epochs=0.1,
    clip_norm=1.0,
)
AHCD = DataConfig(dataset="ahcd", validation_fraction=0.1)
MNIST = DataConfig(dataset="mnist", validation_fraction=0.1)

RECIPES: dict[str, RunConfig] = {
    # The main job: real digits that ship inside scikit-learn, a minute or two on two CPU cores.
    "digits_quanv": RunConfig(
        recipe="digits_quanv",
        data=DataConfig(dataset="digits"),
        model=ModelConfig(circuit="data_reuploading", n_layers=2, stride=1, hidden=24),
        training=TrainingConfig(
            epochs=12,
            batch_size=32,
            learning_rate=1e-2,
            quantum_learning_rate=5e-2,  # 24 angles of order 1 have farther to go than the classical weights
            label_smoothing=0.1,
        ),
        criteria=CriteriaConfig(min_accuracy=0.9, max_memory_gb=4),
        n_seeds=3,
        controls=ALL_CONTROLS,
        threads=1,  # nets this small gain nothing from more, and lose tenfold on a machine that is busy
    ),
    # The same net on your own images: data_dir/<class>/*.png.
    "folder_quanv": RunConfig(
        recipe="folder_quanv",
        data=DataConfig(dataset="class_folder", image_size=16, grey=True),
        model=ModelConfig(circuit="data_reuploading", n_layers=2, stride=2, hidden=24),
        training=TrainingConfig(
            epochs=20, batch_size=32, learning_rate=1e-2, quantum_learning_rate=5e-2, label_smoothing=0.1
        ),
        n_seeds=3,
        controls=ALL_CONTROLS,
        threads=1,
    ),
    # Handwritten characters in one folder, the class in the last two digits of each name: 88,000 weights.
    "characters": RunConfig(
        recipe="characters",
        data=DataConfig(dataset="flat_folder", image_size=32, grey=True, validation_fraction=0.1),
        model=ModelConfig(model="residual_quanv", hidden=114),
        training=LETTERS.model_copy(update={"epochs": 40}),
        n_seeds=3,
        controls=ALL_CONTROLS,
    ),
    # As many Arabic letters and epochs as the field's 88,000-weight net took 21 h 43 m for: seconds here.
    "ahcd_ten_epochs": RunConfig(
        recipe="ahcd_ten_epochs",
        data=AHCD.model_copy(update={"train_fraction": 0.25505}),  # 3,085 images
        model=ModelConfig(model="residual_quanv", hidden=114),
        training=LETTERS.model_copy(
            update={
                "epochs": 10,
                "batch_size": 32,
                "learning_rate": 6e-3,
                "quantum_learning_rate": 3e-2,
                "warmup_epochs": 1,
            }
        ),
        n_seeds=3,
        controls=ALL_CONTROLS,
    ),
    # A trainable quanvolution in the best body that two cores train in minutes.
    "ahcd_trainable": RunConfig(
        recipe="ahcd_trainable",
        data=AHCD,
        model=ModelConfig(model="residual_quanv", blocks=2, maps=8, hidden=256, dropout=0.2),
        training=LETTERS,
        n_seeds=3,
        controls=ALL_CONTROLS,
    ),
    # Eight random circuits that never train (Henderson et al. 2020), and a reader of what they measure.
    "ahcd_frozen": RunConfig(
        recipe="ahcd_frozen",
        data=AHCD,
        model=ModelConfig(circuit="random", filters=8, trainable=False, hidden=32, dropout=0.2),
        training=LETTERS.model_copy(update={"epochs": 20, "learning_rate": 3e-3, "weight_decay": 0.05}),
        n_seeds=3,
        controls=OF_FROZEN,
    ),
    # Classical references: no circuit anywhere.
    "ahcd_cnn": RunConfig(
        recipe="ahcd_cnn",
        data=AHCD,
        model=ModelConfig(model="cnn", width=32, hidden=512, dropout=0.3),
        training=LETTERS.model_copy(update={"learning_rate": 2e-3, "epochs": 20}),
        n_seeds=3,
        controls=(),
    ),
    "ahcd_resnet18": RunConfig(
        recipe="ahcd_resnet18",
        data=AHCD,
        model=ModelConfig(model="resnet18", stem_stride=2),  # 4 is four times as fast, and sees less
        training=LETTERS.model_copy(update={"learning_rate": 2e-3, "epochs": 20}),
        n_seeds=3,
        controls=(),
    ),
    # Four qubits and three layers behind a ResNet18 that stays as it is: its features are computed once.
    "mnist_resnet_frozen": RunConfig(
        recipe="mnist_resnet_frozen",
        data=MNIST,
        model=ModelConfig(
            model="resnet_circuit",
            circuit="strongly_entangling",
            n_layers=3,
            stem_stride=4,
            hidden=32,
            frozen_backbone=True,
        ),
        training=TrainingConfig(
            epochs=50, batch_size=256, learning_rate=5e-3, quantum_learning_rate=2e-2, warmup_epochs=1
        ),
        n_seeds=3,
        controls=ALL_CONTROLS,
        threads=1,
    ),
    # The same, the ResNet18 trained with it, from scratch or from `pretrained`.
    "mnist_resnet": RunConfig(
        recipe="mnist_resnet",
        data=MNIST,
        model=ModelConfig(
            model="resnet_circuit", circuit="strongly_entangling", n_layers=3, stem_stride=4, hidden=32
        ),
        training=TrainingConfig(
            epochs=4,
            batch_size=128,
            learning_rate=4e-3,
            quantum_learning_rate=2e-2,
            optimizer="adamw",
            weight_decay=0.01,
            warmup_epochs=0.5,
        ),
        n_seeds=3,
        controls=ALL_CONTROLS,
    ),
    # CLIP from scratch on digits with captions ("a photo of the digit three"), a circuit in each tower.
    "digits_clip": RunConfig(
        recipe="digits_clip",
        data=DataConfig(dataset="digit_captions"),
        model=ModelConfig(model="clip", patch_size=4, n_qubits=6),
        training=CLIP,
        n_seeds=3,
        controls=ALL_CONTROLS,
        threads=1,
    ),
    # The same with the projections of the original: a reference without a circuit.
    "digits_clip_full": RunConfig(
        recipe="digits_clip_full",
        data=DataConfig(dataset="digit_captions"),
        model=ModelConfig(model="clip", patch_size=4, head="full"),
        training=CLIP,
        n_seeds=3,
        controls=(),
        threads=1,
    ),
    # Your own images with captions: a folder with captions.json, .csv or .tsv.
    "captions_clip": RunConfig(
        recipe="captions_clip",
        data=DataConfig(dataset="captions", image_size=32),
        model=ModelConfig(model="clip", patch_size=8, n_qubits=6),
        training=CLIP.model_copy(update={"epochs": 60}),
        n_seeds=3,
        controls=ALL_CONTROLS,
        threads=1,
    ),
    # A small Llama from scratch on text of yours: data_dir is a file, or a folder of .txt, .md or .jsonl.
    "text_llama": RunConfig(
        recipe="text_llama",
        data=DataConfig(dataset="text", sequence_length=128, validation_fraction=0.1, test_fraction=0.1),
        model=ModelConfig(model="causal_lm", size="tiny"),
        training=TrainingConfig(
            epochs=3,
            batch_size=16,
            learning_rate=4e-3,
            optimizer="adamw",
            weight_decay=0.01,
            warmup_epochs=0.2,
            clip_norm=1.0,
        ),
        controls=(),
    ),
    # A quantum adapter on a frozen language model (pretrained=FOLDER), beside adapters of as many weights.
    "text_adapter": RunConfig(
        recipe="text_adapter",
        data=DataConfig(dataset="text", sequence_length=128, validation_fraction=0.1, test_fraction=0.1),
        model=ModelConfig(model="causal_lm", adapter="quantum_peft", adapter_weights=4000),
        training=TrainingConfig(
            epochs=4,
            batch_size=8,
            learning_rate=1e-2,
            quantum_learning_rate=3e-2,
            optimizer="adamw",
            warmup_epochs=0.1,
            clip_norm=1.0,
        ),
        n_seeds=3,
        controls=OF_ADAPTER,
    ),
    # A small Llama from scratch on music: data_dir is a folder of MIDI by composer, or of 16th-grid JSON.
    "music_llama": RunConfig(
        recipe="music_llama",
        data=DataConfig(dataset="music", sequence_length=512, validation_fraction=0.1, test_fraction=0.1),
        model=ModelConfig(model="causal_lm", size="tiny"),
        training=MUSIC,
        controls=(),
    ),
    # One composer (composers=["mozart-16th"]) on that model (pretrained=FOLDER). Of the step sizes tried (of
    # angles 0.01 to 0.2), these did best on Bach's validation pieces; twice the epochs do a little better.
    "music_adapter": RunConfig(
        recipe="music_adapter",
        data=DataConfig(dataset="music", sequence_length=512, validation_fraction=0.1, test_fraction=0.1),
        model=ModelConfig(model="causal_lm", adapter="quantum_peft", adapter_weights=4000),
        training=MUSIC.model_copy(update={"epochs": 2, "learning_rate": 1e-2, "quantum_learning_rate": 3e-2}),
        n_seeds=3,
        controls=OF_ADAPTER,
    ),
    # LoRA on some billion weights (pretrained=meta-llama/Llama-3.2-3B) on an Apple laptop, a T4 or an A100.
    **{
        f"llama_{machine}": RunConfig(
            recipe=f"llama_{machine}",
            data=DataConfig(dataset="text", sequence_length=512, validation_fraction=0.1, test_fraction=0.1),
            model=ModelConfig(model="causal_lm", adapter="lora", **BASES[machine]),
            training=TrainingConfig(**settings),
            controls=(),
        )
        for machine, settings in PRESETS.items()
    },
}


def recipe(name: str) -> RunConfig:
    """The settings called `name`.

    Raises:
        ValueError: No recipe has that name; the message lists them and the nearest.
    """
    return RECIPES[checks.choice("recipe", name, RECIPES)]
