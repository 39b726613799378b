"""In-domain pretraining: which texts are learned, what is handed on, what is kept and found again."""

import json
import random
from functools import partial

import pytest
import torch

from compress.recipe.blocks import FinetuneBlock, TeacherBlock
from eval.data.loading import Task
from eval.errors import UserError
from eval.task import Examples
from teachers.anatomy.encoder import base_encoder
from teachers.finetuning.finetune import finetune
from teachers.finetuning.in_domain import in_domain_base, take_encoder, text_task, texts_in
from teachers.taskmodel import load_taskmodel, save_taskmodel, weights_digest
from teachers.training.config import AuxiliaryLM, Training
from teachers.training.scoring import scores
from tests.tiny import FAMILIES, at_first, tiny_spec, tiny_task, tiny_taskmodel

WORDS = Training(epochs=2, learning_rate=3e-3, batch_size=8)
QUICK = Training(epochs=1, learning_rate=1e-3, batch_size=8)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def start_of(family, seed=0):
    return lambda spec, _used=None: tiny_taskmodel(family, spec, seed=seed)


def encoder_of(model):
    """Return the weights of an encoder without its pooler."""
    return {k: v for k, v in base_encoder(model.model).state_dict().items() if not k.startswith("pooler.")}


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_every_text_is_learned_once_and_test_texts_never():
    splits = {
        "train": [{"text_a": "one", "text_b": "two", "label": "x"}, {"text_a": "one", "text_b": "three", "label": "y"}],
        "unlabeled": [{"text_a": "four", "text_b": "two"}, {"text_a": " ", "text_b": "five"}],
        "validation": [{"text_a": "one", "text_b": "six", "label": "x"}],
        "test": [{"text_a": "seven", "text_b": "eight", "label": "x"}],
    }
    spec = tiny_spec(pair=True, max_length=24)
    found = text_task(Task(spec, {name: Examples(items, name) for name, items in splits.items()}))
    assert [item["text"] for item in found.train] == ["one", "two", "three", "four", "five"]
    assert [item["text"] for item in found.validation] == ["one", "six"]
    assert set(found.splits) == {"train", "validation"}
    assert (found.spec.kind, found.spec.max_length, found.spec.stride) == ("masked-lm", 24, spec.stride)


def test_every_kind_of_task_has_texts():
    assert list(texts_in({"tokens": ["ann", "lives"], "tags": ["B-PER", "O"]})) == ["ann lives"]
    assert list(texts_in({"id": "1", "question": "who ?", "context": "ann .", "answers": []})) == ["who ?", "ann ."]
    for kind in ("classification", "regression", "tagging", "qa"):
        assert len(text_task(tiny_task(kind, examples=6)).train) >= 5


@pytest.mark.parametrize(
    "family", at_first([f for f in FAMILIES if f not in ("xlnet", "gpt2")], "bert", "modernbert", "electra")
)
def test_the_encoder_is_handed_on_and_the_head_is_the_tasks_own(family, home):
    task = tiny_task("classification", examples=16)
    found = in_domain_base(start_of(family), task, QUICK, seed=3)
    (folder,) = (home / "teachers").iterdir()
    words, before = load_taskmodel(folder), tiny_taskmodel(family, task.spec)
    assert words.task.kind == "masked-lm"
    assert equal(encoder_of(found), encoder_of(words))
    assert not equal(encoder_of(found), encoder_of(before))
    own, old = found.model.state_dict(), before.model.state_dict()
    outside = [name for name in own if not name.startswith(f"{_base(found)}.") or ".pooler." in name]
    assert outside
    assert all(torch.equal(own[name], old[name]) for name in outside)
    assert found.digest == weights_digest(found.model) != before.digest


def _base(model):
    return next(name for name, part in model.model.named_children() if part is base_encoder(model.model))


def test_the_texts_are_learned():
    task = tiny_task("classification", examples=48)
    training = Training(epochs=15, learning_rate=5e-3, batch_size=16)
    texts = text_task(task)
    base = tiny_taskmodel("bert", texts.spec)
    before = scores(base, texts.validation)
    words, _ = finetune(tiny_taskmodel("bert", texts.spec), texts, training, seed=3)
    after = scores(words, texts.validation)
    assert after["masked_accuracy"] > before["masked_accuracy"] + 0.2


def test_it_is_kept_and_found_again(home, monkeypatch):
    task = tiny_task("classification", examples=16)
    first = in_domain_base(start_of("bert"), task, QUICK, seed=3)
    monkeypatch.setattr("teachers.finetuning.finetune.train", lambda *_, **__: pytest.fail("it was trained again"))
    again = in_domain_base(start_of("bert"), task, QUICK, seed=3)
    relabelled = [{**example, "label": random.Random(1).choice(["bad", "good"])} for example in task.train]
    same_texts = Task(task.spec, {**task.splits, "train": Examples(relabelled, "train")})
    labels_do_not_matter = in_domain_base(start_of("bert"), same_texts, QUICK, seed=3)
    assert first.digest == again.digest == labels_do_not_matter.digest
    assert len(list((home / "teachers").iterdir())) == 1


def test_the_head_that_a_base_has_for_words_is_used(tmp_path, home):
    task = tiny_task("classification", examples=16)
    base = tiny_taskmodel("bert", tiny_spec("masked-lm"), seed=8)
    (tmp_path / "base").mkdir()
    save_taskmodel(base, tmp_path / "base")
    in_domain_base(lambda spec: str(tmp_path / "base"), task, QUICK, seed=3)
    (folder,) = (home / "teachers").iterdir()
    assert json.loads((folder / "teacher.json").read_text())["identity"]["base"] == base.digest


def test_the_block_goes_from_words_to_the_task(home):
    task = tiny_task("classification", examples=16)
    block = FinetuneBlock(in_domain=WORDS, auxiliary_lm=AuxiliaryLM(), epochs=1, learning_rate=1e-3, batch_size=8)
    teacher, folder, _ = block.teach(start_of("bert"), task, seed=3, name="teacher")
    again, same, _ = block.teach(start_of("bert"), task, seed=3, name="teacher")
    assert folder == same
    assert teacher.digest == again.digest
    assert sorted(one.name.rpartition("-")[0] for one in (home / "teachers").iterdir()) == [
        "classification",
        "masked-lm",
    ]
    facts = json.loads((folder / "teacher.json").read_text())
    assert facts["identity"]["auxiliary_lm"] == {"version": 2, "start": 0.2, "end": 0.1}
    assert set(facts["history"][0]["terms"]) == {"task", "language_model"}
    assert facts["identity"]["base"] == in_domain_base(start_of("bert"), task, WORDS, seed=3).digest
    plain = FinetuneBlock(epochs=1, learning_rate=1e-3, batch_size=8).teach(start_of("bert"), task, seed=3, name="t")[0]
    assert plain.digest != teacher.digest


def test_a_plain_block_is_found_where_it_was_before(home):
    """What names a teacher has not changed for settings that were there before."""
    task = tiny_task("classification", examples=16)
    _, folder, _ = FinetuneBlock(training=QUICK).teach(start_of("bert"), task, seed=3, name="teacher")
    identity = json.loads((folder / "teacher.json").read_text())["identity"]
    assert set(identity) == {
        "version",
        "base",
        "tokenizer",
        "task",
        "train",
        "validation",
        "training",
        "seed",
        "config",
    }
    assert identity["training"] == {"epochs": 1.0, "learning_rate": 0.001, "batch_size": 8}


def test_a_shape_of_random_weights_can_read_first(tmp_path, home):
    task = tiny_task("classification", examples=16)
    (tmp_path / "base").mkdir()
    save_taskmodel(tiny_taskmodel("bert", task.spec), tmp_path / "base")
    block = TeacherBlock(model=str(tmp_path / "base"), shape={"layers": 2}, finetune={"in_domain": QUICK, "epochs": 1})
    start = partial(block.start, block.models[0])
    teacher, *_ = block.finetune.teach(start, task, seed=3, name="teacher")
    assert teacher.model.config.num_hidden_layers == 2
    assert len(list((home / "teachers").iterdir())) == 2


def test_what_cannot_be_is_refused():
    with pytest.raises(UserError, match="in_domain: the task itself is to predict masked words"):
        in_domain_base(start_of("bert"), tiny_task("masked-lm", examples=8), QUICK)
    with pytest.raises(UserError, match="xlnet has no masked-language head"):
        in_domain_base(start_of("xlnet"), tiny_task(examples=8), QUICK)
    narrow, deep = tiny_taskmodel("bert", hidden_size=16), tiny_taskmodel("bert", num_hidden_layers=5)
    with pytest.raises(UserError, match="another shape for words"):
        take_encoder(tiny_taskmodel("bert").model, narrow.model)
    with pytest.raises(UserError, match=r"other parts for words than for the task: encoder\.layer\.3"):
        take_encoder(tiny_taskmodel("bert").model, deep.model)
