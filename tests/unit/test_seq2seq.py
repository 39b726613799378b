"""Sequence to sequence: its data, what a network reads and learns, shapes of two stacks, networks that are new."""

import json

import numpy as np
import pytest
import torch

from compress import Inputs, Recipe, run
from compress.engine import cost_plan
from compress.prune.layers import LayerPruning
from compress.recipe import parse_recipe
from compress.student.student import Student
from eval.data.loading import load_task
from eval.errors import UserError
from eval.inference import predict
from eval.kinds.kind_registry import kind_of
from eval.task import Examples, TaskSpec
from teachers.anatomy.encoder import decoder_layers, layer_count, layers, shape_of, word_embeddings
from teachers.anatomy.layer_changes import replace_decoder_layers, replace_layers
from teachers.finetuning.strategies import clashes
from teachers.losses.catalogue import SmoothedLabels
from teachers.new_network import ExampleTexts, NewNetwork
from teachers.signals.hooks import observe
from teachers.taskmodel import build_taskmodel, load_taskmodel, save_taskmodel
from teachers.training.config import Training
from teachers.training.freezing import freeze
from teachers.training.layer_groups import layer_groups
from teachers.training.loop import train
from teachers.training.scoring import rows_of
from tests.tiny import ENCODER_DECODERS, tiny_config, tiny_spec, tiny_task, tiny_taskmodel, tiny_tokenizer


@pytest.fixture(scope="module")
def task():
    return tiny_task("seq2seq")


@pytest.fixture(scope="module")
def marian(task):
    return tiny_taskmodel("marian", task.spec)


def written(folder, name, rows):
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_data_is_read_with_further_right_texts(tmp_path):
    rows = [{"source": "ein Hund", "target": "a dog", "more": 1}, {"source": "x", "target": "y", "references": ["z"]}]
    written(tmp_path, "train.jsonl", rows)
    written(tmp_path, "test.jsonl", [{"src": "a", "translation": "b"}])
    found = load_task("seq2seq", data=tmp_path, prompt="translate: ", beams=4, target_length=20)
    assert list(found.train) == [{"source": "ein Hund", "target": "a dog"}, rows[1]]
    assert found.test[0] == {"source": "a", "target": "b"}
    assert (found.spec.metric, found.spec.beams, found.spec.prompt) == ("chrf", 4, "translate: ")
    assert TaskSpec.model_validate_json(found.spec.model_dump_json()) == found.spec


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"source": "a"}, "'target' is missing"),
        ({"source": "a", "target": " "}, "'target' must not be empty"),
        ({"source": "a", "target": 3}, "'target' must hold text"),
        ({"source": "a", "target": "b", "references": "c"}, "'references' must be a list of texts"),
    ],
)
def test_bad_items_are_told(row, said, tmp_path):
    written(tmp_path, "train.jsonl", [row])
    with pytest.raises(UserError, match=said):
        load_task("seq2seq", data=tmp_path)


def test_options_of_writers_are_for_writers(tmp_path):
    written(tmp_path, "train.jsonl", [{"text": "a", "label": "b"}])
    with pytest.raises(UserError, match="beams: classification writes no text"):
        load_task("classification", data=tmp_path, beams=2)
    with pytest.raises(UserError, match="pooling: seq2seq has no vectors"):
        load_task("seq2seq", data=tmp_path, pooling="mean")


@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_a_batch_is_what_transformers_makes_of_labels(family, task):
    model = tiny_taskmodel(family, task.spec)
    rows = rows_of(model, task.train, seed=1)
    batch = rows.batch([0, 3, 5])
    labels, network = batch.targets["labels"], model.model
    end = model.tokenizer.eos_token_id
    assert all(end in row and row[row != -100][-1] == end for row in labels)
    with torch.no_grad():
        own = observe(network, batch.inputs).logits
        expected = network(input_ids=batch.inputs["input_ids"], attention_mask=batch.mask, labels=labels)
    loss = kind_of("seq2seq").loss(task.spec, own, batch.targets, batch.mask)
    real = labels != -100
    assert torch.allclose(own[real], expected.logits[real], atol=1e-5)
    assert loss.item() == pytest.approx(
        torch.nn.functional.cross_entropy(expected.logits[real], labels[real]).item(), abs=1e-5
    )


def test_padding_and_batch_mates_change_no_text(marian, task):
    long = [*task.test[:3], {"source": "ann lives in paris and likes the film of the book", "target": "a"}]
    together = predict(marian, long).answers
    assert together == [predict(marian, [one]).answers[0] for one in long]
    assert predict(marian, [{"source": one["source"]} for one in long]).answers == together


def test_a_target_that_is_too_long_is_truncated(task):
    spec = task.spec.model_copy(update={"target_length": 5})
    model = tiny_taskmodel("marian", spec)
    feature = model.encoder.encode(task.train[:1])[0]
    assert len(feature.target) == 5
    assert feature.target[-1] == model.tokenizer.eos_token_id
    assert len(model.write(model.encoder.collate([feature]))[0]) <= 5


def test_it_learns_and_is_saved(task, tmp_path):
    model = tiny_taskmodel("bart", task.spec, dropout=0.0)
    before = predict(model, task.validation[:8]).answers
    positions = model.model.model.encoder.embed_positions.weight.clone()
    training = Training(epochs=30, learning_rate=3e-3, batch_size=16, score_epochs=30)
    history = train(model, task.train, training=training, validation=task.validation)
    assert history[-1]["losses"][-1][1] < 1.0 < history[-1]["losses"][0][1]
    assert history[-1]["scores"]["chrf"] > 0.5
    assert not torch.equal(positions, model.model.model.encoder.embed_positions.weight)
    save_taskmodel(model, tmp_path)
    again = load_taskmodel(tmp_path)
    found = predict(model, task.validation[:8]).answers
    assert found == predict(again, task.validation[:8]).answers != before
    assert again.task == task.spec
    assert load_taskmodel(tmp_path, TaskSpec(kind="seq2seq", metric="bleu", beams=3)).encoder.settings.beams == 3


def test_what_is_computed_is_not_trained(marian, task, tmp_path):
    save_taskmodel(marian, tmp_path)
    model = load_taskmodel(tmp_path)
    before = model.model.model.encoder.embed_positions.weight.clone()
    for _ in range(2):  # a training gives all parameters their gradients back
        train(model, task.train, training=Training(max_steps=2, learning_rate=1e-2, batch_size=8))
    assert torch.equal(before, model.model.model.encoder.embed_positions.weight)


@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_layers_of_both_stacks_can_go(family, task, tmp_path):
    model = tiny_taskmodel(family, task.spec)
    network, kept = model.model, decoder_layers(model.model)[1]
    replace_layers(network, [0, 2])
    replace_decoder_layers(network, [1])
    shape = shape_of(network.config)
    assert (layer_count(network), shape.decoder_layers, len(decoder_layers(network))) == (2, 1, 1)
    assert decoder_layers(network)[0] is kept
    save_taskmodel(model, tmp_path)
    inputs = model.encoder.collate(model.encoder.encode(task.test[:4]))
    again = load_taskmodel(tmp_path)
    assert np.array_equal(again.forward(inputs), model.forward(inputs))
    assert again.write(inputs) == model.write(inputs)
    with pytest.raises(UserError, match="decoder layers to keep"):
        replace_decoder_layers(network, [1])


def test_t5_keeps_its_table_of_distances(task):
    model = tiny_taskmodel("t5", task.spec)
    decoder = model.model.decoder
    table = decoder.block[0].layer[0].SelfAttention.relative_attention_bias
    replace_decoder_layers(model.model, [1])
    own = decoder.block[0].layer[0].SelfAttention
    assert own.relative_attention_bias is table
    assert own.has_relative_attention_bias
    assert own.layer_idx == 0


def test_a_student_has_a_deep_encoder_and_a_shallow_decoder(marian):
    student = Student(layers=3, decoder_layers=1).build(marian)
    assert (layer_count(student.model), shape_of(student.model.config).decoder_layers) == (3, 1)
    own, given = (m.model.model.decoder.layers[0].state_dict() for m in (student, marian))
    assert all(torch.equal(own[name], given[name]) for name in own)
    narrow = Student(layers=2, decoder_layers=1, hidden_size=16, heads=2, intermediate_size=24, init="random")
    config = narrow.build(marian).model.config
    assert (config.decoder_attention_heads, config.decoder_ffn_dim, config.decoder_layers) == (2, 24, 1)
    with pytest.raises(UserError, match=r"student.decoder_layers: \[4\] do not exist; the teacher has layers 0 to 1"):
        Student(decoder_layers=(4,)).build(marian)
    encoder = tiny_taskmodel("bert")
    with pytest.raises(UserError, match=r"student\.decoder_layers: bert has none"):
        Student(decoder_layers=1).build(encoder)
    said = Student(layers=2, decoder_layers=1).predict(marian)
    assert said.student.parameters < said.teacher.parameters


def test_the_decoder_alone_can_be_pruned(marian):
    found = run(Recipe(steps=(LayerPruning(decoder=1),)), marian, Inputs())
    assert found.lineage[-1].facts["layers"] == [0, 1, 2]
    assert found.lineage[-1].facts["decoder_layers"] == [0]
    with pytest.raises(UserError, match="decoder: it has layers 0 to 1"):
        run(Recipe(steps=(LayerPruning(decoder=(0, 5)),)), marian, Inputs())
    with pytest.raises(UserError, match="has no decoder beside its encoder"):
        run(Recipe(steps=(LayerPruning(decoder=1),)), tiny_taskmodel("bert"), Inputs())


def test_families_answer_their_own_kinds():
    for family, kind, said in (
        ("bert", "seq2seq", "bert has no decoder that writes a text; for seq2seq take one of: bart, marian, t5"),
        ("t5", "classification", "t5 has an encoder and a decoder: it answers kind: seq2seq alone"),
    ):
        with pytest.raises(UserError, match=said):
            build_taskmodel(tiny_config(family), tiny_tokenizer(family), tiny_spec(kind))


def test_smoothed_labels_are_the_formula(marian, task):
    rows = rows_of(marian, task.train, seed=1)
    loss = SmoothedLabels(epsilon=0.2).bind(marian, rows)
    batch = rows.batch([1, 2])
    signals = observe(marian.model, batch.inputs)
    labels = batch.targets["labels"]
    logs = signals.logits[labels != -100].log_softmax(-1)
    picked = logs[torch.arange(len(logs)), labels[labels != -100]]
    expected = -(0.8 * picked + 0.2 * logs.mean(dim=-1)).mean()
    assert loss(signals, batch)["task"].item() == pytest.approx(expected.item(), abs=1e-6)
    assert loss.counts(batch)["task"] == len(logs)
    with pytest.raises(UserError, match="label smoothing: the loss of regression is no cross-entropy"):
        SmoothedLabels().select(tiny_spec("regression"), tiny_task("regression").train)


def test_a_new_network_learns_its_words_from_the_task(task, tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path))
    shape = {"family": "marian", "layers": 2, "decoder_layers": 1, "hidden_size": 16, "heads": 2, "max_positions": 32}
    block = NewNetwork.model_validate({"tokenizer": {"size": 340}, "network": {**shape, "options": {"dropout": 0.3}}})
    folder = block.made(task.train, task.spec, seed=1)
    model = load_taskmodel(folder)
    assert folder == block.made(task.train, task.spec, seed=1) != block.made(task.train, task.spec, seed=2)
    words = len(model.tokenizer)
    assert 300 < words <= 340
    assert (model.model.config.vocab_size, model.model.config.dropout) == (words, 0.3)
    text = task.train[0]["target"]
    ids = model.tokenizer(text).input_ids
    assert ids[-1] == model.tokenizer.eos_token_id
    assert model.encoder.text_of(ids) == text
    assert " paris" in [model.tokenizer.decode([i]) for i in range(words)]
    assert set(ExampleTexts(task.train[:1], "seq2seq")) == {task.train[0]["source"], text}
    for wrong, said in (
        ({"network": {"from": "x"}}, "a new network starts from no other"),
        ({"network": {"family": "nosuch"}}, "got 'nosuch'"),
        ({"tokenizer": {"kind": "nosuch"}}, "bpe"),
    ):
        with pytest.raises(ValueError, match=said):
            NewNetwork.model_validate(wrong)
    with pytest.raises(UserError, match="bert has no decoder beside an encoder"):
        NewNetwork.model_validate({"network": {"family": "bert", "decoder_layers": 1}}).made(task.train, task.spec, 1)


def test_a_recipe_says_what_a_new_teacher_needs():
    with pytest.raises(UserError, match="new: a network that knows nothing has to be trained"):
        parse_recipe("task: {kind: seq2seq, data: x}\nteacher: {new: {}}\n")
    with pytest.raises(UserError, match="give one of model"):
        parse_recipe("task: {kind: seq2seq, data: x}\nteacher: {new: {}, model: y, finetune: {}}\n")


def test_a_plan_times_both_stacks(marian):
    assert cost_plan._seconds_a_row(marian, 4, learns=True, timed=2) > 0


def test_unlabelled_sources_are_not_trained_on(marian):
    with pytest.raises(UserError, match="an example without 'target' cannot be trained on"):
        rows_of(marian, Examples([{"source": "a"}]), seed=1)


def test_the_tokens_of_a_text_are_what_is_kept(marian, task):
    found = predict(marian, task.test[:2])
    assert [marian.encoder.text_of(row.astype(np.int64).tolist()) for row in found.logits] == [
        answer["text"] for answer in found.answers
    ]


@pytest.mark.parametrize("family", ENCODER_DECODERS)
@pytest.mark.parametrize("kept", [([1], [0, 1]), ([0, 1, 2], [1]), ([0], [0, 1]), ([0, 2], [1])])
def test_a_network_with_other_numbers_of_layers_writes_with_its_cache_and_is_reloaded(family, kept, task, tmp_path):
    model = tiny_taskmodel(family, task.spec)
    replace_layers(model.model, kept[0])
    replace_decoder_layers(model.model, kept[1])
    found = [answer["text"] for answer in predict(model, task.test[:4]).answers]
    if family != "t5" or len(kept[0]) >= len(kept[1]):  # transformers counts T5's encoder layers for that cache
        ids = torch.tensor([model.tokenizer(task.test[0]["source"]).input_ids])
        assert len(model.model.generate(input_ids=ids, max_new_tokens=4)) == 1
    save_taskmodel(model, tmp_path)
    again = load_taskmodel(tmp_path)
    assert (layer_count(again.model), len(decoder_layers(again.model))) == tuple(map(len, kept))
    assert [answer["text"] for answer in predict(again, task.test[:4]).answers] == found


@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_the_layers_of_the_decoder_stand_above_those_of_the_encoder(family, task):
    network = tiny_taskmodel(family, task.spec).model
    groups = layer_groups(network)
    places = {id(parameter): number for number, group in enumerate(groups) for parameter in group}
    assert len(places) == sum(map(len, groups)) == len(list(network.parameters()))
    towers = [*reversed(decoder_layers(network)), *reversed(layers(network))]
    found = [{places[id(parameter)] for parameter in layer.parameters()} for layer in towers]
    first = min(found[0])
    assert found == [{first + number} for number in range(len(towers))]
    assert places[id(word_embeddings(network).weight)] == len(groups) - 1 == first + len(towers)


@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_a_frozen_encoder_leaves_the_decoder_to_be_trained(family, task):
    network = tiny_taskmodel(family, task.spec).model
    freeze(network, Training(freeze=("encoder",)))
    assert not any(p.requires_grad for layer in layers(network) for p in layer.parameters())
    assert all(p.requires_grad for layer in decoder_layers(network) for p in layer.parameters())
    ((name, _),) = clashes("seq2seq", Training(), features=True)
    assert name == "features"


@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_a_saved_folder_says_its_search_and_one_with_another_is_told_of(family, task, tmp_path, caplog):
    spec = task.spec.model_copy(update={"beams": 3, "length_penalty": 0.5, "target_length": 9})
    model = tiny_taskmodel(family, spec)
    model.model.generation_config.no_repeat_ngram_size = 2
    save_taskmodel(model, tmp_path)
    said = json.loads((tmp_path / "generation_config.json").read_text())
    assert (said["num_beams"], said["length_penalty"], said["max_new_tokens"]) == (3, 0.5, 9)
    load_taskmodel(tmp_path)
    assert "generation_config.json" not in caplog.text
    changes = {"no_repeat_ngram_size": 3, "forced_bos_token_id": 5, "num_beams": 4}
    (tmp_path / "generation_config.json").write_text(json.dumps(said | changes))
    load_taskmodel(tmp_path)
    assert "says no_repeat_ngram_size 3, forced_bos_token_id 5, num_beams 4, and texts are written by" in caplog.text


@pytest.mark.parametrize("own", [{"early_stopping": True}, {"do_sample": True, "temperature": 0.7}])
@pytest.mark.parametrize("beams", [1, 3])
def test_a_base_with_a_search_of_its_own_is_saved_with_that_of_the_task(own, beams, task, tmp_path, caplog):
    spec = task.spec.model_copy(update={"beams": beams, "length_penalty": 2.0})
    base, after = tmp_path / "base", tmp_path / "after"
    base.mkdir(), after.mkdir()
    save_taskmodel(tiny_taskmodel("bart", spec), base)
    said = json.loads((base / "generation_config.json").read_text())
    (base / "generation_config.json").write_text(json.dumps(said | {"num_beams": 4} | own))
    model = load_taskmodel(base)
    assert f"{next(iter(own))} True" in caplog.text
    save_taskmodel(model, after)
    found = json.loads((after / "generation_config.json").read_text())
    assert (found["num_beams"], found["early_stopping"], found["do_sample"]) == (beams, False, False)
    assert "temperature" not in found
    assert (found["decoder_start_token_id"], found["eos_token_id"]) == (
        said["decoder_start_token_id"],
        said["eos_token_id"],
    )
