"""Q8BERT: fine-tuning with 8-bit weights and activations, after which the model is made of integers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, field_validator

from compress.objective import RecoveryTechnique
from compress.technique import Inputs, Measure, Need, Outcome
from teachers.training.config import Training

if TYPE_CHECKING:
    import torch
    from torch import nn

    from eval.task import Examples
    from teachers.taskmodel import TaskModel

ATTENTION = ("query", "key", "value", "query_key_value")
"""Roles of the linear layers whose outputs attention multiplies."""
ANSWERS = ("classifier", "qa", "mlm_decoder")
"""Parts of a head whose outputs are the answer."""
SAMPLE = 64
"""Examples that show how large the channels of inputs are."""


class Q8Bert(RecoveryTechnique):
    """Fine-tune with 8-bit weights and activations, and keep the integers.

    ``q = clip(round(x / step), -127, 127)`` with ``step = max / 127``, halves to even, no zero point; the network goes
    on with ``q · step``. For weights max is that of the present ``|W|``. For inputs of linear layers and outputs of
    queries, keys and values it is an exponential moving average, ``m ← decay · m + (1 - decay) · max|x|``, divided by
    ``1 - decay^t`` after t batches, which stands still outside of training. The division is not in the paper's code,
    whose average begins with the first batch and with the paper's decay has hardly left it after some hundred optimizer
    steps. Gradients pass the rounding unchanged, at the ends too. Rows of the embedding tables are rounded as weights
    are. Softmax, normalization, activation functions and residual sums stay in float32.

    At the end the layers are frozen: int8 codes and float32 steps take the place of the float weights, and biases
    become multiples of ``step_w · step_x``. The export has the same codes and the same static ranges, in integer
    products, so it gives what the saved model gives, up to numbers that lie on the edge between two steps.

    In networks as large as BERT-base a few neurons of the feed-forward layers are tens of times as active as the others
    and take all the steps of a range. So ``smooth``, which the paper lacks: before training, channel j of every input
    of a linear layer is divided and row j of its weights multiplied by ``max|x_j|^a / max|w_j|^(1 - a)``, rounded to a
    power of 2, as calibration examples show it (SmoothQuant). Then a network begins its training near what
    it was in float; docs/results/quantization.md shows how near, with the paper's form beside it.

    Attributes:
        decay: Of the moving averages. Default 0.9999, the paper's: all batches of a fine-tuning then weigh nearly the
            same; 0.99 follows the last hundred.
        reduce_range: Weights of 64 steps a side instead of 127. The paper has 127 (``false``); with 64 the export is
            exact on processors without VNNI too.
        per_channel: One range of weights for each output (or word); false is the paper's one for the matrix.
        smooth: a, the share of the difficulty that moves from inputs to weights. None, the paper's form: none does, as
            where a matrix has one range, since its steps would suit the largest rows alone.
        requantize_output: Which outputs of linear layers are rounded too. ``attention``, the default: those of queries,
            keys and values, so that attention multiplies 8-bit numbers. ``all`` (``true``): also those that are added
            to the residual stream, whose few large channels then leave few steps for the others. ``none`` (``false``).
            The answer itself is never rounded.
        head: Whether the last layer of the head is quantized.
        embeddings: Whether embedding tables are.
        exclude: Modules that stay in float32, by name: ``classifier``, ``bert.encoder.layer.5``, ``*.output.dense``.
        objective: What is minimised; the labels' own loss by default.
        training: Defaults as in the paper's example: rate 2e-5, batch 32. Always in float32: bf16 has no room for steps
            of 8 bits.

    Needs:
        Training examples, and what the objective needs.

    Reduces:
        The bytes of the saved model and of its export, to about a quarter. The torch model computes integers in
        float32, so only the export is faster.

    Limits:
        A layer that no training batch reaches stays in float. In XLNet biases by head are added to rounded queries, so
        attention multiplies floats there. Because rounding turns the last bit of a float into a whole step, outputs
        depend a little on padding and batch mates: by a fraction of what the rounding itself changes. No step can
        follow. The integer export is much faster than float32 on processors with VNNI, AMX or ARM dot products,
        somewhat with AVX2 alone; with ``reduce_range: false`` its sums saturate on AVX2 without VNNI.

    Source:
        Zafrir, Boudoukh, Izsak, Wasserblat 2019, arXiv 1910.06188; ``smooth``: Xiao et al. 2022, arXiv 2211.10438.
    """

    name: ClassVar[str] = "quantize.q8bert"
    version: ClassVar[int] = 6
    needs: ClassVar[frozenset[Need]] = frozenset({"train"})
    reduces: ClassVar[frozenset[Measure]] = frozenset({"bytes", "export_bytes"})
    freezes: ClassVar[bool] = True
    last: ClassVar[bool] = True
    source: ClassVar[str] = "Zafrir, Boudoukh, Izsak, Wasserblat 2019, arXiv 1910.06188"

    decay: float = Field(default=0.9999, ge=0, lt=1)
    reduce_range: bool = True
    per_channel: bool = True
    smooth: float | None = Field(default=0.75, ge=0, le=1)
    requantize_output: Literal["attention", "all", "none"] = "attention"
    head: bool = True
    embeddings: bool = True
    exclude: tuple[str, ...] = ()
    training: Training = Training(learning_rate=2e-5, batch_size=32)

    @field_validator("requantize_output", mode="before")
    @classmethod
    def _as_before(cls, value: Any) -> Any:
        """Take what earlier versions had: true for all outputs, false for none."""
        return {True: "all", False: "none"}.get(value, value) if isinstance(value, bool) else value

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse coarse training, integers, and patterns that name no module."""
        from compress.modules.fake_quant import Int8Linear
        from compress.modules.int8_scheme import unmatched

        found = super().check(student, inputs)
        if self.training.precision not in ("auto", "fp32"):
            found.append(
                f"{self.name}: precision {self.training.precision} is coarser than steps of 8 bits, so it would train "
                "another network than the integers are; leave it out or write fp32"
            )
        if any(isinstance(part, Int8Linear) for part in student.model.modules()):
            found.append(f"{self.name}: {student.name} is made of integers already and cannot be trained")
        modules = [module for module, _ in student.model.named_modules()]
        return found + [f"{self.name}: {problem}" for problem in unmatched(self.exclude, modules)]

    def apply(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Replace the layers, train, and freeze them."""
        from compress.modules.fake_quant import Int8Embedding, Int8Linear, freeze, frozen_ranges

        self.prepare(student, inputs.calibration or inputs.train)
        training = self.training.model_copy(update={"precision": "fp32"})
        history = self.train(student, inputs, self.make_objective(inputs), generator, training=training)
        freeze(student.model)
        kinds = [type(part) for part in student.model.modules()]
        scheme = frozen_ranges(student.model) | {
            "per_channel": self.per_channel,
            "reduce_range": self.reduce_range,
            "embeddings": self.embeddings,
            "activations": "static",
            "tables": "row" if self.per_channel else "tensor",
            "exclude": list(self.exclude),
        }
        facts = {"linear": kinds.count(Int8Linear), "tables": kinds.count(Int8Embedding), "history": history}
        return Outcome(student, facts, scheme)

    def prepare(self, student: TaskModel, examples: Examples | None = None) -> None:
        """Put layers that round in the place of the linear layers and embedding tables, in place.

        Args:
            student: The network, in float.
            examples: The first ``SAMPLE`` of them show how large the channels are, if the inputs are smoothed.
        """
        from torch import nn

        from compress.modules.fake_quant import FakeQuantEmbedding, FakeQuantLinear
        from compress.modules.int8_scheme import LEVELS, REDUCED_LEVELS
        from compress.modules.masked import LINEAR, TABLE
        from compress.quantize.smoothing import smoothing_factors
        from teachers.anatomy.parts import replace_parts

        levels = REDUCED_LEVELS if self.reduce_range else LEVELS
        left_out, rounded = self._left_out(student.model), self._rounded(student.model)
        tied = {id(part.weight) for part in student.model.modules() if isinstance(part, nn.Linear)}
        tables = {id(part.weight) for part in student.model.modules() if isinstance(part, nn.Embedding)}
        linear = [part for part in student.model.modules() if type(part) in LINEAR and id(part) not in left_out]
        alone = [part for part in linear if id(part.weight) not in tables]
        smooth: dict[nn.Module, torch.Tensor] = {}
        if self.smooth is not None and self.per_channel and examples:
            smooth = smoothing_factors(student, alone, examples[:SAMPLE], self.smooth)

        def rounding(part: Any) -> nn.Module | None:
            if id(part) in left_out:
                return None
            if type(part) in LINEAR:
                rounds = id(part) in rounded
                return FakeQuantLinear(part, levels, self.per_channel, self.decay, rounds, smooth.get(part))
            if type(part) in TABLE:
                return FakeQuantEmbedding(part, levels if id(part.weight) in tied else LEVELS, self.per_channel)
            return None

        replace_parts(student.model, rounding)

    def _rounded(self, network: Any) -> set[int]:
        """Return the ids of the parts whose outputs are rounded."""
        from teachers.anatomy.encoder import layer_parts, layers

        if self.requantize_output == "all":
            return {id(part) for part in network.modules()} - _answers(network)
        if self.requantize_output == "none":
            return set()
        every = [layer_parts(network, layer) for layer in layers(network)]
        return {id(parts[role]) for parts in every for role in ATTENTION if role in parts}

    def _left_out(self, network: Any) -> set[int]:
        """Return the ids of the parts that stay in float; of two with the same weight both or none do."""
        from torch import nn

        from compress.modules.int8_scheme import is_excluded
        from teachers.anatomy.encoder import embedding_parts

        tables = {id(inner) for part in embedding_parts(network).values() for inner in part.modules()}
        found = {id(part) for path, part in network.named_modules() if is_excluded(path, self.exclude)}
        found |= set() if self.head else _answers(network)
        for part in network.modules():
            if isinstance(part, nn.Embedding) and (id(part) not in tables or not self.embeddings):
                found.add(id(part))
        weights = {id(part.weight) for part in network.modules() if id(part) in found and hasattr(part, "weight")}
        return found | {id(part) for part in network.modules() if id(getattr(part, "weight", None)) in weights}


def _answers(network: Any) -> set[int]:
    from teachers.anatomy.encoder import head_parts

    return {id(part) for role, part in head_parts(network).items() if role in ANSWERS}
