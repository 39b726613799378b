"""Exports in Node.js: token ids and answers are those of Python, for every family and kind of task."""

from itertools import pairwise

import numpy as np
import pytest
from tokenizers import Tokenizer

from compress.export import export_web
from compress.export.check.probes import ODD, odd_examples, synthetic_examples
from compress.export.targets.web_readme import KNOWN, pipeline_of
from eval.inference import predict
from eval.task import TaskSpec
from tests.javascript.conftest import HERE, programs, varied
from tests.parity.test_distill_early_exit import with_exits
from tests.parity.test_distill_static import distilled
from tests.tiny import FAMILIES, tiny_spec, tiny_task, tiny_taskmodel

pytestmark = pytest.mark.slow
WIDE_SPACE = next(text for text in ODD if "\N{ZERO WIDTH NO-BREAK SPACE}" in text)
OTHERWISE = {("albert", WIDE_SPACE), ("xlnet", WIDE_SPACE)}
"""Texts that JavaScript divides otherwise: there, a zero-width no-break space is white space."""
PAIRS = [
    {"text_a": "the film is great " * first, "text_b": "ann likes it and bob was sad . " * second}
    for first in range(7)
    for second in range(7)
]


def job(model, folder, examples, pipeline=None):
    export_web(model, folder, examples=examples)
    return {"folder": str(folder), "examples": [dict(example) for example in examples], "pipeline": pipeline}


def expected_ids(model, examples):
    return [feature.ids for feature in model.encoder.encode(examples)]


def test_every_family_has_the_same_tokens_and_labels(node, tmp_path):
    models = {family: tiny_taskmodel(family) for family in FAMILIES}
    examples = {
        family: [*odd_examples(model.encoder), *synthetic_examples(model.encoder), *tiny_task().validation]
        for family, model in models.items()
    }
    jobs = [
        job(model, tmp_path / family, examples[family], pipeline_of(family, "classification", pair=False))
        for family, model in models.items()
    ]
    for (family, model), found in zip(models.items(), node(HERE / "node.mjs", jobs), strict=True):
        ids, most = expected_ids(model, examples[family]), model.encoder.settings.max_length
        whole_texts = Tokenizer.from_str(model.encoder.source)
        whole = [whole_texts.encode(example["text"]).ids for example in examples[family]]
        texts = [example["text"] for example in examples[family]]
        other = {(family, text) for text, own, read in zip(texts, ids, found["ids"], strict=True) if own != read}
        assert other == {pair for pair in OTHERWISE if pair[0] == family}
        theirs = {text for text, own, read in zip(texts, whole, found["theirs"], strict=True) if own[:most] != read}
        assert theirs == {text for _, text in other}, "transformers.js cuts the last special token off"
        assert any(len(own) > most for own in whole)
        assert found["supported"] == (family in KNOWN["text-classification"])
        answers = predict(model, examples[family]).answers
        for text, own, read in zip(texts, answers, found["answers"], strict=True):
            if (family, text) not in OTHERWISE:
                assert own["label"] == read["label"]
                probability = read["probabilities"][model.task.labels.index(own["label"])]
                assert own["probability"] == pytest.approx(probability, abs=1e-5)
        if found["supported"]:
            fits = [place for place, own in enumerate(whole) if len(own) <= most and ids[place] == found["ids"][place]]
            assert len(fits) > 40
            for place in fits:
                (piped,) = found["piped"][place]
                assert piped["label"] == answers[place]["label"]
                assert piped["score"] == pytest.approx(answers[place]["probability"], abs=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
def test_pairs_are_shortened_as_in_python(side, node, tmp_path):
    models = []
    for truncation in ("longest_first", "only_first", "only_second"):
        for family in ("bert", "roberta", "xlnet"):
            spec = tiny_spec(pair=True).model_copy(update={"truncation": truncation, "truncation_side": side})
            models.append(tiny_taskmodel(family, spec))
    jobs = [job(model, tmp_path / str(number), PAIRS) for number, model in enumerate(models)]
    for model, found in zip(models, node(HERE / "node.mjs", jobs), strict=True):
        ids = expected_ids(model, PAIRS)
        assert found["ids"] == ids
        assert max(map(len, ids)) == 32
        for own, read in zip(predict(model, PAIRS).answers, found["answers"], strict=True):
            assert read["label"] == own["label"]
            assert read["probability"] == pytest.approx(own["probability"], abs=1e-5)


def test_every_family_tags_words_as_in_python(node, tmp_path):
    task = tiny_task("tagging")
    long = {"tokens": [word for example in task.validation for word in example["tokens"]][:90]}
    odd = {"tokens": ["ann", "\x07", "lives", "", "in", "RÔME", "你好", "<mask>x", "O'Neill-Smith's"]}
    examples = [*({"tokens": example["tokens"]} for example in task.validation), long, odd, {"tokens": []}]
    models = [varied(tiny_taskmodel(family, task.spec), task.validation) for family in FAMILIES]
    jobs = [job(model, tmp_path / family, examples) for family, model in zip(FAMILIES, models, strict=True)]
    for family, model, found in zip(FAMILIES, models, node(HERE / "node.mjs", jobs), strict=True):
        assert [answer["tags"] for answer in found["answers"]] == [a["tags"] for a in predict(model, examples).answers]
        tags = [tag for answer in found["answers"] for tag in answer["tags"]]
        assert min(map(tags.count, task.spec.labels)) > 10
        assert found["supported"] == (family in KNOWN["token-classification"])


def test_scores_vectors_and_networks_of_our_own(node, tmp_path):
    scores = tiny_taskmodel("electra", tiny_spec("regression"))
    vectors = tiny_taskmodel("bert", TaskSpec(kind="embedding", metric="spearman", pair=True, max_length=32))
    early, (static, _, _) = with_exits(speed=0.4), distilled(dense_size=16)
    texts = [{"text": example["text"]} for example in tiny_task().validation]
    two = [{"text_a": one["text"], "text_b": other["text"]} for one, other in pairwise(texts)]
    roles = {"prompt": "of: ", "query_prompt": "query: ", "document_prompt": "the film is: "}
    prompted = tiny_taskmodel("bert", TaskSpec(kind="embedding", metric="nearest", max_length=32, **roles))
    named = [*texts[:4], *({**text, "prompt_name": role} for text in texts[:4] for role in ("query", "document"))]
    cases = [(scores, texts), (vectors, two), (early, texts), (static, texts), (prompted, named)]
    jobs = [job(model, tmp_path / str(number), examples) for number, (model, examples) in enumerate(cases)]
    for (model, examples), found in zip(cases, node(HERE / "node.mjs", jobs), strict=True):
        for own, read in zip(predict(model, examples, batch_size=1).answers, found["answers"], strict=True):
            for key in own.keys() & {"score", "probability", "vectors"}:
                assert np.asarray(read[key]) == pytest.approx(np.asarray(own[key]), abs=1e-5)
            assert own.get("label") == read.get("label")
    plain, query = (found["answers"][place]["vectors"][0] for place in (0, 4))
    assert plain != pytest.approx(query, abs=1e-3), "a prompt changes the vector"


def test_sets_of_labels_are_those_of_python(node, tmp_path):
    spec, examples = tiny_spec("multilabel"), tiny_task("multilabel").validation
    chosen = spec.model_copy(update={"thresholds": (0.3, 0.5, 0.7)})
    models = [tiny_taskmodel("bert", one) for one in (spec, chosen)]
    jobs = [job(model, tmp_path / str(number), examples) for number, model in enumerate(models)]
    answers = [predict(model, examples, batch_size=1).answers for model in models]
    assert [answer["labels"] for answer in answers[0]] != [answer["labels"] for answer in answers[1]]
    for own, found in zip(answers, node(HERE / "node.mjs", jobs), strict=True):
        for one, read in zip(own, found["answers"], strict=True):
            assert read["labels"] == one["labels"]
            assert read["probabilities"] == pytest.approx(one["probabilities"], abs=1e-5)


def test_the_programs_of_the_docs_answer(node, tmp_path):
    model = tiny_taskmodel("bert")
    export_web(model, tmp_path / "web")
    (own,) = predict(model, [{"text": "a gripping film"}]).answers
    ours, theirs = (node(program) for program in programs("js"))
    assert ours["label"] == theirs[0]["label"] == own["label"]
    assert ours["probability"] == pytest.approx(own["probability"], abs=1e-5)
    assert theirs[0]["score"] == pytest.approx(own["probability"], abs=1e-5)
