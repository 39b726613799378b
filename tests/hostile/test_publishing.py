"""What is published: no path of this machine stands in it, and no name from data becomes markup or an address."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt

from tests.forking import Ending
from tests.hostile.case import Case, table
from tests.hostile.damage import Damage, json_update

HOSTILE = {
    "an address": "](http://evil.example)",
    "an image": "![a](http://evil.example/a.png)",
    "a link in angle brackets": "<http://evil.example>",
    "a bare address": "https://evil.example/www.evil.example",
    "a script": "<script>alert(1)</script>",
    "an attribute": '" onerror="alert(1)',
    "a comment": "<!--",
    "code": "`rm -rf`",
    "a block of code": "```",
    "a table": "a | b",
    "a heading": "# heading",
    "a list": "- item",
    "a number": "1. item",
    "a rule": "---",
    "lines": "one\n\n# two",
    "front matter": "x\n---\nlicense: evil",
    "emphasis": "**bold** _it_",
    "mathematics": "$\\frac{",
    "an entity": "&lt;b&gt;",
    "a mention": "@someone",
    "a placeholder": "{0} {name} %s %(x)s",
    "right to left": "\u202eabc",
    "an escape sequence": "\x1b[31mred",
    "yaml": "!!python/object:x {a: [b",
    "a very long name": "x" * 20_000,
}
SCRIPT = (Path(__file__).parents[2] / "eval" / "report" / "templates" / "page_sort.js").read_text("utf-8")
"""The one script of a page; its digest in the page's policy lets no other one run."""
PARSER = MarkdownIt("commonmark", {"html": True}).enable("table")
TEXT_TOKENS = ("text", "softbreak", "text_special")
ADDRESSES = {"href", "src", "srcset", "action", "data", "poster"}
TAGS = {"script", "iframe", "object", "link", "base", "form", "embed"}


def labelled(label: str) -> Damage:
    """Call the label ``good`` so, in the data and in the model."""

    def act(scene: Path) -> None:
        for file in (scene / "data").iterdir():
            rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
            rows = [row | ({"label": label} if row.get("label") == "good" else {}) for row in rows]
            file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        json_update("model/task.json", lambda task: task | {"labels": ["bad", label]})(scene)
        ids = {"id2label": {"0": "bad", "1": label}, "label2id": {"bad": 0, label: 1}}
        json_update("model/config.json", lambda config: config | ids)(scene)

    return act


def named(name: str) -> Damage:
    """Call the recipe so."""

    def act(scene: Path) -> None:
        recipe = yaml.safe_load((scene / "recipe.yaml").read_text(encoding="utf-8"))
        (scene / "recipe.yaml").write_text(yaml.safe_dump(recipe | {"name": name}), encoding="utf-8")

    return act


def folder_name(text: str) -> str:
    """Return a name that a folder can have, and an argument of a command."""
    return "m " + text.replace("/", ":")[:200]


class Tags(HTMLParser):
    """Collects what a page would do."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found += [tag] if tag in TAGS else []
        self.found += [name for name, value in attributes if name.startswith("on")]
        self.found += [value or "" for name, value in attributes if name in ADDRESSES and "evil" in (value or "")]


def kinds(text: str) -> list[str]:
    tokens = [token for block in PARSER.parse(text) for token in [block, *(block.children or [])]]
    return [token.type for token in tokens if token.type not in TEXT_TOKENS]


def harmless(*names: str) -> Callable[[Path, Ending], None]:
    """Return what looks at Markdown and HTML files: they have the parts of those of a run with harmless names."""

    def look(scene: Path, _: Ending) -> None:
        for name in names:
            text = (scene / "out" / name).read_text(encoding="utf-8")
            assert "\x1b" not in text
            assert "\u202e" not in text
            assert all(len(line) < 20_000 for line in text.splitlines() if "base64" not in line)
            if name.endswith(".html"):
                assert Tags(text.replace(f"<script>{SCRIPT}</script>", "", 1)).found == []
                continue
            front, body = ("", text) if not text.startswith("---\n") else text.split("\n---\n", 1)
            if front:
                measured = {"metrics", "model-index"} if name == "model/README.md" else set()
                assert set(yaml.safe_load(front[4:])) == {"library_name", "pipeline_tag", "tags"} | measured
            assert not set(kinds(body)) & {"image", "html_block", "html_inline", "link_open", "hr", "em_open"}
            assert kinds(body).count("heading_open") == HEADINGS[Path(name).parent.name]
            assert not re.search(r"https?://(?!localhost|127)|www\.|@someone", body)

    return look


HEADINGS = {"": 1, "onnx": 1, "model": 7}
"""Headings of the page of an export, and of a model card."""
SECRET = "secret-place"
ENDS = (".json", ".md", ".html", ".yaml", ".txt", ".py", ".js", ".jsonl")


def keeps(where: str) -> Callable[[Path, Ending], None]:
    """Return what looks for the path of the scene in every file of text below a folder."""

    def look(scene: Path, _: Ending) -> None:
        files = [path for path in (scene / where).rglob("*") if path.is_file() and path.suffix in ENDS]
        assert len(files) >= 5
        leaking = [
            path.relative_to(scene).as_posix()
            for path in files
            if path.name != "recipe.yaml" and re.search(f"{SECRET}|{re.escape(str(scene))}", path.read_text("utf-8"))
        ]
        assert leaking == []

    return look


def absolute(*steps: str) -> Damage:
    """Put data and model into a folder of a telling name, and let the recipe name them by absolute paths."""

    def act(scene: Path) -> None:
        place = scene / SECRET
        place.mkdir()
        for name in ("data", "model"):
            (scene / name).rename(place / name)
        (place / "texts.txt").write_text("a good text\n", encoding="utf-8")
        recipe = yaml.safe_load((scene / "recipe.yaml").read_text(encoding="utf-8"))
        recipe["task"]["data"] = str(place / "data")
        recipe["teacher"]["model"] = str(place / "model")
        recipe["steps"] = [yaml.safe_load(step.replace("PLACE", str(place))) for step in steps] + recipe["steps"]
        (scene / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")

    return act


RUN = "run recipe.yaml --out out"
CASES = [
    *(
        Case(
            f"export: a label that is {name}",
            "export model --out out",
            labelled(text),
            code=0,
            after=harmless("README.md"),
        )
        for name, text in HOSTILE.items()
    ),
    *(
        Case(
            f"export: a folder whose name is {name}",
            f"export {shlex.quote(folder_name(text))} --out out",
            lambda scene, text=text: (scene / "model").rename(scene / folder_name(text)),
            code=0,
            after=harmless("README.md"),
        )
        for name, text in HOSTILE.items()
    ),
    *(
        Case(
            f"run: a label that is {name}",
            RUN,
            labelled(text),
            code=0,
            after=harmless("model/README.md", "onnx/README.md", "report.html"),
            slow=name not in ("an address", "a script", "front matter"),
        )
        for name, text in HOSTILE.items()
    ),
    *(
        Case(
            f"run: a recipe whose name is {name}",
            RUN,
            named(text),
            code=(0, 2),
            after=lambda scene, ending: (
                ending.code or harmless("model/README.md", "onnx/README.md", "report.html")(scene, ending)
            ),
            slow=name not in ("an address", "a script", "front matter"),
        )
        for name, text in HOSTILE.items()
    ),
    *(
        Case(
            f"no path of the machine: {name}",
            words,
            absolute(*steps),
            code=0,
            after=keeps("out"),
            changes=(SECRET,),
            slow=name == "everything",
        )
        for name, words, steps in (
            ("a run", RUN, ()),
            ("pruned vocabulary", RUN, ('prune.vocabulary: {files: ["PLACE/texts.txt"]}',)),
            ("replaced layers", RUN, ('replace.theseus: {start: "PLACE/model", training: {max_steps: 1}}',)),
            ("another source", RUN + " --set student.from=PLACE/model", ()),
        )
        if name != "another source"
    ),
    Case(
        "no path of the machine: an evaluation",
        f"eval {SECRET}/model --data {SECRET}/data --no-latency --html out/report.html --json out/results.json",
        (absolute(), lambda scene: (scene / "out").mkdir()),
        code=0,
        after=lambda scene, _: [
            pytest.fail(path.name)
            for path in (scene / "out").iterdir()
            if re.search(f"{SECRET}|{re.escape(str(scene))}", path.read_text("utf-8"))
        ],
    ),
]
test_case = table(CASES, quick=5)
