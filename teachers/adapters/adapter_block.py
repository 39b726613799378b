"""The ``adapter`` of a recipe's ``finetune`` block: plain values, so that a recipe is read without torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from teachers.named_block import OneNamedBlock

Part = Literal["query", "key", "value", "attention_output", "ffn_in", "ffn_out"]


class Lora(BaseModel):
    """Low-rank changes of weight matrices: ``y = W x + (alpha / rank) B A x``, A ``[rank, in]``, B ``[out, rank]``.

    B starts at 0. After training the product is added to W, so the result is a standard model of the base's shape. The
    library PEFT computes it.

    Source: Hu et al. 2021, arXiv 2106.09685.

    Attributes:
        rank: Rows of A.
        alpha: The change is scaled by this over the rank.
        dropout: Share of x that the change does not see, in training.
        parts: Matrices of each layer that are changed; the paper's are those of queries and values. A family that has
            one matrix for queries, keys and values changes that one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    rank: int = Field(default=8, ge=1, le=4096)
    alpha: float = Field(default=16.0, gt=0)
    dropout: float = Field(default=0.1, ge=0, lt=1)
    parts: Annotated[tuple[Part, ...], Field(min_length=1)] = ("query", "value")


class Houlsby(BaseModel):
    """Two bottlenecks a layer, ``h + U gelu(D h)``: after attention and after the feed-forward network.

    Each stands behind the output matrix of its part, before what came in is added. The norms of the layers are trained
    too, as in the paper. It cannot be merged into the weights.

    Source: Houlsby et al. 2019, arXiv 1902.00751.

    Attributes:
        size: Channels of a bottleneck.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: int = Field(default=64, ge=1, le=65536)


class Pfeiffer(BaseModel):
    """One bottleneck a layer, after the feed-forward network: ``norm(s + U relu(D norm(s)))``.

    ``s`` is what the layer's last norm reads, the network's output with what came in added; the norm itself is the
    base's and is not trained. It cannot be merged into the weights.

    Source: Pfeiffer et al. 2021, arXiv 2005.00247, and the configuration of that name in their library.

    Attributes:
        size: Channels of a bottleneck; the paper's are a sixteenth of the hidden size, 48 for BERT-base.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: int = Field(default=48, ge=1, le=65536)


Adapter = Lora | Houlsby | Pfeiffer


class AdapterBlock(OneNamedBlock):
    """Which adapter is trained; exactly one.

    Attributes:
        lora: Low-rank changes, which are merged into the weights.
        houlsby: Two bottlenecks a layer.
        pfeiffer: One bottleneck a layer.
    """

    what: ClassVar[str] = "adapter"

    lora: Lora | None = None
    houlsby: Houlsby | None = None
    pfeiffer: Pfeiffer | None = None

    @property
    def adapter(self) -> Adapter:
        """What was named."""
        found: Adapter = getattr(self, self.one)
        return found
