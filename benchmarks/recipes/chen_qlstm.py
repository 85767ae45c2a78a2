"""The next value of a series by an LSTM whose four gates are circuits.

Reference: Chen et al. 2020, arXiv:2009.01783.
"""

from functools import partial
from typing import Literal

import given_splits
import numpy as np
import pennylane as qml
import torch
from scipy.special import jv
from torch import nn

import qnnkit
from qnnkit import layers, stats, tasks

WINDOW, HIDDEN = 4, 3
SERIES = {
    "damped": lambda t: np.exp(-0.15 * t) * np.cos(3 * t),
    "bessel": lambda t: jv(2, t),
    "sine": np.sin,
}


class Settings(qnnkit.Settings):
    series: Literal["damped", "bessel", "sine"] = "damped"
    """Damped oscillation, Bessel function of order two, or sine."""
    n_layers: int = 2
    epochs: int = 20
    batch_size: int = 36
    n_seeds: int = 10
    controls: tuple[str, ...] = (
        *("lstm", "classical", "no_entanglement", "frozen_random", "no_quantum", "fourier"),
    )
    threads: int = 1


def load(settings):
    values = SERIES[settings.series](np.linspace(0, 20, 240))
    values = 2 * (values - values.min()) / np.ptp(values) - 1
    windows = np.lib.stride_tricks.sliding_window_view(values, WINDOW + 1).copy()
    parts = np.split(windows, [144, 158])  # in the order of time; the last third is the test
    return given_splits.of(
        settings.series, [(each[:, :-1, None], each[:, -1].astype("f4")) for each in parts]
    )


def circuit(inputs, weights):
    for wire in range(4):
        qml.Hadamard(wires=wire)
        qml.RY(torch.arctan(inputs[..., wire]), wires=wire)
        qml.RZ(torch.arctan(inputs[..., wire] ** 2), wires=wire)
    for layer in weights:
        for step in (1, 2):
            for wire in range(4):
                qml.CNOT(wires=(wire, (wire + step) % 4))
        for wire in range(4):
            qml.Rot(*layer[wire], wires=wire)
    return [qml.expval(qml.PauliZ(wire)) for wire in range(HIDDEN)]


class QLSTM(nn.Module):
    """Circuits as forget, input and output gate and as candidate; a linear layer reads the last state."""

    def __init__(self, n_layers):
        super().__init__()
        qnode = qml.QNode(circuit, qml.device("default.qubit", wires=4))
        gates = [qnnkit.QuantumLayer(qnode, {"weights": (n_layers, 4, 3)}) for _ in range(4)]
        self.gates, self.read = nn.ModuleList(gates), nn.Linear(HIDDEN, 1)

    def forward(self, series):
        hidden = memory = series.new_zeros(len(series), HIDDEN)
        for value in series.unbind(1):
            forget, enter, leave, new = (gate(torch.cat([hidden, value], -1)) for gate in self.gates)
            memory = forget.sigmoid() * memory + enter.sigmoid() * new.tanh()
            hidden = leave.sigmoid() * memory.tanh()
        return self.read(hidden)


class LSTM(nn.Module):
    """A classical LSTM of about as many weights."""

    def __init__(self):
        super().__init__()
        self.lstm, self.read = nn.LSTM(1, HIDDEN + 1, batch_first=True), nn.Linear(HIDDEN + 1, 1)

    def forward(self, series):
        return self.read(self.lstm(series)[0][:, -1])


def build(settings, splits, seed):
    return QLSTM(settings.n_layers)


def controls(net):
    names = (*layers.control_names(net), "fourier")
    return {**{name: partial(layers.control, net, name) for name in names}, "lstm": LSTM}


class Regression:
    monitor = "mse"
    score = stats.Score("mse", "mean squared error", "", 1, "", 5)

    def __call__(self, net, batch):
        error = (net(batch[0])[:, 0] - batch[1]) ** 2
        return tasks.Step(error.mean(), {"mse": error.detach().sum()}, len(error))


def task(settings):
    return Regression()
