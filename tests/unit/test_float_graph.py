"""The graph that all forms of an export start from."""

from dataclasses import replace

import pytest

from compress.onnx_graph import float_graph as module
from compress.onnx_graph.float_graph import float_graph, traced_once
from compress.testing.tiny import tiny_spec, tiny_taskmodel


@pytest.fixture
def traces(monkeypatch):
    """The models that were traced."""
    found, traced = [], module._traced
    monkeypatch.setattr(module, "_traced", lambda model, opset: (found.append(model), traced(model, opset))[1])
    return found


def test_a_model_is_traced_once_and_each_gets_a_graph_of_its_own(traces):
    model = tiny_taskmodel("bert", tiny_spec())
    with traced_once():
        first = float_graph(model)
        del first.graph.graph.node[:]
        with traced_once():
            second = float_graph(replace(model, name="another name"))
        third = float_graph(model)
    assert len(traces) == 1
    assert len(second.graph.graph.node) > 0
    assert second.graph == third.graph
    assert second.one_token == third.one_token


def test_other_weights_operators_or_times_are_traced_anew(traces):
    model, other = tiny_taskmodel("bert", tiny_spec()), tiny_taskmodel("bert", tiny_spec())
    with traced_once():
        float_graph(model), float_graph(other), float_graph(model, 18)
    float_graph(model)
    float_graph(model)
    assert len(traces) == 5
