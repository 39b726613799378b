"""The score of a network on examples, for every kind of task; training watches it and reports use it."""

from __future__ import annotations

from torch.nn import functional as F  # noqa: N812 (the field's own abbreviation)

from eval.encoding import IGNORED
from eval.inference import Answer, batches_by_length, completed, predict
from eval.kinds.kind_registry import kind_of
from eval.scores import score
from eval.task import Examples, TaskSpec
from teachers.data.encoded_dataset import EncodedDataset
from teachers.taskmodel import TaskModel, evaluating, logits_of

MASK_SEED = 13
"""Validation text is masked the same way every time, so that scores compare."""


def answers(model: TaskModel, examples: Examples, batch_size: int = 32) -> list[Answer]:
    """Answer every example; for masked-lm each answer is ``{"correct", "total", "loss"}`` over its masked tokens."""
    if kind_of(model.task.kind).masks:
        return _masked_answers(model, examples, batch_size)
    return completed(model, examples, predict(model, examples, batch_size)).answers


def scores(model: TaskModel, examples: Examples, batch_size: int = 32) -> dict[str, float]:
    """Return the metric of the task first, then the other metrics of its kind."""
    return score(model.task, answers(model, examples, batch_size), examples)


def scorable(spec: TaskSpec, examples: Examples) -> bool:
    """Whether all of these examples hold their truth, if their kind needs one."""
    truth = kind_of(spec.kind).truth
    return len(examples) > 0 and (truth is None or all(truth in example for example in examples))


def rows_of(model: TaskModel, examples: Examples, seed: int) -> EncodedDataset:
    """Encode examples for training this network."""
    tokenizer = model.tokenizer
    return EncodedDataset(
        examples,
        model.encoder,
        model.task,
        seed=seed,
        special_ids=tokenizer.all_special_ids,
        mask_id=tokenizer.mask_token_id,
        vocab_size=model.model.config.vocab_size,
    )


def _masked_answers(model: TaskModel, examples: Examples, batch_size: int) -> list[Answer]:
    rows = rows_of(model, examples, MASK_SEED)
    device = next(model.model.parameters()).device
    found: list[Answer] = [{"correct": 0, "total": 0, "loss": 0.0} for _ in examples]
    for indices in batches_by_length(rows.lengths, batch_size):
        batch = rows.batch(indices).to(device)
        with evaluating(model.model):
            logits = logits_of(model.model(**batch.inputs)).float()
        labels = batch.targets["labels"]
        losses = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none").sum(dim=1)
        counted = labels != IGNORED
        correct = ((logits.argmax(dim=-1) == labels) & counted).sum(dim=1)
        figures = zip(indices, correct.tolist(), counted.sum(dim=1).tolist(), losses.tolist(), strict=True)
        for index, right, total, loss in figures:
            answer = found[rows.features[index].example]
            answer["correct"] += right
            answer["total"] += total
            answer["loss"] += loss
    return found
