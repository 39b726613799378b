"""DualTrain: a student with its own small vocabulary and a teacher that reads both vocabularies, trained together."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from compress.distill.components.distillation import Distillation
from compress.distill.components.dual_projections import Direction, Reduction, SharedProjections, pair_weights
from compress.distill.components.dual_vocabulary import MixedText, union_ids
from compress.distill.components.layer_map import map_layers, map_problems
from compress.student.shape_check import nearest
from compress.technique import Inputs, Measure, Need, Outcome, Technique
from eval.kinds.kind_registry import kind_of
from teachers.anatomy.encoder import family_of, reshaped, shape_of
from teachers.data.encoded_dataset import Batch, EncodedDataset
from teachers.losses.loss import Loss
from teachers.losses.task_loss import TaskLoss, task_count, task_loss
from teachers.pretraining.text.wordpiece_trainer import has_word_pieces, train_word_pieces
from teachers.signals.hooks import Signals
from teachers.signals.model_teacher import ModelTeacher, TeacherSource
from teachers.taskmodel import TaskModel, build_taskmodel, logits_of
from teachers.training.config import Training

Compared = Literal["down", "up", "both", "none"]
DIRECTIONS: dict[Compared, tuple[Direction, ...]] = {
    "down": ("down",),
    "up": ("up",),
    "both": ("down", "up"),
    "none": (),
}


class DualTraining(Distillation):
    """Train a thin student with few subword tokens beside a teacher that reads the pieces of both, word by word.

    ``loss = MLM(student) + MLM(teacher) + epsilon · (down + up)`` with ``down = Σ ‖U θ_T V - θ_S‖²`` and
    ``up = Σ ‖θ_T - U' θ_S V'‖²`` over all pairs of weights; U, V, U', V' are trained and the same for all layers and
    kinds of weights. The student reads its own pieces. Of the teacher's input every word is cut by the student's
    vocabulary with probability p_dual, else by the teacher's own, and its masked pieces are predicted among the pieces
    of both. The teacher is a copy that is trained too and thrown away. The student has random weights and the family
    of the model that comes in; fine-tune it on any task afterwards.

    Attributes:
        vocab_size: Most subword tokens of the student; they are learned from the training texts. Default 4928.
        hidden_size: Width of the student. Default 96; the paper has 48, 96 and 192.
        heads: Attention heads; those of the model that comes in by default, likewise the layers.
        layers: Transformer layers.
        intermediate_size: Neurons of the feed-forward network; four times the hidden size by default, as in the paper.
        p_dual: Probability that a word of the teacher's input is cut by the student's vocabulary. Default 0.5.
        projection: Which distance of weights counts: ``down``, ``up``, ``both`` or ``none``. The paper compares the
            first two and ``none``.
        epsilon: Weight of that distance. Default 1, which belongs to the sum. Short trainings learn words faster with
            less: the sum is thousands at first, a word loss below 11, and gradients are clipped together.
        reduction: ``sum`` over all entries of all tensors is the paper's formula and grows with width and depth;
            ``mean`` divides by the number of compared entries.
        layer_map: The teacher layer of every student layer, if the student has fewer.
        alone: Train the student without a teacher: what the paper compares with, and the baseline of a recipe.
        training: AdamW in place of the paper's LAMB (batches of 2048, 250,000 steps); 1 epoch of 32 at 5e-4.

    Needs:
        Unlabelled training texts (``kind: masked-lm``) and a teacher of the student's family with a masked-language
        head. Both read WordPiece.

    Reduces:
        Parameters, bytes and multiply-accumulates.

    Limits:
        Families with BERT's layer and a WordPiece tokenizer: BERT, ERNIE, DistilBERT, ELECTRA. Byte-level and unigram
        tokenizers have no such pieces of words. The paper was read in summaries and no code is public, so its sizes,
        epsilon and rates are second-hand. Open there, and chosen here: U' and V' are maps of their own; axes of another
        length than the hidden size (feed-forward, factorised embeddings) have their own maps, again shared by all
        layers; vectors are mapped from one side; word embeddings are compared for the pieces that the student has;
        maps start orthonormal. Without the distance of weights nothing links the two models.

    Source:
        Zhao, Gupta, Song, Zhou 2019, arXiv 1909.11687.
    """

    name: ClassVar[str] = "distill.dual"
    version: ClassVar[int] = 2
    is_objective: ClassVar[bool] = False
    reduces: ClassVar[frozenset[Measure]] = frozenset({"parameters", "nonzero", "bytes", "export_bytes", "macs"})
    source: ClassVar[str] = "Zhao, Gupta, Song, Zhou 2019, arXiv 1909.11687"

    vocab_size: int = Field(default=4928, ge=16)
    hidden_size: int = Field(default=96, ge=1)
    heads: int | None = Field(default=None, ge=1)
    layers: int | None = Field(default=None, ge=1)
    intermediate_size: int | None = Field(default=None, ge=1)
    p_dual: float = Field(default=0.5, ge=0, le=1)
    projection: Compared = "up"
    epsilon: float = Field(default=1.0, ge=0)
    reduction: Reduction = "sum"
    layer_map: Literal["uniform", "last", "first"] | tuple[Annotated[int, Field(ge=0)], ...] = "uniform"
    alone: bool = False
    training: Training = Training(epochs=1, learning_rate=5e-4, batch_size=32)

    def needed(self) -> frozenset[Need]:
        """Return the training examples, and a teacher unless the student trains alone."""
        return self.needs - {"teacher"} if self.alone else self.needs

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse labelled tasks, other tokenizers and layers, heads that do not fit, and teachers of another kind."""
        if inputs.train is None:
            return []
        family, shape = family_of(student.model), shape_of(student.model.config)
        if not kind_of(student.task.kind).masks:
            return [
                f"{self.name}: trains on unlabelled text (kind: masked-lm), and this {family.model_type} answers "
                f"{student.task.kind}; run it on text first, then fine-tune its result"
            ]
        found = []
        if not family.post_norm:
            found.append(f"works on layers like BERT's, which those of {family.model_type} are not")
        if not has_word_pieces(student.tokenizer):
            kind = type(student.tokenizer.backend_tokenizer.model).__name__
            found.append(f"needs a WordPiece tokenizer, and that of this {family.model_type} is {kind}")
        heads = self.heads or shape.heads
        if self.hidden_size % heads:
            possible = nearest(heads, (n for n in range(1, self.hidden_size + 1) if self.hidden_size % n == 0))
            found.append(f"{heads} heads do not divide hidden_size {self.hidden_size}; nearest heads: {possible}")
        if self.hidden_size > shape.hidden_size:
            found.append(f"hidden_size {self.hidden_size} is more than the {shape.hidden_size} of the model coming in")
        if not self.alone:
            found += self._teacher_problems(student, inputs.teacher)
        return [f"{self.name}: {problem}" for problem in found]

    def _teacher_problems(self, student: TaskModel, teacher: TeacherSource | None) -> list[str]:
        if teacher is None:
            return []
        if not isinstance(teacher, ModelTeacher):
            return ["the teacher is trained too, so it must be one network, not an ensemble"]
        own, other = family_of(student.model), family_of(teacher.model.model)
        if own is not other or student.task.kind != teacher.model.task.kind:
            return [
                f"student and teacher must be of one family with a masked-language head; the student is "
                f"{own.model_type}, the teacher {other.model_type} and answers {teacher.model.task.kind}"
            ]
        layers = self.layers or shape_of(student.model.config).layers
        return map_problems(self.layer_map, layers, teacher.layers)

    def apply(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Learn the vocabulary, build the student and train it."""
        texts = [example["text"] for example in inputs.train or ()]
        tokenizer = train_word_pieces(student.tokenizer, texts, self.vocab_size)
        small = self._network(student, tokenizer, len(tokenizer), generator.initial_seed())
        objective = TaskLoss() if self.alone else self.make_objective(inputs)
        history = self.train(small, inputs, objective, generator)
        pieces, known = set(tokenizer.get_vocab()), set(student.tokenizer.get_vocab())
        facts = {"pieces": len(pieces), "known_pieces": round(len(pieces & known) / len(pieces), 4), "history": history}
        return Outcome(small, facts)

    def network_for(self, student: TaskModel, seed: int = 0) -> TaskModel:
        """Return a student of the right size; no texts have been seen, so its tokenizer knows no word yet."""
        return self._network(student, train_word_pieces(student.tokenizer, (), self.vocab_size), self.vocab_size, seed)

    def _network(self, like: TaskModel, tokenizer: Any, vocab_size: int, seed: int) -> TaskModel:
        config = self.config(like.model.config, tokenizer, vocab_size)
        return build_taskmodel(config, tokenizer, like.task, seed, name=like.name)

    def config(self, like: Any, tokenizer: Any, vocab_size: int) -> Any:
        """Return the config of a student of this family.

        Args:
            like: The config of the model that comes in; factorised embeddings become narrower in proportion.
            tokenizer: Gives the ids of special tokens.
            vocab_size: Rows of the word embeddings.
        """
        shape = shape_of(like)
        changes = {
            "vocab_size": vocab_size,
            "hidden_size": self.hidden_size,
            "heads": self.heads or shape.heads,
            "layers": self.layers or shape.layers,
            "intermediate_size": self.intermediate_size or 4 * self.hidden_size,
        }
        if shape.embedding_size not in (None, shape.hidden_size):
            changes["embedding_size"] = max(1, int(shape.embedding_size or 0) * self.hidden_size // shape.hidden_size)
        config = reshaped(like, **changes)
        for name in ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"):
            if getattr(config, name, None) is not None:
                setattr(config, name, getattr(tokenizer, name))
        return config

    def bind(self, student: TaskModel, rows: EncodedDataset, teacher: TeacherSource) -> DualLoss:
        """Copy the teacher, give it the pieces of both vocabularies, and make the maps between the weights."""
        if not isinstance(teacher, ModelTeacher):
            raise TypeError(f"{self.name} was given a teacher that is no network; check refuses this earlier")
        given = teacher.model
        network = copy.deepcopy(given.model).train()
        union = union_ids(student.tokenizer, given.tokenizer, given.model.config.vocab_size)
        network.resize_token_embeddings(max(given.model.config.vocab_size, int(union.max()) + 1), mean_resizing=False)
        both = TaskModel(network, given.tokenizer, given.task, name=given.name)
        layers = map_layers(self.layer_map, shape_of(student.model.config).layers, teacher.layers)
        directions = DIRECTIONS[self.projection] if self.epsilon else ()
        pairs = pair_weights(student, both, layers, torch.from_numpy(union)) if directions else []
        maps = nn.ModuleDict({each: SharedProjections(pairs, each, self.reduction) for each in directions})
        modules = nn.ModuleDict({"teacher": network, "maps": maps})
        return DualLoss(self.epsilon, MixedText(rows, both, union, self.p_dual), maps, modules)

    def without_teacher(self) -> Technique:
        """Return the same student, trained alone."""
        return self.model_copy(update={"alone": True})


@dataclass
class DualLoss(Loss):
    """The loss of ``distill.dual`` over known rows.

    Attributes:
        epsilon: Weight of the distance of weights.
        text: The student's rows as the teacher's copy reads them.
        maps: Maps between the weights by direction.
        modules: Copy and maps, trained beside the student.
    """

    epsilon: float
    text: MixedText
    maps: nn.ModuleDict
    modules: nn.Module

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Return how many places student and teacher predict; the distances of weights are no means over rows."""
        task = self.text.teacher.task
        return {"student": task_count(task, batch), "teacher": task_count(task, self.text.batch(batch))}

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return ``{"student", "teacher", "down", "up"}``; a direction that does not count is left out."""
        mixed, teacher = self.text.batch(batch), self.text.teacher
        terms = {
            "student": task_loss(teacher.task, student.logits, batch),
            "teacher": task_loss(teacher.task, logits_of(teacher.model(**mixed.inputs)), mixed),
        }
        return terms | {direction: self.epsilon * distance() for direction, distance in self.maps.items()}
