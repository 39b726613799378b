"""Layers of a trained encoder come to share their weights, as in ALBERT."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from compress.surgery import Surgery
from compress.technique import Inputs, Measure, Need, Outcome
from compress.traits import UNPRUNED, Trait
from eval.errors import UserError
from teachers.training.config import Training

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from eval.task import Examples
    from teachers.taskmodel import TaskModel


class LayerSharing(Surgery):
    """Let the layers of each group use the same weights, then run recovery fine-tuning.

    Layer l of L belongs to group ``floor(l / (L / groups))``. ``share`` says what is one: the layer, its attention
    or its feed-forward network, each with its norm. Where the weights come from:

    - ``mean``: the mean of the group's layers, number by number, which is refused where they are pruned: a mean is 0
      only where all of them are;
    - ``least``: the layer c of the group that changes hidden states least when all its layers use c's weights and the
      other groups stay, ``argmin_c sum over l in the group of E‖h'_l - h_l‖² / E‖h_l‖²``, h_l the output of layer l,
      over the real tokens of the calibration examples;
    - a list: the layer that each group starts from.

    Of an encoder with a decoder (``seq2seq``) the layers of each stack share among themselves, in as many groups; with
    ``attention`` the decoder's attention to the encoder and its norm too. A stack that has no more layers than groups
    keeps them apart. ``least`` reads the outputs of the decoder over the tokens of the target, a list of layers needs
    ``decoder`` beside it. T5's table of distances, which the first layer of a stack holds for all, stays there.

    A shared tensor is one tensor: its gradient is the sum over the places where it is used, it is trained, counted and
    saved once.

    With ``stock: true`` the result is a standard ALBERT: all of a layer is shared, and models of BERT's kind (BERT,
    RoBERTa, ERNIE, DistilBERT, ELECTRA) are converted with ``embedding_size`` channels of embeddings. With the hidden
    size, the default, nothing changes but what a head computes between its layers (tanh in ALBERT as in BERT and
    RoBERTa). With fewer it is an approximation, since ALBERT normalises embeddings at their own width and BERT at the
    hidden one; see ``compress.share.albert``. After ``share.embeddings`` the default is its size.

    Attributes:
        share: What the layers of a group have in common.
        groups: How many groups; 1 shares all layers.
        init: Where a group's weights come from.
        decoder: Of an encoder with a decoder: the layer that each group of the decoder starts from, beside an ``init``
            that lists those of the encoder.
        stock: Whether the result becomes an ALBERT that standard transformers loads.
        embedding_size: Channels of the ALBERT's embeddings.
        recover: Whether the model is then trained.
        training: Default: three epochs, rate 5e-5.

    Needs:
        Training examples for recovery fine-tuning; calibration examples for ``init: least``.

    Reduces:
        Parameters, non-zeros and bytes. Not multiply-accumulates, and no time: every layer still runs.

    Limits:
        The score falls far before recovery fine-tuning. Cutting heads or neurons of a shared layer cuts all its places,
        so cut before. ALBERT itself shares its layers already and is refused; an encoder with a decoder cannot become
        one. The first layer of ModernBERT has no norm before its attention, and keeps none.

    Source:
        Lan et al. 2020, arXiv 1909.11942.
    """

    name: ClassVar[str] = "share.layers"
    version: ClassVar[int] = 2
    reduces: ClassVar[frozenset[Measure]] = frozenset({"parameters", "nonzero", "bytes", "export_bytes"})
    requires: ClassVar[Mapping[Trait, str]] = {
        "all_heads": "layers with different numbers of heads cannot be one; put it before",
        "unpruned_layers": (
            "the mean of layers is 0 only where all of them are; take init: least or a layer for each group, "
            "or put it before"
        ),
    }
    removes: ClassVar[frozenset[Trait]] = frozenset({"standard", "unshared_layers"})
    both_stacks: ClassVar[bool] = True
    source: ClassVar[str] = "Lan et al. 2020, arXiv 1909.11942"

    share: Literal["all", "attention", "ffn"] = "all"
    groups: int = Field(default=1, ge=1)
    init: Literal["mean", "least"] | tuple[int, ...] = "mean"
    decoder: tuple[int, ...] | None = Field(default=None, exclude_if=lambda value: value is None)
    stock: bool = False
    embedding_size: int | None = Field(default=None, ge=2)
    training: Training = Training(epochs=3, learning_rate=5e-5)

    @model_validator(mode="after")
    def _an_albert_shares_all(self) -> LayerSharing:
        if self.stock and self.share != "all":
            raise ValueError(f"an ALBERT shares whole layers; with stock: true write share: all, not {self.share}")
        if self.embedding_size is not None and not self.stock:
            raise ValueError(
                "embedding_size is that of an ALBERT; write stock: true beside it, or use share.embeddings"
            )
        if self.decoder is not None and not isinstance(self.init, tuple):
            raise ValueError(
                f"decoder goes with an init that lists layers of the encoder; leave it out with init: {self.init}"
            )
        return self

    def needed(self) -> frozenset[Need]:
        """Return what recovery fine-tuning needs, and calibration examples for ``init: least``."""
        return super().needed() | (frozenset[Need]({"calibration"}) if self.init == "least" else frozenset())

    def required(self) -> Mapping[Trait, str]:
        """Return all heads, the layers without zeros if they become means, and with ``stock`` the whole network so."""
        if self.stock:
            reason = "stock: a standard ALBERT does not keep pruned weights 0; put it before"
            return {**self.requires, **dict.fromkeys(UNPRUNED.values(), reason)}
        means = self.init == "mean"
        return {trait: reason for trait, reason in self.requires.items() if means or trait != "unpruned_layers"}

    def removed(self) -> frozenset[Trait]:
        """Return that layers have weights in common, and that no standard class holds them, but for ``stock``."""
        return self.removes - {"standard"} if self.stock else self.removes

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse an ALBERT, groups that share nothing, layers outside of their groups, and what no ALBERT can hold."""
        from compress.share.albert import problems

        found, every = super().check(student, inputs), stacks(student.model)
        total = max(map(len, every.values()))
        if len(dict.fromkeys(every[""])) < total and student.model.config.model_type == "albert":
            found.append(f"{self.name}: albert shares its layers already; leave the step out")
        elif self.groups >= total:
            found.append(f"{self.name}: groups {self.groups} of {total} layers share nothing; at most {total - 1}")
        elif isinstance(self.init, tuple):
            found += [f"{self.name}: {problem}" for problem in self._unfit_starts(every)]
        if self.stock:
            found += [f"{self.name}: stock: {problem}" for problem in problems(student, self.embedding_size)]
        return found

    def _unfit_starts(self, every: Mapping[str, Sequence[nn.Module]]) -> Iterator[str]:
        """Yield what is wrong with the layers that groups start from."""
        if self.decoder is not None and "decoder_" not in every:
            yield "decoder: the model has no decoder beside its encoder; leave it out"
        for stack, own in every.items():
            groups = [list(group) for group in grouped(len(own), self.groups)]
            name, given = ("decoder", self.decoder) if stack else ("init", self.init)
            if not isinstance(given, tuple):
                yield f"init lists layers of the encoder; write decoder too, one layer of each group, of {groups}"
            elif len(given) != len(groups) or any(c not in g for c, g in zip(given, groups, strict=True)):
                yield f"{name} {list(given)} must name one layer of each group, of {groups}"

    def change(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Choose the weights of each group and share them; make an ALBERT of it if wanted."""
        import torch

        from compress.share.albert import as_albert

        every, facts = stacks(student.model), dict[str, Any]()
        for stack, own in every.items():  # all are looked at before any is changed
            groups = grouped(len(own), self.groups)
            facts[f"{stack}groups"] = [number for number, group in enumerate(groups) for _ in group]
            given = self.decoder if stack else self.init
            if self.init == "least" and inputs.calibration is not None:
                moved = distortions(student, groups, self.share, inputs.calibration, stack)
                facts[f"{stack}distortion"] = moved
                facts[f"{stack}from"] = [min(group, key=moved.__getitem__) for group in groups]
            elif isinstance(given, tuple):
                facts[f"{stack}from"] = list(given)
        with torch.no_grad():
            for stack, own in every.items():
                self._tie(student.model, own, facts.get(f"{stack}from"))
        if self.stock:
            student, lost = as_albert(student, self.groups, self.embedding_size)
            facts["lost_embeddings"] = lost
        return Outcome(student, facts)

    def _tie(self, network: Any, every: Sequence[nn.Module], starts: Sequence[int] | None) -> None:
        """Let the layers of a stack, in place, share the weights that each group starts from, or else their means."""
        for number, group in enumerate(grouped(len(every), self.groups)):
            own = [every[i] for i in group]
            if starts is None:
                average(network, own, self.share)
            share(network, own, own[0] if starts is None else every[starts[number]], self.share)


def stacks(network: Any) -> dict[str, list[nn.Module]]:
    """Return the layers of each stack by the prefix of its facts: ``""``, and ``decoder_`` of one beside an encoder."""
    from teachers.anatomy.encoder import decoder_layers, layers

    every = {"": layers(network), "decoder_": decoder_layers(network)}
    return {stack: own for stack, own in every.items() if own}


def group_of(layer: int, layers: int, groups: int) -> int:
    """Return the group of a layer, ``floor(layer / (layers / groups))``, in floats as ALBERT's own code does."""
    return int(layer / (layers / groups))


def grouped(layers: int, groups: int) -> list[tuple[int, ...]]:
    """Return the layers of each group; one layer each where there are no more layers than groups."""
    groups = min(groups, layers)
    return [tuple(i for i in range(layers) if group_of(i, layers, groups) == group) for group in range(groups)]


def shared_paths(network: Any, layers: Sequence[nn.Module], what: str) -> dict[str, list[nn.Module]]:
    """Return path from a layer -> the layers that have a part there, for all parts of the blocks that are shared."""
    from teachers.anatomy.layer_blocks import weighted_parts

    found: dict[str, list[nn.Module]] = {}
    for layer in layers:
        for path, block in weighted_parts(network, layer).items():
            if what in ("all", block):
                found.setdefault(path, []).append(layer)
    return found


def average(network: Any, layers: Sequence[nn.Module], what: str) -> None:
    """Give the first layer of a group the mean of what the group will share, in place.

    A factorised part gets the factors nearest to the mean of the products.

    Raises:
        UserError: If the layers differ in shape.
    """
    import torch

    from compress.modules.low_rank import LowRankLinear
    from compress.share.lowrank import factorise

    for path, holders in shared_paths(network, layers, what).items():
        parts: list[Any] = [layer.get_submodule(path) for layer in holders]
        kinds = {(type(part), *(tuple(tensor.shape) for tensor in part.parameters())) for part in parts}
        if len(kinds) > 1:
            raise UserError(f"share.layers: {path} differs in shape from layer to layer; share the layers before")
        first = parts[0]
        if isinstance(first, LowRankLinear):
            mean = torch.stack([part.product().double() for part in parts]).mean(dim=0)
            inner, outer, _ = factorise(mean, first.rank)
            first.first.weight.copy_(inner)
            first.second.weight.copy_(outer)
            names = [name for name, _ in first.named_parameters() if name.endswith("bias")]
        else:
            names = [name for name, _ in first.named_parameters()]
        for name in names:
            tensors = [part.get_parameter(name).double() for part in parts]
            first.get_parameter(name).copy_(torch.stack(tensors).mean(dim=0))


def share(network: Any, layers: Sequence[nn.Module], source: nn.Module, what: str) -> list[tuple[nn.Module, str, Any]]:
    """Let all layers of a group use the parts of one of them, in place; a part that it lacks is another's.

    Returns:
        Layer, path and former part of every place that has changed.

    Raises:
        UserError: If the layers differ in shape.
    """
    before = []
    for path, holders in shared_paths(network, layers, what).items():
        given = (source if source in holders else holders[0]).get_submodule(path)
        for layer in holders:
            own = layer.get_submodule(path)
            if own is not given:
                if [p.shape for p in own.parameters()] != [p.shape for p in given.parameters()]:
                    raise UserError(
                        f"share.layers: {path} differs in shape from layer to layer; share the layers before"
                    )
                before.append((layer, path, own))
                layer.set_submodule(path, given)
    return before


def distortions(
    student: TaskModel, groups: Sequence[Sequence[int]], what: str, examples: Examples, stack: str = ""
) -> dict[int, float]:
    """Return for each layer of a stack how far the outputs of its layers move if its whole group uses its weights.

    Args:
        student: Left as it was.
        groups: The layers of each group.
        what: What a group shares; see ``LayerSharing``, which has the formula too.
        examples: What is read.
        stack: ``""`` or ``decoder_``; see ``stacks``.
    """
    import torch

    from compress.sample_inputs import input_batches
    from teachers.taskmodel import evaluating

    network, every = student.model, stacks(student.model)[stack]
    moved = {layer: torch.zeros(len(group), dtype=torch.float64) for group in groups for layer in group}
    length = torch.zeros(len(every), dtype=torch.float64)
    for inputs in input_batches(student, examples):
        with evaluating(network):
            states = _states(student, inputs, stack)
            length += torch.stack([state.square().sum() for state in states])
            for group in groups:
                for layer in group:
                    before = share(network, [every[i] for i in group], every[layer], what)
                    found = _states(student, inputs, stack)
                    for place, path, own in before:
                        place.set_submodule(path, own)
                    moved[layer] += torch.stack([(found[i] - states[i]).square().sum() for i in group])
    return {layer: float((moved[layer] / length[list(group)]).sum()) for group in groups for layer in group}


def _states(student: TaskModel, inputs: dict[str, Tensor], stack: str) -> list[Tensor]:
    """Return the output of every layer of a stack for the real tokens, ``[tokens, d]`` in float64."""
    from teachers.anatomy.encoder import base_encoder

    outputs = base_encoder(student.model)(**inputs, output_hidden_states=True)
    _, *states = outputs.get(f"{stack}hidden_states") or outputs["encoder_hidden_states"]
    real = inputs["attention_mask"].bool()
    if stack:
        real = inputs["decoder_input_ids"] != student.encoder.settings.pad_id
        real[:, 0] = True  # a decoder may begin with the token of padding
    return [state[real].double() for state in states]
