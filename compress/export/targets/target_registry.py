"""The one list of export targets, each loaded on use; other packages add theirs by entry points.

A package offers a target with an entry point of the group ``compress.targets``, whose name is that of the target and
whose value is its class: ``[project.entry-points."compress.targets"]``, ``mine = "my_package.mine:MyTarget"``.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from compress.export.targets.library import FIRST_TARGET, Library
from compress.export.targets.target import Target
from eval.errors import UserError, did_you_mean
from eval.one_line import first_line

__all__ = ["BUILT_IN", "FIRST_TARGET", "GROUP", "get_target", "library_of", "target_names", "tuned_targets"]

BUILT_IN: dict[str, str] = {
    "onnx": "compress.export.targets.onnx:OnnxTarget",
    "ort": "compress.export.targets.ort_format:OrtTarget",
    "openvino": "compress.export.targets.openvino:OpenVinoTarget",
    "executorch": "compress.export.targets.executorch:ExecutorchTarget",
    "web": "compress.export.targets.web:WebTarget",
}
"""Every target of this package by the name that ``compress export --to`` and recipes give it."""
GROUP = "compress.targets"
"""The group of entry points by which other packages offer targets."""


def target_names() -> tuple[str, ...]:
    """Return the names of all targets, those of other packages last; nothing of them is loaded."""
    return (*BUILT_IN, *sorted(_offered()))


def get_target(name: str, where: str = "--to") -> Target:
    """Return a target.

    Args:
        name: Its name.
        where: What messages call the place of the name.

    Raises:
        UserError: If there is no such target, or the package that offers it is broken.
    """
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        built_in: Target = getattr(import_module(module), attribute)()
        return built_in
    offered = _offered()
    if name not in offered:
        raise UserError(f"{where}: got {name!r}{did_you_mean(name, target_names())}")
    return _loaded(offered[name])


def library_of(name: str) -> Library | None:
    """Return what runs exports for a target on this machine; None if nothing does, or there is no such target.

    Raises:
        UserError: If the package that offers the target is broken.
    """
    return get_target(name).library if name in target_names() else None


def tuned_targets() -> tuple[str, ...]:
    """Return the names of the targets whose variants ``tune`` measures; packages that are broken are left out."""
    found = []
    for name in target_names():
        try:
            target = get_target(name)
        except UserError:
            continue
        found += [name] if target.tuned else []
    return tuple(found)


def _offered() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP) if entry.name not in BUILT_IN}


def _loaded(entry: EntryPoint) -> Target:
    package = entry.dist.name if entry.dist is not None else entry.module
    blame = f"target {entry.name!r}: the package {package} offers it, but"
    try:
        found = entry.load()()
    except Exception as error:  # whatever a foreign module raises
        raise UserError(
            f"{blame} {entry.value} cannot be loaded ({first_line(error)}); update or remove that package"
        ) from error
    if not isinstance(found, Target) or getattr(found, "name", None) != entry.name:
        raise UserError(
            f"{blame} {entry.value} is no compress.export.Target of that name; update or remove that package"
        )
    return found
