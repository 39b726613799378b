"""The block of a recipe that says what is asked, and where the data is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from compress.reading.base_block import Block
from eval.task import KindName, Pooling

if TYPE_CHECKING:
    from eval.data.loading import Task


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
        pooling: For embedding: how a text's vector is made of its tokens; by default as the folder of the model says,
            or the mean.
        normalize: For embedding: whether vectors are scaled to length 1; by default likewise, or they are.
        prompt: For embedding: what is put before each text; by default likewise, or nothing. For seq2seq likewise, such
            as ``summarize: `` of T5.
        query_prompt: For embedding: what is put before queries (E5: ``query: ``); by default likewise, or ``prompt``.
        document_prompt: Likewise before documents, such as ``passage: ``.
        target_length: For seq2seq: most tokens that are written, and of a target that are learned; by default 128.
        beams: For seq2seq: beginnings that a beam search keeps; by default 1, which takes the likeliest token each
            time.
        length_penalty: For seq2seq with beams: the power of its length that the score of a text is divided by; by
            default 1.
        negatives: For retrieval and reranking: documents of the first stage, the best that are not relevant, that are
            learned from beside the relevant ones of each training query; by default 4.
        first_stage: For reranking: what finds the documents that are sorted: ``bm25``, by default, or the folder of an
            embedder.
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
    first_stage: str | None = Field(default=None, min_length=1)
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

    @staticmethod
    def place_of(data: str) -> dict[str, Any]:
        """Return the fields that say where data to learn from is: a single file is the training split."""
        from eval.files.paths import user_path

        return {"files": {"train": data}} if user_path(data).is_file() else {"data": data}

    def load(self, seed: int, keep_labels: bool = False) -> Task:
        """Read the data.

        Args:
            seed: Draws the examples where ``limit`` leaves some out.
            keep_labels: Whether the texts of an embedding task keep their labels, because a model learns from them.
        """
        from compress.export.embedder import open_embedder
        from eval.data.loading import load_task
        from eval.metrics.own_metric import named_metric

        # What was left out keeps the reader's own defaults.
        read = set(TaskBlock.model_fields) - {"kind", "data"}
        given = {key: value for key, value in dict(self).items() if value is not None and key in read}
        if self.metric is not None:
            given["metric"] = named_metric(self.metric)
        return load_task(self.kind, data=self.data, seed=seed, keep_labels=keep_labels, embedder=open_embedder, **given)
