"""Reports: what they say, and that no text from data can become markup."""

from __future__ import annotations

import base64
import copy
import hashlib
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from huggingface_hub import EvalResult, ModelCard, metadata_eval_result
from jinja2 import UndefinedError
from markdown_it import MarkdownIt

from eval.cost.latency import LatencyRow
from eval.cost.size import Size
from eval.data.loading import Task
from eval.errors import UserError
from eval.measurement import measure
from eval.predictions import Kept
from eval.proof.paired_statistics import Interval, McNemar
from eval.report.card import model_card
from eval.report.console import to_text
from eval.report.markdown import escape
from eval.report.page import page, write_page
from eval.report.plain_text import plain
from eval.report.plots import DARK, LIGHT, Point, darkened, render, tradeoff, training_curves
from eval.report.runs import RunFigures, grouped
from eval.report.runs_page import write_runs_page
from eval.report.summary import headline, number, short, times, verdict, with_reference
from eval.report.templating import render_template
from eval.result import Result
from eval.result_values import Comparison
from eval.slices import Confusion, Slice
from eval.task import Examples, TaskSpec
from teachers.pretraining.pretraining_report import write_report
from tests.unit.bagofwords import BagOfWords, encoder, sentiment

ROOT = Path(__file__).parents[2]
EVIL = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</style><svg onload=alert(1)>",
    "]]></title><iframe src=//evil.example>",
    "$\\frac{$ {{7*7}} ${x}",
    "_hidden\u202egnp.exe\x00\x1b[31m",
    "lone \ud800 surrogate\u2028line\nbreak",
    "javascript:alert(1) https://evil.example @someone",
    "| a | b |\n|---|---|\n# heading\n[link](https://evil.example) ![i](x) `code` **bold** <b>",
    "\u0645\u0631\u062d\u0628\u0627 \u4e2d\u6587 \U0001f600",
    "x" * 5000,
]
TAGS = re.compile(
    "html|head|meta|title|style|body|main|header|section|h[123]|p|div|span|b|i|u|small|table|thead|tbody|tr|th|td|"
    "figure|figcaption|picture|source|img|details|summary|dl|dt|dd|script"
)
ATTRIBUTES = re.compile(
    "lang|charset|content|http-equiv|name|class|style|src|srcset|alt|media|open|title|scope|data-value"
)
SCRIPT = (ROOT / "eval" / "report" / "templates" / "page_sort.js").read_text("utf-8")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{}'"
STYLE = re.compile(r"(--v: |width: |left: )[0-9.]+%?")
LINEAGE = [
    {
        "technique": "prune.layers",
        "version": 1,
        "config": {"keep": [0, 2, 5], "training": {"epochs": 3}},
        "facts": {"loss": 0.21345, "history": [{"step": 1}, {"step": 2}]},
        "size_before": {"parameters": 109_482_240, "bytes": 437_928_960, "macs": 11_174_215_680},
        "size_after": {"parameters": 45_685_248, "bytes": 182_740_992, "macs": None},
        "seconds": 12.34,
        "seed": 13,
    }
]


class Audit(HTMLParser):
    """Collects what a browser would see."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.texts, self.open = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "img", "source"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def handle_comment(self, data):
        raise AssertionError(f"comment: {data}")

    def handle_pi(self, data):
        raise AssertionError(f"instruction: {data}")


def row(name, ms):
    return LatencyRow(name, 1, "data", 200, ms, ms * 1.2, ms * 1.5, 1000 / ms, 25_000 / ms, "CPU 3000")


def result(name="student", reference="teacher", labels=("bad", "good"), verdict_of="non-inferior", **changes):
    comparison = Comparison(
        reference=reference,
        metric="accuracy",
        margin=0.01,
        verdict=verdict_of,
        difference=Interval(-0.004, -0.0092, 0.0011),
        retention=Interval(0.987, 0.979, 0.994),
        p_value=0.94,
        confidence=0.95,
        resamples=2000,
        agreement={"labels": 0.975},
        mcnemar=McNemar(10, 14, 0.54),
        reference_scores={"accuracy": 0.924, "macro_f1": 0.92},
        reference_size=Size(109_482_240, 109_482_240, 437_928_960, 11_174_215_680),
    )
    values = {
        "name": name,
        "task": TaskSpec(kind="classification", labels=labels),
        "source": "data/sst2",
        "split": "validation",
        "digest": "ab" * 32,
        "examples": 8720,
        "scores": {"accuracy": 0.912, "macro_f1": 0.91},
        "calibration_error": 0.031,
        "slices": tuple(Slice("label", label, 40 + place, 0.9, 0.95) for place, label in enumerate(labels)),
        "confusion": Confusion(labels, tuple(tuple(3 for _ in labels) for _ in labels), ((labels[0], labels[1], 3),)),
        "comparison": comparison,
        "size": Size(27_000_000, 27_000_000, 108_000_000, 1_500_000_000),
        "latency": (row(name, 4.0), row(reference, 8.4)),
        "machine": {"cpu": "CPU 3000", "features": ["avx2"], "memory_bytes": 2**34, "versions": {"numpy": "2.0"}},
    }
    return Result(**(values | changes))


def test_headline_says_score_interval_speed_and_size():
    assert headline(result()) == (
        "student retains 98.7% of the accuracy of teacher (95% interval 97.9% to 99.4%), "
        "speedup 2.1 over teacher at batch size 1, 4.1 times smaller"
    )
    assert headline(result(comparison=None)) == "student: accuracy 0.9120 on 8,720 examples"


def test_headline_without_retention_gives_the_difference():
    unknown = result().comparison.model_copy(update={"retention": Interval(float("nan"), float("nan"), float("nan"))})
    assert headline(result(comparison=unknown, latency=(), size=None)) == "student: accuracy -0.0040 to teacher"


@pytest.mark.parametrize(
    ("verdict_of", "said"),
    [
        ("non-inferior", "As good as teacher within 0.01 accuracy"),
        ("inferior", "Worse than teacher by more than 0.01 accuracy"),
        ("not shown", "Not shown to be within 0.01 accuracy of teacher"),
    ],
)
def test_verdict_in_words(verdict_of, said):
    assert verdict(result(verdict_of=verdict_of)) == (
        f"{said}: the difference is -0.0040 [-0.0092, +0.0011] (95% interval, 8,720 examples)"
    )


def test_verdict_warns_of_few_examples():
    assert verdict(result(examples=100)).endswith("so few examples say little about losses below 0.03")


def test_numbers_as_people_read_them():
    assert [short(value) for value in (999, 1000, 4_390_000, 27_000_000, 109_482_240, None)] == [
        "999",
        "1.00 K",
        "4.39 M",
        "27.0 M",
        "109 M",
        "-",
    ]
    assert [short(value, "B") for value in (12, 999_999, 17_600_000)] == ["12 B", "1.00 MB", "17.6 MB"]
    assert [times(ratio, "smaller", "larger") for ratio in (2.14, 0.5, 1.02)] == [
        "2.1 times smaller",
        "2.0 times larger",
        "no smaller",
    ]
    assert (number(float("nan")), number(0.5)) == ("-", "0.5000")


def test_the_reference_gets_a_row_from_the_figures_of_a_comparison():
    rows = with_reference([result()])
    assert [one.name for one in rows] == ["teacher", "student"]
    assert (rows[0].score, rows[0].bytes, rows[0].row(1).p50_ms) == (0.924, 437_928_960, 8.4)
    teacher = result(name="teacher", comparison=None)
    assert with_reference([result(), teacher]) == [teacher, result()]


def test_console_table():
    lines = to_text([result()], width=160).splitlines()
    words = [" ".join(line.split()) for line in lines]
    assert words[0] == (
        "name accuracy difference [95% interval] verdict parameters bytes MACs p50 ms, batch 1 examples/s"
    )
    assert words[1] == "teacher 0.9240 109 M 438 MB 11.2 G 8.40 119"
    assert words[2] == "student 0.9120 -0.0040 [-0.0092, +0.0011] non-inferior 27.0 M 108 MB 1.50 G 4.00 250"
    assert "student retains 98.7% of the accuracy of teacher" in lines[4]
    assert lines[5].startswith("As good as teacher within 0.01")


def test_console_shows_hostile_names_as_text():
    text = to_text([result(name="[red]x[/red]\x1b[31m", latency=())])
    assert "[red]x[/red] [31m" in text
    assert "\x1b" not in text


def audit_page(*arguments, **keywords):
    text = page(*arguments, **keywords)
    text.encode("utf-8")
    audit = Audit(text)
    assert audit.open == []
    assert all(TAGS.fullmatch(tag) for tag in audit.tags)
    assert audit.tags.count("script") == text.count(f"<script>{SCRIPT}</script>") == 1
    assert all(ATTRIBUTES.fullmatch(name) for name, _ in audit.attributes)
    for name, value in audit.attributes:
        if name == "style":
            assert STYLE.fullmatch(value)
        if name in ("src", "srcset"):
            assert value.startswith("data:image/svg+xml;base64,")
    assert not re.search(r"url\(|@import|image\(", text[: text.index("</style>")])
    return audit


def test_page_says_what_was_found_and_fetches_nothing():
    curves = {"fine-tuning": [{"step": 10, "loss": 0.7, "score": None}, {"step": 20, "loss": 0.4, "score": 0.8}]}
    audit = audit_page("SST-2", [result()], curves, LINEAGE, ["A note."])
    text = " ".join(audit.texts)
    assert "student retains 98.7% of the accuracy of teacher" in text
    for said in (
        "0.9240",
        "109 M \u2192 45.7 M",
        "11.2 G \u2192 -",
        "history (2 entries)",
        "loss 0.2135",
        "A note.",
        "CPU 3000",
    ):
        assert said in text
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert ("content", POLICY.format(digest)) in audit.attributes
    assert audit.tags.count("img") == audit.tags.count("source") == 4


def audit_page_of(texts):
    """Put each text wherever a text can come from data: titles, names, labels, files, steps, facts, runs, notes."""
    lineage = [
        {"technique": text, "version": text, "config": {text: text}, "facts": {text: [text]}, "seed": text}
        for text in texts
    ]
    results = [
        result(text, f"{text} r", (text, f"{text}2"), source=text, split=text, digest=text, machine={"cpu": text})
        for text in texts
    ]
    curves = {text: [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 0.5, "score": 0.5}] for text in texts[:1]}
    results.insert(0, with_answers(result(f"{texts[0]} r", comparison=None), texts))
    results[1] = with_answers(results[1], [f"{text}2" for text in texts])
    examples = [{"text": text} for text in texts]
    return audit_page(texts[0], results, curves, lineage, texts, examples=examples)


def with_answers(one, labels):
    """Return a result with predictions: these labels, of which the first is right."""
    answers, gold = ([{"label": label} for label in side] for side in (labels, [labels[0]] * len(labels)))
    values = [float(place == 0) for place in range(len(labels))]
    return one.model_copy(update={"kept": Kept(answers, gold, values)})


def test_hostile_texts_stay_texts_on_the_page(monkeypatch):
    audit = audit_page_of(EVIL)
    monkeypatch.setattr("eval.report.pictures.render", lambda draw: b"<svg/>")
    harmless = audit_page_of([chr(97 + place) * len(plain(evil)) for place, evil in enumerate(EVIL)])
    assert sorted(audit.tags) == sorted(harmless.tags)
    assert [name for name, _ in audit.attributes] == [name for name, _ in harmless.attributes]
    for evil in EVIL:
        assert plain(evil) in audit.texts
    images = [value for _, value in audit.attributes if value and value.startswith("data:")]
    assert len(images) == 8
    for image in images:
        names = {
            node.tag.split("}")[1] for node in ElementTree.fromstring(base64.b64decode(image.split(",", 1)[1])).iter()
        }
        assert not names & {"script", "foreignObject", "a", "image"}


def test_a_data_set_of_markup_goes_through_measuring_and_reporting(tmp_path):
    labels = tuple(f"{evil[:40]}{place}" for place, evil in enumerate(EVIL[:2]))
    spec = TaskSpec(kind="classification", labels=labels)
    items = [{"text": f"{evil} good", "label": labels[place % 2]} for place, evil in enumerate(EVIL)]
    task = Task(spec, {"validation": Examples([item for item in items if "\ud800" not in item["text"]])}, "<b>.csv")
    model = BagOfWords("<i>model</i>", sentiment().weights, encoder(labels=labels))
    found = measure(model, task, against=BagOfWords("<u>", -sentiment().weights, encoder(labels=labels)))
    audit = audit_page("<h1>", [Result.load(found.save(tmp_path))])
    assert "<i>model</i>" in audit.texts
    assert labels[0] in audit.texts


def test_page_of_a_result_alone_of_many_labels():
    labels = tuple(f"label {place}" for place in range(25))
    slices = tuple(Slice("label", label, 10, place / 25) for place, label in enumerate(labels))
    audit = audit_page("t", [result(labels=labels, comparison=None, latency=(), slices=slices)])
    assert "By label: share of its examples that are right, the 20 weakest of 25" in audit.texts
    assert "img" not in audit.tags


def test_page_takes_figures_that_do_not_exist():
    nan = float("nan")
    nothing = Interval(nan, nan, nan)
    comparison = result().comparison.model_copy(update={"difference": nothing, "retention": nothing, "p_value": nan})
    odd = result(
        comparison=comparison, scores={"accuracy": nan}, slices=(Slice("label", "bad", 3, nan),), latency=(), size=None
    )
    assert "student: accuracy - to teacher." in audit_page("t", [odd]).texts


def test_write_page_leaves_one_file(tmp_path):
    path = write_page(tmp_path / "deep" / "report.html", "t", [result()])
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]
    assert path.read_text(encoding="utf-8").startswith('<!doctype html>\n<html lang="en"><head><meta charset="utf-8">')
    with pytest.raises(UserError, match="no result"):
        write_page(path, "t", [])


def test_plain_text_is_one_clean_line():
    assert plain("a\nb\x00c\u202ed\ud800") == "a b cd\ufffd"
    assert plain("abcdef", 4) == "abc\u2026"


def test_plots_hold_their_labels_and_are_reproducible():
    points = [Point("teacher $x$", 438e6, 0.92, reference=True), Point("small", 20e6, 0.9, 0.89, 0.91)]
    draw = tradeoff(points, "megabytes", "accuracy", unit=1e6, floor=0.91)
    light = render(draw)
    texts = [node.text for node in ElementTree.fromstring(light).iter("{http://www.w3.org/2000/svg}text")]
    for said in ("teacher $x$", "small", "megabytes", "accuracy", "margin", "100"):
        assert said in texts
    assert light == render(draw)
    used = [number for number, colour in enumerate(LIGHT.colours()) if colour.encode() in light]
    dark = darkened(light)
    assert len(used) >= 4
    assert [number for number, colour in enumerate(DARK.colours()) if colour.encode() in dark] == used
    assert not any(colour.encode() in dark for colour in LIGHT.colours())


def test_curves_leave_absent_values_out():
    curves = {"_run": [{"step": 1, "loss": 0.5}, {"step": 2, "score": 0.9}, {"step": 3, "score": 0.8}], "b": []}
    svg = render(training_curves(curves, "score"))
    texts = [node.text for node in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert {"score", "step", "run", "b", "2", "3"} <= set(texts)
    assert "1" not in texts


def test_card_of_a_measured_model():
    card = model_card("student", result().task, [result()], LINEAGE, base_model="bert-base", data_licence="CC BY 4.0")
    front = yaml.safe_load(card.split("---")[1])
    del front["model-index"]
    assert front == {
        "library_name": "transformers",
        "pipeline_tag": "text-classification",
        "tags": ["compressed", "prune.layers"],
        "base_model": "bert-base",
        "metrics": ["accuracy", "f1"],
    }
    assert "| teacher | 0.9240 | - | - | 109 M | 438 MB | 11.2 G | 8.40 |" in card
    assert "| student | 0.9120 | -0.0040 [-0.0092, +0.0011] | non-inferior | 27.0 M | 108 MB | 1.50 G | 4.00 |" in card
    assert "AutoModelForSequenceClassification.from_pretrained(folder)" in card
    assert "Licence of the data, as stated by you: CC BY 4.0." in card
    assert "student retains 98.7% of the accuracy of teacher" in card
    assert "109 M to 45.7 M" in card
    assert "student is weakest on bad: 0.900 of 40 examples are right." in card


@pytest.mark.parametrize(("form", "said"), [("compress", "from compress import load"), ("onnx", "InferenceSession")])
def test_card_says_how_to_load(form, said):
    card = model_card("m", TaskSpec(kind="qa"), form=form)
    assert said in card
    assert "Not measured yet." in card
    assert "was not stated" in card


def test_the_hub_reads_the_scores_of_a_card(tmp_path):
    spec = result().task.model_copy(update={"kind": "regression", "labels": ()})
    one = result(task=spec, scores={"spearman": 0.875, "pearson": float("nan"), "mse": 0.25})
    (tmp_path / "README.md").write_text(model_card("student: 1", spec, [one]), encoding="utf-8")
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.model_name == "student: 1"
    assert card.data.pipeline_tag == "text-classification"
    known = {
        "task_type": "text-classification",
        "dataset_type": "data/sst2",
        "dataset_name": "data/sst2",
        "dataset_split": "validation",
    }
    assert card.data.eval_results == [
        EvalResult(metric_type="spearmanr", metric_name="spearman", metric_value=0.875, **known),
        EvalResult(metric_type="mse", metric_name="mse", metric_value=0.25, **known),
    ]


def test_the_model_index_is_the_one_that_the_hub_library_makes():
    front = yaml.safe_load(model_card("m", result().task, [result(scores={"accuracy": 0.75})]).split("---")[1])
    expected = metadata_eval_result(
        model_pretty_name="m",
        task_pretty_name="text-classification",
        task_id="text-classification",
        metrics_pretty_name="accuracy",
        metrics_id="accuracy",
        metrics_value=0.75,
        dataset_pretty_name="data/sst2",
        dataset_id="data/sst2",
        dataset_split="validation",
    )
    found = expected["model-index"][0]["results"][0]
    del found["task"]["name"], found["metrics"][0]["verified"]  # the task's title, and what the hub alone may say
    assert front["model-index"] == expected["model-index"]


def test_a_card_without_scores_has_no_model_index():
    for results in ([], [result(scores={"accuracy": float("nan")})], [result(role="selection")]):
        front = yaml.safe_load(model_card("m", result().task, results).split("---")[1])
        assert set(front) == {"library_name", "pipeline_tag", "tags"}


FACTS = {
    "text": {"tokens": 1234, "documents": 2},
    "block": {"text": ["data/wiki.txt"]},
    "seed": 3,
    "stages": [
        {
            "history": [
                {"step": 1000, "loss": 2.5, "terms": {"mlm": 2.5}, "score": 0.5, "scores": {"mlm.accuracy": 0.5}}
            ],
            "speed": {"tokens_per_second": 5000.0, "utilisation": 0.25},
        }
    ],
}


def pretraining(folder, text=None):
    """Return page and card of a pretraining, with the text wherever a text can come from data."""
    facts = copy.deepcopy(FACTS)
    if text is not None:
        facts["block"]["text"] = [text.replace("/", ":")]
        history = facts["stages"][0]["history"]
        history[0] |= {"terms": {text: 1.0}, "scores": {text: 1.0}}
    write_report(folder, text or "own", facts, "bert", 2)
    return (folder / "report.html").read_text("utf-8"), (folder / "README.md").read_text("utf-8")


def test_page_and_card_of_a_pretraining(tmp_path):
    page_text, card = pretraining(tmp_path)
    assert "tags:\n- bert\n- pretrained\n---\n\n# own\n" in card
    assert "1,234 tokens in 2 documents,\nwiki.txt." in card
    assert "| 1 | 1,000 | mlm 2.5 | mlm.accuracy 0.5 |" in card
    assert "5,000 tokens a second" in card
    texts = Audit(page_text).texts
    for said in ("own", "Stage 1", "1000", "2.5000", "mlm.accuracy 0.5", "tokens per second 5000, utilisation 0.25"):
        assert said in texts


def of_kinds(text):
    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    tokens = [token for block in parser.parse(text) for token in [block, *(block.children or [])]]
    return [token.type for token in tokens if token.type not in ("text", "softbreak", "text_special")]


def shown(template, text, folder):
    """Return what a template makes of a text wherever a text can come from data."""
    lineage = [{"technique": text, "version": text, "config": {text: text}, "facts": {text: text}, "seed": text}]
    one = result(text, f"{text} r", (text, f"{text}2"), source=text, split=text, digest=text, machine={"cpu": text})
    if template == "runs_page.html.j2":
        runs = [RunFigures(f"{text} {number}", with_answers(one, [text, f"{text}{number}"])) for number in (1, 2)]
        write_runs_page(folder / "runs.html", grouped(runs, {text: [{"text": text}] * 2}), {text: [text]}, [text])
        return (folder / "runs.html").read_text("utf-8")
    if template == "result_page.html.j2":
        return page(text, [one], {text: [{"step": 1, "loss": 1.0}]}, lineage, [text])
    if template == "model_card.md.j2":
        return model_card(text, one.task, [one], lineage, data_licence=text, limits=[text]).split("\n---\n", 1)[1]
    page_text, card = pretraining(folder, text)
    return page_text if template == "pretraining_page.html.j2" else card.split("\n---\n", 1)[1]


PARTS = {"page_base.html.j2", "page_parts.html.j2", "page_style.css", "page_sort.js"}
"""What the templates of whole pages are made of."""
TEMPLATES = sorted(
    path.name
    for package in ("eval/report", "teachers/pretraining")
    for path in (ROOT / package / "templates").iterdir()
    if path.name not in PARTS
)


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("text", ["<img src=x onerror=alert(1)>", '" onerror="alert(1)', "{{ 7 * 7 }}{% raw %}"])
def test_a_label_of_markup_is_inert_in_every_template(template, text, tmp_path):
    found, harmless = shown(template, text, tmp_path), shown(template, "t" * len(text), tmp_path)
    if template.endswith(".md.j2"):
        assert of_kinds(found) == of_kinds(harmless)
        assert escape(text) in found
        return
    audit, expected = Audit(found), Audit(harmless)
    assert audit.tags == expected.tags
    assert [name for name, _ in audit.attributes] == [name for name, _ in expected.attributes]
    assert text in audit.texts


def test_templates_show_a_clean_line_of_what_they_are_given():
    notes = ["a\nb\x00c\u202ed", "n" * 1900, "m" * 2100]
    texts = Audit(page("t" * 400, [result()], notes=notes)).texts
    assert "a b cd" in texts
    assert "n" * 1900 in texts
    assert "m" * 1999 + "\u2026" in texts
    assert "t" * 299 + "\u2026" in texts


def test_a_value_that_a_template_lacks_is_an_error():
    with pytest.raises(UndefinedError, match="'title' is undefined"):
        render_template("result_page.html.j2")


@pytest.mark.parametrize("evil", EVIL)
def test_hostile_texts_stay_texts_on_the_card(evil):
    labels = (evil, evil + "2")
    one = result(evil, evil + " r", labels, source=evil, split=evil)
    one = one.model_copy(update={"latency": (replace(one.latency[0], machine=evil),)})
    lineage = [{"technique": evil, "config": {evil: evil}, "facts": {evil: evil}, "seed": evil}]
    card = model_card(evil, one.task, [one], lineage, base_model=evil, data_licence=evil, limits=[evil])
    front, body = card.split("\n---\n", 1)
    assert set(yaml.safe_load(front[4:])) == {
        "library_name",
        "pipeline_tag",
        "tags",
        "base_model",
        "metrics",
        "model-index",
    }
    harmless = model_card("t", result().task, [result()], LINEAGE, data_licence="x", limits=["y"])
    assert of_kinds(body) == of_kinds(harmless.split("\n---\n", 1)[1])
    assert not re.search(r"https?://|www\.|@someone", body)


@pytest.mark.parametrize("text", ["1. first", "- item", "+ item", "# title", "a_b_c", "_em_", "a | b", "&lt;", "**b**"])
def test_escaped_markdown_shows_exactly_the_text(text):
    tokens = MarkdownIt("commonmark").enable("table").parse(escape(text))
    assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"]
    assert "".join(child.content for child in tokens[1].children) == text
