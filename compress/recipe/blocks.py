"""The blocks of a recipe: task, teacher and export, as typed values."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, ValidationInfo, create_model, field_validator, model_validator

from compress.export.targets.target_options import TargetBlock
from compress.export.targets.target_registry import BUILT_IN, get_target
from compress.reading.base_block import Block
from compress.recipe.evaluate_block import EvaluateBlock as EvaluateBlock
from compress.recipe.evaluate_block import LatencyBlock as LatencyBlock
from compress.recipe.head_block import HeadBlock
from compress.recipe.predictions_block import PredictionsBlock
from compress.student.student import Student
from eval.errors import UserError
from eval.task import KindName, Pooling
from teachers.adapters.adapter_block import AdapterBlock
from teachers.finetuning.strategies import clashes
from teachers.finetuning.sweep import SEED, Sweep, checked, run_sweep, settings
from teachers.losses.catalogue import LossBlock
from teachers.named_block import OneNamedBlock
from teachers.new_network import NewNetwork
from teachers.pretraining.settings import Pretraining
from teachers.training.config import AuxiliaryLM, Training, WithTraining

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from eval.data.loading import Task
    from eval.task import TaskSpec
    from teachers.taskmodel import TaskModel


class TaskBlock(Block):
    """What is asked, and where the data is; see ``eval.data.loading.load_task``.

    Attributes:
        kind: The form of the answer.
        data: Folder, file or hub name.
        metric: The primary metric; by default the usual one of the kind. ``package.module:function`` is a function of
            your own, ``(y_true, y_pred) -> float``; what it measures cannot be certified.
        labels: Class names or tags in the order of their ids; by default those in the data, sorted.
        label_map: New name of each label in the files; for regression and pairs of embedding, its number.
        max_length: Most tokens of one input.
        stride: Tokens that neighbouring windows of a long input share.
        truncation: Which text of a pair is truncated; by default the longest, for multiple-choice the text.
        truncation_side: The end at which a text is truncated.
        pooling: For embedding: how a text's vector is made of its tokens; by default what the folder says, or mean.
        normalize: For embedding: whether vectors are scaled to length 1; by default likewise, or they are.
        prompt: For embedding: what is put before each text; by default likewise, or nothing. For seq2seq likewise.
        query_prompt: For embedding: what is put before queries (E5: ``query: ``); by default likewise, or ``prompt``.
        document_prompt: Likewise before documents, such as ``passage: ``.
        target_length: For seq2seq: most tokens that are written, and of a target that are learned; by default 128.
        beams: For seq2seq: beginnings that a beam search keeps; by default 1, the likeliest token each time.
        length_penalty: For seq2seq with beams: the power of its length that its score is divided by; by default 1.
        negatives: For retrieval and reranking: documents of the first stage, the best that are not relevant, that are
            learned from beside the relevant ones of each training query; by default 4.
        class_weights: Weight of each label in the task loss, or ``balanced``.
        choose_thresholds: For multilabel: whether the probability from which a label is answered is chosen for each
            label, on the examples that choose; else it is 0.5. For qa-with-null: whether the null threshold is; it is
            by default, else it is 0.
        on_bad: Whether bad lines refuse the run or are skipped and counted.
        files: File of each split, if their names are not the splits' own.
        columns: The file's column for each of our fields.
        limit: Most examples of a split.
    """

    kind: KindName
    data: str | None = None
    metric: str | None = None
    labels: tuple[str, ...] | None = None
    label_map: dict[str, str] | None = None
    max_length: int | None = Field(default=None, ge=4)
    stride: int | None = Field(default=None, ge=0)
    truncation: Literal["longest_first", "only_first", "only_second"] | None = None
    truncation_side: Literal["left", "right"] | None = None
    pooling: Pooling | None = None
    normalize: bool | None = None
    prompt: str | None = None
    query_prompt: str | None = None
    document_prompt: str | None = None
    target_length: int | None = Field(default=None, ge=2)
    beams: int | None = Field(default=None, ge=1)
    length_penalty: float | None = Field(default=None, ge=0)
    negatives: int | None = Field(default=None, ge=1)
    class_weights: Literal["balanced"] | dict[str, Annotated[float, Field(allow_inf_nan=True)]] | None = None
    choose_thresholds: bool | None = None
    on_bad: Literal["refuse", "skip"] = "refuse"
    files: dict[str, str] | None = None
    columns: dict[str, str] | None = None
    limit: dict[str, Annotated[int, Field(ge=1)]] | None = None

    @model_validator(mode="after")
    def _has_data(self) -> TaskBlock:
        if self.data is None and not self.files:
            raise ValueError("say where the data is: data (a folder, a file or a hub name), or files with one a split")
        return self

    def load(self, seed: int, keep_labels: bool = False) -> Task:
        """Read the data.

        Args:
            seed: Draws the examples where ``limit`` leaves some out.
            keep_labels: Whether the texts of an embedding task keep their labels, because a model learns from them.
        """
        from eval.data.loading import load_task
        from eval.metrics.own_metric import named_metric

        # What was left out keeps the reader's own defaults.
        read = set(TaskBlock.model_fields) - {"kind", "data"}
        given = {key: value for key, value in dict(self).items() if value is not None and key in read}
        if self.metric is not None:
            given["metric"] = named_metric(self.metric)
        return load_task(self.kind, data=self.data, seed=seed, keep_labels=keep_labels, **given)


class SharedTaskBlock(TaskBlock):
    """One of several tasks that are learned together by one encoder: the task, and how it is learned.

    Attributes:
        loss: As in the ``finetune`` block of a single task.
        head: Likewise.
    """

    loss: LossBlock | None = None
    head: HeadBlock | None = None

    @field_validator("head")
    @classmethod
    def _shares_its_encoder(cls, head: HeadBlock | None) -> HeadBlock | None:
        if head is not None and head.k_bert is not None:
            raise ValueError("k_bert: several tasks share one encoder, and its own reads facts; train it on one task")
        return head


Seed = Annotated[int, Field(ge=0, lt=2**32)]


class FinetuneBlock(Block, WithTraining):
    """How a teacher is fine-tuned on the task; fields of ``training`` may stand here directly.

    Attributes:
        seed: Seeds the teacher's head and order; by default the recipe's seed. Several give several teachers.
        in_domain: If given, how the base first learns to predict masked words of the task's own texts (train and
            unlabelled), before it learns the task.
        auxiliary_lm: If given, a masked-language loss on the task's texts stands beside that of the task (SiATL).
        features: Whether the encoder stays as it is and runs once over all texts, so that training the head alone, on
            what it gave, is quick.
        adapter: If given, the encoder stays as it is, and a few matrices beside its weights are trained with the head:
            ``lora``, which is merged into the weights afterwards, ``houlsby`` or ``pfeiffer``. With several ``tasks``
            each gets its own over the same base; ``compress export --adapter`` writes them as one.
        loss: What is minimised in the place of the task's own loss (see ``teachers.losses.catalogue``). For embedding
            it compares the two texts of a pair, and is chosen by the labels if it is left out.
        head: What answers in the place of the standard head; the model is then loaded by ``compress.load``.
        per_task: With several ``tasks``: how the model of each is then fine-tuned on its own task.
        sweep: Lists of values for fields of ``training`` and for ``seed``: every combination is trained, and the best
            by validation is the teacher (see ``teachers.finetuning.sweep``).
    """

    seed: Seed | Annotated[tuple[Seed, ...], Field(min_length=1)] | None = None
    in_domain: Training | None = None
    auxiliary_lm: AuxiliaryLM | None = None
    features: bool = False
    adapter: AdapterBlock | None = None
    loss: LossBlock | None = None
    head: HeadBlock | None = None
    per_task: Training | None = None
    sweep: dict[str, tuple[Any, ...]] | None = None

    def clashes(self, kind: str) -> list[tuple[str, str]]:
        """Return each field that cannot be followed on a task of this kind, or beside the others, and why."""
        custom = "is no standard head, and an adapter needs one; leave out one of the two"
        whole = "head: k_bert trains the whole network, which has to learn to read facts; leave out one of the two"
        training = self.training
        apart = {
            "layer_decay": training.layer_decay != 1,
            "freeze": "encoder" in training.freeze,
            "unfreeze": training.unfreeze is not None,
        }
        reads_facts = self.head is not None and self.head.k_bert is not None
        own = [("head", custom)] * (self.head is not None and self.adapter is not None)
        own += [(name, whole) for name, given in apart.items() if reads_facts and given]
        others = clashes(
            kind,
            training,
            in_domain=self.in_domain is not None,
            auxiliary_lm=self.auxiliary_lm is not None,
            features=self.features,
            adapter=self.adapter is not None,
        )
        return [*own, *others]

    @field_validator("sweep")
    @classmethod
    def _can_be_swept(
        cls, sweep: dict[str, tuple[Any, ...]] | None, info: ValidationInfo
    ) -> dict[str, tuple[Any, ...]] | None:
        try:
            return None if sweep is None else checked(sweep, info.context)
        except UserError as error:
            raise ValueError("; ".join(one.removeprefix("sweep").lstrip(".: ") for one in error.problems)) from error

    @model_validator(mode="after")
    def _said_once(self) -> FinetuneBlock:
        given = self.training.model_fields_set | ({SEED} if self.seed is not None else set())
        if twice := sorted(given & set(self.sweep or ())):
            raise ValueError(f"{', '.join(twice)}: stands here and under sweep; say it once")
        if self.sweep is not None and isinstance(self.seed, tuple):
            raise ValueError("seed: several seeds of a sweep stand in it; write sweep: {seed: [...], ...}")
        return self

    def runs(self, seed: int) -> list[tuple[Training, int]]:
        """Return training and seed of every fine-tuning that makes the teacher with this seed."""
        if self.sweep is None:
            return [(self.training, seed)]
        seeds = self.sweep.get(SEED, (seed,))
        return [(training, each) for _, training in settings(self.training, self.sweep) for each in seeds]

    def teach(
        self, start: Callable[[TaskSpec, int], str | Path | TaskModel], task: Task, *, seed: int, name: str
    ) -> tuple[TaskModel, Path, Sweep | None]:
        """Fine-tune a teacher, or the best of a sweep; return it, the folder that keeps it, and what the sweep found.

        Args:
            start: Returns anew what training on a task starts from, given a seed.
            task: The task with its data.
            seed: Seeds head, order and dropout, unless the sweep names its own.
            name: What reports call the teacher.
        """
        from teachers.finetuning.finetune import finetune
        from teachers.finetuning.in_domain import in_domain_base

        def base(used: int) -> str | Path | TaskModel:
            if self.in_domain is None:
                return start(task.spec, used)
            return in_domain_base(lambda spec: start(spec, used), task, self.in_domain, seed=used)

        loss = None if self.loss is None else self.loss.objective
        also: dict[str, Any] = {"auxiliary_lm": self.auxiliary_lm, "features": self.features, "adapter": self.adapter}
        fit: Any = partial(finetune, loss=loss, **also)
        if self.sweep is None:
            return (*fit(base(seed), task, self.training, seed=seed, name=name), None)
        found = run_sweep(base, task, self.training, self.sweep, seed=seed, name=name, fit=fit)
        return found.teacher, found.folder, found


class TeacherBlock(Block):
    """The model that is compressed and that teaches.

    Attributes:
        model: A model folder, a hub name, or several of them: an ensemble. Shape, tokenizer and first weights of a
            student that is made from the teacher are those of the first.
        finetune: If given, ``model`` is a base that is fine-tuned on the task first, once with every seed; the result
            is kept under ``COMPRESS_HOME`` and found again by its content.
        shape: If given, ``finetune`` starts from new weights in this shape, described as a student is (``init: random``
            by default); ``model`` gives the tokenizer and whatever the shape leaves out. With ``init: teacher`` they
            are the model's: ``{family: longformer, max_positions: 1024, init: teacher}`` makes a BERT read long texts.
        pretrain: If given, it takes the place of ``model``: a network that first learns from text alone, kept under
            ``COMPRESS_HOME`` like what ``finetune`` makes.
        new: If given, it takes the place of ``model``: a network with random weights and a tokenizer learned from the
            training examples, which ``finetune`` trains.
        predictions: If given, it takes the place of ``model``: a file of predictions that came from anywhere. It gives
            probabilities, labels, tags or scores to learn from, and no network.
        accept_incomplete: Whether a model folder is used although tensors are missing, unexpected or not finite.
    """

    model: str | tuple[str, ...] | None = Field(default=None, min_length=1)
    finetune: FinetuneBlock | None = None
    shape: Student | None = None
    pretrain: Pretraining | None = None
    new: NewNetwork | None = None
    predictions: PredictionsBlock | None = None
    accept_incomplete: bool = False

    @model_validator(mode="after")
    def _has_a_base(self) -> TeacherBlock:
        if sum(part is not None for part in (self.model, self.pretrain, self.new, self.predictions)) != 1:
            raise ValueError(
                "give one of model (a folder, a hub name, or several), pretrain (text to learn from), new (a network "
                "to train on the task alone) and predictions (a file of what anything answered)"
            )
        if self.new is not None and self.finetune is None:
            raise ValueError("new: a network that knows nothing has to be trained; add a finetune block")
        given = {"finetune", "shape", "accept_incomplete"} & self.model_fields_set
        if self.predictions is not None and given:
            raise ValueError(f"{', '.join(sorted(given))}: a file of predictions has no network; leave it out")
        return self

    @field_validator("shape", mode="before")
    @classmethod
    def _new_weights(cls, shape: Any) -> Any:
        return {"init": "random", **shape} if isinstance(shape, dict) else shape

    @property
    def models(self) -> tuple[str, ...]:
        """The model or models, always as a tuple; none before ``grounded``, if it is still to be made."""
        return (self.model,) if isinstance(self.model, str) else self.model or ()

    def grounded(self, seed: int, name: str, task: Task | None = None) -> TeacherBlock:
        """Return the block with a model folder in the place of ``pretrain`` or ``new``, after learning if need be.

        Args:
            seed: Seeds weights and training.
            name: What the card of a pretrained network calls it.
            task: What ``new`` is made for; its training examples give the tokenizer.

        Raises:
            UserError: If text, tokenizer, network or tasks do not fit together.
        """
        if self.new is not None:
            if task is None:
                raise UserError("teacher.new: needs a task, whose texts its tokenizer is learned from")
            return self.model_copy(update={"model": str(self.new.made(task.train, task.spec, seed)), "new": None})
        if self.pretrain is None:
            return self
        from teachers.pretraining.pretrain import pretrain

        return self.model_copy(update={"model": str(pretrain(self.pretrain, seed=seed, name=name)), "pretrain": None})

    def members(self, seed: int) -> tuple[tuple[str, int], ...]:
        """Return model and seed of every teacher: each model with each seed of ``finetune``, else with ``seed``."""
        own = None if self.finetune is None else self.finetune.seed
        seeds = own if isinstance(own, tuple) else (seed if own is None else own,)
        return tuple((model, each) for model in self.models for each in seeds)

    def start(self, model: str, task: TaskSpec, seed: int, head: HeadBlock | None = None) -> str | TaskModel:
        """Return what fine-tuning starts from: the model itself, or a network with other weights or another head.

        Args:
            model: One of the block's models.
            task: What is asked.
            seed: Seeds new weights.
            head: A head of our own; by default the one of ``finetune``.

        Raises:
            UserError: If there can be no such network.
        """
        head = head or (self.finetune.head if self.finetune is not None else None)
        from compress.artifact.artifact import load_model
        from compress.artifact.store import is_artifact

        if self.shape is None and head is None and not self.accept_incomplete and not is_artifact(model):
            return model
        drawn = seed if self.shape is None else 0
        base = load_model(model, task, drawn, accept_incomplete=self.accept_incomplete)
        try:
            base = base if self.shape is None else self.shape.build(base, seed=seed)
        except UserError as error:
            raise UserError(*(f"teacher.shape: {one.removeprefix('student.')}" for one in error.problems)) from error
        return base if head is None else head.on(base, task, seed)


def _field(name: str) -> Any:
    target = get_target(name)
    return target.options() | None, Field(default=None, description=target.summary)


_Targets: Any = create_model("_Targets", __base__=OneNamedBlock, **{name: _field(name) for name in BUILT_IN})


class ExportBlock(_Targets):
    """One export; exactly one target, by its name, with what is asked of it."""

    model_config = ConfigDict(extra="allow")
    what: ClassVar[str] = "target"

    @model_validator(mode="after")
    def _of_other_packages(self) -> ExportBlock:
        """Read the options of a target that another package offers."""
        others: dict[str, Any] = self.__pydantic_extra__ or {}
        for name, values in others.items():
            others[name] = get_target(name, "export").options().model_validate(values)
        return self

    @property
    def target(self) -> str:
        """The target's name, as ``compress.export.targets.target_registry`` has it."""
        name: str = self.one
        return name

    @property
    def settings(self) -> TargetBlock:
        """What was asked of it."""
        settings: TargetBlock = getattr(self, self.target)
        return settings


def export_block(name: str) -> type[ExportBlock]:
    """Return the block that takes a target by its name: ``ExportBlock``, with a field for one of another package.

    Raises:
        UserError: If there is no such target, or the package that offers it is broken.
    """
    if name in ExportBlock.model_fields:
        return ExportBlock
    return create_model("ExportBlock", __base__=ExportBlock, **{name: _field(name)})
