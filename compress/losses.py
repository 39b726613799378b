"""The losses of distillation as plain functions of tensors, for a training loop of your own.

They are the functions that the techniques themselves minimise. ``student`` comes first and ``teacher`` second; each
returns a scalar, already averaged, through which gradients flow into the student (``minilm_relations`` one for each
relation). ``mask`` is 1 for real tokens and 0 for padding, as ``attention_mask`` of transformers. What a loss needs
inside of a network, ``observe`` of ``teachers.signals.hooks`` reads.

| technique | losses |
|---|---|
| ``distill.logits`` | ``kl_divergence``, ``soft_cross_entropy``, ``logit_mse`` |
| ``distill.distilbert`` | ``cosine_distance`` with a mask, beside ``kl_divergence`` |
| ``distill.pkd`` | ``pkd_patience`` |
| ``distill.scalar_mix`` | ``hidden_state_mse``, to a weighted sum of the teacher's states |
| ``distill.tinybert`` | ``hidden_state_mse``, also of embedding outputs; ``attention_mse`` |
| ``distill.minilm`` | ``minilm_relations`` |
| ``distill.mobilebert`` | ``feature_map_distance``, ``attention_kl`` |
| ``distill.cross_view`` | ``kl_divergence`` for each view |
| ``distill.ensemble`` | ``ensemble_logits``, for ``soft_cross_entropy`` |
| ``distill.margin_mse`` | ``margin_mse`` |
| ``distill.listwise`` | ``listwise_kl`` |
| ``distill.embedding`` | ``cosine_distance``, ``similarity_mse``, ``similarity_kl`` |
| ``distill.contrastive`` | ``in_batch_negatives``, ``choice_kl`` |
| ``distill.early_exit`` | ``early_exit_kl`` |
| ``distill.dual`` | ``weight_distance`` |
| ``finetune: {loss: …}`` | ``cosine_regression``, ``margin_contrast``, ``in_batch_negatives``, ``ranking_loss`` |

``relation_scores`` gives attention scores from queries and keys, ``match_heads`` averages heads where their numbers
differ, and ``Projection`` maps a student's hidden states to the teacher's width; its weights are trained with yours.
"""

from __future__ import annotations

from compress.distill.components.attention import attention_mse, match_heads, relation_scores
from compress.distill.components.distillation_losses import (
    cosine_distance,
    kl_divergence,
    logit_mse,
    soft_cross_entropy,
)
from compress.distill.components.dual_projections import weight_distance
from compress.distill.components.projection import Projection
from compress.distill.contrastive import choice_kl
from compress.distill.early_exit import early_exit_kl
from compress.distill.embedding import similarity_kl, similarity_mse
from compress.distill.ensemble import ensemble_logits
from compress.distill.listwise import listwise_kl
from compress.distill.margin_mse import margin_mse
from compress.distill.minilm import minilm_relations
from compress.distill.mobilebert import attention_kl, feature_map_distance
from compress.distill.pkd import pkd_patience
from compress.distill.tinybert import hidden_state_mse
from teachers.losses.ranking import ranking_loss
from teachers.losses.siamese import cosine_regression, in_batch_negatives, margin_contrast

__all__ = [
    "Projection",
    "attention_kl",
    "attention_mse",
    "choice_kl",
    "cosine_distance",
    "cosine_regression",
    "early_exit_kl",
    "ensemble_logits",
    "feature_map_distance",
    "hidden_state_mse",
    "in_batch_negatives",
    "kl_divergence",
    "listwise_kl",
    "logit_mse",
    "margin_contrast",
    "margin_mse",
    "match_heads",
    "minilm_relations",
    "pkd_patience",
    "ranking_loss",
    "relation_scores",
    "similarity_kl",
    "similarity_mse",
    "soft_cross_entropy",
    "weight_distance",
]
