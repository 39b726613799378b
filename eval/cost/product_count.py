"""Counts the floating-point operations of the matrix products and convolutions that torch runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class ProductCount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within ``with``, ``flops`` grows by what each operator computes, by the formulas of torch's ``FlopCounterMode``.

    That one also keeps a table by module, for which it hooks into each of them; the total alone takes half the time.
    """

    _indivisible: ClassVar[set[Any]] = set()
    """Operators without a formula that consist of no others."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operator and count it, or those that it consists of."""
        given = kwargs or {}
        formula = _FORMULAS.get(func.overloadpacket) or flop_registry.get(func.overloadpacket)
        if formula is None and func not in self._indivisible:
            with self:
                parts: Any = func.decompose(*args, **given)
            if parts is not NotImplemented:
                return parts
            self._indivisible.add(func)
        result = func(*args, **given)
        if formula is not None:
            self.flops += int(formula(*args, **given, out_val=result))
        return result


def _recurrent(tokens: torch.Tensor, from_input: torch.Tensor, from_state: torch.Tensor, *_: Any, **__: Any) -> int:
    """Return what an LSTM or GRU of oneDNN computes, which torch leaves out: ``[L, B, d]`` times both its matrices."""
    return 2 * math.prod(tokens.shape[:2]) * (from_input.numel() + from_state.numel())


_FORMULAS: Mapping[Any, Callable[..., int]] = {torch.ops.aten.mkldnn_rnn_layer: _recurrent}
