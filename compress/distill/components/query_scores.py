"""Scores of the passages of one query: of the student, a reranker or an embedder, and of the teacher."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the field's own abbreviation)

from compress.artifact.artifact import load_model
from compress.distill.components.distillation import Distillation, FromTeacher
from compress.distill.components.row_vectors import row_vectors
from compress.technique import Inputs, Need
from eval.cost.size import device_of
from eval.errors import UserError
from eval.kinds.kind_registry import kind_of
from eval.task import Examples, TaskSpec
from teachers.anatomy.encoder import family_of, max_tokens
from teachers.data.encoded_dataset import Batch, EncodedDataset
from teachers.data.pair_rows import TextPairs
from teachers.losses.loss import Loss
from teachers.losses.ranking import queries, scores
from teachers.signals.hooks import NOTHING, Signals
from teachers.signals.live_reader import LiveReader
from teachers.signals.model_teacher import ModelTeacher, TeacherSource
from teachers.taskmodel import TaskModel
from teachers.training.scoring import rows_of

logger = logging.getLogger(__name__)


class QueryDistillation(Distillation):
    """Base of the distillations that compare the scores of a query's passages.

    Attributes:
        cross_encoder: A model folder or hub name whose scores an embedder learns.
        scale: For an embedder: what the cosine of query and passage is multiplied by to be a score. By default that by
            which the scores of a query range as far as the cross-encoder's, on average, before anything is learned.
    """

    cross_encoder: str | None = None
    scale: float | None = Field(default=None, gt=0)

    def needed(self) -> frozenset[Need]:
        """Return training examples, and a teacher where no cross-encoder is named."""
        return self.needs if self.cross_encoder is None else frozenset({"train"})

    def reads(self) -> tuple[Path, ...]:
        """Return the files of the cross-encoder, if it is a folder."""
        folder = Path(self.cross_encoder or "")
        return tuple(sorted(folder.iterdir())) if self.cross_encoder is not None and folder.is_dir() else ()

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse tasks without queries, and data in which no query has two passages."""
        spec, family = student.task, family_of(student.model).model_type
        kind, found = kind_of(spec.kind), []
        if kind.vectors and self.cross_encoder is None:
            found.append(
                "an embedder learns the scores of a cross-encoder; name its folder as cross_encoder, or take "
                "distill.embedding or distill.contrastive for a teacher with vectors"
            )
        elif not kind.vectors and self.cross_encoder is not None:
            found.append("cross_encoder: is for embedders; a reranker learns from the recipe's own teacher")
        if not kind.vectors and not (spec.pair and kind.pairs):
            found.append(
                f"compares the passages of a query, and this {family} answers {spec.kind} of single texts; "
                "give it pairs: text_a the query, text_b the passage"
            )
        elif spec.labels and not (kind.one_label and len(spec.labels) == 2):
            found.append(f"needs a score, which {len(spec.labels)} classes do not have; take two classes or a number")
        elif inputs.train and kind.searches and kind.vectors:
            if not kind.text_pairs(inputs.train):
                found.append("no training query has a relevant document; give qrels/train.tsv with the judgements")
        elif inputs.train:
            asked = [example["text_a"] for example in inputs.train if "text_a" in example]
            if len(set(asked)) == len(asked):
                found.append(f"no two of the {len(inputs.train)} training examples have the same text_a, the query")
        return [f"{self.name}: {problem}" for problem in found]

    def select(self, spec: TaskSpec, examples: Examples) -> Examples:
        """Return the pairs: the task of an embedder may have single texts as well."""
        kind = kind_of(spec.kind)
        return Examples(kind.query_pairs(spec, examples), examples.name, examples.skipped) if kind.vectors else examples

    def make_objective(self, inputs: Inputs) -> FromTeacher:
        """Return the loss with the cross-encoder, or with the teacher in ``inputs``."""
        if self.cross_encoder is None:
            return super().make_objective(inputs)
        return FromTeacher(self, ModelTeacher(scorer(self.cross_encoder)))

    def scored(self, student: TaskModel, rows: EncodedDataset, teacher: TeacherSource) -> QueryScores:
        """Return what gives the scores of these rows; the teacher's are computed or found in the cache."""
        if self.cross_encoder is None:
            reader = teacher.read(rows)
            return QueryScores(rows, queries(rows), lambda batch, _: scores(reader(batch).logits.float()))
        if not isinstance(teacher, ModelTeacher):
            raise TypeError(f"{self.name} was bound to a teacher that is no cross-encoder")
        known, groups, scale = pair_scores(teacher, rows.examples), queries(rows), self.scale
        wanted = lambda batch, examples: known[examples].to(batch.rows.device)  # noqa: E731
        if scale is None:
            pairs, cosines = start_cosines(student, rows)
            of_pair = known[[rows.features[row].example for row in pairs]]
            own, other = (mean_range(one, [groups[row] for row in pairs]) for one in (cosines, of_pair))
            scale = other / own if own and other else 1.0
            logger.info(
                "%s: scale %.4g; with it a query's scores range as far as the cross-encoder's", self.name, scale
            )
        return QueryScores(rows, groups, wanted, scale)


class Scored(NamedTuple):
    """Pairs of one batch.

    Attributes:
        group: Number of the query of each pair, ``[n]``.
        labels: What the data says of each pair; not a number where it says nothing, ``[n]``.
        student: The student's scores, ``[n]``.
        teacher: The teacher's scores, ``[n]``.
    """

    group: Tensor
    labels: Tensor
    student: Tensor
    teacher: Tensor


@dataclass
class QueryScores:
    """Gives the scores of the pairs in a batch.

    Attributes:
        rows: All rows; the two texts of an embedder's pair are rows of their own.
        groups: Number of the query of every row.
        wanted: Gives the teacher's scores of a batch, by the numbers of its examples.
        scale: For an embedder, whose score is the cosine times this; None for a reranker, whose rows are pairs.
    """

    rows: EncodedDataset
    groups: Sequence[int]
    wanted: Callable[[Batch, list[int]], Tensor]
    scale: float | None = None

    def pairs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the group and the label of every whole pair of a batch."""
        return self._told(batch, self._places(batch))

    def _told(self, batch: Batch, places: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        numbers = batch.rows.tolist()
        group = torch.tensor([self.groups[numbers[first]] for first, _ in places], device=batch.rows.device)
        if self.scale is None:
            return group, batch.targets["labels"]
        given = [self.rows.examples[one].get("label", float("nan")) for one in self._examples(batch, places)]
        return group, torch.tensor([float(label) for label in given], device=batch.rows.device)

    def __call__(self, student: Signals, batch: Batch) -> Scored:
        """Return the scores of every whole pair of a batch."""
        places, outputs = self._places(batch), student.logits.float()
        if self.scale is None:
            own = scores(outputs)
        else:
            sides = [[place[side] for place in places] for side in (0, 1)]
            own = self.scale * F.cosine_similarity(outputs[sides[0]], outputs[sides[1]], dim=-1)
        return Scored(*self._told(batch, places), own, self.wanted(batch, self._examples(batch, places)))

    def _places(self, batch: Batch) -> list[tuple[int, int]]:
        """Return where the query and the passage of each pair stand in a batch: in one row, or in two."""
        numbers = batch.rows.tolist()
        if self.scale is None:
            return [(place, place) for place in range(len(numbers))]
        place = {row: position for position, row in enumerate(numbers)}
        features = self.rows.features
        return [
            (place[row], place[row + 1])
            for row in place
            if row + 1 in place and features[row].example == features[row + 1].example
        ]

    def _examples(self, batch: Batch, places: Sequence[tuple[int, int]]) -> list[int]:
        numbers = batch.rows.tolist()
        return [self.rows.features[numbers[first]].example for first, _ in places]


class QueryLoss(Loss):
    """Base of the losses over the scores of a query's passages, which stand in one batch.

    Args:
        scored: Gives the scores.
    """

    def __init__(self, scored: QueryScores) -> None:
        self.scored, self.groups = scored, scored.groups


def start_cosines(student: TaskModel, rows: EncodedDataset) -> tuple[list[int], Tensor]:
    """Return the row of the query of every pair, and the student's cosine of the pair, ``[pairs]``."""
    reader = LiveReader(student, NOTHING)
    device = device_of(student.model)
    vectors = row_vectors(rows, lambda batch: reader(batch.to(device)))
    firsts = [passage - 1 for passage in TextPairs.of(rows).passages]
    return firsts, F.cosine_similarity(vectors[firsts], vectors[[row + 1 for row in firsts]], dim=-1)


def mean_range(scores: Tensor, groups: Sequence[int]) -> float:
    """Return the mean of the largest less the smallest score of a group, over the groups with two different ones.

    Args:
        scores: ``[n]``.
        groups: Number of the query of each score.

    Returns:
        0 if there is no such group.

    Examples:
        >>> import torch
        >>> mean_range(torch.tensor([3.0, 1.0, 2.0, 7.0, 1.0, 5.0]), [0, 0, 0, 1, 2, 2])
        3.0
    """
    of_group: dict[int, list[float]] = {}
    for group, score in zip(groups, scores.tolist(), strict=True):
        of_group.setdefault(group, []).append(score)
    ranges = [max(own) - min(own) for own in of_group.values() if max(own) > min(own)]
    return sum(ranges) / len(ranges) if ranges else 0.0


def scorer(source: str) -> TaskModel:
    """Return a cross-encoder: a folder with its task, or a standard one with one output, which reads all it can.

    Raises:
        UserError: If it cannot be loaded, or gives no single score of a pair.
    """
    told = None if (Path(source) / "task.json").is_file() else TaskSpec(kind="regression", metric="pearson", pair=True)
    found = load_model(source, told, new_head=False)
    if told is not None:
        most = min(found.tokenizer.model_max_length, max_tokens(found.model.config))
        found = replace(found, task=found.task.model_copy(update={"max_length": most}))
    spec = found.task
    if spec.pair and (spec.outputs == 1 or (kind_of(spec.kind).one_label and len(spec.labels) == 2)):
        return found
    form = "pairs" if spec.pair else "single texts"
    raise UserError(
        f"cross_encoder: {source} answers {spec.kind} of {form}; give a model that scores pairs of texts, with two "
        "classes or a number"
    )


def pair_scores(teacher: ModelTeacher, examples: Examples) -> Tensor:
    """Return a cross-encoder's score of every example, ``[examples]``; 0 for single texts.

    Its outputs are cached as teacher outputs.
    """
    numbers = [number for number, example in enumerate(examples) if "text_a" in example]
    texts = [{side: examples[number][side] for side in ("text_a", "text_b")} for number in numbers]
    rows = rows_of(teacher.model, Examples(texts, examples.name), seed=0)
    reader, found = teacher.read(rows), torch.zeros(len(examples))
    for start in range(0, len(rows), 256):
        own = range(start, min(start + 256, len(rows)))
        found[[numbers[row] for row in own]] = scores(reader(rows.batch(own)).logits.float()).cpu()
    return found
