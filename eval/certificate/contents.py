"""What a certificate holds: the claim and what came of it, the digests of models and data, predictions, times.

A certificate has four members, and a fifth where perturbed texts were answered too:

- ``certificate.json``: a ``Certificate``;
- ``examples.jsonl``: a ``Row`` a line, the predictions of both models for each example;
- ``lineage.json``: the records of the steps that made the candidate, as in the folder of the model;
- ``provenance.json``: recipe, environment, libraries, seeds, commands; nothing is computed from it;
- ``perturbed.jsonl``: an ``eval.stress.stress_rows.Perturbed`` a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from eval.certificate.archive import DamagedError, pack, unpack
from eval.certificate.canonical import canonical, digest_of, lines, sha256, without_nan
from eval.certificate.typed_values import WrongTypeError, read
from eval.files.json_text import JsonError, parse_json
from eval.ranking.index_fields import IndexFields, IndexSize
from eval.stress.stress_rows import Perturbed, Stressed

Form = TypeVar("Form")

FORMAT = 2
"""Version of the form of a certificate, and of how its intervals are found."""
MAIN, ROWS, LINEAGE, PROVENANCE = "certificate.json", "examples.jsonl", "lineage.json", "provenance.json"
MEMBERS = frozenset({MAIN, ROWS, LINEAGE, PROVENANCE})
PERTURBED = "perturbed.jsonl"
"""A member that may be there."""
UNTOLD = ("stress", "index", "index_size", "family")
"""Fields of a certificate that are left out where they say nothing."""


@dataclass(frozen=True)
class Claim:
    """What is to be shown, fixed before the split that reports is opened.

    Attributes:
        metric: What is compared; higher is better.
        margin: Loss against the teacher that is allowed, in units of the metric.
        confidence: Coverage of the interval of the difference.
        method: The test: see ``eval.result_values.Comparison.method``.
        correction: ``none``: the claim of a run is of one candidate. Candidates of one search are corrected together
            when all were looked at, which can only take a verdict away (see ``Certificate.family``).
        groups: Whether examples have groups, which are then left out whole.
        seed: Which examples are put together where there are too many to leave out each.
        split: Name of the split that reports.
        digest: SHA-256 of its examples.
    """

    metric: str
    margin: float
    confidence: float
    method: str
    correction: str
    groups: bool
    seed: int
    split: str
    digest: str


@dataclass(frozen=True)
class Fixed:
    """A claim with the models it is about, as it was written down.

    Attributes:
        time: When, UTC.
        claim: The claim.
        reference: Name of the teacher.
        models: Digest of the files of each model (see ``Model.digest``), the teacher included, by its name.
    """

    time: str
    claim: Claim
    reference: str
    models: dict[str, str]

    @property
    def digest(self) -> str:
        """What the looks at the split refer to it by."""
        return digest_of(asdict(self))


@dataclass(frozen=True)
class File:
    """A file of a model.

    Attributes:
        bytes: Its size.
        sha256: Its digest.
    """

    bytes: int
    sha256: str


def files_digest(files: Mapping[str, File]) -> str:
    """Return what a claim calls the files of a model: one digest over all."""
    return digest_of({name: file.sha256 for name, file in files.items()})


@dataclass(frozen=True)
class Model:
    """One of the two models.

    Attributes:
        name: What the run calls it.
        files: All its files; of several teachers each has its number before the name, as in ``2/config.json``.
        weights: Those of them that hold the network.
        bytes: Bytes of the latter.
        parameters: Weights, if they could be counted.
        macs: Multiply-accumulates of one input of ``macs_length`` tokens, likewise.
        macs_length: Tokens of that input.
    """

    name: str
    files: dict[str, File]
    weights: tuple[str, ...]
    bytes: int
    parameters: int | None = None
    macs: int | None = None
    macs_length: int | None = None

    @property
    def digest(self) -> str:
        """Digest of all files."""
        return files_digest(self.files)


@dataclass(frozen=True)
class Part:
    """A split of the data.

    Attributes:
        digest: SHA-256 of its examples.
        examples: How many there are.
    """

    digest: str
    examples: int


@dataclass(frozen=True)
class TestData:
    """The examples that report, and what they have in common with those that trained or chose.

    Attributes:
        source: Where the data came from, in public words.
        parts: Every split by its role: ``train``, ``select``, ``test``.
        chosen_on: What of the models was chosen or trained -> digest of the examples.
        overlap: Role -> numbers, from 0, of the test examples whose inputs stand there too.
    """

    source: str
    parts: dict[str, Part]
    chosen_on: dict[str, str]
    overlap: dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Outcome:
    """What came of the claim.

    Attributes:
        candidate: Scores of the candidate by metric; None where one does not exist.
        teacher: Those of the teacher.
        difference: Candidate minus teacher, of the metric of the claim.
        low: Lower end of its interval.
        high: Upper end.
        verdict: ``non-inferior``, ``inferior`` or ``not shown``.
    """

    candidate: dict[str, float | None]
    teacher: dict[str, float | None]
    difference: float | None
    low: float | None
    high: float | None
    verdict: str


@dataclass(frozen=True)
class Stress:
    """What came of perturbed texts; no claim rests on it.

    Attributes:
        seed: Seed of the rules that perturbed them, and of the resampling.
        rows: An ``eval.stress.stress_rows.Stressed`` for each rule, as plain values.
    """

    seed: int
    rows: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, seed: int, rows: Iterable[Stressed]) -> Stress:
        """Return rows as a certificate has them."""
        return cls(seed, tuple(without_nan(asdict(row)) for row in rows))


@dataclass(frozen=True)
class Speed:
    """The ratio of two models' times, measured alternately.

    Attributes:
        batch: Examples of a batch.
        lengths: ``data``, or tokens of each input.
        candidate: Timing of the candidate, as ``eval.cost.latency.LatencyRow`` has it, with its rounds.
        teacher: That of the teacher.
        ratio: Median of the ratios of the same rounds, teacher divided by candidate; without rounds, of the medians.
    """

    batch: int
    lengths: str
    candidate: dict[str, Any]
    teacher: dict[str, Any]
    ratio: float


@dataclass(frozen=True)
class Machine:
    """What decides how fast a model is, and how exact 8-bit products are.

    Attributes:
        cpu: Name of the processor.
        features: Those of its features that matter (``eval.cost.machine.FEATURES``).
        threads: Threads of one product, by library or variable.
    """

    cpu: str
    features: tuple[str, ...]
    threads: dict[str, str]


@dataclass(frozen=True)
class Tolerances:
    """How far a replay may be from what stands here.

    Attributes:
        computed: Relative, of numbers that are computed again from the predictions.
        number: Of a number in a prediction, such as a probability.
        tie: By how much a model that is run again may prefer another label, in units of its largest raw output.
        ratio: By what factor a speed ratio may fall short.
    """

    computed: float = 1e-9
    number: float = 1e-3
    tie: float = 1e-3
    ratio: float = 1.5


@dataclass(frozen=True)
class Certificate:
    """``certificate.json``.

    Attributes:
        format: Version of the form.
        name: Name of the run.
        package: Version of the toolkit.
        task: The task specification, as ``eval.task.TaskSpec`` has it.
        fixed: The claim, as it was fixed.
        looks: Every opening of the split that reports, with its time, the digest of the split, the digests of the
            candidates, and that of the claim.
        outcome: What came of it.
        candidate: The model that is certified.
        teacher: What it is compared with.
        exports: Other models of the run that come from the same weights.
        data: The examples.
        speeds: Speed ratios, if there was a timing.
        machine: Where it was measured.
        tolerances: What a replay may differ by.
        members: SHA-256 of the other members.
        stress: What came of perturbed texts, if the run measured it.
        index: How the candidate's documents were held, where not as float32 vectors; the teacher's always are.
        index_size: What that index takes.
        family: One-sided p-value of each other candidate of the same search, of "it loses its margin or more"; the
            verdict is corrected for all of them by Holm's method.
    """

    format: int
    name: str
    package: str
    task: dict[str, Any]
    fixed: Fixed
    looks: tuple[dict[str, Any], ...]
    outcome: Outcome
    candidate: Model
    teacher: Model
    exports: tuple[Model, ...]
    data: TestData
    speeds: tuple[Speed, ...]
    machine: Machine
    tolerances: Tolerances
    members: dict[str, str]
    stress: Stress | None = None
    index: IndexFields | None = None
    index_size: IndexSize | None = None
    family: tuple[float, ...] = ()


@dataclass(frozen=True)
class Row:
    """One example.

    Attributes:
        digest: SHA-256 of the example (``eval.examples.example_digest``).
        gold: The fields that hold its truth.
        candidate: The candidate's prediction.
        teacher: The teacher's prediction.
        group: The group it belongs to, if it has one.
    """

    digest: str
    gold: dict[str, Any]
    candidate: dict[str, Any]
    teacher: dict[str, Any]
    group: str | None = None


@dataclass(frozen=True)
class Contents:
    """All of a certificate.

    Attributes:
        main: The certificate itself.
        rows: The examples, in the order of the split.
        lineage: ``records`` as in the ``lineage.json`` of a model folder.
        provenance: Recipe, environment, libraries, seeds, commands.
        perturbed: The answers behind ``main.stress``.
    """

    main: Certificate
    rows: tuple[Row, ...]
    lineage: dict[str, Any]
    provenance: dict[str, Any]
    perturbed: tuple[Perturbed, ...] = ()

    def to_bytes(self) -> bytes:
        """Return the bytes of the file, with the digests of the members in ``certificate.json``."""
        rows = [{name: value for name, value in asdict(row).items() if value is not None} for row in self.rows]
        members = {
            ROWS: lines(without_nan(rows)),
            LINEAGE: canonical(without_nan(self.lineage)),
            PROVENANCE: canonical(without_nan(self.provenance)),
        }
        if self.main.stress is not None:
            members[PERTURBED] = lines(without_nan([asdict(each) for each in self.perturbed]))
        main = {name: value for name, value in asdict(self.main).items() if value or name not in UNTOLD}
        main["members"] = {name: sha256(data) for name, data in members.items()}
        return pack({MAIN: canonical(without_nan(main)), **members})

    @classmethod
    def from_bytes(cls, data: bytes) -> Contents:
        """Read what ``to_bytes`` wrote.

        Raises:
            DamagedError: It is no certificate, one of another format, or one whose members do not belong together.
        """
        members = unpack(data, MEMBERS, frozenset({PERTURBED}))
        main = _json(members[MAIN], MAIN)
        if isinstance(main, dict) and main.get("format") != FORMAT:
            found, advice = str(main.get("format"))[:20], "; make it again from its run with `compress certify`"
            raise DamagedError(f"{MAIN}: format {found}; this version reads format {FORMAT}{advice}")
        try:
            certificate = read(main, Certificate, MAIN)
            if (certificate.stress is None) == (PERTURBED in members):
                raise DamagedError(f"{PERTURBED}: belongs to {MAIN} only where that has the field stress")
            for name in sorted(members.keys() - {MAIN}):
                if certificate.members.get(name) != sha256(members[name]):
                    raise DamagedError(f"{name}: is not the member that {MAIN} records")
            rows = tuple(_rows(members, ROWS, Row))
            perturbed = tuple(_rows(members, PERTURBED, Perturbed))
        except (WrongTypeError, UnicodeDecodeError) as error:
            raise DamagedError(str(error)) from error
        lineage, provenance = (_json(members[name], name) for name in (LINEAGE, PROVENANCE))
        if not isinstance(lineage, dict) or not isinstance(provenance, dict):
            raise DamagedError(f"{LINEAGE} and {PROVENANCE}: must be objects")
        return cls(certificate, rows, lineage, provenance, perturbed)


def _rows(members: Mapping[str, bytes], name: str, form: type[Form]) -> Iterator[Form]:
    for number, text in enumerate(members.get(name, b"").decode("ascii").splitlines(), start=1):
        place = f"{name}, line {number}"
        yield read(_json(text, place), form, place)


def _json(data: bytes | str, where: str) -> Any:
    text = data if isinstance(data, str) else data.decode("ascii", "replace")
    try:
        values = parse_json(text)
        same = canonical(values).decode() == text
    except JsonError as error:
        raise DamagedError(f"{where}: {error}") from error
    except (ValueError, RecursionError):
        same = False
    if not same:
        raise DamagedError(f"{where}: is not JSON in its one form")
    return values
