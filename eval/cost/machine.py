"""What the figures were taken on: processor and its int8 instructions, memory, accelerator, library versions."""

from __future__ import annotations

import importlib
import os
import platform
import sys
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from eval.cost.openmp import told

FEATURES = (
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_int8",
    "amx_bf16",
    "asimddp",  # dot products on ARM
    "i8mm",
    "sve",
)
"""Processor features that decide how fast, and how exact, narrow arithmetic is; names as Linux writes them."""
CONTAINER = "/sys/fs/cgroup"
"""Where Linux says what the control group of this process may take and holds, inside a container."""
LIBRARIES = ("torch", "transformers", "onnxruntime", "onnx", "tokenizers", "numpy", "nlp-compress")


def machine(accelerator: bool = False) -> dict[str, Any]:
    """Describe this machine in plain JSON.

    Args:
        accelerator: Load torch to look for a GPU; without it a GPU is named only if torch is loaded already.

    Returns:
        ``cpu``, ``architecture``, ``cores`` (logical), ``usable_cores`` (of this process), ``threads``, ``openmp``
        (what the environment says of how threads wait), ``features``, ``int8`` (what these features mean for 8-bit
        products), ``memory_bytes``, ``gpu``, ``system``, ``python`` and ``versions`` of the libraries.
    """
    features = cpu_features()
    return {
        "cpu": cpu_name(),
        "architecture": platform.machine(),
        "cores": os.cpu_count() or 1,
        "usable_cores": usable_cores(),
        "threads": _threads(),
        "openmp": told(),
        "features": list(features),
        "int8": int8_note(features),
        "memory_bytes": memory_bytes(),
        "gpu": _gpu(accelerator),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions(),
    }


@cache
def cpu_name() -> str:
    """Return the processor's own name for itself, else the name of its architecture."""
    for line in _lines("/proc/cpuinfo"):
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model") and value.strip():
            return " ".join(value.split())
    return platform.processor() or platform.machine() or "unknown"


def device_name(model: object) -> str:
    """Return the accelerator that a model stands on if it says so by a ``device``, else the processor."""
    device = getattr(model, "device", None) or getattr(getattr(model, "model", None), "device", None)
    if str(device).startswith("cuda"):
        return _gpu(load=False) or str(device)
    return cpu_name()


def engine_name(model: object) -> str | None:
    """Return what runs a model, such as ``onnx int8`` or ``eager torch``; None where the model does not say."""
    manifest = getattr(model, "manifest", None)
    if isinstance(manifest, dict) and "scheme" in manifest:
        return f"{manifest.get('target', 'onnx')} {manifest['scheme']}"
    return "eager torch" if _in_torch(model) else None


def threads_of(model: object) -> int | None:
    """Return the threads of one product of a model: its own word, else torch's if torch runs it."""
    threads = getattr(model, "threads", None)
    if isinstance(threads, int):
        return threads
    return int(sys.modules["torch"].get_num_threads()) if _in_torch(model) else None


def _in_torch(model: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(getattr(model, "model", None), torch.nn.Module)


def load_average() -> float | None:
    """Return the processes that ran or waited in the last minute, on average; None where the system does not say."""
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):
        return None


@cache
def cpu_features() -> tuple[str, ...]:
    """Return those of ``FEATURES`` that the processor has; empty where the system does not say."""
    for line in _lines("/proc/cpuinfo"):
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            present = set(value.split())
            return tuple(feature for feature in FEATURES if feature in present)
    return ()


VNNI = {"avx512_vnni", "avx_vnni", "amx_int8"}
ARM_DOT = {"asimddp", "i8mm"}


def int8_is_fast(features: Iterable[str]) -> bool:
    """Whether a processor with these features multiplies 8-bit numbers much faster than float32."""
    return bool(set(features) & (VNNI | ARM_DOT))


def bf16_is_fast(features: Iterable[str]) -> bool:
    """Whether a processor with these features has instructions that multiply in bfloat16."""
    return bool({"avx512_bf16", "amx_bf16"} & set(features))


def int8_note(features: Iterable[str]) -> str:
    """Say in one sentence what 8-bit products do on a processor with these features."""
    present = set(features)
    if present & VNNI:
        return "VNNI or AMX: u8 x s8 products are exact and fast"
    if present & ARM_DOT:
        return "ARM dot products: 8-bit products are exact and fast"
    if present & {"avx2", "avx512f"}:
        return "no VNNI: u8 x s8 products saturate; exact schemes only"
    return "no 8-bit dot product is known here: int8 makes files smaller, hardly faster"


def memory_bytes() -> int | None:
    """Return the main memory of the machine, or None where the system does not say."""
    if (total := _counted("/proc/meminfo", "MemTotal:")) is not None:
        return total * 1024
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def available_bytes() -> int | None:
    """Return how much more memory the machine, and the container that this runs in, have to give; None if unknown."""
    free = _counted("/proc/meminfo", "MemAvailable:")
    limit, held = _counted(f"{CONTAINER}/memory.max", ""), _counted(f"{CONTAINER}/memory.stat", "anon ")
    if free is None or limit is None or held is None:
        return free and free * 1024
    return min(free * 1024, max(0, limit - held))


def in_one_line(here: dict[str, Any]) -> str:
    """Return what stands under a table of figures: processor, features that decide speed, GPU, versions.

    Args:
        here: What ``machine`` returned.
    """
    libraries = ", ".join(f"{name} {version}" for name, version in here["versions"].items())
    gpu = [here["gpu"]] if here.get("gpu") else []
    return "; ".join([", ".join([here["cpu"], *here["features"]]), *gpu, libraries])


def versions(names: Iterable[str] = LIBRARIES) -> dict[str, str]:
    """Return the installed versions of libraries without importing them; absent ones are left out."""
    found = {name: _version(name) for name in names}
    return {name: version for name, version in found.items() if version is not None}


@cache
def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def usable_cores() -> int:
    """Return the processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _threads() -> dict[str, int | str]:
    threads: dict[str, int | str] = {}
    if "OMP_NUM_THREADS" in os.environ:
        threads["OMP_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"]
    torch = sys.modules.get("torch")
    if torch is not None:
        threads["torch"] = torch.get_num_threads()
    return threads


def _gpu(load: bool) -> str | None:
    if load:
        importlib.import_module("torch")
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    return str(torch.cuda.get_device_name())


def _counted(path: str, name: str) -> int | None:
    """Return the first number of the line that begins so; None where there is none."""
    words = next((line[len(name) :].split() for line in _lines(path) if line.startswith(name)), [])
    return int(words[0]) if words and words[0].isdigit() else None


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
