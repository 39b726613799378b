"""``compress doctor``: what this machine has, and what that means."""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec
from typing import Any

import typer

from compress.commands.run import Json
from compress.export.targets.target_registry import BUILT_IN, get_target
from compress.terminal.output import table, write_json
from eval.cost.openmp import described

OWN_EXTRAS = {
    "structured": ("torch_pruning", "structured pruning through the dependencies between layers (torch-pruning)"),
    "bitsandbytes": ("bitsandbytes", "8-bit and 4-bit weights on GPUs (bitsandbytes)"),
    "optimum": ("optimum", "normalised configs of model families for further exporters (optimum)"),
    "tagger": ("spacy", "parts of speech for augmented text (spaCy)"),
    "chinese": ("jieba", "Chinese words, hidden whole in pretraining (jieba)"),
    "text": ("sacrebleu", "BLEU and chrF (sacrebleu) and ROUGE (rouge-score) of texts that are written"),
    "track": ("tensorboard", "the curves of trainings in TensorBoard (track)"),
    "sign": ("model_signing", "signatures of certificates (model-signing)"),
    "adapters": ("peft", "LoRA, fine-tuning a few matrices over a base (PEFT)"),
    "search": ("optuna", "the search within a budget, compress search (Optuna)"),
    "retrieval": ("bm25s", "the first stage of reranking, BM25 (bm25s)"),
    "approximate": ("usearch", "approximate search in an index of vectors, HNSW (usearch)"),
    "docs": ("mkdocs", "the site of the documents, and running its notebooks (MkDocs)"),
    "dev": ("hypothesis", "tests, type checks and style checks"),
}
"""Optional parts of the distribution: the package that shows one is there, and what it adds; targets name theirs."""


def doctor(json: Json = False) -> None:
    """Say what this machine has: processor features that decide int8 speed, GPU, versions, extras, folders."""
    found = diagnosis()
    if json:
        write_json(found)
        return
    here = found["machine"]
    memory = here["memory_bytes"]
    rows = [
        (
            "processor",
            f"{here['cpu']} ({here['architecture']}, {here['usable_cores']} of {here['cores']} cores usable)",
        ),
        ("features", ", ".join(here["features"]) or "none that matter here"),
        ("int8", here["int8"]),
        ("advice", found["advice"]),
        ("OpenMP", found["openmp"]),
        ("memory", f"{memory / 2**30:.1f} GiB" if memory else "not known"),
        ("GPU", here["gpu"] or "none"),
        ("system", f"{here['system']}, Python {here['python']}"),
        ("COMPRESS_HOME", f"{found['home']['folder']} ({found['home']['bytes'] / 1e6:,.0f} MB in use)"),
    ]
    table(("what", "found"), rows)
    typer.echo()
    table(("library", "version"), list(here["versions"].items()))
    typer.echo()
    table(
        ("extra", "installed", "what it adds", "how to get it"),
        [
            (name, "yes" if extra["installed"] else "no", extra["adds"], "" if extra["installed"] else extra["install"])
            for name, extra in found["extras"].items()
        ],
    )


def extras() -> dict[str, tuple[str, str]]:
    """Return every optional part: the package that shows that it is there, and what it adds."""
    targets = [get_target(name) for name in BUILT_IN]
    exports = {each.extra: (each.extra, each.adds) for each in targets if each.extra}
    return OWN_EXTRAS | exports


def diagnosis() -> dict[str, Any]:
    """Return everything ``compress doctor`` says, as plain JSON."""
    from eval.cost.machine import machine
    from eval.files.home import home

    here = machine(accelerator=True)
    folder = home()
    used = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if folder.is_dir() else 0
    return {
        "machine": here,
        "advice": advice(here["features"], here["gpu"]),
        "openmp": described(),
        "extras": {
            name: {
                "installed": find_spec(module) is not None,
                "adds": adds,
                "install": f"pip install 'nlp-compress[{name}]'",
            }
            for name, (module, adds) in extras().items()
        },
        "home": {"folder": str(folder), "bytes": used},
        "version": _own_version(),
    }


def advice(features: list[str], gpu: str | None) -> str:
    """Return what to do on a machine with these features."""
    present = set(features)
    if present & {"amx_int8", "avx512_vnni", "avx_vnni"}:
        words = "export with int8: expect it to be much faster than fp32 here"
    elif present & {"asimddp", "i8mm"}:
        words = "export with int8: this ARM processor multiplies 8-bit numbers fast"
    elif "avx2" in present:
        words = "int8 saves size and is somewhat faster in ONNX Runtime, not in OpenVINO: the processor lacks VNNI"
    else:
        words = "int8 saves size only; measure before you choose"
    return f"{words}; train on the GPU" if gpu else words


def _own_version() -> str:
    try:
        return metadata.version("nlp-compress")
    except metadata.PackageNotFoundError:
        from compress import __version__

        return __version__
