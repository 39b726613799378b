"""Longformer by blocks: the standard class's numbers, what becomes one, and graphs that take every length."""

import copy

import numpy as np
import pytest
import torch
import transformers

from compress import Student
from compress.artifact.artifact import load
from compress.artifact.structure import structure_of
from compress.distill.logits import LogitDistillation
from compress.engine.steps import run
from compress.export import export_onnx
from compress.export.runtime import Runtime
from compress.modules.int8_scheme import Int8
from compress.onnx_graph.build import onnx_graph
from compress.onnx_graph.static_shapes import probed_sizes
from compress.prune.heads import HeadPruning
from compress.prune.layers import LayerPruning
from compress.prune.vocabulary import VocabularyPruning
from compress.recipe import Recipe
from compress.recipe.head_block import HeadBlock
from compress.technique import Inputs
from eval.errors import UserError
from teachers.anatomy.attention_heads import head_counts
from teachers.anatomy.axes import tensor_axes
from teachers.anatomy.encoder import base_encoder, embedding_parts, first_position, layer_parts, layers, max_tokens
from teachers.anatomy.forms.longformer_form import question_tokens
from teachers.limits import window_problems
from teachers.signals.model_teacher import ModelTeacher
from teachers.taskmodel import load_taskmodel, save_taskmodel
from tests.tiny import HEADS, HIDDEN, POSITIONS, tiny_config, tiny_task, tiny_taskmodel, tiny_tokenizer

TASK = tiny_task()
WINDOW = 8
LENGTHS = (3, 4, 5, 8, 9, 13, 24, 37)
"""Below and above half a window, a block, a window, and multiples of them."""
LONGER = Student(family="longformer", max_positions=300, options={"attention_window": 64})


def inputs_of(length, separators=0):
    """Return random tokens of three texts, two of them shorter, with separators as a question and its context have."""
    chance = torch.Generator().manual_seed(length)
    ids = torch.randint(5, 60, (3, length), generator=chance)
    for row in range(3 if separators else 0):
        ids[row, 2 + row] = 2
        ids[row, 3 + row : 2 + row + separators] = 2
    mask = torch.ones_like(ids)
    for row, short in enumerate((0, min(1, length - 1), length // 3)):
        ids[row, length - short :], mask[row, length - short :] = 1, 0
        if separators == 2:
            ids[row, length - short - 1] = 2  # the standard class counts three
    return {"input_ids": ids, "attention_mask": mask}


def arrays(inputs):
    return {name: tensor.numpy() for name, tensor in inputs.items()}


@pytest.mark.parametrize("kind", ["classification", "tagging", "qa"])
def test_answers_and_hidden_states_are_those_of_the_standard_class(kind, tmp_path):
    model = tiny_taskmodel("longformer", tiny_task(kind).spec, attention_window=[WINDOW, 4, WINDOW])
    save_taskmodel(model, tmp_path)
    head = {"tagging": "TokenClassification", "qa": "QuestionAnswering"}.get(kind, "SequenceClassification")
    standard = getattr(transformers, f"LongformerFor{head}").from_pretrained(tmp_path).eval()
    assert structure_of(model.model) == {}
    for length in LENGTHS if kind != "qa" else (12, 37):
        inputs = inputs_of(length, separators=2 * (kind == "qa"))
        real = inputs["attention_mask"].bool()
        with torch.no_grad():
            expected = standard(**inputs, output_hidden_states=True)
            found = model.model(**inputs, output_hidden_states=True)
        for own, other in zip(found.hidden_states, expected.hidden_states, strict=True):
            assert torch.allclose(own[real], other[real], atol=1e-5), length
        for name in ("start_logits", "end_logits") if kind == "qa" else ("logits",):
            own, other = (out[name][real] if out[name].shape == real.shape else out[name] for out in (found, expected))
            own, other = (x[real] if kind == "tagging" else x for x in (own, other))
            assert torch.allclose(own, other, atol=1e-5), length
    assert load_taskmodel(tmp_path).digest == model.digest


def test_a_token_sees_half_a_window_and_the_first_token():
    network = tiny_taskmodel("longformer", TASK.spec, attention_window=WINDOW).model
    ids = torch.arange(5, 45)[None]
    changed = ids.clone()
    changed[:, 20] = 50
    with torch.no_grad():
        before, after = (network(input_ids=x, output_hidden_states=True).hidden_states[1][0] for x in (ids, changed))
    moved = (before - after).abs().amax(dim=-1) > 1e-6
    assert moved.nonzero().flatten().tolist() == [0, *range(20 - WINDOW // 2, 20 + WINDOW // 2 + 1)]


def test_the_question_is_what_stands_before_the_first_separator():
    assert question_tokens(torch.tensor([[0, 7, 2, 9, 2], [0, 2, 7, 9, 2]]), 2).tolist() == [
        [1, 1, 0, 0, 0],
        [1] + [0] * 4,
    ]
    with pytest.raises(ValueError, match="read from input_ids"):
        question_tokens(None, 2)


def test_global_attention_elsewhere_and_attention_maps_are_refused():
    network = tiny_taskmodel("longformer", tiny_task("tagging").spec).model
    with pytest.raises(ValueError, match="at the beginning of a text alone"):
        network(**inputs_of(9), global_attention_mask=torch.eye(9)[[0, 4, 5]])
    with pytest.raises(ValueError, match="no attention maps"):
        network(**inputs_of(9), output_attentions=True)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_a_model_becomes_one_with_the_same_answers_on_short_texts(family):
    """The projections for global attention begin as those for all tokens, so not even the first token differs."""
    source = tiny_taskmodel(family, TASK.spec)
    built = LONGER.build(source)
    assert built.model.config.attention_window == [64] * 3
    assert (max_tokens(built.model.config), built.encoder.settings.max_length) == (300, TASK.spec.max_length)
    assert built.tokenizer.model_max_length == 300 > source.tokenizer.model_max_length == POSITIONS
    inputs = built.encoder.collate(built.encoder.encode(TASK.validation[:8]))
    wanted = source.encoder.collate(source.encoder.encode(TASK.validation[:8]))
    network, original = base_encoder(built.model), base_encoder(source.model)
    with torch.no_grad():
        own, other = (
            model(**{name: torch.from_numpy(array) for name, array in given.items()}).last_hidden_state
            for model, given in ((network, inputs), (original, wanted))
        )
    real = torch.from_numpy(wanted["attention_mask"]).bool()
    assert torch.allclose(own[real], other[real], atol=1e-5), "with global attention on the first token"
    network.global_tokens = ""
    with torch.no_grad():
        alone = network(**{name: torch.from_numpy(array) for name, array in inputs.items()}).last_hidden_state
    assert torch.allclose(alone[real], other[real], atol=1e-5), "without global attention"
    if family != "distilbert":  # whose head has another activation
        assert np.allclose(built.forward(inputs), source.forward(wanted), atol=1e-5)


@pytest.mark.parametrize("kind", ["masked-lm", "tagging"])
def test_other_heads_go_along(kind):
    source = tiny_taskmodel("bert", tiny_task(kind).spec)
    built = LONGER.build(source)
    inputs = source.encoder.collate(source.encoder.encode(tiny_task(kind).validation[:4]))
    real = inputs["attention_mask"].astype(bool)
    assert np.allclose(built.forward(inputs)[real], source.forward(inputs)[real], atol=1e-5)


def test_positions_are_repeated_and_the_rest_is_copied():
    source = tiny_taskmodel("bert", TASK.spec)
    built = LONGER.build(source)
    own, given = (embedding_parts(model.model)["positions"].weight for model in (built, source))
    assert len(own) == 300 + first_position(built.model.config)
    for place in (0, 1, POSITIONS - 1, POSITIONS, POSITIONS + 5, 299):
        assert torch.equal(own[place + first_position(built.model.config)], given[place % POSITIONS])
    for layer in layers(built.model):
        parts = layer_parts(built.model, layer)
        for role in ("query", "key", "value"):
            assert torch.equal(parts[role].weight, parts[f"global_{role}"].weight)
            assert parts[role].weight is not parts[f"global_{role}"].weight
    twice = Student(max_positions=600).build(built)
    assert torch.equal(embedding_parts(twice.model)["positions"].weight[-1], own[-1])


def test_layers_widths_heads_and_rows_go_with_what_belongs_to_them(tmp_path):
    source = tiny_taskmodel("longformer", TASK.spec, attention_window=[4, 8, 4])
    inputs = Inputs(train=TASK.train, validation=TASK.validation)
    fewer = run(Recipe(steps=(LayerPruning(keep=(1, 2)),)), source, inputs)
    assert fewer.model.config.attention_window == [8, 4]
    thin = Student(hidden_size=16, heads=2, init="width").build(source)
    parts = layer_parts(thin.model, layers(thin.model)[0])
    assert parts["global_query"].weight.shape == parts["query"].weight.shape == (16, 16)
    axes = tensor_axes(source.model)
    prefix = "longformer.encoder.layer.0.attention.self."
    for role in ("query", "key", "value"):
        assert axes[f"{prefix}{role}_global.weight"] == axes[f"{prefix}{role}.weight"]
    steps = (HeadPruning(heads={0: (1,), 2: (0, 3)}), VocabularyPruning())
    cut = run(Recipe(steps=steps), source, inputs)
    assert head_counts(cut.model) == [HEADS - 1, HEADS, HEADS - 2]
    attention = cut.model.longformer.encoder.layer[2].attention.self
    kept = source.model.longformer.encoder.layer[2].attention.self.key_global.weight[HIDDEN // HEADS : -HIDDEN // HEADS]
    assert torch.equal(attention.key_global.weight, kept)
    again = load(cut.save(tmp_path / "cut"))
    texts = cut.encoder.collate(cut.encoder.encode(TASK.validation[:4]))
    assert np.array_equal(again.forward(texts), cut.forward(texts))


@pytest.mark.parametrize(
    ("student", "problem"),
    [
        (Student(max_positions=1000), "or for long texts family: longformer, which repeats them"),
        (Student(family="longformer", options={"attention_window": 7}), "attention_window 7: must be an even number"),
        (Student(family="longformer", options={"attention_window": 0}), "attention_window 0: must be an even number"),
    ],
)
def test_what_cannot_become_one_is_refused(student, problem):
    with pytest.raises(UserError, match=problem):
        student.build(tiny_taskmodel("bert", TASK.spec))


def test_a_longformer_becomes_no_other_family_and_has_no_head_for_choices():
    with pytest.raises(UserError, match="weights of longformer do not fit bert"):
        Student(family="bert").build(tiny_taskmodel("longformer", TASK.spec))
    with pytest.raises(UserError, match="global attention to the choices"):
        tiny_taskmodel("longformer", tiny_task("multiple-choice").spec)
    config = tiny_config("longformer", attention_window=[4, 8])
    assert window_problems(config, "here") == ["here: attention_window has 2 numbers for 3 layers; give one for each"]


@pytest.mark.parametrize("window", [40, pytest.param(WINDOW, marks=pytest.mark.slow)])
def test_one_graph_takes_every_length(window):
    model = tiny_taskmodel("longformer", TASK.spec, attention_window=window)
    found = onnx_graph(model, None)
    assert window // 2 + 3 in [tokens for _, tokens in probed_sizes(found.graph)]
    assert found.every_token == "the queries of longformer are computed for all tokens, what follows for one"
    session = session_of(found)
    for length in (1, 2, *LENGTHS, 41, 60, POSITIONS):
        inputs = arrays(inputs_of(length))
        assert np.allclose(session.run(None, inputs)[0], model.forward(inputs), atol=1e-5), length


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tagging", "qa", "embedding"])
def test_graphs_of_other_heads_take_every_length(kind):
    model = tiny_taskmodel("longformer", tiny_task(kind).spec, attention_window=WINDOW)
    session = session_of(onnx_graph(model, None))
    for length in (9, 13, 24, 37, POSITIONS):
        inputs = arrays(inputs_of(length, separators=kind == "qa"))
        logits, wanted = session.run(None, inputs), model.forward(inputs)
        found = np.stack(logits, axis=-1) if kind == "qa" else logits[0]
        real = inputs["attention_mask"].astype(bool) if found.ndim == 3 else slice(None)
        assert np.allclose(found[real], wanted[real], atol=1e-5), length


def session_of(found):
    import onnxruntime

    return onnxruntime.InferenceSession(found.graph.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.slow
def test_distilled_into_half_of_the_layers_and_exported_in_8_bits(tmp_path):
    """From a BERT of 128 positions to an export that reads 300 tokens."""
    task = tiny_task()
    task = copy.copy(task)
    spec = task.spec.model_copy(update={"max_length": 300})
    teacher = LONGER.build(tiny_taskmodel("bert", spec))
    student = Student(layers=(0, 2)).build(teacher)
    step = LogitDistillation(training={"max_steps": 2, "batch_size": 8})
    inputs = Inputs(train=task.train, validation=task.validation[:8], teacher=ModelTeacher(teacher, cache=tmp_path))
    made = run(Recipe(steps=(step,)), student, inputs)
    report = export_onnx(made, tmp_path / "int8", examples=task.validation[:8], int8=Int8())
    runtime = Runtime(tmp_path / "int8")
    assert runtime.encoder.settings.max_length == 300
    long = {"text": "the film is good and " * 100}
    given = made.encoder.collate(made.encoder.encode([long]))
    assert given["input_ids"].shape == (1, 300)
    assert np.abs(runtime.forward(given) - made.forward(given)).max() < 0.1
    assert report.gate is not None


def test_the_tiny_tokenizer_is_robertas():
    assert tiny_tokenizer("longformer") is tiny_tokenizer("roberta")


def test_heads_of_other_kinds_cannot_stand_on_one():
    base = tiny_taskmodel("longformer", tiny_task(pair=True).spec)
    for head in ({"concat_pooling": {}}, {"scalar_mix": {}}, {"answer_network": {}}):
        with pytest.raises(UserError, match="Longformer, whose standard heads say which tokens see all others"):
            HeadBlock.model_validate(head).on(base, base.task, 0)
