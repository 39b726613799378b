"""Documents read segment by segment with a memory of what came before: Transformer-XL's evaluation.

The hidden states of each layer over the tokens before a segment are kept, so that a token sees further back than its
segment begins and nothing is computed twice. The kind causal-lm reads overlapping windows instead, which any decoder
can.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eval.cost.size import device_of
from eval.errors import UserError
from teachers.anatomy.encoder import base_encoder, family_of
from teachers.taskmodel import TaskModel, evaluating


def document_losses(model: TaskModel, texts: Sequence[str], segment: int, memory: int) -> NDArray[np.float64]:
    """Return what each token of some texts costs a causal language model, in nats.

    The perplexity is the exponential of their mean. An end-of-text token stands before each text, as in the kind
    causal-lm.

    Args:
        model: A causal XLNet (``attn_type: uni``), which is Transformer-XL.
        texts: Documents; the memory begins anew with each.
        segment: Tokens that are read at once.
        memory: Most tokens before a segment that are remembered; 0 reads each segment by itself.

    Returns:
        ``[tokens of all texts]``.

    Raises:
        UserError: If the network has no memory, or a number is out of range.

    Source:
        Dai et al. 2019, arXiv 1901.02860.
    """
    family = family_of(model.model)
    problems = []
    if not (family.causal and family.two_streams):
        problems.append(f"{model.name}: {family.model_type} keeps no memory; take xlnet with attn_type: uni")
    if segment < 1:
        problems.append(f"segment {segment}: must be 1 token or more")
    if memory < 0:
        problems.append(f"memory {memory}: must be 0 tokens or more")
    if problems:
        raise UserError(*problems)
    encodings = model.encoder.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    end = model.encoder.settings.end_id
    with evaluating(model.model):
        found = [loss for one in encodings for loss in _losses(model.model, [end, *one.ids], segment, memory)]
        return torch.cat([torch.zeros(0), *found]).double().cpu().numpy()


def _losses(network: Any, ids: list[int], segment: int, memory: int) -> Iterator[Tensor]:
    held: list[Tensor] | None = None
    tokens = torch.tensor([ids], device=device_of(network))
    for start in range(0, len(ids) - 1, segment):
        own = tokens[:, start : min(start + segment, len(ids) - 1)]
        found = base_encoder(network)(input_ids=own, mems=held, use_mems=False, output_hidden_states=True)
        scores = network.get_output_embeddings()(found.last_hidden_state[0]).float()
        targets = tokens[0, start + 1 : start + 1 + own.shape[1]]
        yield -scores.log_softmax(-1).gather(1, targets[:, None])[:, 0]
        if memory:
            states = [state.transpose(0, 1) for state in found.hidden_states[:-1]]
            if held is not None:
                states = [torch.cat(pair) for pair in zip(held, states, strict=True)]
            held = [state[-memory:] for state in states]
