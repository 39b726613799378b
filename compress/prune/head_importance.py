"""How much each attention head matters, as pure functions of gradients and attention, and measured on a network."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from compress.sample_loss import SampleLoss
from eval.inference import batches_by_length
from eval.task import Examples
from teachers.anatomy.attention_heads import head_counts, head_size, shared_layers
from teachers.anatomy.axes import Axis, layer_axes, split
from teachers.anatomy.encoder import family_of, is_causal, layer_names, layer_parts, layers
from teachers.data.encoded_dataset import Batch, labelled
from teachers.losses.task_loss import TaskLoss
from teachers.signals.hooks import SignalSpec, observe
from teachers.taskmodel import TaskModel
from teachers.training.scoring import rows_of

Scores = list[Tensor]
"""One tensor ``[heads]`` for each distinct layer."""

BATCH = 32


def example_scores(gradients: Tensor, mask: Tensor) -> Tensor:
    """Return ``|dL/dxi|`` of each text and head, the gate's gradient summed over the tokens first; ``[B, h]``.

    Args:
        gradients: Gradient of what each text adds to the loss, by the gate of each token and head, ``[B, L, h]``; it is
            the product of what the head gives and its gradient, summed over the head's channels.
        mask: 1 for real tokens, ``[B, L]``.
    """
    return (gradients * mask[..., None]).sum(dim=1).abs()


def token_scores(gradients: Tensor, mask: Tensor) -> Tensor:
    """Return the sum over the tokens of ``|gradient|``, as the authors' code has it, ``[B, h]``; arguments as above."""
    return (gradients.abs() * mask[..., None]).sum(dim=1)


def certainty(queries: Tensor, keys: Tensor, mask: Tensor, heads: int, causal: bool = False) -> Tensor:
    """Return ``log n - entropy`` of each head's attention, the mean over a text's real tokens; ``[B, h]``.

    ``n`` is how many real tokens a token sees. It is 0 for a head that looks at all of them alike and ``log n`` for one
    that looks at a single token.

    Args:
        queries: ``[B, L, h · d]``.
        keys: The same shape.
        mask: 1 for real tokens, ``[B, L]``.
        heads: ``h``.
        causal: Whether a token sees itself and those before it alone.

    Examples:
        >>> import torch
        >>> queries, keys = torch.zeros(1, 4, 8), torch.zeros(1, 4, 8)  # every token looks at all four alike
        >>> certainty(queries, keys, torch.ones(1, 4), heads=2).shape
        torch.Size([1, 2])
    """
    first, second = (x.float().reshape(*x.shape[:2], heads, -1).transpose(1, 2) for x in (queries, keys))
    real = mask.bool()
    seen = real[:, None].expand(-1, real.shape[1], -1)
    seen = seen.tril() if causal else seen
    scores = first @ second.transpose(-1, -2) / first.shape[-1] ** 0.5
    probs = scores.masked_fill(~seen[:, None], -torch.inf).softmax(dim=-1)
    entropy = torch.special.entr(probs).sum(dim=-1)
    gained: Tensor = (seen.sum(dim=-1).log()[:, None] - entropy).masked_fill(~real[:, None], 0.0)
    return gained.sum(dim=-1) / real.sum(dim=1, keepdim=True)


def taylor(weights: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """Return ``sum (weight · gradient)²`` of each head, ``[h]`` (Molchanov et al. 2019, arXiv 1906.10771, equation 8).

    Args:
        weights: Tensors ``[h, …]`` that hold the head's own weights.
        gradients: Gradients of the mean loss, of the same shapes.
    """
    products = [(w * g).square().flatten(1).sum(dim=1) for w, g in zip(weights, gradients, strict=True)]
    return torch.stack(products).sum(dim=0)


def normalised(scores: Scores) -> Scores:
    """Return the scores of each layer, ``[h]``, divided by their L2 norm."""
    return [layer / layer.norm().clamp_min(torch.finfo(layer.dtype).tiny) for layer in scores]


def measured(student: TaskModel, examples: Examples, importance: str, seed: int) -> Scores:
    """Return the scores of all heads, ``[h]`` for each layer, without dropout; the network stays as it is.

    But for ``entropy`` they are of the loss over all examples, to which each text adds what its labels weigh.

    Args:
        student: The network.
        examples: Texts; all but ``entropy`` read their labels.
        importance: What is measured.
        seed: Seeds the masks of the masked-language objective.

    Raises:
        UserError: If no text has a label to learn from.
    """
    if importance != "entropy":
        examples = labelled(student.task, examples)
    rows = rows_of(student, examples, seed)
    training, device = student.model.training, next(student.model.parameters()).device
    student.model.eval()
    try:
        batches = [rows.batch(indices).to(device) for indices in batches_by_length(rows.lengths, BATCH)]
        if importance == "entropy":
            return _entropies(student, batches, len(rows.features))
        loss = SampleLoss(student, TaskLoss().bind(student, rows), batches)
        return _taylor(loss) if importance == "taylor" else _gates(loss, importance)
    finally:
        student.model.train(training)


def _gates(loss: SampleLoss, importance: str) -> Scores:
    student, texts, tokens = loss.student, sum(map(len, loss.batches)), sum(int(b.mask.sum()) for b in loss.batches)
    score = token_scores if importance == "code" else example_scores
    counts = [head_counts(student.model)[group[0]] for group in shared_layers(student.model)]
    device = next(student.model.parameters()).device
    total = [torch.zeros(count, dtype=torch.float64, device=device) for count in counts]
    for number, batch in enumerate(loss.batches):
        gates = [torch.ones(*batch.mask.shape, count, device=device, requires_grad=True) for count in counts]
        with torch.enable_grad(), _gated(student.model, gates):
            gradients = torch.autograd.grad(loss.of(number), gates)
        for layer, gradient in zip(total, gradients, strict=True):
            layer += score(gradient.double(), batch.mask).sum(dim=0)
    factors = [1.0] * len(total)
    if importance == "code":  # there, all but the last layer are divided by the tokens in the place of the texts
        factors = [texts / tokens] * (len(total) - 1) + [1.0]
    return [layer.cpu() * factor for layer, factor in zip(total, factors, strict=True)]


@contextlib.contextmanager
def _gated(model: Any, gates: Sequence[Tensor]) -> Iterator[None]:
    """Multiply what every head gives by its gate, for a while; a shared layer uses its gates at every pass."""
    time_first = family_of(model).time_first

    def multiply(gate: Tensor) -> Any:
        gate = gate.transpose(0, 1) if time_first else gate

        def before(_module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            heads = args[0].reshape(*args[0].shape[:2], gate.shape[-1], -1)
            return (heads * gate[..., None]).flatten(-2), *args[1:]

        return before

    handles = []
    for group, gate in zip(shared_layers(model), gates, strict=True):
        output = layer_parts(model, layers(model)[group[0]])["attention_output"]
        handles.append(output.register_forward_pre_hook(multiply(gate)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _entropies(student: TaskModel, batches: Sequence[Batch], texts: int) -> Scores:
    model, counts = student.model, head_counts(student.model)
    groups, causal = shared_layers(model), is_causal(model)
    every = tuple(range(len(counts)))
    total = [torch.zeros(counts[group[0]], dtype=torch.float64) for group in groups]
    for batch in batches:
        with torch.no_grad():
            seen = observe(model, batch.inputs, SignalSpec(queries=every, keys=every, logits=False))
        for layer, group in zip(total, groups, strict=True):
            for index in group:
                found = certainty(seen.queries[index], seen.keys[index], batch.mask, counts[index], causal)
                layer += found.double().sum(dim=0).cpu() / (texts * len(group))
    return total


def _taylor(loss: SampleLoss) -> Scores:
    """Return the sums over weights; those that no text runs through, as of global attention, add nothing."""
    model = loss.student.model
    axes = {name: found for name, found in layer_axes(model).items() if found and _is_of_heads(found[0])}
    owned = {name: parameter for name, parameter in model.named_parameters() if axes.get(name)}
    flags = [parameter.requires_grad for parameter in owned.values()]
    total = {name: torch.zeros_like(parameter) for name, parameter in owned.items()}
    try:
        for parameter in owned.values():
            parameter.requires_grad_(True)
        for number in range(len(loss)):
            with torch.enable_grad():
                gradients = torch.autograd.grad(loss.of(number), list(owned.values()), materialize_grads=True)
            for name, gradient in zip(owned, gradients, strict=True):
                total[name] += gradient
    finally:
        for parameter, flag in zip(owned.values(), flags, strict=True):
            parameter.requires_grad_(flag)
    scores, size = [], head_size(model.config)
    for group in shared_layers(model):
        own = [name for name in owned if name.startswith(f"{layer_names(model)[group[0]]}.")]
        weights, slopes = (
            [part.reshape(-1, size, *part.shape[1:]) for name in own for part in split(source[name], axes[name][0])]
            for source in ({name: parameter.detach() for name, parameter in owned.items()}, total)
        )
        scores.append(taylor(weights, slopes).double().cpu())
    return scores


def _is_of_heads(axis: Axis) -> bool:
    return axis.units[0].rpartition(":")[2] in {"q", "k", "v"}
