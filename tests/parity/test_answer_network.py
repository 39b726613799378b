"""The stochastic answer network: its steps by hand and in loops, dropped steps by count, saving and export."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from compress import load
from compress.architectures.answer_network import (
    AnswerNetwork,
    AnswerNetworkConfig,
    mean_answer,
    summary,
    unanswerable,
    with_answer_network,
)
from compress.architectures.token_network import words_of_texts
from compress.artifact.artifact import Artifact
from compress.cli import main
from compress.export import export_onnx
from compress.export.runtime.answering import Runtime
from compress.recipe.blocks import FinetuneBlock
from eval.data.loading import Task
from eval.errors import UserError
from eval.inference import predict
from eval.task import Examples
from teachers.anatomy.encoder import base_encoder
from teachers.finetuning.finetune import finetune
from teachers.finetuning.multitask import train_together
from teachers.taskmodel import save_taskmodel
from teachers.training.config import Training
from teachers.training.scoring import rows_of, scores
from tests.tiny import FAMILIES, at_first, tiny_spec, tiny_task, tiny_taskmodel

PAIRS = tiny_task(pair=True)
STANDING = [family for family in FAMILIES if family not in ("mobilebert", "gpt2")]  # gpt2 has no separator


def networked(family="bert", seed=3, **fields):
    return with_answer_network(tiny_taskmodel(family, PAIRS.spec), PAIRS.spec, seed, **fields)


def head_of(width=4, classes=3, **fields):
    torch.manual_seed(0)
    inner = {"model_type": "bert", "hidden_size": width, "num_attention_heads": 2}
    return AnswerNetwork(AnswerNetworkConfig(inner, num_labels=classes, **fields)).eval()


def gru(head, seen, state):
    """The update of the paper's GRU, written out."""
    u = head.update
    given, own = u.weight_ih @ seen + u.bias_ih, u.weight_hh @ state + u.bias_hh
    (r, z, n), (hr, hz, hn) = given.chunk(3), own.chunk(3)
    reset, update = torch.sigmoid(r + hr), torch.sigmoid(z + hz)
    return (1 - update) * torch.tanh(n + reset * hn) + update * state


def by_loops(head, states, premise, hypothesis, update_first):
    """One row, place by place and step by step: the order of the authors' code, or of the paper's formula."""
    first, second = states[premise], states[hypothesis]
    weights = torch.stack([head.start.weight[0] @ h for h in second]).exp()
    state = sum(w * h for w, h in zip(weights / weights.sum(), second, strict=True))
    found = torch.zeros(head.classifier.out_features)
    for _ in range(head.steps):
        weights = torch.stack([(head.attend.weight @ state) @ p for p in first]).exp()
        seen = sum(w * p for w, p in zip(weights / weights.sum(), first, strict=True))
        state, before = gru(head, seen, state), state
        own = state if update_first else before
        features = torch.cat([own, seen, own * seen, (own - seen).abs()])
        found += head.classifier(features).softmax(dim=-1) / head.steps
    return found


class TestSteps:
    @pytest.mark.parametrize("steps", [1, 5])
    @pytest.mark.parametrize("update_first", [False, True])
    def test_the_whole_head_in_loops(self, update_first, steps):
        head = head_of(update_first=update_first, steps=steps)
        states = torch.randn(2, 7, 4)
        premise = torch.tensor([[0, 1, 1, 1, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0]]).bool()
        hypothesis = torch.tensor([[0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1, 0]]).bool()
        with torch.no_grad():
            found = head(states, premise, hypothesis)
            rows = list(zip(states, premise, hypothesis, strict=True))
            expected, other = (
                torch.stack([by_loops(head, *row, order) for row in rows]) for order in (update_first, not update_first)
            )
        assert torch.allclose(found.exp(), expected, atol=1e-6)
        assert not torch.allclose(found.exp(), other, atol=1e-3), "the order is told apart"
        assert found.exp().sum(dim=1).tolist() == pytest.approx([1, 1])

    def test_a_summary_by_hand(self):
        states = torch.tensor([[[1.0, 0.0], [3.0, 4.0], [100.0, 100.0]]])
        scores = torch.tensor([[0.0, math.log(3.0), 50.0]])
        chosen = torch.tensor([[True, True, False]])
        assert summary(states, scores, chosen)[0].tolist() == pytest.approx([0.25 * 1 + 0.75 * 3, 0.75 * 4])
        assert summary(states, scores, ~chosen)[0].tolist() == pytest.approx([100, 100])
        assert summary(states, scores, torch.zeros_like(chosen))[0].tolist() == [0, 0]

    def test_probabilities_are_averaged_and_not_logits(self):
        answers = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]]).log_softmax(dim=-1)
        assert mean_answer(answers).exp()[0].tolist() == pytest.approx([0.574869, 0.425131], abs=1e-6)
        kept = torch.tensor([[False, True]])
        assert torch.allclose(mean_answer(answers, kept), answers[:, 1])

    def test_a_tenth_of_the_steps_is_dropped_and_never_all(self):
        answers = torch.zeros(20_000, 5, 2)
        torch.manual_seed(1)
        kept = head_of()._kept(answers).double()
        # A step is kept by chance, or because it is the one that always is.
        assert kept.mean().item() == pytest.approx(0.9 + 0.1 / 5, abs=0.005)
        assert kept.mean(dim=0).numpy() == pytest.approx([0.92] * 5, abs=0.01)
        torch.manual_seed(1)
        alone = head_of(step_dropout=1.0)._kept(answers)
        assert (alone.sum(dim=1) == 1).all()
        assert alone.double().mean(dim=0).numpy() == pytest.approx([0.2] * 5, abs=0.02)

    def test_steps_are_dropped_in_training_alone(self):
        model = networked(dropout=0.0, step_dropout=0.5)
        inputs = {"input_ids": torch.arange(5, 25).reshape(2, 10).repeat(4, 1)}
        inputs["input_ids"][:, 4] = model.tokenizer.sep_token_id
        model.model.inner.eval()
        with torch.no_grad():
            whole = [model.model(**inputs).logits for _ in range(2)]
            model.model.head.train()
            torch.manual_seed(2)
            dropped = [model.model(**inputs).logits for _ in range(2)]
        assert torch.equal(*whole)
        assert not torch.allclose(dropped[0], dropped[1])
        assert not torch.allclose(dropped[0][0], dropped[0][2]), "each row drops its own steps"


class TestNetwork:
    @pytest.mark.parametrize("family", at_first(STANDING, "bert", "roberta", "xlnet"))
    def test_it_reads_the_two_texts_whatever_the_family(self, family):
        spec = PAIRS.spec.model_copy(update={"max_length": 96})
        model = with_answer_network(tiny_taskmodel(family, spec), spec)
        batch = rows_of(model, PAIRS.train, 1).batch([0, 1, 2])
        texts = words_of_texts(batch.inputs["input_ids"], batch.mask, model.model.config)
        for row in range(3):
            for side, words in zip(("text_a", "text_b"), texts, strict=True):
                own = model.tokenizer.decode(batch.inputs["input_ids"][row][words[row]])
                assert own.replace(" ", "") == PAIRS.train[row][side].replace(" ", "")

    @pytest.mark.parametrize("family", at_first(STANDING, "bert", "xlnet"))
    def test_padding_and_batch_mates_change_nothing(self, family):
        model = networked(family)
        together = np.array(predict(model, PAIRS.validation, batch_size=40).logits)
        alone = np.array(predict(model, PAIRS.validation, batch_size=1).logits)
        assert np.abs(together - alone).max() < 1e-5

    def test_the_encoder_is_a_copy_and_the_head_follows_the_seed(self):
        base = tiny_taskmodel("bert", PAIRS.spec)
        one, same, other = (with_answer_network(base, PAIRS.spec, seed) for seed in (1, 1, 2))
        assert one.digest == same.digest != other.digest
        own, given = base_encoder(one.model).state_dict(), base_encoder(base.model).state_dict()
        assert not any(name.startswith("pooler") for name in own)
        assert all(torch.equal(own[name], given[name]) for name in own)

    @pytest.mark.parametrize("update_first", [False, True])
    @pytest.mark.parametrize("family", at_first(STANDING, "bert"))
    def test_it_is_saved_loaded_and_exported(self, family, update_first, tmp_path):
        model = networked(family, update_first=update_first)
        Artifact.from_model(model).save(tmp_path / "model")
        loaded = load(tmp_path / "model")
        assert loaded.digest == model.digest
        assert np.array_equal(predict(loaded, PAIRS.test).logits, predict(model, PAIRS.test).logits)
        report = export_onnx(loaded, tmp_path / "onnx", examples=PAIRS.validation)
        assert report.gate.passed
        found = Runtime(tmp_path / "onnx").predict(list(PAIRS.test)).logits
        assert np.allclose(found, predict(model, PAIRS.test).logits, atol=1e-5)

    @pytest.mark.slow
    def test_a_fresh_process_loads_it(self, tmp_path):
        model = networked()
        Artifact.from_model(model).save(tmp_path / "model")
        code = f"from compress import load; print(load({str(tmp_path / 'model')!r}).digest)"
        printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert printed.stdout.strip() == model.digest
        assert "compress.load" in (tmp_path / "model" / "README.md").read_text()

    @pytest.mark.parametrize(
        ("task", "family", "match"),
        [
            (tiny_task(), "bert", "classes of pairs of texts, and the task is classification of single texts"),
            (tiny_task("regression", pair=True), "bert", "the task is regression of pairs"),
            (PAIRS, "mobilebert", "cannot stand on MobileBERT"),
        ],
    )
    def test_what_it_cannot_do_is_refused(self, task, family, match):
        base = tiny_taskmodel(family, task.spec)
        with pytest.raises(UserError, match=match):
            with_answer_network(base, task.spec)
        assert len(unanswerable(base, task.spec)) == 1


class TestTraining:
    def test_it_learns_and_is_found_again(self, tmp_path, monkeypatch):
        monkeypatch.setenv("COMPRESS_HOME", str(tmp_path))
        moods, splits = tiny_task(examples=64), {}
        for name, examples in moods.splits.items():  # the second text has the mood that is asked for
            rows = [{"text_a": "the film", "text_b": e["text"], "label": e["label"]} for e in examples]
            splits[name] = Examples(rows, name)
        task = Task(PAIRS.spec, splits)
        training = Training(epochs=6, learning_rate=3e-3, batch_size=8)
        teacher, folder = finetune(networked(), task, training)
        assert scores(teacher, task.validation)["accuracy"] >= 0.9
        again, same = finetune(networked(), task, training)
        assert same == folder
        assert again.digest == teacher.digest

    @pytest.mark.parametrize("first", ["mood", "same"])
    def test_it_shares_its_encoder_with_stock_models(self, first):
        tasks = {"mood": tiny_task(examples=16), "same": tiny_task(pair=True, examples=16)}
        models = {"mood": tiny_taskmodel("bert", tasks["mood"].spec), "same": networked()}
        models = {name: models[name] for name in sorted(models, key=lambda name: name != first)}
        history = train_together(models, tasks, training=Training(epochs=2, batch_size=8, learning_rate=1e-3))
        assert set(history[0]["terms"]) == {"mood.task", "same.task"}
        encoders = [base_encoder(model.model) for model in models.values()]
        own, other = ({n: p for n, p in e.named_parameters() if not n.startswith("pooler.")} for e in encoders)
        assert own.keys() == other.keys()
        assert all(own[name] is other[name] for name in own)

    def test_a_recipe_names_it(self, tmp_path, monkeypatch, capsys):
        monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
        (tmp_path / "base").mkdir()
        save_taskmodel(tiny_taskmodel("bert", tiny_spec("masked-lm")), tmp_path / "base")
        (tmp_path / "recipe.yaml").write_text(
            f"task: {{kind: regression, data: {tmp_path}}}\n"
            f"teacher: {{model: {tmp_path / 'base'}, finetune: {{head: answer_network, max_steps: 1}}}}\n"
        )
        lines = '{"text_a": "a", "text_b": "b", "label": 1}\n{"text_a": "a", "text_b": "c", "label": 0}\n'
        for split in ("train", "validation"):
            (tmp_path / f"{split}.jsonl").write_text(lines)
        path = str(tmp_path / "recipe.yaml")
        assert main(["check", path]) == 2
        assert (
            "recipe.yaml:2: teacher.finetune.head: answer_network: is for classes of pairs" in capsys.readouterr().err
        )
        assert main(["check", path, "--set", "task.kind=classification"]) == 0, capsys.readouterr().err
        out = tmp_path / "out"
        assert main(["teach", "--recipe", path, "--set", "task.kind=classification", "--out", str(out)]) == 0
        assert load(out).model.config.model_type == "compress-answer-network"
        assert not load(out).model.config.update_first

    def test_a_recipe_sets_its_fields(self):
        plain, own = (FinetuneBlock(head=head).head for head in ("answer_network", {"answer_network": {"steps": 2}}))
        first = FinetuneBlock(head={"answer_network": {"steps": 3, "dropout": 0.0, "update_first": True}}).head
        base = tiny_taskmodel("bert", PAIRS.spec)
        found = [head.on(base, PAIRS.spec, seed=3).model for head in (plain, own, first)]
        assert [one.head.steps for one in found] == [5, 2, 3]
        assert [one.head.update_first for one in found] == [False, False, True]
        assert [one.config.dropout for one in found] == [0.1, 0.1, 0.0]
        with pytest.raises(ValueError, match=r"steps\n.*greater than or equal to 1"):
            FinetuneBlock(head={"answer_network": {"steps": 0}})
        with pytest.raises(ValueError, match="head"):
            FinetuneBlock(head="none")
