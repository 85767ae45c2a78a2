"""Four qubits after a frozen ResNet18: its features are computed once, so an epoch takes seconds."""

from qnnkit.recipes import resnet_circuit_trained


class Settings(resnet_circuit_trained.Settings):
    frozen_backbone: bool = True
    epochs: int = 50
    batch_size: int = 256
    learning_rate: float = 5e-3
    optimizer: str = "adam"
    weight_decay: float = 0.0
    warmup_epochs: float = 1.0
    threads: int = 1


load, task, build = resnet_circuit_trained.load, resnet_circuit_trained.task, resnet_circuit_trained.build
