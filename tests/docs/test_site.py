"""The site: it builds without a warning, has every page, and what is made of the code is there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytest.importorskip("mkdocs", reason='the site needs mkdocs: pip install "nlp-compress[docs]"')

from compress.cli import app
from compress.recipe.json_schema import recipe_json_schema
from compress.registry import TECHNIQUES
from docs import pages

ROOT = Path(__file__).parents[2]


def leaves(nav):
    """Yield the pages of a navigation."""
    for entry in nav:
        (value,) = entry.values()
        yield from leaves(value) if isinstance(value, list) else [value]


def test_every_page_is_in_the_navigation_once():
    found = list(leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    documents = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*") if "example" not in str(path)]
    texts = [path.with_suffix(".md").as_posix() for path in documents if path.suffix in {".md", ".ipynb"}]
    assert sorted(found) == sorted([*texts, *pages.AT_ROOT.values()])


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("[a](choosing.md#teachers)", "[a](choosing.md#teachers)"),
        ("[a](tutorials/tagger.ipynb)", "[a](tutorials/tagger.md)"),
        ("[a](../README.md)", "[a](index.md)"),
        ("[`a`](../recipes)", "`a`"),
        ("[a](https://example.org)", "[a](https://example.org)"),
        ("![a](plots/a.svg)", "![a](plots/a.svg)"),
    ],
)
def test_links_lead_to_pages(link, expected):
    assert pages.LINK.sub(lambda found: pages.led(found, "docs", ""), link) == expected


def test_links_of_a_page_in_a_folder_are_relative():
    found = pages.LINK.search("[a](../../CONTRIBUTING.md) ")
    assert pages.led(found, "docs/results", "results") == "[a](../contributing.md)"


def test_every_technique_and_field_is_shown():
    text = pages.techniques()
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == list(TECHNIQUES)
    assert "| `temperature` | a number above 0 and at most 1000 or a block with the fields" in text
    assert "**Limits.** It trains no head" in text


def test_every_field_of_a_recipe_is_shown():
    text, schema = pages.recipe(), recipe_json_schema()
    top = text.partition("\n## ")[0]
    assert [line.split("`")[1] for line in top.splitlines()[2:]] == list(schema["properties"])
    assert "| `margin` | number ≥ 0 | `0.01` | Loss of the score that still counts as no worse. |" in text
    for name in ("task", "teacher", "teacher.finetune", "training", "student", "evaluate.latency", "export"):
        assert f"\n## {name}\n" in text


def test_every_command_is_shown():
    text = pages.commands()
    for command in app.registered_commands:
        assert f"\n### `compress {command.name}`\n" in text
    assert "* `--resume`: Go on with what the folder holds." in text


def test_every_public_name_is_shown():
    text = pages.api()
    for home in ("compress.artifact.artifact.load", "compress.shortcuts.distilling.shrink", "eval.measurement.measure"):
        assert f"\n::: {home}\n" in text
    assert len(text.split(":::")) > 40


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    page = (tmp_path / "site" / "tutorials" / "classifier" / "index.html").read_text(encoding="utf-8")
    assert "This page is the notebook" in page
    assert "fonts.googleapis" not in page
    api = (tmp_path / "site" / "reference" / "api" / "index.html").read_text(encoding="utf-8")
    assert "assign_roles" in api
    assert 'id="compress.shortcuts.optimizing.optimize"' in api
