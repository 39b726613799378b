"""Q-BERT: 2, 3, 4 or 8 bits a layer, by how sharply the loss is curved along its weights; kept as packed codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from compress.objective import RecoveryTechnique
from compress.quantize.bit_widths import halves, reversed_order, under_budget
from compress.technique import Inputs, Measure, Need, Outcome, TrainedTechnique
from compress.traits import Trait
from teachers.training.config import Training

if TYPE_CHECKING:
    import torch
    from torch import nn

    from teachers.taskmodel import TaskModel

Bits = Literal[2, 3, 4, 8]


class QBert(RecoveryTechnique):
    """Give sensitive layers more bits, train with rounded weights and activations, and keep packed codes.

    Sensitivity of a layer: ``Ω = |mean λ| + std λ``, λ being the top eigenvalue of the Hessian of the loss with respect
    to the layer's weight matrices, by power iteration on several portions of the training data, without dropout. What
    layers share counts once, with the first of them, and stays shared.
    Every matrix is cut into groups of outputs, and a group has the grid ``x̂ = round((x - min) / D) · D + min`` with
    ``D = (max - min) / (2^bits - 1)``, of the range without its ends (``clip``). While the model is trained, weights
    are rounded so at every step and inputs of the layers to 8 bits between moving averages of minimum and maximum;
    gradients pass the rounding unchanged.

    Where an earlier step has pruned weights, the grid of their matrix has an exact 0, which the paper's has not:
    ``x̂ = (q - z) · D`` with ``z = round(-min / D)``, the same grid moved by at most half a step. Pruned weights stay 0
    and are not trained; a weight that is rounded to 0 is. The folder then holds one bit for each weight and the codes
    that are not 0, where that takes fewer bytes.

    Attributes:
        bits: One number gives all layers as many. Two, as the paper's 2/3 mixture ``[3, 2]``: the first for the half
            of the layers with the larger Ω, the second for the others.
        budget: Mean bits of the layers' weights, in the place of ``bits``: 2, 3, 4 or 8 are then given so that the
            sum of ``Ω · 4^-bits`` falls fastest.
        reverse: Whether sensitive layers get few bits and the others many: the paper's control.
        groups: Groups of outputs of a matrix, each with a range of its own; a remainder is one more. Default 128, the
            paper's best; with 1 (its "DirectQ") two bits do not work.
        word_bits: Bits of the embedding matrix. Ranges of embeddings belong to single rows.
        position_bits: Bits of the other tables. The paper found positions more sensitive than words.
        activation_bits: Bits of activations while training; None leaves them in float.
        momentum: Of the moving averages.
        clip: Part of a group's weights left out at either end of its range. Default 0.001, as in the authors' code; the
            paper does not speak of it. With 0 the largest weights alone say how fine the steps of the others are.
        portions: Portions of the training data that give an eigenvalue each.
        portion_examples: Examples of a portion; None takes the paper's tenth of the data, which is far slower.
        power_steps: Most products with the Hessian for one eigenvalue; 100 in the authors' code.
        tolerance: A change of the eigenvalue by less than this part ends the iteration; 1e-2 in the authors' code.
        ranges: Type in which the ranges are saved: 64 bits a group, or 32 with ``float16``.
        finetune: Whether to train at all; without it the weights are only rounded.
        objective: What is minimised, and whose curvature is measured; the labels' own loss by default.
        training: Defaults: rate 5e-5, batch 32, 3 epochs.

    Needs:
        Training examples, and what the objective needs; nothing with one number of bits and ``finetune: false``.

    Reduces:
        The bytes of the saved model and of its export: a weight takes its bits, a group two numbers more. Parameters
        and multiply-accumulates stay.

    Limits:
        It is not faster anywhere: no processor or GPU multiplies codes of 2 or 3 bits with ranges for groups of rows.
        PyTorch unpacks them at every use and is slower than before; ONNX Runtime unpacks once when it loads the file,
        and then takes the time and memory of float32. The saved model computes with float activations: 8-bit ones are
        what it was trained with. The authors' code smooths the ranges of weights over time too; here they are the
        present ones, as in the paper. The classifier, norms, biases and tables that are more than a look-up (OPT's
        positions) stay in float. The result cannot be trained further.

    Source:
        Shen et al. 2020, arXiv 1909.05840.
    """

    name: ClassVar[str] = "quantize.qbert"
    version: ClassVar[int] = 5
    needs: ClassVar[frozenset[Need]] = frozenset({"train"})
    reduces: ClassVar[frozenset[Measure]] = frozenset({"bytes", "export_bytes"})
    freezes: ClassVar[bool] = True
    removes: ClassVar[frozenset[Trait]] = frozenset({"standard", "linear_layers", "float_embeddings"})
    source: ClassVar[str] = "Shen et al. 2020, arXiv 1909.05840"

    bits: Bits | tuple[Bits, Bits] = (3, 2)
    budget: float | None = Field(default=None, ge=2, le=8)
    reverse: bool = False
    groups: int = Field(default=128, ge=1)
    word_bits: Bits = 8
    position_bits: Bits = 8
    activation_bits: Literal[4, 8] | None = 8
    momentum: float = Field(default=0.99, ge=0, lt=1)
    clip: float = Field(default=0.001, ge=0, lt=0.5)
    portions: int = Field(default=10, ge=1)
    portion_examples: int | None = Field(default=32, ge=1)
    power_steps: int = Field(default=100, ge=1)
    tolerance: float = Field(default=1e-2, gt=0)
    ranges: Literal["float32", "float16"] = "float32"
    finetune: bool = True
    training: Training = Training(epochs=3, learning_rate=5e-5, batch_size=32)

    @model_validator(mode="after")
    def _one_choice(self) -> QBert:
        if self.budget is not None and "bits" in self.model_fields_set:
            raise ValueError("give bits or budget, not both")
        if isinstance(self.bits, tuple) and self.bits[0] < self.bits[1]:
            raise ValueError(f"bits {list(self.bits)}: the sensitive half comes first; reverse: true turns it round")
        if self.reverse and not self.mixed:
            raise ValueError("reverse: all layers get the same bits, so there is nothing to reverse")
        return self

    @property
    def mixed(self) -> bool:
        """Whether layers get different bits, for which the Hessian is needed."""
        return self.budget is not None or isinstance(self.bits, tuple)

    def needed(self) -> frozenset[Need]:
        """Return what the technique and its objective need; rounding alone to one number of bits needs nothing."""
        return super().needed() if self.mixed or self.finetune else frozenset()

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse layers without a matrix that can be packed."""
        from teachers.anatomy.encoder import layers

        found = super().check(student, inputs)
        if not all(linears(layer) for layer in layers(student.model)):
            found.append(f"{self.name}: {student.name} has a layer without float matrices; it was quantized before")
        return found

    def apply(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Measure, choose bits, train with rounding, and pack."""
        from compress.quantize.layer_curvature import layer_eigenvalues, own_linears
        from teachers.anatomy.padding import silence

        network = student.model
        distinct = own_linears(network)
        sizes = [sum(module.weight.numel() for module in own.values()) for own in distinct]
        facts: dict[str, Any] = {}
        bits: list[int] = [self.bits if isinstance(self.bits, int) else 0] * len(distinct)
        if self.mixed:
            found = layer_eigenvalues(self, student, inputs, generator)
            bits, omegas = self.chosen(found, sizes)
            facts |= {"eigenvalues": found, "sensitivity": omegas}
        widths = {path: each for own, each in zip(distinct, bits, strict=True) for path in own}
        if self.finetune:
            facts["history"] = self._trained(student, inputs, generator, widths)
            silence(network, student.tokenizer)
        self._pack(network, widths)
        mean = sum(n * b for n, b in zip(sizes, bits, strict=True)) / sum(sizes)
        return Outcome(student, {"bits": bits, "mean_bits": mean, **facts})

    def chosen(self, eigenvalues: list[list[float]], sizes: list[int]) -> tuple[list[int], list[float]]:
        """Return the bits and Ω of each layer.

        Args:
            eigenvalues: Of each layer, one for every portion of the data.
            sizes: Weights of each layer.
        """
        from compress.quantize.hessian import sensitivity

        omegas = [sensitivity(values) for values in eigenvalues]
        ranked = reversed_order(omegas) if self.reverse else omegas
        if self.budget is not None:
            return under_budget(ranked, sizes, self.budget), omegas
        assert isinstance(self.bits, tuple)
        return halves(ranked, self.bits), omegas

    def _trained(
        self, student: TaskModel, inputs: Inputs, generator: torch.Generator, widths: dict[str, int]
    ) -> list[dict[str, Any]]:
        from compress.modules.low_bit import group_height
        from compress.modules.rounding import Rounding

        rounding = Rounding(self.momentum)
        for path, bits in widths.items():
            module: Any = student.model.get_submodule(path)
            rounding.weights(module, bits, group_height(module.out_features, self.groups), self.clip)
            if self.activation_bits is not None:
                rounding.inputs(module, self.activation_bits)
        for path, bits in self._tables(student.model).items():
            table = student.model.get_submodule(path)
            for module in [table, *tied_linears(student.model, table).values()]:
                rounding.weights(module, bits, 1, 0.0)
        history = self.train(student, inputs, self.make_objective(inputs), generator)
        rounding.undo()
        return history

    def _tables(self, network: Any) -> dict[str, int]:
        """Return path -> bits of the embedding tables."""
        from compress.modules.masked import TABLE
        from teachers.anatomy.encoder import embedding_parts

        parts = embedding_parts(network).items()
        found = {inner: role for role, part in parts for inner in part.modules() if type(inner) in TABLE}
        return {
            path: self.word_bits if found[module] == "words" else self.position_bits
            for path, module in network.named_modules()
            if module in found
        }

    def _pack(self, network: Any, widths: dict[str, int]) -> None:
        from compress.modules.low_bit import group_height
        from compress.modules.packed import PackedEmbedding, PackedLinear
        from teachers.anatomy.parts import exchange

        changes: dict[nn.Module, nn.Module] = {}
        for path, bits in self._tables(network).items():
            table = network.get_submodule(path)
            packed_table = changes[table] = PackedEmbedding.of(table, bits=bits, ranges=self.ranges)
            for linear in tied_linears(network, table).values():
                changes[linear] = PackedLinear.of(linear, tied=packed_table)
        for path, bits in widths.items():
            linear = network.get_submodule(path)
            height = group_height(linear.out_features, self.groups)
            changes[linear] = PackedLinear.of(linear, self.clip, bits=bits, height=height, ranges=self.ranges)
        exchange(network, changes)

    def for_dry_run(self) -> TrainedTechnique:
        """Return the technique with one portion, one product with the Hessian and one update."""
        return super().for_dry_run().model_copy(update={"portions": 1, "power_steps": 1})


def tied_linears(network: nn.Module, table: Any) -> dict[str, nn.Linear]:
    """Return the linear layers by path whose weight is that of a table, such as a word decoder."""
    return {path: module for path, module in linears(network).items() if module.weight is table.weight}


def linears(layer: nn.Module) -> dict[str, nn.Linear]:
    """Return the linear layers inside a layer by path."""
    from torch import nn

    return {path: module for path, module in layer.named_modules() if isinstance(module, nn.Linear)}
