"""JSON of one form: equal values give equal bytes on every machine, so that a digest of them says what they are."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any


def canonical(values: Any) -> bytes:
    r"""Return plain values as JSON: sorted names, no white space, ASCII alone, every float in its shortest form.

    Raises:
        ValueError: A number is not finite.

    Examples:
        >>> canonical({"b": 0.1, "a": [True, None, "é"]})
        b'{"a":[true,null,"\\u00e9"],"b":0.1}'
    """
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def lines(rows: list[Any]) -> bytes:
    """Return one line of JSON for each value."""
    return b"".join(canonical(row) + b"\n" for row in rows)


def sha256(data: bytes) -> str:
    """Return the SHA-256 of bytes."""
    return hashlib.sha256(data).hexdigest()


def digest_of(values: Any) -> str:
    """Return the SHA-256 of plain values in this form."""
    return sha256(canonical(values))


def without_nan(values: Any) -> Any:
    """Return plain values with None for every number that is not finite, and lists for tuples."""
    if isinstance(values, float):
        return values if math.isfinite(values) else None
    if isinstance(values, Mapping):
        return {str(key): without_nan(value) for key, value in values.items()}
    return [without_nan(value) for value in values] if isinstance(values, list | tuple) else values
