"""XLM's translation language modelling: pairs by construction, and a BERT against transformers' XLM class."""

import json

import numpy as np
import pytest
import torch
import transformers

from eval.data.sources import Source
from eval.errors import UserError
from teachers.anatomy.encoder import first_position
from teachers.pretraining.network import check_positions
from teachers.pretraining.objectives.mlm import MaskedLM
from teachers.pretraining.objectives.pretext_objective import Text
from teachers.pretraining.pretraining_batches import PretextDataset
from teachers.pretraining.settings import PretextTask
from teachers.pretraining.text.corpus import build, texts
from teachers.pretraining.text.sequence import Frame
from teachers.pretraining.text.sequence_sources import Translations, translations
from tests.tiny import tiny_taskmodel, tiny_tokenizer

ROWS = [
    {"source": "the film was good", "target": "a book is bad and sad"},
    {"source": "", "target": "nothing to compare"},
    {"source": "ann lives in rome", "target": "bob lives in paris"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("translations")
    (place / "train.jsonl").write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    return place


def corpus_of(folder, family="bert"):
    return build([Source.of(folder / "train.jsonl")], tiny_tokenizer(family), folder / "home", reader=translations)


def rows_of(folder, family="bert", inputs=("input_ids", "attention_mask", "token_type_ids"), language="both", **more):
    corpus, frame = corpus_of(folder, family), Frame(tiny_tokenizer(family))
    source = Translations(corpus, frame, 64, language, **more)
    asks = {"mlm": MaskedLM(rate=0.5).ask(Text(corpus, frame, tiny_tokenizer(family)))}
    first = first_position(tiny_taskmodel(family).model.config)
    return source, PretextDataset(source, frame, asks, inputs=(*inputs, "position_ids"), first_position=first)


def test_a_pair_is_the_tokenizers_and_its_positions_begin_anew(folder):
    source, _ = rows_of(folder)
    assert len(source.lengths) == 2, "a row without one of the two is left out"
    drawn = source.draw(0, np.random.default_rng(0))
    pair = tiny_tokenizer("bert")(ROWS[0]["source"], ROWS[0]["target"])
    assert drawn.ids.tolist() == pair["input_ids"]
    assert drawn.types.tolist() == pair["token_type_ids"]
    one, two = (len(tiny_tokenizer("bert")(ROWS[0][name])["input_ids"]) for name in ("source", "target"))
    assert drawn.positions.tolist() == [*range(one), *range(1, two)], "each token where it would stand alone"
    assert source.lengths[0] == len(drawn.ids)
    through, _ = rows_of(folder, restart=False)
    assert through.draw(0, np.random.default_rng(0)).positions is None


@pytest.mark.parametrize("language", ["source", "target"])
def test_the_sentences_of_one_language_alone(folder, language):
    source, _ = rows_of(folder, language=language)
    typed, _ = rows_of(folder, language=language, typed=True)
    for number, row in enumerate((ROWS[0], ROWS[2])):
        drawn, own = (one.draw(number, np.random.default_rng(0)) for one in (source, typed))
        assert drawn.ids.tolist() == own.ids.tolist() == tiny_tokenizer("bert")(row[language])["input_ids"]
        assert set(drawn.types) == {0}
        assert set(own.types) == {int(language == "target")}
        assert source.lengths[number] == len(drawn.ids)


def test_positions_of_a_batch_are_counted_as_the_family_counts_them(folder):
    _, rows = rows_of(folder, "roberta", inputs=("input_ids", "attention_mask"))
    batch = rows.batch([0, 1])
    place = tiny_taskmodel("roberta").model.config.pad_token_id + 1
    for row in range(2):
        positions = batch.inputs["position_ids"][row][batch.mask[row].bool()].tolist()
        again = positions.index(place + 1, 2)
        assert positions[:again] == list(range(place, place + again))
        assert positions[again:] == list(range(place + 1, place + 1 + len(positions) - again))
    hidden = batch.targets["mlm"] != -100
    assert hidden.any(dim=1).all()


def xlm_of(bert, config):
    """Return transformers' XLM with the weights of a BERT, whose token types are languages."""
    xlm = transformers.XLMModel(
        transformers.XLMConfig(
            vocab_size=config.vocab_size,
            emb_dim=config.hidden_size,
            n_layers=config.num_hidden_layers,
            n_heads=config.num_attention_heads,
            max_position_embeddings=config.max_position_embeddings,
            n_langs=2,
            gelu_activation=True,
            layer_norm_eps=config.layer_norm_eps,
            pad_index=0,
        )
    )
    tables, pairs = bert.embeddings, []
    pairs += [(xlm.embeddings, tables.word_embeddings), (xlm.position_embeddings, tables.position_embeddings)]
    pairs += [(xlm.lang_embeddings, tables.token_type_embeddings), (xlm.layer_norm_emb, tables.LayerNorm)]
    for number, layer in enumerate(bert.encoder.layer):
        attention, network = xlm.attentions[number], xlm.ffns[number]
        own = layer.attention
        pairs += [(attention.q_lin, own.self.query), (attention.k_lin, own.self.key), (attention.v_lin, own.self.value)]
        pairs += [(attention.out_lin, own.output.dense), (xlm.layer_norm1[number], own.output.LayerNorm)]
        pairs += [(network.lin1, layer.intermediate.dense), (network.lin2, layer.output.dense)]
        pairs.append((xlm.layer_norm2[number], layer.output.LayerNorm))
    for into, given in pairs:
        into.load_state_dict(given.state_dict())
    return xlm.eval()


def test_a_bert_with_languages_as_token_types_is_transformers_xlm(folder):
    model = tiny_taskmodel("bert", intermediate_size=128).model  # XLM's is four times the hidden size
    xlm = xlm_of(model.bert, model.config)
    _, rows = rows_of(folder)
    batch = rows.batch([0, 1])
    assert batch.inputs["position_ids"].max() < batch.inputs["input_ids"].shape[1] - 3, "positions begin anew"
    with torch.no_grad():
        found = model.bert(**batch.inputs).last_hidden_state
        given = {name: batch.inputs[name] for name in ("input_ids", "attention_mask", "position_ids")}
        expected = xlm(**given, langs=batch.inputs["token_type_ids"]).last_hidden_state
    real = batch.mask.bool()
    torch.testing.assert_close(found[real], expected[real], atol=1e-5, rtol=1e-5)


def test_both_sentences_are_text_too(folder):
    corpus = build([Source.of(folder / "train.jsonl")], tiny_tokenizer("bert"), folder / "home", reader=texts)
    found = [tiny_tokenizer("bert").decode(corpus.tokens_of(number)) for number in range(len(corpus))]
    assert found == [text for row in ROWS for text in row.values() if text]


def test_what_does_not_fit_is_refused():
    for family in ("bert", "roberta", "distilbert", "modernbert", "electra"):
        check_positions(tiny_taskmodel(family).model)
    for family in ("xlnet", "deberta-v2", "mpnet"):
        with pytest.raises(UserError, match=f"restart: {family} reads distances between tokens"):
            check_positions(tiny_taskmodel(family).model)
    with pytest.raises(ValueError, match="asks for nothing"):
        PretextTask(translations="pairs")
    with pytest.raises(ValueError, match="language: is of translations"):
        PretextTask(language="source", objectives="mlm")
    with pytest.raises(ValueError, match="plm has no loss of whole sequences; leave translations out"):
        PretextTask(translations="pairs", objectives="plm")
    with pytest.raises(ValueError, match="memory: is of sequences: blocks"):
        PretextTask(sequences="full_sentences", objectives={"plm": {"memory": 8}})
