"""8-bit weights and activations as pairs of QuantizeLinear and DequantizeLinear around float products.

It computes what ``int8_graph`` does, in the form that compilers such as OpenVINO's turn into their own 8-bit kernels:
they leave integer products as they are, and run them in float.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compress.export.graph import Model, Node
from compress.export.int8 import Int8
from compress.export.int8_graph import Quantizer


def quantize_in_pairs(model: Model, scheme: Int8) -> dict[str, Any]:
    """Quantize linear layers and embedding tables of a tidy float32 graph, in place.

    Fixed ranges become a pair after each input. Ranges that are taken as activations come are left to the runtime:
    only the weights are 8-bit in the graph.

    Args:
        model: A graph as ``compress.export.graph.tidy`` leaves it.
        scheme: What becomes 8-bit, and how.

    Returns:
        What ``quantize_graph`` returns.
    """
    return _InPairs(model, scheme).run()


class _InPairs(Quantizer):
    def _product(self, node: Node, x: str, weight: str, last: str) -> str:
        if self.scheme.activations == "static":
            uint8, scale, zero = self._activation(x, self._known(self.scheme.ranges, node))
            x = f"{uint8}_back"
            if not any(x in made.output for made in self.nodes):
                self._add("DequantizeLinear", [uint8, scale, zero], x)
        back = f"{weight}_back"
        if not any(back in made.output for made in self.nodes):
            by_output = np.ndim(self.arrays[f"{weight}_scale"]) > 0
            self._add("DequantizeLinear", [weight, f"{weight}_scale"], back, axis=1 if by_output else 0)
        return self._add("MatMul", [x, back], last, node.name)
