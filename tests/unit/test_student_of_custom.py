"""Students of networks that stand around a standard one, or have no transformer layers."""

from dataclasses import replace

import pytest
import torch

from compress.architectures.answer_network import with_answer_network
from compress.architectures.bilstm_network import BiLstmConfig, BiLstmForSequenceClassification
from compress.architectures.early_exit_network import EarlyExitForSequenceClassification
from compress.architectures.wrapped_encoder import standard_within
from compress.recipe.head_block import HeadBlock
from compress.student.predicted_cost import predicted_cost
from compress.student.student import Student
from eval.cost.size import macs
from eval.errors import UserError
from teachers.anatomy.encoder import base_encoder
from teachers.taskmodel import evaluating
from tests.tiny import FAMILIES, LAYERS, at_first, tiny_task, tiny_taskmodel

STANDING = at_first([name for name in FAMILIES if name != "mobilebert"], "bert", "xlnet")


def states(network, model, examples):
    inputs = model.encoder.collate(model.encoder.encode(examples))
    tensors = {name: torch.from_numpy(values) for name, values in inputs.items()}
    with evaluating(network):
        return network(**tensors).last_hidden_state[tensors["attention_mask"].bool()]


@pytest.mark.parametrize("family", STANDING)
@pytest.mark.parametrize("head", ["concat_pooling", "scalar_mix", "k_adapter", "answer_network"])
def test_the_student_has_the_encoder_and_a_new_standard_head(family, head):
    task = tiny_task(pair=head == "answer_network")
    base = tiny_taskmodel(family, task.spec)
    if head == "answer_network":
        if base.tokenizer.sep_token is None:
            pytest.skip("an answer network needs a tokenizer with a separator")
        teacher = with_answer_network(base, task.spec, 3)
    else:
        teacher = HeadBlock.model_validate({head: {}}).on(base, task.spec, seed=3)
    student = Student(layers=tuple(range(LAYERS))).build(teacher, seed=5)
    assert type(student.model) is type(base.model)
    rows = task.train[:4]
    found = states(base_encoder(student.model), student, rows)
    torch.testing.assert_close(found, states(teacher.model.inner, teacher, rows), atol=1e-6, rtol=1e-6)
    assert student.digest == Student().build(teacher, seed=5).digest
    assert student.digest != Student().build(teacher, seed=6).digest
    assert Student(layers=2).problems(teacher) == []
    found = Student(layers=2).predict(teacher)
    assert found.student == predicted_cost(Student(layers=2).build(base).model.config, task.spec)
    assert found.teacher.parameters == sum(weights.numel() for weights in teacher.model.parameters())
    assert found.teacher.macs == macs(teacher.model, length=found.teacher.length)


def test_the_student_of_an_early_exit_network_has_its_head_too():
    task = tiny_task()
    base = tiny_taskmodel("bert", task.spec)
    network = EarlyExitForSequenceClassification.around(base.model, exits=[0], branch_size=8, first=0, speed=0.5)
    teacher = replace(base, model=network)
    student = Student().build(teacher)
    assert student.digest == base.digest
    assert Student().predict(teacher).teacher.parameters == sum(one.numel() for one in network.parameters())
    assert standard_within(student) is student


def test_a_network_without_layers_is_refused_before_it_is_taken_apart():
    base = tiny_taskmodel("bert", tiny_task().spec)
    config = BiLstmConfig(vocab_size=len(base.tokenizer), embedding_size=6, hidden_size=5, num_labels=2)
    teacher = replace(base, model=BiLstmForSequenceClassification(config).eval(), name="small")
    said = "student: small has no transformer layers to take; give from: a model folder or hub name"
    assert Student(layers=2).problems(teacher) == [said]
    with pytest.raises(UserError, match=said):
        Student(layers=2).build(teacher)
