"""Which results of several training seeds belong together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from eval.errors import UserError, quantity

if TYPE_CHECKING:
    from eval.result import Result


def seed_pairs(candidates: Sequence[Result], references: Sequence[Result]) -> list[tuple[Result, Result]]:
    """Return candidate and reference of each training seed.

    One reference is that of all candidates. Several are paired off by their training seeds. Their order counts only
    where all have one seed, or say none, as a teacher that was measured several times.

    Raises:
        UserError: There is no candidate, a seed is unknown or lacks its partner, or the numbers differ.
    """
    if candidates and len(references) == 1:
        return [(one, references[0]) for one in candidates]
    seeds = [[one.training_seed for one in side] for side in (candidates, references)]
    if all(None not in side and len(side) == len(set(side)) for side in seeds) and candidates and references:
        known = {one.training_seed: one for one in references}
        problems = [
            f"pair: seed{'s' * (len(lone) > 1)} {', '.join(map(str, lone))} of {name} {verb} no {other}; "
            "give results of the same seeds"
            for lone, name, verb, other in (
                (_without(seeds[0], seeds[1]), "the candidates", "have", "reference"),
                (_without(seeds[1], seeds[0]), "the references", "have", "candidate"),
            )
            if lone
        ]
        if problems:
            raise UserError(*problems)
        return [(one, known[one.training_seed]) for one in candidates]
    if not candidates or len(candidates) != len(references):
        raise UserError(
            f"pair: {quantity(len(candidates), 'candidate')} cannot be paired off with "
            f"{quantity(len(references), 'reference')}"
        )
    twice = [seed for seed, count in Counter(seeds[0]).items() if seed is not None and count > 1]
    if twice:
        raise UserError(f"pair: seed {twice[0]} is that of several candidates; give one result a seed")
    if len(set(seeds[1])) > 1:
        told = ", ".join("unknown" if seed is None else str(seed) for seed in seeds[1])
        raise UserError(
            f"pair: the training seeds of the references ({told}) do not say which candidate each belongs to; "
            "give one result of every candidate's seed"
        )
    return list(zip(candidates, references, strict=True))


def _without(seeds: Sequence[int | None], others: Sequence[int | None]) -> list[int]:
    return sorted(seed for seed in seeds if seed is not None and seed not in others)
