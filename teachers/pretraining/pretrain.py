"""Train a network on text, in stages; the result is kept under ``COMPRESS_HOME`` and found again by its content."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from eval.data.sources import Source, find_sources
from eval.errors import UserError
from eval.files.home import home
from eval.files.writing import atomic_write
from eval.kinds.kind_registry import kind_of
from eval.naming import without_paths
from eval.progress.stages import under_way
from teachers.anatomy.encoder import (
    decoder_start,
    family_of,
    first_position,
    has_decoder,
    layer_count,
    max_tokens,
    model_inputs,
)
from teachers.anatomy.pooling import FIELD as POOLING
from teachers.file_digests import config_values, has_config
from teachers.pretraining.earlier_heads import HEADS, earlier_heads
from teachers.pretraining.inputs import check_inputs, digests, given_sources
from teachers.pretraining.network import (
    check_directions,
    check_memory,
    check_positions,
    network_for,
    segmenter_for,
    tokenizer_for,
    words_of,
)
from teachers.pretraining.objectives import Objectives
from teachers.pretraining.objectives.pretext_objective import Text
from teachers.pretraining.prediction_heads import Head, TextHead, pooler
from teachers.pretraining.pretraining_batches import PretextDataset
from teachers.pretraining.pretraining_report import write_report
from teachers.pretraining.pretraining_task import WATCHED, PretextLoss, PretextMonitor, reads_last
from teachers.pretraining.settings import PretextTask, Pretraining, Stage
from teachers.pretraining.text.corpus import Corpus, Reader, build, texts
from teachers.pretraining.text.sequence import Frame
from teachers.pretraining.text.sequence_sources import (
    Dialogues,
    Drawable,
    Given,
    Packed,
    Translations,
    dialogues,
    labelled_pairs,
    translations,
)
from teachers.pretraining.utilisation import speed_of
from teachers.renamed import AS_RECORDED, recorded, with_first_names
from teachers.seeding import seeded
from teachers.taskmodel import save_taskmodel
from teachers.trained_once import trained_once
from teachers.training.loop import learn
from teachers.training.processes import is_first, wait_for_all
from teachers.training.training_task import BoundTask

logger = logging.getLogger("teachers.pretraining")

VERSION = 4
"""Raised when the same text and settings give another network."""
RECORD = "pretraining.json"


def pretrain(block: Pretraining, *, seed: int = 13, name: str = "network") -> Path:
    """Train a network as a recipe says, or find the one that this very call made before.

    An interrupted call goes on where it stopped.

    Args:
        block: The recipe's ``pretrain``.
        seed: The source of all chance.
        name: What its card calls it, when it is made.

    Returns:
        Its folder: a plain Hugging Face folder, a card, a page of curves, ``pretraining.json`` (settings, history,
        speed) and the heads.

    Raises:
        UserError: If text, tokenizer, network or tasks do not fit together.
        DivergedError: If training fails.
    """
    run = _Run(block, seed)
    folder = _place(run.key)

    def write(facts: dict[str, Any], beside: Path) -> None:
        run.save(beside)
        (beside / RECORD).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        network = run.student.model
        write_report(beside, name, facts, family_of(network).model_type, layer_count(network))

    logger.info("pretrained network %s: %s", run.key, folder)
    trained_once(folder, "the pretrained network", (folder / RECORD).is_file, run.train, write)
    return folder


def _key_of(identity: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def _place(key: str) -> Path:
    return home() / "teachers" / f"pretrained-{key}"


class _Run:
    """A pretraining with its network, text and heads."""

    def __init__(self, block: Pretraining, seed: int) -> None:
        self.block, self.seed = block, seed
        check_inputs(block)
        self.sources = [find_sources(text, {}) for text in block.text]
        tokenizer = tokenizer_for(block, [own["train"] for own in self.sources if "train" in own])
        predicts = words_of(block)
        self.student = network_for(block.network, tokenizer, predicts, seed)
        check_memory(block, self.student.model)
        check_directions(block, self.student.model)
        self.frame = Frame(self.student.tokenizer, masks=predicts in ("none", "masked"))
        self.text = self._corpus("train")
        self.watched = self._corpus("validation")
        self.heads: dict[str, Head] = {}
        self.earlier = earlier_heads(block.network.from_)
        self.labels: dict[str, Sequence[str]] = {}
        self.pooler: nn.Linear | None = None
        stages = [recorded(stage, exclude_defaults=True) for stage in block.stages]
        identity = [VERSION, self.student.digest, self.text.folder.name, stages, seed, digests(block)]
        if self.watched is not None:
            identity.append(self.watched.folder.name)
        if self.earlier.digest:
            identity.append(self.earlier.digest)
        if any(stage.training.dropout is not None and stage.has_generator for stage in block.stages):
            identity.append("dropout of the generator")  # once that was its config's
        self.key = _key_of(identity)
        if not ((_place(self.key) / RECORD).is_file() and has_config(_place(self.key), self.student)):
            self.key = _key_of([*identity, config_values(self.student)])  # which earlier versions left out

    def train(self, working: Path) -> dict[str, Any]:
        """Run every stage and return what is worth knowing."""
        found: list[dict[str, Any]] = []
        stages = [(stage, self._rows_of(stage)) for stage in self.block.stages]  # what does not fit is said at once
        for number, (stage, rows) in enumerate(stages, start=1):
            done = working / f"stage-{number}.json"
            with seeded(self.seed + number):
                training_tasks = [_Ready(self._bound(name, stage, own)) for name, own in rows.items()]
            if done.is_file():
                self._restore(working / f"stage-{number}.safetensors")
                found.append(json.loads(done.read_text(encoding="utf-8")))
                continue
            logger.info("stage %d of %d: %s", number, len(stages), ", ".join(stage.tasks))
            with under_way(f"stage {number} of {len(stages)}"):
                history = learn(
                    training_tasks,
                    stage.training,
                    seed=self.seed,
                    folder=working / f"stage-{number}",
                    identity=f"{self.key} {number}",
                )
            facts = {"history": history, "speed": speed_of(self.student.model, history, stage.length)}
            if is_first():
                self._keep(working / f"stage-{number}.safetensors")
                atomic_write(done, (json.dumps(facts) + "\n").encode())
            wait_for_all()
            found.append(facts)
        block = self.block.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return {"block": without_paths(block), "seed": self.seed, "text": self.text.facts, "stages": found}

    def save(self, folder: Path) -> None:
        """Write the network as a standard folder, a pooler where standard code looks for it, and the heads."""
        if kind_of(self.student.task.kind).truth is None:
            save_taskmodel(self.student, folder)
        else:  # an encoder without a head, of which nothing is asked yet
            self.student.model.config.__dict__.pop(POOLING, None)
            self.student.model.save_pretrained(folder)
            self.student.tokenizer.save_pretrained(folder)
        self._add_pooler(folder / "model.safetensors")
        kept = {id(tensor) for tensor in self.student.model.state_dict(keep_vars=True).values()}
        heads = {}
        for name, tensor in nn.ModuleDict(self.heads).state_dict(keep_vars=True).items():
            if id(tensor) not in kept:
                heads[name] = tensor.detach().clone().contiguous()
                kept.add(id(tensor))
        if heads:
            save_file(heads, folder / HEADS)

    def _add_pooler(self, file: Path) -> None:
        path = family_of(self.student.model).heads.get("dense", "")
        if self.pooler is None or not path.startswith("{base}."):
            return
        tensors = load_file(file)
        prefix = path.format(base=family_of(self.student.model).base)
        if kind_of(self.student.task.kind).vectors:  # the bare encoder's own names
            prefix = path.removeprefix("{base}.")
        tensors |= {f"{prefix}.{name}": value.detach().clone() for name, value in self.pooler.state_dict().items()}
        save_file(tensors, file, {"format": "pt"})

    def _corpus(self, split: str, reader: Reader = texts, sources: Sequence[Source] | None = None) -> Any:
        found = [own[split] for own in self.sources if split in own] if sources is None else sources
        if not found:
            return None
        segmenter = segmenter_for(self.block.segmenter)
        corpus = build(found, self.student.tokenizer, home() / "corpora", segmenter=segmenter, reader=reader)
        read = corpus.facts["read"]
        logger.info(
            "%s: %s tokens in %s documents; %d lines could not be read",
            ", ".join(source.name for source in found),
            f"{corpus.facts['tokens']:,}",
            f"{len(corpus):,}",
            read["bad"],
        )
        return corpus

    def _rows_of(self, stage: Stage) -> dict[str, PretextDataset]:
        if stage.length > max_tokens(self.student.model.config):
            most = max_tokens(self.student.model.config)
            raise UserError(f"pretrain: length {stage.length}: the network takes {most} tokens at most")
        return {name: self._rows(name, task, stage, "train") for name, task in stage.tasks.items()}

    def _bound(self, name: str, stage: Stage, rows: PretextDataset) -> BoundTask:
        """Return a task that is ready to be trained on; heads that an earlier stage made go on."""
        task, network = stage.tasks[name], self.student.model
        heads = {one: self._head(one, own.head) for one, own in task.objectives.given.items()}
        weights = {one: own.weight for one, own in task.objectives.given.items()}
        if rows.label:
            if self.pooler is None:
                self.pooler = pooler(network)
                self.earlier.hand_over(self.pooler, "pooler")
            make = partial(TextHead, target=rows.label, classes=rows.source.classes, pooler=self.pooler)
            heads[rows.label] = self._head(rows.label, make)
            weights[rows.label] = task.weight
        streams = 1 + any(own.permutes for own in task.objectives.given.values())
        loss = PretextLoss(heads, weights, reads_last(network, streams))
        return BoundTask(
            self.student,
            rows,
            loss,
            name if len(stage.tasks) > 1 else "",
            partial(self._watch, name, task, stage, loss),
        )

    def _watch(self, name: str, task: PretextTask, stage: Stage, loss: PretextLoss) -> PretextMonitor | None:
        there = "validation" in given_sources(task) if task.own_source else self.watched is not None
        if not there:
            return None
        return PretextMonitor(self.student.model, loss, self._rows(name, task, stage, "validation"))

    def _head(self, name: str, make: Callable[[Any], Head]) -> Head:
        if name not in self.heads:
            self.heads[name] = make(self.student.model)
            if self.block.network.from_ is None:
                self.heads[name].begin(self._frequencies)
            self.earlier.hand_over(self.heads[name], name)
        return self.heads[name]

    @cached_property
    def _frequencies(self) -> Tensor:
        return torch.from_numpy(self.text.frequencies(self.student.model.config.vocab_size))

    def _rows(self, name: str, task: PretextTask, stage: Stage, split: str) -> PretextDataset:
        network = self.student.model
        corpus: Corpus = self.text if split == "train" else self.watched
        label = task.pair or ("reorder" if task.reorder else name if task.given or task.dialogues else "")
        if task.own_source:
            reader = labelled_pairs if task.given else dialogues if task.dialogues else translations
            corpus = self._corpus(split, reader, [given_sources(task)[split]])
        asked = Text(corpus, self.frame, self.student.tokenizer)
        inputs = model_inputs(network.config)
        if getattr(network.config, "use_task_id", False):
            inputs = (*inputs, "task_type_ids")
        if task.restarts:
            check_positions(network)
            inputs = (*inputs, "position_ids")
        return PretextDataset(
            self._source(name, task, stage.length, corpus),
            self.frame,
            {one: own.ask(asked) for one, own in task.objectives.given.items()},
            label=label,
            inputs=inputs,
            seed=self.seed,
            draws=task.draws if split == "train" else 1,
            task_type=task.task_type,
            memory=task.memory,
            first_position=first_position(network.config),
            digest=corpus.folder.name,
            most=task.most if split == "train" else WATCHED,
            start=decoder_start(network.config) if has_decoder(network) else 0,
        )

    def _source(self, name: str, task: PretextTask, length: int, corpus: Corpus) -> Drawable:
        if task.given:
            source = Given(corpus, self.frame, length, self.labels.get(name))
            self.labels[name] = source.names
            return source
        if task.dialogues:
            return Dialogues(corpus, self.frame, length)
        if task.translations:
            return Translations(
                corpus, self.frame, length, task.language, typed=task.language_embeddings, restart=task.restart
            )
        pair = task.pair or task.unasked_pair
        return Packed(corpus, self.frame, length, task.format, pair, task.reorder)

    def _parts(self) -> tuple[nn.Module, ...]:
        heads = with_first_names(self.heads, Objectives.renamed, AS_RECORDED)
        return (self.student.model, nn.ModuleDict(heads))

    def _keep(self, file: Path) -> None:
        from teachers.training.checkpoint import save_weights

        save_weights(file, *self._parts())

    def _restore(self, file: Path) -> None:
        from teachers.training.checkpoint import load_weights

        load_weights(file, *self._parts())


@dataclass(frozen=True)
class _Ready:
    """A training task that is bound already: its head may be an earlier stage's."""

    bound: BoundTask

    def bind(self, seed: int) -> BoundTask:
        del seed
        return self.bound
