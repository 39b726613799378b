"""Records of a study: from them alone scores, intervals and tables follow, for every kind of task."""

import lzma
from dataclasses import replace
from functools import cache

import pytest

from benchmarks.archive import Archive, Run
from benchmarks.study import Outcome, Study, block, retained, table
from eval.errors import UserError
from eval.kinds.kind_registry import all_kinds, kind_of
from eval.measurement import measure, pair
from eval.scores import score
from eval.task import TaskSpec
from tests.tiny import tiny_task, tiny_taskmodel

KINDS = [kind.name for kind in all_kinds() if kind.truth and not kind.masks]


@cache
def run_of(kind="classification", seed=1):
    """Return a run whose student, export and reference are tiny models with other weights."""
    task = tiny_task(kind)
    family = "marian" if kind_of(kind).writes else "bert"
    models = [tiny_taskmodel(family, task.spec, seed=seed + number) for number in range(3)]
    reference = measure(models[2], task).model_copy(update={"name": "teacher"})
    student, export = (measure(model, task) for model in models[:2])
    export = export.model_copy(update={"name": "onnx-int8"})
    return Run("a recipe", student, export, reference, 2.5, made={"command": "python", "commit": "abc"})


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_says_what_was_measured(kind, tmp_path):
    run, archive = run_of(kind), Archive(tmp_path)
    archive.save("study", "row, 50%", 1, run)
    ((row, runs),) = archive.load("study").items()
    found = runs[1]
    assert row == "row, 50%"
    assert (found.recipe, found.seconds, found.failure, found.made) == (run.recipe, 2.5, "", run.made)
    for name in ("student", "export", "reference"):
        there, live = getattr(found, name), getattr(run, name)
        assert there.model_dump() == live.model_dump() | {"predictions": None}
        assert there.kept.gold == live.kept.gold
        assert there.kept.values == pytest.approx(live.kept.values, abs=1e-5)
        assert there.kept.logits is None
    live = pair(run.student, run.reference)
    again = pair(found.student, found.reference)
    assert (again.verdict, again.method) == (live.verdict, live.method)
    assert again.difference.low == pytest.approx(live.difference.low, abs=1e-6)
    assert again.retention.high == pytest.approx(live.retention.high, rel=1e-4, nan_ok=True)


def test_nearest_texts_are_kept_without_vectors():
    spec = TaskSpec(kind="embedding", metric="nearest", pair=False)
    gold = [{"label": label} for label in ("a", "a", "b", "a")]
    answers = [{"vectors": [vector]} for vector in ([1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.2, 1.0])]
    kept = kind_of("embedding").condensed(spec, answers, gold)
    assert kept == [{"right": 1}, {"right": 1}, {"right": 0}, {"right": 0}]
    assert score(spec, kept, gold)["nearest"] == score(spec, answers, gold)["nearest"] == 0.5
    assert kind_of("embedding").agreement([(kept[0], kept[1])]) == {}


def test_equal_records_have_equal_bytes_and_share_what_is_the_same(tmp_path):
    first, second = Archive(tmp_path / "a"), Archive(tmp_path / "b")
    run = run_of()
    first.save("study", "x", 1, run)
    first.save("study", "y", 1, replace(run, student=run_of(seed=5).student))
    second.save("study", "x", 1, first.load("study")["x"][1])
    names = sorted(str(path.relative_to(tmp_path / "b")) for path in (tmp_path / "b").rglob("*.xz"))
    assert len(names) == 3, "the record, the truths, the teacher's predictions"
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert len(list((tmp_path / "a").rglob("*.xz"))) == 4


def test_a_changed_record_is_told(tmp_path):
    archive = Archive(tmp_path)
    archive.save("study", "x", 1, run_of())
    place = archive.place("study", "x", 1)
    text = lzma.decompress(place.read_bytes()).decode()
    found = archive.load("study")["x"][1].student.score
    place.write_bytes(lzma.compress(text.replace(f'"accuracy":{found}', '"accuracy":0.9999').encode()))
    with pytest.raises(UserError, match=r"has a score of 0.9999, its predictions one of"):
        archive.load("study")
    place.write_bytes(b"not a record")
    with pytest.raises(UserError, match="cannot be read as a record"):
        archive.load("study")


def test_a_failure_is_told_without_paths_and_does_not_replace_results(tmp_path):
    archive, failed = Archive(tmp_path), Run("a recipe", failure="there is no /home/somebody/data/sst2 at 3/s")
    archive.save("study", "x", 1, failed)
    assert archive.load("study")["x"][1].failure == "there is no …/sst2 at 3/s"
    assert not archive.has("study", "x", 1, "a recipe")
    archive.save("study", "x", 1, run_of())
    archive.save("study", "x", 1, failed)
    assert archive.has("study", "x", 1, "a recipe")
    assert not archive.has("study", "x", 1, "another recipe")
    assert archive.load("study")["x"][1].failure == ""


def test_the_interval_beside_a_score_is_of_that_model(tmp_path):
    study = Study("study", {}, {"x": {}, "y": {}}, (1, 2), (), digests={"x": "a recipe", "y": "a recipe"})
    runs = {seed: run_of(seed=seed) for seed in (1, 2)}
    same = {1: replace(runs[1], student=runs[1].reference)}  # as of a row that quantizes only the export
    found = {"x": Outcome(runs), "y": Outcome(same)}
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table(study, found).splitlines()]
    head, _, x, y = cells
    assert y[2].startswith("100.0% [")
    export = pair([runs[1].export], [runs[1].reference]).retention
    assert y[head.index("export, % of teacher score [95%]")] == (
        f"{export.value:.1%} [{export.low:.1%}, {export.high:.1%}]"
    )
    pooled = pair([run.student for run in runs.values()], [run.reference for run in runs.values()]).retention
    assert retained(found["x"], "student") == pooled
    assert x[2] == f"{pooled.value:.1%} [{pooled.low:.1%}, {pooled.high:.1%}]"
    assert "commit abc" in block(study, found)
