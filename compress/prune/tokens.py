"""PoWER-BERT: learn how many tokens each layer needs, and let the others go on the way."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from compress.companion import Accompanied
from compress.objective import RecoveryTechnique
from compress.technique import Inputs, Measure, Need, Outcome
from eval.errors import quantity
from eval.kinds.kind_registry import kind_of
from teachers.anatomy.encoder import family_of, layer_count
from teachers.taskmodel import TaskModel
from teachers.training.config import Training

logger = logging.getLogger("compress.prune.tokens")

HEAD = "AutoModelForSequenceClassification"
"""The head that reads the first token alone."""


class TokenPruning(RecoveryTechnique):
    """Learn how many tokens each layer needs, then train a network whose layers let the others go.

    The significance of a token in a layer is the attention that it receives: ``sig(w) = sum over heads h and real
    tokens v of A_h[v, w]``. Between attention and feed-forward network the tokens are ranked by it, the first token
    ([CLS], which the head reads) before all others, and padding does not count. The last layer keeps the first token
    alone, which changes no answer.

    1. Search, in which nothing is dropped: the token of rank k among n is multiplied by ``r_j[floor(k * ranks / n)]``,
       learned with the weights, between 0 and 1, and 1 at the start. ``loss = task + penalty * sum over layers j of
       j * mean(r_j) / sum of j``, j from 1: tokens are cheapest to lose late.
    2. ``keep_j = mean(r_j)``, no more than that of the layer before.
    3. Training with the tokens dropped: of a text of n tokens, ``ceil(keep_j * n)`` go on from layer j.

    The paper learns a number for each rank up to the longest text, so ``l_j = ceil(sum of r_j)`` is a number of tokens,
    of use to long texts alone. Here it is a share of the text's own length, from which short ones gain too; with
    ``ranks`` equal to that length both are the same. As r is a mean, not a sum, ``penalty`` is the paper's lambda times
    the length and the sum of j. Learned thresholds (Kim et al. 2022, arXiv 2107.00910) adapt to each text, but a batch
    then needs room for its largest count, known only as it runs, and rounding in 8 bits changes how many tokens stay. A
    share fixes the count before anything runs: exports have a TopK whose k follows from the length of the input.

    Attributes:
        keep: Share of a text's tokens that goes on from each layer but the last, rounded to thousandths; learned where
            it is not given, and then nothing is searched.
        penalty: Loss that keeping all tokens costs in the search; more of it drops more. Default 0.5.
        ranks: Numbers for each layer in the search. Default 64.
        retention_rate: Peak learning rate of these numbers. A number moves by at most this in an optimizer step, so the
            search needs some hundred steps. Default 1e-2.
        search: How weights and numbers are trained in the search. Default 1 epoch of 32, rate 3e-5.
        training: How the weights are trained with the tokens dropped. Default 3 epochs of 32, rate 3e-5.

    Needs:
        Training examples, and what the objective needs; a model that is fine-tuned already.

    Reduces:
        Multiply-accumulates, and with them the time of long texts. Neither parameters nor bytes; the operators that
        choose tokens add some kilobytes to an export.

    Limits:
        Classification and regression, rankers among them, whose head reads the first token: others need all tokens.
        Families whose layers are BERT's and whose attention shows its probabilities. An objective may read logits
        alone, as the states of dropped tokens do not exist. Afterwards it can be trained on labels or logits and
        quantized; all else goes before.

    Source:
        Goyal, Choudhury, Raje, Chakaravarthy, Sabharwal, Verma 2020, arXiv 2001.08950.
    """

    name: ClassVar[str] = "prune.tokens"
    needs: ClassVar[frozenset[Need]] = frozenset({"train"})
    reduces: ClassVar[frozenset[Measure]] = frozenset({"macs"})
    adds: ClassVar[frozenset[Measure]] = frozenset({"export_bytes"})
    makes: ClassVar[str] = "a model that drops tokens"
    source: ClassVar[str] = "Goyal, Choudhury, Raje, Chakaravarthy, Sabharwal, Verma 2020, arXiv 2001.08950"

    keep: tuple[Annotated[float, Field(ge=0.001, le=1)], ...] | None = None
    penalty: float = Field(default=0.5, ge=0)
    ranks: int = Field(default=64, ge=1)
    retention_rate: float = Field(default=1e-2, gt=0)
    search: Training = Training(epochs=1, learning_rate=3e-5, batch_size=32, keep="last")
    training: Training = Training(epochs=3, learning_rate=3e-5, batch_size=32)

    @model_validator(mode="after")
    def _a_share_for_each_layer(self) -> TokenPruning:
        if self.keep is None:
            return self
        if list(self.keep) != sorted(self.keep, reverse=True):
            raise ValueError(f"keep {list(self.keep)}: what a layer dropped does not come back; shares may not rise")
        if said := sorted({"penalty", "ranks", "retention_rate", "search"} & self.model_fields_set):
            raise ValueError(f"{', '.join(said)}: for the search of keep, which is given; leave one of them out")
        return self

    def trainings(self) -> tuple[Training, ...]:
        """Return the training block of each stage."""
        return (self.training,) if self.keep is not None else (self.search, self.training)

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse heads and objectives that read other tokens than the first, and attention that shows nothing."""
        found = super().check(student, inputs)
        family, last = family_of(student.model), layer_count(student.model) - 1
        if kind_of(student.task.kind).auto_class != HEAD:
            found.append(
                f"{self.name}: works where the head reads the first token alone, in classification and regression; "
                f"this task is {student.task.kind}"
            )
        if not (family.post_norm and "query" in family.parts and student.model._supports_attention_backend):
            found.append(
                f"{self.name}: works where layers are BERT's and attention shows its probabilities; not for "
                f"{family.model_type}"
            )
        elif student.encoder.settings.pad_side == "left":
            found.append(f"{self.name}: the tokenizer pads on the left, so the first token is none of the text")
        if last < 1:
            found.append(f"{self.name}: needs a model of 2 layers or more")
        elif self.keep is not None and len(self.keep) != last:
            found.append(
                f"{self.name}: keep has {quantity(len(self.keep), 'share')}, must have {last}: one a layer but the last"
            )
        found += self.reads_logits_alone("tokens are dropped")
        return found

    def apply(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Learn the shares unless they are given, then train with the tokens dropped."""
        from compress.architectures.token_pruning_network import WHOLE, TokenPruningForSequenceClassification

        count, facts = layer_count(student.model) - 1, {}
        keep = [WHOLE] * count if self.keep is None else [max(1, round(WHOLE * share)) for share in self.keep]
        changed = replace(student, model=TokenPruningForSequenceClassification.around(student.model, keep))
        if self.keep is None:
            facts["search"] = self._search(changed, inputs, generator)
        facts["keep"] = [share / WHOLE for share in changed.model.config.keep]
        logger.info("%s: shares of the tokens that go on from the layers: %s", self.name, facts["keep"])
        facts["history"] = self.train(changed, inputs, self.make_objective(inputs), generator)
        return Outcome(changed, facts)

    def _search(self, changed: TaskModel, inputs: Inputs, generator: torch.Generator) -> list[dict[str, Any]]:
        """Learn the shares and write them into the network's config; return the history."""
        from compress.architectures.token_pruning_network import Retention

        network = changed.model
        network.retention = Retention(len(network.config.keep), self.ranks, self.retention_rate)
        network.retention.to(network.device)
        objective = Accompanied(self.make_objective(inputs), RetentionPenalty(network.retention, self.penalty))
        seen = replace(inputs, validation=None)
        history = self.train(changed, seen, objective, generator, training=self.search, stage="search")
        network.config.keep = learned_shares(network.retention.values.detach().clamp(0, 1))
        del network.retention
        return history


class RetentionPenalty(nn.Module):
    """The term that lowers the retention of tokens.

    Args:
        retention: What is lowered; the network has it.
        penalty: Value of the term where all tokens are kept.
    """

    def __init__(self, retention: Any, penalty: float) -> None:
        super().__init__()
        self.watched, self.penalty = [retention], penalty  # a plain list: the network has this module

    def terms(self) -> dict[str, Tensor]:
        """Return ``{"tokens": …}``."""
        return {"tokens": self.penalty * mean_retention(self.watched[0].values)}


def mean_retention(values: Tensor) -> Tensor:
    """Return ``sum of j * mean(r_j) / sum of j`` over layers j from 1, for numbers r ``[layers, ranks]``."""
    weights = torch.arange(1, len(values) + 1, dtype=values.dtype, device=values.device)
    return (weights * values.mean(dim=1)).sum() / weights.sum()


def learned_shares(values: Tensor) -> Sequence[int]:
    """Return for each layer the thousandths of a text's tokens that it keeps: the mean, rounded up, and never rising.

    Args:
        values: The numbers r ``[layers, ranks]``, between 0 and 1.
    """
    from compress.architectures.token_pruning_network import WHOLE

    means = (values.double().mean(dim=1) * WHOLE - 1e-6).ceil().clamp(min=1)
    return [int(share) for share in means.cummin(dim=0).values]
