"""What a net computes: Pauli weights of a circuit, tangent kernel and effective dimension of a net."""

# PennyLane makes most of its names at run time, where pyright cannot see them.
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pennylane as qp
import torch
from torch import Tensor, nn

from qnnkit import checks, layers

if TYPE_CHECKING:
    import pandas as pd


def pauli_weights(layer: layers.QuantumLayer, inputs: Tensor) -> pd.DataFrame:
    """How much of a circuit's outputs comes from Pauli strings of weight at most k.

    The observable O is moved back through the gates V after the last one that reads the inputs:
    V' O V = sum of c_P P over Pauli strings P. The weight of P is the number of wires on which it acts. If
    strings of small weight suffice, the circuit after its embedding can be simulated classically.

    Args:
        layer: A layer of at most 10 wires that returns expectation values; its present weights are used.
        inputs: Inputs of shape (batch, n_features), at least two rows.

    Returns:
        A row for each output and each weight k from 0: `share`, the sum of c_P squared up to weight k as a
        share of the sum over all P; `explained`, 1 minus the variance over the inputs of the output's missing
        part, divided by the variance of the output (nan if the output is constant).

    Raises:
        ValueError: There are fewer than two rows, more than 10 wires, or other measurements.

    Reference:
        Bermejo et al. 2024 (arXiv:2408.12739).
    """
    import pandas as pd

    wires, measurements, states, unitary = _halves(layer, inputs)
    rows = []
    for output, measurement in enumerate(measurements):
        observable = torch.as_tensor(qp.matrix(measurement.obs, wire_order=wires)).to(states.dtype)
        moved = unitary.conj().T @ observable @ unitary
        terms = qp.pauli_decompose(moved.numpy(), wire_order=wires, pauli=True)
        total = sum(abs(coefficient) ** 2 for coefficient in terms.values())
        values, share, part = _expected(states, moved), 0.0, torch.zeros_like(moved)
        for k in range(len(wires) + 1):
            some = {word: factor for word, factor in terms.items() if len(word) == k}
            share += sum(abs(coefficient) ** 2 for coefficient in some.values()) / total
            if some:
                part = part + torch.as_tensor(qp.pauli.PauliSentence(some).to_mat(wires)).to(part.dtype)
            missing = values - _expected(states, part)
            explained = float(1 - missing.var() / values.var()) if values.var() > 1e-20 else math.nan
            rows.append({"output": output, "weight": k, "share": share, "explained": explained})
    return pd.DataFrame(rows)


def tangent_kernel(model: nn.Module, inputs: Tensor) -> Tensor:
    """The kernel K = J J' of a model's outputs by its trained weights, summed over the outputs.

    Its eigenvalues say how fast each pattern over the samples is learnt in the first steps.

    Args:
        model: A model in any mode; it runs in evaluation mode.
        inputs: Inputs of shape (n, ...).

    Returns:
        A matrix of shape (n, n), positive semidefinite.

    Raises:
        ValueError: No weight is trained.

    Reference:
        Jacot et al. 2018 (arXiv:1806.07572); Liu et al. 2022 (arXiv:2111.04225) for circuits.
    """
    jacobian = _jacobian(model, inputs)[1]
    return torch.einsum("nop,mop->nm", jacobian, jacobian)


def alignment(kernel: Tensor, labels: Tensor) -> float:
    """How well a kernel fits labels: the cosine between it and the kernel of equal labels, both centred.

    Args:
        kernel: Kernel of shape (n, n), such as a `tangent_kernel`; floating-point numbers.
        labels: Integers of shape (n,), with at least two classes.

    Returns:
        A number in -1 to 1; 1 if samples are alike exactly when they have the same class; NaN if the kernel
        is constant.

    Raises:
        ValueError: All samples have the same class.

    Reference:
        Cortes et al. 2012 (JMLR 13, equation 3).
    """
    checks.positive("the number of classes", len(labels.unique()), "Give samples of two or more.", above=1)
    same = (labels[:, None] == labels[None]).to(kernel)
    one, two = (k - k.mean(0) - k.mean(1, keepdim=True) + k.mean() for k in (kernel, same))
    return float((one * two).sum() / (one.norm() * two.norm()))


def effective_dimension(
    model: nn.Module,
    inputs: Tensor,
    *,
    n_data: int,
    n_weights: int = 50,
    scale: float = 2 * math.pi,
    seed: int = 0,
) -> float:
    """The effective dimension of a classifier, as a share of its number of trained weights.

    Weights are drawn uniformly in [0, `scale`). For each draw, the Fisher information of the class
    probabilities is averaged over the inputs.

    Args:
        model: Model that returns logits of shape (n, n_classes). Its weights do not change.
        inputs: Inputs of shape (n, ...).
        n_data: Size of the training set that the dimension refers to, at least 50.
        n_weights: Number of random sets of weights.
        scale: Range of the weights; 2 pi for angles.
        seed: Seed of the random weights.

    Returns:
        A number from 0 to about 1; near 1 if every weight matters.

    Raises:
        ValueError: `n_data` is below 50, `n_weights` below 1, or no weight is trained.

    Reference:
        Abbas et al. 2021 (arXiv:2011.00027), equations 2 and 3 with gamma = 1.
    """
    checks.positive("n_data", n_data, "The dimension is only defined for many samples.", above=49)
    checks.positive("n_weights", n_weights)
    kappa = n_data / (2 * math.pi * math.log(n_data))
    generator = torch.Generator().manual_seed(seed)
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    fishers = []
    for _ in range(n_weights):
        drawn = {n: scale * torch.rand(w.shape, generator=generator).to(w) for n, w in trained.items()}
        logits, jacobian = (tensor.double() for tensor in _jacobian(model, inputs, drawn))
        probs = logits.softmax(-1)
        scores = jacobian - torch.einsum("nc,ncp->np", probs, jacobian).unsqueeze(1)
        fishers.append(torch.einsum("nc,ncp,ncq->pq", probs, scores, scores) / len(inputs))
    fisher = torch.stack(fishers)
    size = fisher.shape[-1]
    fisher = fisher * size / fisher.diagonal(dim1=1, dim2=2).sum(-1).mean()
    halves = torch.linalg.slogdet(torch.eye(size).to(fisher) + kappa * fisher).logabsdet / 2
    return float(2 * (halves.logsumexp(0) - math.log(n_weights)) / math.log(kappa) / size)


def _jacobian(
    model: nn.Module, inputs: Tensor, weights: dict[str, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Outputs, of shape (n, n_outputs), and their derivatives by the trained weights, in evaluation mode."""
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    checks.positive("the number of weights to train", len(trained), "Make a part of the model trainable.")
    values = {name: weight.detach() for name, weight in trained.items()} | (weights or {})

    def outputs(values: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        computed = torch.func.functional_call(model, values, (inputs,)).reshape(len(inputs), -1)
        return computed, computed

    with layers.evaluating(model):
        jacobians, computed = torch.func.jacrev(outputs, has_aux=True)(values)
    return computed.detach(), torch.cat([part.flatten(2) for part in jacobians.values()], -1).detach()


def _halves(layer: layers.QuantumLayer, inputs: Tensor) -> tuple[Any, list[Any], Tensor, Tensor]:
    """Wires, measurements, the states after the last gate that reads the inputs, and the unitary after it."""
    rows = inputs.detach().double().cpu()
    if rows.ndim != 2 or len(rows) < 2:
        rule, step = "have shape (batch, n_features) with at least two rows", "Give more rows."
        raise ValueError(checks.message("inputs", rule, tuple(inputs.shape), step))
    first = {name: tensor.detach() for name, tensor in layer._arguments(rows).items()}
    changed = first | {layer.input_arg: rows.flip(0) + 0.1}
    device = qp.device("default.qubit", wires=layer.qnode.device.wires, seed=None)
    qnode = layer.qnode.update(device=device, diff_method="backprop")  # backprop splits no batch
    tape, other = (qp.workflow.construct_tape(qnode, level="device")(**values) for values in (first, changed))
    wires, gates = tape.wires, tape.operations
    kinds = {type(measurement).__name__ for measurement in tape.measurements}
    if len(wires) > 10 or kinds != {"ExpectationMP"}:
        rule, step = "measure expectation values on at most 10 wires", "Give a smaller circuit."
        raise ValueError(checks.message("layer", rule, f"{sorted(kinds)} on {len(wires)} wires", step))
    pairs = enumerate(zip(gates, other.operations, strict=True))
    end = max((i + 1 for i, (one, two) in pairs if not qp.equal(one, two)), default=0)
    before = qp.tape.QuantumScript(gates[:end], [qp.state()])
    device = qp.device("default.qubit", wires=wires, seed=None)  # its states have these wires, in this order
    states = torch.as_tensor(qp.execute([before], device)[0]).reshape(-1, 2 ** len(wires))
    after = qp.tape.QuantumScript([qp.Identity(wires), *gates[end:]])
    return wires, tape.measurements, states, torch.as_tensor(qp.matrix(after, wires)).to(states.dtype)


def _expected(states: Tensor, observable: Tensor) -> Tensor:
    """Expectation values of shape (batch,)."""
    return torch.einsum("bi,ij,bj->b", states.conj(), observable, states).real
