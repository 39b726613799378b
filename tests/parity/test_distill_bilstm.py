"""The distilled BiLSTM against packed sequences of torch, the sheet's counts of parameters, and its loss by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from compress import Inputs, Recipe, UserError, load, run
from compress.architectures.bilstm_network import BiLstm, BiLstmConfig, BiLstmForSequenceClassification, align_left
from compress.distill.bilstm import BiLstmDistillation
from compress.distill.components.token_vectors import of_one_size, reduced
from compress.distill.labels import LabelTraining
from compress.export import Runtime, export_onnx
from eval.cost.size import onnx_size
from eval.inference import predict
from eval.task import TaskSpec
from teachers.data.encoded_dataset import Batch
from teachers.signals.hooks import Signals
from teachers.signals.model_teacher import ModelTeacher
from tests.tiny import tiny_task, tiny_taskmodel

SMALL = {"hidden_size": 8, "dense_size": 8, "max_steps": 3, "batch_size": 8}


def distilled(family="bert", kind="classification", pair=False, cache=None, **fields):
    task = tiny_task(kind, pair=pair)
    source = tiny_taskmodel(family, task.spec)
    inputs = Inputs(train=task.train, validation=task.validation, teacher=ModelTeacher(source, cache=cache))
    return run(Recipe(steps=(BiLstmDistillation(**{**SMALL, **fields}),)), source, inputs, dry_run_first=False), task


def packed(encoder, sequence):
    """Read one sequence of ids with torch's own bidirectional LSTM; return its last states and the state of each."""
    both = nn.LSTM(encoder.ahead.input_size, encoder.ahead.hidden_size, batch_first=True, bidirectional=True)
    for name, tensor in encoder.ahead.state_dict().items():
        both.state_dict()[name].copy_(tensor)
        both.state_dict()[f"{name}_reverse"].copy_(encoder.back.state_dict()[name])
    words = encoder.words(torch.tensor([[*sequence, 0, 0]]))
    outputs, (last, _) = both(pack_padded_sequence(words, [len(sequence)], batch_first=True))
    return torch.cat([last[0], last[1]], dim=-1)[0], pad_packed_sequence(outputs, batch_first=True)[0][0]


@pytest.mark.parametrize("side", ["left", "right"])
def test_states_are_those_of_packed_sequences(side):
    torch.manual_seed(1)
    encoder = BiLstm(BiLstmConfig(vocab_size=20, embedding_size=6, hidden_size=5))
    sequences = [[3, 7, 4, 9, 11], [8], [5, 5, 6]]
    ids, chosen = torch.zeros(3, 7, dtype=torch.int64), torch.zeros(3, 7, dtype=torch.bool)
    places = [slice(7 - len(s), 7) if side == "left" else slice(0, len(s)) for s in sequences]
    for row, (sequence, place) in enumerate(zip(sequences, places, strict=True)):
        ids[row, place], chosen[row, place] = torch.tensor(sequence), True
    with torch.no_grad():
        texts, tokens = encoder(ids, chosen)
        for row, (sequence, place) in enumerate(zip(sequences, places, strict=True)):
            text, states = packed(encoder, sequence)
            assert torch.allclose(texts[row], text, atol=1e-6)
            assert torch.allclose(tokens[row, place], states, atol=1e-6)


def test_only_chosen_tokens_are_read_in_their_order():
    ids = torch.tensor([[7, 1, 8, 2, 9], [4, 5, 6, 1, 2]])
    chosen = torch.tensor([[True, False, True, False, True], [False, False, False, False, False]])
    moved, places = align_left(ids, chosen, fill=0)
    assert moved.tolist() == [[7, 8, 9, 0, 0], [0, 0, 0, 0, 0]]
    assert places.tolist() == [[0, 0, 1, 0, 2], [0, 0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("hidden", "pair", "classes", "expected"),
    [(150, False, 2, 542_400 + 60_602), (300, True, 2, 1_925_402), (150, True, 3, 783_203)],
)
def test_parameters_by_the_formula_of_the_sheet(hidden, pair, classes, expected):
    config = BiLstmConfig(hidden_size=hidden, embedding_size=300, vocab_size=11, pair=pair, num_labels=classes)
    network = BiLstmForSequenceClassification(config)
    counted = sum(parameter.numel() for parameter in network.parameters())
    assert counted - 11 * 300 == expected


def test_multiply_accumulates_by_hand():
    from eval.cost.size import macs

    network = BiLstmForSequenceClassification(BiLstmConfig(hidden_size=150, embedding_size=300, vocab_size=11))
    assert macs(network, length=9) == 9 * 2 * 4 * 150 * (300 + 150) + 300 * 200 + 200 * 2


def test_the_loss_by_hand():
    """The sheet's logits: squares of 5 and 4 in two rows, 2.25 over all; a constant added to the logits counts."""
    own, other = torch.tensor([[1.0, 1.0], [0.0, 3.0]]), torch.tensor([[2.0, -1.0], [0.0, 1.0]])
    mask = torch.ones(2, 1, dtype=torch.int64)
    batch = Batch({"input_ids": mask, "attention_mask": mask}, {"labels": torch.tensor([0, 1])}, torch.arange(2))
    student = SimpleNamespace(task=TaskSpec(kind="classification", labels=("a", "b")))
    teacher = SimpleNamespace(read=lambda rows: lambda batch: Signals(other))
    terms = BiLstmDistillation().bind(student, None, teacher)(Signals(own), batch)
    assert {name: value.item() for name, value in terms.items()} == {"soft": 2.25}
    assert BiLstmDistillation().bind(student, None, teacher)(Signals(other), batch)["soft"] == 0
    assert BiLstmDistillation().bind(student, None, teacher)(Signals(other + 1), batch)["soft"] == 1
    both = BiLstmDistillation(alpha=0.75).bind(student, None, teacher)(Signals(own), batch)
    hard = (-np.log(0.5) - np.log(1 / (1 + np.exp(-3)))) / 2
    assert both["soft"].item() == pytest.approx(0.75 * 2.25)
    assert both["task"].item() == pytest.approx(0.25 * hard, rel=1e-5)


def test_principal_axes_by_a_singular_value_decomposition():
    vectors = torch.randn(40, 6, generator=torch.Generator().manual_seed(2)) * torch.tensor([5.0, 3, 2, 1, 0.5, 0.1])
    found, kept = reduced(vectors + 7, 3)
    left, values, _ = np.linalg.svd((vectors - vectors.mean(0)).double().numpy(), full_matrices=False)
    assert np.allclose(found.abs().numpy(), np.abs(left[:, :3] * values[:3]), atol=1e-4)
    assert kept == pytest.approx((values[:3] ** 2).sum() / (values**2).sum(), abs=1e-6)
    whole, all_kept = reduced(vectors, 9)
    assert whole.shape == (40, 6)
    assert all_kept == pytest.approx(1.0)
    assert torch.allclose(torch.pdist(whole), torch.pdist(vectors), atol=1e-5)
    assert of_one_size(vectors).square().mean().item() == pytest.approx(1.0, rel=1e-5)


def test_it_learns_what_the_teacher_says_not_the_labels(tmp_path):
    result, _ = distilled(cache=tmp_path, max_steps=60, learning_rate=0.02)
    history = result.lineage[-1].facts["history"]
    assert history[-1]["terms"].keys() == {"soft"}
    assert history[-1]["loss"] < 0.5 * history[0]["loss"]
    facts = result.lineage[-1].facts
    assert (facts["network"], facts["embedding_size"]) == ("compress-bilstm", 32)
    assert facts["embedding_variance_kept"] == pytest.approx(1.0)


def test_without_a_teacher_it_is_the_same_network_on_the_labels(tmp_path):
    technique = BiLstmDistillation(**SMALL).without_teacher()
    assert technique.needed() == {"train"}
    task = tiny_task("classification")
    result = run(Recipe(steps=(technique,)), tiny_taskmodel("bert", task.spec), Inputs(train=task.train))
    assert result.lineage[-1].facts["history"][-1]["terms"].keys() == {"task"}
    assert result.size().parameters == distilled(cache=tmp_path)[0].size().parameters


@pytest.mark.parametrize("family", ["bert", "roberta", "xlnet", "modernbert"])
def test_the_texts_of_a_pair_are_told_apart(family, tmp_path):
    """Whatever the tokenizer's special tokens, equal texts give equal vectors: a difference of 0 and a square."""
    result, _ = distilled(family, pair=True, cache=tmp_path)
    seen = []
    result.model.head.register_forward_hook(lambda module, texts, output: seen.append(texts))
    same, other = {"text_a": "the film is good", "text_b": "the film is good"}, {"text_a": "good", "text_b": "sad song"}
    predict(result, [same, other], batch_size=2)
    (first, second), equal = seen[0], seen[0][0].isclose(seen[0][1], atol=1e-6).all(dim=1)
    assert sorted(equal.tolist()) == [False, True]
    alone = predict(result, [{"text_a": "sad song", "text_b": "good"}]) and seen[-1]
    row = equal.tolist().index(False)
    assert torch.allclose(alone[0][0], second[row], atol=1e-6)
    assert torch.allclose(alone[1][0], first[row], atol=1e-6)


@pytest.mark.parametrize("family", ["bert", "xlnet"])
@pytest.mark.parametrize(("kind", "pair"), [("regression", True), ("tagging", False)])
def test_other_tasks_are_saved_loaded_and_exported(kind, pair, family, tmp_path):
    result, task = distilled(family, kind, pair, cache=tmp_path / "signals")
    result.save(tmp_path / "model")
    own = predict(result, task.validation).logits
    again = predict(load(tmp_path / "model"), task.validation).logits
    assert all(np.array_equal(a, b) for a, b in zip(own, again, strict=True))
    report = export_onnx(result, tmp_path / "onnx", examples=task.validation)
    assert report.gate.max_abs_difference < 1e-5
    exported = predict(Runtime(tmp_path / "onnx"), task.validation).logits
    assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(own, exported, strict=True))


@pytest.mark.parametrize("pair", [False, True])
def test_an_export_counts_as_the_model_does(pair, tmp_path):
    result, task = distilled(pair=pair, hidden_size=16, dense_size=16, cache=tmp_path / "signals")
    report = export_onnx(result, tmp_path / "onnx", examples=task.validation)
    assert report.exporter == "tracer"
    size = onnx_size(tmp_path / "onnx" / "model.onnx")
    assert (size.parameters, size.macs) == (result.size().parameters, result.size().macs)
    small = export_onnx(result, tmp_path / "int8", int8=True, examples=task.validation, agreement=0.9)
    assert small.quantized["tables"] == 1
    assert {"encoder.ahead", "encoder.back"} <= set(small.quantized["float"])
    assert small.bytes < report.bytes


def test_a_text_without_words_is_answered(tmp_path):
    result, _ = distilled(cache=tmp_path)
    alone = predict(result, [{"text": ""}]).logits[0]
    beside = predict(result, [{"text": ""}, {"text": "the film is good"}], batch_size=2).logits[0]
    assert np.isfinite(alone).all()
    assert np.allclose(alone, beside, atol=1e-6)


def test_what_cannot_be_is_refused_by_name(tmp_path):
    task = tiny_task("qa")
    reader = tiny_taskmodel("bert", task.spec)
    teacher = ModelTeacher(reader, cache=tmp_path)
    with pytest.raises(
        UserError, match=r"distill\.bilstm: cannot do qa with a BiLSTM; it does classification, multilabel, reg"
    ):
        run(Recipe(steps=(BiLstmDistillation(),)), reader, Inputs(train=task.train, teacher=teacher))
    made, task = distilled(cache=tmp_path)
    inputs = Inputs(train=task.train, teacher=ModelTeacher(tiny_taskmodel("bert", task.spec), cache=tmp_path))
    with pytest.raises(UserError, match=r"step 1, distill\.bilstm: works on transformer layers, and model has none"):
        run(Recipe(steps=(BiLstmDistillation(**SMALL),)), made, inputs)
    healed = run(Recipe(steps=(LabelTraining(max_steps=1),)), made, inputs)
    assert [record.technique for record in healed.lineage] == ["source", "distill.bilstm", "distill.labels"]
