"""``check_technique``: all checks that fit what a technique declares."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from compress.artifact.artifact import Artifact
from compress.technique import Technique
from compress.testing.case import Case, least
from compress.testing.claims import LARGE, check_claims, sizes_on_disk
from compress.testing.reloading import reload_in_a_fresh_process
from compress.testing.technique_checks import checks_for, family_checks_for, is_refused
from eval.task import KindName

USUAL = ("bert", "distilbert")
"""Two families whose layers do the same under different names; ``compress.testing.tiny.FAMILIES`` are all."""


def check_technique(
    technique: type[Technique] | Technique,
    *,
    families: Sequence[str] = USUAL,
    refuses: Sequence[str] = (),
    kind: KindName = "classification",
    tolerance: float = 1e-5,
    exports: bool = True,
) -> list[str]:
    """Run the conformance checks of this toolkit over a technique, on tiny random encoders; takes some seconds.

    Args:
        technique: The class, which is run with its defaults, or a config with the fields that it cannot do without.
            What trains does so for two optimizer steps, unless the config says otherwise.
        families: Model types that it is for; models of packages work too.
        refuses: Further model types, which ``Technique.check`` must refuse by name.
        kind: KindName of the task: classification, regression or embedding.
        tolerance: Largest change of a logit by padding and by the other examples of a batch; techniques that round
            activations need more.
        exports: Whether the result can be exported to ONNX.

    Returns:
        The names of the checks that ran; those of one family begin with it.

    Raises:
        AssertionError: If a check fails; it says which one, and why.

    Example:
        >>> from compress.prune.layers import LayerPruning
        >>> check_technique(LayerPruning(keep=[0, 2]), families=["bert"])  # doctest: +SKIP
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        config = least(technique() if isinstance(technique, type) else technique)
        first = Case(config, root / "teacher", families[0], kind, tolerance)
        cases = [replace(first, family=family) for family in families]
        ran = [_run(config, check.__name__, partial(check, first)) for check in checks_for(config)]
        for case in cases:
            ran += [
                _run(config, f"{case.family}: {check.__name__}", partial(check, case))
                for check in family_checks_for(config)
            ]
        for family in refuses:
            ran.append(
                _run(config, f"{family}: {is_refused.__name__}", partial(is_refused, replace(first, family=family)))
            )
        ran.append(_run(config, "claims_of_files_hold", partial(_claims, first, root / "claims", exports)))
        ran.append(_run(config, reload_in_a_fresh_process.__name__, partial(reload_in_a_fresh_process, cases, root)))
    return ran


def _claims(case: Case, folder: Path, exports: bool) -> None:
    large = replace(case, changes=LARGE)
    before = sizes_on_disk(Artifact.from_model(large.source), case.task, folder / "before")
    after = sizes_on_disk(large.result, case.task, folder / "after", exports=exports)
    check_claims(type(case.technique), before, after)


def _run(technique: Technique, name: str, check: Callable[[], None]) -> str:
    """Run one check and return its name; whatever it raises becomes an AssertionError that names it."""
    try:
        check()
    except Exception as error:
        reason = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        raise AssertionError(f"{technique.name}: check {name!r} failed: {reason}") from error
    return name
