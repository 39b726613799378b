"""The export becomes 8-bit with static ranges of activations, measured on examples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from compress.modules.int8_scheme import ReducedRange
from compress.quantize.dynamic import NO_EXAMPLES
from compress.technique import Inputs, Measure, Need, Outcome, Technique

if TYPE_CHECKING:
    import torch

    from compress.modules.int8_scheme import Int8
    from compress.quantize.calibration import Calibration
    from teachers.taskmodel import TaskModel


class StaticQuantization(Technique):
    """Export linear layers and embeddings in 8 bits, with ranges of activations that calibration examples gave.

    Activations: ``u = round(x / scale) + zero`` in uint8, where scale and zero come from the range ``[low, high]`` of
    the layer's input: ``scale = (high - low) / 255``, 0 always among the steps. Weights as in ``quantize.dynamic``. A
    histogram of 4,096 bins holds all that is kept of an input, however many examples there are.

    With ``smooth``, channel j of an input is divided and row j of its weights multiplied by
    ``max|x_j|^a / max|w_j|^(1 - a)``. The division moves into a LayerNorm before it if nothing else reads that; in
    networks that add the normed states back, as BERT does, it stays one product of its own.

    If the 8-bit graph changes more than ``budget`` of the predictions on calibration examples, the layers that move the
    logits most when quantized alone stay in float, as few as suffice; the facts and the log list them. The torch model
    stays as it is; ``export_onnx`` follows the recorded ranges.

    Attributes:
        method: How a range is chosen: ``min_max`` of all values; ``percentile`` of them; the least squared error,
            ``mse``; or the least KL divergence, ``entropy``.
        percentile: For that method, what lies inside at either end.
        smooth: a, the share of the difficulty that moves to the weights; the paper's 0.5 is a good start. None: off.
            Above it take ``min_max``: what stands out then is few values that decide, and a percentile cuts them off.
        correct_bias: Whether biases make up for what rounding of inputs and weights takes from the mean output of a
            layer, as calibration examples show it. It costs nothing at run time.
        keep_float: ``auto``: layers stay in float as the budget asks; ``none``: all become 8-bit.
        budget: Share of predictions on at most 128 calibration examples that may change.
        per_channel: Per-channel scales of a linear layer instead of one for the whole matrix.
        reduce_range: So that processors without VNNI compute exactly, ``pairs``: weights of 8 bits, of which no two
            neighbours exceed 128 together; true: of 7 bits (64 levels a side). False: of 8 bits.
        embeddings: Whether embedding tables become 8-bit too.
        exclude: Modules that stay in float32, by name: ``classifier``, ``bert.encoder.layer.5``, ``*.output.dense``.

    Needs:
        Calibration examples; their labels are not read.

    Reduces:
        The bytes of the export, to about a quarter. Parameters and the torch model keep their size.

    Limits:
        Transformers have inputs with strong outliers, for which static ranges lose more than those of each token:
        ``quantize.dynamic`` needs no data, while here nothing is measured at run time. Products are much faster than
        float32 with VNNI, AMX or ARM dot products, somewhat with AVX2 alone. Smoothing costs a product of each input
        with a vector in ONNX Runtime, nothing in OpenVINO. No step can follow, since the ranges belong to this very
        network.

    Source:
        Jacob et al. 2017, arXiv 1712.05877; entropy: Migacz 2017, "8-bit inference with TensorRT"; ``smooth``: Xiao et
        al. 2022, arXiv 2211.10438; ``correct_bias``: Nagel et al. 2019, arXiv 1906.04721.
    """

    name: ClassVar[str] = "quantize.static"
    version: ClassVar[int] = 2
    needs: ClassVar[frozenset[Need]] = frozenset({"calibration"})
    reduces: ClassVar[frozenset[Measure]] = frozenset({"export_bytes"})
    freezes: ClassVar[bool] = True
    last: ClassVar[bool] = True
    source: ClassVar[str] = "Jacob et al. 2017, arXiv 1712.05877; Xiao et al. 2022, arXiv 2211.10438"

    method: Literal["min_max", "percentile", "entropy", "mse"] = "percentile"
    percentile: float = Field(default=99.99, gt=50, le=100)
    smooth: float | None = Field(default=None, ge=0, le=1)
    correct_bias: bool = False
    keep_float: Literal["auto", "none"] = "auto"
    budget: float = Field(default=0.01, ge=0, le=1)
    per_channel: bool = True
    reduce_range: ReducedRange = "pairs"
    embeddings: bool = True
    exclude: tuple[str, ...] = ()

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse patterns that name no module, and calibration without examples."""
        from compress.modules.int8_scheme import packed_before, unmatched

        modules = [module for module, _ in student.model.named_modules()]
        found = [f"{self.name}: {problem}" for problem in unmatched(self.exclude, modules)]
        found += [f"{self.name}: {problem}" for problem in packed_before(student.model)]
        if inputs.calibration is not None and not len(inputs.calibration):
            found.append(f"{self.name}: {NO_EXAMPLES}")
        return found

    def apply(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Measure ranges, choose what stays in float, and record both; the weights stay as they are."""
        from compress.quantize.calibration import Calibration

        del generator
        calibration = Calibration.of(student, inputs.calibration or ())
        scheme = self.scheme_from(calibration)
        kept: dict[str, float] = {}
        facts: dict[str, Any] = {"calibrated": len(calibration.features)}
        if self.keep_float == "auto":
            kept, facts["agreement"] = calibration.kept_in_float(scheme, self.budget)
        facts["kept_in_float"] = kept
        recorded = scheme.model_dump(mode="json")
        for part in recorded.keys() & {*scheme.by_node()}:
            recorded[part] = {node: value for node, value in recorded[part].items() if node not in kept}
        facts["linear"] = len(recorded["ranges"])
        return Outcome(student, facts, recorded)

    def scheme_from(self, calibration: Calibration, chosen_codes: bool = False) -> Int8:
        """Return the scheme that a calibration gives, with no layer in float but those of ``exclude``.

        Args:
            calibration: What the examples showed.
            chosen_codes: Whether the scheme holds codes of weights that make up for each other's rounding (GPTQ);
                then it is for a graph that is written now, since no record keeps them.
        """
        import numpy as np

        from compress.modules.int8_scheme import Int8

        linear = calibration.linear(self.exclude)
        smooth = {} if self.smooth is None else calibration.smoothings(linear, self.smooth)
        # Four digits are plenty, and the same ones are used from here on.
        smooth = {node: np.array([float(f"{v:.4g}") for v in values]) for node, values in smooth.items()}
        scheme = Int8(
            per_channel=self.per_channel,
            reduce_range=self.reduce_range,
            embeddings=self.embeddings,
            activations="static",
            exclude=self.exclude,
            ranges=calibration.ranges(linear, smooth, self.method, self.percentile),
            smooth={node: tuple(values.tolist()) for node, values in smooth.items()},
        )
        if chosen_codes:
            scheme = scheme.model_copy(update={"codes": calibration.codes(linear, scheme)})
        if not self.correct_bias:
            return scheme
        bias = calibration.corrections(linear, scheme)
        return scheme.model_copy(
            update={"bias": {node: tuple(float(f"{v:.4g}") for v in values) for node, values in bias.items()}}
        )
