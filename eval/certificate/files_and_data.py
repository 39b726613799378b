"""Level 2: whether models and data at hand are those of a certificate, file by file and example by example."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.certificate.canonical import without_nan
from eval.certificate.contents import LINEAGE, Contents, Model
from eval.certificate.findings import Finding, Word
from eval.certificate.model_files import model_files
from eval.certificate.overlap import overlap_of
from eval.errors import UserError, quantity
from eval.example_digests import example_digest, examples_digest, groups_of
from eval.examples import Example
from eval.files.json_text import JsonError, read_json
from eval.ranking.document_set import documents_of

Splits = Mapping[str, Sequence[Example]]
"""Examples by role: ``test``, and ``train`` and ``select`` where there are any."""
ChosenOn = Callable[[], Mapping[str, str]]
"""Returns what models at hand say was trained or chosen -> digest of the examples; asked once their files are right."""


def check_files_and_data(
    contents: Contents,
    model: Path | None = None,
    teacher: Sequence[Path] = (),
    splits: Splits | None = None,
    chosen_on: ChosenOn | None = None,
) -> Finding:
    """Compare digests; what is not given is named, and gives ``PARTIAL``.

    Args:
        contents: The certificate.
        model: Folder of the candidate.
        teacher: Folder of the teacher, or of each of several.
        splits: The examples.
        chosen_on: Reads the records in these folders; None leaves that out.
    """
    main = contents.main
    other = [*_differences("model", main.candidate, [] if model is None else [model])]
    other += _differences("teacher", main.teacher, list(teacher))
    if other:
        return Finding(2, Word.OTHER_MODEL, tuple(other))
    if untold := [*_other_lineage(contents, model), *_untold(contents, chosen_on)]:
        return Finding(2, Word.INVALID, tuple(untold))
    if splits is not None and (different := list(_other_data(contents, splits))):
        return Finding(2, Word.OTHER_DATA, tuple(different))
    given = {"--model": model is not None, "--teacher": bool(teacher), "--data": splits is not None}
    absent = [f"{name} was not given" for name, is_there in given.items() if not is_there]
    return Finding(2, Word.PARTIAL if absent else Word.VALID, tuple(absent))


def _differences(role: str, known: Model, folders: list[Path]) -> Iterator[str]:
    """Name the first file that differs."""
    if not folders:
        return
    found = model_files(folders)
    for name in sorted(known.files.keys() | found.keys()):
        if name not in found:
            yield f"{role}: {name} is missing in {', '.join(map(str, folders))}"
        elif name not in known.files:
            yield f"{role}: {name} is no file of the certified model"
        elif found[name] != known.files[name]:
            yield f"{role}: {name} is another file than that of the certificate"
        else:
            continue
        return


def _other_lineage(contents: Contents, model: Path | None) -> Iterator[str]:
    """Say whether the records of the certificate are those that lie beside the model; an export has none there."""
    file = None if model is None else model / LINEAGE
    if file is None or not file.is_file():
        return
    try:
        same = without_nan(read_json(file)) == contents.lineage
    except (JsonError, OSError) as error:
        raise UserError(f"{file}: cannot be read ({error})") from error
    if not same:
        yield f"{LINEAGE}: the records of the certificate are not those of the model"


def _untold(contents: Contents, chosen_on: ChosenOn | None) -> Iterator[str]:
    """Name what the models say was trained or chosen on examples that the certificate does not name."""
    told = set(contents.main.data.chosen_on.values())
    for what, digest in sorted((chosen_on() if chosen_on is not None else {}).items()):
        if digest == contents.main.fixed.claim.digest:
            yield f"data: the test split was used for selection ({what})"
        elif digest not in told:
            yield f"data: {what} is by examples that the certificate does not name"


def _other_data(contents: Contents, splits: Splits) -> Iterator[str]:
    """Name the first example of the test split that differs, else the split that does."""
    test, rows, data = splits.get("test", ()), contents.rows, contents.main.data
    groups = groups_of(test) or [None] * len(test)
    for number, (example, group, row) in enumerate(zip(test, groups, rows, strict=False)):
        if example_digest(example) != row.digest:
            yield f"example {number} of the test split (from 0) is another one than that of the certificate"
            return
        truth = {field: example.get(field) for field in row.gold}
        if _plain(truth) != row.gold:
            yield f"example {number} of the test split (from 0): its truth is not that of the certificate"
            return
        if group != row.group:
            yield f"example {number} of the test split (from 0): its group is not that of the certificate"
            return
    if len(test) != len(rows):
        yield f"the test split has {quantity(len(test), 'example')}, the certificate {len(rows):,}"
        return
    for role in sorted(set(data.parts) | set(splits)):
        digest = examples_digest(splits.get(role, ()))
        if role not in data.parts or data.parts[role].digest != digest:
            yield f"the {role} split is another one than that of the certificate"
            return
    size = contents.main.index_size
    if size is not None and (there := documents_of(test)) != size.documents:
        yield f"the test queries search {there:,} documents, the index of the certificate has {size.documents:,}"
        return
    kind = str(contents.main.task.get("kind"))
    found = {role: overlap_of(kind, test, splits[role]) for role in splits if role != "test"}
    for role, shared in found.items():
        if shared != (named := data.overlap.get(role, ())):
            yield f"{len(shared):,} test examples stand in {role} too, the certificate names {len(named):,}"


def _plain(value: Any) -> Any:
    """Return a value as JSON gives it back."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
