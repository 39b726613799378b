"""What the conformance tests share: the exceptions by technique, and how a result is judged."""

import numpy as np
import torch

from compress.registry import get
from compress.technique import Inputs, TrainedTechnique
from eval.inference import predict
from teachers.anatomy.encoder import layer_count
from teachers.signals.model_teacher import ModelTeacher
from teachers.training.config import Training
from tests.tiny import FAMILIES, tiny_task

SHARES_LAYERS = {"albert"}
"""Families whose layers are one module: fewer of them are fewer multiply-accumulates, not fewer parameters."""


LEAST = {
    "quantize.qbert": {"portions": 2, "portion_examples": 4, "power_steps": 3},
    "distill.combined": {"objective": {"distill.logits": {"temperature": 4.0}, "distill.pkd": {"weight": 0.1}}},
    "distill.minilm": {"relation_heads": 4},
    "distill.bilstm": {"hidden_size": 8, "dense_size": 8},
    "distill.static": {"dense_size": 8},
    "share.embeddings": {"size": 8},
}
"""Fields without which a technique does not exist, or does not fit a tiny model."""

REFUSED = {
    "replace.theseus": ("albert", "modernbert"),
    "quantize.qbert": ("xlnet",),
    "prune.heads": ("xlnet",),
    "distill.minilm": ("xlnet",),
    "distill.tinybert": ("xlnet", "deberta-v2", "modernbert"),
    "distill.mobilebert": ("albert", "xlnet", "deberta-v2", "modernbert"),
    "distill.dual": FAMILIES,
    "share.layers": ("albert",),
    "quantize.q8bert": ("xlnet",),
    "distill.margin_mse": FAMILIES,
}
"""Families that a technique refuses by name, for what their attention lacks or adds, or for layers they share.

All of them if it is for another task than the classification of single texts; its parity test then runs it, and
reloads its result.
"""

ROUNDING = {"quantize.q8bert": 0.05, "quantize.bitsandbytes": 0.05}
"""Largest change of a logit by padding and batch mates after a technique that rounds activations.

The last bit of a float, which depends on the shape of a batch, may then decide a whole step.
"""

OTHER_KIND = {"distill.embedding": "embedding"}
"""The kind of task of techniques that are not for classification."""


def instance(name, **fields):
    """Return the technique with the least work."""
    technique, fields = get(name), {**LEAST.get(name, {}), **fields}
    if issubclass(technique, TrainedTechnique):
        blocks = {name for name, value in technique(**fields) if isinstance(value, Training)} - {"training"}
        short = {"max_steps": 2, "batch_size": 8}
        fields = {**dict.fromkeys(blocks, short), **short, **fields}
    return technique(**fields)


def task_of(*chosen):
    """Return a task that all of these techniques are for, as far as there is one."""
    return tiny_task(next((OTHER_KIND[name] for name in chosen if name in OTHER_KIND), "classification"))


def inputs_for(task, teacher, signals):
    return Inputs(
        train=task.train,
        validation=task.validation[:8],
        calibration=task.train[:8],
        teacher=ModelTeacher(teacher, cache=signals),
    )


def check_outputs(result, task):
    """Finite, as many hidden states as layers and one, and independent of padding and batch mates."""
    examples = task.validation[:6]
    together = predict(result, examples, batch_size=6).logits
    alone = predict(result, examples, batch_size=1).logits
    assert np.isfinite(np.stack(together)).all()
    atol = max(ROUNDING.get(record.technique, 1e-5) for record in result.lineage)
    assert np.allclose(together, alone, atol=atol)
    inputs = result.encoder.collate(result.encoder.encode(examples), multiple_of=8)
    assert np.allclose(result.forward(inputs), np.stack(together).reshape(len(examples), -1), atol=atol)
    tensors = {key: torch.from_numpy(value) for key, value in inputs.items()}
    if not layer_count(result.model):
        return
    with torch.no_grad():
        hidden = result.model(**tensors, output_hidden_states=True).hidden_states
    assert len(hidden) == layer_count(result.model) + 1
