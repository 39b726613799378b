"""What flows through a recipe: a model that knows how it came to be; saved, and loaded by whatever name it has."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from compress.architectures import prepare
from compress.artifact.lineage import FILE as LINEAGE
from compress.artifact.lineage import read_lineage
from compress.artifact.record import HEAD, SOURCE, THRESHOLDS, Record, choices, outcome_of
from compress.artifact.store import is_artifact, read, write
from compress.artifact.structure import structure_of
from eval.data.loading import Task
from eval.errors import UserError
from eval.files.paths import at_home
from eval.kinds.kind_registry import kind_of
from eval.naming import public_name
from eval.task import Examples, TaskSpec
from teachers.chosen_on import chosen_on
from teachers.folder_task import in_own_order, keeping_thresholds
from teachers.sentence_folder import as_said
from teachers.taskmodel import TaskModel, load_taskmodel, with_head
from teachers.training.threshold_choice import with_thresholds

EXPORT_FILE = "export.json"
"""What ``compress.export`` writes into every folder of its own, and a model's has not."""


@dataclass(frozen=True)
class Artifact(TaskModel):
    """A model, its tokenizer, its task, and the chain of records that led to it.

    Attributes:
        lineage: Records, oldest first; each one's ``weights_before`` is the ``weights_after`` of the one before.
    """

    lineage: tuple[Record, ...] = ()

    @property
    def training_seed(self) -> int | None:
        """Seed of the last step that drew anything; None of a model that was not made here."""
        return next((record.seed for record in reversed(self.lineage) if record.seed is not None), None)

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        task: Task | TaskSpec | None = None,
        *,
        seed: int = 0,
        accept_incomplete: bool = False,
    ) -> Artifact:
        """Load an artifact folder with its lineage, or any standard model folder or hub name as a new source.

        Args:
            source: The folder or name.
            task: What is asked; None takes what the model was made for. An artifact for another kind of task gets a
                new head and a record of it.
            seed: Seeds a new head.
            accept_incomplete: Whether weights that are missing, unexpected, of another shape or not finite are only
                logged; for standard Hugging Face folders alone.

        Raises:
            UserError: If the folder is missing, damaged, incomplete, or its lineage does not fit its weights.
        """
        spec = task.spec if isinstance(task, Task) else task
        found = load_model(source, spec, seed, accept_incomplete=accept_incomplete)
        return cls.from_model(found, origin=public_name(str(source)))

    @classmethod
    def from_model(cls, model: TaskModel, origin: str = "memory") -> Artifact:
        """Start a lineage at a model that was not made here."""
        if isinstance(model, cls):
            return model
        from eval.report.hub_header import inherited

        record = Record(
            technique=SOURCE,
            config={"origin": origin},
            chosen_on=model.chosen_on,
            facts=inherited(model.folder),
            **outcome_of(model),
        )
        return cls(model.model, model.tokenizer, model.task, name=model.name, folder=model.folder, lineage=(record,))

    @property
    def chosen_on(self) -> dict[str, str]:
        """What was chosen, or learned, on the way to it -> digest of the examples, its teacher's choices included."""
        return chosen_on(self.folder) | choices(self.lineage)

    def with_task(self, task: TaskSpec, seed: int = 0) -> Artifact:
        """Return a copy of the encoder with a new head for another kind of task, and a record that says so.

        Args:
            task: What the copy answers.
            seed: Seeds the head.

        Raises:
            UserError: If the family has no head for this kind of task, or the network is no longer standard.
        """
        if structure_of(self.model):
            raise UserError(
                f"{self.name}: its parts are no longer those of a standard network, so it cannot get a head for "
                f"{task.kind}; give it its task before the steps that change its parts"
            )
        started = time.perf_counter()
        model = with_head(self, task, seed)
        record = Record(
            technique=HEAD,
            config={"kind": task.kind, "labels": list(task.labels), "from": self.task.kind},
            seed=seed,
            size_before=self.lineage[-1].size_after,
            weights_before=self.lineage[-1].weights_after,
            **outcome_of(model),
            seconds=round(time.perf_counter() - started, 3),
        )
        return Artifact(model.model, model.tokenizer, task, name=self.name, lineage=(*self.lineage, record))

    def with_thresholds(self, examples: Examples) -> Artifact:
        """Return the model with the thresholds that are best for examples, if its task asks for it, and a record of it.

        Args:
            examples: Those that choose, with their truths.
        """
        started = time.perf_counter()
        made = with_thresholds(self, examples)
        if made is self:
            return self
        last = self.lineage[-1]
        record = Record(
            technique=THRESHOLDS,
            data={"selection": examples.digest},
            facts={"thresholds": list(made.task.thresholds)},
            size_before=last.size_after,
            weights_before=last.weights_after,
            **outcome_of(made),
            seconds=round(time.perf_counter() - started, 3),
        )
        return replace(made, folder=None, lineage=(*self.lineage, record))

    def save(self, folder: str | Path) -> Path:
        """Write a Hugging Face folder with ``lineage.json`` and a model card; beside, then renamed.

        Args:
            folder: A new or empty folder, or one of a model, which is replaced.

        Raises:
            UserError: If the folder holds something else.
            CompressError: If the disk refuses; the old folder stays.
        """
        place = Path(folder)
        if place.exists() and not _may_be_replaced(place):
            raise UserError(f"{folder}: is there already and no model; choose another folder or remove it")
        return write(self, self.lineage, folder)

    def push_to_hub(
        self,
        name: str,
        *,
        private: bool = True,
        revision: str | None = None,
        license: str | None = None,  # noqa: A002 (the hub's own name)
        token: str | None = None,
    ) -> str:
        """Upload the model to the Hugging Face hub and return the address: its folder, or a new one if it has none.

        Args:
            name: ``user/name`` of the repository, which is made if it is not there.
            private: Whether a new repository is private; one that is there stays as it is.
            revision: Branch, made if it is not there; by default the main one.
            license: Written into the card, such as ``apache-2.0``; by default the card stays as it is.
            token: By default that of ``HF_TOKEN`` or ``hf auth login``.

        Raises:
            UserError: If name, card or token forbid it.
            CompressError: If the hub cannot be reached or fails.
        """
        from eval.report.hub_upload import upload

        how: dict[str, Any] = {"private": private, "revision": revision, "license": license, "token": token}
        own = self.folder
        if own is not None and is_artifact(own) and read_lineage(own / LINEAGE) == self.lineage:
            return upload(own, name, **how)
        with TemporaryDirectory() as place:
            return upload(self.save(Path(place) / "model"), name, **how)

    def history(self) -> str:
        """Return the lineage as a table in plain text."""
        lines = [f"{'step':<24}{'parameters':>14}{'MB':>9}{'seconds':>10}  config"]
        for record in self.lineage:
            size = record.size_after
            shown = {key: value for key, value in record.config.items() if key != "training" and value is not None}
            config = ", ".join(f"{key}={value}" for key, value in shown.items())
            lines.append(
                f"{record.technique:<24}{size.get('parameters', 0):>14,}{size.get('bytes', 0) / 1e6:>9.1f}"
                f"{record.total_seconds:>10.1f}  {config[:100]}"
            )
        return "\n".join(lines)


def load(folder: str | Path) -> Artifact:
    """Load an artifact and check its weights, and the files beside them, against its lineage.

    Raises:
        UserError: If a file is missing or damaged, a record is missing or was changed, or the weights, config,
            tokenizer or task are not those recorded.

    Examples:
        >>> from transformers import BertConfig, BertForSequenceClassification, BertTokenizer
        >>> from compress import Artifact
        >>> from eval import TaskSpec
        >>> from teachers import TaskModel
        >>> words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"]
        >>> config = BertConfig(
        ...     vocab_size=7, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
        ... )
        >>> network = TaskModel(
        ...     BertForSequenceClassification(config),
        ...     BertTokenizer({word: row for row, word in enumerate(words)}),
        ...     TaskSpec(kind="classification", labels=("bad", "good")),
        ... )
        >>> folder = Artifact.from_model(network).save("small")
        >>> [record.technique for record in load(folder).lineage]
        ['source']
    """
    model, lineage = read(folder)
    return Artifact(model.model, model.tokenizer, model.task, name=model.name, folder=model.folder, lineage=lineage)


def load_model(
    source: str | Path,
    task: TaskSpec | None = None,
    seed: int = 0,
    *,
    accept_incomplete: bool = False,
    new_head: bool = True,
) -> TaskModel:
    """Load whatever a folder or hub name holds: an artifact with its lineage, or a standard Hugging Face model.

    Everything that takes a model by its name loads it here, so what one block of a recipe opens, all do.

    Args:
        source: The folder or hub name.
        task: What is asked; None takes what the model was made for.
        seed: Seeds a new head.
        accept_incomplete: Whether weights that are missing, unexpected, of another shape or not finite are only
            logged; for standard Hugging Face models alone.
        new_head: Whether a model without a head for the task gets a random one, to be trained.

    Raises:
        UserError: If the model is missing, damaged or incomplete, does not answer the task, or would need a new head
            that ``new_head`` does not allow.
    """
    source = at_home(str(source))
    if not is_artifact(source):
        if (Path(source) / EXPORT_FILE).is_file():
            raise UserError(f"{source}: is an export; take the model folder that it was made from")
        prepare(source)
        found = load_taskmodel(source, task, seed=seed, accept_incomplete=accept_incomplete)
        if not new_head and (made_for := made_without_head(found)):
            raise UserError(_headless(source, made_for, found.task.kind))
        return found
    artifact = load(source)
    if task is None:
        return artifact
    if task.kind != artifact.task.kind and artifact.task.kind not in kind_of(task.kind).alike:
        if not new_head:
            raise UserError(_headless(source, f"a model for {artifact.task.kind}", task.kind))
        return artifact.with_task(task, seed)
    task = as_said(source, artifact.model.config, task)
    task = keeping_thresholds(in_own_order(source, artifact.model.config, task), artifact.task)
    return replace(artifact, task=task)


def made_without_head(model: TaskModel) -> str:
    """Return what a loaded model was made for, where its head is random as yet; empty if it was trained.

    Of models that predict words nothing is said: their classes have many names, and their heads come with the base.
    """
    kind = kind_of(model.task.kind)
    if kind.truth is None or kind.writes:
        return ""
    if isinstance(model, Artifact):
        return "a model for another kind of task" if model.lineage[-1].technique == HEAD else ""
    made_for = (model.model.config.architectures or ["a model without a head"])[0]
    return "" if made_for.endswith(kind.head) else made_for


def _headless(source: str | Path, made_for: str, kind: str) -> str:
    return f"{source}: is {made_for}, without a trained head for {kind}; fine-tune it first, with compress teach"


def _may_be_replaced(place: Path) -> bool:
    """Whether what stands in the place of a model is an empty folder, or one of a model."""
    return place.is_dir() and (not any(place.iterdir()) or (place / "config.json").is_file() or is_artifact(place))
