"""Runs side by side: which can be ranked together, by what, and what is said of those that cannot."""

from dataclasses import replace

from eval.report.runs import BYTES, MILLISECONDS, RunFigures, cells, grouped, plain, told_apart
from eval.report.runs_page import write_runs_page
from tests.unit.test_report import Audit, result, row, with_answers
from tests.unit.test_report_speed import with_own_export


def run(name, score, ms, file_bytes, *, labels=("good", "bad"), teacher=("good", "bad"), **changes):
    timing = replace(row("onnx-int8", ms), threads=1)
    one = result("onnx-int8", scores={"accuracy": score}, latency=(timing,), file_bytes=file_bytes, **changes)
    reference = with_answers(result("teacher", comparison=None, file_bytes=900), teacher)
    return RunFigures(name, with_answers(one, labels), (reference,))


def test_the_best_are_those_that_no_other_beats_in_score_and_time():
    runs = [run("slow", 0.90, 9.0, 10), run("fast", 0.88, 3.0, 30), run("beaten", 0.87, 4.0, 20)]
    (group,) = grouped(runs, {})
    assert [one.name for one in group.runs] == ["slow", "fast", "beaten"]
    assert (group.ranked_by, group.best) == (MILLISECONDS, ("fast", "slow"))
    assert told_apart([group]) == []
    assert group.title == "accuracy on 8,720 examples of validation of data/sst2, against teacher"


def test_times_of_other_processors_rank_nothing():
    other = {"cpu": "another"}
    (group,) = grouped([run("a", 0.90, 9.0, 10), run("b", 0.88, 3.0, 30, machine=other)], {})
    assert (group.ranked_by, group.best) == (BYTES, ("a",))
    assert "their milliseconds are not compared" in group.notes[0]


def test_other_examples_or_teachers_are_not_ranked_together():
    same, here = run("a", 0.9, 2.0, 10), run("b", 0.8, 1.0, 10)
    elsewhere = run("c", 0.9, 2.0, 10, digest="cd" * 32)
    taught = run("d", 0.9, 2.0, 10, teacher=("good", "good"))
    groups = grouped([same, elsewhere, here, taught], {})
    assert [[one.name for one in group.runs] for group in groups] == [["a", "b"], ["c"], ["d"]]
    assert told_apart(groups) == [
        "The runs were measured on different examples and different teachers or metrics, so they are not ranked "
        "together: a, b; c; d."
    ]
    assert told_apart(grouped([same, taught], {}))[0].startswith(
        "The runs were measured on different teachers or metrics,"
    )


def test_answers_that_differ_are_listed_with_their_texts_where_the_data_is():
    runs = [run("a", 0.9, 2.0, 10), run("b", 0.8, 1.0, 10, labels=("good", "good"))]
    (group,) = grouped(runs, {"ab" * 32: [{"text": "one"}, {"text": "two"}]})
    assert [cell.text for cell in group.changed.table.rows[0]] == ["2", "two", "good", "bad", "good", "none"]
    assert plain(group)["answers_differ"] == [1]
    (group,) = grouped(runs, {})
    assert "shown by number" in group.notes[0]


def test_verdicts_of_several_runs_are_corrected_for_all_of_them():
    runs = []
    for name, p_value in (("a", 0.004), ("b", 0.02), ("c", 0.3)):
        one = run(name, 0.9, 2.0, 10)
        compared = one.result.comparison.model_copy(update={"noninferiority_p": p_value})
        runs.append(replace(one, result=one.result.model_copy(update={"comparison": compared})))
    (group,) = grouped(runs, {})
    assert group.notes[-1] == (
        "3 comparisons: after Holm's correction for all of them, non-inferiority is established for a."
    )


def test_a_run_in_words_names_what_ships_and_the_speedup_in_the_same_engine():
    one = RunFigures("a", with_own_export(file_bytes=23_187_261))
    figures = "0.9120", "-0.0040 [-0.0092, +0.0011]", "non-inferior", "23.2 MB", "4.00", "2.0"
    assert cells(one) == ["a", "onnx-int8", *figures]
    assert plain(grouped([one], {})[0])["runs"][0]["speedup"] == {"teacher, onnx-int8": 2.0, "teacher": 4.0}


def test_the_page_has_figures_tradeoffs_settings_and_answers(tmp_path):
    runs = [run("a", 0.9, 2.0, 10), run("b", 0.8, 1.0, 10, labels=("good", "good"))]
    write_runs_page(tmp_path / "deep" / "c.html", grouped(runs, {}), {"seed": ["1", "2"]}, ["A note."])
    audit = Audit((tmp_path / "deep" / "c.html").read_text("utf-8"))
    assert {"2 runs", "A note.", "Trade-off", "Answers that differ", "seed", "Settings that differ"} <= set(audit.texts)
    assert audit.tags.count("img") == 2
    assert ("data-value", "0.8") in audit.attributes
    write_runs_page(tmp_path / "c.html", grouped(runs, {}), {})
    assert "None: the recipes are the same." in (tmp_path / "c.html").read_text("utf-8")
