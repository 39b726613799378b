"""K-BERT (arXiv 1909.07606): the tree of the paper by hand, facts found in texts, the network around a standard one."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from compress.architectures.k_bert_network import soft_positions, visible_matrix
from compress.architectures.wrapped_encoder import standard_within
from compress.artifact.artifact import Artifact, load_model
from compress.export import export_onnx
from compress.export.runtime.answering import Runtime
from compress.recipe.blocks import FinetuneBlock, SharedTaskBlock
from compress.recipe.head_block import HeadBlock
from compress.student.student import Student
from eval.encoding import TREE, EncoderSettings, TextEncoder
from eval.errors import UserError
from eval.inference import predict
from eval.knowledge.triples import read_triples
from eval.task import Examples
from teachers.anatomy.encoder import first_position
from teachers.finetuning.finetune import finetune
from teachers.signals.model_teacher import ModelTeacher
from teachers.taskmodel import evaluating
from teachers.training.config import Training
from teachers.training.scoring import rows_of
from tests.tiny import FAMILIES, RELATIVES, at_first, tiny_spec, tiny_task, tiny_taskmodel, tiny_tokenizer

FACTS = ("paris\tis\ta lovely film", "paris\tin\tthe room", "ann\tlikes\tbob", "ann lives\twas\tgood", "rome\tis\tit")
REFUSED = ("mpnet", "xlnet", "mobilebert", "deberta-v2", "modernbert", "gpt2")
"""Families whose networks do not take both a mask of every two tokens and a position for each."""
TREE_OF_THE_PAPER = """
[CLS] Tim Cook CEO Apple is visiting Beijing capital China is_a City now
0     1   2    3   4     3  4        5       6       7     6    7    6
0     0   0    1   1     0  0        0       2       2     3    3    0
0     1   1    1   1     0  0        2       2       2     2    2    0
"""
"""Figure 2 of the paper: tokens and soft positions as printed there; below them branches and mentions."""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))


@pytest.fixture
def file(tmp_path):
    (tmp_path / "facts.tsv").write_text("\n".join(FACTS) + "\n")
    return tmp_path / "facts.tsv"


def reading(file, kind="tagging", family="bert", branches=2):
    task = tiny_task(kind).spec
    head = HeadBlock.model_validate({"k_bert": {"triples": str(file), "branches": branches}})
    return head.on(tiny_taskmodel(family, task), task, seed=3)


def test_the_tree_of_the_paper():
    words, positions, branches, mentions = (line.split() for line in TREE_OF_THE_PAPER.strip().splitlines())
    branches, mentions = (torch.tensor([list(map(int, row))]) for row in (branches, mentions))
    assert soft_positions(branches, mentions)[0].tolist() == list(map(int, positions))
    text = ["[CLS]", "Tim", "Cook", "is", "visiting", "Beijing", "now"]
    paths = [text, ["Tim", "Cook", "CEO", "Apple"], ["Beijing", "capital", "China"], ["Beijing", "is_a", "City"]]
    expected = [[any({one, other} <= set(path) for path in paths) for other in words] for one in words]
    found = visible_matrix(branches, mentions, torch.ones_like(branches))[0]
    assert found.tolist() == expected
    behind = sorted(range(len(words)), key=lambda place: (branches[0, place] > 0, place))  # as the toolkit has them
    moved, hung = branches[:, behind], mentions[:, behind]
    assert soft_positions(moved, hung)[0].tolist() == [int(positions[place]) for place in behind]
    assert torch.equal(visible_matrix(moved, hung, torch.ones_like(moved))[0], found[behind][:, behind])
    padded = visible_matrix(branches, mentions, torch.tensor([[1] * 12 + [0]]))[0]
    assert not padded[:, 12].any()
    assert torch.equal(padded[:, :12], found[:, :12])


def pieces(model, example):
    (feature,) = model.encoder.encode([example])
    names = {number: piece for piece, number in model.tokenizer.get_vocab().items()}
    return feature, [names[number] for number in feature.ids]


def test_facts_hang_on_the_words_they_are_about(file):
    model = reading(file)
    feature, found = pieces(model, {"tokens": ["ann", "likes", "Paris", ",", "parisa"]})
    plain, text = pieces(tiny_taskmodel("bert", model.task), {"tokens": ["ann", "likes", "Paris", ",", "parisa"]})
    assert found[: len(text)] == text
    assert feature.of_text == len(text)
    assert found[len(text) :] == ["likes", "bob", "is", "a", "lovely", "film", "in", "the", "room"]
    branches, mentions = zip(*feature.tree, strict=True)
    assert list(branches[len(text) :]) == [1, 1, 2, 2, 2, 2, 3, 3, 3]
    assert list(mentions) == [0, 1, 0, 2, *[0] * (len(text) - 4), 1, 1, *[2] * 7]
    assert feature.words == [*plain.words, *[-1] * 9]
    _, found = pieces(model, {"tokens": ["ann", "lives"]})
    assert found[-2:] == ["was", "good"]  # the longest subject, and ann's own fact not beside it
    assert "likes" not in found
    assert pieces(model, {"tokens": ["bob", "lives"]})[0].tree is None
    one = reading(file, branches=1)
    assert pieces(one, {"tokens": ["paris"]})[1][-4:] == ["is", "a", "lovely", "film"]


def test_what_does_not_fit_is_left_out_and_never_the_text(file):
    model = reading(file)
    settings = replace(model.encoder.settings, max_length=9)
    short = TextEncoder(model.tokenizer.backend_tokenizer, settings)
    (feature,) = short.encode([{"tokens": ["it", "is", "paris"]}])
    assert [branch for branch, _ in feature.tree] == [0, 0, 0, 0, 0, 1, 1, 1, 1]  # the second fact has no room
    (feature,) = short.encode([{"tokens": ["it", "is", "ann", "and", "paris"]}])
    assert [branch for branch, _ in feature.tree] == [*[0] * 7, 1, 1]
    arrays = short.collate(short.encode([{"tokens": ["it"]}, {"tokens": ["rome"]}]))
    assert arrays["branch_ids"].tolist() == [[0] * 5, [0, 0, 0, 1, 1]]
    assert arrays["mention_ids"].tolist() == [[0] * 5, [0, 1, 0, 1, 1]]


@pytest.mark.parametrize("family", at_first(["roberta", "albert", *RELATIVES], "roberta", "albert"))
def test_a_subject_is_found_wherever_it_stands_in_a_text(file, family):
    encoder = reading(file, "classification", family).encoder
    for text in ("paris is good", "it is paris", "it is paris, ann", "(paris)"):
        (feature,) = encoder.encode([{"text": text}])
        assert feature.tree is not None, text
    (feature,) = encoder.encode([{"text": "it is parisa"}])
    assert feature.tree is None
    (example,) = [{"text": "it is paris"}]
    assert len(encoder.spans(example)) == len(encoder.encode([example])[0].ids)


def test_words_that_the_tokenizer_does_not_know_are_no_subject(tmp_path):
    (tmp_path / "facts.tsv").write_text("漢\tis\tgood\nrome\tis\tit\n")
    feature, found = pieces(reading(tmp_path / "facts.tsv"), {"tokens": ["字", "rome"]})
    assert found.count("good") == 0
    assert feature.tree is not None


@pytest.mark.parametrize(
    "family", at_first([f for f in (*FAMILIES, *RELATIVES) if f not in REFUSED], "bert", "roberta")
)
def test_the_network_reads_the_tree_as_the_paper_writes_it(file, family):
    """The standard network on branches behind their mentions, with the mask and positions written by hand."""
    model = reading(file, "tagging", family)
    (feature,) = model.encoder.encode([{"tokens": ["ann", "likes", "paris", "and", "rome"]}])
    order, count = [], feature.of_text
    for place in range(count):
        order.append(place)
        mention, ends = feature.tree[place][1], place + 1 == count or feature.tree[place + 1][1]
        if mention and mention != ends:
            order += [other for other in range(count, len(feature.ids)) if feature.tree[other][1] == mention]
    assert sorted(order) == list(range(len(feature.ids)))
    assert order != sorted(order)
    tree = [feature.tree[place] for place in order]
    positions, last, inside = [], -1, 0
    for number, (branch, _) in enumerate(tree):
        inside = inside + 1 if branch and branch == tree[number - 1][0] else 1
        last += branch == 0
        positions.append(last + inside if branch else last)
    sees = torch.zeros(len(tree), len(tree))
    for one, other in itertools.product(range(len(tree)), repeat=2):
        (a, m), (b, n) = tree[one], tree[other]
        sees[one, other] = a == b or (m == n and 0 in (a, b))
    inner = model.model.inner
    inputs = {
        "input_ids": torch.tensor([[feature.ids[place] for place in order]]),
        "attention_mask": (1 - sees)[None, None] * -1e30,
        "position_ids": torch.tensor([positions]) + first_position(inner.config),
    }
    with evaluating(inner):
        expected = inner(**inputs).logits[0].numpy()
    found = model.forward(model.encoder.collate([feature]))[0]
    np.testing.assert_allclose(found[order], expected, atol=2e-5)
    blind = model.forward({**model.encoder.collate([feature]), **dict.fromkeys(TREE, np.zeros((1, len(order)), int))})
    assert np.abs(blind[0] - found).max() > 1e-3


@pytest.mark.parametrize("kind", ["classification", "tagging"])
def test_without_a_fact_it_is_the_standard_network(file, kind):
    model = reading(file, kind)
    plain = tiny_taskmodel("bert", model.task)
    none = {"tokens": ["bob", "is", "in", "oslo"]} if kind == "tagging" else {"text": "bob is in oslo"}
    longer = {"tokens": ["the", "film"] * 5} if kind == "tagging" else {"text": "the film " * 5}
    features = model.encoder.encode([none, longer])
    assert features == plain.encoder.encode([none, longer])
    found, expected = (one.forward(one.encoder.collate(features)) for one in (model, plain))
    real = model.encoder.collate(features)["attention_mask"].astype(bool) if kind == "tagging" else slice(None)
    np.testing.assert_allclose(found[real], expected[real], atol=1e-5)


@pytest.mark.parametrize("kind", at_first(["tagging", "classification"], "tagging"))
def test_trained_saved_and_exported(file, tmp_path, kind):
    task = tiny_task(kind)
    training = Training(max_steps=3, batch_size=8, learning_rate=1e-2)
    teacher, folder = finetune(reading(file, kind), task, training)
    assert teacher.model.config.triples == list(FACTS)
    texts = ["ann likes paris", "bob is in rome", "oslo"]
    examples = [{"tokens": text.split()} if kind == "tagging" else {"text": text} for text in texts]
    loaded = load_model(folder)
    assert loaded.digest == teacher.digest
    expected = predict(teacher, examples)
    np.testing.assert_array_equal(np.concatenate(predict(loaded, examples).logits), np.concatenate(expected.logits))
    export_onnx(Artifact.from_model(teacher), tmp_path / "onnx", examples=examples)
    runtime = Runtime(tmp_path / "onnx")
    assert runtime.encoder.settings == teacher.encoder.settings
    found = runtime.predict(examples)
    answer = "tags" if kind == "tagging" else "label"
    assert [one[answer] for one in found.answers] == [one[answer] for one in expected.answers]
    np.testing.assert_allclose(np.concatenate(found.logits), np.concatenate(expected.logits), atol=1e-4)


def test_a_student_that_reads_no_facts_learns_its_tags(file, tmp_path):
    model = reading(file)
    student = Student(layers=(0, 2)).build(model)
    assert student.model.config.model_type == "bert"
    assert not student.encoder.settings.triples
    ours, theirs = student.model.bert.encoder.layer[1], model.model.inner.bert.encoder.layer[2]
    assert all(map(torch.equal, ours.state_dict().values(), theirs.state_dict().values()))
    examples = Examples([{"tokens": ["ann", "likes", "paris"]}, {"tokens": ["bob"]}, {"tokens": ["it", "is", "rome"]}])
    rows = rows_of(student, examples, seed=1)
    batch = rows.batch([2, 0, 1])
    found = ModelTeacher(model, cache=tmp_path / "cache").read(rows)(batch).logits.numpy()
    assert found.shape[:2] == batch.inputs["input_ids"].shape
    expected = predict(model, examples).logits
    for row, example in enumerate([2, 0, 1]):
        words = np.array(rows.features[example].words) >= 0
        np.testing.assert_allclose(found[row, : len(words)][words], expected[example], atol=1e-5)
    assert standard_within(student) is student


def test_every_bad_line_of_a_file_is_told(tmp_path):
    (tmp_path / "facts.tsv").write_bytes(b"a\tis\tb\n\na\tb\n\tis\t \n\xff\n a \tis\tb\nc\tin\td d\nalone\n")
    with pytest.raises(UserError) as raised:
        read_triples(tmp_path / "facts.tsv")
    assert [problem.partition("facts.tsv:")[2] for problem in raised.value.problems] == [
        "3: has 2 cells, and a fact has 3: subject, relation, object, with tabs between them",
        "4: has no subject and no object",
        "5: is not valid UTF-8; save the file as UTF-8",
        "8: has 1 cell, and a fact has 3: subject, relation, object, with tabs between them",
    ]
    (tmp_path / "facts.tsv").write_text("alone\n" * 11)
    with pytest.raises(UserError) as raised:
        read_triples(tmp_path / "facts.tsv")
    assert raised.value.problems[-1] == "... and 1 more bad line"
    (tmp_path / "facts.tsv").write_text(" a \tis\tb\na\tis\tb\r\nc\tin\td  d\n")
    assert read_triples(tmp_path / "facts.tsv") == ("a\tis\tb", "c\tin\td d")
    (tmp_path / "facts.tsv").write_text("\n")
    with pytest.raises(UserError, match="holds no facts"):
        read_triples(tmp_path / "facts.tsv")
    with pytest.raises(UserError, match="cannot be read"):
        read_triples(tmp_path / "other.tsv")


@pytest.mark.parametrize("family", REFUSED)
def test_families_that_cannot_take_a_tree_are_refused(file, family):
    with pytest.raises(UserError, match="head: k_bert"):
        reading(file, "classification", family)


def test_what_does_not_go_with_facts_is_refused_by_name(tmp_path):
    head = HeadBlock.model_validate({"k_bert": {"triples": str(tmp_path / "none.tsv")}})
    for kind in ("qa", "multiple-choice", "masked-lm", "embedding"):
        problems = head.unanswerable(tiny_taskmodel("bert", tiny_spec(kind)), tiny_spec(kind))
        assert len(problems) == 2
        assert problems[0].endswith(f"the task is {kind}")
        assert problems[1].startswith("head: k_bert.triples: ")
    block = FinetuneBlock.model_validate(
        {"head": {"k_bert": {"triples": "f"}}, "freeze": ["encoder"], "layer_decay": 0.9, "unfreeze": "epoch"}
    )
    assert {name for name, _ in block.clashes("tagging")} == {"freeze", "layer_decay", "unfreeze"}
    with pytest.raises(ValueError, match="k_bert: several tasks share one encoder"):
        SharedTaskBlock.model_validate({"kind": "tagging", "data": "d", "head": {"k_bert": {"triples": "f"}}})
    settings = EncoderSettings("tagging", triples=("a\tb", "a\tis\tb"), branches=2)
    with pytest.raises(ValueError, match="1 of 2 triples are no subject, relation and object"):
        TextEncoder(tiny_tokenizer("bert").backend_tokenizer, settings)
    assert EncoderSettings("tagging").to_dict().keys().isdisjoint({"triples", "branches"})


@pytest.mark.slow
def test_a_teacher_learns_to_read_what_only_the_facts_say(tmp_path):
    """Whether a name is of a person or a place stands in the facts alone; the names of the test are in no training."""
    chance = np.random.default_rng(0)
    names = list(dict.fromkeys("".join(chance.choice(list("bdgklmnrstv"), 4)) for _ in range(500)))
    tag = {name: ("B-PER", "B-LOC")[number % 2] for number, name in enumerate(names)}
    words = {"B-PER": "bob", "B-LOC": "rome"}
    (tmp_path / "facts.tsv").write_text("".join(f"{name}\tis\t{words[tag[name]]}\n" for name in names))
    examples = [{"tokens": ["it", "is", name], "tags": ["O", "O", tag[name]]} for name in names]
    task = tiny_task("tagging")
    task.splits["train"], task.splits["select"] = Examples(examples[:400], "train"), Examples(examples[400:], "select")
    training = Training(epochs=30, batch_size=32, learning_rate=3e-3, keep="last", score_epochs=30)
    found = {}
    for name, start in {"facts": reading(tmp_path / "facts.tsv"), "none": tiny_taskmodel("bert", task.spec)}.items():
        trained, _ = finetune(start, task, training)
        answers = predict(trained, task.splits["select"]).answers
        found[name] = np.mean(
            [answer["tags"][2] == e["tags"][2] for answer, e in zip(answers, examples[400:], strict=True)]
        )
    assert found["facts"] > 0.95
    assert found["none"] < 0.7
