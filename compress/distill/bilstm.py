"""Distilled BiLSTM: a bidirectional LSTM of one layer learns the teacher's logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from pydantic import Field

from compress.distill.components.custom_student import OwnNetworkDistillation, text_settings
from compress.distill.components.token_vectors import of_one_size, reduced
from compress.distill.logits import LogitDistillation, SoftTargets
from compress.technique import Inputs
from eval.kinds.kind import Kind
from teachers.anatomy.encoder import word_embeddings
from teachers.data.encoded_dataset import EncodedDataset
from teachers.signals.model_teacher import TeacherSource
from teachers.taskmodel import TaskModel
from teachers.training.config import Training

if TYPE_CHECKING:
    from compress.architectures.bilstm_network import BiLstmConfig


class BiLstmDistillation(OwnNetworkDistillation):
    """Replace the model by a one-layer BiLSTM and train it on the teacher's logits.

    ``loss = alpha · mean((teacher - student)²) + (1 - alpha) · hard``, the squares over logits before any softmax,
    without temperature. A text's vector is the last state of each direction, ``[2h]``; of a pair, both texts go
    through the same LSTM and meet as ``[u, v, u * v, |u - v|]``. One hidden layer with ReLU gives the logits. The
    words are the subword tokens of the model that comes in, whose embeddings the student's begin with: centred, along
    their principal axes, scaled to a mean square of 1.

    Attributes:
        alpha: Weight of the teacher's logits, 0 to 1. Default 1: the labels are not read, the paper's best (its own
            alpha is the weight of the labels, 0).
        hidden_size: h, channels of each direction. Default 150 as in the paper for SST-2 and MNLI; 300 for QQP.
        dense_size: Width of the head's hidden layer. Default 200, from the authors' code.
        dropout: Share of the hidden layer that is dropped in training. Default 0.1, likewise.
        embedding_size: Columns of the embedding matrix; at most those of the model that comes in. Default 300 as in the
            paper.
        training: AdamW for 10 epochs of 50 at a rate of 1e-3; the paper has Adadelta at 1.0 for up to 30.

    Needs:
        Training examples and a teacher with the same labels. With ``alpha`` 0 no teacher.

    Reduces:
        Parameters, bytes and multiply-accumulates.

    Limits:
        Classification and regression of texts and pairs, and tagging (not in the paper: the states at each token go
        through the same head). The paper's words are whole ones with word2vec vectors, in a fixed and a trained copy;
        here one trained table of pieces takes their place. The squares are averaged over classes, as in the authors'
        code; the paper sums them. Its 0.96 million parameters leave the embedding matrix out. Without more text than
        the task's own (see the augmentation of the paper) the student stays further behind. An 8-bit export keeps the
        LSTM itself in float32. Standard transformers cannot load the result: ``compress.load`` does, and any runtime
        loads its ONNX export.

    Source:
        Tang, Lu, Liu, Mou, Vechtomova, Lin 2019, arXiv 1903.12136.
    """

    name: ClassVar[str] = "distill.bilstm"
    makes: ClassVar[str] = "a BiLSTM"
    source: ClassVar[str] = "Tang, Lu, Liu, Mou, Vechtomova, Lin 2019, arXiv 1903.12136"

    hidden_size: int = Field(default=150, ge=1)
    embedding_size: int = Field(default=300, ge=1)
    training: Training = Training(epochs=10, learning_rate=1e-3, batch_size=50, weight_decay=0.0)

    def answers(self, kind: Kind) -> bool:
        """Return whether a kind asks for one label or number of whole texts, or for one of each word."""
        return kind.pairs or kind.words

    def config(self, student: TaskModel) -> BiLstmConfig:
        """Return the config of the BiLSTM for this model's tokenizer and task."""
        from compress.architectures.bilstm_network import BiLstmConfig

        return BiLstmConfig(
            hidden_size=self.hidden_size,
            embedding_size=min(self.embedding_size, word_embeddings(student.model).embedding_dim),
            dense_size=self.dense_size,
            dropout=self.dropout,
            **text_settings(student),
        )

    def begin(self, student: TaskModel, network: TaskModel, inputs: Inputs) -> dict[str, Any]:
        """Start from the word embeddings of the model that comes in."""
        del inputs
        table = word_embeddings(network.model)
        vectors, kept = reduced(word_embeddings(student.model).weight.detach(), table.embedding_dim)
        with torch.no_grad():
            table.weight.copy_(of_one_size(vectors))
            table.weight[network.model.config.pad_token_id] = 0
        return {"embedding_variance_kept": round(kept, 4)}

    def bind(self, student: TaskModel, rows: EncodedDataset, teacher: TeacherSource) -> SoftTargets:
        """Compute or find the teacher's logits for these rows."""
        return LogitDistillation(temperature=1.0, alpha=self.alpha, loss="mse").bind(student, rows, teacher)
