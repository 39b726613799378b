"""What an earlier pretraining left beside its network: heads that go on where the network is trained further."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, field
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor, nn

from teachers.pretraining.objectives import Objectives

logger = logging.getLogger("teachers.pretraining")

HEADS = "heads.safetensors"
"""The file that holds them."""


@dataclass(frozen=True)
class EarlierHeads:
    """Tensors of heads by name; tensors that heads share stand under the first of them alone.

    Attributes:
        tensors: By the name of the head and the tensor's own.
        digest: Recognises them; empty without any.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    digest: str = ""

    def hand_over(self, module: nn.Module, name: str) -> None:
        """Copy what a module of this name had learned, if its shapes are still the same.

        Args:
            module: A new one; what it lacks among the tensors, because it shares it, is left as it is.
            name: Its name, or the last part of it.
        """
        known = module.state_dict()
        found: dict[str, Tensor] = {}
        for place, tensor in self.tensors.items():
            _, mark, own = f".{place}".partition(f".{name}.")
            if mark and own in known:
                found.setdefault(own, tensor)
        other = [own for own, tensor in found.items() if known[own].shape != tensor.shape]
        if other:
            logger.info("%s: learns from the start, for the shape of %s was another", name, ", ".join(sorted(other)))
        elif found:
            logger.info("%s: goes on with what it had learned", name)
            module.load_state_dict(found, strict=False)


def earlier_heads(named: str | None) -> EarlierHeads:
    """Return the heads beside a network, a folder or a hub name; none beside one that was made elsewhere."""
    from transformers.utils import cached_file

    place = named and cached_file(
        named, HEADS, _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_connection_errors=False
    )
    if not place:
        return EarlierHeads()
    with Path(place).open("rb") as stream:
        return EarlierHeads(_under_new_names(load_file(place)), hashlib.file_digest(stream, "sha256").hexdigest())


def _under_new_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of heads under the names that objectives have now."""
    new = Objectives.renamed
    return {".".join(new.get(part, part) for part in name.split(".")): tensor for name, tensor in tensors.items()}
