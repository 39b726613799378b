"""MobileBERT against the numbers of its formulas, slow loops, and the order in which its layers learn."""

import math
from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError
from transformers import MobileBertConfig, MobileBertModel

from compress.distill.components.attention import relation_rows
from compress.distill.labels import LabelTraining
from compress.distill.mobilebert import MobileBertDistillation, Stage, StageObjective, feature_map_distance, stages
from compress.engine.steps import run
from compress.objective import ObjectiveBlock
from compress.recipe import Recipe
from compress.share.layers import LayerSharing
from compress.student.student import Student
from compress.technique import Inputs
from eval.errors import UserError
from teachers.anatomy.encoder import layer_names
from teachers.signals.hooks import SignalSpec, observe
from teachers.signals.live_reader import LiveReader
from teachers.signals.model_teacher import ModelTeacher
from teachers.training.loop import train
from teachers.training.scoring import rows_of
from tests.tiny import tiny_task, tiny_taskmodel

TEACHER = torch.tensor([[[1.0, 3.0], [2.0, 2.5]]])
STUDENT = torch.tensor([[[0.0, 2.0], [4.0, 3.0]]])
FULL = torch.ones(1, 2, dtype=torch.int64)
IB = {"normalization_type": "layer_norm", "num_feedforward_networks": 1, "intra_bottleneck_size": 48}


@pytest.fixture(scope="module")
def task():
    return tiny_task("masked-lm")


@pytest.fixture(scope="module")
def teacher(task):
    return tiny_taskmodel("mobilebert", task.spec, seed=1, hidden_act="gelu", **IB)


@pytest.fixture(scope="module")
def student(task):
    return tiny_taskmodel("mobilebert", task.spec, seed=2, hidden_act="relu")


def test_feature_maps_by_hand():
    assert feature_map_distance(STUDENT, TEACHER, FULL).item() == pytest.approx(1.5625)
    normal = [(x - x.mean(-1, keepdim=True)) / x.std(-1, correction=0, keepdim=True) for x in (STUDENT, TEACHER)]
    assert (normal[0] - normal[1]).square().mean().item() == pytest.approx(2.0, abs=1e-6)
    found = feature_map_distance(STUDENT, TEACHER, FULL, "normalised").item()
    assert found == pytest.approx(100 * 2.0 + 5000 * 1.28125 + 5 * 0.09375, rel=1e-5)
    for kind in ("mse", "normalised"):
        assert feature_map_distance(TEACHER, TEACHER.clone(), FULL, kind) == 0


def test_attention_by_hand():
    """The authors' soft cross-entropy is the divergence and the teacher's entropy, which has no gradient."""
    theirs, own = torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 2)
    theirs[0, 0, 1, 0] = own[0, 0, 0, 0] = math.log(3)
    rows = relation_rows(own, theirs, torch.ones(1, 2))
    assert rows.flatten().tolist() == pytest.approx([0.143841, 0.130812], abs=1e-6)
    assert rows.mean().item() == pytest.approx(0.137327, abs=1e-6)
    probability = theirs.softmax(dim=-1)
    entropy = -(probability * probability.log()).sum(dim=-1)
    assert (rows + entropy).mean().item() == pytest.approx(0.765068, abs=1e-6)


def test_published_shapes():
    with torch.device("meta"):
        published = MobileBertModel(MobileBertConfig(classifier_activation=False))
        tiny = MobileBertConfig(
            classifier_activation=False,
            num_feedforward_networks=2,
            use_bottleneck_attention=True,
            key_query_shared_bottleneck=False,
        )
        assert sum(p.numel() for p in MobileBertModel(tiny).parameters()) == 15_485_696
    assert sum(p.numel() for p in published.parameters()) == 24_581_888
    norm = MobileBertModel(MobileBertConfig(num_hidden_layers=1)).embeddings.LayerNorm
    assert torch.equal(norm(torch.arange(512.0)), torch.arange(512.0))


def test_stages_of_the_strategies():
    assert stages("auxiliary", 2) == (Stage("all", (0, 1), True),)
    assert stages("joint", 2) == (Stage("layers", (0, 1), False), Stage("predictions", (), True))
    assert [(stage.layers, stage.predicts) for stage in stages("progressive", 3)] == [
        ((0,), False),
        ((1,), False),
        ((2,), False),
        ((), True),
    ]


def slow_transfer(own, other, mask, layer, heads, code):
    """State feature map and attention transfer of a layer token by token, as the paper has them."""
    features, attention, counted = 0.0, 0.0, 0
    for row in range(len(mask)):
        real = [i for i in range(mask.shape[1]) if mask[row, i]]
        for token in range(mask.shape[1]) if code else real:
            counted += 1
            difference = other.hidden_states[layer + 1][row, token] - own.hidden_states[layer + 1][row, token]
            features += (difference**2).sum().item() / len(difference)
            for head in range(heads):
                rows = []
                for signals in (other, own):
                    query, key = (
                        x[layer].unflatten(-1, (heads, -1))[row, :, head] for x in (signals.queries, signals.keys)
                    )
                    scores = torch.stack([query[token] @ key[i] for i in real]) / math.sqrt(query.shape[-1])
                    rows.append(scores.exp() / scores.exp().sum())
                attention += sum((p * (p / q).log()).item() for p, q in zip(*rows, strict=True)) / heads
    return features / counted, attention / counted


@pytest.mark.parametrize("reduction", ["valid", "code"])
def test_the_losses_of_real_models_are_the_slow_loop(reduction, task, teacher, student):
    """Teacher and student differ in bottleneck, norm and activation; only the hidden size is the same."""
    config = MobileBertDistillation(strategy="auxiliary", feature_weight=2.0, attention_weight=3.0, reduction=reduction)
    rows = rows_of(student, task.train, 5)
    loss = config.bind(student, rows, ModelTeacher(teacher))
    batch = rows.batch([0, 4, 9, 1])
    assert batch.mask.min() == 0
    everything = SignalSpec((1, 2, 3), (0, 1, 2), (0, 1, 2))
    assert loss.reads == everything
    with torch.no_grad():
        own = observe(student.model, batch.inputs, everything)
    other = LiveReader(teacher, everything)(batch)
    assert own.queries[0].shape[-1] == 16
    assert other.queries[0].shape[-1] == 48
    terms = loss(own, batch)
    found = [slow_transfer(own, other, batch.mask, layer, 4, reduction == "code") for layer in range(3)]
    share = 1 / 3 if reduction == "code" else 1
    assert terms["features"].item() == pytest.approx(2 * share * sum(f for f, _ in found), rel=1e-4)
    assert terms["attention"].item() == pytest.approx(3 * share * sum(a for _, a in found), rel=1e-3)

    labels = batch.targets["labels"]
    hard, soft, count = 0.0, 0.0, 0
    for row, token in (labels != -100).nonzero().tolist():
        ours, theirs = own.logits[row, token].log_softmax(-1), other.logits[row, token].log_softmax(-1)
        hard -= ours[labels[row, token]].item()
        soft += (theirs.exp() * (theirs - ours)).sum().item()
        count += 1
    assert terms["task"].item() == pytest.approx(0.5 * hard / count, rel=1e-4)
    assert terms["soft"].item() == pytest.approx(0.5 * soft / count, rel=1e-4)


def test_padding_never_counts(task, teacher, student):
    config = MobileBertDistillation(strategy="auxiliary", feature_maps="normalised")
    rows = rows_of(student, task.train[:1], 5)
    alone = rows.batch([0])
    padded = replace(
        alone,
        inputs={name: torch.nn.functional.pad(value, (0, 7)) for name, value in alone.inputs.items()},
        targets={"labels": torch.nn.functional.pad(alone.targets["labels"], (0, 7), value=-100)},
    )
    loss = config.bind(student, rows, ModelTeacher(teacher))
    with torch.no_grad():
        found = [loss(observe(student.model, batch.inputs, loss.reads), batch) for batch in (alone, padded)]
    for name in found[0]:
        assert found[0][name].item() == pytest.approx(found[1][name].item(), rel=1e-4), name


def test_a_batch_without_masked_words_has_no_loss(task, teacher, student):
    config = MobileBertDistillation(strategy="auxiliary")
    rows = rows_of(student, task.train, 5)
    batch = rows.batch([0])
    batch = replace(batch, targets={"labels": torch.full_like(batch.targets["labels"], -100)})
    loss = StageObjective(config, Stage("predictions", (), True), ModelTeacher(teacher)).bind(student, rows)
    terms = loss(observe(student.model, batch.inputs), batch)
    assert {name: value.item() for name, value in terms.items()} == {"soft": 0.0, "task": 0.0}


def moved(before, after):
    return {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}


def test_progressive_trains_one_layer_after_the_other(task, teacher, student, monkeypatch):
    """Compare all weights before and after every stage; the loop leaves everything trainable."""
    seen = []

    def watched(model, *args, **kwargs):
        before = {name: tensor.clone() for name, tensor in model.model.state_dict().items()}
        history = train(model, *args, **kwargs)
        seen.append((kwargs["seed"], moved(before, model.model.state_dict()), history[-1]["terms"].keys()))
        assert all(parameter.requires_grad for parameter in model.model.parameters())
        return history

    monkeypatch.setattr("teachers.training.loop.train", watched)
    technique = MobileBertDistillation(max_steps=2, batch_size=8, learning_rate=1e-3)
    inputs = Inputs(train=task.train, validation=task.validation, teacher=ModelTeacher(teacher))
    result = run(Recipe(seed=3, steps=(technique,)), student, inputs, dry_run_first=False)

    inside = layer_names(student.model)
    assert [seed for seed, _, _ in seen] == [3, 4, 5, 6]
    for index, (_, changed, terms) in enumerate(seen[:3]):
        own = {name for name in changed if name.startswith(f"{inside[index]}.")}
        outside = {name for name in changed if not name.startswith(tuple(f"{layer}." for layer in inside))}
        assert own
        assert bool(outside) == (index == 0)
        assert changed == own | outside
        assert set(terms) == {"features", "attention"}
    _, changed, terms = seen[3]
    assert set(terms) == {"soft", "task"}
    assert all(any(name.startswith(layer) for name in changed) for layer in inside)
    history = result.lineage[-1].facts["history"]
    assert [entry["stage"] for entry in history] == ["layer-0", "layer-1", "layer-2", "predictions"]
    assert [entry["step"] for entry in history] == [2, 4, 6, 8]
    assert ["score" in entry for entry in history] == [False, False, False, True]


@pytest.mark.parametrize("strategy", ["auxiliary", pytest.param("joint", marks=pytest.mark.slow), "progressive"])
def test_every_strategy_brings_the_student_nearer(strategy, task, teacher, student):
    rows = rows_of(student, task.train, 5)
    batch = rows.batch(range(16))
    inputs = Inputs(train=task.train, teacher=ModelTeacher(teacher))
    training = {"epochs": 10, "batch_size": 8, "learning_rate": 3e-3, "warmup_steps": 0.1}
    technique = MobileBertDistillation(strategy=strategy, transfer_epochs=18, **training)
    result = run(Recipe(steps=(technique,)), student, inputs, dry_run_first=False)
    loss = MobileBertDistillation(strategy="auxiliary").bind(student, rows, ModelTeacher(teacher))
    with torch.no_grad():
        before, after = (loss(observe(m.model, batch.inputs, loss.reads), batch) for m in (student, result))
    assert after["features"] < 0.9 * before["features"]
    assert after["soft"] + after["task"] < before["soft"] + before["task"]


def test_an_interrupted_stage_goes_on_to_the_same_weights(task, teacher, student, tmp_path, monkeypatch):
    technique = MobileBertDistillation(max_steps=2, batch_size=8)
    inputs = Inputs(train=task.train, teacher=ModelTeacher(teacher))
    recipe = Recipe(seed=3, steps=(technique,))
    whole = run(recipe, student, inputs, dry_run_first=False)

    def stops(model, *args, **kwargs):
        if kwargs["folder"].name == "layer-2":
            raise KeyboardInterrupt
        return train(model, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr("teachers.training.loop.train", stops)
        with pytest.raises(KeyboardInterrupt):
            run(recipe, student, inputs, dry_run_first=False, folder=tmp_path)
    kept = {path.parent.name for path in (tmp_path / "1-distill.mobilebert.working").rglob("*") if path.is_file()}
    assert {"layer-0", "layer-1"} <= kept
    assert run(recipe, student, inputs, dry_run_first=False, folder=tmp_path).digest == whole.digest


def test_on_a_task_the_labels_take_the_place_of_masked_words():
    task = tiny_task("classification")
    teacher, student = tiny_taskmodel("bert", task.spec, seed=1), tiny_taskmodel("bert", task.spec, seed=2)
    inputs = Inputs(train=task.train, validation=task.validation, teacher=ModelTeacher(teacher))
    technique = MobileBertDistillation(strategy="joint", alpha=0.7, max_steps=2, batch_size=8)
    history = run(Recipe(steps=(technique,)), student, inputs, dry_run_first=False).lineage[-1].facts["history"]
    assert [sorted(entry["terms"]) for entry in history] == [["attention", "features"], ["soft", "task"]]
    rows = rows_of(student, task.train, 5)
    batch = rows.batch(range(4))
    loss = technique.bind(student, rows, ModelTeacher(teacher))
    with torch.no_grad():
        own, other = (observe(model.model, batch.inputs, loss.reads) for model in (student, teacher))
    ours, theirs = own.logits.log_softmax(-1), other.logits.log_softmax(-1)
    soft = (theirs.exp() * (theirs - ours)).sum(dim=-1).mean().item()
    hard = -ours[torch.arange(4), batch.targets["labels"]].mean().item()
    terms = loss(own, batch)
    assert terms["soft"].item() == pytest.approx(0.7 * soft, rel=1e-4)
    assert terms["task"].item() == pytest.approx(0.3 * hard, rel=1e-4)


def test_epochs_are_shared_by_the_stages():
    technique = MobileBertDistillation(epochs=5, learning_rate=1e-3)
    assert [training.epochs for training in technique.trainings()] == [pytest.approx(2.4), 5]
    alone = technique.without_teacher()
    assert isinstance(alone, LabelTraining)
    assert (alone.training.epochs, alone.training.learning_rate) == (pytest.approx(7.4), 1e-3)
    assert [t.epochs for t in MobileBertDistillation(transfer_epochs=0.5, epochs=2).trainings()] == [0.5, 2]
    assert [t.epochs for t in MobileBertDistillation(strategy="auxiliary", epochs=2).trainings()] == [2]


def test_as_a_term_it_is_one_loss():
    block = ObjectiveBlock.model_validate({"distill.mobilebert": {"strategy": "auxiliary"}})
    assert block.terms[0].technique == MobileBertDistillation(strategy="auxiliary")
    with pytest.raises(ValidationError, match="set strategy: auxiliary"):
        ObjectiveBlock.model_validate("distill.mobilebert")


def test_what_cannot_be_is_refused_by_name(task):
    teacher = ModelTeacher(tiny_taskmodel("bert", task.spec))

    def problems(family, config, **changes):
        model = tiny_taskmodel(family, task.spec, **changes)
        found = config.check(model, Inputs(teacher=teacher))
        assert all(problem.startswith("distill.mobilebert: ") for problem in found)
        return " | ".join(found)

    default, plain = MobileBertDistillation(), MobileBertDistillation(attention_weight=0)
    found = problems("bert", default, hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
    assert "hidden sizes must be equal, the student has 16 and the teacher 32" in found
    assert "layers must be as many, the student has 2 and the teacher 3" in found
    assert "give the student heads: 4, or set attention_weight: 0" in found
    assert problems("bert", plain, num_attention_heads=2) == ""
    shared = LayerSharing(share="ffn", recover=False).change(tiny_taskmodel("bert", task.spec), Inputs(), None).model
    (found,) = default.check(shared, Inputs(teacher=teacher))
    assert "layers of this bert share weights, so they cannot be trained one by one; set strategy: joint" in found
    assert "attention of the student (modernbert) is more than products" in problems("modernbert", default)
    assert problems("modernbert", plain) == ""
    assert "layers of this albert share weights" in problems("albert", default)
    assert problems("albert", MobileBertDistillation(strategy="joint")) == ""
    turned = ModelTeacher(tiny_taskmodel("modernbert", task.spec))
    found = default.check(tiny_taskmodel("bert", task.spec), Inputs(teacher=turned))
    assert ["attention of the teacher" in problem for problem in found] == [True]
    with pytest.raises(ValidationError, match="nothing of the layers is transferred"):
        MobileBertDistillation(feature_weight=0, attention_weight=0)
    small = Student(layers=2).build(tiny_taskmodel("bert", task.spec))
    with pytest.raises(UserError, match="give it layers: 3 and make them thin"):
        default.apply(small, Inputs(train=task.train, teacher=teacher), torch.Generator())
