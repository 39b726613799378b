"""Where the splits of a data set are: files of a folder, one file, a saved ``datasets`` folder, the hub, or memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from eval.data.beir import beir_rows, is_beir
from eval.data.readers import FORMATS, format_of, read
from eval.data.table_readers import read_dataset
from eval.errors import UserError, did_you_mean, nearest
from eval.files.paths import near_path, user_path
from eval.files.rows import Row

SPLITS = ("train", "validation", "test", "unlabeled")
"""Names of splits that are looked for; others are read when ``files`` names them."""
HUB_NAME = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(:(?P<config>[\w.-]+))?")


@dataclass(frozen=True)
class Source:
    """One split that can be read.

    Attributes:
        name: What messages call it.
        rows: Reads it.
        path: Its file, if it is one.
    """

    name: str
    rows: Callable[[], Iterator[Row]]
    path: Path | None = None

    @classmethod
    def of(cls, file: Path) -> Source:
        """Return a file as a split."""
        return cls(str(file), partial(read, file), file)


def find_sources(data: Any, files: Mapping[str, str | Path], *, searched: bool = False) -> dict[str, Source]:
    """Return what can be read, by split; ``train`` first.

    Args:
        data: A folder, a file, a saved ``datasets`` folder or a hub name; what ``in_memory`` knows; None if ``files``
            says all.
        files: The file of a split (beside ``data``, or anywhere), or the data set's own name of a split.
        searched: Whether there must be documents that are searched: a folder in the layout of BEIR.

    Raises:
        UserError: Nothing is there, or it is not clear which file is meant.
    """
    if searched:
        return _searched(data, files)
    if data is None and not files:
        raise UserError("load_task: say where the data is: data (a folder, a file or a hub name) or files, one a split")
    path = user_path(data) if isinstance(data, str | Path) else None
    if data is not None and path is None:
        found = _in_memory(data, files)
    elif path is not None and not path.exists():
        found = _dataset_sources(_from_hub(str(data)), str(data), files)
    elif path is not None and any((path / name).is_file() for name in ("dataset_dict.json", "dataset_info.json")):
        found = _dataset_sources(_from_disk(path), str(data), files)
    else:
        found = _file_sources(path, files)
    order = [*SPLITS, *found]
    return dict(sorted(found.items(), key=lambda item: order.index(item[0])))


def _searched(data: Any, files: Mapping[str, str | Path]) -> dict[str, Source]:
    """Return the splits of a folder in the layout of BEIR, which is read whole."""
    folder = user_path(data) if isinstance(data, str | Path) else None
    problems = ["files: the judgements of a split stand in qrels/train.tsv, dev.tsv or test.tsv; leave files out"] * (
        len(files) > 0
    )
    if folder is None or not folder.is_dir():
        problems.append(
            f"data: got {data if folder is not None else type(data).__name__}; give a folder with corpus.jsonl, "
            "queries.jsonl and qrels/*.tsv, as BEIR has them"
        )
    if problems or folder is None:
        raise UserError(*problems)
    return {split: Source(f"{folder} ({split})", partial(iter, rows)) for split, rows in beir_rows(folder).items()}


def in_memory(data: Any) -> bool:
    """Whether data is a table in memory, or several by split: a pandas DataFrame, rows as dicts, a ``datasets`` one."""
    return data is not None and not isinstance(data, str | Path)


def _in_memory(data: Any, files: Mapping[str, str | Path]) -> dict[str, Source]:
    if isinstance(data, Mapping) and not is_dataset(data):
        tables = {str(split): table for split, table in data.items()}
    elif is_dataset(data):
        return _dataset_sources(data, "data", files)
    else:
        tables = {"validation": data}
    rows = {split: _rows(table) for split, table in tables.items()}
    wrong = [
        f"data: {split}: got {type(tables[split]).__name__}; give a pandas DataFrame, a datasets.Dataset or a list of "
        "dicts, alone or by split ({'train': ..., 'test': ...})"
        for split, found in rows.items()
        if found is None
    ]
    wrong += [
        f"data: {split}: names the column {str(name)!r} twice; give each column a name of its own"
        for split, table in tables.items()
        if is_frame(table)
        for name, count in Counter(table.columns).items()
        if count > 1
    ]
    if files:
        wrong.append("files: belongs to data on disk; give the splits as {'train': ..., 'test': ...}")
    if wrong or not tables:
        raise UserError(*wrong or ["data: has no split"])
    return {split: Source(split, found) for split, found in rows.items() if found is not None}


def is_dataset(table: Any) -> bool:
    """Whether a table is one of the ``datasets`` library."""
    return hasattr(table, "save_to_disk")


def is_frame(table: Any) -> bool:
    """Whether a table is a pandas ``DataFrame``."""
    return hasattr(table, "to_dict") and hasattr(table, "columns")


def is_rows(table: Any) -> bool:
    """Whether a table is a list of dicts."""
    return isinstance(table, Sequence) and all(isinstance(row, Mapping) for row in table)


def _rows(table: Any) -> Callable[[], Iterator[Row]] | None:
    """Return what reads a table in memory, or None if it is none."""
    if is_dataset(table):
        return partial(read_dataset, table, "data")
    if is_frame(table):
        return lambda: _plain_rows(table.to_dict("records"))
    return partial(_plain_rows, table) if is_rows(table) else None


def _plain_rows(rows: Sequence[Mapping[Any, Any]]) -> Iterator[Row]:
    for number, row in enumerate(rows, start=1):
        yield Row(f"row {number}", {str(name): _plain(value) for name, value in row.items()})


def _plain(value: Any) -> Any:
    """Return a value of a table in memory as a file would give it: NumPy's arrays, as parquet has lists, are lists."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return None if _is_nan(value) else value


def _is_nan(value: Any) -> bool:
    """Whether a value is what pandas writes where there is none."""
    return isinstance(value, float) and value != value


def _file_sources(path: Path | None, files: Mapping[str, str | Path]) -> dict[str, Source]:
    folder = path.parent if path is not None and path.is_file() else path
    named = {split: _place(folder, user_path(file)) for split, file in files.items()}
    problems = [f"files: {split}: there is no file {file}" for split, file in named.items() if not file.is_file()]
    if path is not None and path.is_file():
        found = {_split_of(path) if _split_of(path) in SPLITS else "validation": path}
    else:
        found = {} if path is None else _split_files(path, set(named), problems)
    places = {**{split: file for split, file in found.items() if file not in named.values()}, **named}
    problems += [
        f"{file}: unknown format; allowed: {', '.join(FORMATS)}, and .gz behind all but .parquet"
        for file in places.values()
        if format_of(file) is None
    ]
    if not places and not problems:
        there = sorted(file.name for file in (path or Path()).iterdir())[:10]
        cure = "name others with files: {train: ...}"
        if is_beir(path):
            cure = "documents and queries are read with kind: retrieval, or of a reranker kind: reranking"
        problems.append(
            f"{path}: no file of a split here; expected train, validation, test or unlabeled with one of "
            f"{' '.join(FORMATS)}; there is {', '.join(there) or 'nothing'}; {cure}"
        )
    if problems:
        raise UserError(*problems)
    return {split: Source.of(file) for split, file in places.items()}


def _place(folder: Path | None, file: Path) -> Path:
    return folder / file if folder is not None and (folder / file).is_file() else file


def _split_of(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).stem


def unread_split(data: Any, split: str) -> str:
    """Return which splits are read of a folder, and how a recipe reads another one.

    Nothing is said where data is no folder, or a split was meant that would have been read.

    Args:
        data: As for ``find_sources``.
        split: The name of a split that was not read.
    """
    folder = user_path(data) if isinstance(data, str | Path) and str(data) else None
    if not split or split in SPLITS or folder is None or not folder.is_dir():
        return ""
    there = sorted(file.name for file in folder.iterdir() if _split_of(file) == split and format_of(file) is not None)
    if not there and nearest(split, SPLITS):
        return ""
    named = f"task: {{files: {{{split}: {there[0] if there else 'FILE'}}}}}"
    return f" (of a folder {', '.join(SPLITS)} are read; {named} in a recipe names further ones)"


def _split_files(folder: Path, named: set[str], problems: list[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for split in (split for split in SPLITS if split not in named):
        there = sorted(file for file in folder.iterdir() if _split_of(file) == split and format_of(file) is not None)
        if len(there) > 1:
            names = ", ".join(file.name for file in there)
            problems.append(f"{folder}: several files of {split}: {names}; choose with files: {{{split}: ...}}")
        elif there:
            found[split] = there[0]
    return found


def _dataset_sources(data: Any, name: str, files: Mapping[str, str | Path]) -> dict[str, Source]:
    splits = dict(data) if isinstance(data, dict) else {str(data.split or "validation"): data}
    named = {split: str(own) for split, own in files.items()}
    wanted = {split: split for split in SPLITS if split in splits and split not in named.values()} | named
    unknown = [
        f"{name}: files: {split}: there is no split {own!r}{did_you_mean(own, splits)}"
        for split, own in wanted.items()
        if own not in splits
    ]
    if unknown or not wanted:
        raise UserError(
            *unknown or [f"{name}: has the splits {', '.join(splits)}; name one with files: {{train: ...}}"]
        )
    return {
        split: Source(f"{name} ({own})", partial(read_dataset, splits[own], f"{name} ({own})"))
        for split, own in wanted.items()
    }


def _from_disk(path: Path) -> Any:
    import datasets

    try:
        return datasets.load_from_disk(str(path))
    except Exception as error:
        raise UserError(f"{path}: cannot be read by datasets.load_from_disk: {error}") from error


def _from_hub(name: str) -> Any:
    match = HUB_NAME.fullmatch(name)
    if match is None:
        raise UserError(
            f"{name}: no such file or folder, and no hub name (owner/name or owner/name:config) either{near_path(name)}"
        )
    if Path(name).parent.is_dir() or name.lower().removesuffix(".gz").endswith(FORMATS):
        raise UserError(f"{name}: there is no such file or folder{near_path(name)}")
    import datasets

    try:
        return datasets.load_dataset(match["name"], match["config"])
    except Exception as error:
        raise UserError(
            f"{name}: there is no such folder, so it was taken as the name of a data set on the hub, "
            f"which could not be loaded ({type(error).__name__}: {error}); "
            f"give a folder that exists, or check the name and the connection{near_path(name)}"
        ) from error
