"""Perturbed texts in a certificate: what it says of them is computed again from their answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eval.certificate import recheck
from eval.certificate.archive import pack, unpack
from eval.certificate.contents import MEMBERS, PERTURBED, Contents, Stress
from eval.certificate.findings import Word
from eval.certificate.own_figures import stressed
from tests.certificates import GOOD, SPLITS, Again, certificate, under_stress

UPPER = "upper case"


def changed_answer(contents: Contents) -> Contents:
    """Of one text in upper case the candidate's answer is made right."""
    place = next(n for n, each in enumerate(contents.perturbed) if each.rule == UPPER and each.gold["label"] == "bad")
    edited = replace(contents.perturbed[place], candidate=GOOD | {"label": "bad"})
    rows = (*contents.perturbed[:place], edited, *contents.perturbed[place + 1 :])
    return replace(contents, perturbed=rows)


def better_score(contents: Contents) -> Contents:
    rows = tuple(row | {"score": 1.0} if row["rule"] == UPPER else row for row in contents.main.stress.rows)
    return replace(contents, main=replace(contents.main, stress=replace(contents.main.stress, rows=rows)))


def without_a_rule(contents: Contents) -> Contents:
    rows = tuple(row for row in contents.main.stress.rows if row["rule"] != UPPER)
    return replace(contents, main=replace(contents.main, stress=replace(contents.main.stress, rows=rows)))


def another_example(contents: Contents) -> Contents:
    return replace(contents, perturbed=(replace(contents.perturbed[0], example=6_000), *contents.perturbed[1:]))


def another_task(contents: Contents) -> Contents:
    return replace(contents, perturbed=(replace(contents.perturbed[0], rule="backwards"), *contents.perturbed[1:]))


@pytest.fixture(scope="module")
def stressed_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certified")
    return under_stress(certificate(folder)), folder


@pytest.fixture
def scene(stressed_once):
    contents, folder = stressed_once
    return contents, folder / "model.cert"


def checked(contents: Contents, file, again: Again | None = None):
    file.write_bytes(contents.to_bytes())
    folder = file.parent
    replay = again or Again()
    return recheck(file, model=folder / "small", teacher=folder / "teacher", splits=SPLITS, replay=replay)


def test_it_is_told_where_the_model_falls_behind(scene):
    found = checked(*scene)
    assert found.word is Word.VALID, str(found)
    *_, first, behind, last = found.findings[1].sentences
    assert first.startswith("Under upper case onnx-int8 falls 49.5 ")
    assert "points further behind teacher than on clean texts (95% interval -53.5 to -45.5)" in first
    assert behind == "onnx-int8 is more than 2 points behind teacher under upper case (49.5)"
    assert last == "Of negation only the agreement is told: the truth of a text may turn with it"
    again = Contents.from_bytes(scene[1].read_bytes())
    assert again.perturbed == scene[0].perturbed
    assert again.main.stress == scene[0].main.stress


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (changed_answer, "stress, upper case: score is 0.5, from the answers it is 0.501667"),
        (better_score, "stress, upper case: score is 1, from the answers it is 0.5"),
        (without_a_rule, "stress: the rules are not those of the task"),
        (another_example, "the answers to perturbed texts cannot be scored (ValueError: answers to perturbed texts"),
        (another_task, "that were not asked: backwards"),
    ],
)
def test_whatever_does_not_follow_is_invalid(scene, change, says):
    found = checked(change(scene[0]), scene[1])
    assert found.word is Word.INVALID
    assert says in "\n".join(found.findings[-1].sentences)


def test_a_member_that_is_taken_away_is_missed(scene):
    scene[1].write_bytes(scene[0].to_bytes())
    members = unpack(scene[1].read_bytes(), MEMBERS, frozenset({PERTURBED}))
    del members[PERTURBED]
    scene[1].write_bytes(pack(members))
    assert "perturbed.jsonl: belongs to certificate.json only" in recheck(scene[1]).findings[0].sentences[0]


def test_other_answers_now_are_listed(scene):
    class Other(Again):
        def under_stress(self, seed):
            found = super().under_stress(seed)
            sure = [answer | {"probability": 0.95} for answer in found.candidate.predictions]
            return replace(found, candidate=replace(found.candidate, predictions=sure))

    found = checked(*scene, Other())
    assert found.word is Word.NOT_REPRODUCED
    assert "candidate, neighbouring keys, example 0 (from 0): was" in found.findings[-1].sentences[0]


def test_a_certificate_that_leaves_texts_out_is_not_reproduced(scene):
    contents = replace(scene[0], perturbed=scene[0].perturbed[1:])
    contents = replace(contents, main=replace(contents.main, stress=Stress.of(13, stressed(contents, 13))))
    found = checked(contents, scene[1])
    assert found.word is Word.NOT_REPRODUCED
    assert found.findings[-1].sentences == ("the rules perturb other examples here than in the certificate",)
