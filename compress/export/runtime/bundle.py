"""What an export folder holds beside the model: a program that needs no toolkit, and a page that says how to use it."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from importlib import import_module
from inspect import getmro, getsource
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from compress.export.targets.library import Library
from eval.errors import UserError
from eval.kinds.kind_registry import kind_of
from eval.report.hub_header import heritage, with_header
from eval.report.markdown import escape, labels_line

if TYPE_CHECKING:
    from compress.export.targets.target import Target
    from teachers.taskmodel import TaskModel

PARTS = (
    "eval.files.streams",
    "eval.files.unpacked",
    "eval.one_line",
    "eval.files.full_disk",
    "eval.files.json_text",
    "eval.examples",
    "eval.kinds.reading",
    "eval.kinds.learning",
    "eval.kinds.kind",
    "eval.encoder_settings",
    "eval.long_texts",
    "eval.knowledge.sentence_trees",
    "eval.encoding",
    "eval.inference",
    "compress.export.targets.library",
    "compress.export.runtime.manifest",
    "compress.export.runtime.windows",
    "compress.export.runtime.batch_threads",
    "compress.export.runtime.given_example",
    "compress.export.runtime.answering",
    "compress.export.runtime.task_set",
    "compress.export.runtime.many_processes",
    "compress.export.runtime.program",
)
"""Modules that ``predict.py`` consists of beside that of its kind of task, in the order of their needs."""
LIST = "compress.export.targets.library"
"""The part after which the export's own engine stands, in the place of the list of targets."""
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
LOOKUP = '''

def kind_names() -> tuple[str, ...]:
    """Return the kinds of task that this program knows."""
    return (NAMES,)


def kind_of(name: str) -> Kind:
    """Return one of them."""
    return {PAIRS}[name]()
'''
TAIL = """
if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent))
"""
CHECK = """    import json, numpy, onnxruntime, pathlib
    session = onnxruntime.InferenceSession("model.onnx")
    others = ("layers", "last_hidden_state", "present.")
    names = [each.name for each in session.get_outputs() if not each.name.startswith(others)]
{past}    known, worst = json.loads(pathlib.Path("conformance.json").read_text("utf-8")), 0
    for row in known["rows"]:
        inputs = {{name: numpy.array([ids]) for name, ids in row["inputs"].items()}}
        found = [out[0] for out in session.run(names, {given})]
        found = numpy.stack(found, -1) if len(found) > 1 else found[0]
        expected = numpy.array(row["logits"])
        worst = max(worst, abs(found[..., : expected.shape[-1]] - expected).max())
    print(f"largest difference {{worst:.2g}}, allowed {{known['limit']:.2g}}")
"""
PAST = """    empty = [each for each in session.get_inputs() if each.name.startswith("past.")]
    past = {each.name: numpy.zeros((1, 0, each.shape[-1]), numpy.float32) for each in empty}
"""
WRITES = """
    python predict.py --generate 40 "a line"                      what a text goes on with; --help has how to draw it"""
PAIR_LINE = "two texts with a tab between them, or a JSON object with `text_a` and `text_b`"


def predict_program(target: str, library: Library, *kinds: str) -> str:
    """Return the source of a program that predicts with nothing of this toolkit installed.

    Args:
        target: What the export is made for.
        library: What runs it.
        kinds: Kinds of task; the program holds no others.

    Raises:
        UserError: The file of a kind of another package hides what another part defines.
    """
    parts = [*PARTS, *kind_parts(*kinds)]
    read = [_read(Path(str(import_module(part).__file__)).read_text(encoding="utf-8")) for part in parts]
    if twice := [name for name, count in Counter(chain(*(defined for defined, _ in read))).items() if count > 1]:
        names, own = " or ".join(kinds), ", ".join(twice)
        raise UserError(f"kind {names}: its file defines {own}, as another part of predict.py does; rename")
    bodies = [body for _, body in read]
    place = PARTS.index(LIST) + 1
    bodies[place:place] = [*_engine(library), _list(target, library)]
    classes = {kind: type(kind_of(kind)).__name__ for kind in kinds}
    lookup = LOOKUP.replace("NAMES", ", ".join(f'"{kind}"' for kind in kinds))
    lookup = lookup.replace("PAIRS", ", ".join(f'"{kind}": {name}' for kind, name in classes.items()))
    head = HEAD.replace("LIBRARY", library.package)
    return "\n\n".join([head, *bodies, lookup, TAIL]).replace("\n\n\n\n", "\n\n\n")


def write_program(folder: Path, target: str, library: Library, *kinds: str) -> None:
    """Write ``predict.py`` into an export folder; arguments as ``predict_program`` takes them."""
    (folder / "predict.py").write_text(predict_program(target, library, *kinds), encoding="utf-8")


def _engine(library: Library) -> list[str]:
    """Return the source of the class that runs an export, after those that it is derived from."""
    classes = [each for each in getmro(cast("type", library.engine)) if each.__module__ != "builtins"]
    return [f"{_source(each)}\n" for each in reversed(classes)]


_source = cache(getsource)
"""It parses the whole file of a class each time."""


def _list(target: str, library: Library) -> str:
    """Return what takes the place of the list of targets."""
    values = f"{library.name!r}, {library.package!r}, {library.files!r}"
    return f'''
def library_of(target: str) -> Library | None:
    """Return what runs the export beside this program."""
    found = Library({values}, {library.engine.__name__}, {library.more!r})
    return found if target == {target!r} else None

'''


def kind_parts(*kinds: str) -> list[str]:
    """Return the modules of kinds of task that a program holds: of their classes, after those of the classes below."""
    found = [each.__module__ for kind in kinds for each in reversed(type(kind_of(kind)).__mro__)]
    return [module for module in dict.fromkeys(found) if module not in (*PARTS, "builtins")]


@cache
def _read(source: str) -> tuple[tuple[str, ...], str]:
    """Return the names of the functions and classes of a module, and it without docstring, future and own imports."""
    nodes, dropped = ast.parse(source).body, set[int]()
    for place, node in enumerate(nodes):
        is_docstring = place == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        package = (node.module or "").partition(".")[0] if isinstance(node, ast.ImportFrom) else ""
        if is_docstring or package in ("__future__", *TOOLKIT):
            dropped |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    kept = [line for number, line in enumerate(source.splitlines(), start=1) if number not in dropped]
    defined = tuple(node.name for node in nodes if isinstance(node, (ast.ClassDef, ast.FunctionDef)))
    return defined, "\n".join(kept).strip("\n") + "\n"


def readme(manifest: dict[str, Any], library: Library) -> str:
    """Return the page of an export folder.

    Args:
        manifest: Content of its ``export.json``.
        library: What runs it.
    """
    task, gate = manifest["task"], manifest.get("gate") or {}
    asked = kind_of(task["kind"])
    line, kind = PAIR_LINE if task.get("pair") and asked.pairs else asked.line, asked.named.capitalize()
    labels = f"{found}\n\n" if (found := labels_line(task.get("labels") or ())) else ""
    reads_source = library.has_cache and library.more in manifest["files"]
    writes = WRITES if library.has_cache and not reads_source else ""
    names, package = library.files_of(manifest["files"]), library.package
    size = sum(manifest["files"][file]["bytes"] for file in names) / 1e6
    opset = f", opset {manifest['opset']}" if manifest["opset"] else ""
    return f"""# {escape(manifest["name"])}

{kind} model for {library.name}: {manifest["scheme"]}{opset}, {size:.1f} MB.

{labels}| file | what it is |
|---|---|
| {", ".join(f"`{file}`" for file in names)} | the network |
| `tokenizer.json`, `encoder.json` | how texts become its inputs |
| `config.json` | the transformers configuration, for tools that look for it |
| `export.json` | what was exported, how it was checked, sizes and digests |
| `conformance.json` | a few inputs with the answers they must get, to check any runtime with |
| `predict.py` | predicts with numpy, tokenizers and {package} alone |

    pip install numpy tokenizers {package}
    python predict.py "a line"
    python predict.py --file lines.txt > answers.jsonl{writes}

A line is {line}.

    from predict import Runtime
    model = Runtime(".")
    answers = model.predict(["a line", "another line"]).answers
{_early(manifest, library)}
{_check(library.has_cache, reads_source)}
Before this folder was written, its answers were compared with those of the torch model:
{_checked(gate)}
"""


def _check(cached: bool, reads_source: bool) -> str:
    """Return how to check a runtime elsewhere; where a source is read first, a page has no room for it."""
    if reads_source:
        return "`compress verify .` runs the inputs of `conformance.json` through every runtime that is installed.\n"
    past, given = (PAST, "inputs | past") if cached else ("", "inputs")
    return (
        "To check a runtime elsewhere, run this here with its session in the place of ONNX Runtime's:\n\n"
        f"{CHECK.format(past=past, given=given)}"
    )


def several_page(manifest: dict[str, Any], library: Library) -> str:
    """Return the page of an export of several tasks over one base.

    Args:
        manifest: Content of its ``export.json``.
        library: What runs it.
    """
    size = manifest["files"][library.files[0]]["bytes"] / 1e6
    head = f"{len(manifest['tasks'])} tasks over one base for {library.name}: {manifest['scheme']}"
    rows = "\n".join(
        f"| `{name}` | its `encoder.json`, `export.json`, `conformance.json` |" for name in manifest["tasks"]
    )
    return f"""# {escape(manifest["name"])}

{head}, opset {manifest["opset"]}, {size:.1f} MB.

| file | what it is |
|---|---|
| `{library.files[0]}` | the network: the base once, and beside it what each task has of its own |
| `tokenizer.json`, `config.json` | those of the base |
{rows}
| `predict.py` | predicts with numpy, tokenizers and {library.package} alone |

    pip install numpy tokenizers {library.package}
    python predict.py "a line"                      one JSON object a line: task -> its answer
    python predict.py --file lines.txt > answers.jsonl

    from pathlib import Path
    from predict import Runtime, TaskSet
    TaskSet(Path(".")).predict(["a line"])          every task
    TaskSet(Path("."), tasks=["{manifest["tasks"][0]}"])             only some
    Runtime("{manifest["tasks"][0]}").predict(["a line"])            one, which every command takes as an export too

A row of the graph's input says its task in `task_ids` (int64, shaped as `input_ids`, the task's number at each token,
counted from 0 in the order above), so a batch may mix tasks. Each task has an output of its name, of which the rows
count that ask it. Each was compared with its own model before this folder was written; see its `export.json`.
"""


def hub_page(page: str, model: TaskModel, target: Target) -> str:
    """Return the page of an export folder with the header that the Hugging Face hub reads.

    Args:
        page: The page.
        model: What was exported.
        target: What it was exported to.
    """
    known = heritage(getattr(model, "lineage", ()))
    tags, pipeline = ["compressed", target.name], kind_of(model.task.kind).pipeline
    return with_header(page, library_name=target.hub_library, pipeline_tag=pipeline, tags=tags, **known)


def _early(manifest: dict[str, Any], library: Library) -> str:
    if manifest.get("speed") is None:
        return ""
    return f"""
It leaves early: an input runs through as many layers as it needs. `Runtime(".", speed=0.3)`, or the option `--speed`,
changes from {manifest["speed"]} how much may be left open then; 0 runs every layer, more is faster and less exact.
{_PARTS if library.more else _ONE_GRAPH}
"""


_ONE_GRAPH = """To other runtimes `speed` is an input of the graph that may be left out; its output `layers` tells how
many layers ran."""
_PARTS = """The layers up to each exit stand in separate files. Of the rows whose `uncertainty`, an output, is above
the speed, the next network takes `states` as `hidden`, and the `attention_mask`; the last `logits` of a row count."""


def _checked(gate: dict[str, Any]) -> str:
    if not gate:
        return "not recorded."
    return (
        f"{gate['examples']} examples, {gate['agreement']:.2%} equal predictions, largest difference of an output "
        f"{gate['max_abs_difference']:.2g} (outputs reach {gate['scale']:.2g})."
    )
