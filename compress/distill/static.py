"""Static vectors: every piece of the vocabulary goes through the encoder once, and a text is the mean of its pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import Field

from compress.distill.components.custom_student import OwnNetworkDistillation, text_settings
from compress.distill.components.token_vectors import of_one_size, output_vectors, reduced, smooth_inverse_frequency
from compress.distill.logits import LogitDistillation, SoftTargets
from compress.technique import Inputs
from eval.kinds.kind import Kind
from teachers.anatomy.encoder import shape_of, word_embeddings
from teachers.data.encoded_dataset import EncodedDataset
from teachers.signals.model_teacher import TeacherSource
from teachers.taskmodel import TaskModel
from teachers.training.config import Training

if TYPE_CHECKING:
    from compress.architectures.static_network import StaticConfig


class StaticDistillation(OwnNetworkDistillation):
    """Replace the model by fixed token vectors, their weighted mean, and a small head on the teacher's soft targets.

    ``v(t) = a / (a + p(t)) · PCA(encoder([CLS] t [SEP]))``, ``logits = head(mean of v over the tokens of the text)``,
    ``loss = alpha · T² · KL(teacher / T ‖ student / T) + (1 - alpha) · hard``. p is the share of a token among all
    tokens of the training texts. The weights are multiplied into the table, which is then scaled to a mean square of 1
    in these texts. The texts of a pair meet as ``[u, v, u * v, |u - v|]``. The head has one hidden layer with ReLU. It
    is the baseline that a better student has to beat: minutes become seconds, and word order is lost.

    Attributes:
        alpha: Weight of the soft targets, 0 to 1. Default 1: the labels are not read.
        temperature: T. Default 1.
        vectors: ``output``: the last hidden states of each token alone. ``input``: the word embeddings as they are,
            for no forward pass at all.
        embedding_size: Columns that the PCA keeps; at most those there are. Default 256.
        smoothing: a. Default 1e-3, as in Arora et al.
        dense_size: Width of the head's hidden layer.
        dropout: Share of the hidden layer that is dropped in training.
        training: Table frozen, 5 epochs of 64 at a rate of 3e-3. ``freeze: []`` trains the table as well.

    Needs:
        Training examples and a teacher with the same labels. With ``alpha`` 0 no teacher.

    Reduces:
        Parameters, bytes and multiply-accumulates.

    Limits:
        Classification and regression of texts and pairs. Arora et al. also take the first principal component out of
        the means; a trained head can do that by itself. Standard transformers cannot load the result: ``compress.load``
        does, and any runtime loads its ONNX export.

    Source:
        Tulkens, van Dongen 2024, "Model2Vec" (vectors of single tokens, PCA); Arora, Liang, Ma 2017, "A simple but
        tough-to-beat baseline for sentence embeddings" (weights).
    """

    name: ClassVar[str] = "distill.static"
    makes: ClassVar[str] = "static vectors"
    source: ClassVar[str] = 'Tulkens, van Dongen 2024, "Model2Vec"'

    temperature: float = Field(default=1.0, gt=0, le=1000)
    vectors: Literal["output", "input"] = "output"
    embedding_size: int = Field(default=256, ge=1)
    smoothing: float = Field(default=1e-3, gt=0)
    training: Training = Training(epochs=5, learning_rate=3e-3, batch_size=64, weight_decay=0.0, freeze=("embeddings",))

    def answers(self, kind: Kind) -> bool:
        """Return whether a kind asks for one label or number of whole texts."""
        return kind.pairs

    def config(self, student: TaskModel) -> StaticConfig:
        """Return the config of the table and its head for this model's tokenizer and task."""
        from compress.architectures.static_network import StaticConfig

        network = student.model
        width = (
            word_embeddings(network).embedding_dim if self.vectors == "input" else shape_of(network.config).hidden_size
        )
        return StaticConfig(
            embedding_size=min(self.embedding_size, width),
            dense_size=self.dense_size,
            dropout=self.dropout,
            **text_settings(student),
        )

    def begin(self, student: TaskModel, network: TaskModel, inputs: Inputs) -> dict[str, Any]:
        """Compute the token vectors, weighted by the frequencies in the training texts."""
        table, config = word_embeddings(network.model), network.model.config
        features = network.encoder.encode(inputs.train or ())
        ids = torch.tensor([token for feature in features for token in feature.ids], dtype=torch.int64)
        counts = torch.bincount(ids, minlength=config.vocab_size)
        counts[config.skipped_ids] = 0
        found = output_vectors(student) if self.vectors == "output" else word_embeddings(student.model).weight.detach()
        vectors, kept = reduced(found, table.embedding_dim)
        weights = smooth_inverse_frequency(counts, self.smoothing)
        with torch.no_grad():
            table.weight.copy_(of_one_size(vectors * weights[:, None], counts))
            table.weight[config.pad_token_id] = 0
        return {"embedding_variance_kept": round(kept, 4), "tokens_seen": int((counts > 0).sum())}

    def bind(self, student: TaskModel, rows: EncodedDataset, teacher: TeacherSource) -> SoftTargets:
        """Compute or find the teacher's logits for these rows."""
        return LogitDistillation(temperature=self.temperature, alpha=self.alpha).bind(student, rows, teacher)
