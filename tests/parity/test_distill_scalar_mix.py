"""The scalar mix of a teacher as what a student learns, against its formula in slow loops."""

import math

import pytest
import torch

from compress.architectures.states_head import ScalarMix
from compress.distill.bilstm import BiLstmDistillation
from compress.distill.scalar_mix import ScalarMixDistillation, mix_of
from compress.engine.steps import run
from compress.objective import ObjectiveBlock
from compress.recipe import Recipe
from compress.recipe.head_block import HeadBlock
from compress.technique import Inputs
from eval.errors import UserError
from eval.task import Examples
from teachers.signals.ensemble_teacher import EnsembleTeacher
from teachers.signals.hooks import observe
from teachers.signals.model_teacher import ModelTeacher
from teachers.training.scoring import rows_of
from tests.tiny import tiny_task, tiny_taskmodel

SCALARS, GAMMA = (0.0, math.log(3.0), -1.0, 0.5), 1.7


def with_head(task, layer_norm=False):
    """Return a network with a scalar-mix head that was trained, as far as its weights tell."""
    head = HeadBlock.model_validate({"scalar_mix": {"layer_norm": layer_norm}})
    model = head.on(tiny_taskmodel("bert", task.spec, seed=1), task.spec, seed=3)
    with torch.no_grad():
        model.model.mix.scalars.copy_(torch.tensor(SCALARS))
        model.model.mix.gamma.fill_(GAMMA)
    return model


def bound(technique, student, task, teacher, cache, **budget):
    """Return the loss, and a batch of it whose texts differ in length."""
    rows = rows_of(student, Examples([shorter(*numbered) for numbered in enumerate(task.train[:8])], "train"), 1)
    batch = rows.batch([0, 1, 2, 3, 5])
    assert (batch.mask == 0).any()
    return technique.bind(student, rows, ModelTeacher(teacher, cache=cache, **budget)), batch


def shorter(number, example):
    """Return an example with the first words alone, more of them from example to example."""
    if "tokens" in example:
        return {**example, **{name: example[name][: 2 + number] for name in ("tokens", "tags")}}
    return {**example, "text": " ".join(example["text"].split()[: 2 + number])}


def states_of(model, batch):
    """Return the hidden states of a network, ``[places][rows][tokens][channels]``, as plain numbers."""
    with torch.no_grad():
        found = model.model.eval()(**batch.inputs, output_hidden_states=True).hidden_states
    return [states.tolist() for states in found]


def normed(state):
    mean = sum(state) / len(state)
    spread = math.sqrt(sum((value - mean) ** 2 for value in state) / len(state) + 1e-5)
    return [(value - mean) / spread for value in state]


def slow_mix(student, teacher, mask, scalars, gamma, layer_norm=False, projection=None):
    """Return the mean over real tokens and channels of (W h_S - gamma · Σ softmax(s)_j h_j)², number by number."""
    whole = sum(math.exp(scalar) for scalar in scalars)
    squares = []
    for row, real in enumerate(mask.tolist()):
        for place in (place for place, one in enumerate(real) if one):
            layers = [states[row][place] for states in teacher]
            if layer_norm:
                layers = [normed(state) for state in layers]
            own = student[row][place]
            if projection is not None:
                own = [sum(weight * value for weight, value in zip(line, own, strict=True)) for line in projection]
            for channel, value in enumerate(own):
                target = sum(math.exp(s) / whole * state[channel] for s, state in zip(scalars, layers, strict=True))
                squares.append((value - gamma * target) ** 2)
    return sum(squares) / len(squares)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("width", [32, 16])
@pytest.mark.parametrize("kind", ["classification", "tagging"])
def test_the_mix_of_a_trained_head_in_slow_loops(kind, width, layer_norm, tmp_path):
    task = tiny_task(kind)
    student = tiny_taskmodel("bert", task.spec, num_hidden_layers=2, hidden_size=width)
    teacher = with_head(task, layer_norm)
    loss, batch = bound(ScalarMixDistillation(beta=3.0), student, task, teacher, tmp_path)
    found = loss(observe(student.model.eval(), batch.inputs, loss.reads), batch)
    weights = [*loss.modules.parameters()]
    assert [tuple(weight.shape) for weight in weights] == ([] if width == 32 else [(32, 16)])
    expected = slow_mix(
        states_of(student, batch)[-1],
        states_of(teacher, batch),
        batch.mask,
        SCALARS,
        GAMMA,
        layer_norm,
        weights[0].tolist() if weights else None,
    )
    assert found["mix"].item() == pytest.approx(3 * expected, rel=1e-4)
    assert set(found) == {"soft", "task", "mix"}


def test_a_teacher_without_such_a_head_is_mixed_uniformly(tmp_path):
    task = tiny_task("classification")
    student, teacher = (tiny_taskmodel("bert", task.spec, seed=seed) for seed in (0, 1))
    loss, batch = bound(ScalarMixDistillation(), student, task, teacher, tmp_path)
    found = loss(observe(student.model.eval(), batch.inputs, loss.reads), batch)
    every = states_of(teacher, batch)
    expected = slow_mix(states_of(student, batch)[-1], every, batch.mask, [0.0] * len(every), 1.0)
    assert len(every) == teacher.model.config.num_hidden_layers + 1
    assert found["mix"].item() == pytest.approx(expected, rel=1e-4)


def test_the_gradient_reaches_student_and_projection_and_no_padding(tmp_path):
    task = tiny_task("tagging")
    student = tiny_taskmodel("bert", task.spec, hidden_size=16)
    teacher = with_head(task)
    loss, batch = bound(ScalarMixDistillation(alpha=1.0), student, task, teacher, tmp_path)
    seen = observe(student.model.eval(), batch.inputs, loss.reads)
    (last,) = seen.hidden_states.values()
    last.retain_grad()
    loss(seen, batch)["mix"].backward()
    real = batch.mask.bool()
    assert not last.grad[~real].any()
    assert last.grad[real].any(dim=-1).all()
    assert student.model.get_input_embeddings().weight.grad.any()
    assert all(weight.grad.any() for weight in loss.modules.parameters())
    assert all(weight.grad is None for weight in teacher.model.parameters())
    with torch.no_grad():
        seen.hidden_states[loss.last][~real] = 1e6
        changed = loss(seen, batch)["mix"].item()
    assert changed == pytest.approx(loss(observe(student.model, batch.inputs, loss.reads), batch)["mix"].item())


def test_a_student_that_has_the_mix_has_nothing_to_learn(tmp_path):
    """A mix of the last layer alone is the last hidden state, which the encoder below the head has without it."""
    task = tiny_task("tagging")
    student, teacher = tiny_taskmodel("bert", task.spec, seed=1), with_head(task)
    with torch.no_grad():
        teacher.model.mix.scalars.copy_(torch.tensor([0.0, 0.0, 0.0, 200.0]))
        teacher.model.mix.gamma.fill_(1.0)
    loss, batch = bound(ScalarMixDistillation(), student, task, teacher, tmp_path)
    found = loss(observe(student.model.eval(), batch.inputs, loss.reads), batch)
    assert found["mix"].item() == pytest.approx(0.0, abs=1e-10)


def test_cached_and_live_states_give_the_same_as_a_step_and_as_a_term(tmp_path):
    task = tiny_task("tagging")
    student, teacher = tiny_taskmodel("bert", task.spec, num_hidden_layers=2), with_head(task)
    cached, batch = bound(ScalarMixDistillation(alpha=0.3), student, task, teacher, tmp_path)
    assert [*tmp_path.glob("*/hidden_states.npy")], "kept on disk"
    seen = observe(student.model.eval(), batch.inputs, cached.reads)
    found = {name: value.item() for name, value in cached(seen, batch).items()}
    live, _ = bound(ScalarMixDistillation(alpha=0.3), student, task, teacher, None, budget_bytes=0)
    assert {name: value.item() for name, value in live(seen, batch).items()} == pytest.approx(found, rel=1e-5)
    block = ObjectiveBlock.model_validate({"distill.scalar_mix": {"alpha": 0.3, "weight": 2.0}, "distill.labels": {}})
    inputs = Inputs(train=task.train, teacher=ModelTeacher(teacher, cache=tmp_path))
    rows = rows_of(student, task.train, 1)
    batch = rows.batch([0, 1, 2])
    seen = observe(student.model, batch.inputs, cached.reads)
    alone = ScalarMixDistillation(alpha=0.3).bind(student, rows, inputs.teacher)(seen, batch)
    term = block.make(inputs).bind(student, rows)
    terms = {name: value.item() for name, value in term(seen, batch).items()}
    for name, value in alone.items():
        assert terms[f"distill.scalar_mix.{name}"] == pytest.approx(2 * value.item(), rel=1e-5)
    assert "distill.labels.task" in terms


def test_training_draws_the_student_to_the_mix_and_drops_the_projection(tmp_path):
    task = tiny_task("classification")
    student, teacher = tiny_taskmodel("bert", task.spec, hidden_size=16), with_head(task)
    source = ModelTeacher(teacher, cache=tmp_path)
    step = ScalarMixDistillation(beta=10.0, epochs=20, batch_size=8, learning_rate=1e-2, keep="last")
    result = run(Recipe(steps=(step,)), student, Inputs(train=task.train, teacher=source))
    assert result.model.state_dict().keys() == student.model.state_dict().keys()
    history = result.lineage[-1].facts["history"]
    assert set(history[0]["terms"]) == {"soft", "task", "mix"}
    assert history[-1]["terms"]["mix"] < history[0]["terms"]["mix"] / 2
    assert isinstance(mix_of(source), ScalarMix)
    assert mix_of(source).scalars.tolist() == pytest.approx(SCALARS), "the teacher's mix stays as it was"


def test_what_cannot_be_is_refused_by_name():
    task = tiny_task("classification")
    student = tiny_taskmodel("bert", task.spec)
    members = tuple(ModelTeacher(tiny_taskmodel("bert", task.spec, seed=seed)) for seed in (1, 2))
    step = Recipe(steps=(ScalarMixDistillation(max_steps=1),))
    with pytest.raises(UserError, match=r"step 1, distill.scalar_mix: an ensemble of 2 teachers has no layers"):
        run(step, student, Inputs(train=task.train, teacher=EnsembleTeacher(members)))
    lstm = BiLstmDistillation(hidden_size=8, dense_size=8).network_for(student)
    concat = HeadBlock.model_validate({"concat_pooling": {}}).on(student, task.spec, seed=3)
    for other in (lstm, concat):
        with pytest.raises(UserError, match=r"step 1, distill.scalar_mix: teacher .* has no layers .* distill.logits"):
            run(step, student, Inputs(train=task.train, teacher=ModelTeacher(other)))
    vectors = tiny_task("embedding")
    embedder = tiny_taskmodel("bert", vectors.spec)
    with pytest.raises(UserError, match=r"step 1, distill.scalar_mix: an embedding has vectors.* distill.embedding"):
        run(step, embedder, Inputs(train=vectors.train, teacher=ModelTeacher(embedder)))
