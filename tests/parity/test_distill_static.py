"""Static vectors against slow loops: the weights, the vectors of single tokens, the mean, and the whole table."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from compress import Inputs, Recipe, UserError, load, run
from compress.architectures.static_network import StaticConfig, StaticForSequenceClassification
from compress.architectures.token_network import matched
from compress.distill.components.token_vectors import output_vectors, reduced, smooth_inverse_frequency
from compress.distill.static import StaticDistillation
from compress.export import Runtime, export_onnx
from eval.cost.size import onnx_size
from eval.inference import predict
from eval.task import TaskSpec
from teachers.anatomy.encoder import word_embeddings
from teachers.data.encoded_dataset import Batch
from teachers.signals.hooks import Signals
from teachers.signals.model_teacher import ModelTeacher
from tests.tiny import tiny_task, tiny_taskmodel

SMALL = {"dense_size": 8, "max_steps": 3, "batch_size": 8}


def distilled(family="bert", kind="classification", pair=False, cache=None, **fields):
    task = tiny_task(kind, pair=pair)
    source = tiny_taskmodel(family, task.spec)
    inputs = Inputs(train=task.train, validation=task.validation, teacher=ModelTeacher(source, cache=cache))
    step = StaticDistillation(**{**SMALL, **fields})
    return run(Recipe(steps=(step,)), source, inputs, dry_run_first=False), task, source


def test_smooth_inverse_frequency_by_hand():
    weights = smooth_inverse_frequency(torch.tensor([900, 99, 1, 0]), 1e-3)
    assert weights.tolist() == pytest.approx([0.001 / 0.901, 0.001 / 0.1, 0.5, 1.0])
    assert smooth_inverse_frequency(torch.zeros(3), 1e-3).tolist() == [1.0] * 3


@pytest.mark.parametrize(
    ("family", "around"), [("bert", ("[CLS]", "[SEP]")), ("roberta", ("<s>", "</s>")), ("xlnet", ("", "<sep><cls>"))]
)
def test_vectors_are_those_of_each_token_read_alone(family, around):
    model = tiny_taskmodel(family)
    tokenizer, found = model.tokenizer, output_vectors(model)
    ids = tokenizer.convert_tokens_to_ids
    before, after = ([ids(word) for word in part.replace("><", "> <").split()] for part in around)
    assert found.shape == (model.model.config.vocab_size, 32)
    for token in (0, 7, len(found) - 1):
        row = torch.tensor([[*before, token, *after]])
        types = {"token_type_ids": torch.tensor([[0, 0, 2]])} if family == "xlnet" else {}
        with torch.no_grad():
            states = model.model(input_ids=row, output_hidden_states=True, **types).hidden_states[-1]
        assert torch.allclose(found[token], states.mean(dim=1)[0], atol=1e-5)


def test_the_table_is_the_weighted_principal_part_of_the_vectors(tmp_path):
    result, task, source = distilled(cache=tmp_path, embedding_size=5, smoothing=0.01)
    counts = np.zeros(source.model.config.vocab_size)
    outside = {source.tokenizer.convert_tokens_to_ids(word) for word in ("[PAD]", "[CLS]", "[SEP]")}
    for example in task.train:
        for token in source.tokenizer(example["text"])["input_ids"]:
            counts[token] += token not in outside
    expected = reduced(output_vectors(source), 5)[0]
    for token, count in enumerate(counts):
        expected[token] *= 0.01 / (0.01 + count / counts.sum())
    squares = sum(count * vector.square().mean() for count, vector in zip(counts, expected, strict=True)) / counts.sum()
    expected /= squares.sqrt()
    expected[source.tokenizer.pad_token_id] = 0
    table = word_embeddings(result.model).weight
    assert torch.allclose(table, expected, atol=1e-5)  # it stayed as it was while the head was trained
    facts = result.lineage[-1].facts
    assert facts["tokens_seen"] == (counts > 0).sum()
    assert 0 < facts["embedding_variance_kept"] < 1


def test_input_vectors_and_a_table_that_is_trained(tmp_path):
    result, _, source = distilled(cache=tmp_path, vectors="input", freeze=(), embedding_size=64)
    start = reduced(word_embeddings(source.model).weight.detach(), 32)[0]
    table = word_embeddings(result.model).weight
    assert table.shape == start.shape
    fixed, _, _ = distilled(cache=tmp_path, vectors="input", embedding_size=64)
    assert not torch.allclose(table, word_embeddings(fixed.model).weight)


@pytest.mark.parametrize("pair", [False, True])
def test_the_network_is_the_slow_loop(pair):
    torch.manual_seed(4)
    config = StaticConfig(
        vocab_size=12, embedding_size=6, dense_size=7, pair=pair, skipped_ids=[0, 1, 2], separator_id=2
    )
    network = StaticForSequenceClassification(config).eval()
    rows = [[1, 5, 6, 2, 7, 2], [1, 4, 2, 8, 9, 10, 2]]
    ids, mask = torch.zeros(2, 9, dtype=torch.int64), torch.zeros(2, 9, dtype=torch.int64)
    for row, tokens in enumerate(rows):
        ids[row, : len(tokens)], mask[row, : len(tokens)] = torch.tensor(tokens), 1
    with torch.no_grad():
        logits = network(input_ids=ids, attention_mask=mask).logits
        for row, tokens in enumerate(rows):
            texts, current = [], []
            for token in tokens[1:]:
                if token == 2 and pair:
                    texts.append(current)
                    current = []
                elif token != 2:
                    current.append(network.encoder.words.weight[token])
            means = [sum(vectors) / len(vectors) for vectors in (texts if pair else [current])]
            features = matched(*means) if pair else means[0]
            slow = network.head.classifier(torch.relu(network.head.dense(features)))
            assert torch.allclose(logits[row], slow, atol=1e-6)


def test_two_texts_meet_as_in_the_paper():
    first, second = torch.tensor([[1.0, -2.0]]), torch.tensor([[3.0, 0.5]])
    assert matched(first, second).tolist() == [[1, -2, 3, 0.5, 3, -1, 2, 2.5]]


def test_the_loss_is_the_divergence_from_the_soft_targets():
    own, other = torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 0.0]])
    mask = torch.ones(1, 1, dtype=torch.int64)
    batch = Batch({"input_ids": mask, "attention_mask": mask}, {"labels": torch.tensor([0])}, torch.arange(1))
    student = SimpleNamespace(task=TaskSpec(kind="classification", labels=("a", "b")))
    teacher = SimpleNamespace(read=lambda rows: lambda batch: Signals(other))
    terms = StaticDistillation().bind(student, None, teacher)(Signals(own), batch)
    p = torch.softmax(other, dim=1)
    expected = (p * (p.log() - torch.log_softmax(own, dim=1))).sum().item()
    assert {name: value.item() for name, value in terms.items()} == {"soft": pytest.approx(expected, abs=1e-6)}


@pytest.mark.parametrize("family", ["bert", "roberta", "xlnet"])
@pytest.mark.parametrize(("kind", "pair"), [("classification", True), ("regression", False)])
def test_it_is_saved_loaded_and_exported(kind, pair, family, tmp_path):
    result, task, _ = distilled(family, kind, pair, cache=tmp_path / "signals", dense_size=16)
    result.save(tmp_path / "model")
    own = np.stack(predict(result, task.validation).logits)
    assert np.array_equal(own, np.stack(predict(load(tmp_path / "model"), task.validation).logits))
    assert "Standard `from_pretrained` cannot load this folder" in (tmp_path / "model" / "README.md").read_text()
    report = export_onnx(result, tmp_path / "onnx", examples=task.validation)
    exported = np.stack(predict(Runtime(tmp_path / "onnx"), task.validation).logits)
    assert np.allclose(own, exported, atol=1e-5)
    size = onnx_size(tmp_path / "onnx" / "model.onnx")
    assert (size.parameters, size.macs) == (result.size().parameters, result.size().macs)
    small = export_onnx(result, tmp_path / "int8", int8=True, examples=task.validation, agreement=0.8)
    assert small.quantized["tables"] == 1
    assert small.bytes < report.bytes


def test_it_learns_a_rule_of_single_words(tmp_path):
    """Good and bad words decide, so no context is needed: on labels only it answers new sentences."""
    task = tiny_task("classification")
    step = StaticDistillation(epochs=20, learning_rate=0.02, batch_size=8).without_teacher()
    result = run(Recipe(steps=(step,)), tiny_taskmodel("bert", task.spec), Inputs(train=task.train))
    answers = predict(result, task.validation).answers
    right = [answer["label"] == example["label"] for answer, example in zip(answers, task.validation, strict=True)]
    assert np.mean(right) >= 0.9


def test_tags_need_context(tmp_path):
    task = tiny_task("tagging")
    tagger = tiny_taskmodel("bert", task.spec)
    inputs = Inputs(train=task.train, teacher=ModelTeacher(tagger, cache=tmp_path))
    with pytest.raises(UserError, match=r"distill\.static: cannot do tagging with static vectors; it does cla"):
        run(Recipe(steps=(StaticDistillation(**SMALL),)), tagger, inputs)
