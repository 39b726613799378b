"""Pretraining XLNet and Transformer-XL from text: what the memory is, what comes out, and what is refused."""

import json

import numpy as np
import pytest
import transformers

from eval.data.sources import Source
from eval.encoding import IGNORED
from eval.errors import UserError
from teachers.pretraining.network import words_of
from teachers.pretraining.objectives import NextWord, PermutationLM
from teachers.pretraining.pretrain import RECORD, pretrain
from teachers.pretraining.pretraining_batches import PretextDataset
from teachers.pretraining.settings import Pretraining, Stage
from teachers.pretraining.text.corpus import build
from teachers.pretraining.text.sequence import Frame
from teachers.pretraining.text.sequence_sources import Packed
from teachers.pretraining.text.tokenizer_training import Sentences, trained_tokenizer
from teachers.taskmodel import load_taskmodel
from tests.tiny import tiny_spec, tiny_tokenizer

PLACES = ("Paris", "Rome", "Oslo", "Lima", "Cairo", "Delhi")
TEXT = "\n\n".join(
    "\n".join(f"The film in {place} was good. {other} is a warm room of Ann." for other in PLACES) for place in PLACES
)


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("train", "validation"):
        (folder / f"{name}.txt").write_text(TEXT, encoding="utf-8")
    return folder


def block(data, objectives, *, options=None, length=8, tokenizer="xlnet", family="xlnet", steps=4, **task):
    network = {"family": family, "layers": 2, "hidden_size": 16, "heads": 2, "options": options or {}}
    size = 300 if tokenizer == "gpt2" else 120
    training = {"max_steps": steps, "epochs": 99, "batch_size": 8, "learning_rate": 3e-3, "score_epochs": 99}
    stage = {"length": length, "training": training, "tasks": {"text": {"objectives": objectives, **task}}}
    return Pretraining(text=str(data), tokenizer={"kind": tokenizer, "size": size}, network=network, stages=[stage])


def last_scores(folder):
    return json.loads((folder / RECORD).read_text())["stages"][0]["history"][-1]["scores"]


def test_memory_is_the_end_of_the_block_before(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    corpus = build([Source.of(tmp_path / "a.txt")], tiny_tokenizer("xlnet"), tmp_path / "home")
    frame = Frame(tiny_tokenizer("xlnet"))
    source = Packed(corpus, frame, 16, "blocks")
    for objective, name in ((PermutationLM(memory=6), "plm"), (NextWord(memory=6), "next_word")):
        rows = PretextDataset(source, frame, {name: objective.ask(None)}, memory=objective.remembers)
        batch = rows.batch([0, 3, 4], epoch=2)
        assert batch.targets["memory"].tolist() == [
            [IGNORED] * 6,
            *(rows.draw(number, 2).ids[-6:].tolist() for number in (2, 3)),
        ]
        assert ("memory_order" in batch.targets) == (name == "plm")
        if name == "plm":
            own = rows.draw(3, 2).targets["plm_order"][-6:].tolist()
            assert batch.targets["memory_order"].tolist()[0] == [IGNORED] * 6
            assert batch.targets["memory_order"].tolist()[2] == own


def test_transformer_xls_perplexity_with_memory_is_below_that_without(data):
    found = block(
        data, {"next_word": {"memory": 8}}, options={"attn_type": "uni"}, tokenizer="gpt2", length=8, steps=100
    )
    folder = pretrain(found, seed=13)
    scores = last_scores(folder)
    assert scores["next_word.perplexity"] < 0.95 * scores["next_word.perplexity_without_memory"]
    model = load_taskmodel(folder)
    assert (model.task.kind, model.model.config.attn_type) == ("causal-lm", "uni")


def test_two_segments_end_with_the_classifier_token(data, tmp_path):
    sources = Sentences([Source.of(data / "train.txt")])
    tokenizer = trained_tokenizer(sources, "xlnet", 120, True, tmp_path / "tokenizers")
    assert tokenizer.padding_side == "left"
    assert "<unk>" not in tokenizer.tokenize("the film in paris was good")
    corpus = build([Source.of(data / "train.txt")], tokenizer, tmp_path / "home")
    frame = Frame(tokenizer)
    drawn = Packed(corpus, frame, 40, "segment_pair", "next_sentence").draw(0, np.random.default_rng(0))
    separator, classifier = tokenizer.sep_token_id, tokenizer.cls_token_id
    assert drawn.ids[-2:].tolist() == [separator, classifier]
    middle = drawn.ids.tolist().index(separator)
    assert drawn.types.tolist() == [0] * (middle + 1) + [1] * (len(drawn.ids) - middle - 2) + [2]
    assert len(drawn.ids) <= 40


def test_permutation_language_modelling_gives_a_standard_xlnet_that_goes_on(data):
    folder = pretrain(block(data, {"plm": {"k": 3}}, sequences="segment_pair", length=32), seed=13)
    scores = last_scores(folder)
    assert set(scores) == {"plm.accuracy", "plm.perplexity"}
    network = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert (type(network).__name__, network.config.summary_type) == ("XLNetLMHeadModel", "last")
    assert network.lm_loss.bias.abs().max() > 1, "it began with the frequencies of words"
    assert load_taskmodel(folder, tiny_spec()).model.config.model_type == "xlnet"
    stage = {"tasks": {"text": {"objectives": "plm"}}, "length": 32, "training": {"max_steps": 2}}
    further = pretrain(Pretraining(text=str(data), network={"from": str(folder)}, stages=[stage]), seed=13)
    assert transformers.AutoModelForCausalLM.from_pretrained(further).lm_loss.bias.abs().max() > 1


@pytest.mark.parametrize(
    ("objectives", "settings", "message"),
    [
        ("plm", {"family": "bert", "tokenizer": "wordpiece"}, "bert has no second stream for plm"),
        ("plm", {"options": {"attn_type": "uni"}}, "xlnet with attn_type: uni predicts the next token"),
        ("next_word", {}, "xlnet sees what comes after a token"),
        ("mlm", {}, "xlnet has no masked-language head"),
        (
            {"next_word": {"memory": 4}},
            {"family": "gpt2", "tokenizer": "gpt2"},
            "gpt2 takes no hidden states of earlier",
        ),
        ("capitals", {}, "xlnet is pretrained with plm or next_word"),
    ],
)
def test_what_does_not_fit_is_refused(data, objectives, settings, message):
    with pytest.raises(UserError, match=message):
        pretrain(block(data, objectives, **settings), seed=13)


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="memory: 64 tokens are more than a sequence has"):
        Stage(tasks={"text": {"objectives": {"plm": {"memory": 64}}}}, length=32)
    with pytest.raises(ValueError, match="plm answers from a stream of its own"):
        Stage(tasks={"text": {"objectives": {"plm": {}, "mlm": {}}}})
    two = {"one": {"objectives": "plm"}, "two": {"objectives": "mlm"}}
    with pytest.raises(UserError, match="plm is for XLNet, the other objectives and classes of sequences are for"):
        words_of(Pretraining(text="nowhere", stages=[{"tasks": two}]))
