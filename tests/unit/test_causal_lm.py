"""Causal language modelling: windows and blocks, what a text costs, and what it is compared by."""

import copy
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing
from torch.nn import functional

from compress import Inputs, Recipe, run
from compress.distill.labels import LabelTraining
from eval.encoding import IGNORED, EncoderSettings, TextEncoder
from eval.errors import UserError
from eval.inference import predict
from eval.kinds.kind_registry import kind_of
from eval.measurement import measure
from eval.task import Examples, TaskSpec
from teachers.taskmodel import build_taskmodel, load_taskmodel, save_taskmodel
from teachers.training.config import Training
from teachers.training.scoring import rows_of, scores
from tests.tiny import tiny_config, tiny_spec, tiny_task, tiny_taskmodel, tiny_tokenizer

TEXTS = ["ann lives in paris", "", "the film was good and the book was dull and the song was very very warm .", "ééé"]


@pytest.fixture(scope="module")
def task():
    return tiny_task("causal-lm")


@pytest.fixture(scope="module")
def model(task):
    return tiny_taskmodel("gpt2", task.spec)


def examples(texts=TEXTS):
    return Examples([{"text": text} for text in texts])


def ids_of(model, text):
    return model.tokenizer(text, add_special_tokens=False).input_ids


def test_windows_begin_with_the_end_of_the_one_before_and_each_token_is_new_once(model):
    encoder = TextEncoder(
        model.tokenizer.backend_tokenizer, EncoderSettings(kind="causal-lm", max_length=10, stride=3, end_id=0)
    )
    for place, text in enumerate(TEXTS):
        own = [feature for feature in encoder.encode(examples()) if feature.example == place]
        assert [feature.context for feature in own] == [1, *[3] * (len(own) - 1)]
        assert own[0].ids[0] == 0
        assert all(len(feature.ids) <= 10 for feature in own)
        assert [token for feature in own for token in feature.ids[feature.context :]] == ids_of(model, text)
        for before, after in itertools.pairwise(own):
            assert after.ids[:3] == before.ids[-3:]


def test_a_text_costs_what_slow_loops_say(model):
    found = predict(model, examples()).answers
    for text, answer in zip(TEXTS, found, strict=True):
        ids = [model.tokenizer.eos_token_id, *ids_of(model, text)]
        with torch.no_grad():
            logits = model.model(torch.tensor([ids])).logits[0].double() if len(ids) <= 32 else None
        assert answer["words"] == len(text.split())
        assert answer["bytes"] == len(text.encode())
        assert answer["total"] == len(ids) - 1
        if logits is not None:
            losses = [-logits[place].log_softmax(-1)[ids[place + 1]].item() for place in range(len(ids) - 1)]
            assert answer["loss"] == pytest.approx(sum(losses), rel=1e-5)
            right = [int(logits[place].argmax()) == ids[place + 1] for place in range(len(ids) - 1)]
            assert answer["correct"] == sum(right)


def test_the_loss_of_a_text_does_not_depend_on_its_batch(model):
    together = predict(model, examples(), batch_size=4).answers
    for text, answer in zip(TEXTS, together, strict=True):
        assert predict(model, examples([text])).answers[0]["loss"] == pytest.approx(answer["loss"], abs=1e-4)


def test_metrics_are_those_of_all_tokens_words_and_bytes(model, task):
    found = scores(model, task.validation)
    answers = predict(model, task.validation).answers
    loss, tokens, words, size = (sum(a[name] for a in answers) for name in ("loss", "total", "words", "bytes"))
    assert found["perplexity"] == pytest.approx(math.exp(loss / tokens))
    assert found["likelihood"] == pytest.approx(1 / found["perplexity"])
    assert found["word_perplexity"] == pytest.approx(math.exp(loss / words))
    assert found["bits_per_byte"] == pytest.approx(loss / size / math.log(2))
    with pytest.raises(UserError, match="'perplexity' is only reported, as lower is better"):
        scores(
            model.__class__(model.model, model.tokenizer, task.spec.model_copy(update={"metric": "perplexity"})),
            task.test,
        )


def test_training_reads_one_stream_in_blocks(model, task):
    rows = rows_of(model, task.train[:7], 1)
    stream = [0, *(token for example in task.train[:7] for token in [*ids_of(model, example["text"]), 0])]
    blocks = [feature.ids for feature in rows.features]
    assert [blocks[0][0], *(token for block in blocks for token in block[1:])] == stream
    assert all(len(block) == 32 for block in blocks[:-1])
    assert all(after[0] == before[-1] for before, after in itertools.pairwise(blocks))
    batch = rows.batch([0, len(rows) - 1])
    labels = batch.targets["labels"]
    assert torch.equal(labels[0, :-1], batch.inputs["input_ids"][0, 1:])
    assert labels[0, -1] == IGNORED
    assert int((labels[1] != IGNORED).sum()) == len(blocks[-1]) - 1


def test_the_loss_is_that_of_transformers(model, task):
    batch = rows_of(model, task.train, 1).batch([0, 1, 2])
    with torch.no_grad():
        logits = model.model(**batch.inputs).logits
        theirs = model.model(**batch.inputs, labels=batch.inputs["input_ids"]).loss
    ours = kind_of("causal-lm").loss(task.spec, logits, batch.targets, batch.mask)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    assert ours.item() == pytest.approx(
        functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch.inputs["input_ids"][:, 1:].flatten()).item(), 1e-5
    )


def test_a_decoder_learns_and_is_compared_by_document(model, task, tmp_path):
    training = Training(epochs=6, learning_rate=3e-3, batch_size=8)
    trained = run(Recipe(steps=(LabelTraining(training=training),)), model, Inputs(train=task.train))
    result = measure(trained, task, against=model)
    assert result.scores["perplexity"] < 70 < 300 < result.comparison.reference_scores["perplexity"]
    assert result.comparison.difference.low > 0.1
    assert list(result.comparison.agreement) == ["losses"]
    assert result.kept.gold == [{}] * len(task.validation)
    trained.save(tmp_path / "model")
    again = load_taskmodel(tmp_path / "model")
    assert again.task == task.spec
    assert scores(again, task.test) == scores(trained, task.test)


def test_a_standard_folder_says_its_task(tmp_path, model):
    save_taskmodel(model, tmp_path)
    (tmp_path / "task.json").unlink()
    found = load_taskmodel(tmp_path).task
    assert (found.kind, found.metric, found.max_length) == ("causal-lm", "next_token_accuracy", 256)


def test_a_family_that_sees_what_comes_is_refused():
    with pytest.raises(UserError, match="bert sees what comes after a token"):
        build_taskmodel(tiny_config("bert"), tiny_tokenizer("bert"), tiny_spec("causal-lm"))
    with pytest.raises(UserError, match="gpt2 has no masked-language head"):
        build_taskmodel(tiny_config("gpt2"), tiny_tokenizer("gpt2"), tiny_spec("masked-lm"))


def test_questions_without_an_answer_are_refused_where_the_first_token_sees_nothing():
    with pytest.raises(
        UserError, match=r"reads from the left, .* sees nothing of the question; for qa-with-null take an"
    ):
        build_taskmodel(tiny_config("gpt2"), tiny_tokenizer("gpt2"), tiny_spec("qa-with-null"))
    assert build_taskmodel(tiny_config("gpt2"), tiny_tokenizer("gpt2"), tiny_spec("qa")).task.kind == "qa"


def test_a_vector_of_the_first_token_of_a_decoder_is_refused():
    spec = tiny_spec("embedding").model_copy(update={"pooling": "first"})
    with pytest.raises(UserError, match="the first token of gpt2 sees no other; take last or mean"):
        build_taskmodel(tiny_config("gpt2"), tiny_tokenizer("gpt2"), spec)


def test_settings_of_other_kinds_stay_as_they_were():
    assert "end_id" not in EncoderSettings(kind="classification").to_dict()
    settings = EncoderSettings(kind="causal-lm", end_id=7)
    assert EncoderSettings.from_dict(settings.to_dict()) == settings


def test_no_text_gives_no_block():
    spec = TaskSpec(kind="causal-lm", metric="likelihood")
    assert kind_of("causal-lm").learned([], EncoderSettings(kind=spec.kind)) == []
    assert kind_of("causal-lm").values(spec, [{"loss": 0.0, "total": 0}], [{}]).tolist() == [0.0]
    assert np.isnan(kind_of("causal-lm").agreement([])["losses"])


@pytest.mark.parametrize("family", ["gpt2", "gpt_neo"])
@pytest.mark.parametrize("kind", ["causal-lm", "classification"])
def test_a_tokenizer_that_pads_on_the_left_changes_no_answer_of_learned_positions(family, kind):
    task = tiny_task(kind)
    plain = tiny_taskmodel(family, task.spec)
    left = replace(plain, tokenizer=copy.deepcopy(plain.tokenizer))
    left.tokenizer.padding_side = "left"
    pair = Examples([{"text": "ann lives in paris"}, {"text": "the film was good and the book was dull and the song"}])
    found = predict(left, pair).logits
    for one, expected in zip(found, predict(plain, pair).logits, strict=True):
        np.testing.assert_allclose(one, expected, atol=1e-6)
    np.testing.assert_allclose(found[0], predict(left, pair[:1]).logits[0], atol=1e-5)


def test_a_text_begins_with_what_the_tokenizer_puts_first_and_ends_with_the_end():
    spec = tiny_spec("causal-lm")
    model = tiny_taskmodel("llama", spec)
    model = replace(model, tokenizer=copy.deepcopy(model.tokenizer))
    first, end = model.tokenizer.convert_tokens_to_ids("Ġ"), model.tokenizer.eos_token_id
    model.tokenizer.bos_token = "Ġ"
    model.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="Ġ $A", pair="Ġ $A $B", special_tokens=[("Ġ", first)]
    )
    assert (model.encoder.settings.beginning, model.encoder.settings.end_id) == (first, end)
    assert first != end
    settings = model.encoder.settings
    assert EncoderSettings.from_dict(settings.to_dict()) == settings
    (feature,) = model.encoder.encode(examples(["ann lives"]))
    assert feature.ids == [first, *ids_of(model, "ann lives")]
    rows = rows_of(model, examples(["ann", "bob"]), 1)
    assert rows.features[0].ids == [first, *ids_of(model, "ann"), end, first, *ids_of(model, "bob"), end]
    usual = tiny_taskmodel("gpt2", spec).encoder.settings
    assert usual.beginning == usual.end_id
    assert "begin_id" not in usual.to_dict()
