"""Which weights go together when a channel is removed, and how important it is: torch-pruning's graph and scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch_pruning as tp
from torch import Tensor, nn

from compress.sample_loss import SampleLoss
from eval.errors import UserError
from eval.inference import batches_by_length
from eval.task import Examples
from teachers.anatomy.attention_heads import is_linear
from teachers.anatomy.encoder import family_of, layer_parts, layers, model_inputs, reaches, word_embeddings
from teachers.data.encoded_dataset import labelled
from teachers.losses.task_loss import TaskLoss
from teachers.taskmodel import TaskModel
from teachers.training.scoring import rows_of

Scorer = Literal["taylor", "magnitude", "random"]
BATCH = 32
TRACED = 8
"""Tokens of the input that the graph is traced with."""

ROOTS = {
    "ffn": tp.prune_linear_in_channels,
    "attention": tp.prune_linear_out_channels,
    "hidden": tp.prune_linear_out_channels,
    "embedding": tp.prune_embedding_out_channels,
}
"""Kind of channel -> how torch-pruning cuts it at the module where its group begins."""


class Dependencies:
    """The graph of a network; it stays right while channels are cut through it.

    Args:
        network: A transformers model with a head. Its gradients, if there are some, are what Taylor's score reads.
    """

    def __init__(self, network: Any) -> None:
        self.network, self.names = network, dict(network.named_modules())
        tokens = min([TRACED, *reaches(network)])
        inputs = {name: torch.ones(1, tokens, dtype=torch.int64) for name in model_inputs(network.config)}
        if family_of(network).global_parts:  # blocks and global attention join tensors, which tells nothing of neurons
            inputs["global_attention_mask"] = torch.zeros(1, tokens, dtype=torch.int64)
        flags = [(parameter, parameter.requires_grad) for parameter in network.parameters()]
        network.requires_grad_(True)
        with torch.enable_grad():
            self.graph = tp.DependencyGraph().build_dependency(
                network,
                example_inputs={name: tensor.to(network.device) for name, tensor in inputs.items()},
                forward_fn=lambda module, given: module(**given),
                output_transform=lambda outputs: [value for value in outputs.values() if isinstance(value, Tensor)],
                verbose=False,
            )
        for parameter, flag in flags:
            parameter.requires_grad_(flag)

    def group(self, kind: str, path: str, channels: Sequence[int] | None = None) -> Any:
        """Return everything that goes with these channels of the module at ``path``; all of them by default."""
        module = self.names[path]
        if channels is None:
            channels = range(self.size(kind, path))
        return self.graph.get_pruning_group(module, ROOTS[kind], idxs=list(channels))

    def size(self, kind: str, path: str) -> int:
        """Return how many channels there are."""
        module: Any = self.names[path]
        return int(getattr(module, {"ffn": "in_features", "embedding": "embedding_dim"}.get(kind, "out_features")))

    def scores(self, kind: str, path: str, scorer: Scorer) -> Tensor:
        """Return what each channel is worth to the network, the mean 1; ``[channels]``."""
        rule = {
            "taylor": tp.importance.GroupTaylorImportance,
            "magnitude": tp.importance.GroupMagnitudeImportance,
            "random": tp.importance.RandomImportance,
        }[scorer]()
        found: Tensor = rule(self.group(kind, path))
        return found.detach().double().cpu()

    def cut(self, kind: str, path: str, kept: Sequence[int]) -> set[str]:
        """Keep these channels, in place; return the paths of the modules whose outputs became narrower."""
        dropped = sorted(set(range(self.size(kind, path))) - set(kept))
        if not dropped:
            return set()
        group = self.group(kind, path, dropped)
        changed = {id(part.target.module) for part, _ in group if "out_channels" in part.handler.__name__}
        group.prune()
        return {name for name, module in self.names.items() if id(module) in changed}


def roots(network: Any) -> dict[str, list[str]]:
    """Return for each kind of channel the paths of the modules where its groups begin.

    Raises:
        UserError: If one of them is not a linear layer any more.
    """
    paths = {id(module): path for path, module in network.named_modules()}
    found: dict[str, list[str]] = {"ffn": [], "attention": [], "hidden": [], "embedding": []}
    distinct = {id(layer): layer for layer in layers(network)}
    last = layer_parts(network, layers(network)[-1])["ffn_out"]
    for layer in distinct.values():
        for role, part in layer_parts(network, layer).items():
            kind = "ffn" if role.partition(".")[0] == "ffn_out" else "attention" if role == "query" else ""
            if kind and not is_linear(part):
                raise UserError(
                    f"channels can only be cut where layers are ordinary linear ones, and {paths[id(part)]} is a "
                    f"{type(part).__name__}; cut before the step that made it"
                )
            if kind:
                found[kind].append(paths[id(part)])
    found["hidden"].append(paths[id(last)])
    found["embedding"].append(paths[id(word_embeddings(network))])
    return found


def add_gradients(student: TaskModel, examples: Examples, seed: int) -> None:
    """Leave the gradient of the loss over all these examples in every parameter, without dropout."""
    rows = rows_of(student, labelled(student.task, examples), seed)
    student.model.eval().requires_grad_(True)
    batches = [rows.batch(indices).to(student.model.device) for indices in batches_by_length(rows.lengths, BATCH)]
    loss = SampleLoss(student, TaskLoss().bind(student, rows), batches)
    for number in range(len(loss)):
        with torch.enable_grad():
            loss.of(number).backward()  # type: ignore[no-untyped-call]


def best(scores: Tensor, count: int) -> list[int]:
    """Return the ``count`` channels with the highest scores, in their old order; of equals the earlier."""
    return sorted(scores.argsort(descending=True, stable=True)[:count].tolist())


def best_overall(scores: Sequence[Tensor], count: int) -> list[list[int]]:
    """Return for each of several groups the channels that stay when ``count`` are kept over all; each keeps one."""
    first = [int(group.argmax()) for group in scores]
    order = sorted((-float(s), i, c) for i, group in enumerate(scores) for c, s in enumerate(group) if c != first[i])
    kept = [[channel] for channel in first]
    for _, group, channel in order[: max(count - len(scores), 0)]:
        kept[group].append(channel)
    return [sorted(channels) for channels in kept]


def best_in_heads(scores: Tensor, size: int, heads: int, channels: int) -> list[int]:
    """Return the channels of attention to keep: of the best ``heads`` heads the best ``channels`` of each.

    Args:
        scores: ``[all heads · size]``.
        size: Channels of a head.
        heads: Heads to keep, by the mean of their channels.
        channels: Channels of each to keep.
    """
    by_head = scores.reshape(-1, size)
    return [
        head * size + channel for head in best(by_head.mean(dim=1), heads) for channel in best(by_head[head], channels)
    ]


def rebuilt(network: nn.Module, config: Any) -> Any:
    """Return a standard network of this config with the weights of ``network``, which has the shape of one.

    Raises:
        UserError: If the graph did not reach every weight that the shape asks for.
    """
    fresh: Any = type(network)(config)
    try:
        fresh.load_state_dict(network.state_dict())
    except RuntimeError as error:
        raise UserError(
            f"the graph of {config.model_type} does not reach every weight, so its width cannot be cut: "
            f"{str(error).splitlines()[1].strip()}"
        ) from error
    given = dict(network.named_parameters(remove_duplicate=False))  # cutting has separated what was tied
    for name, parameter in fresh.named_parameters():
        parameter.requires_grad_(given[name].requires_grad)
    return fresh.train(network.training)
