"""A model as a folder for the browser and Node.js: what transformers.js loads, and a page that needs no other host."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from compress.export.targets.target import Target
from compress.export.targets.target_options import TargetBlock
from compress.export.targets.web_readme import web_readme
from eval.files.json_text import read_json
from eval.files.typed_json import read_typed
from eval.kinds.kind import Kind
from eval.kinds.kind_registry import kind_of

if TYPE_CHECKING:
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


class WebBlock(TargetBlock):
    """What may be asked of a folder for the browser.

    Attributes:
        assets: A ``node_modules`` folder with the packages in ``PACKAGES``; by default the one in the current folder.
            Without any, all but ``lib`` is written, and the README says how to add it.
    """

    assets: Path | None = None


class WebTarget(Target):
    """An ONNX export as a folder that transformers.js loads, with a page that answers typed text."""

    name = "web"
    summary = "For the browser, Node.js and transformers.js; it is compared with the model, but not measured."
    needs = ("onnx", "onnxruntime")
    basis = "onnx"
    hub_library = "transformers.js"
    try_it = "python -m http.server --bind 127.0.0.1 --directory {out} 8000"

    def options(self) -> type[TargetBlock]:
        """Return the options of every target, and where the packages of the page lie."""
        return WebBlock

    def refused(self, model: TaskModel, options: TargetBlock) -> list[str]:
        """Return why a model is not for the browser, and what ``assets`` lacks; nothing if it is."""
        kind, assets = kind_of(model.task.kind), getattr(options, "assets", None)
        why = vars(type(kind)).get("no_page", Kind.no_page)  # not inherited: the page knows kinds by their names
        found = [f"{model.name}: {kind.name} is not for the browser: {why}; export it to onnx"] if why else []
        if model.encoder.settings.triples:
            found.append(
                f"{model.name}: its page cannot put facts beside the words of a text (K-BERT); export it to onnx"
            )
        if assets is not None and (missing := missing_assets(assets)):
            found.append(f"{assets}: lacks {', '.join(missing)}; name a node_modules folder filled by: {FETCH}")
        return found

    def arrange(
        self, model: TaskModel, beside: Path, manifest: Mapping[str, Any], options: TargetBlock
    ) -> dict[str, Any]:
        """Put the files of an ONNX export where transformers.js looks for them, and add the page."""
        modules = getattr(options, "assets", None) or Path("node_modules")
        _rearrange(model, beside, manifest["scheme"])
        _write_page(beside)
        return {
            "model": MODELS[manifest["scheme"]],
            "encoder": model.encoder.settings.to_dict(),
            "packages": None if missing_assets(modules) else _write_assets(modules, beside / "lib"),
        }

    def page(self, model: TaskModel, manifest: Mapping[str, Any]) -> str:
        """Return the README of the folder."""
        return web_readme(manifest, model.model.config.model_type, FETCH)

    def notes(self, manifest: Mapping[str, Any]) -> tuple[str, ...]:
        """Return how the packages of the page are fetched, if they are missing."""
        if manifest["packages"] is not None:
            return ()
        return (f"the page still lacks lib/: run {FETCH}, then export again from the same place",)


def missing_assets(modules: Path) -> list[str]:
    """Return the files that the page needs and a ``node_modules`` folder lacks, relative to it."""
    wanted = {f"{package}/{part}" for package, file in ASSETS.values() for part in (file, "package.json")}
    return sorted(file for file in wanted if not (modules / file).is_file())


def _rearrange(model: TaskModel, beside: Path, scheme: str) -> None:
    """Put the network, the tokenizer and their two configurations where transformers.js looks for them."""
    (beside / "onnx").mkdir()
    (beside / "model.onnx").rename(beside / MODELS[scheme])
    for name in ("encoder.json", "predict.py"):
        (beside / name).unlink()
    config = read_json(beside / "config.json")
    config.setdefault("architectures", [type(model.model).__name__])
    _write_json(beside / "config.json", config | {"transformers.js_config": {"dtype": DTYPES[scheme]}})
    # As it is used, not as it was given: in running text, too, a tagger's words then begin as they did in training.
    encoder, tokenizer = model.encoder, model.tokenizer
    (beside / "tokenizer.json").write_text(encoder.tokenizer.to_str(), encoding="utf-8")
    settings = {
        "tokenizer_class": type(tokenizer).__name__,
        "model_max_length": encoder.settings.max_length,
        "padding_side": encoder.settings.pad_side,
        **{key: str(token) for key, token in tokenizer.special_tokens_map.items() if isinstance(token, str)},
    }
    _write_json(beside / "tokenizer_config.json", settings)


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
        source = files("compress.export.targets").joinpath("page", name)
        (beside / name).write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    # Node.js takes a .js file for a module of this kind only if a package says so.
    _write_json(beside / "package.json", {"private": True, "type": "module"})


def _write_json(file: Path, values: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
