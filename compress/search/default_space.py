"""The space that is searched where a budget names no template: what one chain of steps can do to a fine-tuned encoder.

The order of the steps is that of the recipes that were found by hand (docs/combining.md): train a student of fewer
layers, drop what the texts never use, cut neurons and heads, factorise, fine-tune again, let easy inputs leave early,
round. Every step may be left out. The techniques' own rules say what cannot follow on what, before any training.
"""

from __future__ import annotations

from typing import Any

from compress.search.ranges import RANGE


def any_of(*values: Any) -> dict[str, Any]:
    """Return a range over some values."""
    return {RANGE: list(values)}


LOGITS: dict[str, Any] = {"distill.logits": {"loss": "mse", "alpha": 1.0}}
FROM_BOTH: dict[str, Any] = {"distill.logits": {"alpha": 0.5}}
"""What recovery fine-tuning learns from: the teacher's outputs, or these and the labels in equal parts."""
VECTORS: dict[str, Any] = {"distill.embedding": {"mse": 0.0, "cosine": 1.0, "similarity": 1.0}}
"""What an embedder learns from: the teacher's vectors, and the cosines among them."""
DISTILLED = {"epochs": 4, "learning_rate": 2e-4, "batch_size": 64, "warmup_steps": 0.06}
"""How the student is trained at first; pruned weights are trained at half that rate for half as long."""
RECOVERED = {"epochs": 2, "learning_rate": 1e-4, "batch_size": 64, "warmup_steps": 0.06}
EMBEDDINGS = {"epochs": 3, "learning_rate": 2e-4, "batch_size": 64, "warmup_steps": 0.06}
BRANCHES = {"epochs": 2, "learning_rate": 1e-3, "batch_size": 64}
ONNX = {"onnx": {"agreement": 0.9}}


def template(layers: int, per_token: bool = False, vectors: bool = False) -> dict[str, Any]:
    """Return the template for a teacher of so many layers.

    Args:
        layers: Of the teacher.
        per_token: Whether tokens are answered one by one, as in tagging: then teacher and student must cut the
            training texts alike until all training is done, so no subword token that these texts use is dropped.
        vectors: Whether the teacher is an embedder, whose vectors are all there is to learn from.
    """
    rarer = () if per_token else ({"prune.vocabulary": {"min_count": 2}},)
    objective = VECTORS if vectors else any_of(LOGITS, FROM_BOTH)
    recovery: dict[str, Any] = {"objective": objective, "training": RECOVERED}
    cut = {"ffn": any_of(0.25, 0.5, 0.75), **_importance(vectors)}
    return {
        "student": any_of(None, *({"from": "teacher", "layers": kept} for kept in kept_layers(layers))),
        "steps": [
            any_of(*(_of_vectors() if vectors else _of_outputs()), None),
            any_of("prune.vocabulary", *rarer, None),
            any_of(
                None,
                {"prune.structured": {**cut, "recover": False}},
                {"prune.structured": {**cut, "heads": any_of(0.25, 0.5), "recover": False}},
                {"prune.structured": {**cut, **recovery}},
            ),
            any_of(None, {"share.lowrank": {"keep": any_of(0.25, 0.5), **recovery}}),
            any_of(
                None,
                {
                    "share.embeddings": {
                        "size": any_of(48, 64, 96, 128),
                        "weighting": "frequency",
                        "objective": objective,
                        "training": EMBEDDINGS,
                    }
                },
            ),
            any_of(
                None,
                {
                    "distill.early_exit": {
                        "speed": "auto",
                        "tolerance": any_of(0.005, 0.01),
                        "training": BRANCHES,
                    }
                },
            ),
            any_of(
                "quantize.dynamic",
                {"quantize.dynamic": {"activations": "tensor"}},
                "quantize.static",
                {"quantize.weights": {"format": "int4"}},
                None,
            ),
        ],
        "export": [ONNX],
    }


def _importance(vectors: bool) -> dict[str, str]:
    """Return by what neurons and heads are chosen, where it is not Taylor's importance, which reads labels."""
    return {"importance": "magnitude"} if vectors else {}


def _of_outputs() -> list[dict[str, Any]]:
    """Return how a student learns a teacher's outputs, labels, or both."""
    return [
        {"distill.logits": {"loss": "mse", "alpha": 1.0, "training": DISTILLED}},
        {"distill.logits": {"loss": "kl", "temperature": 2.0, "alpha": 0.5, "training": DISTILLED}},
        {"distill.labels": {"training": DISTILLED}},
    ]


def _of_vectors() -> list[dict[str, Any]]:
    """Return how a student learns the vectors of an embedder."""
    ways: list[dict[str, Any]] = [VECTORS["distill.embedding"], {"mse": 1.0, "similarity": 1.0}]
    return [{"distill.embedding": {**way, "training": DISTILLED}} for way in ways]


def kept_layers(layers: int) -> list[list[int]]:
    """Return which layers a student may keep: for each depth evenly spread ones, and the lowest.

    Examples:
        >>> kept_layers(6)[:4]
        [[0], [0, 1], [0, 5], [0, 1, 2]]
    """
    found: list[list[int]] = []
    for depth in range(1, layers):
        spread = [round(place * (layers - 1) / max(1, depth - 1)) for place in range(depth)]
        found += [list(range(depth)), spread]
    return [kept for place, kept in enumerate(found) if kept not in found[:place]]


def starts(layers: int, vectors: bool = False) -> list[dict[str, Any]]:
    """Return the points that were found by hand: compress/recipes/chain-smallest.yaml and chain-six-layers.yaml.

    Args:
        layers: Of the teacher; the smallest chain keeps half of them.
        vectors: Whether the teacher is an embedder; then both chains learn its vectors, and none leaves early.
    """
    objective, first = VECTORS if vectors else LOGITS, (_of_vectors() if vectors else _of_outputs())[0]
    half = max(1, layers // 2)
    spread = [round(place * (layers - 1) / max(1, half - 1)) for place in range(half)]
    table = {"size": 96, "weighting": "frequency", "objective": objective, "training": EMBEDDINGS}
    smallest: list[Any] = [
        first,
        "prune.vocabulary",
        {"prune.structured": {"ffn": 0.5, **_importance(vectors), "recover": False}},
        {"share.embeddings": table},
        "quantize.dynamic",
    ]
    fastest: list[Any] = [
        "prune.vocabulary",
        {"prune.structured": {"ffn": 0.5, **_importance(vectors), "objective": objective, "training": RECOVERED}},
        *([] if vectors else [{"distill.early_exit": {"speed": "auto", "tolerance": 0.01, "training": BRANCHES}}]),
        {"quantize.dynamic": {"activations": "tensor"}},
    ]
    return [
        {"student": {"from": "teacher", "layers": spread}, "steps": smallest, "export": [ONNX]},
        {"steps": fastest, "export": [ONNX]},
    ]
