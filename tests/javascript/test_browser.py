"""Exports in a real browser: the same labels as in Python, milliseconds shown, and no request to another host."""

import os
import re
import shutil
from pathlib import Path

import pytest

from compress.export import export_web
from compress.export.runtime.answering import Runtime
from eval.inference import predict
from eval.task import TaskSpec
from teachers.finetuning.finetune import finetune
from teachers.training.config import Training
from tests.javascript.conftest import programs, varied
from tests.tiny import tiny_spec, tiny_task, tiny_taskmodel

pytestmark = pytest.mark.slow


def texts_of(count, kind="classification", **options):
    examples = tiny_task(kind, examples=count, **options).validation
    return [{key: value for key, value in example.items() if key not in ("label", "tags")} for example in examples]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model that has learned its task, so that both labels occur."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPRESS_HOME", str(tmp_path_factory.mktemp("home")))
        task, training = tiny_task(examples=300), Training(max_steps=200, batch_size=16, learning_rate=1e-3)
        return finetune(tiny_taskmodel("distilbert", task.spec), task, training, seed=1)[0]


@pytest.mark.parametrize("int8", [False, True])
def test_typed_text_is_classified_as_in_python(int8, trained, browse, modules, tmp_path):
    model, examples = trained, texts_of(300)
    export_web(model, tmp_path / "web", int8=int8, examples=examples, assets=modules)
    (page,) = browse(tmp_path / "web", {"": {"examples": examples, "typed": [examples[0]["text"]]}})
    assert re.fullmatch(r"ready; loaded in \d+ ms", page["state"])
    assert re.fullmatch(r"\d+\.\d ms", page["took"])
    answers = predict(model, examples).answers
    assert {answer["label"] for answer in answers} == {"bad", "good"}
    same = sum(own["label"] == read["label"] for own, read in zip(answers, page["answers"], strict=True))
    assert same == 300 if not int8 else same >= 291
    best, most, *_ = page["shown"].splitlines()
    shown = page["answers"][0]
    assert (best, most) == (shown["label"], f"{100 * shown['probability']:.1f} %")
    assert page["problems"] == []


def test_words_are_tagged_and_texts_compared(browse, modules, tmp_path):
    embedder = tiny_taskmodel("bert", TaskSpec(kind="embedding", metric="spearman", pair=True, max_length=32))
    words, pairs = texts_of(40, "tagging"), texts_of(40, "embedding", pair=True)
    tagger = varied(tiny_taskmodel("roberta", tiny_spec("tagging")), words)
    export_web(tagger, tmp_path / "tags", assets=modules)
    export_web(embedder, tmp_path / "vectors", assets=modules)
    sentence = " ".join(words[0]["tokens"])
    tags, vectors = browse(
        tmp_path,
        {
            "tags/": {"examples": words, "typed": [sentence]},
            "vectors/": {"examples": pairs, "typed": list(pairs[0].values())},
        },
    )
    own = predict(tagger, words).answers
    assert len({tag for answer in own for tag in answer["tags"]}) == 3
    assert [answer["tags"] for answer in tags["answers"]] == [answer["tags"] for answer in own]
    shown = [word if tag == "O" else f"{word}{tag}" for word, tag in zip(sentence.split(), own[0]["tags"], strict=True)]
    assert re.sub(r"\s+", "", tags["shown"]) == "".join(shown)
    scores = [answer["score"] for answer in predict(embedder, pairs).answers]
    assert [answer["score"] for answer in vectors["answers"]] == pytest.approx(scores, abs=1e-5)
    assert vectors["shown"] == f"cosine {scores[0]:.4f}"


def test_a_page_without_its_packages_says_so(browse, tmp_path):
    report = export_web(tiny_taskmodel("bert"), tmp_path / "web", assets=None)
    assert len(report.notes) == 1
    (page,) = browse(tmp_path / "web", {"": {"examples": [], "typed": [""]}})
    assert page["state"].startswith("The model cannot be loaded (")
    assert page["state"].endswith("); see README.md")


def test_the_pages_of_the_docs_answer(browse, modules, tmp_path):
    model = tiny_taskmodel("bert")
    export_web(model, tmp_path / "web", assets=modules)
    own_program, transformers_js = programs("html")
    (tmp_path / "own.html").write_text(own_program, encoding="utf-8")
    (tmp_path / "transformers.html").write_text(transformers_js, encoding="utf-8")
    (tmp_path / "vendor").mkdir()
    package = modules / "@huggingface" / "transformers"
    (runtime,) = package.glob("**/node_modules/onnxruntime-web/dist")
    shutil.copy(package / "dist" / "transformers.min.js", tmp_path / "vendor")
    for ending in ("mjs", "wasm"):
        shutil.copy(runtime / f"ort-wasm-simd-threaded.asyncify.{ending}", tmp_path / "vendor")
    pages = browse(tmp_path, {name: {"shows": "#answer"} for name in ("own.html", "transformers.html")})
    (own,) = predict(model, [{"text": "a gripping film"}]).answers
    assert [page["shown"] for page in pages] == [f"{own['label']} {own['probability']:.3f}"] * 2


def test_a_real_model_on_sst2(browse, modules, tmp_path):
    """Needs a fine-tuned model and its data, named by COMPRESS_TEST_MODEL and COMPRESS_TEST_DATA."""
    place, data = (os.environ.get(f"COMPRESS_TEST_{name}") for name in ("MODEL", "DATA"))
    if not place or not data:
        pytest.skip("COMPRESS_TEST_MODEL and COMPRESS_TEST_DATA name no model and data")
    from compress.artifact.artifact import Artifact
    from compress.export import export_onnx
    from compress.terminal.models import task_for

    model = Artifact.from_pretrained(Path(place))
    examples = task_for(model.task, data).validation[:300]
    texts = [{"text": example["text"]} for example in examples]
    for int8 in (False, True):
        export_web(model, tmp_path / "web", int8=int8, examples=examples, assets=modules)
        export_onnx(model, tmp_path / "onnx", int8=int8, examples=examples)
        answers = predict(Runtime(tmp_path / "onnx"), texts, batch_size=1).answers
        (page,) = browse(tmp_path / "web", {"": {"examples": texts, "typed": [texts[0]["text"]]}})
        assert [read["label"] for read in page["answers"]] == [own["label"] for own in answers]
        pairs = zip(answers, page["answers"], strict=True)
        differences = [abs(own["probability"] - read["probability"]) for own, read in pairs]
        # In 8 bits, kernels of WebAssembly round a few numbers to the neighbouring integer.
        assert sum(differences) / len(differences) < (0.01 if int8 else 1e-5)
