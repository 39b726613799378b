"""The curvature of a technique's loss along every layer of a network, on portions of the training data."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from compress.quantize.hessian import Curvature, top_eigenvalue
from compress.sample_loss import SampleLoss
from compress.technique import Inputs
from eval.cost.size import device_of
from eval.files.typed_json import json_digest, read_values, typed
from eval.files.writing import atomic_write
from eval.task import Examples
from teachers.anatomy.encoder import layers
from teachers.data.encoded_dataset import labelled
from teachers.losses.loss import Objective
from teachers.taskmodel import TaskModel, weights_digest
from teachers.training.config import Training
from teachers.training.scoring import rows_of

KEPT = "eigenvalues.json"
"""Where the values are kept beside the checkpoint of the training, which goes on with them."""


class _Kept(BaseModel):
    """What ``eigenvalues.json`` holds."""

    key: str
    values: list[list[float]]


class Measured(Protocol):
    """What a technique says of the curvature that it asks for."""

    @property
    def portions(self) -> int:
        """How many portions of the data are measured."""

    @property
    def portion_examples(self) -> int | None:
        """Examples of a portion; None takes a tenth of the data."""

    @property
    def power_steps(self) -> int:
        """Most products with the Hessian."""

    @property
    def tolerance(self) -> float:
        """Relative change of the eigenvalue at which it is found."""

    @property
    def objective(self) -> Any:
        """What is named as the objective; None for the labels' own loss."""

    @property
    def training(self) -> Training:
        """Its batch size is that of the measurement."""

    def make_objective(self, inputs: Inputs) -> Objective:
        """Return the loss whose curvature is measured."""


def layer_eigenvalues(
    technique: Measured, student: TaskModel, inputs: Inputs, generator: torch.Generator
) -> list[list[float]]:
    """Return for each layer the top eigenvalue of the loss's Hessian on each portion of the data.

    It is that of the matrices of ``own_linears``: what layers share counts once.

    Args:
        technique: Says how many portions, of which size, and which loss.
        student: The network, which stays as it is.
        inputs: Training examples, and a teacher if the objective has one.
        generator: Draws the portions and the first vectors.
    """
    file = None if inputs.folder is None else inputs.folder / KEPT
    key = "" if file is None else _key(technique, student, inputs, generator)
    if file is not None and file.is_file():
        cure = f"remove {file}"
        kept: _Kept = typed(read_values(file, cure), _Kept, str(file), cure)
        if kept.key == key:
            return kept.values
    network = student.model
    flags = {parameter: parameter.requires_grad for parameter in network.parameters()}
    distinct = own_linears(network)
    found: list[list[float]] = [[] for _ in distinct]
    network.eval()
    with student.on_gpu():
        try:
            for portion in portions(technique, student, inputs, generator):
                losses = _losses(technique, student, portion, inputs, generator)
                for values, own in zip(found, distinct, strict=True):
                    matrices = [module.weight for module in own.values()]
                    for parameter in flags:
                        parameter.requires_grad_(False)
                    for matrix in matrices:
                        matrix.requires_grad_(True)
                    curvature = Curvature(losses, matrices)
                    values.append(top_eigenvalue(curvature, generator, technique.tolerance, technique.power_steps))
        finally:
            for parameter, flag in flags.items():
                parameter.requires_grad_(flag)
    if file is not None:
        atomic_write(file, _Kept(key=key, values=found).model_dump_json().encode())
    return found


def own_linears(network: Any) -> list[dict[str, nn.Linear]]:
    """Return for each layer its linear layers by path in the network, without those that an earlier layer has too.

    A layer that has none of its own is left out, as of layers that share all of their weights.
    """
    paths = {module: path for path, module in network.named_modules()}
    found, seen = [], set[nn.Module]()
    for layer in layers(network):
        own = [module for module in layer.modules() if isinstance(module, nn.Linear) and module not in seen]
        seen.update(own)
        found.append({paths[module]: module for module in own})
    return [own for own in found if own]


def _key(technique: Measured, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> str:
    """Return the digest of all that the values depend on."""
    asked = {name: getattr(technique, name) for name in ("portions", "portion_examples", "power_steps", "tolerance")}
    said = {
        **asked,
        "objective": str(technique.objective),
        "batch_size": technique.training.batch_size,
        "train": None if inputs.train is None else inputs.train.digest,
        "teacher": getattr(inputs.teacher, "digest", None),
        "weights": weights_digest(student.model),
        "seed": generator.initial_seed(),
    }
    return json_digest(said)


def portions(technique: Measured, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> list[Examples]:
    """Return disjoint portions of the training examples, drawn by chance; all of them hold at least one."""
    examples = inputs.train or Examples((), "train")
    if technique.objective is None:
        examples = labelled(student.task, examples)
    wanted = technique.portion_examples or max(1, len(examples) // 10)
    count = min(technique.portions, len(examples))
    size = min(wanted, len(examples) // max(count, 1))
    order = torch.randperm(len(examples), generator=generator).tolist()
    return [
        Examples([examples[i] for i in order[start : start + size]], examples.name)
        for start in range(0, count * size, max(size, 1))
    ]


def _losses(
    technique: Measured,
    student: TaskModel,
    portion: Examples,
    inputs: Inputs,
    generator: torch.Generator,
) -> list[Callable[[], Tensor]]:
    """Return one function a batch; their sum is the loss of the whole portion."""
    rows = rows_of(student, portion, generator.initial_seed())
    loss = technique.make_objective(inputs).bind(student, rows)
    device = device_of(student.model)
    loss.modules.to(device)
    size = technique.training.batch_size
    order = sorted(range(len(rows)), key=lambda row: rows.lengths[row])
    batches = [rows.batch(order[start : start + size]).to(device) for start in range(0, len(order), size)]
    sample = SampleLoss(student, loss, batches)
    return [partial(sample.of, number) for number in range(len(sample))]
