"""Signatures of certificates: a file beside each, in the form of OpenSSF model signing, made and checked offline.

The library is ``model-signing``. A key on an elliptic curve signs; whoever has the public key checks, with
``compress recheck`` or with that library's own ``model_signing verify key``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from eval.certificate.findings import Finding, Word
from eval.errors import UserError
from eval.files.json_text import JsonError, read_json

INSTALL = "pip install 'nlp-compress[sign]'"
MOST_BYTES = 1024 * 1024
"""Bytes of the largest signature that is read."""


def signature_file(certificate: Path) -> Path:
    """Return where the signature of a certificate lies."""
    return certificate.with_name(f"{certificate.name}.sig")


def signer(key: Path) -> Callable[[Path], Path]:
    """Return what writes the signature of a certificate beside it, and returns where.

    Args:
        key: A private key on the curve P-256, P-384 or P-521, as PEM without a password.

    Raises:
        UserError: The library is not installed, or the key is none.
    """
    try:
        from model_signing import signing
    except ImportError as error:
        raise UserError(f"--sign: needs the library model-signing; {INSTALL}") from error
    try:
        config = signing.Config().use_elliptic_key_signer(private_key=key)
    except Exception as error:  # cryptography has a dozen kinds
        raise UserError(
            f"{key}: does not sign ({_why(error)}); give a private key on an elliptic curve as PEM"
        ) from error

    def sign(certificate: Path) -> Path:
        place = signature_file(certificate)
        config.sign(certificate, place)
        return place

    return sign


def check_signature(certificate: Path, key: Path | None = None) -> Finding:
    """Say by whom a certificate is signed.

    Args:
        certificate: The file.
        key: The public key of whoever should have signed it, as PEM.

    Raises:
        UserError: The key cannot be read, or the library that checks is not installed.
    """
    place = signature_file(certificate)
    if not place.is_file():
        if key is not None:
            return Finding(0, Word.BAD_SIGNATURE, (f"{place.name} is missing, so nothing is signed by {key.name}",))
        return Finding(0, Word.UNSIGNED)
    signer = _signer(place)
    if signer is None:
        return Finding(0, Word.BAD_SIGNATURE, (f"{place.name} is no signature",))
    if key is None:
        return Finding(0, Word.PARTIAL, (f"signed by the key {signer}, not checked: --key was not given",))
    if not key.is_file():
        raise UserError(f"{key}: there is no such file; give the public key of the signer as PEM")
    try:
        from model_signing import verifying
    except ImportError as error:
        raise UserError(f"--key: checking a signature needs the library model-signing; {INSTALL}") from error
    try:
        config = verifying.Config().use_elliptic_key_verifier(public_key=key)
    except Exception as error:
        raise UserError(f"{key}: is no public key on an elliptic curve ({_why(error)})") from error
    try:
        config.verify(certificate, place)
    except Exception as error:  # whatever is wrong with a signature
        return Finding(0, Word.BAD_SIGNATURE, (f"not signed by {key.name}: {_why(error)}",))
    return Finding(0, Word.VALID, (f"signed by {key.name}, the key {signer}",))


def _signer(place: Path) -> str | None:
    """Return the digest of the key that a signature names; None if it is none."""
    try:
        values: Any = read_json(place) if place.stat().st_size <= MOST_BYTES else None
        hint = values["verificationMaterial"]["publicKey"]["hint"]
    except (JsonError, OSError, KeyError, TypeError):
        return None
    return hint[:16] if isinstance(hint, str) else None


def _why(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
