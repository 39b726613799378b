"""TinyBERT against the numbers of its formulas, a slow loop over real tokens, and its two stages."""

import math

import pytest
import torch
from pydantic import ValidationError
from torch.utils._python_dispatch import TorchDispatchMode

from compress.distill.combined import CombinedDistillation
from compress.distill.components.attention import attention_mse, relation_scores
from compress.distill.components.layer_map import map_layers
from compress.distill.labels import LabelTraining
from compress.distill.tinybert import TinyBertDistillation, hidden_state_mse, prediction_loss
from compress.engine.steps import run
from compress.recipe import Recipe
from compress.technique import Inputs
from eval.errors import UserError
from eval.task import TaskSpec
from teachers.anatomy.attention_heads import eager_attention
from teachers.signals.hooks import SignalSpec, observe
from teachers.signals.live_reader import LiveReader
from teachers.signals.model_teacher import ModelTeacher
from teachers.taskmodel import TaskModel
from teachers.training.scoring import rows_of
from tests.tiny import tiny_task, tiny_taskmodel

FULL = torch.ones(1, 2, dtype=torch.int64)


def live(model):
    return ModelTeacher(model, budget_bytes=0)


def bound(config, student, teacher, kind="classification", rows=(0, 3, 5)):
    """Return the loss, the student's signals and a batch of unequal lengths."""
    task = tiny_task(kind)
    data = rows_of(student, task.train, 1)
    loss = config.bind(student, data, live(teacher))
    batch = data.batch(list(rows))
    with torch.no_grad():
        return loss, observe(student.model, batch.inputs, loss.reads), batch


def test_attention_by_hand():
    """The sheet: 0.5 over all four entries as in the code, 2/3 over the three that are not masked."""
    student = torch.tensor([[[[1.0, 2.0], [0.0, -1e4]]]])
    teacher = torch.tensor([[[[0.0, 2.0], [1.0, -1e4]]]])
    assert attention_mse(student, teacher, FULL).item() == pytest.approx(0.5)
    masked = student > -100
    assert ((student - teacher)[masked] ** 2).mean().item() == pytest.approx(0.666667, abs=1e-6)


def test_hidden_states_by_hand():
    states = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    projection = TinyBertDistillation().projections(2, 3)[-1]
    with torch.no_grad():
        projection.linear.weight.copy_(torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, -1.0]]).T)
    assert projection(states).tolist() == [[[1, 2, -1], [3, 4, -1]]]
    teacher = torch.tensor([[[1.0, 2.0, 0.0], [2.0, 4.0, 1.0]]])
    assert hidden_state_mse(projection(states), teacher, FULL).item() == pytest.approx(1.0)
    half = torch.tensor([[1, 0]])
    assert hidden_state_mse(projection(states), teacher, half).item() == pytest.approx(1 / 3)
    assert hidden_state_mse(projection(states), teacher, half, "code").item() == pytest.approx(1.0)


def test_predictions_by_hand():
    teacher, student = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    assert prediction_loss(student, teacher).item() == pytest.approx(0.562806, abs=1e-6)
    assert prediction_loss(student, teacher, reduction="code").item() == pytest.approx(0.281403, abs=1e-6)
    p = [1 / (1 + math.exp(-2)), 1 / (1 + math.exp(1))]
    entropy = -sum(x * math.log(x) + (1 - x) * math.log(1 - x) for x in p) / 2
    assert prediction_loss(teacher, teacher).item() == pytest.approx(entropy, abs=1e-6)


def test_layer_map_and_projection_of_the_paper():
    assert [layer + 1 for layer in map_layers("uniform", 4, 12)] == [3, 6, 9, 12]
    shared = TinyBertDistillation(projection="shared").projections(312, 768)
    assert sum(p.numel() for p in shared.parameters()) == 240_384
    separate = TinyBertDistillation().projections(312, 768)
    assert [tuple(p.shape) for p in separate.parameters()] == [(768, 312), (768, 312)]
    assert not list(TinyBertDistillation().projections(768, 768).parameters())
    assert len(list(TinyBertDistillation(projection="shared").projections(768, 768).parameters())) == 2


def test_the_intermediate_loss_is_the_slow_loop():
    """Every real token and every pair of them, one after the other, with what transformers itself returns."""
    task = tiny_task("classification")
    teacher = tiny_taskmodel("bert", task.spec, seed=1, num_hidden_layers=4)
    student = tiny_taskmodel("bert", task.spec, num_hidden_layers=2, hidden_size=16)
    loss, signals, batch = bound(TinyBertDistillation(stages=["intermediate"]), student, teacher)
    assert len(set(batch.mask.sum(dim=1).tolist())) > 1
    found = {name: value.item() for name, value in loss(signals, batch).items()}

    with torch.no_grad():
        own = student.model(**batch.inputs, output_hidden_states=True).hidden_states
        other = teacher.model(**batch.inputs, output_hidden_states=True).hidden_states
        maps = [module.linear.weight for module in loss.projections]
        real = [(row, place) for row in range(3) for place in range(int(batch.mask[row].sum()))]

        def distance(i, j, weight):
            return sum(((weight @ own[i][at] - other[j][at]) ** 2).sum().item() for at in real) / len(real) / 32

        assert found["embeddings"] == pytest.approx(distance(0, 0, maps[0]), rel=1e-4)
        assert found["hidden"] == pytest.approx(distance(1, 2, maps[1]) + distance(2, 4, maps[1]), rel=1e-4)
        attention = 0.0
        for i, j in ((0, 1), (1, 3)):
            total, pairs = 0.0, 0
            for row in range(3):
                length = int(batch.mask[row].sum())
                first, second = scores(student, i, own[i][row, :length]), scores(teacher, j, other[j][row, :length])
                total += ((first - second) ** 2).sum().item() / 4
                pairs += length * length
            attention += total / pairs
    assert found["attention"] == pytest.approx(attention, rel=1e-4)


def scores(model, layer, states):
    """Return the scaled scores of one sentence, ``[4, L, L]``, from a layer's own weights."""
    attention = model.model.bert.encoder.layer[layer].attention.self
    queries, keys = (
        module(states).reshape(len(states), 4, -1).transpose(0, 1) for module in (attention.query, attention.key)
    )
    return queries @ keys.transpose(1, 2) / math.sqrt(queries.shape[-1])


@pytest.mark.parametrize("family", ["bart", "marian"])
def test_how_targets_look_at_sources(family):
    """Every real token of the targets with every one of the sources; the softmax of the scores is transformers'."""
    task = tiny_task("seq2seq")
    teacher = tiny_taskmodel(family, task.spec, seed=1)
    student = tiny_taskmodel(family, task.spec, decoder_layers=1, hidden_size=16)
    with torch.no_grad():
        for model in (student, teacher):
            for name, parameter in model.model.named_parameters():
                if "encoder_attn" in name:
                    parameter.mul_(5)
    method = TinyBertDistillation(stages=["intermediate"], attention=0.0)
    loss, signals, batch = bound(method, student, teacher, "seq2seq", rows=range(8))
    real, written = batch.mask.bool(), batch.targets["labels"] >= 0
    assert not written.all()
    assert not real.all()
    seen = []
    for model, layer, own in ((student, 0, signals), (teacher, 1, None)):
        with torch.no_grad(), eager_attention(model.model):
            own = own or observe(model.model, batch.inputs, SignalSpec(cross_queries=(layer,), cross_keys=(layer,)))
            shares = model.model(**batch.inputs, output_attentions=True).cross_attentions[layer]
        queries, keys = (x[layer].unflatten(-1, (4, -1)) for x in (own.cross_queries, own.cross_keys))
        scores = torch.einsum("bihd,bjhd->bhij", queries, keys) / queries.shape[-1] ** 0.5
        assert torch.allclose(scores.masked_fill(~real[:, None, None], -1e9).softmax(-1), shares, atol=1e-5)
        seen.append(scores)
    squares = [
        (seen[0][row, head, i, j] - seen[1][row, head, i, j]).item() ** 2
        for row in range(8)
        for head in range(4)
        for i in range(int(written[row].sum()))
        for j in range(int(real[row].sum()))
    ]
    found = loss(signals, batch)
    assert set(found) == {"embeddings", "hidden", "cross_attention"}
    assert found["cross_attention"].item() == pytest.approx(sum(squares) / len(squares), rel=1e-4)
    assert loss.counts(batch)["cross_attention"].item() == len(squares) / 4
    assert loss.cross_map == (1,)
    half = bound(TinyBertDistillation(stages=["intermediate"], cross_attention=0.5), student, teacher, "seq2seq")
    assert set(half[0](half[1], half[2])) == {"embeddings", "hidden", "attention", "cross_attention"}


def test_which_decoders_have_no_scores_to_compare():
    task = tiny_task("seq2seq")
    inputs = {family: ModelTeacher(tiny_taskmodel(family, task.spec)) for family in ("bart", "t5")}
    bart, t5 = (tiny_taskmodel(family, task.spec) for family in inputs)
    asked = {family: Inputs(train=task.train, teacher=teacher) for family, teacher in inputs.items()}
    (said,) = TinyBertDistillation().check(t5, asked["t5"])
    assert "set attention: 0 and cross_attention: 0 to learn" in said
    assert TinyBertDistillation(attention=0, cross_attention=0).check(t5, asked["t5"]) == []
    (said,) = TinyBertDistillation(decoder_map=(0, 7)).check(bart, asked["bart"])
    assert said.endswith("decoder_map [0, 7]: needs 2 numbers, one for each student layer, each from 0 to 1")
    with pytest.raises(ValidationError, match="decoder_map: auto compares the states of an encoder"):
        TinyBertDistillation(decoder_map="auto")
    assert set(TinyBertDistillation().model_dump()) & {"cross_attention", "decoder_map"} == set()


def test_a_student_that_is_its_teacher_has_nothing_to_learn():
    task = tiny_task("classification")
    model = tiny_taskmodel("bert", task.spec)
    loss, signals, batch = bound(TinyBertDistillation(stages=["intermediate"]), model, model)
    assert all(value.item() == pytest.approx(0, abs=1e-9) for value in loss(signals, batch).values())
    gone = TinyBertDistillation(stages=["intermediate"], attention=0, hidden=2)
    assert set(bound(gone, model, model)[0](signals, batch)) == {"embeddings", "hidden"}


def test_scores_of_mpnet_hold_its_bias(tmp_path):
    task = tiny_task("classification")
    teacher, student = tiny_taskmodel("mpnet", task.spec), tiny_taskmodel("mpnet", task.spec)
    method = TinyBertDistillation(stages=["intermediate"], embeddings=0, hidden=0)
    rows = rows_of(student, task.train[:6], 0)
    batch = rows.batch([0, 1, 2])
    table = student.model.mpnet.encoder.relative_attention_bias.weight
    with torch.no_grad():
        table *= 3
    real = batch.mask.bool()
    expected = 0.0
    for layer in range(3):
        scores = []
        for model in (student, teacher):
            with torch.no_grad():
                seen = observe(model.model, batch.inputs, SignalSpec(queries=(layer,), keys=(layer,)))
                queries, keys = (x[layer].unflatten(-1, (4, 8)) for x in (seen.queries, seen.keys))
                bias = model.model.mpnet.encoder.compute_position_bias(seen.queries[layer])
            scores.append(torch.einsum("bihd,bjhd->bhij", queries, keys) / 8**0.5 + bias)
        squares = (scores[0] - scores[1]).square().movedim(1, -1)
        expected += squares[real[:, :, None] & real[:, None, :]].mean().item()
    for source in (live(teacher), ModelTeacher(teacher, cache=tmp_path)):
        loss = method.bind(student, rows, source)
        found = loss(observe(student.model, batch.inputs, loss.reads), batch)["attention"]
        assert found.item() == pytest.approx(expected, rel=1e-4)
        assert torch.autograd.grad(found, table)[0].abs().sum() > 0
    plain = tiny_taskmodel("bert", task.spec)
    assert TinyBertDistillation().check(plain, Inputs(teacher=live(teacher))) == []


def test_the_authors_reduction_counts_padding():
    task = tiny_task("classification")
    student, teacher = tiny_taskmodel("bert", task.spec), tiny_taskmodel("bert", task.spec, seed=1)
    config = TinyBertDistillation(reduction="code", stages=["intermediate"])
    loss, signals, batch = bound(config, student, teacher)
    found, other = loss(signals, batch), loss.reader(batch)
    everywhere = sum(((signals.hidden_states[i] - other.hidden_states[i]) ** 2).mean() for i in (1, 2, 3))
    assert found["hidden"].item() == pytest.approx(everywhere.item(), rel=1e-5)
    total = 0.0
    for layer in range(3):
        own, given = (relation_scores(x.queries[layer], x.keys[layer], 4) for x in (signals, other))
        mask = (1.0 - batch.mask[:, None, None, :]) * -1e4
        own, given = ((x + mask).where(x + mask > -100, 0.0) for x in (own, given))
        total += ((own - given) ** 2).mean().item()
    assert found["attention"].item() == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("kind", ["classification", "regression", "tagging", "qa"])
def test_predictions_follow_the_teacher_and_regression_the_label(kind):
    task = tiny_task(kind)
    student, teacher = tiny_taskmodel("bert", task.spec), tiny_taskmodel("bert", task.spec, seed=1)
    loss, signals, batch = bound(TinyBertDistillation(stages=["prediction"]), student, teacher, kind)
    assert not loss.reads
    (value,) = loss(signals, batch).values()
    own, other = signals.logits, loss.reader(batch).logits
    if kind == "regression":
        expected = ((own[:, 0] - batch.targets["labels"]) ** 2).mean()
    elif kind == "classification":
        expected = -(other.softmax(-1) * own.log_softmax(-1)).sum(-1).mean()
    elif kind == "tagging":
        counted = batch.targets["labels"] >= 0
        expected = -(other.softmax(-1) * own.log_softmax(-1)).sum(-1)[counted].mean()
    else:
        total = 0.0
        for row, length in enumerate(batch.mask.sum(dim=1).tolist()):
            first, second = own[row, :length], other[row, :length]
            total += -(second.softmax(0) * first.log_softmax(0)).sum() / 2
        expected = total / len(batch.mask)
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)


def test_unequal_heads_are_averaged():
    task = tiny_task("classification")
    teacher = tiny_taskmodel("bert", task.spec, seed=1)
    student = tiny_taskmodel("bert", task.spec, num_attention_heads=2)
    loss, signals, batch = bound(TinyBertDistillation(stages=["intermediate"]), student, teacher)
    other, total = loss.reader(batch), 0.0
    for layer in range(3):
        own = relation_scores(signals.queries[layer], signals.keys[layer], 2)
        four = relation_scores(other.queries[layer], other.keys[layer], 4)
        total += attention_mse(own, (four[:, ::2] + four[:, 1::2]) / 2, batch.mask).item()
    assert loss(signals, batch)["attention"].item() == pytest.approx(total, rel=1e-5)


class Maps(TorchDispatchMode):
    """Counts results that hold a number for every head and pair of tokens."""

    def __init__(self, heads, length, rows):
        super().__init__()
        self.numbers, self.length, self.made = heads * length * length * rows, length, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.bmm.default and out.shape[-2:] == (self.length, self.length):
            self.made += out.numel() // self.numbers
        elif isinstance(out, torch.Tensor) and out.shape[-2:] == (self.length, self.length):
            assert out.numel() <= self.numbers
        return out


def test_no_attention_map_is_made_of_layers_that_no_loss_reads():
    """A teacher of 6 layers of which 2 are compared: 2 maps of it and 2 of the student, nothing else of that size."""
    task = tiny_task("classification")
    teacher = tiny_taskmodel("bert", task.spec, seed=1, num_hidden_layers=6)
    student = tiny_taskmodel("bert", task.spec, num_hidden_layers=2)
    loss, signals, batch = bound(TinyBertDistillation(stages=["intermediate"]), student, teacher)
    assert isinstance(loss.reader, LiveReader)
    assert loss.reader.wanted.queries == loss.reader.wanted.keys == (2, 5)
    rows, length = batch.mask.shape
    assert length not in (8, 32, 64)
    with Maps(4, length, rows) as seen:
        assert set(loss.reader(batch).queries) == {2, 5}
    assert seen.made == 0
    with Maps(4, length, rows) as seen:
        loss(signals, batch)
    assert seen.made == 4
    teacher.model.set_attn_implementation("eager")
    with Maps(4, length, rows) as seen:
        loss.reader(batch)
    assert seen.made == 6, "the counter sees maps where they are made"


def test_two_stages_train_the_projection_then_the_head(tmp_path):
    task = tiny_task("classification")
    teacher = tiny_taskmodel("bert", task.spec, seed=1)
    student = tiny_taskmodel("bert", task.spec, num_hidden_layers=2, hidden_size=16)
    step = TinyBertDistillation(epochs=2, intermediate={"epochs": 15, "learning_rate": 3e-3})
    assert (step.intermediate.schedule, step.intermediate.keep, step.training.learning_rate) == (
        "constant",
        "last",
        3e-5,
    )
    inputs = Inputs(train=task.train, validation=task.validation, teacher=ModelTeacher(teacher, cache=tmp_path))
    result = run(Recipe(steps=(step,)), student, inputs)
    history = result.lineage[-1].facts["history"]
    assert [entry["stage"] for entry in history] == ["intermediate"] * 15 + ["prediction"] * 2
    steps = [entry["step"] for entry in history]
    assert steps == sorted(set(steps))
    first, last = history[0]["terms"], history[14]["terms"]
    assert set(first) == {"embeddings", "hidden", "attention"}
    assert all(last[name] < 0.7 * first[name] for name in first)
    assert set(history[-1]["terms"]) == {"prediction"}
    assert "score" in history[-1]
    assert "score" not in history[0]


def test_stages_resume_where_they_were(tmp_path):
    task = tiny_task("classification")
    teacher = ModelTeacher(tiny_taskmodel("bert", task.spec, seed=1), cache=tmp_path / "signals")
    step = TinyBertDistillation(epochs=1, intermediate={"epochs": 1})
    whole, stopped = tiny_taskmodel("bert", task.spec), tiny_taskmodel("bert", task.spec)
    inputs = Inputs(train=task.train, validation=task.validation, teacher=teacher, folder=tmp_path / "run")
    expected = step.apply(whole, inputs, torch.Generator().manual_seed(3)).model.digest
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"intermediate", "prediction"}
    (tmp_path / "run" / "prediction" / "checkpoint.safetensors").unlink()
    assert step.apply(stopped, inputs, torch.Generator().manual_seed(3)).model.digest == expected


def test_as_a_term_the_stages_are_added():
    task = tiny_task("classification")
    student, teacher = tiny_taskmodel("bert", task.spec), tiny_taskmodel("bert", task.spec, seed=1)
    block = CombinedDistillation(objective={"distill.tinybert": {"weight": 0.5}, "distill.labels": {}}).objective
    rows = rows_of(student, task.train, 1)
    loss = block.make(Inputs(train=task.train, teacher=live(teacher))).bind(student, rows)
    batch = rows.batch([0, 1])
    found = loss(observe(student.model, batch.inputs, loss.reads), batch)
    names = {f"distill.tinybert.{name}" for name in ("embeddings", "hidden", "attention", "prediction")}
    assert set(found) == names | {"distill.labels.task"}


def test_as_a_term_it_may_choose_its_layers_on_a_sample():
    """The sample on which layers are compared is not what the other losses read."""
    task = tiny_task("classification")
    student, teacher = tiny_taskmodel("bert", task.spec), tiny_taskmodel("bert", task.spec, seed=1)
    block = CombinedDistillation(objective={"distill.logits": {}, "distill.tinybert": {"layer_map": "auto"}}).objective
    rows = rows_of(student, task.train, 1)
    batch = rows.batch([0, 1])
    loss = block.make(Inputs(train=task.train, teacher=live(teacher))).bind(student, rows)
    found = loss(observe(student.model, batch.inputs, loss.reads), batch)
    alone = TinyBertDistillation(layer_map="auto", stages=["intermediate"]).bind(student, rows, live(teacher))
    expected = alone(observe(student.model, batch.inputs, alone.reads), batch)
    assert found["distill.tinybert.hidden"].item() == pytest.approx(expected["hidden"].item(), rel=1e-5)
    assert found["distill.tinybert.attention"].item() == pytest.approx(expected["attention"].item(), rel=1e-5)


def test_the_baseline_has_as_many_epochs():
    assert TinyBertDistillation().without_teacher() == LabelTraining(epochs=13, learning_rate=3e-5, batch_size=32)


def test_what_cannot_be_is_refused_by_name():
    task = tiny_task("classification")
    odd, plain = tiny_taskmodel("deberta-v2", task.spec), tiny_taskmodel("bert", task.spec)
    (problem,) = TinyBertDistillation().check(odd, Inputs(teacher=live(odd)))
    assert "the student's (deberta-v2) and the teacher's are not; set attention: 0" in problem
    (problem,) = TinyBertDistillation().check(plain, Inputs(teacher=live(odd)))
    assert "queries and keys, the teacher's are not" in problem
    assert TinyBertDistillation(attention=0).check(odd, Inputs(teacher=live(odd))) == []
    assert TinyBertDistillation(stages=["prediction"]).check(odd, Inputs(teacher=live(odd))) == []
    (problem,) = TinyBertDistillation(layer_map=[0, 9, 1]).check(plain, Inputs(teacher=live(plain)))
    assert (
        problem
        == "distill.tinybert: layer_map [0, 9, 1]: needs 3 numbers, one for each student layer, each from 0 to 2"
    )
    with pytest.raises(UserError, match="set attention: 0"):
        run(Recipe(steps=(TinyBertDistillation(),)), odd, Inputs(train=task.train, teacher=live(odd)))
    vectors = TaskModel(plain.model, plain.tokenizer, TaskSpec(kind="embedding", metric="spearman"))
    (problem,) = TinyBertDistillation().check(vectors, Inputs(teacher=live(plain)))
    assert problem == "distill.tinybert: an embedding has vectors, not predictions; set stages: [intermediate]"
    with pytest.raises(ValidationError, match="each can stand there once"):
        TinyBertDistillation(stages=["prediction", "prediction"])
    with pytest.raises(ValidationError, match="all 0"):
        TinyBertDistillation(embeddings=0, hidden=0, attention=0)
