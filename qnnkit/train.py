"""One training loop, on Accelerate, for any model, task and loaders. It knows nothing quantum."""

from __future__ import annotations

import contextlib
import copy
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from qnnkit import checkpoint, checks
from qnnkit.config import TrainingConfig
from qnnkit.tasks import Step, Task

PRECISIONS = {"float32": "no", "bfloat16": "bf16", "float16": "fp16"}
"""Our names of precisions -> Accelerate's."""


@dataclass(frozen=True)
class Group:
    """Parameters that share a step size and are clipped together."""

    name: str
    parameters: Sequence[nn.Parameter]
    learning_rate: float
    clip_norm: float | None = None
    weight_decay: float = 0.0


@dataclass
class Progress:
    """How far a training has come; kept in every checkpoint."""

    epoch: int = 0
    """Epochs finished."""
    updates: int = 0
    """Optimizer steps taken."""
    best_epoch: int = 0
    best_score: list[float] = field(default_factory=list)
    """(monitored number, minus the loss) of the best epoch on the validation split."""
    seconds: list[float] = field(default_factory=list)
    """Duration of each epoch's training, without validation and writing."""

    @property
    def seconds_per_epoch(self) -> float:
        """Median over the epochs, without the first where there are more: it warms up."""
        return statistics.median(self.seconds[1:] or self.seconds)


def fit(
    model: nn.Module,
    task: Task,
    loaders: dict[str, DataLoader],
    config: TrainingConfig,
    *,
    groups: Sequence[Group] | None = None,
    device: torch.device | str = "cpu",
    seed: int = 0,
    folder: Path | None = None,
    log: Callable[[dict[str, Any]], None] | None = None,
) -> Progress:
    """Trains `model` in place; afterwards it holds the weights of the best validation epoch.

    With a `folder`, every epoch ends in `last.safetensors` and the best one is kept as `best.safetensors`;
    a folder that holds `last` already is gone on with, and on a CPU ends in the same bits.

    Args:
        model: Any module.
        task: Loss and metrics.
        loaders: "train" and "validation"; an epoch's order must follow from `set_epoch` alone.
        config: Epochs, step sizes, precision and so on.
        groups: Parameters by step size and clipping; all in one by default.
        device: Where to compute.
        seed: Fixes what the model draws while training (dropout); the caller's generators are left alone.
        folder: Where checkpoints go.
        log: Called after every epoch with one row of plain numbers.

    Raises:
        FloatingPointError: The loss or a gradient is not finite; told are the layer, epoch and batch. Nothing
            of that epoch is kept: once the cause is mended, the same call goes on from the epoch before.
        ValueError: The precision cannot be had on the device, a loader is empty, or nothing can be trained.
    """
    device = torch.device(device)
    devices = [torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), _accelerated(model, device, config) as accelerator:
        torch.manual_seed(seed)
        loop = _Loop(model, task, loaders, config, groups, accelerator, folder)
        return loop.run(log or (lambda row: None))


def evaluate(
    model: nn.Module, task: Task, loader: DataLoader, device: torch.device | str = "cpu"
) -> dict[str, float]:
    """The task's numbers on a loader: means over all samples.

    Raises:
        FloatingPointError: One of them is not finite; told are the layer and the batch.
    """
    from accelerate.utils import send_to_device

    model.to(device).eval()
    with torch.random.fork_rng(devices=[]):  # a plain DataLoader draws a number per pass
        return _evaluate(model, lambda batch: task(model, send_to_device(batch, device)), loader)


def _evaluate(
    model: nn.Module, compute: Callable[[Any], Step], loader: DataLoader, kind: str = "", where: str = ""
) -> dict[str, float]:
    totals = _Totals()
    with torch.no_grad():
        for batch in loader:
            totals.add(compute(batch))
        means = totals.means()
        for name in (name for name, mean in means.items() if not math.isfinite(mean)):
            for index, batch in enumerate(loader):  # again, now that waiting for each is no matter
                if not math.isfinite(compute(batch).sums[name]):
                    raise _not_finite(f"{kind}{name}", f"{where}batch {index}", model, compute, batch)
            raise FloatingPointError(f"The sum of the {kind}{name} is not finite, though each batch is.")
    return means


def _not_finite(
    what: str, where: str, model: nn.Module, compute: Callable[[Any], Step], batch: Any
) -> FloatingPointError:
    """The error that names the layer: the batch is computed once more, and every layer watched."""
    entered, guilty = {}, []

    def enter(layer: nn.Module, args: Any, kwargs: Any) -> None:
        entered[layer] = _all_finite((args, kwargs))

    def leave(layer: nn.Module, args: Any, output: Any) -> None:
        if entered[layer] and not _all_finite(output):
            guilty.append(layer)  # what is inside a layer leaves before it

    with contextlib.ExitStack() as hooks, torch.no_grad():
        for layer in model.modules():
            hooks.enter_context(layer.register_forward_pre_hook(enter, with_kwargs=True))
            hooks.enter_context(layer.register_forward_hook(leave))
        compute(batch)
    if guilty:
        name = next(name for name, layer in model.named_modules() if layer is guilty[0])
        why = f"layer `{name or 'model'}` ({type(guilty[0]).__name__}) makes such numbers of finite ones"
        step = "Look at its weights and at what it is given; a lower learning rate or a clip_norm may help."
    elif not _all_finite(batch):
        why, step = "the data of that batch are not finite", "Mend these samples or leave them out."
    else:
        why, step = "every layer's output is, so the fault is in the task", "Look at the labels and the loss."
    return FloatingPointError(f"The {what} is not finite at {where}: {why}. {step}")


def _all_finite(values: Any) -> bool:
    """Whether every number is, in tensors inside tuples, lists and dictionaries."""
    return all(bool(leaf.isfinite().all()) for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))


class _Totals:
    def __init__(self) -> None:
        self.sums: dict[str, torch.Tensor] = {}
        self.count = 0

    def add(self, step: Any) -> None:
        self.count += step.count
        for name, value in step.sums.items():
            self.sums[name] = self.sums.get(name, 0) + value  # stays on the device: no wait per batch

    def means(self) -> dict[str, float]:
        return {name: float(value) / self.count for name, value in self.sums.items()}


class _Loop:
    def __init__(self, model, task, loaders, config, groups, accelerator, folder):
        self.task, self.config, self.accelerator, self.folder = task, config, accelerator, folder
        for name in ("train", "validation"):
            checks.positive(f"the number of {name} batches", len(loaders[name]), "Give it data to load.")
        groups = groups or [Group("all", list(model.parameters()), config.learning_rate)]
        self.groups = [
            _trainable(group) for group in groups if any(p.requires_grad for p in group.parameters)
        ]
        if not self.groups:
            raise ValueError(
                checks.message(
                    "model", "have a weight to train", "all frozen", "Make a part of it trainable."
                )
            )
        self.rates = [group.learning_rate for group in self.groups]
        optimizer = _optimizer(self.groups, config)
        optimizer.zero_grad()  # what the caller has left there is not of this training
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        self.train_loader, self.validation_loader = self.accelerator.prepare(
            loaders["train"], loaders["validation"]
        )
        self.updates_per_epoch = math.ceil(len(self.train_loader) / config.accumulation)
        self.progress = Progress()

    def run(self, log: Callable[[dict[str, Any]], None]) -> Progress:
        self._resume()
        while self.progress.epoch < self.config.epochs and not self._out_of_patience():
            row = self._epoch()
            log(row)
            self._save()
        if self.folder:
            checkpoint.load_checkpoint(self.folder / "best.safetensors", self._bare())
        else:
            self._bare().load_state_dict(self.best_weights)
        return self.progress

    def _epoch(self) -> dict[str, Any]:
        start = time.perf_counter()
        self.model.train()
        self.train_loader.set_epoch(self.progress.epoch)
        totals, norms = _Totals(), {group.name: [] for group in self.groups}
        batches = []  # of one update: (index, batch, loss)
        for index, batch in enumerate(self.train_loader):
            with self.accelerator.accumulate(self.model):
                step = self._step(batch)
                self.accelerator.backward(step.loss * self._weight(index))
                totals.add(step)
                batches.append((index, batch, step.loss.detach()))
                if self.accelerator.sync_gradients:
                    self._update(norms, batches)
                    batches.clear()
                self.optimizer.zero_grad()
        train = totals.means()  # waits for the device, so the time below is the whole time
        self.progress.seconds.append(time.perf_counter() - start)
        self.progress.epoch += 1
        validation = self._validate()
        self._note_best(validation)
        row = {"epoch": self.progress.epoch, "seconds": self.progress.seconds[-1]}
        row |= {f"train_{name}": value for name, value in train.items()}
        row |= {f"validation_{name}": value for name, value in validation.items()}
        row |= {f"gradient_norm_{name}": _finite_mean(values) for name, values in norms.items()}
        return row | {"learning_rate": self.optimizer.param_groups[0]["lr"], "best": self._is_best()}

    def _step(self, batch: Any) -> Step:
        with self.accelerator.autocast():
            return self.task(self.model, batch)

    def _weight(self, index: int) -> float:
        """Accelerate divides each loss by `accumulation`; the last batches of an epoch may be fewer."""
        first = index - index % self.config.accumulation
        return self.config.accumulation / min(self.config.accumulation, len(self.train_loader) - first)

    def _update(self, norms: dict[str, list[float]], batches: list[tuple[int, Any, torch.Tensor]]) -> None:
        scale = self._schedule(self.progress.updates / self.updates_per_epoch)
        for group, rate, parameters in zip(self.groups, self.rates, self.optimizer.param_groups, strict=True):
            parameters["lr"] = rate * scale
            # Unscales first, so under a gradient scaler these are the true norms too.
            norm = self.accelerator.clip_grad_norm_(group.parameters, group.clip_norm or math.inf)
            norms[group.name].append(float(norm))  # type: ignore[arg-type]
        where = f"epoch {self.progress.epoch + 1}, batch "
        for index, batch, loss in batches:
            if not math.isfinite(loss):  # the norms have been waited for, so this one is there
                raise _not_finite("training loss", f"{where}{index}", self._bare(), self._step, batch)
        scaled = self.accelerator.scaler is not None  # a scaler skips steps that overflow by itself
        if not scaled and not all(math.isfinite(values[-1]) for values in norms.values()):
            worst = next(name for name, values in norms.items() if not math.isfinite(values[-1]))
            raise FloatingPointError(
                f"The gradient of the {worst} weights is not finite at {where}{batches[-1][0]}. Lower the "
                "learning rate, or set clip_norm and quantum_clip_norm."
            )
        self.optimizer.step()
        self.progress.updates += 1

    def _schedule(self, epoch: float) -> float:
        """Factor on the step sizes at a fractional epoch: rises during warm-up, then falls to zero."""
        warmup, total = self.config.warmup_epochs, self.config.epochs
        if epoch < warmup:
            return (epoch + 1 / self.updates_per_epoch) / (warmup + 1 / self.updates_per_epoch)
        done = (epoch - warmup) / max(total - warmup, 1e-9)
        match self.config.schedule:
            case "cosine":
                return 0.5 * (1 + math.cos(math.pi * done))
            case "linear":
                return 1 - done
            case _:
                return 1.0

    def _validate(self) -> dict[str, float]:
        self.model.eval()
        where = f"epoch {self.progress.epoch}, "
        return _evaluate(self._bare(), self._step, self.validation_loader, "validation ", where)

    def _note_best(self, validation: dict[str, float]) -> None:
        score = [validation[self.task.monitor], -validation["loss"]]
        if not self.progress.best_score or score > self.progress.best_score:
            self.progress.best_score, self.progress.best_epoch = score, self.progress.epoch

    def _is_best(self) -> bool:
        return self.progress.best_epoch == self.progress.epoch

    def _out_of_patience(self) -> bool:
        waited = self.progress.epoch - self.progress.best_epoch
        return bool(self.config.patience) and waited >= self.config.patience

    def _bare(self) -> nn.Module:
        return self.accelerator.unwrap_model(self.model)

    def _save(self) -> None:
        if self.folder is None:
            if self._is_best():
                self.best_weights = copy.deepcopy(self._bare().state_dict())
            return
        if not self.accelerator.is_main_process:
            return
        last = self.folder / "last.safetensors"
        state = vars(self.progress) | {"scaler": _scaler_state(self.accelerator)}
        checkpoint.save_checkpoint(last, self._bare(), self.optimizer, state)
        if self._is_best():
            checkpoint.keep_as(last, "best.safetensors")

    def _resume(self) -> None:
        last = self.folder / "last.safetensors" if self.folder else None
        if last is None or not last.exists():
            return
        state = checkpoint.load_checkpoint(last, self._bare(), self.optimizer)
        scaler = state.pop("scaler")
        if scaler and self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(scaler)
        self.progress = Progress(**state)
        if self._is_best():
            checkpoint.keep_as(last, "best.safetensors")  # a kill may have come before it


def _trainable(group: Group) -> Group:
    parameters = [parameter for parameter in group.parameters if parameter.requires_grad]
    return Group(group.name, parameters, group.learning_rate, group.clip_norm, group.weight_decay)


def _optimizer(groups: Sequence[Group], config: TrainingConfig) -> torch.optim.Optimizer:
    settings = [
        {"params": list(group.parameters), "lr": group.learning_rate, "weight_decay": group.weight_decay}
        for group in groups
    ]
    match config.optimizer:
        case "adam":
            return torch.optim.Adam(settings)
        case "adamw":
            return torch.optim.AdamW(settings)
        case "sgd":
            return torch.optim.SGD(settings, momentum=0.9)


@contextlib.contextmanager
def _accelerated(model: nn.Module, device: torch.device, config: TrainingConfig) -> Iterator[Any]:
    """An Accelerator for exactly this device and precision; it leaves nothing behind, `model` included."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    if config.precision == "float16" and device.type == "cpu":
        raise ValueError(
            checks.message("precision", "suit the device", "float16 on cpu", "Use bfloat16 or float32.")
        )

    def forget() -> None:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()

    hung = ("forward", "_original_forward", "_is_accelerate_prepared")  # what `prepare` sets on a module
    before = {name: vars(model)[name] for name in hung if name in vars(model)}
    forget()
    try:
        accelerator = Accelerator(
            cpu=device.type == "cpu",
            mixed_precision=PRECISIONS[config.precision],
            gradient_accumulation_steps=config.accumulation,
        )
        if torch.zeros(0, device=device).device != torch.zeros(0, device=accelerator.device).device:
            rule = f"be the one that Accelerate gives this process ({accelerator.device})"
            step = "Choose another GPU by CUDA_VISIBLE_DEVICES."
            raise ValueError(checks.message("device", rule, str(device), step))
        yield accelerator
    finally:
        for name in hung:
            vars(model).pop(name, None)
        vars(model).update(before)
        forget()


def _finite_mean(norms: Sequence[float]) -> float | None:
    """Mean over the steps that were taken: one that a gradient scaler skips has an infinite norm."""
    finite = [norm for norm in norms if math.isfinite(norm)]
    return statistics.fmean(finite) if finite else None


def _scaler_state(accelerator: Any) -> dict[str, Any] | None:
    return accelerator.scaler.state_dict() if accelerator.scaler is not None else None
