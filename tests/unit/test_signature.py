"""Signatures of certificates; the library is an extra, and a key is made for every test."""

from __future__ import annotations

import builtins
import json

import pytest

from eval.certificate import recheck
from eval.certificate.findings import Word
from eval.certificate.signature import signature_file, signer
from eval.errors import UserError
from tests.certificates import certificate


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.cert"
    path.write_bytes(certificate(tmp_path).to_bytes())
    return path


def keys(folder, name):
    """Write a pair of keys as PEM."""
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    form, encoding = serialization.PrivateFormat.PKCS8, serialization.Encoding.PEM
    (folder / f"{name}.pem").write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))
    public = key.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / f"{name}.pub").write_bytes(public)
    return folder / f"{name}.pem", folder / f"{name}.pub"


def test_signed_by_whom(file, tmp_path):
    pytest.importorskip("model_signing")
    private, public = keys(tmp_path, "ann")
    _, other = keys(tmp_path, "bob")
    assert signer(private)(file) == signature_file(file)
    found = recheck(file, level=1, key=public)
    assert (found.word, found.findings[0].sentences[0][:25]) == (Word.VALID, "signed by ann.pub, the ke")
    wrong = recheck(file, level=1, key=other)
    assert (wrong.word, wrong.exit_code) == (Word.BAD_SIGNATURE, 8)
    assert "not signed by bob.pub" in wrong.findings[0].sentences[0]


def test_a_certificate_that_was_rewritten_whole_has_a_bad_signature(file, tmp_path):
    pytest.importorskip("model_signing")
    private, public = keys(tmp_path, "ann")
    signer(private)(file)
    file.write_bytes(certificate(tmp_path, margin=0.03).to_bytes())
    assert recheck(file, level=1).findings[1].word is Word.VALID
    assert recheck(file, level=1, key=public).word is Word.BAD_SIGNATURE


def test_what_is_no_private_key_does_not_sign(file, tmp_path):
    pytest.importorskip("model_signing")
    (tmp_path / "no.pem").write_text("none")
    with pytest.raises(UserError, match=r"no\.pem: does not sign"):
        signer(tmp_path / "no.pem")(file)


def test_a_signature_that_is_not_asked_about_is_named(file):
    assert recheck(file, level=1).findings[0].word is Word.UNSIGNED
    hint = {"verificationMaterial": {"publicKey": {"hint": "0123456789abcdef00"}}}
    signature_file(file).write_text(json.dumps(hint))
    found = recheck(file, level=1)
    assert found.findings[0].sentences == ("signed by the key 0123456789abcdef, not checked: --key was not given",)
    assert found.word is Word.PARTIAL


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"verificationMaterial": {"publicKey": 5}}', "\x00"])
def test_a_damaged_signature_is_a_bad_one(file, text):
    signature_file(file).write_text(text)
    assert recheck(file, level=1).word is Word.BAD_SIGNATURE


def test_a_signature_that_should_be_there_is_missed(file, tmp_path):
    (tmp_path / "ann.pub").write_text("a key")
    found = recheck(file, level=1, key=tmp_path / "ann.pub")
    assert found.word is Word.BAD_SIGNATURE
    assert "nothing is signed by ann.pub" in found.findings[0].sentences[0]


def test_without_the_library_the_extra_is_named(file, monkeypatch):
    imported = builtins.__import__

    def refuses(name, *rest):
        if name.startswith("model_signing"):
            raise ImportError(name)
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuses)
    with pytest.raises(UserError, match=r"nlp-compress\[sign\]"):
        signer(file)(file)
