"""Every link of the documents leads somewhere: to a file of the repository, and to a heading that is there."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("docs/**/*.ipynb")]
PROGRAMS = re.compile(r"^```.*?^```|^(?: {4}.*\n)+|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINKS = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")


def text_of(document):
    """Return a document, of a notebook the texts between its programs."""
    text = document.read_text(encoding="utf-8")
    if document.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return text


def anchors(document):
    """Return what GitHub and the site link the headings of a document by."""
    text = re.sub(r"^```.*?^```", "", text_of(document), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def dead(document, text):
    """Yield the links of a text that lead nowhere from the place of a document."""
    for found in LINKS.finditer(PROGRAMS.sub("", text)):
        link = found[1] or found[2]
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(document):
    assert list(dead(document, text_of(document))) == []


def test_links_that_lead_nowhere_are_found():
    text = (
        "[a](docs/data.md) [b](docs/data.md#splits-that-are-missing) [c](docs/no.md) [d](docs/data.md#no) [e](#start)\n"
        '<img src="docs/no.svg"> [f](https://example.org/no) `[g](no.md)`\n\n    [h](no.md)\n'
    )
    assert list(dead(ROOT / "README.md", text)) == ["docs/no.md", "docs/data.md#no", "docs/no.svg"]


def test_what_a_new_user_looks_for_is_there():
    pages = ("quickstart", "howto", "choosing", "migration", "faq", "glossary", "when-not", "data", "python", "proof")
    references = ("techniques", "recipe", "commands", "api")
    tutorials = ("classifier", "tagger", "reranker_and_embedder", "question_answering", "own_student", "own_technique")
    wanted = [f"docs/{name}.md" for name in pages] + [f"docs/reference/{name}.md" for name in references]
    wanted += [f"docs/tutorials/{name}.ipynb" for name in tutorials]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in wanted if not (ROOT / name).is_file()] == []
    assert [name for name in wanted if f"]({name})" not in readme] == []
    assert "<picture>" in readme
    assert all(
        f"\n| {peer} |" in readme for peer in ("sentence-transformers", "optimum", "Olive", "SetFit", "model2vec")
    )
