"""Base models out of packages: parts joined, digests compared, nothing half made; and MPNet-base, where it is."""

import hashlib
import io
import json
import shutil
import zipfile

import numpy as np
import pytest
import torch
import transformers

from benchmarks import bases
from compress import Artifact, Student
from compress.export import export_onnx
from compress.export.runtime import Runtime
from eval.inference import predict
from teachers.anatomy.encoder import layers
from teachers.taskmodel import load_taskmodel
from tests.tiny import tiny_spec, tiny_task

MPNET = bases.found("mpnet-base")
FILES = {"model/config.json": b"{}", "model/1_Pooling/config.json": b"[]", "model/desktop.ini": b"", "other": b"x"}


def zipped(files):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()


def wheel(folder, number, content):
    """Write a package with one part, which pip takes; return its digest."""
    name = f"tiny_base_part_{number:03d}"
    told = f"{name}-1.0.dist-info"
    files = {
        f"{name}/input/tiny.zip.{number:03d}": content,
        f"{told}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{told}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{told}/RECORD": "",
    }
    data = zipped(files)
    (folder / f"{name}-1.0-py3-none-any.whl").write_bytes(data)
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def index(tmp_path, monkeypatch):
    """Have pip look into a folder alone, in which two packages hold the halves of a zip file."""
    folder = tmp_path / "index"
    folder.mkdir()
    whole = zipped(FILES)
    digests = tuple(wheel(folder, number, part) for number, part in enumerate((whole[:100], whole[100:]), 1))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    tiny = bases.Base("tiny-base-part-{:03d}==1.0", digests, inside="/input/tiny.zip", folder="model/")
    monkeypatch.setitem(bases.BASES, "tiny", tiny)
    return folder


def test_parts_that_an_interrupted_call_has_downloaded_are_joined(index, tmp_path):
    shutil.move(index, tmp_path / "out" / ".tiny-wheels")
    folder = bases.make("tiny", tmp_path / "out")
    made = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert made == {"config.json": b"{}", "1_Pooling/config.json": b"[]"}
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["tiny"]
    assert bases.make("tiny", tmp_path / "out") == folder  # and nothing is downloaded again


@pytest.mark.slow
def test_a_package_with_another_digest_is_refused_and_the_others_stay(index, tmp_path):
    second = index / "tiny_base_part_002-1.0-py3-none-any.whl"
    right = second.read_bytes()
    second.write_bytes(right + b" ")
    with pytest.raises(SystemExit, match=r"tiny-base-part-002==1.0 cannot be had:[\s\S]*DO NOT MATCH THE HASHES"):
        bases.make("tiny", tmp_path / "out")
    assert not (tmp_path / "out" / "tiny").exists()
    second.write_bytes(right)
    (index / "tiny_base_part_001-1.0-py3-none-any.whl").unlink()
    assert (bases.make("tiny", tmp_path / "out") / "config.json").read_bytes() == b"{}"


@pytest.fixture(scope="module")
def mpnet():
    if MPNET is None:
        pytest.skip("python -m benchmarks.bases makes MPNet-base, or COMPRESS_BASE_MPNET names its folder")
    return load_taskmodel(MPNET, tiny_spec().model_copy(update={"max_length": 512}))


@pytest.mark.slow
class TestRealMPNet:
    def test_it_has_the_hidden_states_of_transformers(self, mpnet):
        own = transformers.MPNetModel.from_pretrained(MPNET).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(MPNET)
        texts = ["a warm and funny film", "bad " * 200]
        inputs = tokenizer(texts, padding=True, return_tensors="pt")
        arrays = mpnet.encoder.collate(mpnet.encoder.encode([{"text": text, "label": "good"} for text in texts]))
        assert np.array_equal(arrays["input_ids"], inputs["input_ids"].numpy())
        with torch.no_grad():
            expected = own(**inputs, output_hidden_states=True).hidden_states
            found = mpnet.model(**inputs, output_hidden_states=True).hidden_states
        assert len(found) == len(expected) == 13
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))

    def test_half_of_its_layers_and_their_export_agree_with_torch(self, mpnet, tmp_path):
        kept = (0, 2, 4, 6, 8, 11)
        student = Student(layers=kept).build(Artifact.from_model(mpnet))
        given = layers(mpnet.model)
        for own, place in zip(layers(student.model), kept, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(own.parameters(), given[place].parameters(), strict=True))
        with torch.no_grad():
            student.model.classifier.out_proj.weight.mul_(20)  # a new head gives logits near 0
        examples = [*tiny_task().validation[:6], {"text": "a cold and boring show " * 80, "label": "bad"}]
        report = export_onnx(student, tmp_path / "onnx", int8=False, examples=examples)
        assert report.gate.agreement == 1.0
        manifest = json.loads((tmp_path / "onnx" / "export.json").read_text(encoding="utf-8"))
        parts = ("attention.attn.q", "attention.attn.o", "intermediate.dense", "output.dense")
        assert manifest["one_token"] == [f"mpnet.encoder.layer.5.{part}/MatMul" for part in parts]
        own, exported = (np.stack(predict(model, examples).logits) for model in (student, Runtime(tmp_path / "onnx")))
        assert np.abs(own - exported).max() < 1e-4
