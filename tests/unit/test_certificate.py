"""The form of a certificate, and that its first level needs numpy alone."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from dataclasses import replace
from pathlib import Path

import pytest

from eval.certificate import own_figures, recheck
from eval.certificate.archive import DATE, DamagedError, pack, unpack
from eval.certificate.canonical import canonical
from eval.certificate.certified_sentence import sentence
from eval.certificate.contents import MAIN, MEMBERS, PROVENANCE, Contents
from eval.certificate.findings import EXIT_CODES, Word
from eval.certificate.model_files import model_files
from eval.certificate.typed_values import WrongTypeError, read
from eval.errors import MissingLibraryError, UserError
from eval.proof.paired_proportions import examples_needed
from tests.certificates import EXAMPLES, certificate, under_stress

ROOT = Path(__file__).parents[2]
NUMPY_ALONE = """
import sys

class Refuses:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in ("numpy", "eval"):
            raise ImportError(f"{name} is refused")

sys.meta_path.insert(0, Refuses())
sys.argv[0] = "certificate"
from eval.certificate.__main__ import main
sys.exit(main())
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.cert"
    path.write_bytes(certificate(tmp_path).to_bytes())
    return path


def test_level_1_needs_numpy_alone(file, tmp_path):
    file.write_bytes(under_stress(certificate(tmp_path)).to_bytes())
    run = subprocess.run(
        [sys.executable, "-c", NUMPY_ALONE, str(file), "--level", "1", "--json"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert json.loads(run.stdout)["word"] == "VALID"


@pytest.mark.slow
def test_level_1_in_an_environment_with_numpy_alone(file, tmp_path):
    venv.create(tmp_path / "clean", with_pip=True)
    python = tmp_path / "clean" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "numpy"], check=True)
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", ROOT], check=True)
    run = subprocess.run(
        [python, "-m", "eval.certificate", file, "--level", "1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("VALID: Certified on 600 test examples")


def test_equal_content_gives_equal_bytes(tmp_path):
    contents = certificate(tmp_path)
    data = contents.to_bytes()
    assert data == replace(contents, provenance=dict(reversed(contents.provenance.items()))).to_bytes()
    again = Contents.from_bytes(data)
    assert again.to_bytes() == data
    assert again.rows == contents.rows
    assert again.main == replace(contents.main, members=again.main.members)


def test_a_member_has_the_one_date_and_is_not_compressed():
    import io
    import zipfile

    (entry,) = zipfile.ZipFile(io.BytesIO(pack({"a": b"1" * 99}))).infolist()
    assert (entry.date_time, entry.compress_type, entry.file_size) == (DATE, zipfile.ZIP_STORED, 99)


def test_an_archive_gives_back_what_was_packed():
    assert unpack(pack({"a": b"1", "b": b""}), frozenset({"a", "b"})) == {"a": b"1", "b": b""}
    with pytest.raises(DamagedError, match=r"holds 'a' instead of b"):
        unpack(pack({"a": b"1"}), frozenset({"b"}))


def test_the_form_of_json_is_one():
    assert canonical({"b": 0.1, "a": [1e-7, "é", None]}) == b'{"a":[1e-07,"\\u00e9",null],"b":0.1}'


def test_a_member_in_another_form_is_invalid(file):
    members = unpack(file.read_bytes(), MEMBERS)
    values = json.loads(members[MAIN])
    file.write_bytes(pack(members | {MAIN: json.dumps(values, indent=1).encode()}))
    found = recheck(file)
    assert found.word is Word.INVALID
    assert found.findings[0].sentences == ("model.cert: certificate.json: is not JSON in its one form",)


def test_a_member_of_another_certificate_is_invalid(file):
    members = unpack(file.read_bytes(), MEMBERS)
    file.write_bytes(pack(members | {PROVENANCE: b"{}"}))
    assert "provenance.json: is not the member" in recheck(file).findings[0].sentences[0]


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (("fixed", "claim", "margin"), "0.01", "fixed.claim.margin: must be a number, not str"),
        (("candidate", "bytes"), 2**70, "candidate.bytes: is too large"),
        (("candidate", "bytes"), True, "candidate.bytes: must be a whole number, not bool"),
        (("data", "overlap"), [], "data.overlap: must be an object"),
        (("looks",), {}, "looks: must be a list"),
        (("more",), 1, "more: there is no such field"),
        (("format",), 1, "format 1; this version reads format 2; make it again from its run with `compress certify`"),
    ],
)
def test_values_of_other_types_are_named(file, place, value, says):
    members = unpack(file.read_bytes(), MEMBERS)
    values = json.loads(members[MAIN])
    node = values
    for name in place[:-1]:
        node = node[name]
    node[place[-1]] = value
    file.write_bytes(pack(members | {MAIN: canonical(values)}))
    found = recheck(file)
    assert (found.word, found.exit_code) == (Word.INVALID, 9)
    assert says in found.findings[0].sentences[0]


def test_a_field_that_is_missing_is_named():
    from eval.certificate.contents import File

    with pytest.raises(WrongTypeError, match=r"^sha256: is missing$"):
        read({"bytes": 1}, File)


def test_the_sentence(tmp_path):
    certified = certificate(tmp_path).main
    assert sentence(certified) == (
        f"Certified on {EXAMPLES} test examples: accuracy 0.995 against 0.995; a loss of more than 2 points is "
        "excluded with 95% confidence (Tango's score interval)"
    )
    narrow = certificate(tmp_path, margin=0.001).main
    assert sentence(narrow) == (
        f"Not certified on {EXAMPLES} test examples: accuracy 0.995 against 0.995; a loss of more than 0.1 points is "
        "not excluded with 95% confidence (Tango's score interval)"
    )


@pytest.mark.parametrize(
    ("metric", "groups", "test"),
    [
        ("accuracy", False, "Tango's score interval"),
        ("accuracy", True, "paired score interval, by group"),
        ("f1", False, "paired score interval"),
        ("unheard_of", False, "paired score interval"),
    ],
)
def test_the_sentence_names_the_test(tmp_path, metric, groups, test):
    main = certificate(tmp_path).main
    claim = replace(main.fixed.claim, metric=metric, groups=groups)
    main = replace(main, fixed=replace(main.fixed, claim=claim))
    assert sentence(main).endswith(f"95% confidence ({test})")


def test_a_certificate_that_shows_nothing_is_valid_and_says_so(tmp_path):
    file = tmp_path / "model.cert"
    file.write_bytes(certificate(tmp_path, margin=0.001).to_bytes())
    found = recheck(file, level=1)
    assert found.word is Word.VALID
    assert found.sentence.startswith("Not certified")
    met, power = found.findings[-1].sentences
    assert met == f"2 of {EXAMPLES} test examples stand in train too"
    needed = examples_needed(2 / EXAMPLES, 0.001)
    assert power.endswith(f"by these examples, and within 0.001 by about {needed:,}")


def test_a_library_that_is_missing_makes_nothing_invalid(file, monkeypatch):
    def lacks(*_):
        raise MissingLibraryError("sacrebleu is not installed")

    monkeypatch.setattr(own_figures, "outcome_of", lacks)
    found = recheck(file, level=1)
    assert (found.word, found.exit_code) == (Word.PARTIAL, 3)
    assert found.reason == "the predictions cannot be scored: sacrebleu is not installed"


def test_what_is_contradicted_is_not_printed_as_if_it_held(file, tmp_path):
    assert str(recheck(file, level=1)).startswith("VALID: Certified on")
    contents = certificate(tmp_path)
    main = replace(contents.main, outcome=replace(contents.main.outcome, low=-0.001))
    file.write_bytes(replace(contents, main=main).to_bytes())
    assert str(recheck(file, level=1)).startswith("INVALID, though it says: Certified on")


def test_every_word_has_its_exit_code():
    assert set(EXIT_CODES) == set(Word)
    codes = [EXIT_CODES[word] for word in Word]
    assert codes == sorted(codes)
    assert not {1, 2} & set(codes)


def test_a_file_that_is_not_there_is_an_error_of_the_user(tmp_path):
    with pytest.raises(UserError, match="there is no such file"):
        recheck(tmp_path / "none.cert")
    with pytest.raises(UserError, match="allowed are 1 to 4"):
        recheck(tmp_path / "none.cert", level=5)


def test_files_behind_a_link_are_of_the_model_and_a_linked_folder_is_refused(tmp_path):
    model, elsewhere = tmp_path / "model", tmp_path / "elsewhere"
    model.mkdir()
    elsewhere.mkdir()
    (elsewhere / "weights").write_bytes(b"1234")
    (model / "weights").symlink_to(elsewhere / "weights")
    assert model_files([model])["weights"].bytes == 4
    (model / "pooling").symlink_to(elsewhere)
    with pytest.raises(UserError, match="pooling: is a link to a folder"):
        model_files([model])
