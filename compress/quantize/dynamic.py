"""The export becomes 8-bit; activations are quantized dynamically, so no data is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from compress.modules.int8_scheme import ReducedRange
from compress.technique import Inputs, Measure, Need, Outcome, Technique

if TYPE_CHECKING:
    import torch

    from compress.modules.int8_scheme import Int8
    from compress.traits import Trait
    from teachers.taskmodel import TaskModel


NO_EXAMPLES = "there are no calibration examples; give the task training data"


def mixed(model: TaskModel, **settings: Any) -> Int8:
    """Return the scheme with per-token ranges where outliers are, in feed-forward networks, and per-tensor elsewhere.

    Args:
        model: A model with feed-forward networks; another gets per-token ranges.
        settings: Further fields of the scheme.
    """
    from compress.modules.int8_scheme import Int8
    from teachers.anatomy.layer_blocks import feed_forward_names

    names = tuple(feed_forward_names(model.model))
    return Int8(activations="tensor" if names else "token", by_token=names, **settings)


class DynamicQuantization(Technique):
    """Export linear layers and embeddings in 8 bits, with the ranges of activations taken at run time.

    Weights: ``q = round(w / scale)``, ``scale = max|w| / levels`` for each output, 127 levels a side, or 64 with
    ``reduce_range``. Activations of a token: ``s = max|x| / 127``, ``u = round(x / s) + 128``. Then
    ``y = s * scale * sum((u - 128) * q)``, the sum in 32-bit integers. What GELU gives is never below -0.17, so all 8
    bits lie above that: ``s = (max x + 0.17) / 255``, ``u = round((x + 0.17) / s)``; the bias takes the 0.17 away.
    Rows of an embedding table are int8 with per-row scales, and are turned back into float when they are looked up.
    Normalization, softmax and the products of attention stay in float32, and so does any matrix with fewer than 16 rows
    or columns.

    With ``keep_float: auto``: if the 8-bit graph changes more than ``budget`` of the predictions on calibration
    examples, the layers that move the logits most when quantized alone stay in float, as few as suffice; the facts and
    the log list them. The torch model stays as it is: the scheme is recorded, and ``export_onnx`` follows it.

    Attributes:
        per_channel: Per-channel scales of a linear layer instead of one for the whole matrix.
        reduce_range: So that processors without VNNI compute exactly, ``pairs``: weights of 8 bits, of which no two
            neighbours exceed 128 together; true: of 7 bits (64 levels a side). False: of 8 bits.
        embeddings: Whether embedding tables become 8-bit too; a file above 30% of float32 is the price of leaving
            them.
        activations: ``token``: one symmetric range for each token. ``tensor``: one asymmetric range for the whole
            batch (``s = (max x - min x) / 255``), which is what ONNX Runtime's own ``quantize_dynamic`` writes.
            ``mixed``: ``token`` in feed-forward networks, where outliers are, and ``tensor`` elsewhere.
        keep_float: ``auto``: layers stay in float as the budget asks; ``none``: all become 8-bit.
        budget: Share of predictions on at most 128 calibration examples that may change.
        exclude: Modules that stay in float32, by name: ``classifier``, ``bert.encoder.layer.5``, ``*.output.dense``.

    Needs:
        Nothing; calibration examples for ``keep_float: auto``, whose labels are not read.

    Reduces:
        The bytes of the export, to about a quarter. Parameters and the torch model keep their size.

    Limits:
        On x86 with AVX2 or AVX-512 but without VNNI, products of uint8 and int8 are added in pairs in 16 bits and
        saturate: 2 * 255 * 127 = 64,770 > 32,767. ``reduce_range`` keeps them at 255 * 128 = 32,640 or less, at one
        bit of precision where it is true, and at a fraction of one with ``pairs``. With ``activations="tensor"`` an
        answer depends on padding and on the other rows of a batch, since all share one range, and with ``mixed`` a
        little; with ``token`` it does not, and more than half of the error goes, for a tenth of the time. ``mixed`` has
        nearly the precision of ``token`` for half of that. Models whose weights or activations have
        strong outliers lose more: look at the agreement in ``export.json``, and let ``keep_float`` find the layers or
        exclude them. The result cannot be trained further.

    Source:
        Zafrir et al. 2019, arXiv 1910.06188 (dynamic quantization is their baseline DQ); ONNX Runtime documentation,
        "Quantize ONNX models". per-token ranges is that of Yao et al. 2022, arXiv 2206.01861.
    """

    name: ClassVar[str] = "quantize.dynamic"
    version: ClassVar[int] = 2
    reduces: ClassVar[frozenset[Measure]] = frozenset({"export_bytes"})
    freezes: ClassVar[bool] = True
    takes_any: ClassVar[bool] = True
    both_stacks: ClassVar[bool] = True
    source: ClassVar[str] = "Zafrir et al. 2019, arXiv 1910.06188; Yao et al. 2022, arXiv 2206.01861"

    per_channel: bool = True
    reduce_range: ReducedRange = "pairs"
    embeddings: bool = True
    activations: Literal["token", "tensor", "mixed"] = "token"
    keep_float: Literal["auto", "none"] = "none"
    budget: float = Field(default=0.01, ge=0, le=1)
    exclude: tuple[str, ...] = ()

    def needed(self) -> frozenset[Need]:
        """Return calibration examples where layers may stay in float."""
        return frozenset({"calibration"}) if self.keep_float == "auto" else self.needs

    def removed(self) -> frozenset[Trait]:
        """No step may follow where layers are named that one such as ``prune.layers`` would number anew."""
        named = self.keep_float == "auto" or any(part.isdigit() for name in self.exclude for part in name.split("."))
        return self.removes | ({"open"} if named else set())

    def scheme(self, student: TaskModel) -> Int8:
        """Return the same settings as an export of a model takes them."""
        from compress.modules.int8_scheme import Int8

        known = self.model_dump(exclude={"keep_float", "budget"})
        if self.activations == "mixed":
            del known["activations"]
            return mixed(student, **known)
        return Int8.model_validate(known)

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse patterns that name no module, and a search without examples."""
        from compress.modules.int8_scheme import packed_before, unmatched

        modules = [module for module, _ in student.model.named_modules()]
        found = [f"{self.name}: {problem}" for problem in unmatched(self.exclude, modules)]
        found += [f"{self.name}: {problem}" for problem in packed_before(student.model)]
        if self.keep_float == "auto" and inputs.calibration is not None and not len(inputs.calibration):
            found.append(f"{self.name}: {NO_EXAMPLES}")
        return found

    def apply(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Choose what stays in float if so asked, and record the scheme; the weights stay as they are."""
        del generator
        scheme, facts, shared = self.scheme(student), {}, set(type(self).model_fields)
        if scheme.by_token:
            shared.add("by_token")
        if self.keep_float == "auto":
            from compress.quantize.calibration import Calibration

            kept, agreement = Calibration.of(student, inputs.calibration or ()).kept_in_float(scheme, self.budget)
            scheme = scheme.model_copy(update={"exclude": (*scheme.exclude, *kept)})
            facts = {"kept_in_float": kept, "agreement": agreement}
        return Outcome(student, facts, scheme.model_dump(mode="json", include=shared))
