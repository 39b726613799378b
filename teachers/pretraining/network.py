"""What a pretraining begins with: a tokenizer, a network, and what finds words where there are no spaces."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from eval.data.sources import Source, find_sources
from eval.errors import UserError
from eval.files.home import home
from eval.task import TaskSpec
from teachers.anatomy.encoder import embedding_parts, family_of, mixes_neighbours, model_inputs, new_config
from teachers.anatomy.families import FAMILIES
from teachers.anatomy.forms.linear_form import LinearAuto
from teachers.loaded_part import loaded_part
from teachers.pretraining.inputs import check_inputs
from teachers.pretraining.objectives.prefix_lm import TYPES
from teachers.pretraining.settings import NetworkBlock, Pretraining
from teachers.pretraining.text.corpus import Segmenter
from teachers.pretraining.text.tokenizer_training import Sentences, tokenizer_of_beginning, trained_tokenizer
from teachers.seeding import seeded
from teachers.taskmodel import TaskModel, build_taskmodel, load_taskmodel, load_tokenizer, quiet, save_taskmodel

Words = Literal["none", "masked", "next", "ordered", "written"]
SPECS: Mapping[Words, TaskSpec] = {
    "none": TaskSpec(kind="embedding", metric="nearest"),
    "masked": TaskSpec(kind="masked-lm", metric="masked_accuracy"),
    "next": TaskSpec(kind="causal-lm", metric="next_token_accuracy"),
    "ordered": TaskSpec(kind="embedding", metric="nearest"),
    "written": TaskSpec(kind="seq2seq", metric="chrf"),
}
"""What a network that is pretrained answers, by the words that it predicts."""
DECODING: Mapping[str, tuple[Words, str]] = {
    "writes": (
        "written",
        "span_corruption, denoising and masked_segment are for an encoder with a decoder, the other objectives and "
        "classes of sequences are not",
    ),
    "causal": ("next", "next_word is for decoders, the other objectives and classes of sequences are for encoders"),
    "permutes": ("ordered", "plm is for XLNet, the other objectives and classes of sequences are for other encoders"),
}
"""What an objective says of itself -> the words that it predicts, and why nothing else goes with it."""


def words_of(block: Pretraining) -> Words:
    """Return which words the objectives of a block predict.

    Raises:
        UserError: If some predict the next one, or words in any order, and others masked ones, or if a task beside them
            asks for the class of a sequence: networks of other heads.
    """
    tasks = [task.objectives.given for stage in block.stages for task in stage.tasks.values()]
    asked = [own for given in tasks for own in given.values()]
    for field, (words, said) in DECODING.items():
        if any(getattr(own, field) for own in asked):
            if not all(tasks) or not all(getattr(own, field) for own in asked):
                raise UserError(f"pretrain.stages: {said}; choose one")
            return words
    return "masked" if any(own.predicts_words for own in asked) else "none"


def network_for(block: NetworkBlock, tokenizer: Any, predicts: Words, seed: int) -> TaskModel:
    """Return a new network for a tokenizer, or the one that is trained further.

    Args:
        block: Its shape.
        tokenizer: Its tokenizer.
        predicts: Which words it has a head for.
        seed: Seeds its weights.

    Raises:
        UserError: If the options are not the family's own.
    """
    kind = SPECS[predicts]
    if block.from_ is not None:
        given = replace(load_taskmodel(block.from_, kind, seed=seed), name="network")
        return _with_words(given, block.from_, seed) if predicts == "ordered" else given
    config = config_for(block, tokenizer, "pretrain.network")
    if predicts == "none" and family_of(config).two_streams:
        raise UserError(f"pretrain.stages: {block.family} is pretrained with plm or next_word, which give it its words")
    made = build_taskmodel(config, tokenizer, kind, seed=seed, name="network")
    return _with_words(made, None, seed) if predicts == "ordered" else made


def config_for(block: NetworkBlock, tokenizer: Any, where: str) -> Any:
    """Return the config of a new network for a tokenizer.

    Args:
        block: Its shape.
        tokenizer: Its tokenizer.
        where: Where the block stands in a recipe.

    Raises:
        UserError: If the options are not the family's own.
    """
    from transformers import BertConfig

    like = BertConfig(
        vocab_size=len(tokenizer),
        num_hidden_layers=block.layers,
        hidden_size=block.hidden_size,
        num_attention_heads=block.heads,
        intermediate_size=block.intermediate_size or 4 * block.hidden_size,
        max_position_embeddings=block.max_positions,
        pad_token_id=tokenizer.pad_token_id,
    )
    config = copy.deepcopy(new_config(block.family, like, tokenizer))
    if block.embedding_size is not None:
        name = FAMILIES.get(block.family).config.get("embedding_size")
        if name is None:
            raise UserError(f"{where}.embedding_size: {block.family} has no factorised embeddings")
        setattr(config, name, block.embedding_size)
    if decoding := FAMILIES.get(block.family).config.get("decoder_layers"):
        setattr(config, decoding, block.decoder_layers or block.layers)
        config.decoder_start_token_id = tokenizer.pad_token_id
        config.forced_bos_token_id = config.forced_eos_token_id = None
    elif block.decoder_layers is not None:
        raise UserError(f"{where}.decoder_layers: {block.family} has no decoder beside an encoder; leave it out")
    unknown = [name for name in block.options if not hasattr(config, name)]
    if unknown:
        raise UserError(f"{where}.options: {block.family} has no {', '.join(unknown)} in its config")
    for name, value in block.options.items():
        setattr(config, name, value)
    return config


def _with_words(made: TaskModel, source: str | None, seed: int) -> TaskModel:
    """Return the network with the head that predicts words in any order; no kind of task asks for one.

    Raises:
        UserError: If the family has none.
    """
    import transformers

    family = family_of(made.model)
    if not family.two_streams:
        raise UserError(f"pretrain.network: {family.model_type} has no second stream for plm; take family: xlnet")
    auto = LinearAuto(transformers.AutoModelForCausalLM)
    with seeded(seed), quiet():
        config = copy.deepcopy(made.model.config)
        network = auto.from_config(config) if source is None else auto.from_pretrained(source, config=config)
    return replace(made, model=network.eval())


def check_memory(block: Pretraining, network: Any) -> None:
    """Refuse a memory of a network that takes none.

    Raises:
        UserError: If there is one.
    """
    asked = [name for stage in block.stages for name, task in stage.tasks.items() if task.memory]
    if asked and not family_of(network).two_streams:
        raise UserError(
            f"pretrain.stages: {asked[0]}: memory: {family_of(network).model_type} takes no hidden states of earlier "
            "tokens; take family: xlnet, for next_word with options: {attn_type: uni}"
        )


def check_directions(block: Pretraining, network: Any) -> None:
    """Refuse to choose which tokens see which in a network that takes no mask of every two of them.

    Raises:
        UserError: If an objective does, or if token types shall tell the direction and the network has too few.
    """
    given = [task.objectives.given for stage in block.stages for task in stage.tasks.values()]
    directed = {name: own for one in given for name, own in one.items() if own.directed}
    if not directed:
        return
    name, own = next(iter(directed.items()))
    family = family_of(network)
    if not family.adds_mask or mixes_neighbours(network.config):
        raise UserError(
            f"pretrain.stages: {name}: {family.model_type} takes no mask that says which tokens see which; take a "
            "family such as bert or roberta"
        )
    types = getattr(network.config, "type_vocab_size", 0) if "token_type_ids" in model_inputs(network.config) else 0
    if getattr(own, "types", False) and types < TYPES:
        raise UserError(
            f"pretrain.stages: {name}: types: the network has {types} token types, and {TYPES} tell the direction; "
            f"write network: {{options: {{type_vocab_size: {TYPES}}}}}, or leave types out"
        )


def tokenizer_for(block: Pretraining, training: Sequence[Source]) -> Any:
    """Return the tokenizer that a recipe names, or one trained on the training text."""
    named = block.network.from_ or block.tokenizer.from_
    if named is None:
        one = block.tokenizer
        return trained_tokenizer(Sentences(training), one.kind, one.size, one.lowercase, home() / "tokenizers")
    return loaded_part(named, "tokenizer", lambda: load_tokenizer(named))


def check_positions(network: Any) -> None:
    """Refuse to let positions begin anew in a network that counts them itself.

    Raises:
        UserError: If it does.
    """
    family = family_of(network)
    counted = family.plain_attention or family.global_parts
    if family.rotary or (counted and "positions" in embedding_parts(network)):
        return
    raise UserError(
        f"pretrain.stages: restart: {family.model_type} reads distances between tokens, which no position changes; "
        "write restart: false, or take a family with a table of positions, such as bert"
    )


def save_untrained(block: Pretraining, folder: Path, seed: int) -> None:
    """Write a network of the right shape that has learned nothing; its words are those of the beginning of its text.

    Raises:
        UserError: If there is no such text, list, pairs, dialogues, network or tokenizer.
    """
    check_inputs(block)
    named = block.network.from_ or block.tokenizer.from_
    if named is None:
        one = block.tokenizer
        text = Sentences([found["train"] for name in block.text if "train" in (found := find_sources(name, {}))])
        tokenizer, rows = tokenizer_of_beginning(text, one.kind, one.size, one.lowercase)
    else:
        tokenizer, rows = tokenizer_for(block, ()), 0
    wanted = words_of(block)
    predicts: Words = wanted if wanted in ("next", "ordered", "written") else "masked"
    student = network_for(block.network, tokenizer, predicts, seed)
    check_memory(block, student.model)
    check_directions(block, student.model)
    if any(task.restarts for stage in block.stages for task in stage.tasks.values()):
        check_positions(student.model)
    if student.model.config.vocab_size < rows:
        student.model.resize_token_embeddings(rows, mean_resizing=False)
    save_taskmodel(student, folder)


def segmenter_for(name: str | None) -> Segmenter | None:
    """Return what finds words, by its name; None finds those that the tokenizer knows."""
    if name is None:
        return None
    try:
        import jieba
    except ModuleNotFoundError as error:
        raise UserError(
            "pretrain.segmenter: jieba is not installed; install it with: pip install 'nlp-compress[chinese]', or give "
            "a list of words: mlm: {units: phrase, lists: [words.txt]}"
        ) from error
    jieba.setLogLevel(logging.WARNING)

    def segmenter(text: str) -> list[tuple[int, int]]:
        return [(start, end) for _, start, end in jieba.tokenize(text)]

    segmenter.identity = "jieba"  # type: ignore[attr-defined]
    return segmenter
