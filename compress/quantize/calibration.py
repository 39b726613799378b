"""What flows through the linear layers of an exported graph, seen on examples; and what 8 bits cost each of them."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from compress.modules.int8_scheme import Int8, is_excluded, rounded
from compress.onnx_graph.float_graph import float_graph
from compress.onnx_graph.int8_graph import linear_nodes, quantize_graph
from compress.onnx_graph.rewrites import Model, module_of
from compress.onnx_graph.tracing import STATES
from compress.quantize.gptq import gptq
from compress.quantize.ranges import Histogram, Method, smoothing, together
from eval.differences import Seen
from eval.encoding import Feature, TextEncoder
from eval.progress.stages import one_by_one

if TYPE_CHECKING:
    from eval.task import Examples
    from teachers.taskmodel import TaskModel

T = TypeVar("T")
Array = NDArray[Any]
Answers = tuple[list[Feature], Array]
"""A batch with its logits."""
logger = logging.getLogger("compress.quantize")
BATCH = 16
JUDGED = 128
"""Most examples on which the loss of each layer is measured."""
MOMENTS = 256 * 1024**2
"""Bytes of second moments that are held at once."""


@dataclass(frozen=True)
class Calibration:
    """A float graph with examples to run it on.

    Attributes:
        graph: Tidy, in float32; it is not changed.
        encoder: Reads the examples.
        features: What the examples became.
    """

    graph: Model
    encoder: TextEncoder
    features: Sequence[Feature]

    @classmethod
    def of(cls, student: TaskModel, examples: Examples | tuple[()]) -> Calibration:
        """Trace a model, and encode examples for it."""
        return cls(float_graph(student).graph, student.encoder, student.encoder.encode(examples))

    def linear(self, exclude: Sequence[str]) -> dict[str, tuple[str, Array]]:
        """Return node -> its input and its matrix ``[inputs, outputs]`` for all linear layers not excluded."""
        found = linear_nodes(self.graph)
        return {node.name: (node.input[0], w) for node, w in found if not is_excluded(module_of(node), exclude)}

    def smoothings(self, linear: Mapping[str, tuple[str, Array]], strength: float) -> dict[str, Array]:
        """Return for each node what its input is divided by.

        Layers with the same input share it, and so do those with the same matrix, which then is stored once.

        Args:
            linear: What ``linear`` returned.
            strength: The share of the difficulty that moves to the weights.
        """
        of = together({node.name: node.input[:2] for node in self.graph.graph.node if node.name in linear})
        largest: dict[int, Array] = {}
        for node, x in self._inputs(linear):
            largest[of[node]] = np.maximum(largest.get(of[node], 0), np.abs(x).max(axis=0))
        rows: dict[int, Array] = {}
        for node, (_, matrix) in linear.items():
            rows[of[node]] = np.maximum(rows.get(of[node], 0), np.abs(matrix).max(axis=1))
        shared = {group: smoothing(largest[group], rows[group], strength) for group in rows}
        return {node: shared[of[node]] for node in linear}

    def ranges(
        self,
        linear: Mapping[str, tuple[str, Array]],
        smooth: Mapping[str, Array],
        method: Method,
        percentile: float,
    ) -> dict[str, tuple[float, float]]:
        """Return for each node the range of its (smoothed) input; one histogram a tensor is all that is kept."""
        seen: dict[str, Histogram] = defaultdict(Histogram)
        for name, x in self._inputs(linear, once=True):
            seen[linear[name][0]].add(x / smooth[name] if name in smooth else x)
        chosen = {x: histogram.range(method, percentile) for x, histogram in seen.items()}
        return {node: chosen[x] for node, (x, _) in linear.items()}

    def codes(self, linear: Mapping[str, tuple[str, Array]], scheme: Int8) -> dict[str, bytes]:
        """Return for each node the codes of its (smoothed) matrix that make up for each other's rounding; see ``gptq``.

        Of layers with the same matrix the moments are added. They take as many passes as keep the moments of one
        within ``MOMENTS`` bytes.

        Args:
            linear: What ``linear`` returned.
            scheme: Has a static range for each of them.
        """
        stored = {node.name: node.input[1] for node in self.graph.graph.node if node.name in linear}
        groups: dict[str, list[str]] = defaultdict(list)
        for node in linear:
            groups[stored[node]].append(node)
        found: dict[str, bytes] = {}
        for part in _passes([*groups.values()], lambda nodes: 4 * len(linear[nodes[0]][1]) ** 2):
            nodes = {node: linear[node] for group in part for node in group}
            moments = self._moments(nodes, scheme)
            for group in one_by_one(part, "rounding weights"):
                matrix = linear[group[0]][1]
                if group[0] in scheme.smooth:
                    matrix = matrix * np.array(scheme.smooth[group[0]], np.float32)[:, None]
                nearest, scale = scheme.quantized(matrix)
                shared = sum((moments[linear[node][0]] for node in group[1:]), moments[linear[group[0]][0]])
                codes = gptq(matrix, nearest, scale, shared, scheme.reduce_range).tobytes()
                found |= dict.fromkeys(group, codes)
        return found

    def _moments(self, linear: Mapping[str, tuple[str, Array]], scheme: Int8) -> dict[str, Array]:
        """Return ``Σ x'ᵀ x'`` of each rounded (smoothed) input, by its name."""
        found: dict[str, Array] = {}
        for node, x in self._inputs(linear, once=True):
            smooth = np.array(scheme.smooth.get(node, 1), np.float32)
            x = rounded(x / smooth, *scheme.ranges[node]).astype(np.float32)
            found[linear[node][0]] = found.get(linear[node][0], 0) + x.T @ x
        return found

    def corrections(self, linear: Mapping[str, tuple[str, Array]], scheme: Int8) -> dict[str, Array]:
        """Return for each node what its rounded outputs lack in the mean: ``E[x] W - E[x'] W'``, ``[outputs]``.

        x' is the rounded input and W' the rounded matrix, as the scheme has them. Source: Nagel et al. 2019, arXiv
        1906.04721, section 4.2, of activations too.

        Args:
            linear: What ``linear`` returned.
            scheme: Has a static range for each of them.
        """
        smooth = {node: np.array(by, np.float32) for node, by in scheme.smooth.items()}
        sums: dict[str, Array] = defaultdict(lambda: np.zeros((2, 1)))
        count: dict[str, int] = defaultdict(int)
        for node, x in self._inputs(linear):
            x = x / smooth.get(node, 1)
            both = np.stack([values.sum(axis=0, dtype=np.float64) for values in (x, rounded(x, *scheme.ranges[node]))])
            sums[node], count[node] = sums[node] + both, count[node] + len(x)
        found = {}
        for node, (_, matrix) in linear.items():
            exact = matrix * smooth[node][:, None] if node in smooth else matrix
            steps, scale = scheme.quantized(exact, scheme.codes.get(node))
            x, of_rounded = sums[node] / count[node]
            found[node] = x @ exact - (of_rounded @ steps) * scale
        return found

    def _inputs(self, linear: Mapping[str, tuple[str, Array]], once: bool = False) -> Iterator[tuple[str, Array]]:
        """Yield node and input ``[tokens, inputs]``, batch by batch, without padding; each tensor once if so asked."""
        wanted = dict.fromkeys(x for x, _ in linear.values())
        if not wanted:
            return
        watched = onnx.ModelProto()
        watched.CopyFrom(self.graph)
        kind = onnx.TensorProto.FLOAT
        watched.graph.output.extend(onnx.helper.make_tensor_value_info(name, kind, None) for name in wanted)
        session = _session(watched)
        for batch in self._equal_lengths():
            arrays = dict(zip(wanted, session.run(list(wanted), self.encoder.collate(batch)), strict=True))
            done = set()
            for node, (x, matrix) in linear.items():
                if not (once and x in done):
                    done.add(x)
                    yield node, arrays[x].reshape(-1, len(matrix))

    def _equal_lengths(self) -> Iterator[list[Feature]]:
        by_length: dict[int, list[Feature]] = defaultdict(list)
        for feature in self.features:
            by_length[len(feature.ids)].append(feature)
        for length in sorted(by_length):
            same = by_length[length]
            yield from (same[start : start + BATCH] for start in range(0, len(same), BATCH))

    def spread(self, count: int) -> Calibration:
        """Return the same graph with at most ``count`` of its examples, spread evenly."""
        count = min(count, len(self.features))
        return replace(self, features=[self.features[i * len(self.features) // count] for i in range(count)])

    def by_harm(self, scheme: Int8, expected: Sequence[Answers] | None = None) -> dict[str, float]:
        """Return layer -> mean change of the logits where it alone is in 8 bits, the largest change first.

        Args:
            scheme: All layers in 8 bits.
            expected: Answers of the float graph, if they are known.
        """
        expected = self._answers(self.graph) if expected is None else expected
        every = list(scheme.ranges) or list(dict.fromkeys(map(_module, self.linear(scheme.exclude))))
        alone = {
            layer: self._loss(only(scheme, [layer], every), expected)[1] for layer in one_by_one(every, "trying layers")
        }
        return dict(sorted(alone.items(), key=lambda one: -one[1]))

    def kept_in_float(self, scheme: Int8, budget: float) -> tuple[dict[str, float], float]:
        """Return the layers that must stay in float, and the agreement of the 8-bit graph that is left.

        If the 8-bit graph changes more than ``budget`` of the predictions, each layer is quantized alone. Those that
        move the logits most stay in float, as few as bring the agreement back.

        Args:
            scheme: All layers in 8 bits.
            budget: Share of the predictions that may change.

        Returns:
            Layer -> mean change of the logits by it alone; and the agreement. Layers are named by their node where
            ranges are static, and by their module otherwise.
        """
        some = self.spread(JUDGED)
        expected = some._answers(self.graph)
        agreement = some._loss(scheme, expected)[0]
        if agreement >= 1 - budget:
            return {}, agreement
        logger.info(
            "%.1f%% of the predictions stay with all layers in 8 bits; looking for layers to keep", 100 * agreement
        )
        alone = some.by_harm(scheme, expected)
        order = list(alone)
        most, agreement = some.fewest_in_float(scheme, order, budget, expected)
        kept = {layer: alone[layer] for layer in order[:most]}
        for layer, loss in kept.items():
            logger.info("%s stays in float: alone it moves the logits by %.3g", _module(layer), loss)
        return kept, agreement

    def fewest_in_float(
        self, scheme: Int8, order: Sequence[str], budget: float, expected: Sequence[Answers] | None = None
    ) -> tuple[int, float]:
        """Return how many of the first layers must stay in float, found by bisection, and the agreement then.

        Args:
            scheme: All layers in 8 bits.
            order: All of them, the most harmful first.
            budget: Share of the predictions that may change.
            expected: Answers of the float graph, if they are known.
        """
        expected = self._answers(self.graph) if expected is None else expected
        least, most = 0, len(order)
        while most - least > 1:
            middle = (least + most) // 2
            found = self._loss(only(scheme, order[middle:], order), expected)[0]
            least, most = (least, middle) if found >= 1 - budget else (middle, most)
        return most, self._loss(only(scheme, order[most:], order), expected)[0]

    def _answers(self, graph: Model) -> list[Answers]:
        """Return batches of features with their logits; the two of qa are stacked."""
        session = _session(graph)
        answers = []
        outputs = [output.name for output in session.get_outputs() if output.name != STATES]
        for batch in self._equal_lengths():
            found = session.run(outputs, self.encoder.collate(batch))
            answers.append((batch, found[0] if len(found) == 1 else np.stack(found, axis=-1)))
        return answers

    def _loss(self, scheme: Int8, expected: Sequence[Answers]) -> tuple[float, float]:
        """Return the agreement of an 8-bit graph with the float one, and the mean change of its logits."""
        graph = onnx.ModelProto()
        graph.CopyFrom(self.graph)
        quantize_graph(graph, scheme)
        seen = Seen(self.encoder.settings)
        for (batch, one), (_, other) in zip(expected, self._answers(graph), strict=True):
            seen.add(batch, self.encoder, one, other, decide=True)
        return seen.agreement(0.0), seen.mean


def _passes(items: Sequence[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield items in order, as many together as stay within ``MOMENTS`` bytes, and at least one."""
    part: list[T] = []
    for item in items:
        if part and sum(map(size, part)) + size(item) > MOMENTS:
            yield part
            part = []
        part.append(item)
    if part:
        yield part


def _module(layer: str) -> str:
    """Return the module of a layer that is named by its node or by its module."""
    return layer.rpartition("/")[0] or layer


def only(scheme: Int8, layers: Sequence[str], every: Sequence[str]) -> Int8:
    """Return a scheme in which these layers alone are 8-bit."""
    if not scheme.ranges:
        return scheme.model_copy(update={"exclude": (*scheme.exclude, *(x for x in every if x not in set(layers)))})
    parts = {name: getattr(scheme, name) for name in scheme.by_node()}
    kept = {name: {node: v for node, v in part.items() if node in set(layers)} for name, part in parts.items()}
    return scheme.model_copy(update=kept)


def _session(graph: Model) -> Any:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
