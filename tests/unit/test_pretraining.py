"""Pretraining from text alone: what the network sees, what is asked, and what comes out."""

import copy
import json
import logging

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from tokenizers.processors import TemplateProcessing

from eval.data.sources import Source
from eval.encoding import IGNORED
from eval.errors import UserError
from eval.task import TaskSpec
from teachers.pretraining import pretrain as pretraining
from teachers.pretraining.network import save_untrained
from teachers.pretraining.objectives import MaskedLM, Objectives
from teachers.pretraining.objectives.phrases import Phrases
from teachers.pretraining.objectives.pretext_objective import Text
from teachers.pretraining.pretrain import pretrain
from teachers.pretraining.pretraining_batches import PretextDataset
from teachers.pretraining.settings import Pretraining
from teachers.pretraining.text.corpus import CAPITAL, build
from teachers.pretraining.text.sequence import Frame
from teachers.pretraining.text.sequence_sources import Dialogues, Given, Packed, dialogues, labelled_pairs
from teachers.taskmodel import load_taskmodel
from tests.tiny import DECODERS, FAMILIES, at_first, tiny_tokenizer

PLACES = ("Paris", "Rome", "Oslo", "Lima", "Cairo", "Delhi")
TEXT = "\n\n".join(
    "\n".join(f"The film in {place} was good. {other} is a warm room of Ann." for other in PLACES) for place in PLACES
)


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "train.txt").write_text(TEXT, encoding="utf-8")
    (folder / "validation.txt").write_text(TEXT[:900], encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "a.txt").write_text(TEXT, encoding="utf-8")
    return build([Source.of(folder / "a.txt")], tiny_tokenizer("bert"), folder / "home")


@pytest.fixture(scope="module")
def frame():
    return Frame(tiny_tokenizer("bert"))


def block(data, tasks, *, length=32, network=None, tokenizer=None, **training):
    """Return a pretraining with one stage for each of ``tasks``."""
    shape = {"layers": 2, "hidden_size": 16, "heads": 2, "max_positions": 64, **(network or {})}
    settings = {"max_steps": 4, "batch_size": 4, "learning_rate": 1e-3, **training}
    stages = [{"tasks": one, "length": length, "training": settings} for one in tasks]
    return Pretraining(text=str(data), tokenizer=tokenizer or {"size": 120}, network=shape, stages=stages)


def record(folder):
    return json.loads((folder / pretraining.RECORD).read_text())


# ---- sequences


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in ("xlnet", "gpt2")])
def test_special_tokens_stand_where_the_tokenizer_puts_them(family, tmp_path):
    tokenizer = tiny_tokenizer(family)
    (tmp_path / "a.txt").write_text("the film was good. it was a film.\n", encoding="utf-8")
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "the film was good.\nit was a film."}), encoding="utf-8")
    corpus = build([Source.of(tmp_path / "b.jsonl")], tokenizer, tmp_path / "home")
    one, two = ([*corpus.places(0)[:count]] for count in (1, 2))
    frame = Frame(tokenizer)
    assert frame.draw(corpus, one).ids.tolist() == tokenizer("the film was good.")["input_ids"]
    pair = tokenizer("the film was good.", " it was a film.", return_token_type_ids=True)
    drawn = frame.draw(corpus, two)
    assert drawn.ids.tolist() == pair["input_ids"]
    if "token_type_ids" in tokenizer.model_input_names:
        assert drawn.types.tolist() == pair["token_type_ids"]
    assert len(drawn.ids) == len(drawn.words) == len(drawn.places)
    special = np.isin(drawn.ids, tokenizer.all_special_ids)
    assert (drawn.words[special] == -1).all()
    assert (np.diff(drawn.words[~special]) >= 0).all()


def test_documents_of_a_full_sequence_are_separated(corpus, frame):
    source = Packed(corpus, frame, 120, "full_sentences")
    drawn = source.draw(0, np.random.default_rng(0))
    inner = drawn.ids[1:-1].tolist()
    assert len(drawn.ids) <= 120
    assert inner.count(frame.separator[0]) == sum(np.diff(drawn.places[1:-1]) < -1), "one wherever places jump"
    assert source.lengths.max() <= 120


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_two_texts_are_separated_or_pairs_are_refused(family, tmp_path):
    tokenizer = copy.deepcopy(tiny_tokenizer(family))
    end = tokenizer.eos_token_id
    assert tokenizer("a", "a").input_ids.count(end) == 2
    assert Frame(tokenizer, masks=False).room(20, 2) == 18
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing("$A </s>", "$A $B </s>", [("</s>", end)])
    frame = Frame(tokenizer, masks=False)
    assert frame.room(20) == 19
    with pytest.raises(UserError, match="no special token between two texts, so pairs"):
        frame.room(20, 2)


@pytest.mark.parametrize("separates", [True, False])
def test_blocks_of_a_decoder_hold_nothing_but_text_and_ends_of_texts(separates, tmp_path):
    """A tokenizer that has padding of its own puts nothing between two texts."""
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    tokenizer = copy.deepcopy(tiny_tokenizer("gpt2"))
    if not separates:
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
        assert tokenizer("a", "a").input_ids == 2 * tokenizer("a").input_ids
    corpus = build([Source.of(tmp_path / "a.txt")], tokenizer, tmp_path / "home")
    frame = Frame(tokenizer, masks=False)
    source = Packed(corpus, frame, 16, "blocks")
    drawn = [source.draw(number, np.random.default_rng(0)).ids for number in range(len(source.lengths))]
    assert all(len(ids) == 16 for ids in drawn[:-1])
    documents = [[corpus.tokens[a:b].tolist() for a, b in corpus.runs(number)] for number in range(len(corpus))]
    stream = [token for runs in documents for token in [0, *(one for run in runs for one in run)]][1:]
    assert np.concatenate(drawn).tolist() == stream[: sum(map(len, drawn))]
    assert len(stream) - sum(map(len, drawn)) < 2
    with pytest.raises(UserError, match="no mask token"):
        Frame(tokenizer)


@pytest.mark.parametrize(
    ("objective", "family", "kind"), [("span_corruption", "t5", "t5"), ("denoising", "bart", "bpe")]
)
def test_an_encoder_with_a_decoder_learns_to_write(objective, family, kind, data):
    shape = {"family": family, "decoder_layers": 1}
    words = {"kind": kind, "size": 420 if kind == "t5" else 320}
    task = {"text": {"objectives": {objective: {}}}}
    folder = pretrain(
        block(data, [task], network=shape, tokenizer=words, max_steps=40, learning_rate=5e-3, report_steps=10), seed=13
    )
    history = record(folder)["stages"][0]["history"]
    scores = [entry["scores"][f"{objective}.perplexity"] for entry in history]
    assert scores[-1] < 0.8 * scores[0]
    spec = TaskSpec(kind="seq2seq", metric="chrf", target_length=8)
    model = load_taskmodel(folder, spec)
    assert model.model.config.model_type == family
    assert len(model.write(model.encoder.collate(model.encoder.encode([{"source": "the film"}])))[0]) <= 8


@pytest.mark.parametrize("family", at_first(("gpt2", *DECODERS), "gpt2"))
def test_a_decoder_learns_the_next_word(family, data):
    task = {"text": {"objectives": {"next_word": {}}}}
    found = block(
        data,
        [task],
        network={"family": family, "options": {"activation_function": "gelu_new"} if family == "gpt2" else {}},
        tokenizer={"kind": "gpt2", "size": 300},
        max_steps=60,
        learning_rate=5e-3,
    )
    folder = pretrain(found, seed=13)
    history = record(folder)["stages"][0]["history"]
    assert history[-1]["scores"]["next_word.perplexity"] < 120
    assert "next_word.accuracy" in history[-1]["scores"]
    network = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert network.config.model_type == family
    model = load_taskmodel(folder)
    assert (model.task.kind, model.tokenizer.all_special_tokens) == ("causal-lm", ["<|endoftext|>"])
    stage = {"tasks": task, "length": 32, "training": {"max_steps": 2, "batch_size": 4}}
    further = pretrain(Pretraining(text=str(data), network={"from": str(folder)}, stages=[stage]), seed=13)
    assert record(further)["stages"][0]["history"][-1]["scores"]["next_word.perplexity"] < 130


@pytest.mark.parametrize(
    ("tasks", "network", "said"),
    [
        ([{"text": {"objectives": {"next_word": {}}}}], {}, "bert sees what comes after a token"),
        ([{"text": {"objectives": {"mlm": {}}}}], {"family": "gpt2"}, "gpt2 has no masked-language head"),
        (
            [{"a": {"objectives": {"next_word": {}}}, "b": {"objectives": {"mlm": {}}}}],
            {"family": "gpt2"},
            "next_word is for decoders, the other objectives and classes of sequences are for encoders",
        ),
        (
            [{"a": {"objectives": {"next_word": {}}}, "b": {"pair": "sentence_order"}}],
            {"family": "gpt2"},
            "next_word is for decoders, the other objectives and classes of sequences are for encoders",
        ),
        (
            [{"a": {"objectives": {"plm": {}}}}, {"b": {"reorder": 3}}],
            {"family": "xlnet"},
            "plm is for XLNet, the other objectives and classes of sequences are for other encoders",
        ),
        (
            [{"a": {"objectives": {"masked_segment": {}}}}, {"b": {"pair": "next_sentence"}}],
            {"family": "bart"},
            "are for an encoder with a decoder, the other objectives and classes of sequences are not",
        ),
    ],
)
def test_objectives_that_are_not_for_a_network_are_refused(data, tasks, network, said):
    with pytest.raises(UserError, match=said):
        pretrain(block(data, tasks, network=network), seed=13)


def test_every_token_is_drawn_once_where_sequences_are_whole(corpus, frame):
    for how in ("full_sentences", "doc_sentences", "sentence_pair", "segment_pair"):
        source = Packed(corpus, frame, 40, how)
        places = np.concatenate(
            [source.draw(number, np.random.default_rng(0)).places for number in range(len(source.lengths))]
        )
        assert sorted(places[places >= 0]) == list(range(corpus.facts["tokens"])), how


@pytest.mark.parametrize(("pair", "classes"), [("next_sentence", 2), ("sentence_structure", 3)])
def test_a_strange_second_segment_is_of_another_document(corpus, frame, pair, classes):
    source = Packed(corpus, frame, 40, "segment_pair", pair=pair)
    owner = np.repeat(np.arange(len(corpus)), np.diff(corpus.sentence_starts[corpus.document_starts]))
    seen = set()
    for number in range(len(source.lengths)):
        drawn = source.draw(number, np.random.default_rng(number))
        own = [set(owner[drawn.places[(drawn.places >= 0) & (drawn.types == kind)]]) for kind in (0, 1)]
        assert (own[0] != own[1]) == (drawn.label == classes - 1)
        assert len(drawn.ids) <= 40
        seen.add(drawn.label)
    assert source.classes == classes
    assert seen == set(range(classes))


def test_shuffled_paragraphs_have_all_of_their_tokens(corpus, frame):
    source = Packed(corpus, frame, 60, "segment_pair", reorder=3)
    assert source.classes == 9
    whole = Packed(corpus, frame, 60, "segment_pair", reorder=1)
    for number in range(len(source.lengths)):
        drawn, plain = (one.draw(number, np.random.default_rng(number)) for one in (source, whole))
        assert sorted(drawn.places) == sorted(plain.places)
        assert (drawn.label < 1 or drawn.label == 1) == (drawn.places.tolist() == plain.places.tolist())


def test_given_pairs_keep_their_labels_and_dialogues_take_turns(tmp_path, frame):
    tokenizer = tiny_tokenizer("bert")
    rows = [{"text_a": f"the film {i}", "text_b": "a good book", "label": "ab"[i % 2]} for i in range(6)]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, [*rows, {"text_a": "alone"}])), encoding="utf-8")
    pairs = build([Source.of(tmp_path / "p.jsonl")], tokenizer, tmp_path / "home", reader=labelled_pairs)
    source = Given(pairs, frame, 32)
    assert source.classes == 2
    assert [source.draw(i, np.random.default_rng(0)).label for i in range(6)] == [0, 1] * 3
    assert pairs.facts["read"]["bad"] == 1
    expected = tokenizer("the film 0", "a good book")["input_ids"]
    assert source.draw(0, np.random.default_rng(0)).ids.tolist() == expected

    turns = [{"turns": [f"where is the film {i}", "in paris", "very good"]} for i in range(8)]
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, turns)), encoding="utf-8")
    talk = build([Source.of(tmp_path / "d.jsonl")], tokenizer, tmp_path / "home", reader=dialogues)
    spoken = Dialogues(talk, frame, 32)
    owner = np.repeat(np.arange(len(talk)), np.diff(talk.sentence_starts[talk.document_starts]))
    labels = []
    for seed in range(200):
        drawn = spoken.draw(seed % 8, np.random.default_rng(seed))
        assert (len(set(owner[drawn.places[drawn.places >= 0]])) == 1) == (drawn.label == 1)
        kinds = drawn.types[np.flatnonzero(np.diff(drawn.types, prepend=-1))]
        assert kinds.tolist() == [0, 1, 0], "speakers take turns"
        labels.append(drawn.label)
    assert np.mean(labels) == pytest.approx(0.5, abs=0.15)


@pytest.mark.parametrize("family", ["bert", "roberta", "xlnet"])
def test_dialogues_are_no_longer_than_a_sequence(family, tmp_path):
    tokenizer = tiny_tokenizer(family)
    turns = [{"turns": ["the film is great and the book is not " * 4] * count} for count in (2, 3)]
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, turns)), encoding="utf-8")
    talk = build([Source.of(tmp_path / "d.jsonl")], tokenizer, tmp_path / "home", reader=dialogues)
    for length in (32, 1000):
        spoken = Dialogues(talk, Frame(tokenizer), length)
        found = [len(spoken.draw(number, np.random.default_rng(0)).ids) for number in (0, 1)]
        assert found == spoken.lengths.tolist(), "RoBERTa has two separators between turns"
        assert (found == [length] * 2) == (length == 32)


# ---- what is asked


def rows_for(corpus, frame, objectives, **settings):
    text = Text(corpus, frame, tiny_tokenizer("bert"))
    asks = {name: own.ask(text) for name, own in Objectives(**objectives).given.items()}
    return PretextDataset(Packed(corpus, frame, 60, "full_sentences"), frame, asks, **settings)


def test_masks_are_dynamic_or_static_and_come_back_with_the_seed(corpus, frame):
    def masks(epoch, **settings):
        return rows_for(corpus, frame, {"mlm": {}}, **settings).draw(1, epoch).targets["mlm"]

    assert (masks(0) == masks(0)).all()
    assert (masks(0) != masks(1)).any(), "dynamic masking"
    assert (masks(0, draws=1) == masks(1, draws=1)).all(), "static masking"
    assert (masks(0, draws=2) == masks(2, draws=2)).all()
    assert (masks(0, seed=1) != masks(0, seed=2)).any()


def test_a_batch_is_padded_and_padding_is_not_asked_for(corpus, frame):
    rows = rows_for(corpus, frame, {"mlm": {}, "word_structural": {"rate": 0.2}, "capitals": {}, "in_document": {}})
    last = len(rows) - 1
    batch = rows.batch([0, last])
    padding = batch.mask == 0
    assert padding[1].any()
    assert (batch.inputs["input_ids"][padding] == frame.pad).all()
    for name, target in batch.targets.items():
        assert (target[padding] == IGNORED).all(), name
        assert (target[:, 0] == IGNORED).all(), name
    hidden, moved = (batch.targets[name] != IGNORED for name in ("mlm", "word_structural"))
    assert not (hidden & moved).any(), "what one objective took no other takes"


def test_capitals_and_words_that_come_back_are_told_from_the_text(corpus, frame):
    drawn = rows_for(corpus, frame, {"capitals": {}, "in_document": {}}).draw(0, 0)
    tokenizer, first = tiny_tokenizer("bert"), {}
    for place, label in enumerate(drawn.targets["capitals"].tolist()):
        if label != IGNORED:
            first.setdefault(tokenizer.convert_ids_to_tokens(int(drawn.ids[place])), set()).add(label)
    assert first["paris"] == {1}
    assert first["film"] == {0}
    assert (corpus.flags[drawn.places[1]] & CAPITAL) > 0
    whole = corpus.tokens[: int(corpus.sentence_starts[corpus.document_starts[1]])]
    inside = drawn.places[drawn.places >= 0]
    for place in np.flatnonzero(drawn.targets["in_document"] != IGNORED):
        token = drawn.ids[place]
        expected = (whole == token).sum() > (corpus.tokens[inside] == token).sum()
        assert drawn.targets["in_document"][place] == expected


def test_phrases_of_a_list_are_hidden_whole(corpus, frame, tmp_path):
    (tmp_path / "list.txt").write_text("warm room\nno such words here\n", encoding="utf-8")
    own = {"mlm": {"units": "phrase", "lists": [str(tmp_path / "list.txt")], "rate": 0.4}}
    rows = rows_for(corpus, frame, own)
    tokenizer = tiny_tokenizer("bert")
    warm, room = tokenizer("warm room", add_special_tokens=False)["input_ids"]
    found = 0
    for number in range(len(rows)):
        plain = rows.source.draw(number, np.random.default_rng(0)).ids
        hidden = rows.draw(number, 0).targets["mlm"] != IGNORED
        for place in np.flatnonzero(plain == warm):
            if plain[place + 1] == room:
                assert hidden[place] == hidden[place + 1]
                found += hidden[place]
    assert found > 3


def test_phrases_are_the_same_where_the_file_of_a_tokenizer_pads_and_truncates(corpus, tmp_path):
    (tmp_path / "list.txt").write_text("warm room\n", encoding="utf-8")
    plain, padded = tiny_tokenizer("bert"), tiny_tokenizer("bert")
    padded.backend_tokenizer.enable_padding(length=8)
    padded.backend_tokenizer.enable_truncation(1)
    known, found = (Phrases.read([tmp_path / "list.txt"], each, corpus).known for each in (plain, padded))
    assert known == found == {tuple(plain("warm room", add_special_tokens=False)["input_ids"])}


def test_a_phrase_that_does_not_fit_before_the_end_gives_way_to_a_shorter_one():
    known = Phrases([(5, 6), (5, 6, 7, 8)])
    assert known.found(np.array([1, 5, 6]), [0, 1, 2]) == [(1, 3)]
    assert known.found(np.array([1, 5, 6, 7, 8]), [0, 1, 2, 3, 4]) == [(1, 5)]
    assert known.found(np.array([1, 5]), [0, 1]) == []


def test_lists_that_match_nothing_are_refused(corpus, frame, tmp_path):
    (tmp_path / "list.txt").write_text("nowhere to be found\n", encoding="utf-8")
    masked = MaskedLM(units="phrase", lists=(str(tmp_path / "list.txt"),))
    with pytest.raises(UserError, match="none of its 1 phrases stands in the first"):
        masked.ask(Text(corpus, frame, tiny_tokenizer("bert")))


# ---- whole trainings

ELECTRA = {"family": "electra", "embedding_size": 8}
FORMS = {
    "bert": ({"pair": "next_sentence", "objectives": "mlm"}, {}, {}),
    "roberta": ({"objectives": "mlm"}, {"family": "roberta"}, {"kind": "bytes", "size": 300}),
    "span": ({"objectives": {"mlm": {"units": "span"}, "span_boundary": {}}}, {}, {}),
    "order": ({"pair": "sentence_order", "objectives": "mlm"}, {"family": "albert", "embedding_size": 8}, {}),
    "structure": ({"pair": "sentence_structure", "objectives": {"mlm": {}, "word_structural": {}}}, {}, {}),
    "replaced": (
        {"objectives": {"rtd": {"generator": 0.5}}},
        {"family": "electra", "embedding_size": 8},
        {},
    ),
    "reorder": ({"reorder": 3, "objectives": {"capitals": {}, "in_document": {}}}, {"family": "ernie"}, {}),
}
TERMS = {
    "bert": {"mlm", "next_sentence"},
    "roberta": {"mlm"},
    "span": {"mlm", "span_boundary"},
    "order": {"mlm", "sentence_order"},
    "structure": {"mlm", "word_structural", "sentence_structure"},
    "replaced": {"generator", "rtd"},
    "reorder": {"reorder", "capitals", "in_document"},
}


def test_a_list_of_a_later_stage_is_refused_before_the_first_trains(data, tmp_path, monkeypatch):
    (tmp_path / "list.txt").write_text("nowhere to be found\n", encoding="utf-8")
    later = {"objectives": {"mlm": {"units": "phrase", "lists": [str(tmp_path / "list.txt")]}}}
    monkeypatch.setattr(f"{pretraining.__name__}.learn", lambda *_, **__: pytest.fail("a stage was trained"))
    with pytest.raises(UserError, match="none of its 1 phrases stands in the first"):
        pretrain(block(data, [{"text": {"objectives": "mlm"}}, {"text": later}]))


@pytest.mark.parametrize("form", FORMS)
def test_every_objective_trains_and_gives_a_stock_network(form, data):
    task, network, tokenizer = FORMS[form]
    folder = pretrain(block(data, [{"text": task}], network=network, tokenizer=tokenizer))
    (stage,) = record(folder)["stages"]
    entry = stage["history"][-1]
    assert set(entry["terms"]) == TERMS[form]
    assert np.isfinite(entry["loss"])
    named = {name.partition(".")[0] for name in entry["scores"]}
    assert named == TERMS[form], "each term is scored on the validation text"
    assert stage["speed"]["tokens_per_second"] > 0
    spec = TaskSpec(kind="classification", labels=("no", "yes"))
    model = load_taskmodel(folder, spec)
    assert np.isfinite(model.forward(model.encoder.collate(model.encoder.encode([{"text": "a film"}])))).all()
    if "mlm" in TERMS[form]:
        stock, report = transformers.AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
        assert not report["missing_keys"]
        assert stock.config.model_type == network.get("family", "bert")


def test_the_pooler_of_a_sentence_objective_is_where_stock_code_looks(data):
    folder = pretrain(block(data, [{"text": {"pair": "next_sentence"}}]))
    tensors = load_file(folder / "model.safetensors")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    torch.testing.assert_close(model.bert.pooler.dense.weight.detach(), tensors["pooler.dense.weight"])
    heads = load_file(folder / pretraining.HEADS)
    torch.testing.assert_close(heads["next_sentence.pooler.weight"], tensors["pooler.dense.weight"])


@pytest.mark.parametrize(
    ("form", "biases"),
    [
        ("bert", ["cls.predictions.bias"]),
        ("roberta", ["lm_head.bias"]),
        ("span", ["cls.predictions.bias", "span_boundary.bias"]),
        ("order", ["predictions.bias"]),
        ("replaced", ["rtd.generator.generator_lm_head.bias"]),
    ],
)
def test_a_new_head_begins_with_the_frequencies_of_words(form, biases, data):
    task, network, tokenizer = FORMS[form]
    still = block(data, [{"text": task}], network=network, tokenizer=tokenizer, learning_rate=1e-12)
    folder = pretrain(still)
    own = transformers.AutoTokenizer.from_pretrained(folder)
    corpus = build([Source.of(data / "train.txt")], own, data / "home")
    counts = np.array([np.sum(corpus.tokens == token) for token in range(len(own))])
    expected = np.log((counts + 1) / (counts.sum() + len(own)))
    tensors = load_file(folder / "model.safetensors")
    tensors |= load_file(folder / pretraining.HEADS) if (folder / pretraining.HEADS).is_file() else {}
    assert biases == [name for name, tensor in tensors.items() if tensor.shape == expected.shape]
    for name in biases:
        np.testing.assert_allclose(tensors[name].numpy(), expected, rtol=1e-5)


def test_the_head_of_a_network_that_is_trained_further_is_left_as_it_was(data):
    folder = pretrain(block(data, [{"text": {"objectives": "mlm"}}], learning_rate=0.1))
    task = {"text": {"objectives": "mlm"}}
    stage = {"tasks": task, "length": 16, "training": {"max_steps": 1, "learning_rate": 1e-12}}
    after = pretrain(Pretraining(text=str(data), network={"from": str(folder)}, stages=[stage]))
    one, two = (load_file(at / "model.safetensors")["cls.predictions.bias"] for at in (folder, after))
    torch.testing.assert_close(one, two)


def test_heads_of_a_network_that_is_trained_further_go_on(data, caplog):
    pairs = {"order": {"reorder": 2}, "next": {"pair": "next_sentence"}}
    folder = pretrain(block(data, [pairs], max_steps=12, learning_rate=1e-2))
    stage = {"tasks": pairs, "length": 16, "training": {"max_steps": 1, "learning_rate": 1e-12}}

    def further(tasks):
        return pretrain(Pretraining(text=str(data), network={"from": str(folder)}, stages=[{**stage, "tasks": tasks}]))

    one, two = (load_file(at / pretraining.HEADS) for at in (folder, further(pairs)))
    assert (
        one.keys()
        == two.keys()
        == {"reorder.pooler.weight", "reorder.pooler.bias"}
        | {f"{head}.classifier.{name}" for head in ("reorder", "next_sentence") for name in ("weight", "bias")}
    )
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor)
    alone = load_file(further({"next": {"pair": "next_sentence"}}) / pretraining.HEADS)
    torch.testing.assert_close(alone["next_sentence.pooler.weight"], one["reorder.pooler.weight"])
    with caplog.at_level(logging.INFO, "teachers.pretraining"):
        wider = load_file(further({"order": {"reorder": 3}}) / pretraining.HEADS)
    assert (
        "reorder: learns from the start, for the shape of classifier.bias, classifier.weight was another" in caplog.text
    )
    assert len(wider["reorder.classifier.bias"]) == 9 > len(one["reorder.classifier.bias"])


def test_it_learns(data):
    task = {"text": {"objectives": {"mlm": {"units": "word"}}}}
    folder = pretrain(block(data, [task], max_steps=None, epochs=30, learning_rate=1e-2, warmup_steps=0.1))
    history = record(folder)["stages"][0]["history"]
    assert history[-1]["loss"] < 0.6 * history[0]["loss"]
    assert history[-1]["scores"]["mlm.accuracy"] > 0.4


def test_a_loss_too_high_for_a_perplexity_ends_no_training(data):
    found = pretrain(block(data, [{"text": {"objectives": {"mlm": {}}}}], learning_rate=10.0))
    (entry,) = record(found)["stages"][0]["history"]
    assert entry["scores"]["mlm.perplexity"] == pytest.approx(np.exp(700.0))


def test_tasks_of_a_stage_take_turns_and_heads_go_on_in_the_next(data):
    first = {"words": {"objectives": "mlm"}}
    second = {**first, "order": {"reorder": 2, "task_type": 1}}
    options = {"family": "ernie", "options": {"use_task_id": True}}
    folder = pretrain(block(data, [first, second], network=options, max_steps=12))
    one, two = ({name for entry in stage["history"] for name in entry["terms"]} for stage in record(folder)["stages"])
    assert one == {"mlm"}
    assert two == {"words.mlm", "order.reorder"}
    assert transformers.AutoModel.from_pretrained(folder).config.use_task_id


def test_the_same_call_finds_it_again_and_a_stopped_one_goes_on(data, monkeypatch, caplog):
    stages = [
        {"text": {"objectives": "mlm"}},
        {"text": {"pair": "next_sentence", "objectives": "mlm"}},
    ]
    recipe = block(data, stages, checkpoint_seconds=0)
    whole = pretrain(recipe)
    expected = load_file(whole / "model.safetensors")
    with caplog.at_level(logging.INFO, "teachers.pretraining"):
        assert pretrain(recipe) == whole
    assert "stage" not in caplog.text

    monkeypatch.setenv("COMPRESS_HOME", str(data / "other"))
    real, calls = pretraining.learn, []

    def stopping(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(pretraining, "learn", stopping)
    with pytest.raises(KeyboardInterrupt):
        pretrain(recipe)
    again = pretrain(recipe)
    assert len(calls) == 3, "the first stage was not trained again"
    found = load_file(again / "model.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    heads, other = (load_file(folder / pretraining.HEADS) for folder in (whole, again))
    assert all(torch.equal(other[name], tensor) for name, tensor in heads.items())


def test_a_training_that_stops_within_a_stage_goes_on_bit_for_bit(data, monkeypatch):
    recipe = block(data, [{"text": {"pair": "next_sentence", "objectives": "mlm"}}], checkpoint_seconds=0)
    expected = load_file(pretrain(recipe) / "model.safetensors")
    monkeypatch.setenv("COMPRESS_HOME", str(data / "other"))
    real, drawn = PretextDataset.batch, []

    def stopping(rows, numbers, epoch=0, progress=0.0):
        drawn.append(numbers)
        if len(drawn) == 3:
            raise KeyboardInterrupt
        return real(rows, numbers, epoch, progress)

    monkeypatch.setattr(PretextDataset, "batch", stopping)
    with pytest.raises(KeyboardInterrupt):
        pretrain(recipe)
    found = load_file(pretrain(recipe) / "model.safetensors")
    assert drawn[2] == drawn[3], "the batch that was not learned from comes again"
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_a_network_is_trained_further_with_its_own_tokenizer(data):
    folder = pretrain(block(data, [{"text": {"objectives": "mlm"}}]))
    further = Pretraining(
        text=str(data),
        network={"from": str(folder)},
        stages=[{"tasks": {"text": {"objectives": "mlm"}}, "length": 16, "training": {"max_steps": 1}}],
    )
    after = pretrain(further)
    one, two = (load_file(at / "model.safetensors") for at in (folder, after))
    assert {name: tensor.shape for name, tensor in one.items()} == {name: tensor.shape for name, tensor in two.items()}
    assert (folder / "tokenizer.json").read_text() == (after / "tokenizer.json").read_text()


# ---- errors


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"pair": "next_sentence", "reorder": 3}, "pair and reorder: a sequence has one class"),
        ({}, "asks for nothing"),
        ({"objectives": {"span_boundary": {}}}, "span_boundary needs mlm with 'units: span'"),
        ({"objectives": {"mlm": {}, "rtd": {}}}, "rtd fills the sequences itself"),
        ({"objectives": {"mlm": {"units": "phrase"}}}, "lists go with 'units: phrase'"),
        ({"objectives": {"mlm": {"mask": 0.9, "random": 0.2}}}, "shares of one whole"),
        ({"given": "x", "sequences": "doc_sentences"}, "given pairs, dialogues and translations are sequences already"),
        ({"reorder": 3, "sequences": "doc_sentences"}, "sequences: doc_sentences does not keep sentences apart"),
        ({"pair": "next_sentence", "sequences": "full_sentences"}, "full_sentences does not keep sentences apart"),
        ({"pair": "sentence_order", "sequences": "blocks"}, "sequences: blocks does not keep sentences apart"),
    ],
)
def test_tasks_that_make_no_sense_are_refused(data, task, said):
    with pytest.raises(ValueError, match=said):
        block(data, [{"text": task}])


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ({"mlm": {"given": "x"}, "text": {"objectives": {"mlm": {}}}}, "mlm: given pairs and dialogues have a head of"),
        ({"text": {"reorder": 2}, "more": {"reorder": 3}}, "reorder: 2 and 3 have one head"),
    ],
)
def test_two_tasks_that_would_have_one_head_are_refused(data, stage, said):
    with pytest.raises(ValueError, match=said):
        block(data, [stage])


def test_other_pairs_make_another_network(data):
    def folder(words):
        rows = [{"text_a": f"the film {i}", "text_b": word, "label": word} for i, word in enumerate(words * 8)]
        (data / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        task = {"given": str(data / "pairs.jsonl")}
        return pretrain(block(data, [{"relation": task}], max_steps=2))

    first = folder(["good", "bad"])
    assert folder(["good", "bad"]) == first
    assert folder(["warm", "cold"]) != first
    assert set(record(first)["stages"][0]["history"][-1]["terms"]) == {"relation"}
    assert "sentence_vector" not in json.loads((first / "config.json").read_text()), "a bare encoder, nothing else"


def test_given_pairs_are_watched_where_they_have_a_validation_split(data):
    rows = [{"text_a": f"the film {i}", "text_b": word, "label": word} for i, word in enumerate(["good", "bad"] * 8)]
    relations = data / "relations"
    relations.mkdir()
    (relations / "train.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    task = {"relation": {"given": str(relations)}}
    settings = {"epochs": 20, "max_steps": None, "learning_rate": 1e-2}
    history = record(pretrain(block(data, [task], **settings)))["stages"][0]["history"]
    assert "scores" not in history[-1]
    swapped = [{**row, "text_a": f"the book {i}"} for i, row in enumerate(rows[::-1])]  # labels come in another order
    (relations / "validation.jsonl").write_text("\n".join(map(json.dumps, swapped)), encoding="utf-8")
    history = record(pretrain(block(data, [task], **settings)))["stages"][0]["history"]
    assert history[-1]["scores"]["relation.accuracy"] == 1.0
    (relations / "validation.jsonl").write_text(
        "\n".join(json.dumps({**row, "label": label}) for row, label in zip(rows, ["warm", "bad"] * 8, strict=True)),
        encoding="utf-8",
    )
    with pytest.raises(UserError, match=r"labels warm, which those to learn from have not \(bad, good\)"):
        pretrain(block(data, [task], **settings))


def test_a_network_that_is_trained_further_keeps_its_tokenizer(data):
    with pytest.raises(ValueError, match="is trained further with its own; leave tokenizer out"):
        block(data, [{"text": {"objectives": "mlm"}}], network={"from": "somewhere"})


def test_lines_that_are_no_text_are_counted_and_very_long_documents_cut(data, monkeypatch):
    monkeypatch.setattr("teachers.pretraining.text.documents.LONGEST", 1000)
    long = "A word of a very long document. " * 100
    (data / "train.txt").write_bytes(f"{long}\n\nThe film.\n".encode() + b"\xff\xfe broken\n" + TEXT.encode())
    folder = pretrain(block(data, [{"text": {"objectives": "mlm"}}], max_steps=1))
    read = record(folder)["text"]["read"]
    assert read["bad"] == 1
    assert read["cut"] == 1, "the long document is read in two parts"
    assert "is not valid UTF-8" in read["problems"][0]


def test_what_does_not_fit_together_is_refused_before_training(data, tmp_path):
    task = [{"text": {"objectives": "mlm"}}]
    with pytest.raises(UserError, match="length 128: the network takes 64 tokens at most"):
        pretrain(block(data, task, length=128))
    with pytest.raises(UserError, match="bert has no spelling in its config"):
        pretrain(block(data, task, network={"options": {"spelling": 1}}))
    with pytest.raises(UserError, match="cannot share the embeddings of this bert"):
        pretrain(block(data, [{"text": {"objectives": {"rtd": {}}}}], network={"heads": 4}))
    with pytest.raises(
        UserError, match=r"model 'nowhere/model': no such folder, and as a hub name its tokenizer could"
    ):
        pretrain(Pretraining(text=str(data), network={"from": "nowhere/model"}, stages=[{"tasks": task[0]}]))
    (data / "talk.jsonl").write_text(json.dumps({"turns": "alone"}), encoding="utf-8")
    with pytest.raises(UserError, match=r"no token of this tokenizer; 1 rows could not be read: .* no list 'turns'"):
        pretrain(block(data, [{"talk": {"dialogues": str(data / "talk.jsonl")}}]))
    (data / "train.txt").write_text("\n\n", encoding="utf-8")
    with pytest.raises(UserError, match="holds no text"):
        pretrain(block(data, task))


def test_all_that_is_missing_is_said_at_once(data, tmp_path):
    phrases = {"mlm": {"units": "phrase", "lists": [str(tmp_path / "none.txt")]}}
    tasks = {"words": {"objectives": phrases}, "talk": {"dialogues": str(tmp_path / "no talk")}}
    missing = block(data, [{"text": {"objectives": "mlm"}}, tasks])
    missing = missing.model_copy(update={"text": (str(data), str(tmp_path / "nowhere at all"))})
    for refuses in (pretrain, lambda block: save_untrained(block, tmp_path, 13)):
        with pytest.raises(UserError) as caught:
            refuses(missing)
        nowhere, talk, lists = caught.value.problems
        assert nowhere.startswith(f"pretrain.text: {tmp_path / 'nowhere at all'}: no such file or folder, and no hub")
        assert talk.startswith(
            f"pretrain.stages.1.tasks.talk.dialogues: {tmp_path / 'no talk'}: no such file or folder"
        )
        assert lists.startswith("pretrain.stages.1.tasks.words.objectives.mlm.lists:")
    (data / "train.txt").rename(data / "test.txt")
    with pytest.raises(UserError, match=r"has no train split; name its file train\.txt or"):
        pretrain(block(data, [{"text": {"objectives": "mlm"}}]))
