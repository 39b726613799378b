"""Narrower networks with an encoder and a decoder, and those that divide no attention score by its channels."""

import pytest
import torch

from compress.student.student import Student
from teachers.anatomy.encoder import layer_parts, layers
from tests.tiny import tiny_spec, tiny_taskmodel


@pytest.mark.parametrize(
    ("family", "kind"), [("t5", "seq2seq"), ("gpt_neo", "classification"), ("opt", "classification")]
)
def test_queries_are_scaled_where_scores_are_divided(family, kind):
    source = tiny_taskmodel(family, tiny_spec(kind))
    built = Student(hidden_size=16, init="width").build(source)
    old, new = (layer_parts(m.model, layers(m.model)[0])["query"].weight.flatten() for m in (source, built))
    expected = old * 0.5**0.5 if family == "opt" else old
    assert bool(torch.isclose(new[:, None], expected, atol=0, rtol=1e-6).any(dim=1).all())
