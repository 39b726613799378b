"""Families whose network is another's under a name of its own: XLM-RoBERTa, CamemBERT and multilingual BERT."""

import numpy as np
import pytest
import torch
import transformers
from transformers import BertTokenizer

from compress import Artifact, Student, load
from compress.distill.logits import LogitDistillation
from compress.distill.tinybert import TinyBertDistillation
from compress.engine.steps import run
from compress.export import export_onnx
from compress.export.runtime import Runtime
from compress.prune.heads import HeadPruning
from compress.prune.vocabulary import VocabularyPruning
from compress.recipe import Recipe
from compress.technique import Inputs
from compress.testing import check_technique
from compress.testing.tiny import WORDS
from eval.inference import predict
from teachers.anatomy.encoder import first_position, model_inputs
from teachers.signals.model_teacher import ModelTeacher
from teachers.taskmodel import build_taskmodel, load_taskmodel, save_taskmodel
from tests.tiny import CHARACTERS, RELATIVES, tiny_config, tiny_task, tiny_taskmodel

TASK = tiny_task()


def multilingual_bert():
    """Return a BERT whose cased vocabulary has characters of several scripts, as bert-base-multilingual-cased."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *CHARACTERS, *WORDS, "Ärger", "ärger", "電", "影", "фильм"]
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = BertTokenizer(vocab=vocabulary, do_lower_case=False, model_max_length=128)
    return build_taskmodel(tiny_config("bert", vocab_size=len(vocabulary)), tokenizer, TASK.spec, seed=1)


def made(name):
    return multilingual_bert() if name == "multilingual BERT" else tiny_taskmodel(name, TASK.spec)


def scores(model):
    return np.stack(predict(model, TASK.validation[:8]).logits)


@pytest.mark.parametrize("name", [*RELATIVES, "multilingual BERT"])
def test_the_line_from_a_folder_of_transformers_to_an_export(name, tmp_path):
    source = made(name)
    save_taskmodel(source, tmp_path / "source")
    teacher = load_taskmodel(tmp_path / "source", TASK.spec)
    stock = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "source").eval()
    arrays = teacher.encoder.collate(teacher.encoder.encode(TASK.validation[:4]))
    assert tuple(arrays) == model_inputs(stock.config)
    with torch.no_grad():
        expected = stock(**{key: torch.from_numpy(array) for key, array in arrays.items()}).logits.numpy()
    assert np.array_equal(teacher.forward(arrays), expected)

    student = Student(layers=(0, 2)).build(teacher)
    inputs = Inputs(train=TASK.train, validation=TASK.validation, teacher=ModelTeacher(teacher, cache=tmp_path))
    steps = (
        VocabularyPruning(),
        LogitDistillation(epochs=1),
    )
    small = run(Recipe(steps=steps), student, inputs)
    small.save(tmp_path / "small")
    assert np.array_equal(scores(load(tmp_path / "small")), scores(small))
    export_onnx(small, tmp_path / "onnx", int8=False, examples=TASK.validation)
    assert np.allclose(scores(Runtime(tmp_path / "onnx")), scores(small), atol=1e-5)


@pytest.mark.parametrize("name", RELATIVES)
def test_it_is_a_roberta_under_its_own_name(name):
    twin, model = tiny_taskmodel("roberta", vocab_size=400), tiny_taskmodel(name, vocab_size=400)
    model.model.load_state_dict(twin.model.state_dict())
    ids = torch.tensor([[0, 7, 30, 9, 2], [0, 8, 2, 1, 1]])
    inputs = {"input_ids": ids, "attention_mask": (ids != 1).long()}
    with torch.no_grad():
        assert torch.equal(model.model(**inputs).logits, twin.model(**inputs).logits)
    assert first_position(model.model.config) == 2
    assert Student(layers=(0, 2), family="bert").build(Artifact.from_model(model)).model.config.model_type == "bert"


def test_case_accents_and_scripts_reach_multilingual_bert():
    model = multilingual_bert()
    texts = ["Ärger 電影 фильм", "ärger"]
    pieces = [model.tokenizer.convert_ids_to_tokens(model.tokenizer(text)["input_ids"])[1:-1] for text in texts]
    assert pieces == [["Ärger", "電", "影", "фильм"], ["ärger"]]


@pytest.mark.slow
@pytest.mark.parametrize("name", RELATIVES)
def test_techniques_keep_their_rules_on_it(name):
    for technique in (HeadPruning, TinyBertDistillation, VocabularyPruning):
        check_technique(technique(), families=[name])
