"""Whether a larger number is better, as its name tells."""

from __future__ import annotations

import re

from qnnkit import checks

_RISING = {
    "accuracy", "acc", "precision", "recall", "specificity", "f1", "auc", "auroc", "auprc", "ap", "map",
    "r2", "iou", "miou", "dice", "jaccard", "mcc", "kappa", "ndcg", "mrr", "bleu", "rouge", "meteor",
    "cider", "psnr", "ssim", "fidelity", "likelihood", "hits", "correlation", "pearson", "spearman",
}  # fmt: skip
_FALLING = {
    "loss", "error", "err", "cost", "mse", "mae", "rmse", "nmse", "mape", "msle", "nll", "ece", "bce",
    "brier", "crossentropy", "perplexity", "ppl", "hinge", "huber", "wer", "cer", "kl", "kld",
    "divergence", "fid", "regret", "residual", "infidelity",
}  # fmt: skip
_FILLERS = {
    "train", "test", "validation", "val", "valid", "mean", "avg", "average", "median", "total", "sum",
    "macro", "micro", "weighted", "balanced", "top", "at", "per", "token", "sample", "step", "batch",
    "epoch", "score", "rate", "k",
}  # fmt: skip
"""Words, and numbers, that change nothing of a name's direction."""
_NEGATIONS = {"minus", "neg", "negative", "inverse", "inv", "one", "1", "anti"}
_TERMS = {"negative_log_likelihood": "nll", "neg_log_likelihood": "nll", "cross_entropy": "crossentropy"}


def direction(name: str) -> bool:
    """Whether a larger number of this name is better, by the last of its words that says what it is.

    A name such as `minus_mse`, of a number that is negated, is that of a number to be raised.

    Raises:
        ValueError: The name does not tell.

    Example:
        >>> direction("top_5_accuracy"), direction("word_error_rate"), direction("minus_loss")
        (True, False, True)
        >>> direction("negative_log_likelihood"), direction("mse_total")
        (False, False)
    """
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    for term, word in _TERMS.items():
        plain = plain.replace(term, word)
    words = plain.split("_")
    if words[0] == "minus" and len(words) > 1:
        return True
    telling = [word for word in words if word not in _FILLERS and not re.fullmatch(r"(top|k)?\d+", word)]
    last = telling[-1] if telling and not _NEGATIONS.intersection(words[:1] + telling) else ""
    if last in _RISING or last in _FALLING:
        return last in _RISING
    rule = "say whether more is better, as its name does not"
    step = f"Write score = Score({name!r}, {name!r}, larger=False), or larger=True."
    raise ValueError(checks.message("score", rule, name, step))
