"""The house: imports go one way, files have subjects, every technique has its test, documents are in step."""

import ast
import pkgutil
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
import setuptools

from compress.commands.doctor import extras
from compress.export.targets.target_registry import BUILT_IN
from compress.registry import names
from teachers.pretraining.objectives import Objectives

ROOT = Path(__file__).parents[2]
PACKAGES = ("compress", "teachers", "eval")
IMPORTED_AS = {"PyYAML": "yaml", "scikit-learn": "sklearn", "Jinja2": "jinja2", "MarkupSafe": "markupsafe"}
REGISTRIES = (
    *("compress.registry:REGISTRY", "compress.modules:REGISTRY", "teachers.pretraining.objectives:REGISTRY"),
    *("eval.kinds.kind_registry:REGISTRY", "compress.export.targets.target_registry:REGISTRY"),
    "teachers.anatomy.families:FAMILIES",
)
BELOW = {"compress": {"compress", "teachers", "eval"}, "teachers": {"teachers", "eval"}, "eval": {"eval"}}
FAMILIES = ("distill", "prune", "quantize", "share", "replace")
ATTRIBUTES = re.compile(
    r"\.(bert|roberta|distilbert|albert|electra|deberta|mobilebert)\.(encoder|transformer|embeddings)"
)


def files():
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


@cache
def tree(path):
    """Return the parsed code of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path):
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module


def broken(rule):
    """Return what a rule finds wrong with each file; one test for all files, as a test each would be thousands."""
    found = {path.relative_to(ROOT).as_posix(): [*rule(path)] for path in files()}
    assert len(found) > 300
    return {name: wrong for name, wrong in found.items() if wrong}


def test_imports_go_one_way():
    def rule(path):
        package = path.relative_to(ROOT).parts[0]
        for module in imports(path):
            top = module.split(".")[0]
            if top in PACKAGES and top not in BELOW[package]:
                yield f"imports {module}"
        bare = [node for node in ast.walk(tree(path)) if isinstance(node, ast.Import)]
        if "eval" in {alias.name for node in bare for alias in node.names}:
            yield "'import eval' hides the builtin"

    assert broken(rule) == {}


def test_a_family_of_techniques_imports_no_other():
    def rule(path):
        parts = path.relative_to(ROOT).parts
        others = () if parts[0] != "compress" or parts[1] not in FAMILIES else {*FAMILIES} - {parts[1]}
        for module in imports(path):
            if module.startswith(tuple(f"compress.{family}" for family in others)):
                yield f"imports {module}"

    assert broken(rule) == {}


def test_files_have_a_subject_and_a_size():
    def rule(path):
        text = path.read_text(encoding="utf-8")
        if path.stem in {"utils", "util", "helpers", "common", "misc"}:
            yield "its name is no subject"
        if text.count("\n") > 400:
            yield f"has {text.count(chr(10))} lines; can it be told in two files?"
        if path.name != "__init__.py" and not ast.get_docstring(tree(path)):
            yield "does not say what it is"
        if found := re.search(r"\b(TODO|FIXME|XXX)\b", text):
            yield f"says {found[0]}"

    assert broken(rule) == {}


def test_only_the_anatomy_knows_attribute_names():
    def rule(path):
        if path.name not in {"encoder.py", "families.py"}:
            yield from (found[0] for found in ATTRIBUTES.finditer(path.read_text(encoding="utf-8")))

    assert broken(rule) == {}


@pytest.mark.parametrize("name", names())
def test_every_technique_has_a_parity_test_and_a_place_in_the_docs(name):
    test = ROOT / "tests" / "parity" / f"test_{name.replace('.', '_')}.py"
    assert test.is_file(), f"{name} needs {test.relative_to(ROOT)}"
    assert f"`{name}`" in (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_choosing_says_of_every_technique_when_to_take_it():
    text = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
    table = text.partition("| you have | take | not where |")[2].partition("\n## ")[0]
    lines = [line.split(" | ") for line in table.splitlines()[2:] if line.startswith("|")]
    assert all(len(line) == 3 and line[2].strip("| ") for line in lines), "each row says where not"
    taken = " ".join(line[1] for line in lines)
    assert [name for name in names() if not re.search(rf"`{re.escape(name)}[`:]", taken)] == []


def test_every_file_of_a_technique_is_in_the_list():
    listed = {name.replace(".", "/") for name in names()}
    for family in FAMILIES:
        for path in (ROOT / "compress" / family).glob("*.py"):
            text = path.read_text(encoding="utf-8")
            if re.search(r"^    name: ClassVar\[str\] = ", text, re.MULTILINE):
                assert f"{family}/{path.stem}" in listed, f"compress/registry.py lacks {family}.{path.stem}"


@pytest.mark.parametrize("name", list(Objectives.model_fields))
def test_an_objective_of_pretraining_is_one_file_with_one_parity_test(name):
    assert (ROOT / "teachers" / "pretraining" / "objectives" / f"{name}.py").is_file()
    assert (ROOT / "tests" / "parity" / f"test_pretrain_{name}.py").is_file()


EXPORTING = (
    "compress.modules",
    "compress.onnx_graph",
    "compress.export.targets",
    "compress.export.runtime",
    "compress.export.check",
    "compress.export.folder",
    "compress.export.tune",
)
"""The rooms on the way of a model to its export; each imports those before it."""


def test_the_way_to_an_export_goes_down():
    for place, room in enumerate(EXPORTING):
        path = ROOT / room.replace(".", "/")
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]:
            above = [name for name in imports(file) if name.startswith(EXPORTING[place + 1 :])]
            assert above == [], f"{file.relative_to(ROOT)} imports back up"


def compared(tree):
    """Yield the constants that code compares a value with, or looks a value up by."""
    for node in ast.walk(tree):
        found = []
        if isinstance(node, ast.Compare):
            found = [node.left, *node.comparators]
        elif isinstance(node, ast.Subscript):
            found = [node.slice]
        elif isinstance(node, ast.Dict) and len(node.keys) > 1:
            found = [key for key in node.keys if key is not None]
        elif isinstance(node, ast.MatchValue):
            found = [node.value]
        for each in found:
            parts = each.elts if isinstance(each, ast.Tuple | ast.List | ast.Set) else [each]
            yield from (part.value for part in parts if isinstance(part, ast.Constant))


def test_only_a_target_knows_its_name():
    def rule(path):
        parts = path.relative_to(ROOT).parts
        if parts[0] == "compress" and parts[1:3] != ("export", "targets"):
            yield from {name for name in compared(tree(path)) if name in BUILT_IN}

    assert broken(rule) == {}, "compares the name of an export target; ask the target"


HEAVY = ("torch", "transformers", "onnxruntime", "matplotlib", "sklearn", "jinja2", "huggingface_hub")


def test_importing_the_packages_is_cheap():
    code = (
        "import sys, compress, teachers, eval as harness, compress.recipe, compress.cli\n"
        f"heavy = [name for name in {HEAVY} if name in sys.modules]\n"
        "print(heavy)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert printed.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("listing", "heavy"),
    [
        ("eval.kinds.kind_registry import kind_names", ("numpy", *HEAVY)),
        ("compress.export.targets.target_registry import target_names", HEAVY),
        ("compress.registry import names", HEAVY),
    ],
)
def test_names_are_read_without_what_stands_behind_them(listing, heavy):
    code = (
        f"import sys\nfrom {listing} as names\nassert names()\nprint([name for name in {heavy} if name in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert printed.stdout.strip() == "[]"


def test_every_file_is_shipped():
    finding = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    shipped = set(setuptools.find_packages(ROOT, **finding))
    assert shipped == {".".join(path.relative_to(ROOT).parent.parts) for path in files()}


def test_every_file_beside_the_code_is_shipped():
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    shipped = {
        path.relative_to(ROOT).as_posix()
        for package, patterns in data.items()
        for pattern in patterns
        for path in (ROOT / package.replace(".", "/")).glob(pattern)
    }
    assert shipped == {name for name in tracked() if name.split("/")[0] in PACKAGES and not name.endswith(".py")}


def test_what_is_required_is_what_the_packages_import():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    imported = {module.split(".")[0] for path in files() for module in imports(path)}
    required = {re.split(r"[<>=~!\[; ]", requirement)[0] for requirement in project["dependencies"]}
    assert {IMPORTED_AS.get(name, name) for name in required} <= imported


def test_extras_that_are_named_can_be_installed():
    offered = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    assert set(extras()) == offered
    texts = [
        path.read_text(encoding="utf-8") for path in [*files(), ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    ]
    named = {
        name for text in texts for group in re.findall(r"nlp-compress\[([\w,]+)\]", text) for name in group.split(",")
    }
    assert named <= offered


def test_what_the_page_on_extending_names_exists():
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    groups = {pkgutil.resolve_name(name).group for name in REGISTRIES}
    assert groups == set(re.findall(r"\| `(compress\.\w+)` \|", page))
    for name in set(re.findall(r"`((?:compress|eval|teachers)(?:\.\w+)+)`", page)) - groups:
        assert pkgutil.resolve_name(name), name


MADE = {"predict.py", "recipe.yaml", "report.html", "search.html", "sst2.yaml"}
"""Files that the documents name, and that a run, an export or the reader writes."""
EXAMPLES = {
    "compress/prune/foo.py",
    "tests/parity/test_prune_foo.py",
    "budget.yaml",
    "my-recipe.yaml",
    "known-good.yaml",
}
"""What CONTRIBUTING.md and docs/search.md have a reader write."""
NAMED_FILE = re.compile(r"(?<![\w./-])(?:[\w-]+/)*[\w-]+\.(?:py|yaml|md|toml|mjs|html|svg)(?![\w/])")
NAMED_MODULE = re.compile(r"python -m ((?:benchmarks|compress|teachers|eval)[\w.]*)")


@cache
def tracked():
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True, cwd=ROOT)
    return listed.stdout.split()


@pytest.mark.parametrize(
    "document", [name for name in tracked() if name.endswith((".md", ".yaml")) and name != "CHANGELOG.md"]
)
def test_files_and_modules_that_a_document_names_are_there(document):
    """A file may go by the end of its path; NAME in one stands for any name."""
    present, text = [f"/{name}" for name in tracked()], (ROOT / document).read_text(encoding="utf-8")
    named = {name for name in NAMED_FILE.findall(text) if Path(name).name not in MADE} - EXAMPLES
    for module in NAMED_MODULE.findall(text):
        path = module.replace(".", "/")
        named.add(f"{path}.py" if (ROOT / f"{path}.py").is_file() else f"{path}/__main__.py")
    ends = {name: re.compile(f"/{re.escape(name).replace('NAME', '[^/]+')}$") for name in named}
    missing = sorted(name for name, end in ends.items() if not any(map(end.search, present)))
    assert missing == [], f"{document} names files that are not there"


def test_no_document_or_code_names_a_machine():
    wrong = re.compile(r"/work/main|/work/shared|/root/\.|pythonhosted|pypi\.org/simple")
    for name in tracked():
        path = ROOT / name
        if path.suffix in {".py", ".md", ".yaml", ".toml"} and path != Path(__file__) and path.is_file():
            assert not wrong.search(path.read_text(encoding="utf-8")), name
