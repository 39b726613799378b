"""What an export folder holds beside the model: a program that needs no toolkit, and a page that says how to use it."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

from compress.export.engines import ENGINES, MODEL_FILES
from eval.report.markdown import escape, labels_line

PARTS = (
    "eval.files.streams",
    "eval.full_disk",
    "eval.files.json_text",
    "eval.encoder_settings",
    "eval.long_texts",
    "eval.encoding",
    "eval.inference",
    "compress.export.engines",
    "compress.export.runtime",
    "compress.export.program",
)
"""Modules that ``predict.py`` consists of, in the order of their needs."""
TOOLKIT = ("eval", "compress", "teachers")
HEAD = '''"""Answers from the model in this folder; needs numpy, tokenizers and LIBRARY, nothing else.

    python predict.py "some text"          one JSON object a text
    python predict.py --file texts.txt
    cat texts.txt | python predict.py

Or in Python: ``from predict import Runtime; Runtime(folder).predict(["some text"]).answers``.
"""

from __future__ import annotations

if __name__ == "__main__":
    import importlib.util
    import sys

    missing = [name for name in ("numpy", "tokenizers", "LIBRARY") if importlib.util.find_spec(name) is None]
    if missing:
        sys.stderr.write(f"not installed: {', '.join(missing)}; run: pip install {' '.join(missing)}\\n")
        sys.exit(2)
'''
TAIL = """
if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent))
"""
CHECK = """    import json, numpy, onnxruntime, pathlib
    session = onnxruntime.InferenceSession("model.onnx")
    names = [each.name for each in session.get_outputs() if each.name not in ("layers", "last_hidden_state")]
    known, worst = json.loads(pathlib.Path("conformance.json").read_text("utf-8")), 0
    for row in known["rows"]:
        inputs = {name: numpy.array([ids]) for name, ids in row["inputs"].items()}
        found = [out[0] for out in session.run(names, inputs)]
        found = numpy.stack(found, -1) if len(found) > 1 else found[0]
        expected = numpy.array(row["logits"])
        worst = max(worst, abs(found[..., : expected.shape[-1]] - expected).max())
    print(f"largest difference {worst:.2g}, allowed {known['limit']:.2g}")
"""
LINES = {
    "classification": "a text, or a JSON object with `text`",
    "regression": "a text, or a JSON object with `text`",
    "pair": "two texts with a tab between them, or a JSON object with `text_a` and `text_b`",
    "tagging": "words with white space between them, or a JSON object with `tokens`, a list of words",
    "qa": "a question, a tab and its context, or a JSON object with `question` and `context`",
    "embedding": "a text, or a JSON object with `text`, or with `text_a` and `text_b` for the cosine of two texts",
    "multiple-choice": "a text and its choices with tabs between them, or a JSON object with `text` and `choices`",
    "masked-lm": "not available from the command line: `Runtime.forward` gives the logits",
}


def predict_program(target: str = "onnx") -> str:
    """Return the source of a program that predicts with nothing of this toolkit installed.

    Args:
        target: What the export is made for, a key of ``engines.ENGINES``.
    """
    bodies = [_body(Path(str(import_module(part).__file__)).read_text(encoding="utf-8")) for part in PARTS]
    return "\n\n".join([HEAD.replace("LIBRARY", ENGINES[target][1]), *bodies, TAIL]).replace("\n\n\n\n", "\n\n\n")


def _body(source: str) -> str:
    """Return a module without its docstring, its future imports and its imports from the toolkit."""
    dropped: set[int] = set()
    for place, node in enumerate(ast.parse(source).body):
        is_docstring = place == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        package = (node.module or "").partition(".")[0] if isinstance(node, ast.ImportFrom) else ""
        if is_docstring or package in ("__future__", *TOOLKIT):
            dropped |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    kept = [line for number, line in enumerate(source.splitlines(), start=1) if number not in dropped]
    return "\n".join(kept).strip("\n") + "\n"


def readme(manifest: dict[str, Any]) -> str:
    """Return the page of an export folder, from the content of its ``export.json``."""
    task, gate = manifest["task"], manifest.get("gate") or {}
    line = LINES["pair" if task.get("pair") and task["kind"] != "embedding" else task["kind"]]
    kind = f"{'An' if task['kind'] == 'embedding' else 'A'} {task['kind']}"
    labels = labels_line(task.get("labels") or ())
    library, package, _ = ENGINES[manifest["target"]]
    names = MODEL_FILES[manifest["target"]]
    size = sum(manifest["files"][file]["bytes"] for file in names) / 1e6
    opset = f", opset {manifest['opset']}" if manifest["opset"] else ""
    return f"""# {escape(manifest["name"])}

{kind} model for {library}: {manifest["scheme"]}{opset}, {size:.1f} MB.

{labels}

| file | what it is |
|---|---|
| {", ".join(f"`{file}`" for file in names)} | the network |
| `tokenizer.json`, `encoder.json` | how texts become its inputs |
| `config.json` | the transformers configuration, for tools that look for it |
| `export.json` | what was exported, how it was checked, sizes and digests |
| `conformance.json` | a few inputs with the answers they must get, to check any runtime with |
| `predict.py` | predicts with numpy, tokenizers and {package} alone |

    pip install numpy tokenizers {package}
    python predict.py "a line"
    python predict.py --file lines.txt > answers.jsonl

A line is {line}.

    from predict import Runtime
    model = Runtime(".")
    answers = model.predict(["a line", "another line"]).answers
{_early(manifest)}
To check a runtime elsewhere, run this here with its session in the place of ONNX Runtime's:

{CHECK}
Before this folder was written, its answers were compared with those of the torch model:
{_checked(gate)}
"""


def _early(manifest: dict[str, Any]) -> str:
    if manifest.get("speed") is None:
        return ""
    return f"""
It leaves early: an input runs through as many layers as it needs to be certain. `Runtime(".", speed=0.3)`, or the
option `--speed`, changes how certain that is from {manifest["speed"]}; 0 runs every layer, more is faster and less
exact. To other runtimes `speed` is an input of the graph that may be left out; its output `layers` tells how many
layers ran.
"""


def _checked(gate: dict[str, Any]) -> str:
    if not gate:
        return "not recorded."
    return (
        f"{gate['examples']} examples, {gate['agreement']:.2%} equal decisions, largest difference of an output "
        f"{gate['max_abs_difference']:.2g} (outputs reach {gate['scale']:.2g})."
    )
