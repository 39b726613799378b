"""Which shapes a student can have, and the nearest possible ones for a shape that it cannot."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from eval.errors import did_you_mean
from eval.kinds.kind_registry import kind_of
from teachers.anatomy.encoder import Shape, attention_width, family_of, key_heads, shape_of
from teachers.anatomy.families import FAMILIES, Family
from teachers.conversion import convertible
from teachers.limits import layer_problems, parameter_problems, size_problems

if TYPE_CHECKING:
    from compress.student.student_shape import StudentShape
    from eval.task import TaskSpec
    from teachers.taskmodel import TaskModel


def shape_problems(student: StudentShape, source: TaskModel) -> list[str]:
    """Return every reason why a student cannot be built from ``source``, one sentence each."""
    config: Any = source.model.config
    name = student.family or family_of(config).model_type
    if unknown := _families(source, name):
        return unknown
    own = shape_of(config)
    family = FAMILIES.get(name)
    found = [*_layers(student, student.layers, own.layers, "layers"), *_fields(student, family)]
    found += _vocabulary(student, source, own)
    if "decoder_layers" in family.config and own.decoder_layers:
        found += _layers(student, student.decoder_layers, own.decoder_layers, "decoder_layers")
    found += _activation(student)
    found += _options(student, config, family)
    if student.init != "random":
        found += _family_change(student, config, name)
    if kind_of(source.task.kind).masks and not family.predicts_words:
        found.append(f"student.family: {name} has no masked-language head in transformers; choose another family")
    if kind_of(source.task.kind).causal and not family.causal:
        found.append(f"student.family: {name} sees what comes after a token; choose a decoder such as gpt2")
    if kind_of(source.task.kind).writes and not family.decoder:
        found.append(f"student.family: {name} has no decoder that writes a text; choose bart, marian or t5")
    if found:
        return found
    config, before = student.config(source), config
    if large := size_problems(config, "student"):
        return large
    found += _division(shape_of(config), attention_width(config), family)
    if family.model_type == "mobilebert" and kind_of(source.task.kind).masks:
        found += _mobilebert_words(shape_of(config))
    if not student.new_layers and not found:
        found += _inherited(student, before, config)
    if student.options and not found:
        found += _unbuildable(config, source.task)
    return found


def _families(source: TaskModel, name: str) -> list[str]:
    if family_of(source.model).layers is None:
        return [f"student: {source.name} has no transformer layers to take; give from: a model folder or hub name"]
    return [] if name in FAMILIES else [f"student.family: {name!r} is not supported{did_you_mean(name, FAMILIES)}"]


def _layers(student: StudentShape, layers: int | tuple[int, ...] | None, count: int, field: str) -> Iterator[str]:
    last = count - 1
    yield from layer_problems(layers if isinstance(layers, int) else 0, f"student.{field}")
    if isinstance(layers, tuple):
        if student.new_layers:
            yield (
                f"student.{field}: {list(layers)} chooses layers of the teacher, and init: {student.init} takes none "
                "of them; "
                f"write {field}: {len(layers)}, or init: teacher"
            )
        outside = [i for i in layers if not 0 <= i <= last]
        if outside:
            yield f"student.{field}: {outside} do not exist; the teacher has layers 0 to {last}"
        if not layers or list(layers) != sorted(set(layers)):
            example = sorted(set(layers) - set(outside)) or [0]
            yield f"student.{field}: {list(layers)} must ascend, each layer once, such as {example}"
    elif layers is not None and layers > count and not student.new_layers:
        yield (
            f"student.{field}: {layers} layers, and the teacher has {count} to start from; "
            f"at most {count}, or init: random"
        )


def _fields(student: StudentShape, family: Family) -> Iterator[str]:
    for name in ("embedding_size", "max_positions", "decoder_layers"):
        if getattr(student, name) is not None and name not in family.config:
            others = ", ".join(sorted(key for key in FAMILIES if name in FAMILIES.get(key).config))
            yield f"student.{name}: {family.model_type} has none; leave it out, or choose a family that does: {others}"


def _vocabulary(student: StudentShape, source: TaskModel, own: Shape) -> Iterator[str]:
    size = student.vocab_size
    least = max(source.tokenizer.get_vocab().values()) + 1
    if size is not None and size < least:
        yield (
            f"student.vocab_size: {size}, and the tokenizer gives ids up to {least - 1}; at least {least}. "
            "The step prune.vocabulary makes both smaller"
        )
    elif size is not None and size != own.vocab_size and student.init != "random":
        yield (
            f"student.vocab_size: {size}, and with init: {student.init} the word embeddings are the teacher's "
            f"{own.vocab_size} rows; leave it out, shrink it with the step prune.vocabulary, or use init: random"
        )


def _activation(student: StudentShape) -> Iterator[str]:
    from transformers.activations import ACT2FN

    if student.activation is not None and student.activation not in ACT2FN:
        near = did_you_mean(student.activation, ACT2FN)
        yield f"student.activation: {student.activation!r} is not an activation of transformers{near}"


def _options(student: StudentShape, config: Any, family: Family) -> Iterator[str]:
    from transformers import AutoConfig, PretrainedConfig

    if family.model_type != family_of(config).model_type:
        config = AutoConfig.for_model(family.model_type)
    dimensions = {own: name for name, own in family.config.items()}
    known = set(config.to_dict()) - set(PretrainedConfig().to_dict()) - set(dimensions)
    for name, value in student.options.items():
        if name in dimensions:
            yield f"student.options: {name} is a dimension; write {dimensions[name]}: {value} beside options"
        elif name not in known:
            yield f"student.options: {family.model_type} has no {name!r}{did_you_mean(name, known)}"
        else:
            try:
                setattr(copy.deepcopy(config), name, value)
            except Exception as error:  # its class is that of a library below transformers
                yield f"student.options: {name}: {value!r} is refused by transformers ({_reason(error)})"


def _unbuildable(config: Any, task: TaskSpec) -> Iterator[str]:
    """Try the options together on a network without memory."""
    from compress.student.predicted_cost import predicted_cost

    try:
        yield from parameter_problems(predicted_cost(config, task).parameters, "student.options")
    except Exception as error:  # any class of any layer of the network
        yield f"student.options: transformers cannot run a network with these values ({_reason(error)})"


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _family_change(student: StudentShape, config: Any, name: str) -> Iterator[str]:
    own = family_of(config).model_type
    if student.init == "embeddings":
        if name != own:
            yield f"student.family: init: embeddings takes those of {own}, and not for {name}; use init: random"
        return
    possible = convertible(config)
    if name != own and name not in possible:
        ways = f"leave family out, use one of {', '.join(possible)}" if possible else "leave family out"
        yield f"student.family: weights of {own} do not fit {name} (init: {student.init}); {ways}, or use init: random"


def _division(wanted: Shape, width: int, family: Family) -> Iterator[str]:
    what = "hidden_size" if width == wanted.hidden_size else "the bottleneck of"
    step = 2 if family.rotary else 1
    if width % (wanted.heads * step):
        heads = nearest(wanted.heads, (n for n in range(1, width + 1) if width % (n * step) == 0))
        sizes = nearest(width, (n * wanted.heads * step for n in range(1, 2 * width // (wanted.heads * step) + 2)))
        even = ", each head with an even number of channels (its positions are rotations)" if family.rotary else ""
        yield (
            f"student.heads: {wanted.heads} heads do not divide {what} {width}{even}; "
            f"nearest heads: {heads}; nearest sizes for {wanted.heads} heads: {sizes}"
        )
    if family.model_type == "xlnet" and wanted.hidden_size % 2:
        yield f"student.hidden_size: {wanted.hidden_size}, and XLNet needs an even number (half sines, half cosines)"


def _mobilebert_words(wanted: Shape) -> Iterator[str]:
    if (wanted.embedding_size or 0) >= wanted.hidden_size:
        yield (
            f"student.embedding_size: {wanted.embedding_size} beside hidden_size {wanted.hidden_size}; the "
            f"masked-language head of MobileBERT needs fewer, at most {wanted.hidden_size - 1}"
        )


def _inherited(student: StudentShape, before: Any, after: Any) -> Iterator[str]:
    own, wanted = shape_of(before), shape_of(after)
    changed = [
        name
        for name in ("hidden_size", "heads", "intermediate_size", "embedding_size")
        if None not in (getattr(own, name), getattr(wanted, name)) and getattr(own, name) != getattr(wanted, name)
    ]
    if student.init == "teacher" and changed:
        listed = ", ".join(f"{name} {getattr(wanted, name)} (teacher {getattr(own, name)})" for name in changed)
        yield (
            f"student.init: with init: teacher every width is the teacher's, and these are not: {listed}; "
            "init: width starts from a part of its weights, init: random from none"
        )
    if student.init == "width":
        yield from _unlike_stacks(before, family_of(before))
        yield from _shared_keys(before, own, changed)
        yield from _wider(own, wanted, changed)
        yield from _wider_heads(attention_width(before) // own.heads, attention_width(after), own, wanted)
        yield from _projection(own, wanted, family_of(after))
    repeats = family_of(after).global_parts
    if own.max_positions is not None and (wanted.max_positions or 0) > own.max_positions and not repeats:
        yield (
            f"student.max_positions: {wanted.max_positions}, and the teacher has {own.max_positions} to start from; "
            "at most that, init: random, or for long texts family: longformer, which repeats them"
        )


def _unlike_stacks(before: Any, family: Family) -> Iterator[str]:
    pairs = family.follow.items() if family.decoder else ()
    unlike = [(name, other) for name, other in pairs if getattr(before, name) != getattr(before, other)]
    if unlike:
        listed = ", ".join(
            f"{name} {getattr(before, name)} ({other} {getattr(before, other)})" for name, other in unlike
        )
        yield (
            f"student.init: with init: width both stacks shrink alike, and this teacher's decoder has other widths "
            f"than its encoder: {listed}; use init: teacher and its widths, or init: random"
        )


def _shared_keys(before: Any, own: Shape, changed: list[str]) -> Iterator[str]:
    if key_heads(before) < own.heads and (cut := [name for name in ("hidden_size", "heads") if name in changed]):
        yield (
            f"student.{cut[0]}: with init: width heads are chosen one by one, and this teacher has {key_heads(before)} "
            f"heads of keys and values for {own.heads} of queries; leave out {' and '.join(cut)}, or use init: random"
        )


def _wider(own: Shape, wanted: Shape, changed: list[str]) -> Iterator[str]:
    for name in changed:
        if getattr(wanted, name) > getattr(own, name):
            yield (
                f"student.{name}: {getattr(wanted, name)}, more than the teacher's {getattr(own, name)}, "
                "and init: width only takes away; make it smaller, or use init: random"
            )


def _wider_heads(most: int, width: int, own: Shape, wanted: Shape) -> Iterator[str]:
    if width // wanted.heads > most and wanted.heads <= own.heads and wanted.hidden_size <= own.hidden_size:
        possible = (n for n in range(1, own.heads + 1) if width % n == 0 and width // n <= most)
        yield (
            f"student.heads: {wanted.heads} heads of {width // wanted.heads} channels, and the teacher's heads have "
            f"{most}; init: width only takes away; nearest heads: {nearest(wanted.heads, possible)}, or init: random"
        )


def _projection(own: Shape, wanted: Shape, family: Family) -> Iterator[str]:
    before, after = (shape.embedding_size not in (None, shape.hidden_size) for shape in (own, wanted))
    if before != after and not (before and family.projects_always):
        yield (
            f"student.embedding_size: {wanted.embedding_size} beside hidden_size {wanted.hidden_size}; the teacher "
            f"{'has a' if before else 'has no'} projection between embeddings and hidden states, so the two sizes "
            f"{'cannot be' if before else 'must stay'} equal"
        )


def nearest(value: int, possible: Iterable[int], count: int = 2) -> str:
    """Return the possible numbers nearest to a value, as text in ascending order."""
    choice = sorted(set(possible), key=lambda number: (abs(number - value), number))[:count]
    return ", ".join(str(number) for number in sorted(choice)) or "none"


def describe_shape(config: Any) -> str:
    """Return a config's shape in one line."""
    shape = shape_of(config)
    layers = (
        f"{shape.layers} layers" if shape.decoder_layers is None else f"{shape.layers}+{shape.decoder_layers} layers"
    )
    parts = [f"{config.model_type}, {layers}, hidden {shape.hidden_size}, {shape.heads} heads"]
    parts.append(f"FFN {shape.intermediate_size}")
    if shape.embedding_size not in (None, shape.hidden_size):
        parts.append(f"embeddings {shape.embedding_size}")
    return ", ".join([*parts, f"vocabulary {shape.vocab_size}"])
