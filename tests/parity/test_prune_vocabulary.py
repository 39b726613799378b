"""prune.vocabulary against slow counts by hand, pieces spelt out one by one, and outputs that must not change."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedTokenizerFast

from compress import Artifact, load
from compress.artifact.structure import structure_of
from compress.engine.steps import run
from compress.export import export_onnx
from compress.export.runtime.answering import Runtime
from compress.prune.subwords import supported, with_pieces
from compress.prune.vocabulary import VocabularyPruning
from compress.recipe import Recipe
from compress.registry import get
from compress.share.embeddings import FactorisedEmbeddings
from compress.technique import Inputs
from eval.errors import UserError
from eval.inference import predict
from eval.task import Examples
from teachers.anatomy.embedding_rows import needed_rows, piece_axes
from teachers.anatomy.encoder import head_parts, word_embeddings
from teachers.data.encoded_dataset import EncodedDataset
from teachers.signals.hooks import NOTHING, SignalSpec
from teachers.signals.live_reader import LiveReader
from teachers.signals.model_teacher import ModelTeacher
from teachers.taskmodel import load_taskmodel, save_taskmodel
from tests.tiny import (
    BAD,
    CHARACTERS,
    FAMILIES,
    GOOD,
    PEOPLE,
    PLACES,
    in_turn,
    tiny_task,
    tiny_taskmodel,
    tiny_tokenizer,
)

TASK = tiny_task()
WORD_PIECES = ("bert", "ernie", "distilbert", "electra", "mobilebert")
UNIGRAM = ("albert", "xlnet", "deberta-v2")


def cut(model, task=TASK, **fields):
    step = VocabularyPruning(**fields)
    return run(Recipe(steps=(step,)), model, Inputs(train=task.train, validation=task.validation), dry_run_first=False)


def texts(*words):
    return Examples([{"text": word} for word in words], "texts")


def outputs(model, examples):
    if model.task.kind == "masked-lm":
        return [model.forward(model.encoder.collate(model.encoder.encode(examples)))]
    return predict(model, examples, batch_size=8).logits


def pieces_of(model, text):
    feature = model.encoder.encode(texts(text))[0]
    return [model.encoder.tokenizer.id_to_token(i) for i in feature.ids]


@pytest.mark.parametrize("family", WORD_PIECES + UNIGRAM)
def test_what_stays_is_what_occurs_and_letters_and_special_tokens(family):
    source = tiny_taskmodel(family, TASK.spec)
    result = cut(source)
    seen = {word for example in TASK.train for word in example["text"].split()}
    before = source.tokenizer.get_vocab()
    mark = "▁" if family in UNIGRAM else ""
    wanted = [
        piece
        for piece in sorted(before, key=before.get)
        if len(piece.removeprefix("##")) == 1
        or piece in source.tokenizer.all_special_tokens
        or (piece.startswith(mark) and piece.removeprefix(mark) in seen)
    ]
    found = result.tokenizer.get_vocab()
    assert sorted(found, key=found.get) == wanted
    assert sorted(found.values()) == list(range(len(wanted)))
    assert not set(PEOPLE) & {piece.removeprefix(mark) for piece in found}
    facts = result.lineage[-1].facts
    assert (facts["kept"], facts["dropped"]) == (len(wanted), len(before) - len(wanted))
    assert facts["coverage"] == 1.0
    assert facts["lost"] == {}


@pytest.mark.parametrize("family", ["roberta", "modernbert"])
def test_merges_that_lead_to_what_stays_stay_with_their_parts(family):
    source = tiny_taskmodel(family, TASK.spec)
    result = cut(source)
    old, new = (json.loads(m.tokenizer.backend_tokenizer.to_str())["model"] for m in (source, result))
    used = {
        piece
        for example in TASK.train
        for piece in pieces_of(source, example["text"])
        if piece in source.tokenizer.vocab
    }
    kept, grew = {p for p in old["vocab"] if len(p) == 1} | set(source.tokenizer.all_special_tokens) | used, True
    while grew:
        more = {part for a, b in old["merges"] if a + b in kept for part in (a, b)} - kept
        kept, grew = kept | more, bool(more)
    assert set(new["vocab"]) == kept
    assert new["merges"] == [[a, b] for a, b in old["merges"] if a + b in kept]
    assert len(kept.intersection(pre_tokenizers.ByteLevel.alphabet())) == 256
    assert len(new["merges"]) < len(old["merges"])


@pytest.mark.parametrize(
    ("family", "kind"), in_turn(FAMILIES, ("classification", "tagging", "qa", "masked-lm", "embedding"), 3)
)
def test_texts_whose_pieces_stay_give_exactly_the_same(family, kind):
    if family in ("xlnet", "gpt2") and kind == "masked-lm":
        pytest.skip("it has no masked-language head")
    task = tiny_task(kind)
    source = tiny_taskmodel(family, task.spec)
    result = cut(source, task)
    assert structure_of(result.model) == {}
    assert word_embeddings(result.model).weight.shape[0] == result.model.config.vocab_size == len(result.tokenizer)
    ours, theirs = (outputs(m, task.train) for m in (result, source))
    if kind == "masked-lm":
        old = source.tokenizer.get_vocab()
        columns = [old[piece] for piece in sorted(result.tokenizer.get_vocab(), key=result.tokenizer.get_vocab().get)]
        theirs = [logits[..., columns] for logits in theirs]
        decoder = head_parts(result.model)["mlm_decoder"]
        assert decoder.weight is word_embeddings(result.model).weight
        assert len(decoder.bias) == result.model.config.vocab_size
    assert all(
        np.allclose(a, b, atol=1e-6 if kind == "masked-lm" else 0, rtol=0) for a, b in zip(ours, theirs, strict=True)
    )
    for name in ("pad", "cls", "sep", "mask", "unk"):
        assert getattr(result.tokenizer, f"{name}_token") == getattr(source.tokenizer, f"{name}_token")
    assert result.model.config.pad_token_id == result.tokenizer.pad_token_id


@pytest.mark.parametrize("family", FAMILIES)
def test_no_text_becomes_unknown(family):
    source = tiny_taskmodel(family, TASK.spec)
    result = cut(source)
    for text in (" ".join(PEOPLE), "carla likes paris , not rome !", "xyzzy 42 o'neil"):
        ours, theirs = pieces_of(result, text), pieces_of(source, text)
        assert ours.count(result.tokenizer.unk_token) == theirs.count(source.tokenizer.unk_token)
        assert len(ours) > len(theirs) or text.startswith("xyz")
    assert np.isfinite(np.stack(predict(result, texts(*PLACES)).logits)).all()
    assert pieces_of(cut(tiny_taskmodel("bert", TASK.spec)), "oslo") == ["[CLS]", "o", "##s", "##l", "##o", "[SEP]"]


def test_stock_transformers_loads_it_where_the_toolkit_is_not(forker, tmp_path):
    text = TASK.validation[0]["text"]
    own = {}
    for family in FAMILIES:
        result = cut(tiny_taskmodel(family, TASK.spec))
        result.save(tmp_path / family)
        own[family] = predict(result, texts(text)).logits[0]
        again, source = load(tmp_path / family), tiny_tokenizer(family)
        assert again.tokenizer.get_vocab() == result.tokenizer.get_vocab()
        assert again.digest == result.digest
        for each in (again.tokenizer, result.tokenizer):
            assert type(each) is type(source)
            assert each.special_tokens_map == source.special_tokens_map
            assert each.decode(each(text)["input_ids"]) == source.decode(source(text)["input_ids"])
    code = (
        "import sys, json\nfrom transformers import AutoModelForSequenceClassification as M, AutoTokenizer as T\n"
        "def logits(f):  # only XLNet's token types are not all 0\n"
        "    t = T.from_pretrained(f); m = M.from_pretrained(f).eval()\n"
        "    return m(**t(sys.argv[1], return_tensors='pt', return_token_type_ids=f == 'xlnet')).logits[0].tolist()\n"
        "print(json.dumps({f: logits(f) for f in sys.argv[2:]}))"
    )
    found = json.loads(forker.program(code, text, *FAMILIES, cwd=tmp_path, stock=True))
    assert found.keys() == own.keys()
    assert all(np.allclose(found[family], own[family], atol=1e-5) for family in FAMILIES)


def test_counts_by_hand_and_the_coverage():
    source = tiny_taskmodel("bert", TASK.spec)
    counts = Counter(word for example in TASK.train for word in example["text"].split())
    result = cut(source, min_count=4)
    lost = {word: n for word, n in counts.items() if n < 4 and len(word) > 1}
    assert lost
    facts = result.lineage[-1].facts
    assert facts["lost"] == lost
    assert facts["tokens"] == counts.total()
    assert facts["coverage"] == pytest.approx(1 - sum(lost.values()) / counts.total())
    told = facts["validation"]
    gone = [w for w in (*GOOD, *BAD) if w not in result.tokenizer.get_vocab()]
    assert told["texts"] == len(TASK.validation)
    words = [set(example["text"].split()) for example in TASK.validation]
    missing = set(source.tokenizer.get_vocab()) - set(result.tokenizer.get_vocab())
    assert gone
    assert told["cut_otherwise"] == sum(bool(each & missing) for each in words) > 0
    assert told["unknown_before"] == told["unknown_after"] == 0
    assert told["tokens_after"] > told["tokens_before"]


def test_what_is_to_stay_stays(tmp_path):
    source = tiny_taskmodel("bert", TASK.spec)
    assert {"carla", "oslo"} <= set(cut(source, keep=("carla", "oslo")).tokenizer.get_vocab())
    (tmp_path / "keep.txt").write_text("carla\noslo\n")
    (tmp_path / "corpus.txt").write_text("Emma lives in Rome\nand is happy\n")
    step = VocabularyPruning(files=(str(tmp_path / "corpus.txt"),), keep=str(tmp_path / "keep.txt"))
    assert step.needed() == frozenset()
    result = run(Recipe(steps=(step,)), source, Inputs())
    words = {piece for piece in result.tokenizer.get_vocab() if len(piece.removeprefix("##")) > 1}
    expected = {"carla", "oslo", "emma", "lives", "in", "rome", "and", "is", "happy"}
    assert words - set(source.tokenizer.all_special_tokens) == expected


@pytest.mark.parametrize("field", ["prompt", "query_prompt", "document_prompt"])
def test_the_pieces_of_prompts_stay(field, tmp_path):
    spec = tiny_task("embedding").spec.model_copy(update={field: "carla likes oslo "})
    (tmp_path / "corpus.txt").write_text("Emma lives in Rome\n")
    step = VocabularyPruning(files=(str(tmp_path / "corpus.txt"),))
    result = run(Recipe(steps=(step,)), tiny_taskmodel("bert", spec), Inputs())
    assert {"carla", "likes", "oslo", "emma"} <= set(result.tokenizer.get_vocab())


def test_mistakes_are_named_before_any_work():
    source = tiny_taskmodel("bert", TASK.spec)
    with pytest.raises(UserError) as caught:
        cut(source, files=("nowhere.txt",), keep=("zebra",))
    assert "files: nowhere.txt is no file" in str(caught.value)
    assert "keep: 'zebra': no piece of this tokenizer" in str(caught.value)
    with pytest.raises(UserError, match=r"keep: nowhere.txt cannot be read"):
        cut(source, keep="nowhere.txt")
    words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "good": 2}, unk_token="[UNK]"))
    plain = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    other = type(source)(source.model, plain, source.task)
    with pytest.raises(UserError, match="the tokenizer of this bert is a WordLevel"):
        cut(other)


def test_nothing_to_drop_changes_nothing(tmp_path):
    source = tiny_taskmodel("bert", TASK.spec)
    once = cut(source)
    twice = cut(once)
    assert twice.lineage[-1].facts["dropped"] == 0
    assert twice.digest == once.digest
    assert twice.tokenizer.backend_tokenizer.to_str() == once.tokenizer.backend_tokenizer.to_str()


def test_ids_of_special_tokens_move_with_them():
    """Special tokens behind the words, as in a vocabulary that was extended: template, padding and config follow."""
    words = ["[UNK]", "a", "b", "##a", "##b", "ab", "##ab", "ba", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "aba"]
    backend = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"])
    backend.add_tokens(["<own>"])
    template = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 8), ("[SEP]", 9)]
    )
    backend.post_processor = processors.Sequence([template])
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad", "mask")}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    used = set(tokenizer("aba <own> ba")["input_ids"])
    kept = sorted(supported(tokenizer, used))
    small = with_pieces(tokenizer, kept)
    assert sorted(small.get_vocab(), key=small.get_vocab().get) == [
        *("[UNK]", "a", "b", "##a", "##b", "ba", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "aba", "<own>")
    ]
    assert small.convert_ids_to_tokens(small("aba <own>", "ab")["input_ids"]) == [
        *("[CLS]", "aba", "<own>", "[SEP]", "a", "##b", "[SEP]")
    ]
    assert (small.pad_token_id, small.cls_token_id, tokenizer.pad_token_id) == (8, 6, 10)
    model = tiny_taskmodel("bert", TASK.spec, pad_token_id=10, bos_token_id=8)
    other = type(model)(model.model, tokenizer, model.task)
    task = texts("aba <own> ba")
    result = run(Recipe(steps=(VocabularyPruning(),)), other, Inputs(train=task), dry_run_first=False)
    assert (result.model.config.pad_token_id, result.model.config.bos_token_id) == (8, 6)
    assert word_embeddings(result.model).padding_idx == 8
    assert np.array_equal(np.stack(predict(result, task).logits), np.stack(predict(other, task).logits))


def test_pieces_of_characters_that_are_no_pieces_stay():
    words = {"[UNK]": 0, "[PAD]": 1, "a": 2, "##a": 3, "##aß": 4, "aaa": 5, "öa": 6}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordPiece(words, unk_token="[UNK]")), pad_token="[PAD]", unk_token="[UNK]"
    )
    assert supported(tokenizer, set()) == {0, 1, 2, 3, 4, 6}


def test_the_least_likely_piece_of_a_unigram_model_stays():
    """An unknown character is as likely as the least likely piece less 10; without it texts would be cut otherwise."""
    pieces = [("<pad>", 0.0), ("<unk>", 0.0), ("a", -2.0), ("aa", -3.0), ("aaa", -50.0), ("b", -1.0)]
    backend = Tokenizer(models.Unigram(pieces, unk_id=1, byte_fallback=False))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", unk_token="<unk>")
    assert supported(tokenizer, set()) == {0, 1, 2, 4, 5}
    assert with_pieces(tokenizer, [0, 1, 2, 4, 5]).tokenize("aab") == ["a", "a", "b"]


def test_roberta_keeps_the_number_of_padding():
    """Positions are counted from it, so the pieces before it stay, used or not."""
    source = tiny_taskmodel("roberta", TASK.spec, pad_token_id=40)
    axes = piece_axes(source.model)
    assert axes == {"roberta.embeddings.word_embeddings.weight": 0}
    assert set(range(41)) <= needed_rows(source.model.config)
    assert needed_rows(tiny_taskmodel("bert", TASK.spec).model.config) == {0}


@pytest.mark.parametrize("kind", ["classification", "masked-lm"])
def test_a_factorised_table_loses_rows_too(kind, tmp_path):
    task = tiny_task(kind)
    source = tiny_taskmodel("bert", task.spec)
    narrow = run(Recipe(steps=(FactorisedEmbeddings(size=4, recover=False),)), source, Inputs(train=task.train))
    result = cut(narrow, task)
    pieces = result.model.config.vocab_size
    assert word_embeddings(result.model).weight.shape == (pieces, 4)
    assert set(structure_of(result.model)) == set(structure_of(narrow.model))
    result.save(tmp_path / "saved")
    again = load(tmp_path / "saved")
    ours, theirs, saved = (outputs(m, task.train[:8]) for m in (result, narrow, again))
    if kind == "classification":
        assert np.array_equal(np.stack(ours), np.stack(theirs))
    else:
        assert result.model.cls.predictions.decoder.table.weight is word_embeddings(result.model).weight
        assert all(logits.shape[-1] == pieces for logits in ours)
    assert all(np.array_equal(a, b) for a, b in zip(ours, saved, strict=True))


def test_a_mask_over_the_table_stays():
    source = tiny_taskmodel("bert", TASK.spec)
    step = get("prune.magnitude")(sparsity=0.5, schedule="once", recover=False)
    sparse = run(Recipe(steps=(step,)), source, Inputs(train=TASK.train), dry_run_first=False)
    result = cut(sparse)
    assert type(word_embeddings(result.model)) is type(word_embeddings(sparse.model))
    assert np.array_equal(np.stack(predict(result, TASK.train).logits), np.stack(predict(sparse, TASK.train).logits))


def test_tokens_are_paired_with_a_teacher_that_has_all_pieces(tmp_path):
    """Hidden states of the teacher are the same whether the student has its pieces or only those of the texts."""
    source = tiny_taskmodel("bert", TASK.spec)
    teacher = tiny_taskmodel("bert", TASK.spec, seed=1)
    inputs = Inputs(train=TASK.train, teacher=ModelTeacher(teacher, cache=tmp_path))
    train = get("distill.pkd")(max_steps=2, batch_size=8)
    chain = run(Recipe(seed=3, steps=(VocabularyPruning(), train)), source, inputs, dry_run_first=False)
    alone = run(Recipe(seed=4, steps=(train,)), source, inputs, dry_run_first=False)  # the second step's seed
    kept = [source.tokenizer.get_vocab()[p] for p, _ in sorted(chain.tokenizer.get_vocab().items(), key=lambda x: x[1])]
    rows = word_embeddings(alone.model).weight[kept]
    assert torch.allclose(word_embeddings(chain.model).weight, rows, atol=1e-6)
    few = VocabularyPruning(min_count=10)
    with pytest.raises(UserError, match="tokenize differently, so their tokens cannot be paired"):
        run(Recipe(steps=(few, train)), source, inputs, dry_run_first=False)
    whole = get("distill.logits")(max_steps=2, batch_size=8)
    assert run(Recipe(steps=(few, whole)), source, inputs).lineage[-1].technique == "distill.logits"


@pytest.mark.parametrize("kind", ["classification", "tagging", "multiple-choice"])
def test_a_live_teacher_reads_its_own_ids_of_the_texts_of_a_batch(kind, tmp_path):
    """A row of several choices has an input for each; the third of them is not the third row."""
    task = tiny_task(kind)
    source, teacher = (tiny_taskmodel("bert", task.spec, seed=seed) for seed in (0, 1))
    rows, theirs = (EncodedDataset(task.train, one.encoder, task.spec) for one in (cut(source, task), teacher))
    batch, wanted = rows.batch([3, 1]), SignalSpec(hidden_states=(1,))
    assert not torch.equal(batch.inputs["input_ids"], theirs.batch([3, 1]).inputs["input_ids"])
    expected = LiveReader(teacher, wanted)(theirs.batch([3, 1])).hidden_states[1][batch.mask.bool()]
    for budget in (2**30, 0):
        found = ModelTeacher(teacher, tmp_path, budget).read(rows, wanted)(batch).hidden_states[1]
        assert torch.allclose(found[batch.mask.bool()], expected, atol=1e-5)


def test_a_decoder_learns_the_logits_of_its_own_words(tmp_path):
    """The teacher's distribution over the words that the student has left, from disk or live."""
    task = tiny_task("causal-lm")
    source, teacher = (tiny_taskmodel("gpt2", task.spec, seed=seed) for seed in (0, 1))
    student = cut(source, task)
    rows, theirs = (EncodedDataset(task.train, one.encoder, task.spec) for one in (student, teacher))
    known, size = teacher.tokenizer.get_vocab(), student.model.config.vocab_size
    numbers = [known[student.tokenizer.convert_ids_to_tokens(number)] for number in range(size)]
    assert numbers != list(range(len(numbers)))
    expected = LiveReader(teacher, NOTHING)(theirs.batch([0, 2])).logits[..., numbers]
    for budget in (2**30, 0):
        found = ModelTeacher(teacher, tmp_path, budget).read(rows)(rows.batch([0, 2])).logits
        mask = rows.batch([0, 2]).inputs["attention_mask"].bool()
        assert torch.allclose(found[mask], expected[mask], atol=1e-5)
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(UserError, match=r"the student predicts 3 tokens that the teacher does not know, such as '"):
        ModelTeacher(student, tmp_path).read(theirs)


@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "mobilebert"])
def test_the_export_is_smaller_and_gives_the_same(family, tmp_path):
    source = tiny_taskmodel(family, TASK.spec)
    result = cut(source)
    sizes = []
    for name, model in (("before", source), ("after", result)):
        export_onnx(Artifact.from_model(model), tmp_path / name, examples=TASK.validation)
        sizes.append((tmp_path / name / "model.onnx").stat().st_size)
    runtime = Runtime(tmp_path / "after")
    assert sizes[1] < sizes[0]
    ours, theirs = predict(runtime, TASK.validation).logits, predict(result, TASK.validation).logits
    assert np.allclose(np.stack(ours), np.stack(theirs), atol=1e-4)


def test_a_saved_tokenizer_is_cut_as_well(tmp_path):
    """A model from disk, whose tokenizer transformers made from its files, as users have it."""
    for family in FAMILIES:
        save = tmp_path / family
        save.mkdir()
        save_taskmodel(tiny_taskmodel(family, TASK.spec), save)
        source = load_taskmodel(save)
        result = cut(source)
        again = tmp_path / f"{family}-cut"
        result.save(again)
        tokenizer = AutoTokenizer.from_pretrained(again)
        text = TASK.train[0]["text"]
        assert tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"]) == source.tokenizer.convert_ids_to_tokens(
            source.tokenizer(text)["input_ids"]
        )
        assert AutoModelForSequenceClassification.from_pretrained(again).config.vocab_size == len(tokenizer)
        assert len(tokenizer) < len(source.tokenizer)
        assert set(CHARACTERS) <= {piece.removeprefix("##") for piece in tokenizer.get_vocab()}


def test_what_ends_a_text_of_generate_has_its_new_number(tmp_path):
    task = tiny_task("causal-lm")
    source = tiny_taskmodel("gpt2", task.spec)
    source.model.generation_config.eos_token_id = [source.tokenizer.eos_token_id, source.tokenizer.vocab_size - 1]
    source.model.generation_config.bos_token_id = source.tokenizer.vocab_size - 1
    kept = {source.tokenizer.convert_ids_to_tokens(source.tokenizer.vocab_size - 1)}
    (tmp_path / "corpus.txt").write_text("ann lives in rome\n")
    step = VocabularyPruning(files=(str(tmp_path / "corpus.txt"),), keep=tuple(kept))
    result = run(Recipe(steps=(step,)), source, Inputs())
    last = result.tokenizer.convert_tokens_to_ids(next(iter(kept)))
    assert last < source.tokenizer.vocab_size - 1
    said = result.model.generation_config
    assert (said.eos_token_id, said.bos_token_id) == ([result.tokenizer.eos_token_id, last], last)
