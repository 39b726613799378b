"""The parts of a search: limits and budgets as they are written, ranges, the default space, and who goes on."""

import math
import re
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from compress.commands import search as search_command
from compress.recipe import read_recipe
from compress.recipe.from_yaml import recipe_from_plain
from compress.search import search, search_page, searching
from compress.search.budget import Budget, read_budget
from compress.search.candidate import Candidate, Costs, possible
from compress.search.default_space import kept_layers, starts, template
from compress.search.limit import limit_from_plain
from compress.search.ranges import RANGE, points_of, range_problems, resolve
from compress.search.search_page import finals
from compress.search.standing import Standing, Winner, front, nearest, ranked, winners
from compress.technique import Inputs
from eval.errors import UserError
from eval.proof.paired_statistics import Interval
from teachers.signals.model_teacher import ModelTeacher
from tests.tiny import tiny_spec, tiny_task, tiny_taskmodel

ROOT = Path(__file__).parents[2]
TASK, TEACHER = {"kind": "classification", "data": "data"}, {"model": "base"}


def budget(**given):
    return Budget.model_validate({"task": TASK, "teacher": TEACHER, "candidates": 9, **given})


def standing(key, size, difference, rung=2, width=0.02, **more):
    ends = (difference, difference - width, difference + width)
    return Standing(0, key, key, rung, "trained", {"bytes": size, **more}, 0.9 + difference, ends)


def what_counts(step):
    """Return a step's values; those of a training that does not take place are of no matter."""
    return step.name, step.model_dump(exclude=None if getattr(step, "recover", True) else {"training"})


def test_a_limit_is_read_with_its_unit_and_conditions():
    limit = limit_from_plain("p50_ms <= 2.5 ms @ batch 8, 2 threads")
    assert (limit.what, limit.most, limit.batch, limit.threads) == ("p50_ms", 2.5, 8, 2)
    assert limit_from_plain("bytes<=10MB").most == 1e7
    assert limit_from_plain("macs <= 50 M").most == 5e7
    assert limit_from_plain("loss <= 1 point @ 95%").most == 0.01
    assert str(limit_from_plain("hours  <= 4")) == "hours <= 4"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("bytes < 10", "must be a line such as 'bytes <= 10 MB'"),
        ("byte <= 10", "'byte' cannot be limited; did you mean 'bytes'?"),
        ("bytes <= 10 ms", "'ms' is no unit of bytes"),
        ("loss <= 1 point @ 99%", "'99%' cannot stand after @ here; allowed: 95%"),
        ("bytes <= 0 MB", "no model costs nothing; give a number above 0"),
        ("p50_ms <= 2 @ batch 0", "'batch 0' cannot stand after @ here; allowed: batch 1, 1 thread"),
    ],
)
def test_a_limit_that_cannot_be_read_says_what_is_allowed(line, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        limit_from_plain(line)


def test_every_error_of_a_budget_is_told_with_its_line(tmp_path):
    (tmp_path / "budget.yaml").write_text(
        "task: {kind: classification, data: data}\nteacher: {model: base}\n"
        "limits:\n  - byte <= 3\n  - hours <= 1 day\noptimise: size\nwinner: 2\n"
    )
    with pytest.raises(UserError) as error:
        read_budget(tmp_path / "budget.yaml")
    lines = [problem.removeprefix(f"{tmp_path / 'budget.yaml'}:").partition(":")[0] for problem in error.value.problems]
    assert lines == ["4", "5", "6", "7"]
    assert "did you mean 'winners'" in error.value.problems[3]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"limits": ["bytes <= 3 MB"]}, "the smallest model answers nothing"),
        ({"limits": ["loss <= 1 point"], "candidates": None}, "nothing ends the search"),
        ({"limits": ["loss <= 1 point", "loss <= 2 points"]}, "loss: is limited twice"),
        ({"optimise": "score", "shares": [0.5, 0.1, 1]}, "must rise to 1"),
    ],
)
def test_a_budget_without_sense_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        budget(**given)


def test_a_template_gives_a_recipe_at_a_point_and_the_point_of_a_recipe():
    space = {
        "student": {"search": [None, {"from": "teacher", "layers": {"search": [[0], [0, 1]]}}]},
        "steps": [
            {"search": ["prune.vocabulary", None]},
            {"prune.structured": {"ffn": {"search": {"low": 0.1, "high": 0.9}}}},
        ],
    }
    point = {"student": 1, "student.1.layers": 1, "steps.0": 1, "steps.1.prune.structured.ffn": 0.5}
    values = resolve(space, lambda name, _: point[name])
    assert values == {
        "student": {"from": "teacher", "layers": [0, 1]},
        "steps": [{"prune.structured": {"ffn": 0.5}}],
    }
    assert list(points_of(space, values)) == [point]
    assert list(points_of(space, {"steps": ["prune.vocabulary"]})) == []
    assert list(range_problems(space)) == []
    assert [name for name, _ in range_problems({"a": {"search": []}, "b": [{"search": {"low": 2, "high": 1}}]})] == [
        "a",
        "b.0",
    ]


@pytest.mark.parametrize(("number", "name"), [(0, "chain-smallest"), (1, "chain-six-layers")])
def test_the_chains_that_were_found_by_hand_are_points_of_the_default_space(number, name):
    [point] = points_of(template(6), starts(6)[number])
    values = resolve(template(6), lambda name, _: point[name])
    chain = read_recipe(ROOT / "compress" / "recipes" / f"{name}.yaml")
    found = recipe_from_plain({"task": TASK, "teacher": TEACHER, **values})
    assert [what_counts(step) for step in found.steps] == [what_counts(step) for step in chain.steps]
    assert found.student == chain.student
    assert found.export == chain.export


def test_where_tokens_are_answered_no_token_of_the_training_texts_is_dropped():
    assert "min_count" in str(template(6))
    assert "min_count" not in str(template(6, per_token=True))
    for point in starts(6):
        assert list(points_of(template(6, per_token=True), point))


def test_an_embedder_learns_vectors_in_every_step_that_trains():
    space = template(6, vectors=True)
    assert "distill.logits" not in str(space)
    for point in starts(6, vectors=True):
        assert list(points_of(space, point))
    model = tiny_taskmodel("bert", tiny_spec("retrieval"), num_hidden_layers=3)
    texts = tiny_task("retrieval").train
    prepared = SimpleNamespace(
        student=model, inputs=Inputs(train=texts, calibration=texts, teacher=ModelTeacher(model))
    )
    kept = possible(space, prepared)["steps"]
    assert [len(step[RANGE]) for step in kept] == [3, 3, 4, 2, 1, 1, 5], (
        "no early exits, and this table is small already"
    )


def test_every_depth_can_be_kept_evenly_or_from_below():
    assert kept_layers(4) == [[0], [0, 1], [0, 3], [0, 1, 2], [0, 2, 3]]


def test_who_may_still_hold_the_loss_goes_on_first():
    wanted = budget(limits=["loss <= 1 point @ 95%"], optimise="bytes")
    good, small, bad = standing("good", 9e6, 0.0), standing("small", 1e6, -0.02), standing("bad", 1e5, -0.2)
    worse = standing("worse", 9.5e6, -0.001)
    assert [one.key for one in ranked([bad, worse, small, good], wanted)] == ["good", "small", "worse", "bad"]


def test_the_front_is_of_those_that_were_trained_to_the_end():
    wanted = budget(limits=["p50_ms <= 9"], optimise="score")
    ended = [standing("a", 10, 0.0, p50_ms=5), standing("b", 8, -0.01, p50_ms=6), standing("c", 9, -0.02, p50_ms=7)]
    assert [one.key for one in front([*ended, standing("d", 1, 0.1, rung=1, p50_ms=1)], wanted)] == ["b", "a"]


def test_a_winner_is_shown_already_or_the_likeliest_to_be():
    wanted = budget(limits=["loss <= 3 points @ 95%", "bytes <= 10"], optimise="bytes")
    shown = [standing("large", 9, 0.0), standing("small", 5, -0.005), standing("over", 11, 0.1)]
    assert [one.key for one in winners(shown, wanted)] == ["small"]
    unsure = [standing("small", 5, -0.029), standing("large", 9, -0.02)]
    assert [one.key for one in winners(unsure, wanted)] == ["large"]
    assert winners([standing("worse", 5, -0.05)], wanted) == []


def test_the_nearest_misses_by_the_least():
    wanted = budget(limits=["loss <= 3 points @ 95%", "bytes <= 10"], optimise="bytes")
    found = nearest([standing("far", 5, -0.3), standing("near", 11, -0.03), standing("short", 5, 0.0, rung=1)], wanted)
    assert found is not None
    assert found.key == "near"
    assert nearest([], wanted) is None
    assert math.isinf(Standing(0, "x", "x", 0, "running", {}).cost("bytes"))


@pytest.mark.parametrize(
    "path", sorted((ROOT / "compress" / "recipes" / "search").glob("*.yaml")), ids=lambda path: path.stem
)
def test_a_budget_that_is_shipped_can_be_read(path):
    found = read_budget(path)
    assert found.name == f"search-{path.stem}"
    assert found.limit("hours").most == 4


def winner(p_value, folder=Path("nowhere")):
    difference = SimpleNamespace(value=0.0, low=-0.009, high=0.01)
    told = {"verdict": "non-inferior", "confidence": 0.95, "examples_needed": None, "difference": difference}
    comparison = SimpleNamespace(noninferiority_p=p_value, **told)
    result = {"name": "onnx-int8", "split": "test", "role": "final", "examples": 900, "score": 0.9}
    standing = Standing(0, "a", "a", 2, "trained", {})
    return Winner(standing, folder, (SimpleNamespace(comparison=comparison, **result),))


def test_the_export_that_was_judged_is_the_one_to_predict_with(tmp_path, monkeypatch):
    budget = tmp_path / "budget.yaml"
    budget.write_text("x: 1")
    for name in ("onnx", "onnx-int8"):
        (tmp_path / "a" / name).mkdir(parents=True)
        (tmp_path / "a" / name / "export.json").write_text("{}")
    found = SimpleNamespace(folder=tmp_path, page=tmp_path / "search.html", winners=(winner(0.01, tmp_path / "a"),))
    asked = []
    monkeypatch.setattr("compress.search.budget.read_budget", lambda _: SimpleNamespace(name="b"))
    monkeypatch.setattr(searching, "search", lambda *_, **__: found)
    monkeypatch.setattr(search_command, "read_facts", lambda _: {"outcome": [], "spent": ""})
    monkeypatch.setattr(search_command, "_live_table", lambda _: None)
    monkeypatch.setattr(search_command, "say_next_predict", asked.append)
    search_command.search(budget)
    assert asked == [tmp_path / "a" / "onnx-int8"]
    assert winner(0.01, tmp_path / "b").export is None


def test_the_certificate_of_a_winner_knows_of_all_others(tmp_path, monkeypatch):
    asked = []

    def certify(run, out, **how):
        asked.append((run.name, how["family"]))
        return SimpleNamespace(file=out, sentence=run.name)

    p_values = {"a": 0.001, "b": 0.02}
    monkeypatch.setattr(searching, "certify", certify)
    monkeypatch.setattr(search_page, "write_page", lambda *_, **__: tmp_path / "search.html")
    monkeypatch.setattr(
        searching._Searching, "_looked_at", lambda _, one: winner(p_values[one.key], tmp_path / one.key)
    )
    ended = object.__new__(searching._Searching)
    ended.out, ended.teacher = tmp_path, None
    ended.budget = budget(limits=["loss <= 3 points @ 95%"], optimise="bytes", winners=2)
    standings = [standing("a", 5, 0.0), standing("b", 6, 0.0)]
    found = ended.finish(SimpleNamespace(standings=lambda: standings, spent=lambda: 0.0))
    assert asked == [("a", [0.02]), ("b", [0.001])]
    assert [one.certificate for one in found.winners] == [tmp_path / key / "model.cert" for key in "ab"]


def test_a_candidate_without_an_interval_falls_and_the_search_goes_on(tmp_path, monkeypatch):
    trials_of = pytest.importorskip("compress.search.trials").Trials
    nothing = SimpleNamespace(difference=Interval(0.0, float("nan"), float("nan")))
    costs = Costs(bytes=5, macs=5, parameters=5)
    stubs = {
        "augmented": lambda *_: SimpleNamespace(inputs=SimpleNamespace(calibration=None)),
        "student_of": lambda *_: None,
        "run_shared": lambda *_: (None, []),
        "exported": lambda *_, **__: None,
        "costs_of": lambda *_, **__: costs,
        "Runtime": lambda *_, **__: None,
        "measure": lambda *_, **__: SimpleNamespace(score=0.0, metric="entity_f1"),
        "pair": lambda *_: nothing,
    }
    for name, stub in stubs.items():
        monkeypatch.setattr(searching, name, stub)
    under_way = object.__new__(searching._Searching)
    under_way.budget = budget(limits=["loss <= 1 point @ 95%"], optimise="bytes")
    under_way.split, under_way.out, under_way.teacher = "select", tmp_path, None
    under_way.prepared = SimpleNamespace(task=SimpleNamespace(splits={"select": ()}))
    trials = trials_of(under_way.budget, tmp_path)
    try:
        job = trials.next()
        for name, value in {"key": "a", "label": "a", "costs": asdict(costs)}.items():
            job.trial.set_user_attr(name, value)
        under_way._train(Candidate.of({"steps": ["prune.vocabulary"]}, under_way.budget), job, trials)
        [found] = trials.standings()
    finally:
        trials.close()
    assert (found.state, found.difference) == ("dropped", None)
    assert "entity_f1 has no interval there" in found.dropped


def test_where_the_best_fails_when_it_is_trained_further_the_next_goes_on(tmp_path):
    trials = pytest.importorskip("compress.search.trials").Trials(
        budget(optimise="score", candidates=2, shares=(0.5, 1)), tmp_path
    )
    try:
        for key, difference in (("best", 0.0), ("next", -0.1)):
            job = trials.next()
            job.trial.set_user_attr("key", key)
            job.trial.set_user_attr("difference", [difference, difference, difference])
            trials.done(job.trial, standing(key, 5, difference, rung=0))
        keys = []
        while (job := trials.next()) is not None:
            keys.append(job.trial.user_attrs["key"])
            trials.drop(job.trial, "failed after it was trained", {"impossible": 1.0})
    finally:
        trials.close()
    assert keys == ["best", "next"]


def test_verdicts_of_several_winners_hold_together():
    found = finals([winner(0.001), winner(0.02), winner(0.013)])
    assert [final["p_value_corrected"] for final in found] == pytest.approx([0.003, 0.026, 0.026])
    assert [final["verdict"] for final in found] == ["non-inferior", "not shown", "not shown"]
    assert finals([winner(0.02)])[0]["verdict"] == "non-inferior"
    of_a_selection = winner(None)
    shows_nothing = winner(float("nan"))
    assert [one.p_value for one in (winner(0.02), of_a_selection, shows_nothing)] == [0.02, 1.0, 1.0]
    assert finals([winner(0.013), of_a_selection])[0]["verdict"] == "not shown", "it counts as one more"


def test_a_search_says_what_it_needs_and_touches_no_other_folder(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    for resume in (False, True):
        with pytest.raises(UserError, match="holds no search to go on with"):
            search(budget(optimise="score"), tmp_path, resume=resume)
    (tmp_path / "budget.yaml").write_text(yaml.safe_dump({**budget(optimise="bytes", limits=["loss <= 1"]).plain()}))
    with pytest.raises(UserError, match="holds a search for something else"):
        search(budget(optimise="score"), tmp_path, resume=True)
    monkeypatch.setattr(searching, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'nlp-compress\[search\]'"):
        search(budget(optimise="score"), tmp_path)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_search_goes_on_for_the_same_limits_wherever_its_budget_is_named_from(tmp_path, monkeypatch):
    (tmp_path / "space.yaml").write_text("steps: [{search: [prune.vocabulary, null]}]\n")
    told = {"task": TASK, "teacher": TEACHER, "candidates": 9, "optimise": "score"}

    def written(name, line, **more):
        (tmp_path / name).write_text(yaml.safe_dump({**told, "limits": [line], **more}))
        return tmp_path / name

    space = {"space": {"template": "space.yaml"}}
    whole = written("budget.yaml", "p50_ms <= 2", **space)
    searching._take(read_budget(whole), tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    for line in ("p50_ms <= 3 @ batch 1", "p50_ms <= 2 ms @ 1 thread"):
        searching._refuse_other(read_budget(written("budget.yaml", line, **space).name), tmp_path / "out", resume=True)
    for other in ("p50_ms <= 2 @ batch 8", "p50_ms <= 2 @ 2 threads", "bytes <= 1 MB"):
        with pytest.raises(UserError, match="holds a search for something else"):
            searching._refuse_other(read_budget(written("other.yaml", other, **space)), tmp_path / "out", resume=True)
    (tmp_path / "space.yaml").write_text("steps: [prune.vocabulary]\n")
    with pytest.raises(UserError, match="holds a search for something else"):
        searching._refuse_other(read_budget(whole), tmp_path / "out", resume=True)


def test_a_share_shortens_what_trains_and_nothing_else():
    trained = {"distill.logits": {"epochs": 4, "max_steps": 30}}
    cut = {"prune.structured": {"ffn": 0.5, "recover": False}}
    candidate = Candidate.of({"steps": [trained, "prune.vocabulary", cut]}, budget(optimise="score"))
    third = candidate.at(1 / 3)
    assert (third.steps[0].training.epochs, third.steps[0].training.max_steps) == (pytest.approx(4 / 3), 10)
    assert third.steps[1:] == candidate.recipe.steps[1:]
    assert candidate.at(1) == candidate.recipe
    assert candidate.label == "distill.logits, prune.vocabulary, prune.structured ffn 0.5"
    assert not candidate.recipe.evaluate.attributions
    other = budget(optimise="score", attributions=True)
    assert Candidate.of({"steps": ["prune.vocabulary"]}, other).recipe.evaluate.attributions
    other = Candidate.of({"steps": [trained, "prune.vocabulary"]}, budget(optimise="score"))
    assert other.key != candidate.key


@pytest.mark.parametrize(("given", "kept"), [(0.06, 0.06), (300, 100), (1, 1), (0, 0)])
def test_a_share_has_a_whole_schedule(given, kept):
    steps = [{"distill.logits": {"warmup_steps": given, "epochs": 9}}]
    candidate = Candidate.of({"steps": steps}, budget(optimise="score"))
    assert candidate.at(1 / 3).steps[0].training.warmup_steps == kept


def test_a_share_shortens_every_stage():
    steps = [{"distill.mobilebert": {"transfer_epochs": 6, "epochs": 9}}]
    candidate = Candidate.of({"steps": steps}, budget(optimise="score"))
    shortened = candidate.at(1 / 3).steps[0]
    assert [block.epochs for block in shortened.trainings()] == pytest.approx([2, 3])
    assert shortened.for_dry_run().transfer_epochs == shortened.transfer_epochs


def test_searches_by_one_name_share_no_storage(tmp_path):
    trials = pytest.importorskip("compress.search.trials")
    shared = f"sqlite:///{tmp_path / 'all.db'}"
    first = trials.Trials(budget(optimise="score"), tmp_path / "first", shared)
    first.start_with([{"steps.0": 1}])
    first.close()
    again = trials.Trials(budget(optimise="score"), tmp_path / "first", shared)
    assert again.study.user_attrs["started"]
    again.close()
    with pytest.raises(UserError, match=r"holds a search by the name 'search' already, of another folder"):
        trials.Trials(budget(optimise="score"), tmp_path / "second", shared)
    assert not [*(tmp_path / "second" / "workers").iterdir()]
    other = trials.Trials(budget(optimise="score", name="other"), tmp_path / "second", shared)
    assert not other.study.user_attrs.get("started")
    other.close()


@pytest.mark.parametrize("storage", ["nonsense://x", "sqlite:////nowhere/x/y.db"])
def test_a_storage_that_cannot_be_opened_is_the_users_error(storage, tmp_path):
    trials = pytest.importorskip("compress.search.trials")
    with pytest.raises(UserError, match="storage: cannot be opened"):
        trials.Trials(budget(optimise="score"), tmp_path, storage)
