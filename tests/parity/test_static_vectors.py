"""Static sentence vectors: the token vectors against model2vec's, the least squares, training, and other libraries."""

import json

import numpy as np
import pytest
import torch

from compress import Inputs, Recipe, UserError, load, run
from compress.distill.components.split_words import added, split_words, with_words
from compress.distill.components.token_vectors import (
    least_squares,
    output_vectors,
    reduced,
    smooth_inverse_frequency,
    zipf_counts,
)
from compress.distill.static import StaticDistillation, usable
from compress.export import Runtime, export_onnx
from eval.inference import predict
from eval.task import Examples
from teachers.anatomy.encoder import word_embeddings
from teachers.signals.model_teacher import ModelTeacher
from teachers.taskmodel import save_taskmodel
from tests.tiny import tiny_spec, tiny_task, tiny_taskmodel

SMALL = {"max_steps": 3, "batch_size": 8, "embedding_size": 12}
TEXTS = ["good film", "a sad and very dull song", "", "the day " * 40, "qqq good zzz"]


def vectors(model, texts=TEXTS):
    return np.stack([rows[0] for rows in predict(model, [{"text": text} for text in texts]).logits])


def distilled(cache, family="bert", spec=None, **fields):
    task = tiny_task("embedding", pair=True)
    source = tiny_taskmodel(family, spec or task.spec)
    inputs = Inputs(train=task.train, validation=None, teacher=ModelTeacher(source, cache=cache))
    step = StaticDistillation(**{**SMALL, **fields})
    return run(Recipe(steps=(step,)), source, inputs, dry_run_first=False), task, source


@pytest.fixture(scope="module")
def student(tmp_path_factory):
    return distilled(tmp_path_factory.mktemp("signals"))[0]


def test_the_least_squares_are_those_of_numpy():
    chance = torch.Generator().manual_seed(0)
    x, y = torch.randn(50, 4, generator=chance), torch.randn(50, 3, generator=chance)
    mapped, shift = least_squares([(x[:20], y[:20]), (x[20:], y[20:])], (4, 3), ridge=1e-9)
    expected = np.linalg.lstsq(np.hstack([x.numpy(), np.ones((50, 1))]), y.numpy(), rcond=None)[0]
    assert np.allclose(mapped.numpy(), expected[:4], atol=1e-5)
    assert np.allclose(shift.numpy(), expected[4], atol=1e-5)
    stiff, mean = least_squares([(x, y)], (4, 3), ridge=1e9)
    assert torch.allclose(stiff, torch.zeros(4, 3), atol=1e-6)
    assert torch.allclose(mean, y.mean(dim=0), atol=1e-5)


def test_ranks_by_hand():
    counts = zipf_counts(torch.tensor([False, True, True, False, True]))
    assert counts.tolist() == pytest.approx([0, 1 / 2, 1 / 3, 0, 1 / 4])


@pytest.mark.parametrize("size", [8, 32])
def test_token_vectors_are_those_of_model2vec(size, tmp_path):
    """Of the same teacher, up to the sign of each axis; it leaves special tokens out of the axes as we do."""
    inference = pytest.importorskip("model2vec.distill.inference")
    model = tiny_taskmodel("bert", tiny_spec("embedding"))
    found, used = output_vectors(model), usable(model)
    tokenizer = model.tokenizer
    rows = [[tokenizer.cls_token_id, token, tokenizer.sep_token_id] for token in range(len(used)) if used[token]]
    theirs = inference.create_embeddings(model.model, rows, "cpu", tokenizer.pad_token_id)
    assert np.allclose(found[used].numpy(), theirs, atol=1e-5)
    weighted = inference.apply_pca(theirs, size) * inference.compute_weights(len(theirs), 1e-4)[:, None]
    own = reduced(found, size, used)[0] * smooth_inverse_frequency(zipf_counts(used), 1e-4)[:, None]
    own = own[used].numpy()
    signs = np.sign((own * weighted).sum(axis=0))
    assert np.allclose(own * signs, weighted, atol=1e-4)


def test_without_training_and_fit_it_is_model2vec(tmp_path):
    result, _, source = distilled(tmp_path, frequencies="ranks", smoothing=1e-4, fit=False, learning_rate=1e-12)
    used = usable(result)
    expected = reduced(output_vectors(source), 12, used)[0]
    expected *= smooth_inverse_frequency(zipf_counts(used), 1e-4)[:, None]
    table = word_embeddings(result.model).weight.detach()
    assert torch.allclose(table[used], expected[used], atol=1e-6)
    assert not table[result.model.config.skipped_ids].any()


def test_fit_and_training_bring_it_nearer_to_the_teacher(tmp_path):
    """Teacher's width, so that vectors can be compared one by one."""
    near = {}
    for name, fields in {
        "start": {"fit": False, "learning_rate": 1e-12},
        "fit": {"learning_rate": 1e-12},
        "trained": {"max_steps": 60, "learning_rate": 0.01},
    }.items():
        result, task, source = distilled(tmp_path, embedding_size=32, **fields)
        texts = [example["text_a"] for example in task.validation]
        near[name] = float((vectors(result, texts) * vectors(source, texts)).sum(axis=1).mean())
    assert near["start"] < near["fit"] < near["trained"]


def test_what_it_refuses(tmp_path):
    with pytest.raises(UserError, match=r"alpha is 0\.5; an embedding has no labels to learn from"):
        distilled(tmp_path, alpha=0.5)
    task = tiny_task("embedding", pair=True)
    narrow = tiny_taskmodel("bert", task.spec, hidden_size=16, num_attention_heads=2)
    inputs = Inputs(train=task.train, teacher=ModelTeacher(narrow, cache=tmp_path))
    found = StaticDistillation(embedding_size=24).check(tiny_taskmodel("bert", task.spec), inputs)
    assert found == [
        "distill.static: embedding_size is 24, the teacher's vectors have 16; take at most as many",
    ]


TOLD = [
    "Kyoto and Torino, Kyoto!",
    "the kyoto film",
    "torino",
    "good film good film",
    "kyoto-torino",
    "wien",
    "x1y x1y",
]
"""Of the words that are cut, kyoto stands four times, torino three times, x1y twice, wien once."""


class TestWords:
    def test_the_most_frequent_words_that_are_cut_are_found(self):
        tokenizer = tiny_taskmodel("bert", tiny_spec("embedding")).tokenizer
        assert split_words(tokenizer, TOLD, 10) == ["x1y", "kyoto", "torino"], "those of fewest tokens first"
        assert split_words(tokenizer, TOLD, 2) == ["kyoto", "torino"]
        assert split_words(tokenizer, [*TOLD, "kyot\u00f8 " * 9], 1) == ["kyoto"], "unknown to the teacher"

    def test_they_become_tokens_and_all_else_is_tokenized_as_before(self):
        tokenizer = tiny_taskmodel("bert", tiny_spec("embedding")).tokenizer
        before, size = tokenizer.backend_tokenizer.to_str(), len(tokenizer)
        longer = with_words(tokenizer, ["kyoto", "torino"])
        assert tokenizer.backend_tokenizer.to_str() == before
        tokens = [tokenizer(word, add_special_tokens=False)["input_ids"] for word in ("kyoto", "torino")]
        assert added(tokenizer, longer) == tokens
        tokenizer.backend_tokenizer.enable_padding(length=16)
        assert added(tokenizer, longer) == tokens, "padding is no part of a word"
        tokenizer.backend_tokenizer.no_padding()
        assert longer.tokenize("Kyoto, the torinos") == ["kyoto", ",", "the", "torino", "##s"]
        assert longer.convert_tokens_to_ids(["kyoto", "torino"]) == [size, size + 1]
        assert longer("a good film")["input_ids"] == tokenizer("a good film")["input_ids"]

    @pytest.mark.parametrize("read", ["output", "input"])
    def test_a_word_begins_as_the_sum_of_its_tokens_and_no_text_turns(self, read, tmp_path):
        source, found = tiny_taskmodel("bert", tiny_spec("embedding")), []
        inputs = Inputs(
            train=Examples([{"text": text} for text in TOLD * 4], "train"), teacher=ModelTeacher(source, cache=tmp_path)
        )
        for words in (0, 2):
            step = StaticDistillation(embedding_size=12, vectors=read, fit=False, words=words)
            network = step.network_for(step.reading(source, inputs))
            step.begin(source, network, inputs)
            found.append(network)
        assert np.allclose(vectors(found[1], TOLD), vectors(found[0], TOLD), atol=1e-6)
        plain, longer = (word_embeddings(network.model).weight.detach() for network in found)
        for place, word in enumerate(("kyoto", "torino"), start=len(source.tokenizer)):
            tokens = source.tokenizer(word, add_special_tokens=False)["input_ids"]
            assert torch.allclose(longer[place], sum(plain[token] for token in tokens), atol=1e-6)

    def test_a_model_with_them_is_trained_saved_and_loaded(self, tmp_path):
        source = tiny_taskmodel("bert", tiny_spec("embedding"))
        train = Examples([{"text": text} for text in TOLD * 4], "train")
        inputs = Inputs(train=train, teacher=ModelTeacher(source, cache=tmp_path / "signals"))
        result = run(Recipe(steps=(StaticDistillation(**SMALL, words=2),)), source, inputs, dry_run_first=False)
        assert result.lineage[-1].facts["words"] == 2
        assert result.model.config.vocab_size == len(source.tokenizer) + 2
        assert result.tokenizer.tokenize("kyoto") == ["kyoto"]
        rows = word_embeddings(result.model).weight.detach()[-2:]
        assert np.allclose(vectors(result, ["kyoto"])[0], (rows[0] / rows[0].norm()).numpy(), atol=1e-6)
        result.save(tmp_path / "model")
        assert np.array_equal(vectors(load(tmp_path / "model"), TOLD), vectors(result, TOLD))
        library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
        theirs = library.SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(TOLD)
        assert np.allclose(theirs, vectors(result, TOLD), atol=1e-5)

    def test_other_tokenizers_and_classes_are_refused(self, tmp_path):
        with pytest.raises(UserError, match="words: only a WordPiece tokenizer takes whole words; leave them out"):
            distilled(tmp_path, family="roberta", words=5)
        task = tiny_task("classification")
        inputs = Inputs(train=task.train, teacher=ModelTeacher(tiny_taskmodel("bert", task.spec), cache=tmp_path))
        found = StaticDistillation(words=5).check(tiny_taskmodel("bert", task.spec), inputs)
        assert found == ["distill.static: words are for embedding; leave them out"]


def test_a_teacher_with_a_prompt_and_another_pooling(tmp_path):
    spec = tiny_spec("embedding", pair=True).model_copy(update={"pooling": "first", "prompt": "a good "})
    result, _, _ = distilled(tmp_path, spec=spec)
    assert (result.task.pooling, result.task.prompt) == ("mean", "")
    result.save(tmp_path / "model")
    assert np.array_equal(vectors(load(tmp_path / "model")), vectors(result))


def test_it_is_saved_loaded_and_exported(student, tmp_path):
    student.save(tmp_path / "model")
    assert np.array_equal(vectors(load(tmp_path / "model")), vectors(student))
    load(tmp_path / "model").save(tmp_path / "again")
    assert np.array_equal(vectors(load(tmp_path / "again")), vectors(student))
    assert "StaticModel.from_pretrained" in (tmp_path / "model" / "README.md").read_text()
    export_onnx(student, tmp_path / "onnx")
    assert np.allclose(np.stack(Runtime(tmp_path / "onnx").predict(TEXTS).logits)[:, 0], vectors(student), atol=1e-5)


def test_the_files_are_those_of_the_documented_formats(student, tmp_path):
    student.save(tmp_path)
    from safetensors.numpy import load_file

    tensors = load_file(tmp_path / "model.safetensors")
    assert {name: table.shape for name, table in tensors.items()} == {"embeddings": (len(student.tokenizer), 12)}
    modules = json.loads((tmp_path / "modules.json").read_text())
    assert [module["type"].rpartition(".")[2] for module in modules] == ["StaticEmbedding", "Normalize"]
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["normalize"], config["max_length"]) == (True, 30)
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    assert (tokenizer["truncation"]["max_length"], tokenizer["padding"]) == (30, None)


@pytest.mark.parametrize("family", ["bert", "roberta", "xlnet"])
def test_other_libraries_give_the_same_vectors(family, tmp_path):
    sentences, other = (pytest.importorskip(name) for name in ("sentence_transformers", "model2vec"))
    result, _, _ = distilled(tmp_path / "signals", family)
    folder = result.save(tmp_path / "model")
    expected = vectors(result)
    assert np.allclose(sentences.SentenceTransformer(str(folder), device="cpu").encode(TEXTS), expected, atol=1e-5)
    found = other.StaticModel.from_pretrained(str(folder))
    short = [place for place, text in enumerate(TEXTS) if len(text) <= found.max_length * found.median_token_length]
    assert len(short) >= 4  # it cuts longer texts to that many characters before it reads their tokens
    assert np.allclose(found.encode([TEXTS[place] for place in short]), expected[short], atol=1e-5)


def test_a_modified_table_does_not_claim_to_be_theirs(tmp_path):
    from compress.quantize.weights import WeightQuantization

    wide, _, _ = distilled(tmp_path / "signals", embedding_size=32)
    packed = run(Recipe(steps=(WeightQuantization(),)), wide, Inputs(), dry_run_first=False)
    packed.save(tmp_path / "model")
    assert not (tmp_path / "model" / "modules.json").exists()
    assert "How to load it" in (tmp_path / "model" / "README.md").read_text()
    assert load(tmp_path / "model").task.kind == "embedding"


def test_a_plain_save_has_the_same_files(student, tmp_path):
    save_taskmodel(student, tmp_path)
    assert (tmp_path / "config_sentence_transformers.json").is_file()
