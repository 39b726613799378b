"""Publishing: what a card says to the hub, what may be uploaded, and what a hub gets (a stand-in for it, over HTTP)."""

import base64
import json
import logging
import re
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import ModelCard, constants

from compress import Artifact, load, push_to_hub
from compress.cli import main
from compress.export import export_onnx
from eval.errors import CompressError, UserError
from eval.report.hub_header import inherited
from eval.report.hub_upload import card_problems
from tests.tiny import tiny_taskmodel

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"


class Hub(BaseHTTPRequestHandler):
    """Answers as much of the hub's interface as an upload of small files needs, and keeps what it is sent."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.token = self.headers["authorization"]
        if self.server.status != 200:
            self._answer({"error": "not yours"}, self.server.status)
        elif self.path == "/api/repos/create":
            self.server.created = json.loads(body)
            self._answer({"url": f"{self.server.address}/someone/{self.server.created['name']}"})
        elif "/branch/" in self.path:
            self.server.branches.append(self.path.rpartition("/")[2])
            self._answer({})
        elif self.path == "/api/validate-yaml":  # the library asks for it before it sends a card
            wrong = [{"message": "no such licence"}] if "license: none-such" in json.loads(body)["content"] else []
            self._answer({"errors": wrong, "warnings": []}, 400 if wrong else 200)
        elif "/preupload/" in self.path:
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            self._answer({"files": files})
        else:
            self.server.committed = self.path
            lines = [json.loads(line) for line in body.splitlines()]
            files = [line["value"] for line in lines if line["key"] == "file"]
            self.server.files = {file["path"]: base64.b64decode(file["content"]) for file in files}
            self._answer({"commitUrl": f"{self.server.address}/someone/small/commit/0", "commitOid": "0" * 40})

    def _answer(self, values, status=200):
        self.send_response(status)
        content = json.dumps(values).encode()
        self.send_header("content-length", str(len(content)))
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(monkeypatch):
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        server.address, server.status = f"http://127.0.0.1:{server.server_port}", 200
        server.created, server.files, server.branches = None, None, []
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def model():
    return Artifact.from_model(tiny_taskmodel("bert"), origin="someone/large")


@pytest.fixture
def folder(model, tmp_path):
    return model.save(tmp_path / "model")


def content(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_model_is_uploaded_whole_and_private(folder, hub, caplog):
    with caplog.at_level(logging.INFO):
        address = push_to_hub(folder, "someone/small")
    assert address == f"{hub.address}/someone/small"
    assert (hub.created["name"], hub.created["organization"], hub.created["visibility"]) == (
        "small",
        "someone",
        "private",
    )
    assert hub.token == "Bearer hf_secret"
    assert hub.committed == "/api/models/someone/small/commit/main"
    assert hub.files == content(folder)
    size = sum(map(len, hub.files.values())) / 1e6
    said = f"{folder}: {len(hub.files)} files, {size:.1f} MB, to someone/small (if it is new, private)"
    assert said in [record.getMessage() for record in caplog.records]


def test_branch_licence_and_a_public_repository(folder, hub, capfd):
    code = main(["push", str(folder), "someone/small", "--public", "--revision", "v1", "--license", "apache-2.0"])
    assert (code, capfd.readouterr().out) == (0, f"{hub.address}/someone/small/tree/v1\n")
    assert hub.created["visibility"] == "public"
    assert (hub.branches, hub.committed) == (["v1"], "/api/models/someone/small/commit/v1")
    card = ModelCard(hub.files["README.md"].decode()).data
    assert (card.license, card.base_model) == ("apache-2.0", "someone/large")
    load(folder)  # the licence is no part of what is checked


def test_an_export_is_uploaded_with_its_golden_vectors(model, hub, tmp_path):
    export_onnx(model, tmp_path / "onnx")
    push_to_hub(tmp_path / "onnx", "someone/small")
    assert hub.files == content(tmp_path / "onnx")
    assert "conformance.json" in hub.files


def test_an_artifact_is_uploaded_as_its_folder_is(folder, hub):
    (folder / "README.md").write_text("---\ntags: [measured]\n---\n# m\n", encoding="utf-8")
    found = load(folder)
    assert found.push_to_hub("someone/small") == f"{hub.address}/someone/small"
    assert hub.files == content(folder)
    replace(found, folder=None).push_to_hub("someone/small")
    assert hub.files["README.md"] != content(folder)["README.md"]


def test_what_the_page_says(model, hub, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    model.save("runs/sst2/model")
    export_onnx(model, "runs/sst2/onnx-int8")
    text = PAGE.read_text(encoding="utf-8").partition("## The Hugging Face hub\n")[2].partition("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    exec(code, {})
    for line in re.findall(r"^    compress (push .*)$", text, flags=re.MULTILINE):
        assert main(line.split()) == 0
    names = ["sst2-small", "sst2-small-onnx"] * 2
    assert capfd.readouterr().out.splitlines() == [f"{hub.address}/someone/{name}" for name in names]


def test_nothing_is_sent_of_what_is_damaged(folder, hub):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\1\0")
    with pytest.raises(UserError, match=r"the weights are not those that lineage\.json records"):
        push_to_hub(folder, "someone/small")
    assert hub.created is None


def test_nothing_is_sent_of_a_damaged_export(model, hub, tmp_path):
    out = tmp_path / "onnx"
    export_onnx(model, out)
    (out / "predict.py").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match=r"damaged export: predict\.py has 0 bytes instead of"):
        push_to_hub(out, "someone/small")
    (out / "conformance.json").unlink()
    with pytest.raises(UserError, match=r"damaged export: conformance\.json is missing"):
        push_to_hub(out, "someone/small")
    assert hub.created is None


def test_the_folder_of_a_run_says_what_is_in_it(folder, hub, tmp_path):
    with pytest.raises(UserError) as error:
        push_to_hub(tmp_path, "someone/small")
    assert error.value.problems == (f"{tmp_path}: is the folder of a run; push one of model in it",)


def test_every_reason_is_said_at_once(folder, monkeypatch, capfd):
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with (folder / "README.md").open("a", encoding="utf-8") as card:
        card.write(f"Trained in {folder}.\n")
    place = f"{folder / 'README.md'}:{len((folder / 'README.md').read_text(encoding='utf-8').splitlines())}"
    assert main(["push", str(folder), "small", "--license", "a b"]) == 2
    assert capfd.readouterr().err.splitlines() == [
        f"{place}: names {folder}, a path of a machine; take it out before everybody can read it",
        "small: is no name of a repository such as user/name (it has no user or organisation)",
        "--license: got 'a b', must be an identifier such as apache-2.0 or mit",
        "the hub is switched off by HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE, or had no address here before; "
        "unset them, or connect and start again, to upload",
        "there is no token for the hub; run: hf auth login, or set HF_TOKEN",
        "5 errors",
    ]


@pytest.mark.parametrize("name", ["a/b/c", "some one/x", "x", "a/..b", "../x", "someone/" + "x" * 200])
def test_a_name_that_is_none(name, folder, hub):
    with pytest.raises(UserError, match="is no name of a repository such as user/name"):
        push_to_hub(folder, name)
    assert hub.created is None


@pytest.mark.parametrize(
    ("status", "kind", "said"), [(403, UserError, "write access"), (400, CompressError, "answered 400")]
)
def test_what_the_hub_refuses(status, kind, said, folder, hub):
    hub.status = status
    with pytest.raises(kind, match=rf"someone/small: the hub answered {status}: .*not yours") as error:
        push_to_hub(folder, "someone/small")
    assert type(error.value) is kind
    assert said in str(error.value)


def test_a_card_that_the_hub_refuses(folder, hub):
    with pytest.raises(UserError, match=r"cannot be uploaded: Invalid metadata in README\.md\. - no such licence"):
        push_to_hub(folder, "someone/small", license="none-such")
    assert hub.files is None


def test_a_hub_that_cannot_be_reached(folder, hub, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(CompressError, match=r"^http://127\.0\.0\.1:9 cannot be reached \(.*\); try again later$"):
        push_to_hub(folder, "someone/small")


PATHS = {
    "/home/me/data": True,
    "C:\\Users\\me": True,
    "/usr/bin": True,
    "https://huggingface.co/usr/bin": False,
    "runs/usr/bin": False,
    "/models/sst2": False,
    "and/or": False,
}


@pytest.mark.parametrize("path", PATHS)
def test_paths_of_machines_in_a_card(path, tmp_path):
    (tmp_path / "README.md").write_text(f"# m\n\nIt read `{path}` (and more).\n", encoding="utf-8")
    found = card_problems(tmp_path)
    assert [problem.split(": ", 1)[0] for problem in found] == [f"{tmp_path / 'README.md'}:3"] * PATHS[path]


CARDS = {
    "licence and language": (
        "license: apache-2.0\nlanguage: [de, en]",
        {"license": "apache-2.0", "language": ["de", "en"]},
    ),
    "other fields": ("tags: [a]\nbase_model: x/y", {}),
    "no words": ("license: {a: b}\nlanguage: ['<b>', en]", {}),
    "no header": (None, {}),
    "no YAML": ("license: [", {}),
    "a list": ("- a", {}),
}


@pytest.mark.parametrize("card", CARDS)
def test_licence_and_language_come_from_the_card_of_the_model_before(card, tmp_path):
    front, expected = CARDS[card]
    text = "# m\n" if front is None else f"---\n{front}\n---\n# m\n"
    (tmp_path / "README.md").write_text(text, encoding="utf-8")
    assert inherited(tmp_path) == expected


def test_what_a_card_says_goes_on_to_the_next(tmp_path):
    model = tiny_taskmodel("bert")
    for part in (model.model, model.tokenizer):
        part.save_pretrained(tmp_path / "first")
    (tmp_path / "first" / "README.md").write_text("---\nlicense: mit\nlanguage: de\n---\n", encoding="utf-8")
    found = replace(Artifact.from_pretrained(tmp_path / "first"), name="second")
    assert found.lineage[0].config == {"origin": "first"}
    found.save(tmp_path / "second")
    export_onnx(found, tmp_path / "onnx")
    for name, library in (("second", "transformers"), ("onnx", "onnx")):
        card = ModelCard.load(tmp_path / name / "README.md").data
        said = (card.license, card.language, card.base_model, card.library_name, card.pipeline_tag)
        assert said == ("mit", "de", None, library, "text-classification")


@pytest.mark.parametrize(
    ("origin", "base"), [("someone/bert-sst2", "someone/bert-sst2"), ("bert", None), ("/a/b", None)]
)
def test_the_base_model_is_a_name_on_the_hub_or_nothing(origin, base, tmp_path):
    Artifact.from_model(tiny_taskmodel("bert"), origin).save(tmp_path / "m")
    assert ModelCard.load(tmp_path / "m" / "README.md").data.base_model == base
