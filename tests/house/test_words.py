"""The words of the field: documents and code use the terms of the papers and of transformers, not words of our own."""

import ast
import io
import re
import tokenize

from tests.house.test_house import ROOT, tree

PACKAGES = ("compress", "teachers", "eval", "benchmarks")

WORDS = {
    "per-token or per-tensor dynamic quantization": r"\b(?:one|a|own) (?:range|scale)s? "
    r"(?:a|per|for (?:each|every|a whole)) (?:token|batch|tensor|matrix|row)\b",
    "per-channel scales": r"\b(?:one|a) scale (?:an|per|for (?:each|every|an)) (?:output|channel)\b",
    "static (calibrated) quantization": r"\bfixed (?:8-bit )?ranges\b",
    "dynamic quantization": r"\branges (?:that are )?found while it runs\b",
    "retained, % of teacher score": r"\bkept of the teacher\b|\d%? kept\b|\bkept \d[\d.]*%|\| kept \|",
    "inconclusive, non-inferiority not established": r"\b(?:is|are|was|be) (?:just )?not shown\b",
    "predictions, predicted labels": r"\bdecisions?\b|\b(?:first|float32|int8|per-example|same|its own) answers?\b"
    r"|\banswers? (?:a|per) second\b|\banswers? (?:well|sooner|faster)\b",
    "prediction agreement": r"(?<=\| )agrees\b|, agrees \d|\bagrees (?:in|on)\b",
    "lowest latency": r"\bsoonest\b",
    "throughput, unsorted or length-sorted": r"\bas (?:it|they) comes?\b|\bstream, (?:as|by)\b|\bsorted stream\b",
    "trained, fine-tuned, distilled, learned": r"\btaught\b|\b(?:un)?learnt\b",
    "teacher outputs": r"\bteacher(?:'s|s')? signals?\b|\bsignals? of (?:a|the|its) teachers?\b",
    "recovery fine-tuning": r"\bheal(?:s|ed|ing)?\b",
    "dry run": r"\brehears\w*",
    "schedule": r"(?<!of )\bcourses?\b",
    "embedding matrix": r"\bword tables?\b|\btables? of words\b",
    "subword tokens": r"\bword[- ]pieces?\b|\b\d[\d,]* pieces\b|"
    r"\bpieces? of (?:a|the|each|every|its) (?:words?|tokenizer)\b",
    "truncated": r"\bshorten(?:s|ed|ing)?\b",
    "pruned; of text: truncated": r"\bcut (?:out of|from|to (?:any|three|two|\d)|models?|layers?|copies)\b|"
    r"\b(?:layers?|heads?|neurons?) cut\b",
    "standard Hugging Face, standard architecture": r"(?<![-.\w])stock\b(?![:=])",
    "custom architecture": r"\bnetworks? of (?:our|its|their|your) own\b",
    "modified architecture": r"\bchanged networks?\b",
    "synthetic": r"\bmade[- ]up\b",
    "errors": r"\bmistakes?\b",
    "cross-encoder, token classifier, extractive QA model": r"\bpair scorers?\b|\btagger or reader\b|"
    r"\b(?:classifier|scorer|tagger)s?(?:,| or| and) readers?\b",
    "primary metric": r"\bscores? that decides?\b",
    "float32": r"^as it is$|\| as it is \||[\"“][Aa]s it is[\"”]",
    "speedup": r"\btimes faster\b",
    "latency at batch size 1": r"\bmilliseconds of (?:one|a) sentence\b",
    "labels only (no teacher)": r"\blabels alone\b",
    "alternately": r"\b(?:in|by) turns\b",
    "a plain sentence": r"\bwhat it is worth\b|\bthe whole line\b",
}
"""What to write -> the words that stand for it no more. Of code spans, only the names below are checked."""

COUNTED = (
    r"(?:\d[\d,]*|an?|each|every|some|many|few|more|last|first|next|number of|of the|so many|per|half of the|half its)"
)
WORDS_OF_CODE = {
    "optimizer step": rf"\b{COUNTED} updates?\b|\bupdates? (?:a second|of the training|of the optimizer)\b",
    "micro-batch": r"\bpieces of (?:a|the|one) batch\b",
}
"""Words that mean something else as verbs or without a number; documents do without them altogether."""

WORDS_OF_DOCUMENTS = {
    "optimizer step": r"\bupdates?\b",
    "subword token": r"\bpieces?\b",
    "pruned; of text: truncated": WORDS["pruned; of text: truncated"] + r"|(?<![-/\w])cuts?\b(?![-.])",
}

NAMES = {
    "TrainingTask": r"Lesson|lessons?",
    "BoundTask": r"\ABound\Z",
    "TrainState": r"Course|course",
    "Monitor": r"Watch|watching",
    "SignalSpec": r"Wanted",
    "EncodedDataset": r"Rows",
    "atomic_folder": r"whole_folder",
    "atomic_write": r"write_beside",
    "exclusive": r"(?<!_)alone\(\)",
    "recover, recovery": r"heals?|healed|healing|Healed",
    "dry_run_first": r"rehearse|rehearsal|rehearsing|Rehearsal",
    "trained, learned": r"taught|learnt",
    "mlm": r"MaskedWords",
    "rtd": r"ReplacedTokens",
    "word_structural": r"WordOrder",
    "synthetic": r"made_up",
    "errors": r"mistakes?|Mistakes?",
    "predictions": r"decided|decisions?|Decisions?",
}
"""What to write -> names, whole or as a part of one in snake or camel case. Functions have brackets here."""

KEYS = {
    "mlm": r"\bmasked_words\b",
    "rtd": r"\breplaced_tokens\b",
    "word_structural": r"\bword_order\b",
    "gradient_accumulation_steps": r"(?<!gradient_)\baccumulation\b(?=:|`)",
    "warmup_steps": r"\bwarmup:",
    "recover": r"\bheal:",
}
"""What to write -> keys of recipes, wherever documents, recipes and studies have them."""

ALLOWED = {
    "compress/surgery.py": {"heal"},  # the old name of a field, which is still read
    "compress/distill/components/schedule.py": {"course"},  # the same
    "compress/demo/grammar.py": {"mistakes"},  # a noun of the generated reviews
    "compress/augment/masked_lm_words.py": {"MaskedWords"},  # an augmentation, not the objective
    "compress/architectures/answer_network.py": {"last update", "many updates"},  # of its state, by the paper's formula
}
"""File -> the words of the left that are meant literally there."""


def documents():
    """README, CONTRIBUTING and the pages below docs; the comments of recipes and studies."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    recipes = [
        *sorted((ROOT / "compress" / "recipes").glob("*.yaml")),
        *sorted((ROOT / "benchmarks" / "studies").glob("*.yaml")),
    ]
    return [*pages, *recipes]


def code():
    """The files of the packages, the page of the browser export included."""
    found = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*"))]
    return [path for path in found if path.suffix in {".py", ".js", ".html"}]


def plain(text):
    """Return a text without its code spans and the targets of its links."""
    return re.sub(r"\]\([^)]*\)", "]", re.sub(r"``[^`]*``|`[^`]*`", "``", text))


def blocks(lines):
    """Yield ``(line, text)`` of paragraphs as one text each, so that no line break divides a phrase; tables by row."""
    first, gathered = 1, []
    for number, line in enumerate([*lines, ""], 1):
        if gathered and (not line.strip() or line.startswith("|")):
            yield first, plain(" ".join(gathered))
            gathered = []
        if line.startswith("|"):
            yield number, plain(line)
        elif line.strip():
            first = first if gathered else number
            gathered.append(line.strip())


def prose(path):
    """Yield ``(line, text)`` of a document without its programs, or of the comments of a YAML file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    if path.suffix == ".yaml":
        yield from blocks([line.partition("#")[2] for line in lines])
        return
    program = False
    for number, line in enumerate(lines):
        fence = line.startswith("```")
        program = program != fence
        if program or fence or line.startswith("    "):
            lines[number] = ""
    yield from blocks(lines)


def said(path):
    """Yield ``(line, text)`` of the docstrings, literals and comments of a file."""
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from blocks(source.splitlines())
        return
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, plain(" ".join(node.value.split()))
    for token in tokenize.generate_tokens(io.StringIO(source).readline) if "#" in source else ():
        if token.type == tokenize.COMMENT:
            yield token.start[0], plain(token.string)


def named(path):
    """Yield ``(line, name)`` of the names that a file defines, its own included; those of functions have brackets."""
    yield 1, path.stem
    for node in ast.walk(tree(path)) if path.suffix == ".py" else ():
        if isinstance(node, ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, f"{node.name}()"
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id if isinstance(node, ast.Name) else node.attr


def wrong_words(texts, words, allowed=frozenset()):
    """Yield what is wrong with ``(line, text)`` pairs; the line is the first of its paragraph or docstring."""
    for number, text in texts:
        for instead, pattern in words.items():
            for found in re.finditer(pattern, text, flags=re.IGNORECASE):
                if found[0] not in allowed:
                    yield f"from line {number}: {found[0]!r}, write: {instead}"


def wrong_names(names, allowed=frozenset()):
    """Yield what is wrong with ``(line, name)`` pairs, of each name where it first stands."""
    first = {name: number for number, name in reversed([*names])}
    for name, number in first.items():
        for instead, pattern in NAMES.items():
            whole_part = rf"(?:(?<![A-Za-z])|(?<=[a-z])(?=[A-Z]))(?:{pattern})(?![a-z])"
            if name not in allowed and re.search(whole_part, name):
                yield f"line {number}: the name {name!r}, write: {instead}"


def test_documents_use_the_words_of_the_field():
    found = {}
    for path in documents():
        wrong = [*wrong_words(prose(path), WORDS | WORDS_OF_DOCUMENTS)]
        wrong += wrong_words(enumerate(path.read_text(encoding="utf-8").splitlines(), 1), KEYS)
        spans = re.findall(r"`([^`\n]+)`", path.read_text(encoding="utf-8"))
        wrong += wrong_names((0, name) for span in spans for name in re.findall(r"\w+(?:\(\))?", span))
        found[path.relative_to(ROOT).as_posix()] = wrong
    assert len(found) > 100
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_code_uses_the_words_of_the_field():
    found = {}
    for path in code():
        name = path.relative_to(ROOT).as_posix()
        allowed = ALLOWED.get(name, set())
        wrong = wrong_words(said(path), WORDS | WORDS_OF_CODE, allowed)
        found[name] = [*wrong, *wrong_names(named(path), allowed)]
    assert len(found) > 300
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_innocent_uses_are_not_met():
    for text in (
        "of course this is so",
        "values.update(more)",
        "``stock`` is a field",
        "one of the answers to the question",
        "the rows that are kept",
        "it agrees with the model",
    ):
        assert [*wrong_words([(1, plain(text))], WORDS | WORDS_OF_CODE)] == [], text
    innocent = ["standalone()", "alone", "bound", "BoundSum", "rows", "heads", "health", "watchdog"]
    new = [name for instead in NAMES for name in instead.split(", ")]
    assert [*wrong_names([(1, name) for name in innocent + new])] == []
    assert [*wrong_words([(1, f"{key}: 1") for key in KEYS], KEYS)] == []


def test_words_of_our_own_are_met():
    for text in ("0.5 kept of the teacher", "after 300 updates", "labels alone", "a stock folder", "9 times faster"):
        assert len([*wrong_words([(1, text)], WORDS | WORDS_OF_CODE)]) == 1, text
    names = ("Lesson", "alone()", "HealedTechnique", "PretextRows", "heal", "write_beside")
    assert {line.split("'")[1] for line in wrong_names([(1, name) for name in names])} == set(names)
