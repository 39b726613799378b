"""MiniLM and MiniLMv2 against the numbers of their formulas, and the assistant between teacher and student."""

import math

import pytest
import torch

from compress.distill.combined import CombinedDistillation
from compress.distill.components.attention import relation_kl, relation_scores
from compress.distill.minilm import MiniLMDistillation, assistant_for, head_problems
from compress.engine.steps import run
from compress.recipe import Recipe, parse_recipe
from compress.technique import Inputs
from eval.errors import UserError
from teachers.anatomy.encoder import layer_count, shape_of
from teachers.data.encoded_dataset import Batch
from teachers.signals.hooks import observe
from teachers.signals.model_teacher import ModelTeacher
from teachers.training.scoring import rows_of
from tests.tiny import tiny_task, tiny_taskmodel

FULL = torch.ones(1, 2, dtype=torch.int64)


def live(model):
    return ModelTeacher(model, budget_bytes=0)


def bound(config, student, teacher, rows=(0, 3, 5)):
    """Return the loss, the student's signals and a batch of unequal lengths."""
    data = rows_of(student, tiny_task("classification").train, 1)
    loss = config.bind(student, data, live(teacher))
    batch = data.batch(list(rows))
    with torch.no_grad():
        return loss, observe(student.model, batch.inputs, loss.reads), batch


def value_relation(values):
    return relation_scores(values[None], values[None], 1)


def test_value_relations_by_hand():
    teacher = value_relation(torch.eye(2))
    student = value_relation(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    rows = torch.tensor([[0.669762, 0.330238], [0.330238, 0.669762]])
    assert torch.allclose(teacher.softmax(-1)[0, 0], rows, atol=1e-6)
    assert torch.allclose(student.softmax(-1), torch.full((1, 1, 2, 2), 0.5))
    assert relation_kl(student, teacher, FULL).item() == pytest.approx(0.058800, abs=1e-6)
    assert relation_kl(teacher, student, FULL).item() == pytest.approx(0.061240, abs=1e-6)


def test_values_may_be_turned():
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(5, 8, generator=generator)
    turn = torch.linalg.qr(torch.randn(8, 8, generator=generator)).Q
    assert torch.allclose(value_relation(values @ turn), value_relation(values), atol=1e-5)


@pytest.mark.parametrize("relations", ["v1", "v2"])
def test_the_loss_is_the_slow_loop(relations):
    """Sentence after sentence without padding, from each layer's own weights and transformers' attention."""
    task = tiny_task("classification")
    teacher = tiny_taskmodel("bert", task.spec, seed=1, num_hidden_layers=4)
    student = tiny_taskmodel("bert", task.spec, num_hidden_layers=2, hidden_size=16)
    config = MiniLMDistillation(relations=relations, relation_heads=8, teacher_layer=2)
    loss, signals, batch = bound(config, student, teacher)
    lengths = batch.mask.sum(dim=1).tolist()
    assert len(set(lengths)) > 1
    heads = 4 if relations == "v1" else 8
    expected = dict.fromkeys(loss.relations, 0.0)
    for row, length in enumerate(lengths):
        alone = {name: tensor[row : row + 1, :length] for name, tensor in batch.inputs.items()}
        first, second = maps(student, 1, alone, heads), maps(teacher, 2, alone, heads)
        for name in expected:
            p, q = second[name], first[name]
            total = 0.0
            for head in range(heads):
                for query in range(length):
                    for key in range(length):
                        a, b = p[head, query, key].item(), q[head, query, key].item()
                        total += a * math.log(a / b)
            expected[name] += total / heads / length / len(lengths)
    found = {name: value.item() for name, value in loss(signals, batch).items()}
    assert found == pytest.approx(expected, rel=1e-3)


def maps(model, layer, inputs, heads):
    """Return the relations of one layer for one sentence as probabilities, ``[heads, L, L]``."""
    model.model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model.model(**inputs, output_hidden_states=True, output_attentions=True)
    model.model.set_attn_implementation("sdpa")
    attention = model.model.bert.encoder.layer[layer].attention.self
    found = {"attention": out.attentions[layer][0]}
    for name, module in {"queries": attention.query, "keys": attention.key, "values": attention.value}.items():
        x = module(out.hidden_states[layer])[0].detach()
        width = x.shape[-1] // heads
        parts = [x[:, i * width : (i + 1) * width] for i in range(heads)]
        found[name] = torch.stack([(part @ part.T / math.sqrt(width)).softmax(-1) for part in parts])
    return found


def test_as_many_relation_heads_as_heads_give_the_first_version():
    task = tiny_task("classification")
    student, teacher = tiny_taskmodel("bert", task.spec), tiny_taskmodel("bert", task.spec, seed=1)
    loss, signals, batch = bound(MiniLMDistillation(relations="v1"), student, teacher)
    second, others, _ = bound(MiniLMDistillation(relation_heads=4), student, teacher)
    assert torch.equal(loss(signals, batch)["values"], second(others, batch)["values"])


@pytest.mark.parametrize("relations", ["v1", "v2"])
def test_an_equal_student_has_nothing_to_learn(relations):
    model = tiny_taskmodel("bert", tiny_task("classification").spec)
    loss, signals, batch = bound(MiniLMDistillation(relations=relations, relation_heads=16), model, model)
    assert all(value.item() == pytest.approx(0.0, abs=1e-6) for value in loss(signals, batch).values())


@pytest.mark.parametrize("family", ["bert", "modernbert", "albert", "distilbert", "mobilebert", "deberta-v2", "xlnet"])
def test_padding_changes_nothing(family):
    task = tiny_task("classification")
    student, teacher = tiny_taskmodel(family, task.spec), tiny_taskmodel(family, task.spec, seed=1)
    loss, signals, batch = bound(MiniLMDistillation(relation_heads=4), student, teacher)
    wide = {name: torch.nn.functional.pad(tensor, (0, 5)) for name, tensor in batch.inputs.items()}
    wide["input_ids"][:, -5:] = student.tokenizer.pad_token_id
    padded = Batch(wide, batch.targets, batch.rows)
    with torch.no_grad():
        found = loss(observe(student.model, wide, loss.reads), padded)
    expected = loss(signals, batch)
    assert all(found[name].item() == pytest.approx(expected[name].item(), rel=1e-4, abs=1e-7) for name in expected)
    assert all(value.item() > 0 for value in expected.values())


def test_it_reads_the_last_student_layer_and_the_named_teacher_layer():
    task = tiny_task("classification")
    student = tiny_taskmodel("bert", task.spec, num_hidden_layers=2)
    teacher = tiny_taskmodel("bert", task.spec, seed=1, num_hidden_layers=5)
    loss, _, _ = bound(MiniLMDistillation(teacher_layer=3), student, teacher)
    assert (loss.reads.values, loss.reads.queries, loss.reads.hidden_states) == ((1,), (1,), ())
    assert loss.reader.wanted.values == loss.reader.wanted.keys == (3,)
    assert bound(MiniLMDistillation(), student, teacher)[0].reader.wanted.values == (4,)


def test_a_student_of_another_width_learns(tmp_path):
    task = tiny_task("classification")
    teacher = ModelTeacher(tiny_taskmodel("bert", task.spec, seed=1), cache=tmp_path)
    student = tiny_taskmodel("bert", task.spec, num_hidden_layers=1, hidden_size=16, num_attention_heads=2)
    step = MiniLMDistillation(relation_heads=8, epochs=12, learning_rate=1e-2)
    result = run(Recipe(steps=(step,)), student, Inputs(train=task.train, validation=task.validation, teacher=teacher))
    history = result.lineage[-1].facts["history"]
    assert history[-1]["loss"] < 0.5 * history[0]["loss"]
    assert "score" not in history[0]


def test_the_assistant_stands_between(tmp_path, monkeypatch):
    task = tiny_task("classification")
    teacher = live(tiny_taskmodel("bert", task.spec, seed=1, num_hidden_layers=4))
    student = tiny_taskmodel("bert", task.spec, num_hidden_layers=2, hidden_size=16)
    between = assistant_for(student, 4, 13)
    assert (layer_count(between.model), shape_of(between.model.config).hidden_size) == (4, 16)
    seen = []
    original = MiniLMDistillation.bind
    monkeypatch.setattr(
        MiniLMDistillation,
        "bind",
        lambda self, student, rows, teacher: (
            seen.append((layer_count(student.model), teacher.hidden_size, teacher.layers, self.teacher_layer))
            or original(self, student, rows, teacher)
        ),
    )
    step = MiniLMDistillation(relations="v1", assistant=True, teacher_layer=2, epochs=2)
    inputs = Inputs(train=task.train, teacher=teacher, folder=tmp_path)
    outcome = step.apply(student, inputs, torch.Generator().manual_seed(3))
    assert seen == [(4, 32, 4, 2), (2, 16, 4, None)]
    history = outcome.facts["history"]
    assert [entry["stage"] for entry in history] == ["assistant", "assistant", "student", "student"]
    assert {path.name for path in tmp_path.iterdir()} == {"assistant", "student"}
    again = tiny_taskmodel("bert", task.spec, num_hidden_layers=2, hidden_size=16)
    assert step.apply(again, inputs, torch.Generator().manual_seed(3)).model.digest == outcome.model.digest


def test_beside_other_losses_it_is_one_term():
    objective = {"distill.minilm": {"relation_heads": 4, "weight": 2.0}, "distill.logits": {"alpha": 1.0}}
    block = CombinedDistillation(objective=objective).objective
    task = tiny_task("classification")
    student, teacher = tiny_taskmodel("bert", task.spec), tiny_taskmodel("bert", task.spec, seed=1)
    rows = rows_of(student, task.train, 1)
    loss = block.make(Inputs(train=task.train, teacher=live(teacher))).bind(student, rows)
    batch = rows.batch([0, 1])
    found = loss(observe(student.model, batch.inputs, loss.reads), batch)
    assert set(found) == {
        "distill.minilm.queries",
        "distill.minilm.keys",
        "distill.minilm.values",
        "distill.logits.soft",
    }
    alone, signals, other = bound(MiniLMDistillation(relation_heads=4), student, teacher, rows=(0, 1))
    for name, value in alone(signals, other).items():
        assert found[f"distill.minilm.{name}"].item() == pytest.approx(2 * value.item(), rel=1e-4)


def test_the_assistant_cannot_be_a_term():
    text = (
        "task: {kind: classification, data: d}\nteacher: {model: t}\nsteps:\n"
        "  - distill.combined: {objective: {distill.minilm: {assistant: true}}}\n"
    )
    with pytest.raises(UserError, match="assistant: true trains two models in turn, so it cannot be a term"):
        parse_recipe(text)


def test_relation_heads_that_do_not_fit_name_those_that_do():
    assert head_problems(48, 384, 768) == []
    assert head_problems(48, 312, 384) == [
        "relation_heads 48: must divide both widths, the student's 312 and the teacher's 384; "
        "the nearest that does is 24"
    ]
    assert head_problems(5, 312, 384)[0].endswith("the nearest that do are 4 and 6")


def test_what_cannot_be_is_refused_by_name(monkeypatch):
    task = tiny_task("classification")
    bert = tiny_taskmodel("bert", task.spec)
    few = tiny_taskmodel("bert", task.spec, num_attention_heads=2)
    odd, relative = (tiny_taskmodel(family, task.spec) for family in ("modernbert", "xlnet"))

    def problems(model, teacher=bert, **fields):
        return MiniLMDistillation(**{"relation_heads": 4, **fields}).check(model, Inputs(teacher=live(teacher)))

    assert problems(bert) == problems(few) == problems(odd, odd) == problems(bert, relations="v1") == []
    (problem,) = problems(few, relations="v1")
    assert problem == (
        "distill.minilm: v1 needs equal numbers of heads, the student has 2 and the teacher 4; relations: v2 takes any"
    )
    (problem,) = problems(odd, odd, relations="v1")
    assert "the student's (modernbert) and the teacher's are not; relations: v2" in problem
    assert problems(relative, relative) == []
    (problem,) = problems(relative, relative, relations="v1")
    assert "the student's (xlnet) and the teacher's are not; relations: v2" in problem
    with monkeypatch.context() as patch:
        patch.setattr("compress.distill.minilm.layer_parts", lambda model, layer: {})
        (problem,) = problems(bert)
    assert problem.startswith("distill.minilm: bert has no modules that give queries, keys and values")
    (problem,) = problems(bert, relation_heads=48)
    assert "the nearest that does is 32" in problem
    (problem,) = problems(bert, teacher_layer=3)
    assert "teacher_layer 3: the teacher's layers go from 0 to 2" in problem
