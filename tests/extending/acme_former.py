"""A family of another package: an encoder of its own class whose attributes have names of their own."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput

from teachers.anatomy.family import Family


class AcmeConfig(PreTrainedConfig):
    """Dimensions, under names that no other family has."""

    model_type = "acme-former"

    def __init__(self, depth=2, width=32, fans=4, inner=64, vocab_size=100, places=64, act="gelu", **more):
        super().__init__(**more)
        self.depth, self.width, self.fans, self.inner = depth, width, fans, inner
        self.vocab_size, self.places, self.act = vocab_size, places, act


class Mix(nn.Module):
    """Attention over all places."""

    def __init__(self, config):
        super().__init__()
        self.fans, self.fan_width = config.fans, config.width // config.fans
        self.inner_width = config.width
        self.ask, self.find, self.take = (nn.Linear(config.width, config.width) for _ in range(3))
        self.join = nn.Linear(config.width, config.width)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        asked, found, taken = (
            part(hidden).unflatten(-1, (self.fans, -1)).transpose(1, 2) for part in (self.ask, self.find, self.take)
        )
        scores = asked @ found.transpose(-1, -2) / self.fan_width**0.5 + mask
        return self.join((scores.softmax(-1) @ taken).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and two layers, each normalised with what went in."""

    def __init__(self, config):
        super().__init__()
        self.mix, self.mix_norm = Mix(config), nn.LayerNorm(config.width)
        self.up, self.down = nn.Linear(config.width, config.inner), nn.Linear(config.inner, config.width)
        self.last_norm = nn.LayerNorm(config.width)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        hidden = self.mix_norm(hidden + self.mix(hidden, mask))
        return self.last_norm(hidden + self.down(nn.functional.gelu(self.up(hidden))))


class AcmePreTrained(PreTrainedModel):
    """What both networks share."""

    config_class = AcmeConfig
    base_model_prefix = "trunk"


class AcmeTrunk(AcmePreTrained):
    """The encoder."""

    def __init__(self, config):
        super().__init__(config)
        self.words = nn.Embedding(config.vocab_size, config.width, padding_idx=config.pad_token_id)
        self.where = nn.Embedding(config.places, config.width)
        self.first_norm = nn.LayerNorm(config.width)
        self.stack = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.post_init()

    def get_input_embeddings(self):
        return self.words

    def set_input_embeddings(self, value):
        self.words = value

    def forward(self, input_ids, attention_mask=None, output_hidden_states=False, **_):
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        hidden = self.first_norm(self.words(input_ids) + self.where(places))
        seen = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        mask = (1.0 - seen[:, None, None, :].to(hidden.dtype)) * torch.finfo(hidden.dtype).min
        states = [hidden]
        for block in self.stack:
            hidden = block(hidden, mask)
            states.append(hidden)
        return BaseModelOutput(hidden, hidden_states=tuple(states) if output_hidden_states else None)


class AcmeForSequenceClassification(AcmePreTrained):
    """The encoder with a linear classifier on its first token."""

    def __init__(self, config):
        super().__init__(config)
        self.trunk = AcmeTrunk(config)
        self.decide = nn.Linear(config.width, config.num_labels)
        self.post_init()

    def forward(self, input_ids, attention_mask=None, output_hidden_states=False, **_):
        found = self.trunk(input_ids, attention_mask, output_hidden_states)
        logits = self.decide(found.last_hidden_state[:, 0])
        return SequenceClassifierOutput(logits=logits, hidden_states=found.hidden_states)


AutoConfig.register("acme-former", AcmeConfig)
AutoModelForSequenceClassification.register(AcmeConfig, AcmeForSequenceClassification)

FAMILY = Family(
    "acme-former",
    base="trunk",
    layers="stack",
    config={
        "layers": "depth",
        "hidden_size": "width",
        "heads": "fans",
        "intermediate_size": "inner",
        "vocab_size": "vocab_size",
        "activation": "act",
        "max_positions": "places",
    },
    parts={
        "query": "mix.ask",
        "key": "mix.find",
        "value": "mix.take",
        "attention_output": "mix.join",
        "attention_norm": "mix_norm",
        "ffn_in": "up",
        "ffn_out": "down",
        "ffn_norm": "last_norm",
    },
    head_numbers=("fans", "inner_width"),
    embeddings={"words": "words", "positions": "where", "norm": "first_norm"},
    heads={"classifier": "decide"},
    token_types="never",
    post_norm=False,
    predicts_words=False,
    adds_mask=False,
    entry=("words", "where", "first_norm"),
    closing=(),
)
