"""The folder for the browser and Node.js: its layout, what transformers.js reads in it, and what is refused."""

import json
import re
import shutil
from pathlib import Path

import onnxruntime
import pytest
from tokenizers import Tokenizer

from compress.cli import main
from compress.export import export_web
from compress.export.runtime.answering import ExportError, Runtime
from compress.export.runtime.manifest import sha256
from compress.export.targets.target_registry import BUILT_IN, get_target
from compress.export.targets.web import ASSETS, FETCH, PACKAGES, missing_assets
from compress.export.targets.web_readme import pipeline_of
from eval.errors import UserError
from eval.task import TaskSpec
from teachers.taskmodel import save_taskmodel
from tests.tiny import tiny_spec, tiny_task, tiny_taskmodel

PAGE = {"index.html", "page.js", "model.js", "package.json"}
MODEL = {"config.json", "tokenizer.json", "tokenizer_config.json"}
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def bert():
    return tiny_taskmodel("bert")


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """A ``node_modules`` folder with small files in the place of the real ones."""
    folder = tmp_path_factory.mktemp("packages") / "node_modules"
    for package, file in ASSETS.values():
        (folder / package / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / package / file).write_text(f"{package}/{file}")
        (folder / package / "package.json").write_text(json.dumps({"name": package, "version": "1.2.3"}))
    return folder


@pytest.fixture(scope="module")
def web(bert, modules):
    """An export with its packages."""
    export_web(bert, modules.parent / "web", examples=tiny_task().validation, assets=modules)
    return modules.parent / "web"


def content(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def read(folder, name):
    return json.loads((folder / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("int8", "file", "dtype"), [(False, "onnx/model.onnx", "fp32"), (True, "onnx/model_quantized.onnx", "q8")]
)
def test_the_layout_is_that_of_transformers_js(int8, file, dtype, bert, modules, tmp_path):
    report = export_web(bert, tmp_path / "web", int8=int8, name="tiny", assets=modules)
    lib = {f"lib/{name}" for name in ASSETS}
    assert content(tmp_path / "web") == {file, *PAGE, *MODEL, *lib, "conformance.json", "export.json", "README.md"}
    assert (report.folder, report.notes) == (tmp_path / "web", ())
    assert report.bytes == (tmp_path / "web" / file).stat().st_size
    config = read(tmp_path / "web", "config.json")
    assert config["transformers.js_config"] == {"dtype": dtype}
    assert (config["model_type"], config["architectures"]) == ("bert", ["BertForSequenceClassification"])
    assert config["id2label"] == {"0": "bad", "1": "good"}
    session = onnxruntime.InferenceSession(str(tmp_path / "web" / file))
    assert [value.name for value in session.get_inputs()] == ["input_ids", "attention_mask", "token_type_ids"]


def test_the_manifest_has_all_that_the_page_needs(bert, web):
    manifest = read(web, "export.json")
    assert (manifest["target"], manifest["model"], manifest["scheme"]) == ("web", "onnx/model.onnx", "fp32")
    assert manifest["encoder"] == json.loads(json.dumps(bert.encoder.settings.to_dict()))
    assert manifest["packages"] == dict.fromkeys(PACKAGES, "1.2.3")
    assert manifest["gate"]["passed"] is True
    assert manifest["gate"]["examples"] == 40
    assert set(manifest["files"]) == content(web) - {"export.json", "README.md"}
    for name, known in manifest["files"].items():
        assert known["sha256"] == sha256(web / name)


@pytest.mark.parametrize("family", ["bert", "roberta", "xlnet"])
def test_the_tokenizer_is_the_one_in_use(family, tmp_path):
    model = tiny_taskmodel(family, tiny_spec("tagging"))
    export_web(model, tmp_path / "web")
    saved = Tokenizer.from_file(str(tmp_path / "web" / "tokenizer.json"))
    words = ["ann", "lives", "in", "rome"]
    expected = model.encoder.encode([{"tokens": words}])[0].ids
    assert saved.encode(words, is_pretokenized=True).ids == saved.encode(" ".join(words)).ids == expected
    settings = read(tmp_path / "web", "tokenizer_config.json")
    assert settings["model_max_length"] == 32
    assert settings["padding_side"] == ("left" if family == "xlnet" else "right")
    assert (settings["pad_token"], settings["cls_token"]) == (model.tokenizer.pad_token, model.tokenizer.cls_token)


def test_the_page_names_no_other_host(web):
    for name in PAGE:
        assert "//" not in re.sub(r"^\s*//.*$", "", (web / name).read_text(encoding="utf-8"), flags=re.M)
    page = (web / "index.html").read_text(encoding="utf-8")
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy"\s+content="([^"]+)"', page)
    assert policy.split("; ")[0] == "default-src 'self'"
    assert not {word for word in policy.split() if word.endswith(":")} - {"data:", "blob:"}
    assert "http.server" in (web / "README.md").read_text(encoding="utf-8")


def test_without_the_packages_all_the_rest_is_written(bert, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = export_web(bert, tmp_path / "web")
    assert report.notes == (f"the page still lacks lib/: run {FETCH}, then export again from the same place",)
    assert content(tmp_path / "web") == {
        "onnx/model.onnx",
        *PAGE,
        *MODEL,
        "conformance.json",
        "export.json",
        "README.md",
    }
    assert read(tmp_path / "web", "export.json")["packages"] is None
    assert FETCH in (tmp_path / "web" / "README.md").read_text(encoding="utf-8")


def test_packages_in_the_current_folder_are_found(bert, modules, tmp_path, monkeypatch):
    monkeypatch.chdir(modules.parent)
    assert missing_assets(Path("node_modules")) == []
    assert export_web(bert, tmp_path / "web").notes == ()
    assert (tmp_path / "web/lib/tokenizers.js").read_text() == "@huggingface/tokenizers/dist/tokenizers.min.mjs"


def test_what_is_not_for_the_browser_is_refused_by_name(tmp_path):
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError) as caught:
        export_web(tiny_taskmodel("bert", tiny_spec("qa")), tmp_path / "web", assets=tmp_path)
    kind, (place, assets) = caught.value.problems[1], caught.value.problems[::2]
    assert kind == (
        "model: qa is not for the browser: the tokenizer that runs there does not tell where in the text a token "
        "stands; export it to onnx"
    )
    assert place.endswith("is there already and no export; choose another folder or remove it")
    assert assets.startswith(f"{tmp_path}: lacks @huggingface/tokenizers/dist/tokenizers.min.mjs, ")
    assert assets.endswith(FETCH)
    assert content(tmp_path / "web") == {"thesis.txt"}


def test_the_python_runtime_says_whose_folder_it_is(web):
    with pytest.raises(
        ExportError, match=r"an export for 'web', which this cannot run; README\.md there says what can"
    ):
        Runtime(web)


@pytest.mark.parametrize("name", ["onnx/model.onnx", "page.js", "lib/tokenizers.js"])
def test_what_is_damaged_is_told_before_that_it_cannot_run_here(name, web, tmp_path, capsys):
    folder = Path(shutil.copytree(web, tmp_path / "web"))
    assert main(["verify", str(folder)]) == 2
    assert capsys.readouterr().err == (
        f"{folder}: an export for 'web', which this cannot run; README.md there says what can\n"
    )
    (folder / name).write_bytes(b"x")
    assert main(["verify", str(folder)]) == 2
    assert re.match(
        rf"{folder}: damaged export for 'web': {name} has 1 bytes instead of \d+; copy or", capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("family", "kind", "pair", "pipeline"),
    [
        ("bert", "classification", False, "text-classification"),
        ("albert", "tagging", False, None),
        ("roberta", "tagging", False, "token-classification"),
        ("xlnet", "classification", False, None),
        ("bert", "classification", True, None),
        ("bert", "embedding", False, None),
    ],
)
def test_which_pipelines_know_the_folder(family, kind, pair, pipeline):
    assert pipeline_of(family, kind, pair) == pipeline


def test_the_readme_names_the_way_that_works(tmp_path):
    export_web(tiny_taskmodel("xlnet", tiny_spec(pair=True)), tmp_path / "web")
    text = (tmp_path / "web" / "README.md").read_text(encoding="utf-8")
    assert 'model.answer({ text_a: "a text", text_b: "another" })' in text
    assert "have no place for xlnet with pairs; use `model.js`" in text
    spec = TaskSpec(kind="embedding", metric="nearest", max_length=32, query_prompt="query: ")
    export_web(tiny_taskmodel("bert", spec), tmp_path / "search")
    text = (tmp_path / "search" / "README.md").read_text(encoding="utf-8")
    assert 'model.answer({ text: "a text", prompt_name: "query" })' in text


def test_every_target_is_called_as_it_is_listed():
    assert [get_target(name).name for name in BUILT_IN] == list(BUILT_IN)
    assert all("{out}" in get_target(name).try_it and get_target(name).summary for name in BUILT_IN)


def test_the_tests_in_node_use_the_versions_that_users_are_told():
    tested = read(ROOT / "tests" / "javascript", "package.json")["dependencies"]
    assert tested.items() >= PACKAGES.items()
    assert FETCH in (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")


class TestCommand:
    def test_it_writes_the_folder_and_says_how_to_see_it(self, bert, modules, tmp_path, capsys):
        (tmp_path / "model").mkdir()
        save_taskmodel(bert, tmp_path / "model")
        out = tmp_path / "web"
        assert main(["export", str(tmp_path / "model"), "--to=web", f"--out={out}", f"--assets={modules}"]) == 0
        said, told = capsys.readouterr()
        assert said.startswith(f"wrote {out}: fp32, ")
        assert told.endswith(f"next: python -m http.server --bind 127.0.0.1 --directory {out} 8000\n")
        assert (out / "lib" / "onnxruntime-web.js").is_file()

    def test_assets_belong_to_the_web(self, tmp_path, capsys):
        assert main(["export", str(tmp_path), "--to=onnx", f"--out={tmp_path}", f"--assets={tmp_path}"]) == 2
        assert capsys.readouterr().err == "--assets: --to onnx needs none; it belongs to --to web\n"
