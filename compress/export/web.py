"""A model as a folder for the browser and Node.js: what transformers.js loads, and a page that needs no other host."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from compress.export.conformance import FILE as CONFORMANCE
from compress.export.folder import AGREEMENT, ExportReport, occupied, write_json, write_manifest
from compress.export.int8 import Int8
from compress.export.onnx import export_onnx
from compress.export.runtime import MANIFEST, sha256
from compress.export.web_readme import web_readme
from eval.errors import UserError
from eval.files.json_text import read_json
from eval.files.typed_json import read_typed
from eval.files.writing import whole_folder
from eval.kinds.base import Kind
from eval.kinds.registry import kind_of
from teachers.taskmodel import TaskModel

PAGE = ("index.html", "page.js", "model.js")
"""Files of the page, beside this one in ``page``."""
PACKAGES = {"onnxruntime-web": "1.30.0", "@huggingface/tokenizers": "0.2.0"}
"""npm packages that the page needs, in the versions it is tested with."""
FETCH = "npm install --no-save " + " ".join(f"{name}@{version}" for name, version in PACKAGES.items())
"""The command that fetches them into ``node_modules``."""
ASSETS = {
    "onnxruntime-web.js": ("onnxruntime-web", "dist/ort.wasm.bundle.min.mjs"),
    "ort-wasm-simd-threaded.wasm": ("onnxruntime-web", "dist/ort-wasm-simd-threaded.wasm"),
    "tokenizers.js": ("@huggingface/tokenizers", "dist/tokenizers.min.mjs"),
}
"""Files of ``lib``: the package and the file in it that each is a copy of."""
MODELS = {"fp32": "onnx/model.onnx", "int8": "onnx/model_quantized.onnx"}
"""Names under which transformers.js looks for a model of each kind of numbers, ..."""
DTYPES = {"fp32": "fp32", "int8": "q8"}
"""... and what it calls these kinds."""


class Package(BaseModel):
    """What of a ``package.json`` is read."""

    name: str
    version: str


def export_web(
    model: TaskModel,
    folder: str | Path,
    *,
    int8: bool | Int8 | None = None,
    examples: Sequence[Mapping[str, Any]] = (),
    name: str | None = None,
    agreement: float = AGREEMENT,
    assets: str | Path | None = None,
    made_from: str | None = None,
) -> ExportReport:
    """Write a folder that transformers.js loads, with a page that answers typed text and asks no other host.

    The model is exported to ONNX and compared with the torch model first, as ``export_onnx`` does; until the folder is
    whole, what stood there is untouched.

    Args:
        model: A model with its tokenizer and task, or an artifact.
        folder: A new or empty folder, or an earlier export.
        int8: As in ``export_onnx``.
        examples: Real inputs for the gate.
        name: What the page calls the model; by default the model's name.
        agreement: As in ``export_onnx``.
        assets: A ``node_modules`` folder with the packages in ``PACKAGES``; by default the one in the current folder.
            Without any, all but ``lib`` is written, and the README says how to add it.
        made_from: As ``write_export`` takes it.

    Raises:
        UserError: If the kind of task is not for this format, the folder holds something else, or ``assets`` lacks a
            file.
        CompressError: If the model cannot be exported, or the export does not answer as the model does.
    """
    folder = Path(folder)
    _check(model, folder, assets)
    modules = Path("node_modules") if assets is None else Path(assets)
    with tempfile.TemporaryDirectory() as temporary:
        exported = Path(temporary) / "export"
        report = export_onnx(
            model, exported, int8=int8, examples=examples, name=name or model.name, agreement=agreement
        )
        with whole_folder(folder, "the export") as beside:
            manifest = read_json(exported / MANIFEST)
            _write_model(model, exported, beside, report.scheme)
            missing = missing_assets(modules)
            versions = None if missing else _write_assets(modules, beside / "lib")
            _write_page(beside)
            manifest |= {
                "target": "web",
                "model": MODELS[report.scheme],
                "encoder": model.encoder.settings.to_dict(),
                "packages": versions,
                "source": manifest["source"] | {"made_from": made_from},
                "files": _listed(beside),
                "beside": {},
            }
            write_manifest(beside, manifest)
            (beside / "README.md").write_text(
                web_readme(manifest, model.model.config.model_type, FETCH), encoding="utf-8"
            )
    notes = (f"the page still lacks lib/: run {FETCH}, then export again from the same place",) if missing else ()
    return replace(report, folder=folder, notes=notes)


def missing_assets(modules: Path) -> list[str]:
    """Return the files that the page needs and a ``node_modules`` folder lacks, relative to it."""
    wanted = {f"{package}/{part}" for package, file in ASSETS.values() for part in (file, "package.json")}
    return sorted(file for file in wanted if not (modules / file).is_file())


def _check(model: TaskModel, folder: Path, assets: str | Path | None) -> None:
    problems = [*occupied(folder), *refused(model)]
    if assets is not None and (missing := missing_assets(Path(assets))):
        problems.append(f"{assets}: lacks {', '.join(missing)}; name a node_modules folder filled by: {FETCH}")
    if problems:
        raise UserError(*problems)


def refused(model: TaskModel) -> list[str]:
    """Return why a model is not for the browser; nothing if it is."""
    kind = kind_of(model.task.kind)
    why = vars(type(kind)).get("no_page", Kind.no_page)  # not inherited: the page knows kinds by their names
    return [f"{model.name}: {kind.name} is not for the browser: {why}; export it to onnx"] if why else []


def _write_model(model: TaskModel, exported: Path, beside: Path, scheme: str) -> None:
    """Write the network, the tokenizer and their two configurations where transformers.js looks for them."""
    (beside / "onnx").mkdir()
    shutil.move(exported / "model.onnx", beside / MODELS[scheme])
    shutil.move(exported / CONFORMANCE, beside / CONFORMANCE)
    config = read_json(exported / "config.json")
    config.setdefault("architectures", [type(model.model).__name__])
    write_json(beside / "config.json", config | {"transformers.js_config": {"dtype": DTYPES[scheme]}})
    # As it is used, not as it was given: in running text, too, a tagger's words then begin as they did in training.
    encoder, tokenizer = model.encoder, model.tokenizer
    (beside / "tokenizer.json").write_text(encoder.tokenizer.to_str(), encoding="utf-8")
    settings = {
        "tokenizer_class": type(tokenizer).__name__,
        "model_max_length": encoder.settings.max_length,
        "padding_side": encoder.settings.pad_side,
        **{key: str(token) for key, token in tokenizer.special_tokens_map.items() if isinstance(token, str)},
    }
    write_json(beside / "tokenizer_config.json", settings)


def _write_assets(modules: Path, lib: Path) -> dict[str, str]:
    """Copy what the page runs on; return the version of each package."""
    lib.mkdir()
    for name, (package, file) in ASSETS.items():
        shutil.copyfile(modules / package / file, lib / name)
    places = {name: modules / name / "package.json" for name in PACKAGES}
    packages = {name: read_typed(place, Package, "install it anew") for name, place in places.items()}
    return {package.name: package.version for package in packages.values()}


def _write_page(beside: Path) -> None:
    for name in PAGE:
        source = files("compress.export").joinpath("page", name)
        (beside / name).write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    # Node.js takes a .js file for a module of this kind only if a package says so.
    write_json(beside / "package.json", {"private": True, "type": "module"})


def _listed(folder: Path) -> dict[str, Any]:
    """Return size and digest of every file, by its path in the folder."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in found
    }
