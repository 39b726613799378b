"""A certificate of two models that answer 600 sentences, made by hand: no model is trained, no file is large."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

from eval.certificate.contents import (
    FORMAT,
    Certificate,
    Claim,
    Contents,
    Fixed,
    Machine,
    Model,
    Part,
    Row,
    Speed,
    Stress,
    TestData,
    Tolerances,
)
from eval.certificate.model_files import model_files
from eval.certificate.overlap import overlap_of
from eval.certificate.own_figures import stressed
from eval.certificate.recomputing import outcome_of
from eval.certificate.replay import Replayed, ReplayedStress
from eval.example_digests import example_digest, examples_digest
from eval.stress.robustness import perturbations
from eval.stress.stress_rows import Perturbed
from eval.task import TaskSpec

EXAMPLES = 600
TASK = {"kind": "classification", "labels": ["bad", "good"], "metric": "accuracy", "pair": False}
TEST = [{"text": f"film number {n}", "label": ("bad", "good")[n % 2]} for n in range(EXAMPLES)]
SPLITS = {
    "test": TEST,
    "train": [{"text": f"other film {n}", "label": "good"} for n in range(40)] + TEST[5:7],
    "select": [{"text": f"third film {n}", "label": "bad"} for n in range(20)],
}
"""Two test examples stand in train too."""
STRESS_SEED = 13
GOOD = {"label": "good", "probability": 0.75}
MACHINE = Machine("a processor", ("avx2", "avx512_vnni"), {"OMP_NUM_THREADS": "1"})


def predictions(wrong: range) -> list[dict]:
    """Return predictions that are right but for those of some examples."""
    labels = [("bad", "good")[(n % 2) ^ (n in wrong)] for n in range(EXAMPLES)]
    return [{"label": label, "probability": 0.75} for label in labels]


CANDIDATE, TEACHER = predictions(range(3)), predictions(range(1, 4))


def model_folder(folder: Path, word: str) -> Path:
    """Write files like those of a model."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("model.onnx", "tokenizer.json", "config.json"):
        (folder / name).write_text(f"{name} of {word}")
    return folder


def model(folder: Path, name: str) -> Model:
    """Return a model of which only one file holds weights."""
    files = model_files([folder])
    return Model(name, files, ("model.onnx",), files["model.onnx"].bytes, parameters=10, macs=100, macs_length=128)


def lineage(*data: dict) -> dict:
    """Return chained records of steps that used data."""
    records, previous = [], None
    for used in data:
        row = {"technique": "distill.logits", "data": used, "previous": previous}
        row["digest"] = previous = hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()
        records.append(row)
    return {"format": 3, "records": records, "last": previous}


def claim(margin: float = 0.02, examples=TEST) -> Claim:
    """Return a claim on the examples."""
    return Claim(
        metric="accuracy",
        margin=margin,
        confidence=0.95,
        method="score interval",
        correction="none",
        groups=False,
        seed=13,
        split="test",
        digest=examples_digest(examples),
    )


def certificate(folder: Path, *, margin: float = 0.02) -> Contents:
    """Return a certificate of models in ``folder / "small"`` and ``folder / "teacher"``, which are written."""
    candidate = model(model_folder(folder / "small", "small"), "onnx-int8")
    teacher = model(model_folder(folder / "teacher", "teacher"), "teacher")
    fixed = Fixed(
        "2026-01-01T10:00:00+00:00",
        claim(margin),
        "teacher",
        {"onnx-int8": candidate.digest, "teacher": teacher.digest},
    )
    look = {"time": "2026-01-01T10:00:01+00:00", "split": "test", "digest": fixed.claim.digest, "claim": fixed.digest}
    parts = {role: Part(examples_digest(rows), len(rows)) for role, rows in SPLITS.items()}
    overlap = {role: overlap_of("classification", TEST, SPLITS[role]) for role in ("train", "select")}
    main = Certificate(
        format=FORMAT,
        name="small",
        package="0.1.0",
        task=TASK,
        fixed=fixed,
        looks=(look,),
        outcome=outcome_of(TASK, fixed.claim, [{"label": e["label"]} for e in TEST], CANDIDATE, TEACHER),
        candidate=candidate,
        teacher=teacher,
        exports=(),
        data=TestData("films", parts, {"best epoch": parts["select"].digest}, overlap),
        speeds=(Speed(1, "data", {"p50_ms": 2.0, "round_ms": [1.0, 2.0, 3.0]}, {"p50_ms": 6.0}, 3.0),),
        machine=MACHINE,
        tolerances=Tolerances(),
        members={},
    )
    rows = tuple(
        Row(example_digest(e), {"label": e["label"]}, c, t) for e, c, t in zip(TEST, CANDIDATE, TEACHER, strict=True)
    )
    steps = lineage({"train": parts["train"].digest, "validation": parts["select"].digest})
    return Contents(main, rows, steps, {"task": {"kind": "classification"}, "seed": 13})


def perturbed_answers() -> tuple[Perturbed, ...]:
    """Return answers to perturbed texts: as before, but that the candidate calls all in upper case good."""
    spec = TaskSpec(kind="classification", labels=("bad", "good"))
    return tuple(
        Perturbed(rule, n, {"label": text["label"]}, GOOD if rule == "upper case" else CANDIDATE[n], TEACHER[n])
        for rule, texts in perturbations(spec, TEST, STRESS_SEED)
        for n, text in texts.items()
    )


def under_stress(contents: Contents) -> Contents:
    """Return a certificate with answers to perturbed texts, and what they come to."""
    contents = replace(contents, perturbed=perturbed_answers())
    return replace(
        contents, main=replace(contents.main, stress=Stress.of(STRESS_SEED, stressed(contents, STRESS_SEED)))
    )


class Again:
    """Both models as they answered before; a test changes what it likes."""

    def __init__(self, candidate=CANDIDATE, teacher=TEACHER, here=MACHINE, ratio: float | None = 2.9) -> None:
        outputs: list = [[-1.0, 1.0]] * EXAMPLES
        size = len("model.onnx of small")
        self.found = Replayed(candidate, outputs, size, 100, 128, 10)
        self.reference = Replayed(teacher, outputs, size + 2, 100, 128, 10)
        self.here, self.measured = here, ratio

    def candidate(self) -> Replayed:
        return self.found

    def teacher(self) -> Replayed:
        return self.reference

    def under_stress(self, seed: int) -> ReplayedStress:
        assert seed == STRESS_SEED
        known = perturbed_answers()
        asked = [(each.rule, each.example, each.gold) for each in known]
        sides = ([each.candidate for each in known], [each.reference for each in known])
        return ReplayedStress(asked, *(Replayed(side, [[-1.0, 1.0]] * len(side), None, None) for side in sides))

    def machine(self) -> Machine:
        return self.here

    def ratio(self, speed: Speed) -> float | None:
        return self.measured


def refixed(contents: Contents, **main) -> Contents:
    """Return a certificate changed in a consistent way: outcome, claim and looks follow from what else it says."""
    changed = replace(contents.main, **main)
    fixed = replace(
        changed.fixed,
        models={changed.candidate.name: changed.candidate.digest, changed.fixed.reference: changed.teacher.digest},
    )
    looks = tuple({**look, "claim": fixed.digest, "digest": fixed.claim.digest} for look in changed.looks)
    gold, candidate, teacher = (
        [getattr(row, side) for row in contents.rows] for side in ("gold", "candidate", "teacher")
    )
    outcome = outcome_of(changed.task, fixed.claim, gold, candidate, teacher, family=changed.family)
    return replace(contents, main=replace(changed, fixed=fixed, looks=looks, outcome=outcome))
