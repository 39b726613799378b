"""Layers of a trained encoder come to share their weights, as in ALBERT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

    Layer l of L belongs to group ``floor(l · groups / L)``. ``share`` says what is one: the whole layer, its attention
    or its feed-forward network, each with its norm. Where the weights come from:

    - ``mean``: the mean of the group's layers, number by number, which is refused where they are pruned: a mean is 0
      only where all of them are;
    - ``least``: the layer c of the group that changes hidden states least when all its layers use c's weights and the
      other groups stay, ``argmin_c sum over l in the group of E‖h'_l - h_l‖² / E‖h_l‖²``, h_l the output of layer l,
      over the real tokens of the calibration examples;
    - a list: the layer that each group starts from.

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
        so cut before. ALBERT itself shares its layers already and is refused. The first layer of ModernBERT has no norm
        before its attention, and keeps none.

    Source:
        Lan et al. 2020, arXiv 1909.11942.
    """

    name: ClassVar[str] = "share.layers"
    reduces: ClassVar[frozenset[Measure]] = frozenset({"parameters", "nonzero", "bytes", "export_bytes"})
    requires: ClassVar[Mapping[Trait, str]] = {
        "all_heads": "layers with different numbers of heads cannot be one; put it before",
        "unpruned_layers": (
            "the mean of layers is 0 only where all of them are; take init: least or a layer for each group, "
            "or put it before"
        ),
    }
    removes: ClassVar[frozenset[Trait]] = frozenset({"standard"})
    source: ClassVar[str] = "Lan et al. 2020, arXiv 1909.11942"

    share: Literal["all", "attention", "ffn"] = "all"
    groups: int = Field(default=1, ge=1)
    init: Literal["mean", "least"] | tuple[int, ...] = "mean"
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
        """Return that no standard class holds the result, but for ``stock``."""
        return frozenset() if self.stock else self.removes

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse an ALBERT, groups that share nothing, layers outside of their groups, and what no ALBERT can hold."""
        from compress.share.albert import problems
        from teachers.anatomy.encoder import layer_count, layers

        found, total = super().check(student, inputs), layer_count(student.model)
        if len(dict.fromkeys(layers(student.model))) < total and student.model.config.model_type == "albert":
            found.append(f"{self.name}: albert shares its layers already; leave the step out")
        elif self.groups >= total:
            found.append(f"{self.name}: groups {self.groups} of {total} layers share nothing; at most {total - 1}")
        elif isinstance(self.init, tuple):
            groups = [list(group) for group in grouped(total, self.groups)]
            if len(self.init) != len(groups) or any(c not in g for c, g in zip(self.init, groups, strict=True)):
                found.append(f"{self.name}: init {list(self.init)} must name one layer of each group, of {groups}")
        if self.stock:
            found += [f"{self.name}: stock: {problem}" for problem in problems(student, self.embedding_size)]
        return found

    def change(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Choose the weights of each group and share them; make an ALBERT of it if wanted."""
        import torch

        from compress.share.albert import as_albert
        from teachers.anatomy.encoder import layers

        every = layers(student.model)
        groups = grouped(len(every), self.groups)
        facts: dict[str, Any] = {"groups": [group_of(i, len(every), self.groups) for i in range(len(every))]}
        if self.init == "least" and inputs.calibration is not None:
            facts["distortion"] = distortions(student, groups, self.share, inputs.calibration)
            facts["from"] = [min(group, key=facts["distortion"].__getitem__) for group in groups]
        elif isinstance(self.init, tuple):
            facts["from"] = list(self.init)
        with torch.no_grad():
            for number, group in enumerate(groups):
                own = [every[i] for i in group]
                if "from" not in facts:
                    average(student.model, own, self.share)
                first = every[facts["from"][number]] if "from" in facts else own[0]
                share(student.model, own, first, self.share)
        if self.stock:
            student, lost = as_albert(student, self.groups, self.embedding_size)
            facts["lost_embeddings"] = lost
        return Outcome(student, facts)


def group_of(layer: int, layers: int, groups: int) -> int:
    """Return the group of a layer, ``floor(layer · groups / layers)``."""
    return layer * groups // layers


def grouped(layers: int, groups: int) -> list[tuple[int, ...]]:
    """Return the layers of each group."""
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


def distortions(student: TaskModel, groups: Sequence[Sequence[int]], what: str, examples: Examples) -> dict[int, float]:
    """Return for each layer how far hidden states move if its whole group uses its weights; see ``LayerSharing``."""
    import torch

    from compress.sample_inputs import input_batches
    from teachers.anatomy.encoder import layers
    from teachers.taskmodel import evaluating

    network, every = student.model, layers(student.model)
    moved = {layer: torch.zeros(len(group), dtype=torch.float64) for group in groups for layer in group}
    length = torch.zeros(len(every), dtype=torch.float64)
    for inputs in input_batches(student, examples):
        with evaluating(network):
            states = _states(network, inputs)
            length += torch.stack([state.square().sum() for state in states])
            for group in groups:
                for layer in group:
                    before = share(network, [every[i] for i in group], every[layer], what)
                    found = _states(network, inputs)
                    for place, path, own in before:
                        place.set_submodule(path, own)
                    moved[layer] += torch.stack([(found[i] - states[i]).square().sum() for i in group])
    return {layer: float((moved[layer] / length[list(group)]).sum()) for group in groups for layer in group}


def _states(network: Any, inputs: dict[str, Tensor]) -> list[Tensor]:
    """Return the output of every layer for the real tokens, ``[tokens, d]`` in float64."""
    from teachers.anatomy.encoder import layer_count
    from teachers.signals.hooks import SignalSpec, observe

    places = tuple(range(1, layer_count(network) + 1))
    found = observe(network, inputs, SignalSpec(hidden_states=places, logits=False)).hidden_states
    return [found[place][inputs["attention_mask"].bool()].double() for place in places]
