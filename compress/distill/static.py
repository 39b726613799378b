"""Static vectors: every piece of the vocabulary goes through the encoder once, and a text is the mean of its pieces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import Field

from compress.distill.components.custom_student import OwnNetworkDistillation, text_settings
from compress.distill.components.split_words import AddedWords, added, split_words, takes_words, with_words
from compress.distill.components.token_vectors import (
    least_squares,
    of_one_size,
    output_vectors,
    reduced,
    smooth_inverse_frequency,
    zipf_counts,
)
from compress.distill.embedding import EmbeddingDistillation, VectorLoss
from compress.distill.logits import LogitDistillation
from compress.technique import Inputs, Outcome
from eval.inference import batches_by_length
from eval.kinds.kind import Kind
from eval.kinds.kind_registry import kind_of
from teachers.anatomy.encoder import shape_of, word_embeddings
from teachers.data.encoded_dataset import EncodedDataset
from teachers.losses.loss import Loss
from teachers.signals.model_teacher import TeacherSource
from teachers.taskmodel import TaskModel, build_taskmodel
from teachers.training.config import Training
from teachers.training.scoring import rows_of

if TYPE_CHECKING:
    from compress.architectures.static_network import StaticConfig

BATCH = 256
"""Texts whose means are taken at once."""
UNUSED = re.compile(r"\[unused\d+\]")
"""Places that a vocabulary keeps free."""


class StaticDistillation(OwnNetworkDistillation):
    """Replace the model by fixed token vectors, their weighted mean, and a small head on the teacher's soft targets.

    ``v(t) = a / (a + p(t)) · PCA(encoder([CLS] t [SEP]))``, ``logits = head(mean of v over the tokens of the text)``,
    ``loss = alpha · T² · KL(teacher / T ‖ student / T) + (1 - alpha) · hard``. p is the share of a token among all
    tokens of the training texts. The weights are multiplied into the table, which is then scaled to a mean square of 1
    in these texts. The texts of a pair meet as ``[u, v, u * v, |u - v|]``. The head has one hidden layer with ReLU. It
    is the baseline that a better student has to beat: minutes become seconds, and word order is lost.

    For embedding there is no head: the mean itself is the vector, and the table is trained on the teacher's vectors of
    unlabelled texts. Where the table is narrower than the teacher, these are taken along their principal axes. With
    ``fit`` the table begins as ``v(t) = a / (a + p(t)) · encoder([CLS] t [SEP]) · W + c``, W and c the least squares
    between the means of the training texts and the teacher's vectors, so tokens that no text holds are moved as well;
    then ``loss = mean (1 - cos(student, teacher)) + similarity · d(S, T)``, d the mean squared difference between all
    cosines within a batch.

    Attributes:
        alpha: Weight of the soft targets, 0 to 1. Default 1: the labels are not read. For embedding it stays 1.
        temperature: T. Default 1. Not for embedding.
        vectors: ``output``: the last hidden states of each token alone. ``input``: the word embeddings as they are,
            for no forward pass at all.
        embedding_size: Columns of the table; at most those there are. Default 256.
        smoothing: a. Default 1e-3, as in Arora et al.; model2vec takes 1e-4 with ``frequencies: ranks``.
        frequencies: ``texts``: p is counted in the training texts. ``ranks``: p follows Zipf's law by the ids of the
            tokens, as in model2vec, for vocabularies that are ordered by frequency.
        fit: For embedding: whether the table begins with the least squares; else with the PCA of the token vectors.
        ridge: For embedding: weight of the penalty of the least squares, in mean variances of the token means.
        similarity: For embedding: weight of the cosines among the texts of a batch.
        words: For embedding, with a WordPiece tokenizer: so many words of the training texts, the most frequent of
            those that the tokenizer splits, become tokens of their own. A word begins as the sum of its tokens'
            vectors, which leaves the direction of every text as it is without words, and is then trained.
        dense_size: Width of the head's hidden layer.
        dropout: Share of the hidden layer that is dropped in training.
        training: Table frozen, 5 epochs of 64 at a rate of 3e-3. ``freeze: []`` trains the table as well, which for
            embedding is always trained.

    Needs:
        Training examples and a teacher with the same labels, or for embedding texts and an embedder. With ``alpha`` 0
        no teacher.

    Reduces:
        Parameters, bytes and multiply-accumulates.

    Limits:
        Classification and regression of texts and pairs, and embedding. Arora et al. also take the first principal
        component out of the means; a trained head can do that by itself. Standard transformers cannot load the result:
        ``compress.load`` does, any runtime loads its ONNX export, and of an embedder sentence-transformers and
        model2vec load the folder. There vectors differ in length where tokens are unknown and ``normalize`` is off, and
        model2vec cuts a text to ``max_length`` times its median token's characters before it counts tokens.

    Source:
        Tulkens, van Dongen 2024, "Model2Vec" (vectors of single tokens, PCA; training on the vectors of texts:
        "Tokenlearn", by the same); Arora, Liang, Ma 2017, "A simple but tough-to-beat baseline for sentence embeddings"
        (weights). The least squares are our own.
    """

    name: ClassVar[str] = "distill.static"
    makes: ClassVar[str] = "static vectors"
    source: ClassVar[str] = 'Tulkens, van Dongen 2024, "Model2Vec"'

    temperature: float = Field(default=1.0, gt=0, le=1000)
    vectors: Literal["output", "input"] = "output"
    embedding_size: int = Field(default=256, ge=1)
    smoothing: float = Field(default=1e-3, gt=0)
    frequencies: Literal["texts", "ranks"] = "texts"
    fit: bool = True
    ridge: float = Field(default=1e-3, gt=0)
    similarity: float = Field(default=0.0, ge=0)
    words: int = Field(default=0, ge=0, exclude_if=lambda value: not value)  # so that digests of before stay
    training: Training = Training(epochs=5, learning_rate=3e-3, batch_size=64, weight_decay=0.0, freeze=("embeddings",))

    def answers(self, kind: Kind) -> bool:
        """Return whether a kind asks for one label or number of whole texts, or for their vectors."""
        return kind.pairs or kind.vectors

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse other kinds of tasks, labels of an embedding, and a table wider than the teacher."""
        found = super().check(student, inputs)
        if not kind_of(student.task.kind).vectors:
            return [*found, f"{self.name}: words are for embedding; leave them out"] if self.words else found
        if self.words and not takes_words(student.tokenizer):
            found.append(f"{self.name}: words: only a WordPiece tokenizer takes whole words; leave them out")
        if self.alpha < 1:
            found.append(
                f"{self.name}: alpha is {self.alpha:g}; an embedding has no labels to learn from, leave it at 1"
            )
        size = self.config(student).embedding_size
        if inputs.teacher is not None and size > inputs.teacher.hidden_size:
            found.append(
                f"{self.name}: embedding_size is {size}, the teacher's vectors have {inputs.teacher.hidden_size}; "
                "take at most as many"
            )
        return found

    def config(self, student: TaskModel) -> StaticConfig:
        """Return the config of the table, and its head if there is one, for this model's tokenizer and task."""
        from compress.architectures.static_network import StaticConfig

        network = student.model
        width = (
            word_embeddings(network).embedding_dim if self.vectors == "input" else shape_of(network.config).hidden_size
        )
        own: dict[str, Any] = text_settings(student)
        if kind_of(student.task.kind).vectors:
            own |= _settings_without_head(student, own["skipped_ids"])
        return StaticConfig(
            embedding_size=min(self.embedding_size, width),
            dense_size=self.dense_size,
            dropout=self.dropout,
            **own,
        )

    def reading(self, student: TaskModel, inputs: Inputs) -> TaskModel:
        """Return the model with the tokenizer that has ``words`` of the training texts as tokens too."""
        if not self.words or inputs.train is None:
            return student
        kind = kind_of(student.task.kind)
        texts = (text for example in inputs.train for text in kind.parts(example, student.task.pair))
        return replace(
            student, tokenizer=with_words(student.tokenizer, split_words(student.tokenizer, texts, self.words))
        )

    def network_for(self, student: TaskModel, seed: int = 0) -> TaskModel:
        """Return the new network with random weights; it takes the mean, and no prompt, which its teacher has read."""
        task = student.task
        if kind_of(task.kind).vectors:
            task = task.model_copy(
                update={"pooling": "mean", "prompt": "", "query_prompt": None, "document_prompt": None}
            )
        return build_taskmodel(self.config(student), student.tokenizer, task, seed=seed, name=student.name)

    def begin(self, student: TaskModel, network: TaskModel, inputs: Inputs) -> dict[str, Any]:
        """Compute the token vectors, weighted by the frequencies in the training texts."""
        table, config = word_embeddings(network.model), network.model.config
        features = network.encoder.encode(inputs.train or ())
        ids = torch.tensor([token for feature in features for token in feature.ids], dtype=torch.int64)
        counts = torch.bincount(ids, minlength=config.vocab_size)
        counts[config.skipped_ids] = 0
        words = AddedWords(len(student.tokenizer), added(student.tokenizer, network.tokenizer) if self.words else [])
        counts = words.as_tokens(counts)
        found = words.summed(self._token_vectors(student, config.vocab_size))
        used = usable(network)
        if words.tokens:
            used[words.first :] = False
        weights = smooth_inverse_frequency(zipf_counts(used) if self.frequencies == "ranks" else counts, self.smoothing)
        facts = {"tokens_seen": int((counts > 0).sum())}
        facts |= {"words": len(words.tokens)} if self.words else {}
        if kind_of(network.task.kind).vectors:
            vectors, kept = reduced(found, table.embedding_dim, used)
            start = vectors * weights[:, None]
            if self.fit and inputs.teacher is not None:
                start = words.summed((found - found[used].mean(dim=0)) * weights[:, None])
                start = self._fitted(start, network, inputs)
            start = words.summed(start)
        else:
            vectors, kept = reduced(found, table.embedding_dim)
            start = of_one_size(vectors * weights[:, None], counts)
        with torch.no_grad():
            table.weight.copy_(start)
            table.weight[config.skipped_ids if kind_of(network.task.kind).vectors else config.pad_token_id] = 0
        return {"embedding_variance_kept": round(kept, 4), **facts}

    def _token_vectors(self, student: TaskModel, rows: int) -> torch.Tensor:
        """Return the vectors of all tokens of the teacher's tokenizer ``[rows, d]``, zeros where it has none."""
        table = word_embeddings(student.model).weight.detach()
        found = (output_vectors(student) if self.vectors == "output" else table).to("cpu")[:rows]
        return torch.cat([found, found.new_zeros(rows - len(found), found.shape[1])])

    def _fitted(self, vectors: torch.Tensor, network: TaskModel, inputs: Inputs) -> torch.Tensor:
        """Return token vectors ``[V, d]`` mapped to ``[V, k]``, so that means of texts come near the teacher's."""
        from compress.architectures.token_network import words_of_texts

        if inputs.train is None or inputs.teacher is None:
            raise TypeError(f"{self.name} was applied without texts or teacher; the engine refuses this earlier")
        rows = rows_of(network, inputs.train, 0)
        loss = self._vector_loss(network, rows, inputs.teacher)

        def means() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            for places in batches_by_length(rows.lengths, BATCH):
                batch = rows.batch(places)
                ids, mask = batch.inputs["input_ids"], batch.inputs["attention_mask"]
                (words,) = words_of_texts(ids, mask, network.model.config)
                share = words.float() / words.sum(dim=1, keepdim=True).clamp(min=1)
                yield torch.bmm(share[:, None], vectors[ids])[:, 0], loss.target(batch)

        with torch.no_grad():
            mapped, shift = least_squares(means(), (vectors.shape[1], network.model.config.embedding_size), self.ridge)
        return vectors @ mapped + shift

    def apply(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Build the network, fill it, and train it; a table without a head is never frozen."""
        free = self.training.model_copy(update={"freeze": ()})
        own = self.model_copy(update={"training": free}) if kind_of(student.task.kind).vectors else self
        return super(StaticDistillation, own).apply(student, inputs, generator)

    def bind(self, student: TaskModel, rows: EncodedDataset, teacher: TeacherSource) -> Loss:
        """Compute or find the teacher's logits, or vectors, for these rows."""
        if kind_of(student.task.kind).vectors:
            return self._vector_loss(student, rows, teacher)
        return LogitDistillation(temperature=self.temperature, alpha=self.alpha).bind(student, rows, teacher)

    def _vector_loss(self, student: TaskModel, rows: EncodedDataset, teacher: TeacherSource) -> VectorLoss:
        compared = EmbeddingDistillation(mse=0.0, cosine=1.0, similarity=self.similarity, project="pca")
        return compared.bind(student, rows, teacher)


def usable(network: TaskModel) -> torch.Tensor:
    """Return which rows of a table are for tokens that texts may hold, boolean ``[V]``.

    Special tokens are not, nor the places that a vocabulary keeps free, such as ``[unused7]``.
    """
    found = torch.zeros(network.model.config.vocab_size, dtype=torch.bool)
    special = set(network.tokenizer.all_special_tokens)
    for token, place in network.tokenizer.get_vocab().items():
        found[place] = token not in special and UNUSED.fullmatch(token) is None
    return found


def _settings_without_head(student: TaskModel, skipped: list[int]) -> dict[str, Any]:
    """Return the fields of a ``StaticConfig`` for a vector of each text: unknown tokens are left out of the mean."""
    tokenizer, settings = student.tokenizer, student.encoder.settings
    special = int(student.encoder.tokenizer.num_special_tokens_to_add(False))
    unknown = [] if tokenizer.unk_token_id is None else [int(tokenizer.unk_token_id)]
    return {
        "vocab_size": max(tokenizer.get_vocab().values()) + 1,
        "pair": False,
        "skipped_ids": sorted({*skipped, *unknown}),
        "text_tokens": settings.max_length - special,
    }
