"""BERT-of-Theseus: the schedule by hand, the two paths, what is trained and what is not."""

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.study import Study
from compress.artifact.artifact import Artifact
from compress.artifact.structure import structure_of
from compress.engine.steps import run
from compress.export import export_onnx
from compress.objective import ObjectiveBlock
from compress.prune.depth import cut
from compress.recipe import Recipe
from compress.replace.theseus import Replacement, Theseus, even_groups, linear_chance
from compress.technique import Inputs
from eval.errors import UserError
from eval.inference import predict
from teachers.anatomy.encoder import layers
from teachers.anatomy.parts import rerouted
from teachers.signals.model_teacher import ModelTeacher
from teachers.taskmodel import save_taskmodel, weights_digest
from teachers.training.config import Training
from tests.parity.test_prune_layerdrop import batch_of, quiet
from tests.parity.test_prune_movement import StopsAt
from tests.tiny import FAMILIES, tiny_task, tiny_taskmodel

SHORT = {"epochs": 2, "batch_size": 8, "learning_rate": 1e-3, "checkpoint_seconds": 0}
STUDIES = Path(__file__).parents[2] / "benchmarks" / "studies"
WORKING = [family for family in FAMILIES if family not in ("albert", "modernbert")]


def applied(technique, folder=None, family="bert", layers=4):
    task = tiny_task()
    inputs = Inputs(train=task.train, validation=task.validation, folder=folder)
    torch.manual_seed(0)
    student = tiny_taskmodel(family, task.spec, num_hidden_layers=layers)
    return technique.apply(student, inputs, torch.Generator().manual_seed(3))


def pair(family="bert", count=2, chance=0.5, groups=None):
    """Return predecessor, successor with weights of its own, and what replaces, all without dropout."""
    task = tiny_task()
    old = quiet(tiny_taskmodel(family, task.spec, num_hidden_layers=4))
    new = quiet(cut(tiny_taskmodel(family, task.spec, seed=9, num_hidden_layers=4), tuple(range(count))))
    for (name, parameter), (_, other) in zip(
        sorted(new.model.named_parameters()),
        sorted((n, p) for n, p in old.model.named_parameters() if n in dict(new.model.named_parameters())),
        strict=True,
    ):
        if ".layer." not in name and "layers." not in name:
            parameter.data.copy_(other.data)
    config = Theseus(groups=groups) if groups else Theseus(count=count)
    replacement = Replacement(config, new.model, layers(old.model))
    replacement.chance = chance
    return task, old, new, replacement


# ---- the schedule


def test_the_linear_curriculum_by_hand():
    expected = {0: 0.3, 1: 0.3006, 500: 0.6, 1166: 0.9996, 1167: 1.0, 5000: 1.0}
    assert {t: linear_chance(t, 0.0006, 0.3) for t in expected} == pytest.approx(expected, abs=1e-9)
    technique = Theseus(slope=0.0006)
    assert {t: technique.chance(t, 9000) for t in expected} == pytest.approx(expected, abs=1e-9)
    relative = Theseus(replacing=0.5)
    found = [relative.chance(t, 1000) for t in (0, 250, 499, 500, 999)]
    assert found == pytest.approx([0.3, 0.65, 0.9986, 1.0, 1.0])
    assert relative.chance(500, 1000) == 1.0


def test_the_constant_rate_ends_in_fine_tuning():
    technique = Theseus(schedule="constant", replacing=0.4)
    assert [technique.chance(t, 10) for t in (0, 3, 4, 9)] == [0.5, 0.5, 1.0, 1.0]
    always = Theseus(schedule="constant", replacing=1.0)
    assert always.chance(9, 10) == 0.5
    _, _, _, replacement = pair()
    replacement.config = always
    assert [replacement.at_step(step, 10) for step in (0, 9, 10)] == [False, False, True]


def test_groups():
    assert even_groups(12, 6) == (2,) * 6
    assert even_groups(12, 5) == (3, 3, 2, 2, 2)
    assert Theseus().sizes(12) == (2,) * 6
    assert Theseus(groups=(1, 4, 7)).sizes(12) == (1, 4, 7)
    assert even_groups(3, 3) == (1, 1, 1)


# ---- the two paths


@pytest.mark.parametrize("family", WORKING)
def test_the_ends_of_the_schedule_are_the_two_models(family):
    task, old, new, replacement = pair(family)
    inputs = batch_of(old, task)
    with torch.no_grad():
        own, other = old.model(**inputs).logits, new.model(**inputs).logits
        with rerouted(new.model, replacement.route):
            replacement.chance = 1.0
            assert torch.equal(new.model(**inputs).logits, other)
            replacement.chance = 0.0
            assert torch.allclose(new.model(**inputs).logits, own, atol=1e-6)
            new.model.eval()
            assert torch.equal(new.model(**inputs).logits, other), "whatever is answered takes the successor"
    assert not torch.allclose(own, other, atol=1e-3)


def test_uneven_groups_are_run_in_order():
    task, old, new, replacement = pair(groups=(1, 3))
    inputs = batch_of(old, task)
    with rerouted(new.model, replacement.route), torch.no_grad():
        replacement.chance = 0.0
        states = new.model(**inputs, output_hidden_states=True).hidden_states
        own = old.model(**inputs, output_hidden_states=True).hidden_states
    assert [torch.allclose(states[i], own[j], atol=1e-6) for i, j in ((0, 0), (1, 1), (2, 4))] == [True] * 3
    assert len(states) == 3


def test_one_draw_for_each_module_and_pass():
    task, _, new, replacement = pair()
    replacement.modules_of = [[torch.nn.Identity()] for _ in range(6)]
    torch.manual_seed(0)
    drawn = []
    for _ in range(10_000):
        ran = []
        for index in range(6):
            replacement.route(index, lambda hidden, ran=ran: ran.append(1) or hidden, torch.zeros(()))
        drawn.append(len(ran))
    assert np.mean(drawn) == pytest.approx(3, abs=0.05)
    assert np.var(drawn) == pytest.approx(1.5, abs=0.1)
    assert task
    assert new


def test_a_module_that_is_not_drawn_gets_no_gradient():
    task, old, new, replacement = pair()
    inputs = batch_of(old, task)

    def first_new(index, own, *args, **kwargs):
        replacement.chance = float(index == 0)
        return replacement.route(index, own, *args, **kwargs)

    with rerouted(new.model, first_new):
        new.model(**inputs).logits.sum().backward()
    first, second = layers(new.model)
    assert all(p.grad is not None for name, p in first.named_parameters() if "key.bias" not in name)
    assert all(p.grad is None for p in second.parameters())
    assert all(p.grad is None for layer in layers(old.model) for p in layer.parameters())


def test_a_pass_through_old_layers_alone_has_a_loss_to_start_from():
    task, old, new, replacement = pair(chance=0.0)
    new.model.requires_grad_(False)
    with rerouted(new.model, replacement.route):
        logits = new.model(**batch_of(old, task)).logits
    logits.sum().backward()
    assert all(p.grad is None for p in new.model.parameters())


# ---- whole trainings


@pytest.mark.parametrize("family", WORKING)
def test_only_the_new_layers_change(family, monkeypatch):
    old = {}
    monkeypatch.setattr(
        "compress.replace.theseus.Replacement.__init__",
        lambda self, config, successor, predecessor, make=Replacement.__init__: (
            old.update(layers=predecessor),
            make(self, config, successor, predecessor),
        )[1],
    )
    start = tiny_taskmodel(family, tiny_task().spec, num_hidden_layers=4)
    outcome = applied(Theseus(count=2, **SHORT), family=family)
    network = outcome.model.model
    assert outcome.facts["layers"] == [0, 1]
    assert outcome.facts["groups"] == [2, 2]
    inside = {id(p) for layer in layers(network) for p in layer.parameters()}
    before = dict(start.model.named_parameters())
    for name, parameter in network.named_parameters():
        assert parameter.requires_grad
        if id(parameter) not in inside:
            assert torch.equal(parameter, before[name]), name
    for layer, other in zip(old["layers"], layers(start.model), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(layer.parameters(), other.parameters(), strict=True))
    assert any(not torch.equal(p, before[n]) for n, p in network.named_parameters() if id(p) in inside)
    assert structure_of(network) == {}


@pytest.mark.parametrize("update", [2, 7])
@pytest.mark.parametrize("schedule", ["linear", "constant"])
def test_a_stopped_training_goes_on_to_the_same_weights(schedule, update, tmp_path, monkeypatch):
    technique = Theseus(schedule=schedule, **SHORT)
    whole = applied(technique)
    with monkeypatch.context() as patched:
        patched.setattr(Theseus, "make_objective", lambda *_: StopsAt(update))
        with pytest.raises(KeyboardInterrupt):
            applied(technique, tmp_path)
    assert weights_digest(applied(technique, tmp_path).model.model) == weights_digest(whole.model.model)


def test_the_new_layers_start_where_they_are_told(tmp_path):
    task = tiny_task()
    other = tiny_taskmodel("bert", task.spec, seed=5, num_hidden_layers=6)
    (tmp_path / "m").mkdir()
    save_taskmodel(other, tmp_path / "m")
    fields = {"training": Training(max_steps=1, learning_rate=1e-12, weight_decay=0.0)}
    for technique, source, expected in (
        (Theseus(**fields), tiny_taskmodel("bert", task.spec, num_hidden_layers=4), (0, 1)),
        (Theseus(pick="last", **fields), tiny_taskmodel("bert", task.spec, num_hidden_layers=4), (2, 3)),
        (Theseus(start=str(tmp_path / "m"), **fields), other, (0, 1)),
        (Theseus(start=str(tmp_path / "m"), pick="last", **fields), other, (4, 5)),
    ):
        result = layers(applied(technique).model.model)
        for layer, place in zip(result, expected, strict=True):
            pairs = zip(layer.parameters(), layers(source.model)[place].parameters(), strict=True)
            assert all(torch.allclose(a, b, atol=1e-9) for a, b in pairs)
    with pytest.raises(UserError, match="has 6 layers, and 7 are to start from them"):
        applied(Theseus(start=str(tmp_path / "m"), count=7, **fields), layers=8)


ROWS = (
    "the same initialization, no replacement",
    "Theseus from the base, linear curriculum",
    "Theseus from the base, constant rate",
)


def test_the_control_of_the_study_starts_from_the_weights_of_the_successor(tmp_path, monkeypatch):
    """Embeddings and head of the teacher, the first layers of the base; only the old layers make the difference."""
    task = tiny_task()
    base = tiny_taskmodel("bert", task.spec, num_hidden_layers=6)
    for parameter in base.model.parameters():
        parameter.data += 0.1
    teacher = tiny_taskmodel("bert", task.spec, num_hidden_layers=6)
    (tmp_path / "base").mkdir()
    save_taskmodel(base, tmp_path / "base")
    monkeypatch.setenv("COMPRESS_BASE", str(tmp_path / "base"))
    study = Study.read(STUDIES / "replace-intents-base.yaml")
    starts, trained, ran = {}, {}, {}
    for row in ROWS:
        (technique,) = study.recipe_of(row, 13).steps

        def train(self, student, *_args, row=row, **_kwargs):
            starts[row] = {name: tensor.clone() for name, tensor in student.model.state_dict().items()}
            trained[row] = {name for name, tensor in student.model.named_parameters() if tensor.requires_grad}
            return []

        monkeypatch.setattr(Theseus, "train", train)
        student = replace(teacher, model=copy.deepcopy(teacher.model))
        technique.apply(student, Inputs(train=task.train), torch.Generator().manual_seed(3))
        ran[row] = [technique.chance(step, 100) for step in range(100)]
    control, *others = ROWS
    assert set(ran[control]) == {1.0}
    for row in others:
        assert ran[row][0] < 1 == ran[row][-1]
        assert trained[row] == trained[control] != set()
        assert starts[row].keys() == starts[control].keys()
        assert all(torch.equal(starts[row][name], starts[control][name]) for name in starts[control])
    own, fine = base.model.state_dict(), teacher.model.state_dict()
    for name, tensor in starts[control].items():
        assert torch.equal(tensor, own[name] if ".layer." in name else fine[name]), name
    assert not any(torch.equal(own[name], fine[name]) for name in trained[control])


def test_any_objective_and_no_loss_on_queries(tmp_path):
    task = tiny_task()
    source = tiny_taskmodel("bert", task.spec)
    inputs = Inputs(train=task.train, validation=task.validation, teacher=ModelTeacher(source, cache=tmp_path))
    technique = Theseus(objective=ObjectiveBlock.model_validate({"distill.logits": {}}), **SHORT)
    assert technique.needed() == {"train", "teacher"}
    result = run(Recipe(steps=(technique,)), source, inputs)
    assert "distill.logits.soft" in result.lineage[-1].facts["history"][0]["terms"]
    objective = ObjectiveBlock.model_validate({"distill.minilm": {"relation_heads": 4}})
    with pytest.raises(UserError, match=r"replace\.theseus: layers do not always run"):
        run(Recipe(steps=(Theseus(objective=objective, **SHORT),)), source, inputs)


def test_the_result_is_a_stock_model(forker, tmp_path):
    task = tiny_task()
    inputs = Inputs(train=task.train, validation=task.validation)
    student = tiny_taskmodel("bert", task.spec, num_hidden_layers=4)
    artifact = run(Recipe(steps=(Theseus(**SHORT),)), student, inputs)
    artifact.save(tmp_path / "a")
    code = (
        "import sys, transformers\n"
        "m = transformers.AutoModelForSequenceClassification.from_pretrained(sys.argv[1])\n"
        "print(m.config.num_hidden_layers, sum(p.double().sum().item() for p in m.parameters()))"
    )
    printed = forker.program(code, str(tmp_path / "a"), cwd=tmp_path, stock=True).split()
    assert printed[0] == "2"
    assert float(printed[1]) == pytest.approx(sum(p.double().sum().item() for p in artifact.model.parameters()))
    report = export_onnx(replace(artifact), tmp_path / "out", examples=task.validation)
    assert report.gate.max_abs_difference < 1e-5
    assert isinstance(artifact, Artifact)
    assert len(predict(artifact, task.validation[:3]).logits) == 3


# ---- what is refused


@pytest.mark.parametrize(
    ("family", "reason"), [("albert", "share their weights"), ("modernbert", "what its own kind sees")]
)
def test_layers_that_differ_are_refused(family, reason):
    (problem,) = Theseus().check(tiny_taskmodel(family, tiny_task().spec), Inputs())
    assert problem.startswith(f"replace.theseus: layers cannot be replaced one by one here: {family}")
    assert reason in problem


def test_a_convolution_among_layers_is_refused():
    model = tiny_taskmodel("deberta-v2", tiny_task().spec, conv_kernel_size=3, conv_act="gelu")
    (problem,) = Theseus().check(model, Inputs())
    assert "this deberta-v2 adds a convolution to what its first layer returns" in problem


def test_groups_that_do_not_fit_are_refused():
    model = tiny_taskmodel("bert", tiny_task().spec)
    (problem,) = Theseus(groups=(2, 2)).check(model, Inputs())
    assert problem == "replace.theseus: groups [2, 2] are 4 layers, the model has 3"
    (problem,) = Theseus(count=4).check(model, Inputs())
    assert problem == "replace.theseus: count 4 is more than the 3 layers that are replaced"
    with pytest.raises(ValueError, match="groups lists 2 new layers, count says 3"):
        Theseus(groups=(2, 1), count=3)
