"""What a net really computes: Pauli weights of a circuit, a net's tangent kernel, effective dimension."""

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

    What is measured is moved back through the gates after the last one that reads the inputs:
    V' O V = sum of c_P P over Pauli strings P. The weight of P is the number of wires on which it acts. If
    strings of small weight suffice, the circuit after its embedding can be simulated classically.

    Args:
        layer: A layer whose QNode returns expectation values, of at most 10 wires. Its present weights count.
        inputs: Of shape (batch, n_features), two rows or more.

    Returns:
        A row for each output and each weight k from 0: `share`, the sum of c_P squared up to weight k, as a
        share of all; `explained`, 1 less the variance over the inputs of what is missing from the output,
        relative to that of the output (nan for an output that is constant).

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
        whole, share, part = _expected(states, moved), 0.0, torch.zeros_like(moved)
        for k in range(len(wires) + 1):
            some = {word: each for word, each in terms.items() if len(word) == k}
            share += sum(abs(coefficient) ** 2 for coefficient in some.values()) / total
            if some:
                part = part + torch.as_tensor(qp.pauli.PauliSentence(some).to_mat(wires)).to(part.dtype)
            missing = whole - _expected(states, part)
            explained = float(1 - missing.var() / whole.var()) if whole.var() > 1e-20 else math.nan
            rows.append({"output": output, "weight": k, "share": share, "explained": explained})
    return pd.DataFrame(rows)


def tangent_kernel(model: nn.Module, inputs: Tensor) -> Tensor:
    """The kernel K = J J' of a model's outputs by its trained weights, summed over the outputs.

    Its eigenvalues say how fast each pattern of the samples is learnt in the first steps.

    Args:
        model: In any mode; it runs in evaluation mode.
        inputs: Of shape (n, ...).

    Returns:
        Of shape (n, n), positive semidefinite.

    Reference:
        Jacot et al. 2018 (arXiv:1806.07572); Liu et al. 2022 (arXiv:2111.04225) for circuits.
    """
    jacobian = _jacobian(model, inputs)[1]
    return torch.einsum("nop,mop->nm", jacobian, jacobian)


def alignment(kernel: Tensor, labels: Tensor) -> float:
    """How well a kernel suits labels: the cosine between it and the kernel of equal labels, both centred.

    Args:
        kernel: Of shape (n, n).
        labels: Whole numbers of shape (n,), of two classes or more.

    Returns:
        In -1 to 1; 1 where samples of one class are alike and all others are not.

    Reference:
        Cortes et al. 2012 (JMLR 13, equation 3).
    """
    same = (labels[:, None] == labels[None]).to(kernel)
    one, two = (each - each.mean(0) - each.mean(1, keepdim=True) + each.mean() for each in (kernel, same))
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

    Weights are drawn uniformly in [0, `scale`); at each the Fisher information of the class probabilities is
    averaged over the inputs.

    Args:
        model: Returns logits of shape (n, n_classes). Its weights stay as they are.
        inputs: Of shape (n, ...).
        n_data: Size of the training set for which the dimension is meant, 50 or more.
        n_weights: Number of random sets of weights.
        scale: Range of the weights; 2 pi for angles.
        seed: Fixes the weights that are drawn.

    Returns:
        In 0 to about 1; near 1 if every weight matters.

    Raises:
        ValueError: `n_data` is below 50.

    Reference:
        Abbas et al. 2021 (arXiv:2011.00027), equations 2 and 3 with gamma = 1.
    """
    if n_data < 50:
        step = "The dimension is defined for many samples."
        raise ValueError(checks.message("n_data", "be 50 or more", n_data, step))
    kappa = n_data / (2 * math.pi * math.log(n_data))
    generator = torch.Generator().manual_seed(seed)
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    fishers = []
    for _ in range(n_weights):
        drawn = {n: scale * torch.rand(w.shape, generator=generator).to(w) for n, w in trained.items()}
        logits, jacobian = (each.double() for each in _jacobian(model, inputs, drawn))
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
        jacobians, there = torch.func.jacrev(outputs, has_aux=True)(values)
    return there.detach(), torch.cat([each.flatten(2) for each in jacobians.values()], -1).detach()


def _halves(layer: layers.QuantumLayer, inputs: Tensor) -> tuple[Any, list[Any], Tensor, Tensor]:
    """Wires, measurements, the states after the last gate that reads the inputs, and the unitary after it."""
    rows = inputs.detach().double().cpu()
    if rows.ndim != 2 or len(rows) < 2:
        rule, step = "have shape (batch, n_features), two rows or more", "Give more rows."
        raise ValueError(checks.message("inputs", rule, tuple(inputs.shape), step))
    given = {name: tensor.detach() for name, tensor in layer._arguments(rows).items()}
    others = given | {layer.input_arg: rows.flip(0) + 0.1}
    device = qp.device("default.qubit", wires=layer.qnode.device.wires, seed=None)
    qnode = layer.qnode.update(device=device, diff_method="backprop")  # which splits no batch
    tape, other = (qp.workflow.construct_tape(qnode, level="device")(**each) for each in (given, others))
    wires, gates = tape.wires, tape.operations
    kinds = {type(measurement).__name__ for measurement in tape.measurements}
    if len(wires) > 10 or kinds != {"ExpectationMP"}:
        rule, step = "measure expectation values on at most 10 wires", "Give a smaller circuit."
        raise ValueError(checks.message("layer", rule, f"{sorted(kinds)} on {len(wires)} wires", step))
    pairs = enumerate(zip(gates, other.operations, strict=True))
    first = max((i + 1 for i, (one, two) in pairs if not qp.equal(one, two)), default=0)
    before = qp.tape.QuantumScript(gates[:first], [qp.state()])
    states = torch.as_tensor(qp.execute([before], device)[0]).reshape(-1, 2 ** len(wires))
    after = qp.tape.QuantumScript([qp.Identity(wires), *gates[first:]])
    return wires, tape.measurements, states, torch.as_tensor(qp.matrix(after, wires)).to(states.dtype)


def _expected(states: Tensor, observable: Tensor) -> Tensor:
    """Expectation values of shape (batch,)."""
    return torch.einsum("bi,ij,bj->b", states.conj(), observable, states).real
