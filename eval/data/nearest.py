"""The first stage of a reranking task whose documents an embedder finds, by exact search."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from eval.errors import UserError
from eval.inference import Predictor, completed, predict
from eval.task import BM25, Examples


def with_nearest(
    first_stage: str, embedder: Callable[[str], Predictor] | None, splits: Mapping[str, Examples]
) -> dict[str, Examples]:
    """Return splits whose queries have as ``candidates`` the ids of the documents that an embedder finds, best first.

    The corpus is read once for the queries of all splits. Of ``bm25`` nothing is added here.

    Args:
        first_stage: The folder of the embedder, or ``bm25``.
        embedder: Opens it, as a model of kind retrieval.
        splits: Queries, and texts alone, which stay as they are.

    Raises:
        UserError: Nothing opens the folder, or it is no embedder.
    """
    if first_stage == BM25:
        return dict(splits)
    if embedder is None:
        raise UserError(
            f"first_stage: got {first_stage!r}; {BM25} needs nothing more; to find documents with an embedder, pass "
            "what opens its folder too: embedder=compress.export.embedder.open_embedder"
        )
    queries = [example for split in splits.values() for example in split if "corpus" in example]
    if not queries:
        return dict(splits)
    model = embedder(first_stage)
    asked = [{field: query[field] for field in ("id", "text", "corpus")} for query in queries]
    answers = iter(completed(model, asked, predict(model, asked)).answers)
    return {
        name: Examples(
            [
                {**example, "candidates": next(answers)["ranking"]} if "corpus" in example else example
                for example in split
            ],
            split.name,
            split.skipped,
        )
        for name, split in splits.items()
    }
