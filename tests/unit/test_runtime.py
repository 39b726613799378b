"""Predicting from an export folder with numpy, tokenizers and ONNX Runtime alone; refusing damaged folders."""

import ast
import importlib
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pandas
import pytest

from compress.export import export_onnx
from compress.export.runtime.answering import ExportError, Runtime, default_threads
from compress.export.runtime.bundle import PARTS, kind_parts, predict_program
from compress.export.runtime.given_example import example
from compress.export.runtime.manifest import with_digest
from compress.export.runtime.program import main, read_lines
from compress.export.targets.target_registry import library_of
from eval.inference import predict
from eval.kinds.kind_registry import OWN
from tests.tiny import tiny_task, tiny_taskmodel

ROOT = Path(__file__).parents[2]
TARGETS = "compress.export.targets"
LIST = [f"{TARGETS}.target_registry", f"{TARGETS}.target", f"{TARGETS}.onnx", "eval.errors", "eval.plugins"]
"""Where the runtime of the toolkit finds what runs an export; the program in the folder has its own engine alone."""
BESIDE = (
    *("eval.errors", "eval.files.rows", "eval.metrics.correlation", "eval.metrics.entities", "eval.metrics.scorers"),
    *("eval.kinds.kind_registry", "eval.kinds.values"),
)
"""What the files of a kind import beside, of which prediction needs nothing."""
BLOCK = """
import sys

class Block:
    heavy = {"torch", "transformers", "pydantic", "onnx", "safetensors", "sklearn", "scipy", "yaml", "datasets"}
    allowed = set(ALLOWED)

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        ours = top in ("compress", "teachers", "eval")
        if top in self.heavy or (ours and not any(f"{each}.".startswith(f"{name}.") for each in self.allowed)):
            raise ImportError(f"{name} must not be imported")

sys.meta_path.insert(0, Block())
"""


def alone(code, *arguments, allowed=(), stdin=None, cwd=ROOT):
    """Run code where everything heavy, and all of the toolkit but ``allowed`` and its packages, cannot be imported."""
    looked_for = ("compress.shadowing", "teachers", "eval")  # whose they are is asked first
    program = BLOCK.replace("ALLOWED", repr([*allowed, *looked_for])) + code
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, cwd=cwd, input=stdin, check=False, timeout=60)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Exports by kind, each with its model and examples."""
    root = tmp_path_factory.mktemp("exports")
    found = {}
    for name, family, kind, pair in (
        ("text", "bert", "classification", False),
        ("pair", "bert", "classification", True),
        ("tagging", "roberta", "tagging", False),
        ("qa", "bert", "qa", False),
        ("regression", "distilbert", "regression", False),
        ("masked-lm", "bert", "masked-lm", False),
    ):
        task = tiny_task(kind, pair=pair, examples=12)
        model = tiny_taskmodel(family, task.spec)
        export_onnx(model, root / name, examples=task.validation, name=name)
        found[name] = (root / name, model, task.validation)
    return found


@pytest.fixture
def folder(made, tmp_path):
    """A copy of an export that a test may damage."""
    return Path(shutil.copytree(made["text"][0], tmp_path / "export"))


# ---- what it needs


def test_the_runtime_needs_neither_torch_nor_the_rest_of_the_toolkit(made):
    folder, model, examples = made["text"]
    texts = [item["text"] for item in examples]
    run = alone(
        "import json\nfrom compress.export.runtime.answering import Runtime\n"
        "print(json.dumps(Runtime(sys.argv[1]).predict(sys.argv[2:]).answers))",
        folder,
        *texts,
        allowed=(*LIST, *PARTS, *kind_parts("classification"), *BESIDE),
    )
    assert run.returncode == 0, run.stderr.decode()
    expected = predict(model, examples).answers
    for found, wanted in zip(json.loads(run.stdout), expected, strict=True):
        assert found["label"] == wanted["label"]
        assert found["probability"] == pytest.approx(wanted["probability"], abs=1e-5)


def program(folder, *arguments, stdin=b""):
    code = "import runpy\nsys.argv = sys.argv[1:]\nrunpy.run_path(sys.argv[0], run_name='__main__')"
    return alone(code, folder / "predict.py", *arguments, stdin=stdin, cwd=folder.parent)


@pytest.mark.parametrize("name", ["text", "pair", "tagging", "qa", "regression"])
def test_the_program_in_the_folder_needs_nothing_of_the_toolkit(made, name):
    folder, model, examples = made[name]
    fields = {"text": ("text",), "regression": ("text",), "pair": ("text_a", "text_b"), "qa": ("question", "context")}
    if name == "tagging":
        lines = [" ".join(item["tokens"]) for item in examples]
    else:
        lines = ["\t".join(item[field] for field in fields[name]) for item in examples]
    run = program(folder, stdin="\n".join(lines).encode())
    assert run.returncode == 0, run.stderr.decode()
    found = [json.loads(line) for line in run.stdout.decode().splitlines()]
    wanted = predict(model, examples).answers
    assert [set(answer) for answer in found] == [set(answer) for answer in wanted]
    for key in ("label", "tags", "text", "start"):
        assert [answer.get(key) for answer in found] == [answer.get(key) for answer in wanted]
    if name == "regression":
        assert [a["score"] for a in found] == pytest.approx([a["score"] for a in wanted], abs=1e-5)


def test_the_program_tells_a_mistake_and_exits_with_2(made, tmp_path):
    folder = made["pair"][0]
    run = program(folder, "good film", "a\tb")
    assert (run.returncode, run.stdout) == (2, b"")
    assert run.stderr.decode() == "example 1: expected text_a, one tab, text_b, or a JSON object with both\n"
    run = program(folder, "--file", "missing.txt")
    assert run.returncode == 2
    assert "No such file" in run.stderr.decode()
    run = program(folder, "a\tb", "--file", "x")
    assert run.returncode == 2
    assert "give texts or --file, not both" in run.stderr.decode()
    for name in ("films.csv", "films.TSV", "films.parquet", "films.csv.gz"):
        (tmp_path / name).write_text("id,text\n1,a good film\n", encoding="utf-8")
        run = program(folder, "--file", str(tmp_path / name))
        assert (run.returncode, run.stdout) == (2, b"")
        assert f"{name}: is a table, and only lines are read here; save its column" in run.stderr.decode()
        run = program(folder, str(tmp_path / name))
        assert (run.returncode, run.stdout) == (2, b"")
        assert f"{name}: is a file; give it with --file" in run.stderr.decode()


@pytest.mark.parametrize("kind", OWN)
def test_the_program_is_the_same_code(kind):
    text = predict_program("onnx", library_of("onnx"), kind)
    program = ast.dump(ast.parse(text))
    for part in (*PARTS, *kind_parts(kind)):
        tree = ast.parse(Path(importlib.import_module(part).__file__).read_text(encoding="utf-8"))
        named = [node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Assign)]
        assert all(ast.dump(node) in program for node in named)
    assert not [line for line in text.splitlines() if line.startswith(("from compress", "from eval", "import torch"))]


@pytest.mark.parametrize("kind", OWN)
def test_the_parts_of_the_program_do_not_hide_each_other(kind):
    defined = []
    for part in (*PARTS, *kind_parts(kind)):
        tree = ast.parse(Path(importlib.import_module(part).__file__).read_text(encoding="utf-8"))
        defined += [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
        targets = [node.targets[0] for node in tree.body if isinstance(node, ast.Assign)]
        defined += [target.id for target in targets if isinstance(target, ast.Name)]
    assert len(defined) == len(set(defined))


# ---- answers


@pytest.mark.parametrize("name", ["text", "pair", "tagging", "qa", "regression"])
def test_answers_are_the_models(made, name):
    folder, model, examples = made[name]
    found, wanted = Runtime(folder).predict(examples, batch_size=5), predict(model, examples)
    for one, other in zip(found.logits, wanted.logits, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert [set(answer) for answer in found.answers] == [set(answer) for answer in wanted.answers]


def test_masked_lm_gives_logits_only(made):
    folder, model, examples = made["masked-lm"]
    runtime = Runtime(folder)
    inputs = runtime.encoder.collate(runtime.encoder.encode(examples[:2]))
    np.testing.assert_allclose(runtime.forward(inputs), model.forward(inputs), atol=1e-5)
    with pytest.raises(ExportError, match="gives logits"):
        runtime.predict(["a [MASK]"])


def test_a_stream_keeps_the_order_and_holds_one_chunk(made):
    folder, _, examples = made["text"]
    model = Runtime(folder)
    read = []

    def source():
        for number, item in enumerate(examples):
            read.append(number)
            yield item["text"] if number % 2 else item

    answers = model.stream(source(), chunk=5)
    first = next(answers)
    assert read == [0, 1, 2, 3, 4]
    found = [first, *answers]
    wanted = model.predict(examples).answers
    assert [answer["label"] for answer in found] == [answer["label"] for answer in wanted]
    for answer, other in zip(found, wanted, strict=True):  # other batches round otherwise
        assert answer["probability"] == pytest.approx(other["probability"], abs=1e-6)
    assert list(model.stream([])) == []


def test_by_itself_a_stream_holds_two_windows_and_tokenizes_one_beside(made, monkeypatch):
    folder, _, examples = made["text"]
    monkeypatch.setattr("compress.export.runtime.answering.WINDOW", 3)
    monkeypatch.setattr("compress.export.runtime.answering.usable_cores", lambda: 2)
    model = Runtime(folder, threads=1)
    wanted = model.predict(examples).answers
    read, threads, encode = [], set(), model.encoder.encode

    def encoded(held):
        threads.add(threading.current_thread())
        return encode(held)

    monkeypatch.setattr(model.encoder, "encode", encoded)
    answers = model.stream(read.append(item) or item["text"] for item in examples)
    found = [next(answers)]
    assert len(read) == 6
    found += answers
    assert [answer["label"] for answer in found] == [answer["label"] for answer in wanted]
    assert [a["probability"] for a in found] == pytest.approx([a["probability"] for a in wanted], abs=1e-6)
    assert threading.main_thread() not in threads
    threads.clear()
    assert len(list(Runtime.stream(model, examples, chunk=5))) == len(examples)
    assert threads == {threading.main_thread()}


def test_texts_of_other_lengths_are_not_padded_to_the_longest(made, monkeypatch):
    model = Runtime(made["text"][0], threads=1)
    shapes, forward = [], model.forward_counted
    monkeypatch.setattr(
        model, "forward_counted", lambda inputs: shapes.append(inputs["input_ids"].shape) or forward(inputs)
    )
    short, long = ["good film"] * 40, ["good film and a sad book in rome " * 3] * 4
    features = model.encoder.encode([{"text": text} for text in (short[0], long[0])])
    few, many = (len(feature.ids) for feature in features)
    model.predict([*short[:20], *long, *short[20:]])
    assert shapes == [(4, many), (40, few)]
    shapes.clear()
    model.predict(short * 10, batch_size=50)
    assert shapes == [(50, few)] * 8


def test_a_bad_example_in_a_stream_is_numbered_and_earlier_answers_came(made):
    model = Runtime(made["text"][0])
    answers = model.stream([{"text": "good"}, {"text": "bad"}, {"txt": "x"}, {"text": 5}], chunk=2)
    assert len([next(answers), next(answers)]) == 2
    with pytest.raises(ExportError) as caught:
        next(answers)
    assert str(caught.value).splitlines() == [
        "example 3: lacks text; its fields are txt",
        "example 4: text must be a text, got int",
    ]


def test_threads_and_names(made, monkeypatch):
    folder, _, examples = made["text"]
    models = [Runtime(folder), Runtime(folder, threads=2, name="mine", spinning=False)]
    assert [model.name for model in models] == ["text", "mine"]
    assert models[1].session.get_session_options().intra_op_num_threads == 2
    one, two = (np.stack(model.predict(examples).logits) for model in models)
    np.testing.assert_allclose(one, two, atol=1e-6)
    np.testing.assert_array_equal(one, np.stack(models[0].predict(examples).logits))
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert default_threads() == 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert default_threads() >= 0


# ---- examples and lines


@pytest.mark.parametrize(
    ("item", "kind", "pair", "expected"),
    [
        ("good film", "classification", False, {"text": "good film"}),
        ("", "regression", False, {"text": ""}),
        ("a\tb", "classification", False, {"text": "a\tb"}),
        ('{"text": "x", "id": 3}', "classification", False, {"text": "x", "id": 3}),
        ('{"txt": "x"}', "classification", False, {"text": '{"txt": "x"}'}),
        ("{not json", "classification", False, {"text": "{not json"}),
        ("a\tb", "regression", True, {"text_a": "a", "text_b": "b"}),
        ('{"text_a": "a\\tb", "text_b": ""}', "classification", True, {"text_a": "a\tb", "text_b": ""}),
        ("ann lives  in rome", "tagging", False, {"tokens": ["ann", "lives", "in", "rome"]}),
        ('{"tokens": ["a b", "c"]}', "tagging", False, {"tokens": ["a b", "c"]}),
        ("", "tagging", False, {"tokens": []}),
        ("who?\tann", "qa", False, {"question": "who?", "context": "ann"}),
        ({"question": "q", "context": "c", "id": "7"}, "qa", False, {"question": "q", "context": "c", "id": "7"}),
        ({"text": "half \ud83d a pair"}, "classification", False, {"text": "half ? a pair"}),
    ],
)
def test_lines_become_examples(item, kind, pair, expected):
    assert example(item, kind, pair) == expected


@pytest.mark.parametrize(
    ("item", "kind", "pair", "message"),
    [
        ("no tab", "classification", True, "expected text_a, one tab, text_b"),
        ("a\tb\tc", "qa", False, "expected question, one tab, context"),
        ('{"question": "q"}', "qa", False, "lacks context; its fields are question"),
        ({}, "classification", True, "lacks text_a and text_b; its fields are none"),
        ({"tokens": "ann lives"}, "tagging", False, "tokens must be a list of texts, got str"),
        ({"tokens": ["ann", None]}, "tagging", False, "each of tokens must be a text, got NoneType"),
        (5, "classification", False, "expected a text or an object with text, got int"),
    ],
)
def test_other_things_are_refused(item, kind, pair, message):
    with pytest.raises(ExportError, match=message):
        example(item, kind, pair)


@pytest.mark.parametrize("name", ["text", "pair", "tagging", "qa"])
def test_empty_and_odd_lines_have_answers(made, name):
    model = Runtime(made[name][0])
    texts = ["", "\x00\x07", "\N{GRINNING FACE}", "שלום", "word " * 200]
    if name in ("pair", "qa"):
        texts = [f"{text}\t{other}" for text in texts for other in texts]
    answers = model.predict(texts).answers
    assert len(answers) == len(texts)
    for answer in answers:
        assert all(np.isfinite(value) for value in answer.values() if isinstance(value, float))
    if name == "tagging":
        assert [len(answer["tags"]) for answer in answers] == [0, 1, 1, 1, 200]


@pytest.mark.parametrize("single", ["a text", {"text": "a text"}, pandas.DataFrame({"text": ["a text"]})])
def test_a_single_text_or_a_table_is_not_answered_by_its_parts(made, single):
    model = Runtime(made["text"][0])
    for ask in (model.predict, lambda items: list(model.stream(items))):
        with pytest.raises(ExportError, match=f"expected several texts or examples, got {type(single).__name__}; give"):
            ask(single)


def test_lines_end_with_a_newline_alone(tmp_path):
    raw = "\ufeffone\r\ntwo\x85\u2028still two\n\nfour".encode()
    (tmp_path / "lines").write_bytes(raw)
    with (tmp_path / "lines").open("rb") as stream:
        assert list(read_lines(stream)) == ["one", "two\x85\u2028still two", "", "four"]
    (tmp_path / "lines").write_bytes(b"fine\n\xff\n")
    with (tmp_path / "lines").open("rb") as stream, pytest.raises(ExportError, match=r"line 2: not UTF-8 .*0xff"):
        list(read_lines(stream))


def test_main_writes_json_lines(made, tmp_path, capsysbinary):
    folder, _, examples = made["text"]
    (tmp_path / "lines").write_text("\n".join(item["text"] for item in examples))
    assert main(folder, ["--file", str(tmp_path / "lines"), "--threads", "1"]) == 0
    printed = capsysbinary.readouterr().out.decode().splitlines()
    assert [json.loads(line)["label"] for line in printed] == [
        answer["label"] for answer in Runtime(folder).predict(examples).answers
    ]
    (tmp_path / "lines.jsonl").write_text('{"text": "x"}\n[1]\n{"txt": 1}\n')
    assert main(folder, ["--file", str(tmp_path / "lines.jsonl")]) == 2
    told = capsysbinary.readouterr().err.decode()
    assert f"{tmp_path}/lines.jsonl:2: must be a JSON object {{...}}, not [1]\n{tmp_path}/lines.jsonl:3: lacks" in told
    (tmp_path / "lines.jsonl").write_text("")
    assert main(folder, ["--file", str(tmp_path / "lines.jsonl")]) == 2
    assert "lines.jsonl: is empty" in capsysbinary.readouterr().err.decode()
    assert main(tmp_path, ["x"]) == 2
    assert "no export.json here" in capsysbinary.readouterr().err.decode()
    with pytest.raises(SystemExit) as caught:
        main(folder, ["x", "--batch-size", "0"])
    assert caught.value.code == 2


# ---- damaged folders


def edit(folder, **changes):
    file = folder / "export.json"
    file.write_text(json.dumps(with_digest(json.loads(file.read_text()) | changes)))


def test_every_damage_is_told_at_once(folder):
    (folder / "tokenizer.json").unlink()
    model = folder / "model.onnx"
    whole = model.read_bytes()
    model.write_bytes(whole[:1000])
    settings = (folder / "encoder.json").read_text()
    (folder / "encoder.json").write_text(settings.replace("classification", "class"))
    with pytest.raises(ExportError) as caught:
        Runtime(folder)
    message = str(caught.value)
    assert f"model.onnx has 1000 bytes instead of {len(whole)}" in message
    assert "tokenizer.json is missing" in message
    assert "encoder.json has" in message
    assert message.count("\n") == 0
    (folder / "encoder.json").write_text(settings.replace("classification", "klassification"))
    with pytest.raises(ExportError, match=r"encoder\.json was changed"):
        Runtime(folder)


@pytest.mark.parametrize("name", ["../model.onnx", "/etc/passwd", "..", "a\\b", "sub/model.onnx", ""])
def test_paths_that_climb_out_are_refused(folder, name):
    files = json.loads((folder / "export.json").read_text())["files"]
    edit(folder, files=files | {name: {"bytes": 1, "sha256": "0"}})
    with pytest.raises(ExportError, match="is no plain file name"):
        Runtime(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "format 2; this reader knows format 1"),
        ({"format": None}, "format None"),
        ({"files": {}}, "does not list model.onnx; does not list tokenizer.json; does not list encoder.json"),
        ({"files": []}, "files missing or of another type"),
        ({"name": 3, "task": None}, "name and task missing or of another type"),
        ({"files": {"model.onnx": 5}}, "model.onnx has no size and digest"),
    ],
)
def test_other_manifests_are_refused(folder, changes, message):
    edit(folder, **changes)
    with pytest.raises(ExportError, match=message):
        Runtime(folder)


def test_what_is_no_export_is_refused(folder, tmp_path):
    with pytest.raises(ExportError, match="nowhere: there is no such folder"):
        Runtime(tmp_path / "nowhere")
    for text, message in (("{", "not JSON"), ("[1]", "not the manifest"), ("{}", "not the manifest")):
        (folder / "export.json").write_text(text)
        with pytest.raises(ExportError, match=message):
            Runtime(folder)


def test_a_model_that_does_not_load_is_told_in_one_line(folder):
    from compress.export.runtime.manifest import sha256

    (folder / "model.onnx").write_bytes(b"\x08\x07garbage")
    (folder / "tokenizer.json").write_text("{}")
    files = {
        name: {"bytes": (folder / name).stat().st_size, "sha256": sha256(folder / name)}
        for name in ("model.onnx", "tokenizer.json", "encoder.json")
    }
    edit(folder, files=files)
    with pytest.raises(ExportError, match=r"the tokenizer cannot be read \(.+\)$"):
        Runtime(folder)


def test_onnx_runtime_errors_become_one_line(made, tmp_path):
    from compress.export.runtime.manifest import sha256

    folder = Path(shutil.copytree(made["text"][0], tmp_path / "export"))
    (folder / "model.onnx").write_bytes(b"\x08\x07garbage")
    files = json.loads((folder / "export.json").read_text())["files"]
    edit(folder, files=files | {"model.onnx": {"bytes": 9, "sha256": sha256(folder / "model.onnx")}})
    with pytest.raises(ExportError, match=r"model.onnx: ONNX Runtime cannot load it \(.+\)$"):
        Runtime(folder)
