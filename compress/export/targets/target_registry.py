"""The one list of export targets, each loaded on use; other packages add theirs by entry points.

A package offers a target with an entry point of the group ``compress.targets``, whose name is that of the target and
whose value is its class: ``[project.entry-points."compress.targets"]``, ``mine = "my_package.mine:MyTarget"``.
"""

from __future__ import annotations

from compress.export.targets.library import FIRST_TARGET, Library
from compress.export.targets.target import Target
from eval.plugins import Registry, subclass_of

__all__ = [
    "BUILT_IN",
    "FASTEST",
    "FIRST_TARGET",
    "REGISTRY",
    "get_target",
    "library_of",
    "target_names",
    "tuned_targets",
]

BUILT_IN: dict[str, str] = {
    "onnx": "compress.export.targets.onnx:OnnxTarget",
    "ort": "compress.export.targets.ort_format:OrtTarget",
    "openvino": "compress.export.targets.openvino:OpenVinoTarget",
    "executorch": "compress.export.targets.executorch:ExecutorchTarget",
    "web": "compress.export.targets.web:WebTarget",
    "triton": "compress.export.targets.triton:TritonTarget",
    "generator": "compress.export.targets.generator:GeneratorTarget",
    "fastest": "compress.export.targets.fastest:FastestTarget",
}
"""Every target of this package by the name that ``compress export --to`` and recipes give it."""
FASTEST = "fastest"
"""The one that is no target of its own: ``tune`` chooses one."""
REGISTRY: Registry[Target] = Registry(
    "target", "compress.targets", BUILT_IN, subclass_of("compress.export.Target"), instances=True
)
"""Those targets and the ones of other packages."""


def target_names() -> tuple[str, ...]:
    """Return the names of all targets, those of other packages last; nothing of them is loaded."""
    return REGISTRY.names()


def get_target(name: str, where: str = "--to") -> Target:
    """Return a target.

    Args:
        name: Its name.
        where: What messages call the place of an unknown name.

    Raises:
        UserError: If there is no such target, two packages claim the name, or the package that offers it is broken.
    """
    return REGISTRY.get(name, where)


def library_of(name: str) -> Library | None:
    """Return what runs exports for a target on this machine; None if nothing does, or there is no such target.

    Raises:
        UserError: If two packages claim the name, or the package that offers the target is broken.
    """
    return get_target(name).library if name in REGISTRY else None


def tuned_targets(writes: bool = False) -> tuple[str, ...]:
    """Return the names of the targets whose variants ``tune`` measures; broken ones are left out with a warning.

    Args:
        writes: Whether a text is written in answer to a text.
    """
    return tuple(target.name for target in REGISTRY.loadable() if target.tuned and target.writes == writes)
