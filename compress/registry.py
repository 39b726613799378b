"""The one list of techniques, built-in ones and those of other packages; each is loaded on use.

Another package adds a technique by an entry point of the group ``compress.registry``; see ``eval.plugins``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from compress.technique import Technique
from eval.plugins import Registry, subclass_of

TECHNIQUES: dict[str, str] = {
    "prune.layers": "compress.prune.layers:LayerPruning",
    "prune.heads": "compress.prune.heads:HeadPruning",
    "prune.structured": "compress.prune.structured:StructuredPruning",
    "prune.vocabulary": "compress.prune.vocabulary:VocabularyPruning",
    "prune.layerdrop": "compress.prune.layerdrop:LayerDrop",
    "prune.magnitude": "compress.prune.magnitude:MagnitudePruning",
    "prune.movement": "compress.prune.movement:MovementPruning",
    "prune.tokens": "compress.prune.tokens:TokenPruning",
    "distill.labels": "compress.distill.labels:LabelTraining",
    "distill.logits": "compress.distill.logits:LogitDistillation",
    "distill.sequence": "compress.distill.sequence:SequenceDistillation",
    "distill.distilbert": "compress.distill.distilbert:DistilBertDistillation",
    "distill.pkd": "compress.distill.pkd:PatientDistillation",
    "distill.scalar_mix": "compress.distill.scalar_mix:ScalarMixDistillation",
    "distill.ensemble": "compress.distill.ensemble:EnsembleDistillation",
    "distill.tinybert": "compress.distill.tinybert:TinyBertDistillation",
    "distill.margin_mse": "compress.distill.margin_mse:MarginDistillation",
    "distill.listwise": "compress.distill.listwise:ListwiseDistillation",
    "distill.minilm": "compress.distill.minilm:MiniLMDistillation",
    "distill.mobilebert": "compress.distill.mobilebert:MobileBertDistillation",
    "distill.bilstm": "compress.distill.bilstm:BiLstmDistillation",
    "distill.static": "compress.distill.static:StaticDistillation",
    "distill.embedding": "compress.distill.embedding:EmbeddingDistillation",
    "distill.contrastive": "compress.distill.contrastive:ContrastiveDistillation",
    "distill.cross_view": "compress.distill.cross_view:CrossViewTraining",
    "distill.early_exit": "compress.distill.early_exit:EarlyExit",
    "distill.dual": "compress.distill.dual:DualTraining",
    "distill.best_of": "compress.distill.best_of:BestOf",
    "distill.combined": "compress.distill.combined:CombinedDistillation",
    "share.layers": "compress.share.layers:LayerSharing",
    "share.adaptive_depth": "compress.share.adaptive_depth:AdaptiveDepth",
    "share.embeddings": "compress.share.embeddings:FactorisedEmbeddings",
    "share.lowrank": "compress.share.lowrank:LowRank",
    "replace.theseus": "compress.replace.theseus:Theseus",
    "quantize.bitsandbytes": "compress.quantize.bitsandbytes:BitsAndBytes",
    "quantize.dynamic": "compress.quantize.dynamic:DynamicQuantization",
    "quantize.qbert": "compress.quantize.qbert:QBert",
    "quantize.weights": "compress.quantize.weights:WeightQuantization",
    "quantize.static": "compress.quantize.static:StaticQuantization",
    "quantize.q8bert": "compress.quantize.q8bert:Q8Bert",
}
"""The built-in techniques: name -> ``module:Class``."""


REGISTRY: Registry[type[Technique]] = Registry(
    "technique", "compress.techniques", TECHNIQUES, subclass_of("compress.technique.Technique")
)
names = REGISTRY.names
get = REGISTRY.get


@dataclass(frozen=True)
class FieldDescription:
    """One hyper-parameter: its name in a recipe, what it takes, its default and what it means."""

    name: str
    type: str
    default: str
    description: str


@dataclass(frozen=True)
class Description:
    """What a technique says about itself.

    Attributes:
        name: Its name in a recipe.
        version: Raised whenever the same config gives other numbers.
        summary: First line of its docstring.
        text: The rest of the docstring, formula included, without the fields.
        needs: Inputs it cannot do without.
        reduces: Measures that become smaller.
        trains: Whether it updates weights by gradient.
        freezes: Whether its result can no longer be trained.
        source: Authors, year and arXiv id.
        fields: Its hyper-parameters.
        package: Name and version of the package that gives it; nothing for a built-in one.
    """

    name: str
    version: int
    summary: str
    text: str
    needs: tuple[str, ...]
    reduces: tuple[str, ...]
    trains: bool
    freezes: bool
    source: str
    fields: tuple[FieldDescription, ...]
    package: str = ""


def package_of(name: str) -> str:
    """Return name and version of the package that gives a technique, such as ``acme-shrink 1.0``.

    Returns:
        Nothing for a built-in technique.
    """
    return " ".join(REGISTRY.provider(name) or ())


def describe(name: str) -> Description:
    """Return what a technique says about itself in its docstring, fields and class attributes.

    Raises:
        UserError: If there is no technique of this name.

    Examples:
        >>> found = describe("distill.logits")
        >>> found.needs, [field.default for field in found.fields if field.name == "temperature"]
        (('teacher', 'train'), ['2'])
    """
    from compress.reading.docstrings import attribute_descriptions, summary_and_text
    from compress.reading.wording import expected_of

    technique = get(name)
    summary, text = summary_and_text(technique)
    documented = attribute_descriptions(technique)
    fields = tuple(
        FieldDescription(
            name=info.alias or field,
            type=expected_of(info),
            default=_default(info),
            description=info.description or documented.get(field, ""),
        )
        for field, info in technique.model_fields.items()
    )
    return Description(
        name=technique.name,
        version=technique.version,
        summary=summary,
        text=text,
        needs=tuple(sorted(technique.needs)),
        reduces=tuple(sorted(technique.reduces)),
        trains=technique.trains,
        freezes=technique.freezes,
        source=technique.source,
        fields=fields,
        package=package_of(name),
    )


def _default(info: Any) -> str:
    from pydantic import BaseModel

    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        given = value.model_dump(mode="json", exclude_unset=True)
        return ", ".join(f"{key}: {item}" for key, item in given.items()) or "its own defaults"
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
