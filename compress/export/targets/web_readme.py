"""The page that says how to use a folder for the browser and Node.js."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eval.kinds.kind_registry import kind_of
from eval.report.markdown import escape

KNOWN = {
    "text-classification": (
        *("albert", "bert", "camembert", "deberta-v2", "distilbert", "electra"),
        *("mobilebert", "modernbert", "mpnet", "roberta", "xlm-roberta"),
    ),
    "token-classification": (
        *("bert", "camembert", "deberta-v2", "distilbert", "electra"),
        *("modernbert", "mpnet", "roberta", "xlm-roberta"),
    ),
}
"""Families for which transformers.js 4.3 has a class of each pipeline, of those that this toolkit has."""
PAIR = '{ text_a: "a text", text_b: "another" }'
"""An example of two texts that are read together."""
QUERY = '{ text: "a text", prompt_name: "query" }'
"""An example for an embedder that has prompts for queries and documents."""


def pipeline_of(family: str, kind: str, pair: bool) -> str | None:
    """Return the pipeline of transformers.js that answers with such a model, or None.

    Args:
        family: ``model_type`` of the network.
        kind: Kind of task.
        pair: Whether it takes two texts.
    """
    pipeline = kind_of(kind).web_pipeline
    return pipeline if pipeline and not pair and family in KNOWN[pipeline] else None


def web_readme(manifest: Mapping[str, Any], family: str, fetch: str) -> str:
    """Return the page of a folder.

    Args:
        manifest: Content of its ``export.json``.
        family: ``model_type`` of the network.
        fetch: The command that fetches the packages that the page runs on.
    """
    settings = manifest["encoder"]
    kind, pair = settings["kind"], settings["pair"]
    roles = any(settings.get(f"{role}_prompt") is not None for role in ("query", "document"))
    example = QUERY if roles else PAIR if pair else kind_of(kind).web_example
    size = manifest["files"][manifest["model"]]["bytes"] / 1e6
    return f"""# {escape(manifest["name"])}

{kind_of(kind).named.capitalize()} model for the browser and Node.js: {manifest["scheme"]}, {size:.1f} MB.

| file | what it is |
|---|---|
| `index.html`, `page.js` | a page that answers typed text; it asks no other host for anything |
| `model.js` | the model for programs of your own, in the browser and in Node.js |
| `lib/` | onnxruntime-web (MIT licence) and @huggingface/tokenizers (Apache 2.0), which the page runs on |
| `{manifest["model"]}`, `tokenizer.json`, `*config.json` | what transformers.js loads |
| `export.json` | what was exported, how it was checked, sizes and digests |

## Browser

{_page(manifest, fetch)}

A browser loads modules from a server, not from files:

    python -m http.server --bind 127.0.0.1 8000

and open `http://127.0.0.1:8000`. Any server of static files will do.

## Node.js

    npm install onnxruntime-node @huggingface/tokenizers

```js
import {{ readFile }} from "node:fs/promises";
import * as ort from "onnxruntime-node";
import {{ Tokenizer }} from "@huggingface/tokenizers";
import {{ load }} from "./model.js";

const model = await load(ort, Tokenizer, (name) => readFile(new URL(name, import.meta.url)));
console.log(await model.answer({example}));
```

## transformers.js

{_transformers_js(family, kind, pair)}
"""


def _page(manifest: Mapping[str, Any], fetch: str) -> str:
    if manifest["packages"] is None:
        return (
            "`lib/` is missing, because the packages were not found when this folder was written. Fetch them, and\n"
            f"export again from the same place:\n\n    {fetch}"
        )
    versions = ", ".join(f"{name} {version}" for name, version in manifest["packages"].items())
    return f"All that the page needs is here ({versions})."


def _transformers_js(family: str, kind: str, pair: bool) -> str:
    pipeline = pipeline_of(family, kind, pair)
    if pipeline is None:
        return f"Its pipelines have no place for {family} with {'pairs' if pair else kind}; use `model.js`."
    text = f"""`pipeline("{pipeline}", "path/of/this/folder")` gives the same answers for texts that fit.
A longer one it cuts anywhere, its last special token included; `model.js` keeps that, as in training."""
    if kind_of(kind).words:
        text += "\nIt gives a tag for every token of a word, `model.js` one for every word."
    return text
