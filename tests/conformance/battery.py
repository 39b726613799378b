"""What the conformance tests share: the exceptions by technique, and how a result is judged."""

from functools import cache

from compress.registry import get
from compress.testing.case import Case, inputs_for, least
from compress.testing.technique_checks import check_outputs
from tests.tiny import FAMILIES, tiny_task

__all__ = ["LEAST", "OTHER_KIND", "REFUSED", "case", "check_result", "inputs_for", "instance", "kind_of", "task_of"]

LEAST = {
    "quantize.qbert": {"portions": 2, "portion_examples": 4, "power_steps": 3},
    "distill.combined": {"objective": {"distill.logits": {"temperature": 4.0}, "distill.pkd": {"weight": 0.1}}},
    "distill.best_of": {"of": [{"distill.logits": {"loss": "mse", "alpha": 1.0}}, "distill.labels"]},
    "distill.minilm": {"relation_heads": 4},
    "distill.bilstm": {"hidden_size": 8, "dense_size": 8},
    "distill.static": {"dense_size": 8},
    "share.embeddings": {"size": 8},
    "prune.tokens": {"retention_rate": 0.3},  # or the search of one step would drop next to nothing
}
"""Fields without which a technique does not exist, or does not fit a tiny model."""

REFUSED = {
    "replace.theseus": ("albert", "modernbert"),
    "distill.tinybert": ("xlnet", "deberta-v2", "modernbert", "longformer"),
    "distill.mobilebert": ("albert", "xlnet", "deberta-v2", "modernbert", "mpnet", "longformer"),
    "distill.dual": FAMILIES,
    "share.layers": ("albert",),
    "distill.margin_mse": FAMILIES,
    "distill.sequence": FAMILIES,
    "distill.listwise": FAMILIES,
    "distill.contrastive": FAMILIES,
    "prune.tokens": ("mobilebert", "xlnet", "deberta-v2", "modernbert", "mpnet", "gpt2", "longformer"),
    "distill.cross_view": ("mobilebert", "xlnet", "gpt2", "longformer"),
    "distill.early_exit": ("gpt2",),
    "share.adaptive_depth": ("gpt2",),
}
"""Families that a technique refuses by name, for what their attention lacks or adds, or for layers they share.

All of them if it is for another task than the classification of single texts; its parity test then runs it, and
reloads its result.
"""

OTHER_TASK = tuple(name for name, families in REFUSED.items() if families is FAMILIES)
"""Those that are for another task, whatever the family."""

ROUNDING = {"quantize.q8bert": 0.05, "quantize.bitsandbytes": 0.05}
"""Largest change of a logit by padding and batch mates after a technique that rounds activations.

The last bit of a float, which depends on the shape of a batch, may then decide a whole step.
"""

OTHER_KIND = {"distill.embedding": "embedding"}
"""The kind of task of techniques that are not for classification."""


def instance(name, **fields):
    """Return the technique with the least work."""
    return least(get(name)(**{**LEAST.get(name, {}), **fields}))


def kind_of(*chosen):
    """Return the kind of task that all of these techniques are for, as far as there is one."""
    return next((OTHER_KIND[name] for name in chosen if name in OTHER_KIND), "classification")


def tolerance_of(*chosen):
    """Return the largest change of a logit by padding and batch mates after these techniques."""
    return max(ROUNDING.get(name, 1e-5) for name in chosen)


@cache
def case(name, family, signals, **changes):
    """Return a technique on a family; models and results are made once for all tests."""
    technique, kind, tolerance = instance(name), kind_of(name), tolerance_of(name)
    return Case(technique, signals, family, kind, tolerance, changes)


def task_of(*chosen):
    """Return a task that all of these techniques are for, as far as there is one."""
    return tiny_task(kind_of(*chosen))


def check_result(result, task):
    """Its outputs are sound, as far as the rounding of its steps lets them."""
    check_outputs(result, task, tolerance_of(*(record.technique for record in result.lineage)))
