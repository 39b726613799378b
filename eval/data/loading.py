"""A task with its examples, and loading one: from files, the hub or memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from eval.data.arguments import Weights, specification, wrong_arguments
from eval.data.beir import USUAL_TOKENS, tell_long
from eval.data.columns import named_columns
from eval.data.item_checks import Checker
from eval.data.nearest import with_nearest
from eval.data.repeated import with_groups_of_copies
from eval.data.sources import find_sources, in_memory, is_dataset, is_frame, is_rows, unread_split
from eval.data.split_reading import read_splits, truths
from eval.errors import UserError, did_you_mean
from eval.inference import Predictor
from eval.kinds.kind import Kind
from eval.kinds.kind_registry import kind_of
from eval.metrics.own_metric import Function, OwnMetric
from eval.scores import default_metric, unfit
from eval.task import SELECT, Example, Examples, TaskSpec


@dataclass(frozen=True)
class Task:
    """A task specification with the examples it was read with.

    Attributes:
        spec: What is asked.
        splits: Examples by split name (``train``, ``validation``, ``test``, ``unlabeled``, and ``select`` once
            ``eval.data.roles.assign_roles`` has said which examples choose).
        source: Where the data came from, as the user wrote it.
    """

    spec: TaskSpec
    splits: Mapping[str, Examples] = field(default_factory=dict)
    source: str = ""

    @property
    def train(self) -> Examples:
        """The training split; empty if there is none."""
        return self.splits.get("train", Examples((), "train"))

    @property
    def validation(self) -> Examples:
        """The validation split; empty if there is none."""
        return self.splits.get("validation", Examples((), "validation"))

    @property
    def select(self) -> Examples:
        """The examples that choose: those that were given this role, else the validation split."""
        return self.splits.get(SELECT, self.validation)

    @property
    def test(self) -> Examples:
        """The test split; empty if there is none."""
        return self.splits.get("test", Examples((), "test"))

    def lacks(self, split: str) -> str:
        """Return a sentence that says that there is no such split, and what to do."""
        more = "" if kind_of(self.spec.kind).searches else unread_split(self.source, split)
        filled = [name for name, items in self.splits.items() if len(items)]
        return f"there is no split {split!r} in {self.source or 'the task'}{more}{did_you_mean(split, filled)}"

    @classmethod
    def from_pandas(
        cls,
        frame: Any,
        kind: str = "classification",
        *,
        text: str | Sequence[str] | None = None,
        label: str | None = None,
        **more: Any,
    ) -> Task:
        """Return the task of a pandas ``DataFrame``, or of several by split.

        Args:
            frame: A table, which becomes ``validation``, or ``{"train": ..., "test": ...}``.
            kind: Kind of task.
            text: The column with the text, two for a pair; by default usual names are looked for.
            label: The column with the label, likewise.
            more: What else ``load_task`` takes, such as ``max_length`` or ``labels``.

        Raises:
            UserError: As ``load_task``, or it is no DataFrame.

        Examples:
            >>> import pandas
            >>> films = pandas.DataFrame({"said": ["a warm film", "a dull film"], "stars": ["good", "bad"]})
            >>> Task.from_pandas({"train": films}, text="said", label="stars").train[0]
            {'text': 'a warm film', 'label': 'good'}
        """
        return _from_memory("from_pandas", "a pandas DataFrame", frame, is_frame, kind, text, label, more)

    @classmethod
    def from_datasets(
        cls,
        data: Any,
        kind: str = "classification",
        *,
        text: str | Sequence[str] | None = None,
        label: str | None = None,
        **more: Any,
    ) -> Task:
        """Return the task of a ``datasets.DatasetDict`` or ``Dataset``; numbers of a ``ClassLabel`` become its names.

        Args:
            data: Splits under the names ``train``, ``validation``, ``test`` and ``unlabeled``, or one split.
            kind: Kind of task.
            text: As for ``from_pandas``; for tagging, the column with the tokens.
            label: As for ``from_pandas``; for tagging, the column with the tags.
            more: As for ``from_pandas``.

        Raises:
            UserError: As ``load_task``, or it is no data set.
        """
        return _from_memory("from_datasets", "a datasets.Dataset", data, is_dataset, kind, text, label, more)

    @classmethod
    def from_list(
        cls,
        rows: Any,
        kind: str = "classification",
        *,
        text: str | Sequence[str] | None = None,
        label: str | None = None,
        **more: Any,
    ) -> Task:
        """Return the task of a list of dicts, or of several by split.

        Args:
            rows: A dict for each example, all of them ``validation``, or ``{"train": [...], "test": [...]}``.
            kind: Kind of task.
            text: As for ``from_datasets``.
            label: As for ``from_datasets``.
            more: As for ``from_pandas``.

        Raises:
            UserError: As ``load_task``, or it is no list of dicts.

        Examples:
            >>> rows = [{"words": ["Ann", "left"], "ner": ["B-PER", "O"]}]
            >>> Task.from_list({"train": rows}, "tagging").spec.labels
            ('O', 'B-PER')
        """
        return _from_memory("from_list", "a list of dicts", rows, is_rows, kind, text, label, more)


def _from_memory(
    caller: str,
    wanted: str,
    data: Any,
    fits: Callable[[Any], bool],
    kind: str,
    text: str | Sequence[str] | None,
    label: str | None,
    more: Mapping[str, Any],
) -> Task:
    tables = data.values() if isinstance(data, Mapping) else [data]
    if wrong := dict.fromkeys(type(table).__name__ for table in tables if not fits(table)):
        raise UserError(
            f"{caller}: got {', '.join(wrong)}; give {wanted}, alone or by split ({{'train': ..., 'test': ...}})"
        )
    return load_task(kind, data, columns=named_columns(kind_of(kind), text, label), **more)


def load_task(
    kind: str,
    data: Any = None,
    *,
    metric: str | Function | None = None,
    labels: Sequence[str] | None = None,
    label_map: Mapping[str, str] | None = None,
    max_length: int | None = None,
    stride: int | None = None,
    truncation: str | None = None,
    truncation_side: str = "right",
    pooling: str | None = None,
    normalize: bool | None = None,
    prompt: str | None = None,
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    target_length: int | None = None,
    beams: int | None = None,
    length_penalty: float | None = None,
    negatives: int | None = None,
    first_stage: str | None = None,
    class_weights: Weights | None = None,
    choose_thresholds: bool | None = None,
    on_bad: str = "refuse",
    files: Mapping[str, str | Path] | None = None,
    columns: Mapping[str, str] | None = None,
    limit: Mapping[str, int] | None = None,
    seed: int = 13,
    keep_labels: bool = False,
    embedder: Callable[[str], Predictor] | None = None,
) -> Task:
    """Read a data set and say what it asks.

    Args:
        kind: classification, multilabel, regression, tagging, qa, qa-with-null, masked-lm, embedding,
            multiple-choice, which also reads the rows of SWAG and RACE (see ``eval.kinds.choice_formats``), retrieval
            or reranking, which read a folder in the layout of BEIR (see ``eval.data.beir``), or one of another package
            (``eval.kinds``).
        data: A folder with a file a split (``train``, ``validation``, ``test``, ``unlabeled``; .jsonl, .json, .csv,
            .tsv, .parquet, .txt, also with .gz), one file (``validation``, unless it is called after another split), a
            folder written by ``datasets.save_to_disk``, or a hub name ``owner/name[:config]``; or a table in memory: a
            pandas ``DataFrame``, a ``datasets.Dataset`` or a list of dicts, alone (``validation``) or by split
            (``{"train": ..., "test": ...}``, ``datasets.DatasetDict``).
        metric: The primary metric; by default accuracy, micro_f1, spearman, entity_f1, f1 or masked_accuracy, for
            multiple-choice accuracy, for seq2seq chrf, for embedding spearman (pairs) or nearest (single texts), and
            for retrieval and reranking ndcg@10. Or a function of your own, ``(y_true, y_pred) -> float``, higher is
            better (see ``eval.metrics.own_metric``).
        labels: Labels in the order of their ids; by default those of the train split (or else of the first split that
            has any) in alphabetical order, for tagging with O first.
        label_map: New name of labels in the files; it is applied before all else. For regression, and for pairs of
            embedding, the number that a name stands for.
        max_length: Most tokens of one input; by default 128, for qa 384, and for embedding what the folder of the model
            says, if it does.
        stride: Tokens that neighbouring windows share; by default 32, for qa 128.
        truncation: longest_first (by default), only_first (for multiple-choice: the text, not its choices) or
            only_second.
        truncation_side: left or right.
        pooling: For embedding: mean, first, max, weighted_mean or last; by default what the model's folder says, or
            mean.
        normalize: For embedding: whether vectors are scaled to length 1; by default likewise, or they are.
        prompt: For embedding: what is put before each text; by default likewise, or nothing. For seq2seq likewise.
        query_prompt: For embedding: what is put before queries in its place; by default likewise, or ``prompt``.
        document_prompt: Likewise before documents.
        target_length: For seq2seq: most tokens that are written, and of a target that are learned; by default 128.
        beams: For seq2seq: beginnings that a beam search keeps; by default 1, which takes the likeliest token.
        length_penalty: For seq2seq with beams: as in ``TaskSpec``; by default 1.
        negatives: For retrieval and reranking: as in ``TaskSpec``; by default 4.
        first_stage: For reranking: what finds the documents that are sorted: ``bm25``, by default, or the folder of an
            embedder, which ``embedder`` opens.
        class_weights: ``balanced`` (n / (classes * count) over the training examples that are used, or over the whole
            split where a limit leaves a label out), or the weight of some labels, where others weigh 1; for multilabel
            that of its examples, against those without it.
        choose_thresholds: For multilabel: whether whatever is trained gets, for each label, the probability from which
            it is answered that is best for ``Task.select``; by default it is 0.5. For qa-with-null likewise the null
            threshold; by default it is chosen, else it is 0.
        on_bad: Whether bad items refuse the data (``refuse``) or are left out and counted (``skip``).
        files: The file of a split, or the data set's own name of a split.
        columns: The file's column for each of our fields, such as ``{"text": "sentence"}``; usual names are found by
            themselves (``eval.data.columns``), and told.
        limit: Most examples of a split; a sample is drawn.
        seed: Draws the samples.
        keep_labels: For embedding: whether ``train`` keeps its labels, to learn from them without a teacher.
        embedder: Opens the folder that ``first_stage`` names, as ``compress.export.embedder.open_embedder`` does: a
            model of kind retrieval.

    A ``test`` split without any label counts as unlabelled, and so does one whose numbers are all the same, or whose
    labels are all -1, which no label is called, as where the truth is kept secret. Items of ``unlabeled`` never keep
    one.

    A teacher's vectors are learned from texts alone: for embedding ``train`` keeps no labels unless ``keep_labels``
    asks for them, takes single texts and pairs alike, and gets the texts of ``unlabeled`` too; a ``validation`` without
    labels is no error, it just cannot be scored.

    Raises:
        UserError: An argument is wrong, nothing can be read, or items are bad; all of it at once, as far as possible.

    Examples:
        >>> import json, pathlib
        >>> films = [{"text": "a warm film", "label": "good"}, {"text": "a dull film", "label": "bad"}]
        >>> _ = pathlib.Path("films.json").write_text(json.dumps(films))
        >>> task = load_task("classification", data="films.json", max_length=64)
        >>> task.spec.labels, task.spec.metric, len(task.validation)
        (('bad', 'good'), 'accuracy', 2)
    """
    if callable(metric):
        metric = OwnMetric(metric)
    columns, label_map, limit = dict(columns or {}), dict(label_map or {}), dict(limit or {})
    problems = wrong_arguments(kind, labels, class_weights, on_bad, columns, limit)
    try:
        spec = specification(
            kind,
            metric,
            max_length=max_length,
            stride=stride,
            truncation=truncation,
            truncation_side=truncation_side,
            pooling=pooling,
            normalize=normalize,
            prompt=prompt,
            query_prompt=query_prompt,
            document_prompt=document_prompt,
            target_length=target_length,
            beams=beams,
            length_penalty=length_penalty,
            negatives=negatives,
            first_stage=first_stage,
            choose_thresholds=choose_thresholds,
        )
    except UserError as error:
        raise UserError(*error.problems, *problems) from None
    if problems:
        raise UserError(*problems)
    sources = find_sources(data, files or {}, searched=kind_of(kind).searches)
    unknown = [
        f"limit: there is no split {name!r}{unread_split(data, name)}{did_you_mean(name, sources)}"
        for name in limit
        if name not in sources
    ]
    if unknown:
        raise UserError(*unknown)
    checker = Checker(kind, columns, {str(old): str(new) for old, new in label_map.items()})
    checker.labels = None if labels is None else [str(label) for label in labels]
    splits = read_splits(sources, checker, on_bad, keep_labels)
    checker.tell_columns()
    spec = spec.model_copy(update=_found(spec, checker, metric))
    misfit = unfit(spec.metric, spec)
    if misfit:
        raise UserError(f"metric: {misfit}")
    whole = splits.get("train", ())
    splits = {name: split.sample(limit[name], seed) if name in limit else split for name, split in splits.items()}
    weights = _weights(spec, class_weights, splits.get("train", ()), whole)
    spec = spec.model_copy(update={"class_weights": weights})
    if checker.kind.searches:
        said = spec.max_length if "max_length" in spec.model_fields_set else USUAL_TOKENS
        tell_long(str(data), chain.from_iterable(splits.values()), said)
        splits = with_nearest(spec.first_stage, embedder, splits)
    named = (files or {}).values() if data is None else [data]
    source = "" if in_memory(data) else ", ".join(map(str, named))
    splits = with_groups_of_copies(kind, _arranged(checker.kind, spec, splits), source or "data")
    return Task(spec, splits, source)


def _found(spec: TaskSpec, checker: Checker, metric: str | None) -> dict[str, Any]:
    """Return the fields of the specification that the data decides."""
    if checker.kind.vectors and checker.pair is None:  # no item has a label
        return {}
    pair = bool(checker.pair)
    return {"labels": tuple(checker.labels or ()), "pair": pair, "metric": metric or default_metric(spec.kind, pair)}


def _arranged(kind: Kind, spec: TaskSpec, splits: Mapping[str, Examples]) -> dict[str, Examples]:
    """Return the splits as the kind learns from them and measures them."""
    skipped = {name: split.skipped for name, split in splits.items()}
    joined = skipped.get("train", 0) + skipped.get("unlabeled", 0)
    found = kind.arranged(spec, splits)
    if "unlabeled" not in found:  # its texts stand in train
        skipped["train"] = joined
    return {
        name: split if isinstance(split, Examples) else Examples(split, name, skipped.get(name, 0))
        for name, split in found.items()
    }


def balanced_weights(spec: TaskSpec, train: Iterable[Example]) -> tuple[float, ...]:
    """Return n / (classes * count) of each label.

    Raises:
        UserError: A label never occurs.
    """
    counts = Counter(truths(kind_of(spec.kind), train))
    never = [label for label in spec.labels if not counts[label]]
    if never:
        raise UserError(f"class_weights: balanced needs every label in the train split; missing: {', '.join(never)}")
    return tuple(counts.total() / (len(spec.labels) * counts[label]) for label in spec.labels)


def _weights(
    spec: TaskSpec, given: Weights | None, used: Iterable[Example], whole: Iterable[Example]
) -> tuple[float, ...] | None:
    """Return the weight of each label; ``whole`` is the split of which ``used`` is what a limit leaves."""
    if given is None:
        return None
    if isinstance(given, str):
        has_all = set(spec.labels) <= {*truths(kind_of(spec.kind), used)}
        return balanced_weights(spec, used if has_all else whole)
    known = frozenset(spec.labels)
    problems = [
        f"class_weights: there is no label {label!r}{did_you_mean(label, spec.labels)}"
        for label in given
        if label not in known
    ]
    problems += [
        f"class_weights: {label}: got {weight!r}; must be a finite number above 0"
        for label, weight in given.items()
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < math.inf
    ]
    if problems:
        raise UserError(*problems)
    return tuple(float(given.get(label, 1.0)) for label in spec.labels)
