"""One encoder, several tasks: what is shared, what is learned, what is saved."""

import pytest
import torch

from compress.distill.ensemble import EnsembleDistillation
from compress.distill.logits import LogitDistillation
from compress.technique import Inputs
from eval.errors import UserError
from teachers.anatomy.encoder import base_encoder, head_parameters
from teachers.data.batches import LengthGroupedBatches, MixedBatches
from teachers.finetuning.multitask import share_encoders, train_together
from teachers.losses.loss import Objective
from teachers.losses.task_loss import BoundTaskLoss
from teachers.signals.ensemble_teacher import EnsembleTeacher
from teachers.signals.model_teacher import ModelTeacher
from teachers.taskmodel import load_taskmodel, save_taskmodel, weights_digest
from teachers.training.checkpoint import weights
from teachers.training.config import Training
from teachers.training.loop import train
from tests.tiny import FAMILIES, tiny_task, tiny_taskmodel

KINDS = ("classification", "tagging", "regression")
QUICK = Training(epochs=3, learning_rate=3e-3, batch_size=8)


@pytest.fixture
def tasks():
    return {kind: tiny_task(kind, examples=24) for kind in KINDS}


def models_for(tasks, family="bert"):
    return {name: tiny_taskmodel(family, task.spec, seed=number) for number, (name, task) in enumerate(tasks.items())}


def shared(model):
    head = head_parameters(model.model)
    return {name: p for name, p in model.model.named_parameters() if name not in head}


def test_a_batch_is_of_one_task_and_all_are_seen_once():
    parts = [LengthGroupedBatches(list(range(3, 3 + rows)), 4, seed=1) for rows in (30, 7, 12)]
    mixed = MixedBatches(parts, seed=1)
    batches = list(mixed)
    assert len(batches) == len(mixed) == 8 + 2 + 3
    for number, rows in enumerate((30, 7, 12)):
        assert sorted(i for owner, batch in batches if owner == number for i in batch) == list(range(rows))
    owners = [owner for owner, _ in batches]
    assert owners != sorted(owners)
    mixed.set_epoch(1)
    assert [owner for owner, _ in mixed] != owners
    assert [batch for _, batch in MixedBatches(parts[:1], seed=9)] == list(parts[0]), "one task keeps its order"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_encoder_is_one_and_the_heads_are_apart(family, tasks):
    models = models_for(tasks, family)
    alone = {name: sum(p.numel() for p in model.model.parameters()) for name, model in models.items()}
    share_encoders(models)
    first, *others = models.values()
    own = shared(first)
    for other in others:
        found = shared(other)
        assert found.keys() == own.keys()
        assert all(found[name] is own[name] for name in own)
        heads = [set(map(id, head_parameters(model.model).values())) for model in (first, other)]
        assert heads[0].isdisjoint(heads[1])
    together = sum(t.numel() for t in weights(*(m.model for m in models.values())).values() if t.requires_grad)
    assert together < sum(alone.values()) - len(others) * sum(p.numel() for p in own.values()) + 1


@pytest.mark.parametrize(
    ("family", "kind"), [("bert", "masked-lm"), ("gpt2", "causal-lm"), ("bart", "seq2seq"), ("t5", "seq2seq")]
)
def test_words_are_predicted_by_the_table_of_the_shared_encoder(family, kind, tmp_path):
    other = "seq2seq" if kind == "seq2seq" else "classification"
    tasks = {"first": tiny_task(other, examples=8), "words": tiny_task(kind, examples=8)}
    models = models_for(tasks, family)
    train_together(models, tasks, training=QUICK.model_copy(update={"max_steps": 2}))
    first, words = (model.model for model in models.values())
    assert words.get_output_embeddings().weight is first.get_input_embeddings().weight
    save_taskmodel(models["words"], tmp_path)
    kept = load_taskmodel(tmp_path).model
    assert kept.get_output_embeddings().weight is kept.get_input_embeddings().weight


def test_all_tasks_are_learned_and_saved_as_stock_models(tasks, tmp_path):
    models = models_for(tasks)
    history = train_together(models, tasks, training=QUICK, seed=5)
    assert history[-1]["step"] == 3 * 9, "three epochs of three batches for each of three tasks"
    assert history[-1]["loss"] < history[0]["loss"]
    assert set(history[0]["terms"]) == {f"{kind}.task" for kind in KINDS}
    mean = sum(history[0]["terms"].values()) / len(KINDS)
    assert history[0]["loss"] == pytest.approx(mean), "all tasks have as many batches"
    scores = history[-1]["scores"]
    named = [scores[f"{name}.{task.spec.metric}"] for name, task in tasks.items()]
    assert history[-1]["score"] == pytest.approx(sum(named) / 3)
    states = []
    for name, model in models.items():
        (tmp_path / name).mkdir()
        save_taskmodel(model, tmp_path / name)
        loaded = load_taskmodel(tmp_path / name)
        assert weights_digest(loaded.model) == weights_digest(model.model)
        states.append(shared(loaded))
    for other in states[1:]:
        assert all(torch.equal(states[0][key], other[key]) for key in states[0])


def test_it_is_deterministic_and_not_the_training_of_one_task(tasks):
    digests = []
    for _ in range(2):
        models = models_for(tasks)
        train_together(models, tasks, training=QUICK, seed=5)
        digests.append([weights_digest(model.model) for model in models.values()])
    assert digests[0] == digests[1]
    alone = models_for(tasks)["classification"]
    task = tasks["classification"]
    train(alone, task.train, training=QUICK, seed=5, validation=task.validation)
    assert weights_digest(alone.model) != digests[0][0]


def test_one_task_together_is_the_plain_training(tasks):
    task = tasks["classification"]
    one, other = (models_for(tasks)["classification"] for _ in range(2))
    train_together({"a": one}, {"a": task}, training=QUICK, seed=5)
    train(other, task.train, training=QUICK, seed=5, validation=task.validation)
    assert weights_digest(one.model) == weights_digest(other.model)


def test_each_task_has_its_own_teacher_or_its_labels(tasks, tmp_path):
    models = models_for(tasks)
    source = {name: ModelTeacher(tiny_taskmodel("bert", tasks[name].spec, seed=9), cache=tmp_path) for name in KINDS}
    several = EnsembleTeacher((source["tagging"], source["tagging"]))
    objectives = {
        "classification": LogitDistillation(alpha=1.0).make_objective(Inputs(teacher=source["classification"])),
        "tagging": EnsembleDistillation().make_objective(Inputs(teacher=several)),
    }
    teachers = {"classification": source["classification"], "tagging": several}
    history = train_together(models, tasks, objectives, QUICK, seed=5, teachers=teachers)
    assert set(history[0]["terms"]) == {"classification.soft", "tagging.soft", "tagging.task", "regression.task"}
    assert 0 <= history[0]["agreement"] <= 1


class StopsAt(Objective):
    """The labels' loss, until one update kills the training."""

    def __init__(self, update):
        self.update = update

    def bind(self, student, rows):
        del rows

        class Loss(BoundTaskLoss):
            def __call__(loss, outputs, batch):  # noqa: N805
                self.update -= 1
                if self.update < 0:
                    raise KeyboardInterrupt
                return super().__call__(outputs, batch)

        return Loss(student.task)


def test_a_stopped_training_goes_on_to_the_same_weights(tasks, tmp_path):
    training = QUICK.model_copy(update={"checkpoint_seconds": 0.0})
    whole, stopped, again = (models_for(tasks) for _ in range(3))
    train_together(whole, tasks, training=training, seed=5)
    with pytest.raises(KeyboardInterrupt):
        train_together(stopped, tasks, {"tagging": StopsAt(5)}, training, seed=5, folder=tmp_path)
    train_together(again, tasks, training=training, seed=5, folder=tmp_path)
    for name in tasks:
        assert weights_digest(again[name].model) == weights_digest(whole[name].model)


def test_what_does_not_fit_together_is_refused(tasks):
    models = models_for(tasks)
    with pytest.raises(UserError, match=r"give one model for each task, under the same name"):
        train_together({"other": models["tagging"]}, tasks)
    with pytest.raises(UserError, match=r"objectives or teachers for \['x'\]"):
        train_together(models, tasks, {"x": LogitDistillation()})
    models["tagging"] = tiny_taskmodel("bert", tasks["tagging"].spec, num_hidden_layers=2)
    with pytest.raises(UserError, match="these two differ"):
        train_together(models, tasks)
    assert base_encoder(models["tagging"].model) is not base_encoder(models["classification"].model)
