"""Level 1: whether a certificate agrees with itself. It needs numpy alone, and nothing but the file."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import takewhile
from statistics import median
from typing import Any

from eval.certificate.contents import Certificate, Contents, Model, Speed, Stress, Tolerances
from eval.certificate.findings import Finding, Word
from eval.certificate.recomputing import Asked, outcome_of, power_of, scored
from eval.errors import MissingLibraryError, shortened
from eval.kinds.kind_registry import kind_of
from eval.proof.paired_predictions import method_for
from eval.ranking.index_fields import BYTES, NAMED
from eval.stress.stress_rows import Stressed, stress_rows
from eval.stress.stress_sentences import stress_sentences

WIDEST = Tolerances(computed=1e-6, number=0.1, tie=0.1, ratio=3.0)
"""The widest tolerances that a certificate may state."""
ROLES = ("train", "select", "test")


def check_own_figures(contents: Contents) -> Finding:
    """Compute everything again that follows from the predictions, and compare what is said twice.

    A metric whose library is not installed gives ``PARTIAL``: nothing is wrong, and nothing is shown.
    """
    main, problems, lacking = contents.main, list(_beside_scores(contents)), []
    rows: tuple[Stressed, ...] = ()
    told = _met_before(main)
    said = "the predictions"
    try:
        problems += _statistics(contents)
        if main.outcome.verdict == "not shown":
            told += filter(None, [power_of(contents)])
        if main.stress is not None:
            said = "the answers to perturbed texts"
            rows = stressed(contents, main.stress.seed)
            problems += _under_stress(main.stress, rows, main.tolerances.computed)
    except MissingLibraryError as error:
        lacking.append(f"{said} cannot be scored: {error}")
    except Exception as error:  # predictions and answers may hold anything; no such certificate is valid
        problems.append(f"{said} cannot be scored ({type(error).__name__}: {str(error)[:200]})")
    if problems:
        return Finding(1, Word.INVALID, tuple(map(shortened, problems)))
    if lacking:
        return Finding(1, Word.PARTIAL, tuple(lacking))
    told += stress_sentences(rows, main.candidate.name, main.fixed.reference)
    return Finding(1, Word.VALID, tuple(told))


def _met_before(main: Certificate) -> list[str]:
    """Say how many test examples stand among those that trained or chose, too."""
    return [
        f"{len(places):,} of {main.data.parts['test'].examples:,} test examples stand in {role} too"
        for role, places in sorted(main.data.overlap.items())
        if places and "test" in main.data.parts
    ]


def _beside_scores(contents: Contents) -> Iterator[str]:
    main = contents.main
    yield from _claim(main)
    yield from _data(contents)
    yield from _lineage(contents)
    for model in (main.candidate, main.teacher, *main.exports):
        yield from _bytes(model)
    for speed in main.speeds:
        yield from _ratio(speed, main.tolerances.computed)


def _claim(main: Certificate) -> Iterator[str]:
    """Compare the claim with what the looks at the split say of it."""
    fixed, claim = main.fixed, main.fixed.claim
    if not (claim.margin >= 0 and 0 < claim.confidence < 1):
        yield f"claim: margin {claim.margin:g} or confidence {claim.confidence:g} is out of range"
    if not main.looks:
        yield "looks: none is recorded, so nothing says that the claim was fixed before the split was opened"
    own = [look for look in main.looks if look.get("digest") == claim.digest]
    if main.looks and not any(look.get("claim") == fixed.digest for look in own):
        yield (
            "claim: is not the one that was fixed when the split was opened: the margin, the test or a model was moved "
            "afterwards"
        )
    before = list(takewhile(lambda look: look.get("claim") != fixed.digest, own))
    late = [look for look in own if look.get("claim") == fixed.digest and str(look.get("time", "")) < fixed.time]
    if late or any(not look.get("claim") for look in before):
        yield "claim: was fixed after the split was opened"
    for role, model in (("candidate", main.candidate), ("teacher", main.teacher)):
        name = model.name if role == "candidate" else fixed.reference
        if fixed.models.get(name) != model.digest:
            yield f"{role}: its files are not those that the claim was fixed for"
    held = "" if main.index is None else f"{NAMED}{main.index.title}"
    if not main.candidate.name.endswith(held) or (not held and NAMED in main.candidate.name):
        yield f"index: {held.removeprefix(NAMED)[:60] or 'none'} is not that of the candidate that the claim names"
    yield from _index_size(main)
    if main.task.get("metric") != claim.metric:
        yield f"task: its metric is {str(main.task.get('metric'))[:60]!r}, that of the claim {claim.metric[:60]!r}"
    for name, most in asdict(WIDEST).items():
        if not 0 <= getattr(main.tolerances, name) <= most:
            yield f"tolerances: {name} is {getattr(main.tolerances, name):g}, allowed is {most:g}"


def _index_size(main: Certificate) -> Iterator[str]:
    """Compute the bytes of the index from its form, its documents and the dimensions of their vectors."""
    form, size = main.index, main.index_size
    if form is None or size is None:
        if (form is None) != (size is None):
            yield "index: its form and its size are told together or not at all"
    elif size.documents < 1 or size.width < 1 or not set(form.held) <= set(BYTES):
        yield f"index: {form.title[:60]} with {size.documents:,} documents of {size.width:,} dimensions cannot be"
    elif (known := form.size(size.documents, size.width).bytes) != size.bytes:
        yield f"index: has {size.bytes:,} bytes, its documents {known:,}"


def _data(contents: Contents) -> Iterator[str]:
    """Check roles and overlap."""
    data, claim, rows = contents.main.data, contents.main.fixed.claim, contents.rows
    test = data.parts.get("test")
    if test is None or set(data.parts) - set(ROLES):
        yield f"data: has the parts {', '.join(sorted(data.parts))[:80]}; allowed are {', '.join(ROLES)}, test always"
        return
    if test.digest != claim.digest or test.examples != len(rows):
        yield f"data: the test split has {test.examples:,} examples, the certificate {len(rows):,}, or another digest"
    for what, digest in sorted(data.chosen_on.items()):
        if digest == test.digest:
            yield f"data: the test split was used for selection ({what[:80]})"
    for role in ("train", "select"):
        part, shared = data.parts.get(role), data.overlap.get(role, ())
        if part is not None and part.digest == test.digest:
            yield f"data: the test split is also the {role} split"
        if part is not None and role not in data.overlap:
            yield f"data: the overlap of the test examples with {role} is not counted"
        if list(shared) != sorted(set(shared)) or any(not 0 <= place < len(rows) for place in shared):
            yield f"data: the overlap with {role} names examples that there are not"
        if rows and len(shared) == len(rows):
            yield f"data: every test example stands in {role} too, whatever its order, so nothing was held out"
    if contents.main.fixed.claim.groups != any(row.group is not None for row in rows):
        yield "data: the claim and the examples differ in whether there are groups"


def _lineage(contents: Contents) -> Iterator[str]:
    """Check the chain of records, and that no step saw the test split."""
    records, previous = contents.lineage.get("records", []), None
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        yield "lineage: records must be a list of objects"
        return
    if not records:
        yield "lineage: there is no record of how the model was made"
    for number, record in enumerate(records, start=1):
        values = {name: value for name, value in record.items() if name != "digest"}
        if record.get("digest") != _record_digest(values) or record.get("previous") != previous:
            yield f"lineage: record {number} was changed, or does not follow from the one before"
            return
        previous = record.get("digest")
        used = record.get("data")
        for role, digest in used.items() if isinstance(used, dict) else ():
            if digest == contents.main.fixed.claim.digest:
                yield f"lineage: record {number} used the test split for {str(role)[:60]}"
    if contents.lineage.get("last") != previous:
        yield "lineage: the last record is missing"


def _record_digest(values: dict[str, Any]) -> str:
    """Return the digest of a record, as ``lineage.json`` has it."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _statistics(contents: Contents) -> Iterator[str]:
    """Compute scores, interval and verdict from the predictions."""
    main, claim = contents.main, contents.main.fixed.claim
    kind = kind_of(str(main.task["kind"]))
    if main.index is not None and not (kind.searches and kind.vectors):
        yield f"index: a {kind.name} task searches no vectors"
    if claim.method != (method := method_for(claim.groups)):
        yield f"claim: the test for {claim.metric} is {method}, not {claim.method[:60]}"
        return
    found, said = asdict(outcome_of(main.task, claim, *scored(contents), main.family)), asdict(main.outcome)
    for name, value in _flat(found).items():
        given = _flat(said).get(name)
        if not _same(value, given, main.tolerances.computed):
            yield f"{name}: is {_shown(given)}, from the predictions it is {_shown(value)}"
    for name in _flat(said).keys() - _flat(found).keys():
        yield f"{name[:80]}: does not follow from the predictions"


def _under_stress(said: Stress, rows: Sequence[Stressed], tolerance: float) -> Iterator[str]:
    """Compare the rows of perturbed texts with those that follow from their answers."""
    found = Stress.of(said.seed, rows).rows
    if [row.get("rule") for row in said.rows] != [row["rule"] for row in found]:
        yield "stress: the rules are not those of the task"
        return
    for row, other in zip(found, said.rows, strict=True):
        values, given = _flat(row), _flat(other)
        for name in values.keys() | given.keys():
            if not _same(values.get(name), given.get(name), tolerance):
                shown = f"is {_shown(given.get(name))}, from the answers it is {_shown(values.get(name))}"
                yield f"stress, {row['rule']}: {name[:60]} {shown}"


def stressed(contents: Contents, seed: int) -> tuple[Stressed, ...]:
    """Return the rows of perturbed texts that follow from their answers."""
    gold, candidate, teacher, groups = scored(contents)
    task: Any = Asked.of(contents.main.task)
    return stress_rows(task, gold, (candidate, teacher), groups, contents.perturbed, seed)


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= {f"{name} {key}": each for key, each in value.items()} if isinstance(value, dict) else {name: value}
    return found


def _same(value: Any, given: Any, tolerance: float) -> bool:
    if isinstance(value, float) and isinstance(given, float):
        return math.isclose(value, given, rel_tol=min(tolerance, 1e-6), abs_tol=min(tolerance, 1e-6))
    return bool(value == given)


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)[:60]


def _bytes(model: Model) -> Iterator[str]:
    known = sum(model.files[name].bytes for name in model.weights if name in model.files)
    if not model.weights or known != model.bytes or not set(model.weights) <= set(model.files):
        yield f"{model.name[:60]}: has {model.bytes:,} bytes, its files of weights {known:,}"


def _ratio(speed: Speed, tolerance: float) -> Iterator[str]:
    where = f"speed at batch size {speed.batch}"
    medians, sides = [], []
    for row in (speed.candidate, speed.teacher):
        rounds, middle = row.get("round_ms"), row.get("p50_ms")
        if not isinstance(middle, float | int) or not middle > 0:
            yield f"{where}: a median is missing"
            return
        known = (
            [value for value in rounds if isinstance(value, float | int)] if isinstance(rounds, list | tuple) else []
        )
        if rounds and (len(known) != len(rounds) or not all(value > 0 for value in known)):
            yield f"{where}: a round has no time"
            return
        if known and not _same(median(known), float(middle), tolerance):
            yield f"{where}: a median is not that of its rounds"
        sides.append(known)
        medians.append(float(middle))
    ours, theirs = sides
    paired = bool(ours) and len(ours) == len(theirs)
    ratio = median(b / a for a, b in zip(ours, theirs, strict=True)) if paired else medians[1] / medians[0]
    if not _same(ratio, speed.ratio, tolerance):
        yield f"{where}: the ratio is {speed.ratio:.4g}, from the rounds it is {ratio:.4g}"
