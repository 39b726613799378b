"""The base of teachers that have logits and nothing else: whatever asks for parts of a network is told so."""

from __future__ import annotations

from typing import NoReturn

from torch import Tensor

from eval.errors import UserError
from teachers.signals.hooks import SignalSpec


class LogitsAlone:
    """What a teacher that is no single network refuses."""

    def refusal(self, what: str) -> str:
        """Return why there is none of ``what``, and what to do instead."""
        raise NotImplementedError(f"{type(self).__name__} does not implement refusal")

    @property
    def layers(self) -> int:
        """Refused."""
        self._refuse("layers")

    @property
    def decoder_layers(self) -> int:
        """Refused."""
        self._refuse("layers")

    @property
    def hidden_size(self) -> int:
        """Refused."""
        self._refuse("hidden states")

    @property
    def heads(self) -> int:
        """Refused."""
        self._refuse("attention heads")

    @property
    def plain_attention(self) -> bool:
        """Refused."""
        self._refuse("attention")

    def score_bias(self, layer: int, length: int) -> Tensor | None:
        """Refused."""
        del layer, length
        self._refuse("attention")

    def refuse_more(self, wanted: SignalSpec) -> None:
        """Refuse whatever is wanted beside logits.

        Raises:
            UserError: If anything is.
        """
        if wanted:
            self._refuse("hidden states, queries, keys or values")

    def _refuse(self, what: str) -> NoReturn:
        raise UserError(self.refusal(what))
