"""The file of a certificate: a zip whose members are stored as they are, in one order, with one date.

Equal members give equal bytes on every machine: compressed data would depend on the version of zlib. For the same
reason a small file cannot hold more than it seems to.
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path

from eval.errors import UserError

MOST_BYTES = 512 * 1024 * 1024
"""Bytes of the largest certificate that is read."""
MOST_MEMBERS = 16
"""Members of a zip that are looked at."""
DATE = (1980, 1, 1, 0, 0, 0)
"""The earliest date that a zip can give, which all members have."""
READABLE = 0o644 << 16
"""The mode of a member, where a zip keeps it."""


_DAMAGE = (zipfile.BadZipFile, OSError, EOFError, RuntimeError, OverflowError, ValueError, struct.error)
"""What zipfile raises at damaged files; a ``NotImplementedError`` is a ``RuntimeError``."""


class DamagedError(ValueError):
    """A file that is no certificate, or not as it was written; the message says why, without its name."""


def pack(members: Mapping[str, bytes]) -> bytes:
    """Return the bytes of the zip."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(members):
            entry = zipfile.ZipInfo(name, DATE)
            entry.create_system, entry.external_attr = 3, READABLE  # whatever system writes it
            archive.writestr(entry, members[name])
    return buffer.getvalue()


def unpack(data: bytes, names: frozenset[str], optional: frozenset[str] = frozenset()) -> dict[str, bytes]:
    """Return the members of what ``pack`` wrote.

    Args:
        data: The bytes of the zip.
        names: The members that it must have.
        optional: Those that it may have besides, and no others.

    Raises:
        DamagedError: They are no such zip.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            found = [entry.filename for entry in entries[:MOST_MEMBERS]]
            if not names <= set(found) <= names | optional or len(entries) != len(set(found)):
                shown = ", ".join(repr(name[:60]) for name in sorted(found)[:5])
                raise DamagedError(f"holds {shown or 'nothing'} instead of {', '.join(sorted(names))}")
            packed = [entry.filename for entry in entries if entry.compress_type != zipfile.ZIP_STORED]
            if packed or any(entry.file_size > len(data) for entry in entries):
                raise DamagedError("has compressed members, which no certificate has")
            members = {entry.filename: archive.read(entry) for entry in entries}
    except _DAMAGE as error:
        if isinstance(error, DamagedError):
            raise
        raise DamagedError("is no zip, or a damaged one") from error
    if pack(members) != data:
        raise DamagedError("is not the zip that its members give: bytes were added or changed")
    return members


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a certificate.

    Raises:
        UserError: There is no such file, or it is larger than any certificate.
    """
    try:
        if not path.is_file():
            raise UserError(f"{path}: there is no such file; give the file that 'compress certify' wrote")
        if (size := path.stat().st_size) > MOST_BYTES:
            raise UserError(f"{path}: has {size:,} bytes; certificates have {MOST_BYTES:,} at most")
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
