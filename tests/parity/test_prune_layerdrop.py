"""LayerDrop: draws, the identity, hidden states, cuts of the one trained model."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from compress.artifact.structure import structure_of
from compress.engine.steps import run
from compress.objective import ObjectiveBlock
from compress.prune.depth import cut
from compress.prune.layerdrop import LayerDrop, dropping
from compress.recipe import Recipe
from compress.technique import Inputs
from eval.errors import UserError
from eval.inference import predict
from teachers.anatomy.encoder import base_encoder, layers
from teachers.anatomy.parts import rerouted
from teachers.signals.hooks import SignalSpec, observe
from teachers.signals.model_teacher import ModelTeacher
from teachers.taskmodel import weights_digest
from teachers.training.config import Training
from teachers.training.loop import train
from teachers.training.scoring import scores
from tests.parity.test_prune_movement import StopsAt
from tests.tiny import FAMILIES, tiny_task, tiny_taskmodel

SHORT = {"epochs": 2, "batch_size": 8, "learning_rate": 1e-3, "checkpoint_seconds": 0}


def batch_of(model, task):
    inputs = model.encoder.collate(model.encoder.encode(task.validation[:6]))
    return {name: torch.from_numpy(values) for name, values in inputs.items()}


def quiet(model):
    """In training mode, without ordinary dropout."""
    for module in model.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in ("dropout_prob", "attention_dropout", "dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    model.model.train()
    return model


# ---- the draws


def test_layers_run_with_their_probability():
    task = tiny_task()
    model = tiny_taskmodel("bert", task.spec, num_hidden_layers=12)
    network = SimpleNamespace(training=True, config=model.model.config)
    route, counts = dropping(network, 0.2), [0] * 10_000
    torch.manual_seed(0)
    for number in range(len(counts)):
        for index in range(12):
            route(index, lambda hidden, number=number: counts.__setitem__(number, counts[number] + 1), None)
    ran = torch.tensor(counts, dtype=torch.float32)
    assert ran.mean().item() == pytest.approx(9.6, abs=0.06)
    assert ran.std().item() == pytest.approx(1.386, abs=0.04)


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_dropped_is_the_plain_model_and_all_dropped_is_the_embeddings(family):
    task = tiny_task()
    model = quiet(tiny_taskmodel(family, task.spec))
    inputs = batch_of(model, task)
    with torch.no_grad():
        before = model.model(**inputs, output_hidden_states=True)
        with rerouted(model.model, dropping(model.model, 0.0)):
            none = model.model(**inputs, output_hidden_states=True)
        with rerouted(model.model, dropping(model.model, 1.0)):
            every = model.model(**inputs, output_hidden_states=True)
            model.model.eval()
            answering = model.model(**inputs)
    assert torch.equal(before.logits, none.logits)
    assert not torch.equal(before.logits, every.logits)
    assert torch.equal(answering.logits, model.model(**inputs).logits), "whatever is answered runs all layers"
    assert len(every.hidden_states) == len(before.hidden_states)
    if family not in ("deberta-v2", "modernbert", "gpt2"):  # these work on what comes after the last layer, too
        assert all(torch.equal(every.hidden_states[0], state) for state in every.hidden_states[1:])
    assert all("forward" not in vars(layer) for layer in layers(model.model))


@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in ("albert", "modernbert", "xlnet")])
def test_a_dropped_layer_is_a_cut_layer_and_gets_no_gradient(family):
    task = tiny_task()
    model = quiet(tiny_taskmodel(family, task.spec))
    shallow = quiet(cut(model, (0, 2)))
    inputs = batch_of(model, task)

    def drop_the_second(index, own, hidden, *args, **kwargs):
        return dropping(model.model, float(index == 1))(index, own, hidden, *args, **kwargs)

    with rerouted(model.model, drop_the_second):
        logits = model.model(**inputs).logits
    assert torch.allclose(logits, shallow.model(**inputs).logits, atol=1e-6)
    logits.sum().backward()
    first, second, _ = layers(model.model)
    assert all(parameter.grad is None for parameter in second.parameters())
    assert all(parameter.grad is not None for name, parameter in first.named_parameters() if "key.bias" not in name)


def test_shared_layers_are_drawn_run_by_run():
    task = tiny_task()
    model = quiet(tiny_taskmodel("albert", task.spec))
    seen = []
    with rerouted(model.model, lambda index, own, *args, **kwargs: seen.append(index) or own(*args, **kwargs)):
        for _ in range(2):
            model.model(**batch_of(model, task))
    assert seen == [0, 1, 2, 0, 1, 2]


def test_hidden_states_keep_their_places():
    task = tiny_task()
    model = quiet(tiny_taskmodel("bert", task.spec))
    inputs = batch_of(model, task)
    with rerouted(model.model, lambda index, own, hidden, *a, **k: hidden if index == 1 else own(hidden, *a, **k)):
        states = observe(model.model, inputs, SignalSpec(hidden_states=(0, 1, 2, 3))).hidden_states
    assert torch.equal(states[1], states[2])
    assert not torch.equal(states[0], states[1])
    assert not torch.equal(states[2], states[3])


# ---- whole trainings


def applied(technique, folder=None, task=None, family="bert", **changes):
    task = task or tiny_task()
    inputs = Inputs(train=task.train, validation=task.validation, calibration=task.train, folder=folder)
    torch.manual_seed(0)
    student = tiny_taskmodel(family, task.spec, **changes)
    return technique.apply(student, inputs, torch.Generator().manual_seed(3))


def test_rate_0_is_an_ordinary_training():
    task = tiny_task()
    plain = tiny_taskmodel("bert", task.spec)
    dropout = [module for module in plain.model.modules() if isinstance(module, torch.nn.Dropout)]
    assert all(module.p == 0.1 for module in dropout)
    changes = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    plain = tiny_taskmodel("bert", task.spec, **changes)
    train(plain, task.train, training=Training(**SHORT), seed=3, validation=task.validation)
    ours = applied(LayerDrop(rate=0.0, **SHORT), **changes).model
    assert weights_digest(ours.model) == weights_digest(plain.model)
    dropped = applied(LayerDrop(rate=0.5, **SHORT), **changes).model
    assert weights_digest(dropped.model) != weights_digest(plain.model)


def test_every_depth_of_the_one_model_is_scored():
    task = tiny_task()
    outcome = applied(LayerDrop(rate=0.3, **SHORT))
    assert [entry["layers"] for entry in outcome.facts["depths"]] == [[0, 1, 2], [0, 1], [0]]
    for entry in outcome.facts["depths"]:
        expected = next(iter(scores(cut(outcome.model, entry["layers"]), task.validation).values()))
        assert entry["score"] == expected
    assert "layers" not in outcome.facts
    assert len(layers(outcome.model.model)) == 3
    assert structure_of(outcome.model.model) == {}


@pytest.mark.parametrize(
    ("fields", "kept"), [({"count": 2}, [0, 1]), ({"keep": (0, 2)}, [0, 2]), ({"count": 1, "pick": "last"}, [2])]
)
def test_the_cut_is_that_of_the_trained_model(fields, kept):
    whole, shallow = applied(LayerDrop(**SHORT)), applied(LayerDrop(**fields, **SHORT))
    assert shallow.facts["layers"] == kept
    expected = cut(whole.model, kept)
    assert weights_digest(shallow.model.model) == weights_digest(expected.model)
    assert len(shallow.facts["depths"]) == 3


def test_a_search_cuts_by_loss():
    technique = LayerDrop(count=1, pick="search", **SHORT)
    assert technique.needed() == {"train", "calibration"}
    assert len(applied(technique).facts["losses"]) == 5


@pytest.mark.parametrize("update", [2, 7])
def test_a_stopped_training_goes_on_to_the_same_weights(update, tmp_path, monkeypatch):
    technique = LayerDrop(rate=0.5, **SHORT)
    whole = applied(technique)
    with monkeypatch.context() as patched:
        patched.setattr(LayerDrop, "make_objective", lambda *_: StopsAt(update))
        with pytest.raises(KeyboardInterrupt):
            applied(technique, tmp_path)
    assert weights_digest(applied(technique, tmp_path).model.model) == weights_digest(whole.model.model)


def test_losses_on_hidden_states_work_and_those_on_queries_are_refused(tmp_path):
    task = tiny_task()
    teacher = ModelTeacher(tiny_taskmodel("bert", task.spec, seed=1), cache=tmp_path)
    inputs = Inputs(train=task.train, validation=task.validation, teacher=teacher)
    student = tiny_taskmodel("bert", task.spec)
    technique = LayerDrop(rate=0.6, objective=ObjectiveBlock.model_validate({"distill.pkd": {}}), **SHORT)
    result = run(Recipe(steps=(technique,)), student, inputs)
    assert set(result.lineage[-1].facts["history"][0]["terms"]) >= {"distill.pkd.patience"}
    objective = ObjectiveBlock.model_validate({"distill.minilm": {"relation_heads": 4}})
    with pytest.raises(UserError, match=r"prune\.layerdrop: layers do not always run, so the objective cannot read"):
        run(Recipe(steps=(LayerDrop(objective=objective, **SHORT),)), student, inputs)


def test_the_layers_are_whole_again_after_a_training():
    task = tiny_task()
    outcome = applied(LayerDrop(rate=0.9, **SHORT))
    assert all("forward" not in vars(layer) for layer in layers(outcome.model.model))
    again = copy.deepcopy(outcome.model.model)
    assert base_encoder(again).training is False
    logits = [np.stack(predict(outcome.model, task.validation[:4]).logits) for _ in range(2)]
    assert np.array_equal(*logits)


def test_what_cannot_be_cut_is_refused():
    model = tiny_taskmodel("bert", tiny_task().spec)
    (problem,) = LayerDrop(keep=(0, 7)).check(model, Inputs())
    assert "the model has layers 0 to 2, so [7] cannot be kept" in problem
    with pytest.raises(ValueError, match="not both"):
        LayerDrop(keep=(0,), count=1)
