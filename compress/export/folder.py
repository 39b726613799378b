"""From a model to an export folder: written beside its place, compared with the model, and only then put there."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compress.export.check.gate import TOLERANCE, GateReport, Remembered, compare
from compress.export.check.golden_vectors import FILE as GOLDEN
from compress.export.check.golden_vectors import write_golden_vectors
from compress.export.default_int8 import Form, default_forms, scheme_name
from compress.export.manifest_fields import known_files, manifest_fields
from compress.export.runtime.answering import Runtime
from compress.export.runtime.bundle import hub_page, readme, write_program
from compress.export.runtime.manifest import FILES, MANIFEST, with_digest
from compress.export.targets.library import FIRST_TARGET, ExportError, Library
from compress.export.targets.onnx import OnnxTarget
from compress.export.targets.target import Target, Written
from compress.export.targets.target_options import TargetBlock
from compress.export.targets.target_registry import FASTEST, get_target
from compress.modules.fake_quant import rounds
from compress.modules.int8_scheme import Int8, scheme_of, unmatched
from compress.onnx_graph.float_graph import traced_once
from eval.errors import CompressError, UserError
from eval.files.writing import atomic_folder
from eval.kinds.kind_registry import kind_of
from eval.progress.stages import under_way
from eval.proof.known_examples import remember
from eval.task import Examples
from teachers.taskmodel import TaskModel

AGREEMENT = 0.97
"""Least share of predictions that an int8 export must share with its model."""
UNSEEN = 0.9
"""What is asked of it on synthetic texts, unless strictness is."""
GATE_EXAMPLES = 256
"""Most examples the gate looks at; evenly spread over those given."""
BESIDE = ("config.json", "predict.py")
"""Files that no answer of ``Runtime`` depends on; ``compress verify`` checks them too. The README may be edited."""
LARGEST = 2 * 1024**3 - 1024**2
"""Bytes that fit in one ONNX file, through which most targets go."""


@dataclass(frozen=True)
class ExportReport:
    """What was written.

    Attributes:
        folder: Where.
        scheme: ``fp32`` or ``int8``.
        exporter: What wrote the network: ``tracer``, ``dynamo`` or ``executorch``.
        bytes: Size of the network's files.
        float_bytes: What it would be in float32.
        quantized: For int8, how many linear layers and tables became 8-bit, and what stayed in float.
        gate: How far the export is from the model.
        seconds: How long it took.
        notes: What is still to be done before it can be used, a sentence each.
    """

    folder: Path
    scheme: str
    exporter: str
    bytes: int
    float_bytes: int
    quantized: Mapping[str, Any]
    gate: GateReport
    seconds: float
    notes: tuple[str, ...] = ()


def in_8_bits(target: str, model: TaskModel, asked: bool) -> bool:
    """Return whether a recipe's export is written in 8 bits: it is asked for, or the model was quantized for it."""
    return asked or (scheme_of(getattr(model, "lineage", ())) is not None and bool(get_target(target).activations))


def export(
    model: TaskModel,
    folder: str | Path,
    to: str | Target = FIRST_TARGET,
    *,
    int8: bool | Int8 | None = None,
    examples: Sequence[Mapping[str, Any]] = (),
    calibration: Sequence[Mapping[str, Any]] = (),
    exclude: Sequence[str] = (),
    name: str | None = None,
    tolerance: float = TOLERANCE,
    agreement: float | None = None,
    strict: bool = False,
    made_from: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> ExportReport:
    """Write an export that its ``Runtime`` answers from as the model does, or nothing.

    Everything is written beside ``folder`` and renamed once the gate has passed; until then, and after a refusal,
    what stood there is untouched.

    Args:
        model: A model with its tokenizer and task, or an artifact.
        folder: A new or empty folder, or an earlier export.
        to: What it is exported to: the name of a target, or a target.
        int8: 8-bit or not; True takes the scheme in the artifact's lineage or else ``default_forms``, None is True
            only if the lineage holds one.
        examples: Real inputs for the gate; without any it makes up texts.
        calibration: Examples that ``default_forms`` takes ranges from.
        exclude: Modules that stay in float32 whatever the scheme is, by name: ``classifier``, ``*.output.dense``.
        name: What reports call the export; by default the model's name.
        tolerance: For float32, the largest difference of a logit relative to the largest logit.
        agreement: For int8, and for a network that rounds activations itself, the least share of equal predictions.
            Forms are tried until one has it. By default until one has ``Kind.good_enough``; if none does, the one with
            most is kept, which must have ``AGREEMENT``.
        strict: Whether ``AGREEMENT`` is asked for without examples too. By default less is told there, down to
            ``UNSEEN``: on synthetic texts a classifier is often undecided, and a turned prediction says little.
        made_from: Digest of all that decides the export, which its manifest keeps.
        options: What the target takes beside these.

    Raises:
        UserError: If the folder holds something else, a pattern names no module, the model is too large, or the target
            has no such option, cannot express the model or is not installed.
        CompressError: If the model cannot be exported, the disk refuses, or the export does not answer as the model.
    """
    start, folder = time.perf_counter(), Path(folder)
    target = get_target(to) if isinstance(to, str) else to
    asked = target.read_options(options or {})
    basis = get_target(target.basis) if target.basis else target
    scheme, is_own = _scheme(model, int8, exclude, basis)
    if problems := [*occupied(folder), *export_problems(target, model, scheme, asked)]:
        raise UserError(*problems)
    model, library = target.asked_of(model, asked), _library(basis)
    one = [Form(scheme, scheme_name(scheme))]
    usual = AGREEMENT if strict or len(examples) else UNSEEN
    good_enough = kind_of(model.task.kind).good_enough
    least, wanted = (usual, good_enough) if agreement is None else (agreement, agreement)
    limits = _Limits(tolerance, least, wanted)
    with traced_once(), atomic_folder(folder, "the export") as beside:
        writer = _Writer(model, beside, basis, asked, name or model.name, spread(examples, GATE_EXAMPLES), limits)
        forms = default_forms(model, basis.activations, calibration, exclude, writer.lacking) if is_own else one
        made, tries = writer.first_good(forms)
        manifest, gate = made.manifest, made.gate
        manifest["source"]["made_from"] = made_from
        ranges = calibration if is_own and made.form.scheme and made.form.scheme.ranges else ()
        kind, chose = model.task.kind, {"export gate": examples, "export ranges": ranges}
        manifest["chosen_on"] = model.chosen_on | used(kind, chose)
        write_golden_vectors(beside, made.exported, writer.reference, examples, made.exact)
        size = sum(manifest["files"][file]["bytes"] for file in library.files_of(manifest["files"]))
        manifest |= {"gate": gate.to_dict(), "tries": [tried.to_dict() for tried in tries]}
        manifest["files"] |= known_files(beside, [GOLDEN])
        if target is not basis:
            (beside / MANIFEST).unlink()
            manifest |= {"target": target.name, **target.arrange(model, beside, manifest, asked)}
            if client := target.client(manifest):
                write_program(beside, target.name, client, model.task.kind)
            manifest |= {"files": _listed(beside), "beside": {}}
        write_manifest(beside, manifest)
        page = target.page(model, manifest) or readme(manifest, library)
        (beside / "README.md").write_text(hub_page(page, model, target), encoding="utf-8")
    seconds = time.perf_counter() - start
    written = made.written
    found = (manifest["scheme"], written.exporter, size, written.float_bytes, written.quantized or {}, gate, seconds)
    notes = [tried.note(limits.wanted) for tried in tries if tried.form != made.form]
    if gate.limit is None and agreement is None and gate.agreement < AGREEMENT:
        notes.append(
            f"only {gate.agreement:.2%} of the predictions on synthetic texts are those of the model; examples of the "
            "task (--data) would tell more, and give better ranges"
        )
    return ExportReport(folder, *found, (*notes, *target.notes(manifest)))


@dataclass(frozen=True)
class _Limits:
    """What the gate asks for; ``agreement`` is the least, ``wanted`` ends the search."""

    tolerance: float
    agreement: float
    wanted: float


@dataclass(frozen=True)
class _Try:
    """One form, and what the gate said of it."""

    form: Form
    gate: GateReport

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return {"form": self.form.name, "agreement": self.gate.agreement, "passed": self.gate.passed}

    def note(self, wanted: float) -> str:
        """Return a sentence on a form that was not kept."""
        share = f"{self.gate.agreement:.2%} of the predictions are those of the model, wanted are {wanted:.2%}"
        return f"tried {self.form.name}: {share}"


@dataclass(frozen=True)
class _Made:
    """An export as it lies in its folder."""

    form: Form
    written: Written
    manifest: dict[str, Any]
    exported: Runtime
    gate: GateReport
    exact: bool


class _Writer:
    """Writes forms of one export into the same folder, until one answers as the model does."""

    def __init__(
        self,
        model: TaskModel,
        beside: Path,
        target: Target,
        asked: TargetBlock,
        name: str,
        examples: Sequence[Mapping[str, Any]],
        limits: _Limits,
    ) -> None:
        self.model, self.beside, self.target, self.asked = model, beside, target, asked
        self.name, self.examples, self.limits = name, examples, limits
        self.reference, self.tries = Remembered(model), list[_Try]()

    def first_good(self, forms: Iterable[Form]) -> tuple[_Made, list[_Try]]:
        """Write the first form that is good enough, or else the one that agrees most; return all that were tried."""
        for form in self._in_each_precision(forms):
            with under_way(f"{self.target.name}, {form.name}"):
                made = self._write(form)
            self.tries.append(_Try(form, made.gate))
            if made.gate.passed and made.gate.agreement >= self.limits.wanted:
                return made, self.tries
        best = max(self.tries, key=lambda tried: (tried.gate.passed, tried.gate.agreement))
        if not best.gate.passed:
            raise CompressError(best.gate.refusal(self.model.name, best.form.scheme is not None))
        return (made if best is self.tries[-1] else self._write(best.form)), self.tries

    def lacking(self) -> float | None:
        """Return the agreement that no form has so far, or None if one may be kept."""
        return None if any(tried.gate.passed for tried in self.tries) else self.limits.agreement

    def _in_each_precision(self, forms: Iterable[Form]) -> Iterator[Form]:
        for form in forms:
            for name, options in self.target.precisions(self.asked).items():
                yield Form(form.scheme, f"{form.name}{name}", options)

    def _write(self, form: Form) -> _Made:
        library = _library(self.target)
        for file in library.files_of([file.name for file in self.beside.iterdir()]):
            (self.beside / file).unlink(missing_ok=True)  # OpenVINO may still read the file of an earlier form
        written = self.target.write(self.model, self.beside, form.scheme, form.options)
        manifest = _write_rest(self.model, self.beside, self.target, form.scheme, self.name, written)
        exact = form.scheme is None and written.is_float32 and not rounds(self.model.model)
        agreement: dict[str, Any] = {"tolerance": None, "agreement": self.limits.agreement}
        try:
            exported = Runtime(self.beside)
            given: dict[str, Any] = {"tolerance": self.limits.tolerance} if exact else agreement
            gate = compare(exported, self.reference, self.examples, **given)
        except ExportError as error:
            raise CompressError(f"{self.model.name}: the export does not run: {error}; nothing was written") from error
        return _Made(form, written, manifest, exported, gate, exact)


def export_onnx(model: TaskModel, folder: str | Path, *, opset: int | None = None, **how: Any) -> ExportReport:
    """Write a folder that ONNX Runtime, the ``Runtime`` of this package or its own ``predict.py`` loads.

    Args:
        model: A model with its tokenizer and task, or an artifact.
        folder: A new or empty folder, or an earlier export.
        opset: Version of the ONNX operators.
        how: As ``export`` takes it.
    """
    return export(model, folder, OnnxTarget(opset), **how)


def export_web(model: TaskModel, folder: str | Path, *, assets: str | Path | None = None, **how: Any) -> ExportReport:
    """Write a folder that transformers.js loads, with a page that answers typed text and asks no other host.

    Args:
        model: A model with its tokenizer and task, or an artifact.
        folder: A new or empty folder, or an earlier export.
        assets: A ``node_modules`` folder with the packages of the page; by default the one in the current folder.
            Without any, all but ``lib`` is written, and the README says how to add it.
        how: As ``export`` takes it.
    """
    return export(model, folder, "web", options={} if assets is None else {"assets": assets}, **how)


def occupied(folder: Path) -> list[str]:
    """Return the reason why nothing may be written in the place of ``folder``, if there is one."""
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / MANIFEST).is_file())):
        return [f"{folder}: is there already and no export; choose another folder or remove it"]
    return []


def export_problems(target: Target, model: TaskModel, scheme: Int8 | None, options: TargetBlock) -> list[str]:
    """Return why a model cannot be exported to a target, as far as its network and task say it; nothing is computed.

    Args:
        target: What it is exported to.
        model: What would be exported.
        scheme: Its 8-bit scheme; None for float32.
        options: What is asked of the target.
    """
    parts = [target, get_target(target.basis)] if target.basis else [target]
    problems = [problem for part in parts for problem in part.refused(model, options)]
    problems += target.unanswered(model)
    if scheme is not None:
        problems += unmatched(scheme.exclude, [module for module, _ in model.model.named_modules()])
        if not all(part.activations for part in parts):
            problems.append(f"{model.name}: {target.name} has no 8 bits; export it as float32")
    if getattr(model.model.config, "quantization_config", None) is not None:
        problems.append(
            f"{model.name}: bitsandbytes runs in torch alone; export the model from before that step, or take "
            "quantize.weights, whose codes ONNX Runtime reads"
        )
    weights = 4 * sum(parameter.numel() for parameter in model.model.parameters())
    if weights > LARGEST:
        problems.append(f"{model.name}: {weights / 1e9:.1f} GB of weights; one ONNX file holds at most 2 GB")
    return problems


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write ``export.json``, with its own digest."""
    text = json.dumps(with_digest(manifest), indent=1, ensure_ascii=False)
    (folder / MANIFEST).write_text(f"{text}\n", encoding="utf-8")


def _library(target: Target) -> Library:
    if target.name == FASTEST:
        raise UserError("target 'fastest': is measured with examples; call compress.export.tune.tune")
    if target.library is None:
        raise UserError(f"target {target.name!r}: nothing runs what it writes, so it cannot be compared with the model")
    return target.library


def _write_rest(
    model: TaskModel, beside: Path, target: Target, scheme: Int8 | None, name: str, written: Written
) -> dict[str, Any]:
    """Write all but the page that needs the gate's figures; return the manifest."""
    library = _library(target)
    model.encoder.save(beside)
    config: Any = model.model.config
    config.save_pretrained(beside)
    write_program(beside, target.name, library, model.task.kind)
    manifest = {
        **manifest_fields(model, target, scheme, name, written),
        "files": known_files(beside, (*library.files_of(os.listdir(beside)), *FILES)),
        "beside": known_files(beside, BESIDE),
    }
    write_manifest(beside, manifest)
    return manifest


def _listed(folder: Path) -> dict[str, Any]:
    """Return size and digest of every file, by its path in the folder."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return known_files(folder, (path.relative_to(folder).as_posix() for path in found))


def _scheme(
    model: TaskModel, int8: bool | Int8 | None, exclude: Sequence[str], target: Target
) -> tuple[Int8 | None, bool]:
    """Return the scheme that is asked for, and whether ``default_forms`` take its place since none is."""
    recorded = scheme_of(getattr(model, "lineage", ()))
    asked = int8 if isinstance(int8, Int8) else None if int8 is False else recorded
    is_own = asked is None and bool(int8)
    scheme = Int8() if is_own else asked
    if scheme is not None and exclude:
        scheme = scheme.model_copy(update={"exclude": (*scheme.exclude, *exclude)})
    return scheme, is_own and bool(target.activations)


def used(kind: str, chose: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, str]:
    """Return what examples decided -> their digest, and remember them, so that a report on some of them knows them.

    Args:
        kind: Kind of task.
        chose: What they decided -> the examples; those without any are left out.
    """
    sets = {what: one if isinstance(one, Examples) else Examples(one) for what, one in chose.items() if len(one)}
    remember(kind, *sets.values())
    return {what: examples.digest for what, examples in sets.items()}


def spread(examples: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """Return at most so many examples, evenly spread over those given."""
    count = min(len(examples), most)
    return [examples[index * len(examples) // count] for index in range(count)]
