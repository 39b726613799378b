"""Several objectives tried on the same student: the one that is best on the examples that choose is kept."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from pydantic import Field

from compress.distill.labels import LabelTraining
from compress.objective import ObjectiveBlock
from compress.technique import Inputs, Need, Outcome, Technique, TrainedTechnique
from eval.task import Examples
from teachers.seeding import seeded
from teachers.taskmodel import TaskModel
from teachers.training.config import Training
from teachers.training.scoring import rows_of, scorable, scores

logger = logging.getLogger("compress.distill.best_of")


class BestOf(TrainedTechnique):
    """Train the same student once on each of several objectives, and keep the one that scores best.

    ``kept = argmax over objectives of metric(student trained on it)``, on the examples that choose, which nothing is
    learned from and nothing is reported on (``eval.data.roles``). Every training starts from the same weights with the
    same seed, and makes the same number of optimizer steps: where other texts have no labels, what learns from labels
    passes over them more often. Of equal scores the first one counts. Whether a teacher helps beyond the labels depends
    on the data, and nobody knows beforehand:
    ``distill.best_of: {of: [{distill.logits: {loss: mse, alpha: 1.0}}, distill.labels]}``.

    Attributes:
        of: The objectives, each as an ``objective`` block is written, two or more; the first is kept where no examples
            choose, and then no other is trained.
        training: How weights are updated, alike for all.

    Needs:
        Training examples, and a teacher if an objective needs one.

    Reduces:
        Nothing by itself; it recovers a student that is already smaller.

    Limits:
        It takes as long as all trainings together. A difference on few examples is mostly chance, so objectives that
        score nearly alike are chosen among nearly at random.

    Source:
        Stone 1974, Journal of the Royal Statistical Society B 36 (choice on held-out data).
    """

    name: ClassVar[str] = "distill.best_of"
    version: ClassVar[int] = 3
    needs: ClassVar[frozenset[Need]] = frozenset({"train"})
    takes_any: ClassVar[bool] = True
    both_stacks: ClassVar[bool] = True
    source: ClassVar[str] = "Stone 1974, Journal of the Royal Statistical Society B 36"

    of: tuple[ObjectiveBlock, ...] = Field(min_length=2)

    @property
    def chooses(self) -> bool:
        """Whether something is chosen, as it always is."""
        return True

    def needed(self) -> frozenset[Need]:
        """Return what the objectives need."""
        return self.needs.union(*(block.needed() for block in self.of))

    def trainings(self) -> tuple[Training, ...]:
        """Return the training block once for each objective."""
        return (self.training,) * len(self.of)

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse objectives that are impossible on this model."""
        return [f"{self.name}: {problem}" for block in self.of for problem in block.check(student, inputs)]

    def apply(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Train a copy of the student on each objective, and return the best."""
        judged = inputs.validation if inputs.validation and scorable(student.task, inputs.validation) else None
        found: dict[str, float | None] = {}
        kept: tuple[str, TaskModel, list[dict[str, Any]]] | None = None
        train = inputs.train or Examples((), "train")
        tried = [(block, block.make(inputs)) for block in (self.of if judged else self.of[:1])]
        learned = [objective.select(student.task, train) for _, objective in tried]
        inputs_of = [len(rows_of(student, examples, generator.initial_seed())) for examples in learned]
        for number, (block, objective) in enumerate(tried, start=1):
            training = self.training.as_long(inputs_of[number - 1], max(inputs_of))
            own, name = replace(student, model=copy.deepcopy(student.model)), f"{number} {told(block)}"
            with seeded(generator.initial_seed()):
                history = self.train(own, inputs, objective, generator, training=training, stage=str(number))
            found[name] = None if judged is None else next(iter(scores(own, judged).values()))
            if kept is None or (found[name] or 0.0) > (found[kept[0]] or 0.0):
                kept = name, own, history
        if kept is None:
            raise TypeError(f"{self.name} was applied without an objective; its schema refuses this earlier")
        chosen, model, history = kept
        facts = {"chosen": chosen, "scores": found, "metric": student.task.metric, "judged_on": len(judged or ())}
        facts |= {"steps": history[-1]["step"], "learned_from": dict(zip(found, map(len, learned), strict=True))}
        logger.info("%s", sentence(facts))
        return Outcome(model, facts={**facts, "history": history})

    @classmethod
    def note(cls, facts: Mapping[str, Any]) -> str:
        """Return which objective was kept."""
        return sentence(facts)

    def without_teacher(self) -> Technique:
        """Return training on the labels, with the same training block."""
        return LabelTraining.in_place_of(self.training)


def told(block: ObjectiveBlock) -> str:
    """Return an objective in a few words: its techniques, each with the fields that were given."""
    words = []
    for term in block.terms:
        given = term.technique.model_dump(mode="json", exclude_unset=True, exclude={"training"})
        words.append(" ".join([term.technique.name, *(f"{name} {value}" for name, value in given.items())]))
    return " + ".join(words)


def sentence(facts: Mapping[str, Any]) -> str:
    """Return which objective was kept, and what all of them scored, from the facts of the step.

    Examples:
        >>> scores = {"1 distill.logits loss mse": 0.81, "2 distill.labels": 0.823}
        >>> sentence({"chosen": "2 distill.labels", "scores": scores, "metric": "accuracy", "judged_on": 500})
        'kept distill.labels: accuracy 0.8230; distill.logits loss mse 0.8100, on 500 examples that choose'
        >>> equal_steps({"1 distill.logits loss mse": 9000, "2 distill.labels": 1000}, 846)
        'each in 846 optimizer steps: distill.logits loss mse on 9,000 examples, distill.labels on 1,000'
    """
    names = {key: key.partition(" ")[2] for key in facts["scores"]}
    chosen = facts["chosen"]
    if not facts["judged_on"]:
        return f"kept {names[chosen]}, the first: no examples with labels choose, so no other was trained"
    others = ", ".join(f"{names[key]} {value:.4f}" for key, value in facts["scores"].items() if key != chosen)
    best = facts["scores"][chosen]
    said = (
        f"kept {names[chosen]}: {facts['metric']} {best:.4f}; {others}, on {facts['judged_on']:,} examples that choose"
    )
    return f"{said}; {equal_steps(facts['learned_from'], facts['steps'])}" if "steps" in facts else said


def equal_steps(learned: Mapping[str, int], steps: int) -> str:
    """Return in how many optimizer steps each objective was learned, and from how many examples, by its key."""
    said = f"each in {steps:,} optimizer steps"
    if len({*learned.values()}) == 1:
        return said
    first, *others = [f"{key.partition(' ')[2]} on {count:,}" for key, count in learned.items()]
    return f"{said}: {first} examples, {', '.join(others)}"
