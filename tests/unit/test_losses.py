"""The losses for a training loop of your own are those that the techniques minimise."""

import inspect

import pytest
import torch

from compress import losses
from compress.distill.distilbert import DistilBertDistillation
from compress.distill.early_exit import ExitLoss
from compress.distill.embedding import EmbeddingDistillation, VectorLoss
from compress.distill.ensemble import EnsembleDistillation
from compress.distill.logits import LogitDistillation
from compress.distill.margin_mse import MarginDistillation
from compress.distill.minilm import MiniLMDistillation
from compress.distill.mobilebert import MobileBertDistillation
from compress.distill.pkd import PatientDistillation
from compress.distill.tinybert import TinyBertDistillation
from teachers.signals.ensemble_teacher import EnsembleTeacher
from teachers.signals.hooks import Signals, SignalSpec, observe
from teachers.signals.model_teacher import ModelTeacher
from teachers.training.scoring import rows_of
from tests.parity.test_ranking import ranked
from tests.tiny import tiny_task, tiny_taskmodel

EVERYTHING = SignalSpec(hidden_states=(0, 1, 2), queries=(0, 1), keys=(0, 1), values=(0, 1))


class Case:
    """Two tiny models and all that is read of them for one batch of unequal lengths."""

    def __init__(self, task):
        self.student, self.teacher = (
            tiny_taskmodel("bert", task.spec, seed=seed, num_hidden_layers=2) for seed in (0, 1)
        )
        self.rows = rows_of(self.student, task.train, 1)
        self.batch = self.rows.batch([0, 1, 2, 3, 5])
        self.own, self.other = (self.seen(model) for model in (self.student, self.teacher))
        self.mask = self.batch.mask

    def seen(self, model):
        with torch.no_grad():
            return observe(model.model, self.batch.inputs, EVERYTHING)

    def terms(self, technique, teacher=None):
        teacher = teacher or ModelTeacher(self.teacher, budget_bytes=0)
        loss = technique.bind(self.student, self.rows, teacher)
        return {name: value.item() for name, value in loss(self.own, self.batch).items()}

    def scores(self, layer):
        return [losses.relation_scores(one.queries[layer], one.keys[layer], 4) for one in (self.own, self.other)]


@pytest.fixture(scope="module")
def case():
    return Case(tiny_task("classification"))


@pytest.mark.parametrize("loss", ["kl", "soft_cross_entropy", "mse"])
def test_logits(case, loss):
    function = {"kl": losses.kl_divergence, "mse": losses.logit_mse}.get(loss, losses.soft_cross_entropy)
    found = case.terms(LogitDistillation(temperature=3.0, alpha=1.0, loss=loss))
    assert found == {"soft": pytest.approx(function(case.own.logits, case.other.logits, temperature=3.0).item())}


def test_distilbert(case):
    found = case.terms(DistilBertDistillation(temperature=2.0))
    cosine = losses.cosine_distance(case.own.hidden_states[2], case.other.hidden_states[2], case.mask)
    assert found["cosine"] == pytest.approx(cosine.item())
    assert found["soft"] == pytest.approx(5 * losses.kl_divergence(case.own.logits, case.other.logits, 2.0).item())


def test_pkd(case):
    first = [[states.hidden_states[1][:, 0]] for states in (case.own, case.other)]
    found = case.terms(PatientDistillation(beta=2.0, layer_map=(0, 1)))
    assert found["patience"] == pytest.approx(2 * losses.pkd_patience(*first).item())


@pytest.mark.parametrize("reduction", ["valid", "code"])
def test_tinybert(case, reduction):
    states = [
        losses.hidden_state_mse(case.own.hidden_states[i], case.other.hidden_states[i], case.mask, reduction)
        for i in range(3)
    ]
    scores = [losses.attention_mse(*case.scores(layer), case.mask, reduction) for layer in (0, 1)]
    found = case.terms(TinyBertDistillation(stages=("intermediate",), reduction=reduction))
    assert found == {
        "embeddings": pytest.approx(states[0].item()),
        "hidden": pytest.approx(sum(states[1:]).item()),
        "attention": pytest.approx(sum(scores).item()),
    }


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_minilm(case, version):
    sides = [
        {"queries": one.queries[1], "keys": one.keys[1], "values": one.values[1]} for one in (case.own, case.other)
    ]
    terms = losses.minilm_relations(*sides, case.mask, heads=4, version=version)
    found = case.terms(MiniLMDistillation(relations=version, relation_heads=4))
    assert found == {name: pytest.approx(value.item()) for name, value in terms.items()}


@pytest.mark.parametrize(("kind", "reduction"), [("mse", "valid"), ("normalised", "valid"), ("mse", "code")])
def test_mobilebert(case, kind, reduction):
    states = [
        losses.feature_map_distance(case.own.hidden_states[i], case.other.hidden_states[i], case.mask, kind, reduction)
        for i in (1, 2)
    ]
    attention = [losses.attention_kl(*case.scores(layer), case.mask, reduction) for layer in (0, 1)]
    found = case.terms(MobileBertDistillation(strategy="auxiliary", feature_maps=kind, reduction=reduction))
    share = 1 / 2 if reduction == "code" else 1
    assert found["features"] == pytest.approx(share * sum(states).item())
    assert found["attention"] == pytest.approx(share * sum(attention).item())


def test_ensemble(case):
    third = tiny_taskmodel("bert", case.student.task, seed=2, num_hidden_layers=2)
    teacher = EnsembleTeacher(tuple(ModelTeacher(model, budget_bytes=0) for model in (case.teacher, third)))
    logits = losses.ensemble_logits([case.other.logits, case.seen(third).logits], (3.0, 1.0))
    found = case.terms(EnsembleDistillation(alpha=1.0, weights=(3.0, 1.0)), teacher)
    assert found == {"soft": pytest.approx(losses.soft_cross_entropy(case.own.logits, logits).item())}


def test_margin_mse():
    case = Case(ranked("classification"))
    queries = [case.rows.examples[i]["text_a"] for i in case.batch.rows.tolist()]
    group = torch.tensor([queries.index(query) for query in queries])
    own, other = (one.logits[:, 1] - one.logits[:, 0] for one in (case.own, case.other))
    expected = losses.margin_mse(own, other, group)
    assert expected > 0
    assert case.terms(MarginDistillation(pairs="all")) == {"margin": pytest.approx(expected.item())}


@pytest.mark.parametrize("relation", ["mse", "kl"])
def test_embedding(relation):
    own, other = torch.randn(2, 4, 8)
    config = EmbeddingDistillation(mse=0, cosine=2.0, similarity=1.0, relation=relation, temperature=0.1)
    found = VectorLoss(config, lambda batch: Signals(other), torch.nn.ModuleList([torch.nn.Identity()]))(
        Signals(own), None
    )
    close = losses.similarity_mse(own, other) if relation == "mse" else losses.similarity_kl(own, other, 0.1)
    assert found["cosine"].item() == pytest.approx(2 * losses.cosine_distance(own, other).item())
    assert found["similarity"].item() == pytest.approx(close.item())


def test_early_exit():
    last, exits = torch.randn(5, 3), torch.randn(5, 2, 3)
    expected = sum(losses.kl_divergence(exits[:, branch], last) for branch in range(2))
    assert losses.early_exit_kl(exits, last).item() == pytest.approx(expected.item(), rel=1e-5)
    assert ExitLoss()(Signals(last, exit_logits=exits), None)["exits"] == losses.early_exit_kl(exits, last)


@pytest.mark.parametrize("name", losses.__all__)
def test_each_is_documented(name):
    """Shapes of what goes in, an example, and for losses where the formula comes from."""
    text, shapes = inspect.getdoc(getattr(losses, name)), {"Projection": "[..., student width]"}
    assert shapes.get(name, "Args:") in text
    if name not in ("Projection", "match_heads"):
        assert ">>> " in text
    if name not in ("Projection", "match_heads", "relation_scores", "margin_contrast"):
        assert "arXiv" in text
