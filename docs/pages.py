"""What the site has beside the pages of this folder; mkdocs calls the functions ``on_…``.

README.md is its first page, and every notebook a page. ``<!-- made: NAME -->`` in a page is replaced by what the code
says of itself, so that nothing of it is written twice. Links to files that the site does not have lose their target.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

ROOT = Path(__file__).parents[1]
AT_ROOT = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md"}
"""Documents at the root of the repository, and the pages that they become."""
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)")
MADE = re.compile(r"<!-- made: (\w+) -->")
INTERFACES = (
    "compress",
    "compress.losses",
    "compress.export",
    "compress.search",
    "compress.testing",
    "eval",
    "teachers",
)
"""The packages whose public names make the API reference."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Link headings as GitHub does, so that a link leads to the same place in both."""
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents at the root, and each notebook as a page."""
    for name, page in AT_ROOT.items():
        text = (ROOT / name).read_text(encoding="utf-8").replace('="docs/', '="')
        files.append(File.generated(config, page, content=text))
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        notebook = json.loads(Path(str(file.abs_src_path)).read_text(encoding="utf-8"))
        page = posixpath.splitext(file.src_uri)[0] + ".md"
        files.append(File.generated(config, page, content=notebook_text(notebook, posixpath.basename(file.src_uri))))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in what is made, and turn links between files of the repository into links between pages."""
    del config, files
    place = page.file.src_uri
    here = "" if place in AT_ROOT.values() else posixpath.join("docs", posixpath.dirname(place))
    markdown = LINK.sub(lambda link: led(link, here, posixpath.dirname(place)), markdown)
    return MADE.sub(lambda mark: PARTS[mark[1]](), markdown)


def led(link: re.Match[str], here: str, folder: str) -> str:
    """Return a link as the site has it.

    Args:
        link: Its text, target and anchor.
        here: Folder of the document in the repository.
        folder: Folder of its page.
    """
    target = posixpath.normpath(posixpath.join(here, link[2]))
    if target in AT_ROOT:
        found = AT_ROOT[target]
    elif target.startswith("docs/") and target.endswith((".md", ".ipynb")):
        found = target.removeprefix("docs/").replace(".ipynb", ".md")
    else:
        return link[1]
    return f"[{link[1]}]({posixpath.relpath(found, folder or '.')}{link[3] or ''})"


def notebook_text(notebook: Mapping[str, Any], name: str) -> str:
    """Return the cells of a notebook as Markdown; the name of its file stands under the title."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    title, rest = parts[0].split("\n", 1)
    return "\n\n".join([title, f"This page is the notebook `docs/tutorials/{name}`.", rest, *parts[1:]]) + "\n"


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in lines
    )


def techniques() -> str:
    """Return a table of all techniques, and what ``compress show`` says of each."""
    from compress.registry import TECHNIQUES, describe

    found = [describe(name) for name in TECHNIQUES]
    rows = [(f"[`{each.name}`](#{anchor(each.name)})", each.summary, each.source) for each in found]
    parts = [table(("name", "what it does", "source"), rows)]
    for each in found:
        text = re.sub(r"^(\w+):\n +", r"**\1.** ", each.text, flags=re.MULTILINE)
        fields = [(f"`{one.name}`", one.type, f"`{one.default}`", one.description) for one in each.fields]
        parts += [f"## {each.name}", each.summary, re.sub(r"^ +", "", text, flags=re.MULTILINE)]
        parts += [table(("field", "takes", "default", "meaning"), fields)] if fields else ["It takes no fields."]
        parts.append(
            f"Version {each.version}. Needs {', '.join(each.needs) or 'nothing beside the model'}; reduces "
            f"{', '.join(each.reduces) or 'nothing by itself'}; {'trains' if each.trains else 'does not train'}; "
            f"{'cannot' if each.freezes else 'can'} be trained afterwards."
        )
    return "\n\n".join(parts)


def anchor(heading: str) -> str:
    """Return what a heading is linked by."""
    return re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")


def recipe() -> str:
    """Return a table for each block of a recipe, from its JSON Schema; techniques have a page of their own."""
    from compress.recipe.json_schema import recipe_json_schema

    schema = recipe_json_schema()
    blocks: dict[str, Any] = schema["$defs"]
    places, waiting = {"": ""}, [("", schema)]
    parts = []
    while waiting:
        place, block = waiting.pop(0)
        fields = {name: field for name, field in block["properties"].items() if not field.get("deprecated")}
        for name, field in fields.items():
            for inner in () if (place, name) == ("", "steps") else referred(field):
                if inner not in places and "properties" in flat(blocks[inner]):
                    places[inner] = f"{place}.{name}".lstrip(".")
                    waiting.append((places[inner], flat(blocks[inner])))
        if not place:
            fields["steps"] = {
                "description": "[Techniques](techniques.md) by their names, each with its fields, in order."
            }
        parts += [f"## {place}", str(block.get("description", ""))] if place else []
        rows = [
            (f"`{name}`", taken(field, places), default(name, field, block), field.get("description", ""))
            for name, field in fields.items()
        ]
        parts.append(table(("field", "takes", "default", "meaning"), rows))
    return "\n\n".join(parts)


def flat(block: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a block, of one that may be written by a name alone as well."""
    return {**block, **next((one for one in block.get("anyOf", ()) if "properties" in one), {})}


def referred(field: Any) -> Iterator[str]:
    """Yield the blocks that a field takes, at any depth."""
    if isinstance(field, dict):
        yield from [field["$ref"].rpartition("/")[2]] if "$ref" in field else []
        field = list(field.values())
    for part in field if isinstance(field, list) else ():
        yield from referred(part)


def taken(field: Mapping[str, Any], places: Mapping[str, str]) -> str:
    """Return in words what a field takes; blocks by the place of their table."""
    if "$ref" in field:
        place = places.get(field["$ref"].rpartition("/")[2], "")
        return f"the fields of [{place}](#{anchor(place)})" if place else "a technique"
    if "anyOf" in field:
        said = [taken(one, places) for one in field["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(said))
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if field.get("type") == "array":
        return f"a list of: {taken(field['items'], places)}" if "items" in field else "a list"
    if field.get("type") == "object":
        return "one of " + ", ".join(f"`{name}`" for name in field["properties"]) if "properties" in field else "fields"
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = ", ".join(f"{sign} {field[key]:g}" for key, sign in signs.items() if key in field)
    words = {"integer": "whole number", "number": "number", "boolean": "`true`, `false`", "string": "text"}
    return " ".join([words.get(str(field.get("type")), "a list"), bounds]).strip()


def default(name: str, field: Mapping[str, Any], block: Mapping[str, Any]) -> str:
    """Return the default of a field as a recipe writes it."""
    if name in block.get("required", ()):
        return "required"
    value = field.get("default")
    return "" if value is None else f"`{json.dumps(value, ensure_ascii=False)}`"


def commands() -> str:
    """Return the help of every command, as typer writes it."""
    from typer.cli import get_docs_for_click
    from typer.main import get_command

    from compress.cli import app

    command = get_command(app)
    context = command.make_context("compress", [], resilient_parsing=True)
    return get_docs_for_click(obj=command, ctx=context, name="compress", title="All commands", indent=1)


def api() -> str:
    """Return a section for each package, with the marks by which mkdocstrings writes of each public name."""
    parts, known = [], set()
    for package in INTERFACES:
        public = import_module(package)
        parts.append(f"## {package}")
        for name in (name for name in public.__all__ if not name.startswith("__")):
            value = getattr(public, name)
            home = f"{value.__module__}.{name}" if hasattr(value, "__module__") else f"{package}.{name}"
            if home not in known:
                known.add(home)
                parts.append(f"::: {home}")
    return "\n\n".join(parts)


PARTS: Mapping[str, Callable[[], str]] = {
    "techniques": techniques,
    "recipe": recipe,
    "commands": commands,
    "api": api,
}
"""What is made, by the name in its mark."""
