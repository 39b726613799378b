"""What a task means for a network: how its inputs are made, and whether its family has the head."""

from __future__ import annotations

from typing import Any

from transformers import CONFIG_MAPPING
from transformers.models.auto import modeling_auto

from eval.encoder_settings import AS_END
from eval.encoding import EncoderSettings
from eval.errors import UserError
from eval.kinds.kind_registry import kind_of
from eval.task import TaskSpec
from teachers.anatomy.encoder import decoder_start, family_of, inner_family, max_tokens, model_inputs
from teachers.anatomy.families import FAMILIES


def encoder_settings(model: Any, tokenizer: Any, task: TaskSpec) -> EncoderSettings:
    """Return how this network wants its inputs."""
    kind = kind_of(task.kind)
    return EncoderSettings(
        kind=task.kind,
        labels=task.labels,
        pair=kind.reads_pairs(task.pair),
        max_length=min(task.max_length, max_tokens(model.config)),
        stride=task.stride,
        truncation=task.truncation,
        truncation_side=task.truncation_side,
        inputs=model_inputs(model.config),
        pad_id=int(tokenizer.pad_token_id or 0),
        pad_type_id=family_of(model.config).pad_type_id,
        pad_side=_pad_side(model, tokenizer),
        thresholds=task.thresholds,
        prompt=task.prompt,
        query_prompt=task.query_prompt,
        document_prompt=task.document_prompt,
        begin_id=_begin_id(tokenizer) if kind.causal else AS_END,
        end_id=int(tokenizer.eos_token_id or 0) if kind.causal or kind.writes else 0,
        triples=tuple(getattr(model.config, "triples", ())),
        branches=int(getattr(model.config, "branches", 0)),
        **_writing(model, task),
    )


def _pad_side(model: Any, tokenizer: Any) -> str:
    """Return the tokenizer's side where padding before a text changes nothing, or has to stand there; else the right.

    A network with a table of positions counts them from the left, and most heads of encoders read the first token.
    XLNet's reads the last one, where its own tokenizer puts the token that stands for the text.
    """
    family = inner_family(model)
    either = family.layers is None or family.two_streams or (family.causal and "positions" not in family.embeddings)
    return str(tokenizer.padding_side) if either else "right"


def _begin_id(tokenizer: Any) -> int:
    """Return the token that a tokenizer puts before every text, where it is another one than that of the end."""
    first, begin = tokenizer.backend_tokenizer.encode("a").ids[:1], tokenizer.bos_token_id
    return int(begin) if first == [begin] and begin != tokenizer.eos_token_id else AS_END


def _writing(model: Any, task: TaskSpec) -> dict[str, Any]:
    if not kind_of(task.kind).writes:
        return {}
    most = min(task.target_length, max_tokens(model.config))
    found = {"start_id": decoder_start(model.config), "target_length": most, "beams": task.beams}
    return {**found, "length_penalty": task.length_penalty}


def check_kind(config: Any, task: TaskSpec) -> None:
    """Refuse a family that has no head for this kind of task."""
    family, kind = family_of(config), kind_of(task.kind)
    if kind.masks and not family.predicts_words:
        raise UserError(f"{family.model_type} has no masked-language head; it is not trained that way")
    if kind.causal and not family.causal:
        raise UserError(f"{family.model_type} sees what comes after a token, so it does not predict the next one")
    if family.causal and family.two_streams and not kind.causal:
        raise UserError(f"xlnet with attn_type: uni predicts the next token; it has no head for {task.kind}")
    if kind.writes != bool(family.decoder):
        why = (
            "no decoder that writes a text"
            if kind.writes
            else "an encoder and a decoder: it answers kind: seq2seq alone"
        )
        raise UserError(
            f"{family.model_type} has {why}; for {task.kind} take one of: {', '.join(_with_decoder(kind.writes))}"
        )
    if kind.vectors and task.pooling == "first" and family.causal:
        raise UserError(f"pooling: first: the first token of {family.model_type} sees no other; take last or mean")
    if kind.chooses and family.causal and "positions" in family.embeddings:
        raise UserError(
            f"{family.model_type} reads from the left, and the token by which it would tell that there is no answer is "
            f"the first, which sees nothing of the question; for {task.kind} take an encoder"
        )
    if family.global_parts and kind.joined:
        raise UserError(
            f"{family.model_type} would give global attention to the choices, in the middle of a text, and here it is "
            f"at the beginning alone; for {task.kind} take another family"
        )
    heads = getattr(modeling_auto, kind.auto_class)._model_mapping
    if type(config) not in heads or kind.auto_class in family.odd_heads:
        fit = (name for name in FAMILIES if kind.auto_class not in FAMILIES.get(name).odd_heads)
        known = ", ".join(name for name in fit if name in CONFIG_MAPPING and CONFIG_MAPPING[name] in heads)
        raise UserError(f"{family.model_type} has no head for {task.kind}; those that have: {known}")


def _with_decoder(wanted: bool) -> list[str]:
    return [name for name in FAMILIES if bool(FAMILIES.get(name).decoder) == wanted]
