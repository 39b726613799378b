"""``distill.dual`` against the numbers of its sheet, the formula in slow loops, and standard transformers."""

import json

import numpy as np
import pytest
import torch
import transformers

from compress.distill.components.dual_projections import SharedProjections, pair_weights, projected, weight_distance
from compress.distill.components.dual_vocabulary import MixedText, union_ids
from compress.distill.dual import DualTraining
from compress.engine.steps import problems, run
from compress.recipe import Recipe
from compress.technique import Inputs
from eval.errors import UserError
from eval.task import Examples
from teachers.anatomy.encoder import head_parts, layer_parts, layers, shape_of, word_embeddings
from teachers.pretraining.text.wordpiece_trainer import train_word_pieces
from teachers.signals.ensemble_teacher import EnsembleTeacher
from teachers.signals.hooks import Signals
from teachers.signals.model_teacher import ModelTeacher
from teachers.taskmodel import TaskModel, build_taskmodel
from teachers.training.loop import _Loop
from teachers.training.scoring import rows_of
from tests.tiny import FAMILIES, at_first, tiny_spec, tiny_task, tiny_taskmodel, tiny_tokenizer

WORKING = ("bert", "ernie", "distilbert", "electra")
PIECES = 70


@pytest.fixture(scope="module")
def task():
    return tiny_task("masked-lm")


def technique(**fields):
    fields = {"vocab_size": PIECES, "hidden_size": 16, "max_steps": 2, "batch_size": 8, **fields}
    return DualTraining(**fields)


def bound(task, family="bert", **fields):
    """Return the student before training, its rows and its loss."""
    teacher, dual = tiny_taskmodel(family, task.spec), technique(**fields)
    student = built(teacher, task, dual)
    rows = rows_of(student, task.train, seed=3)
    return student, rows, dual.bind(student, rows, ModelTeacher(teacher))


def built(teacher, task, dual):
    tokenizer = train_word_pieces(teacher.tokenizer, [example["text"] for example in task.train], dual.vocab_size)
    config = dual.config(teacher.model.config, tokenizer, len(tokenizer))
    return build_taskmodel(config, tokenizer, task.spec, seed=1)


def mixed(texts, probability, *, max_length=64, most=128, seed=0):
    """Return the student's and the teacher's tokenizer, the piece of every id of the union, and the mixed ids."""
    teacher = tiny_taskmodel("bert", tiny_spec("masked-lm", max_length=max_length))
    long = tiny_taskmodel("bert", tiny_spec("masked-lm"), max_position_embeddings=most)
    letters = sorted(set("".join(texts)) - {" "})  # pieces of one letter, at the beginning of a word or later in it
    tokenizer = train_word_pieces(teacher.tokenizer, [" ".join(letters), "".join(letters), "".join(letters[::-1])], 80)
    rows = rows_of(TaskModel(teacher.model, tokenizer, teacher.task), Examples([{"text": t} for t in texts]), seed=0)
    union = union_ids(tokenizer, teacher.tokenizer, len(teacher.tokenizer))
    pieces = {number: piece for piece, number in teacher.tokenizer.get_vocab().items()}
    pieces |= {int(union[number]): piece for piece, number in tokenizer.get_vocab().items()}
    reader = MixedText(rows, long, union, probability)
    chances = [np.random.default_rng([seed, row]) for row in range(len(rows))]
    return tokenizer, teacher.tokenizer, pieces, union, rows, reader.ids(range(len(rows)), chances)


def words(pieces):
    return " ".join(pieces).replace(" ##", "").split()


def test_the_distances_are_those_of_the_sheet():
    teacher, student = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[2.0]])
    left, right = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0], [1.0]])
    assert projected(teacher, left, right).tolist() == [[3.0]]
    assert weight_distance(teacher, student, left, right) == 1.0
    assert projected(student, left.T, right.T).tolist() == [[2.0, 2.0], [0.0, 0.0]]
    assert weight_distance(student, teacher, left.T, right.T) == 26.0
    one = torch.eye(2)
    assert weight_distance(teacher, teacher, one, one) == 0.0
    # A vector has one side, and so has a table of word embeddings.
    assert projected(torch.tensor([5.0, 7.0]), left, None).tolist() == [5.0]
    assert projected(teacher, None, right).tolist() == [[3.0], [7.0]]


def test_the_word_table_shrinks_as_the_sheet_says():
    config = transformers.BertConfig()
    small = DualTraining(hidden_size=48).config(config, tiny_tokenizer("bert"), DualTraining().vocab_size)
    shape = shape_of(small)
    assert (shape.vocab_size * shape.hidden_size, config.vocab_size * config.hidden_size) == (236_544, 23_440_896)
    assert (shape.layers, shape.heads, shape.intermediate_size) == (12, 12, 192)


def test_its_size_is_known_before_any_text_is_read():
    student = tiny_taskmodel("bert", tiny_spec("masked-lm"))
    found = technique(vocab_size=90).network_for(student)
    assert shape_of(found.model.config).vocab_size == 90
    assert set(found.tokenizer.get_vocab()) == set(student.tokenizer.all_special_tokens)
    assert found.size().parameters < student.size().parameters


TEXTS = ["the film was good and the story is lovely", "ann lives in oslo , not in rome !", "a very dull meal"]


def test_without_the_small_vocabulary_the_teacher_reads_as_ever():
    _, teacher, _, _, _, found = mixed(TEXTS, 0.0)
    assert found == teacher(TEXTS)["input_ids"]


def test_with_it_alone_the_teacher_reads_the_students_pieces():
    student, teacher, _, union, _, found = mixed(TEXTS, 1.0)
    assert found == [union[ids].tolist() for ids in student(TEXTS)["input_ids"]]
    assert found != teacher(TEXTS)["input_ids"]


@pytest.mark.parametrize("probability", [0.0, 0.3, 0.5, 1.0])
def test_whatever_is_drawn_the_words_are_the_same(probability):
    student, _, pieces, _, _, found = mixed(TEXTS, probability)
    own = [student.convert_ids_to_tokens(ids) for ids in student(TEXTS)["input_ids"]]
    assert [words(pieces[i] for i in ids) for ids in found] == [words(row) for row in own]


def test_half_of_ten_thousand_words_are_the_students():
    texts = ["good film and lovely story sad song in rome not"] * 1000
    _, _, pieces, _, _, found = mixed(texts, 0.5)
    read = [[pieces[i] for i in ids] for ids in found]
    counted = [word for row in read for word in " ".join(row[1:-1]).replace(" ##", "##").split()]
    assert len(counted) == 10_000
    assert abs(sum("##" in word for word in counted) / len(counted) - 0.5) < 0.02
    assert len({tuple(row) for row in read}) > 500  # every word by itself, not a text as a whole


def test_draws_are_repeated_by_seed_and_row():
    assert mixed(TEXTS, 0.5)[-1] == mixed(TEXTS, 0.5)[-1]
    assert mixed(TEXTS, 0.5)[-1] != mixed(TEXTS, 0.5, seed=1)[-1]


def test_windows_of_a_long_text_hold_the_same_words_for_both():
    text = " ".join(TEXTS * 3)
    _, _, pieces, union, rows, found = mixed([text], 0.0, max_length=16)
    assert len(rows) > 3
    middles = [row[1:-1] for row in found]
    own = [feature.ids[1:-1] for feature in rows.features]
    for read, window in zip(middles, own, strict=True):
        assert "".join(pieces[i] for i in read).replace("##", "") == "".join(pieces[union[i]] for i in window).replace(
            "##", ""
        )
    # Only a word that an edge cuts is read in the student's pieces.
    inner = sum("##" in pieces[i] for row in middles for i in row)
    assert 0 < inner < sum("##" in pieces[union[i]] for row in own for i in row)


def test_a_row_beyond_the_teachers_length_is_cut_before_its_last_token():
    _, teacher, _, _, _, found = mixed(TEXTS, 1.0, most=10)
    assert [len(ids) for ids in found] == [10, 10, 10]
    assert {ids[-1] for ids in found} == {teacher.sep_token_id}


def test_special_tokens_in_a_text_are_left_as_they_are():
    _, teacher, _, _, _, found = mixed(["good [SEP] film", *TEXTS], 0.0)
    assert found[0] == teacher("good [SEP] film")["input_ids"]


def test_the_union_begins_with_the_teachers_rows():
    teacher = tiny_tokenizer("bert")
    student = train_word_pieces(teacher, ["zzyzx zzyzx qoph"] * 3, 60)
    union, own, known = union_ids(student, teacher, 400), student.get_vocab(), teacher.get_vocab()
    new = sorted((own[piece], piece) for piece in own if piece not in known)
    assert new
    assert [int(union[number]) for number, _ in new] == list(range(400, 400 + len(new)))
    assert all(union[number] == known[piece] for piece, number in own.items() if piece in known)


def by_hand(student, teacher, maps, union, up):
    """Return the distance of the weights of two BERT networks: every tensor by its role, entry by entry."""

    def distance(weight, target, left, right):
        if up:
            weight, target = target, weight
        left = None if left is None else maps.left[left].double()
        right = None if right is None else maps.right[right].double()
        weight, target, total = weight.double(), target.double(), 0.0
        if weight.ndim == 1:
            for i in range(len(target)):
                total += (sum(left[i, j] * weight[j] for j in range(len(weight))) - target[i]) ** 2
            return total
        through = weight if left is None else torch.einsum("pm,mn->pn", left, weight)
        through = through if right is None else torch.einsum("pn,nq->pq", through, right)
        return ((through - target) ** 2).sum()

    sides = {"ffn_in": ("ffn", "hidden"), "ffn_out": ("hidden", "ffn")}
    total = 0.0
    for own, other in zip(layers(student), layers(teacher), strict=True):
        given = layer_parts(teacher, other)
        for role, module in layer_parts(student, own).items():
            left, right = sides.get(role, ("hidden", "hidden"))
            total += distance(given[role].bias, module.bias, left, None)
            total += distance(given[role].weight, module.weight, left, right if module.weight.ndim == 2 else None)
    head, other = head_parts(student), head_parts(teacher)
    total += distance(other["mlm_dense"].weight, head["mlm_dense"].weight, "hidden", "hidden")
    for role, name in (("mlm_dense", "bias"), ("mlm_norm", "weight"), ("mlm_norm", "bias")):
        total += distance(getattr(other[role], name), getattr(head[role], name), "hidden", None)
    inside, given = student.bert.embeddings, teacher.bert.embeddings
    total += distance(given.word_embeddings.weight[union], inside.word_embeddings.weight, None, "hidden")
    for name in ("position_embeddings", "token_type_embeddings"):
        total += distance(getattr(given, name).weight, getattr(inside, name).weight, None, "hidden")
    for name in ("weight", "bias"):
        total += distance(getattr(given.LayerNorm, name), getattr(inside.LayerNorm, name), "hidden", None)
    return float(total)


def test_every_weight_counts_once_and_all_layers_share_the_maps(task):
    student, _, loss = bound(task, projection="both")
    with torch.no_grad():
        for parameter in student.model.parameters():
            parameter.add_(
                0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
            )
        union = torch.from_numpy(loss.text.union)
        for direction, maps in loss.maps.items():
            shapes = {name: tuple(value.shape) for name, value in maps.named_parameters()}
            down = {"left.hidden": (16, 32), "right.hidden": (32, 16), "left.ffn": (64, 64), "right.ffn": (64, 64)}
            assert shapes == (down if direction == "down" else {name: shape[::-1] for name, shape in down.items()})
            expected = by_hand(student.model, loss.text.teacher.model, maps, union, direction == "up")
            assert maps().item() == pytest.approx(expected, rel=1e-5)
            mean = SharedProjections(maps.pairs, direction, "mean")
            mean.load_state_dict(maps.state_dict())
            rows = {id(word_embeddings(loss.text.teacher.model).weight): len(union)}
            compared = [pair.student if direction == "down" else pair.teacher for pair in maps.pairs]
            entries = sum(rows.get(id(p), len(p)) * p[0].numel() for p in compared)
            assert mean().item() == pytest.approx(expected / entries, rel=1e-5)


@pytest.mark.parametrize("family", WORKING)
def test_only_biases_of_the_vocabulary_have_no_counterpart(family, task):
    student, _, loss = bound(task, family)
    pairs = pair_weights(student, loss.text.teacher, (0, 1, 2), torch.from_numpy(loss.text.union))
    paired = {id(pair.student) for pair in pairs}
    missing = [p for p in student.model.parameters() if id(p) not in paired]
    assert [tuple(p.shape) for p in missing] == [(len(student.tokenizer),)]
    assert len(paired) == len(pairs)


def test_the_loss_is_the_sum_of_the_paper(task):
    student, rows, loss = bound(task, epsilon=0.25)
    batch = rows.batch([0, 5, 7], progress=0.5)
    mixed = loss.text.batch(batch)
    student.model.eval(), loss.text.teacher.model.eval()
    logits = student.model(**batch.inputs).logits
    terms = loss(Signals(logits), batch)
    assert set(terms) == {"student", "teacher", "up"}
    assert terms["student"].item() == pytest.approx(by_token(logits, batch.targets["labels"]), rel=1e-5)
    given = loss.text.teacher.model(**mixed.inputs).logits
    assert given.shape[-1] == loss.text.union.max() + 1
    assert terms["teacher"].item() == pytest.approx(by_token(given, mixed.targets["labels"]), rel=1e-5)
    assert terms["up"].item() == pytest.approx(0.25 * loss.maps["up"]().item(), rel=1e-6)
    sum(terms.values()).backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in loss.maps.parameters())
    assert bool(word_embeddings(loss.text.teacher.model).weight.grad.any())
    assert bool(word_embeddings(student.model).weight.grad.any())


def by_token(logits, labels):
    found = [
        -torch.log_softmax(logits[i, j].double(), dim=0)[labels[i, j]].item()
        for i, j in np.ndindex(*labels.shape)
        if labels[i, j] >= 0
    ]
    return sum(found) / len(found)


def test_masks_keep_the_drawn_vocabulary_and_repeat_with_the_progress(task):
    _, rows, loss = bound(task)
    batch = rows.batch(range(40), progress=0.25)
    first, again = loss.text.batch(batch), loss.text.batch(rows.batch(range(40), progress=0.25))
    later = loss.text.batch(rows.batch(range(40), progress=0.5))
    assert torch.equal(first.inputs["input_ids"], again.inputs["input_ids"])
    assert torch.equal(first.targets["labels"], again.targets["labels"])
    assert first.inputs["input_ids"].shape != later.inputs["input_ids"].shape or not torch.equal(
        first.inputs["input_ids"], later.inputs["input_ids"]
    )
    pieces = loss.text.batch(batch.part(10, 20))
    length = pieces.inputs["input_ids"].shape[1]
    assert torch.equal(pieces.inputs["input_ids"], first.inputs["input_ids"][10:20, :length])
    labels = first.targets["labels"]
    counted = labels >= 0
    assert 0.08 < counted.float().sum() / first.mask.sum() < 0.22
    # Unmasked, every row is what the two vocabularies give for its words.
    text = torch.where(counted, labels, first.inputs["input_ids"])
    chances = [np.random.default_rng([loss.text.rows.seed, 1 << 30, row]) for row in range(40)]
    assert [row[mask.bool()].tolist() for row, mask in zip(text, first.mask, strict=True)] == loss.text.ids(
        range(40), chances
    )


@pytest.mark.parametrize("family", at_first(WORKING, "bert"))
def test_a_stock_student_comes_out(family, task, forker, tmp_path):
    source = tiny_taskmodel(family, task.spec)
    before = {name: tensor.clone() for name, tensor in source.model.state_dict().items()}
    inputs = Inputs(train=task.train, validation=task.validation, teacher=ModelTeacher(source))
    recipe = Recipe(seed=7, steps=(technique(),))
    state = torch.get_rng_state()
    result = run(recipe, source, inputs)
    assert torch.equal(torch.get_rng_state(), state)
    assert run(recipe, source, inputs).digest == result.digest
    assert all(torch.equal(tensor, before[name]) for name, tensor in source.model.state_dict().items())

    shape, old = shape_of(result.model.config), shape_of(source.model.config)
    assert (shape.hidden_size, shape.layers, shape.heads, shape.intermediate_size) == (16, old.layers, old.heads, 64)
    assert shape.vocab_size == len(result.tokenizer) <= PIECES
    record = result.lineage[-1]
    assert record.facts["history"][-1]["terms"].keys() == {"student", "teacher", "up"}
    assert record.facts["pieces"] == shape.vocab_size
    for measure in technique().reduces - {"export_bytes"}:
        assert record.size_after[measure] < record.size_before[measure]

    result.save(tmp_path / "model")
    code = (
        "import json, sys, torch, transformers\n"
        "from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer\n"
        "transformers.logging.set_verbosity_error()\n"
        "tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])\n"
        "inputs = tokenizer(['ann likes the good film', 'a song'], padding=True, return_tensors='pt')\n"
        "words = AutoModelForMaskedLM.from_pretrained(sys.argv[1])\n"
        "classes = AutoModelForSequenceClassification.from_pretrained(sys.argv[1])\n"
        "with torch.no_grad():\n"
        "    logits, scores = words(**inputs).logits, classes(**inputs).logits\n"
        "print(json.dumps([inputs['input_ids'].tolist(), logits.tolist(), list(scores.shape)]))"
    )
    printed = forker.program(code, str(tmp_path / "model"), cwd=tmp_path, stock=True)
    ids, logits, scores = json.loads(printed.splitlines()[-1])
    assert ids == result.tokenizer(["ann likes the good film", "a song"], padding=True)["input_ids"]
    texts = Examples([{"text": "ann likes the good film"}, {"text": "a song"}])
    own = result.forward(result.encoder.collate(result.encoder.encode(texts)))
    assert np.allclose(own, logits, atol=1e-5)
    assert scores == [2, 2]


def test_an_interrupted_training_goes_on_to_the_same_weights(task, tmp_path, monkeypatch):
    source = tiny_taskmodel("bert", task.spec)
    dual = technique(max_steps=6, checkpoint_seconds=0.0)

    def trained(folder):
        inputs = Inputs(train=task.train, teacher=ModelTeacher(source), folder=folder)
        with torch.random.fork_rng():
            torch.manual_seed(7)
            return dual.apply(source, inputs, torch.Generator().manual_seed(7)).model.digest

    whole = trained(tmp_path / "whole")
    update = _Loop._update

    def stopped(loop, *given):
        if given[-1] == 4:
            raise KeyboardInterrupt
        update(loop, *given)

    monkeypatch.setattr(_Loop, "_update", stopped)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "cut")
    monkeypatch.setattr(_Loop, "_update", update)
    assert trained(tmp_path / "cut") == whole


def test_it_learns(task):
    source = tiny_taskmodel("bert", task.spec)
    inputs = Inputs(train=task.train, teacher=ModelTeacher(source))
    dual = technique(epochs=10, max_steps=None, learning_rate=5e-3, projection="both", reduction="mean")
    history = run(Recipe(steps=(dual,)), source, inputs, dry_run_first=False).lineage[-1].facts["history"]
    first, last = history[0]["terms"], history[-1]["terms"]
    assert last.keys() == {"student", "teacher", "down", "up"}
    assert all(last[name] < 0.9 * first[name] for name in last)


def test_the_baseline_is_the_same_student_alone(task):
    source = tiny_taskmodel("bert", task.spec)
    alone = technique().without_teacher()
    assert alone == technique(alone=True)
    assert alone.needed() == {"train"}
    result = run(Recipe(steps=(alone,)), source, Inputs(train=task.train))
    assert shape_of(result.model.config).hidden_size == 16
    assert result.lineage[-1].facts["history"][-1]["terms"].keys() == {"task"}


def test_fewer_layers_take_those_of_the_map(task):
    student, _, loss = bound(task, layers=2, layer_map=(0, 2), projection="down")
    own, other = layer_parts(student.model, layers(student.model)[1]), loss.text.teacher.model
    query = next(pair for pair in loss.maps["down"].pairs if pair.student is own["query"].weight)
    assert query.teacher is layer_parts(other, layers(other)[2])["query"].weight


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in (*WORKING, "xlnet", "gpt2")])
def test_other_families_are_refused_by_name(family, task):
    source = tiny_taskmodel(family, task.spec)
    found = problems((technique(),), source, Inputs(train=task.train, teacher=ModelTeacher(source)))
    assert found
    assert all(sentence.startswith("step 1, distill.dual: ") and family in sentence for sentence in found)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"heads": 5}, "5 heads do not divide hidden_size 16; nearest heads: 2, 4"),
        ({"hidden_size": 64}, "hidden_size 64 is more than the 32"),
        ({"layers": 2, "layer_map": (0, 9)}, "layer_map [0, 9]: needs 2 numbers"),
    ],
)
def test_shapes_that_cannot_be_are_refused(fields, reason, task):
    source = tiny_taskmodel("bert", task.spec)
    found = problems((technique(**fields),), source, Inputs(train=task.train, teacher=ModelTeacher(source)))
    assert len(found) == 1
    assert reason in found[0]


def test_labelled_tasks_and_other_teachers_are_refused(task):
    labelled = tiny_task("classification")
    source = tiny_taskmodel("bert", labelled.spec)
    with pytest.raises(
        UserError, match=r"step 1, distill\.dual: trains on unlabelled text .*bert answers classification"
    ):
        run(Recipe(steps=(technique(),)), source, Inputs(train=labelled.train, teacher=ModelTeacher(source)))
    student, other = tiny_taskmodel("bert", task.spec), tiny_taskmodel("distilbert", task.spec)
    found = problems((technique(),), student, Inputs(train=task.train, teacher=ModelTeacher(other)))
    assert ["of one family" in sentence for sentence in found] == [True]
    both = EnsembleTeacher((ModelTeacher(student), ModelTeacher(tiny_taskmodel("bert", task.spec, seed=1))))
    found = problems((technique(),), student, Inputs(train=task.train, teacher=both))
    assert ["one network, not an ensemble" in sentence for sentence in found] == [True]
