"""Every command and every option: what is not there, is something else, or is no value that it takes."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

from tests.forking import Ending
from tests.hostile.case import Case, table
from tests.hostile.damage import Damage, link, remove, truncate, write

EVAL = "eval model --data data --no-latency"
EXPORT = "export model --out out"
TEACH = "teach --base model --task classification --data data --max-steps 1 --out out"
AUGMENT = "augment data --rule bilstm --tagger data --out new.jsonl"
INIT = "init --task classification --data data --teacher model --trained --layers 2 --int8 --out new.yaml"
LONG = "x" * 5000
ODD = "said,stars,more\n" + "a warm film,good,x\na dull film,bad,y\n" * 3
NAMED = "--text said --label stars"
DIGITS = "9" * 400
MOST_DIGITS = "9" * 5000


def folder(name: str) -> Damage:
    return lambda scene: (scene / name).mkdir(parents=True)


def nothing_made(scene: Path, _: Ending) -> None:
    made = [name for name in ("out", "new.yaml", "new.jsonl", "runs") if (scene / name).exists()]
    assert not made, made


MODELS: dict[str, str] = {
    "that is not there": "nowhere",
    "of no user": "~nosuch/model",
    "that is a file": "recipe.yaml",
    "that is data": "data",
    "that is a device": "/dev/null",
    "of an empty name": "",
    "of a name of 5,000 characters": LONG,
    "below a file": "recipe.yaml/model",
    "of a hub name that is not kept here": "owner/name",
    "that leads outside": "../../nowhere",
    "of a name in two lines": "no\nwhere",
    "of a name with a quote": "no'where",
    "of a name with a star": "no*where",
    "of an unknown character": "no\udcffwhere",
    "that begins with a dash": "./-model",
}
TAKES_A_MODEL: dict[str, tuple[str, str]] = {
    "eval": ("eval MODEL --data data --no-latency", ""),
    "eval --against": (f"{EVAL} --against MODEL", ""),
    "export": ("export MODEL --out out", ""),
    "history": ("history MODEL", ""),
    "teach --base": ("teach --base MODEL --task classification --data data --max-steps 1 --out out", ""),
    "check": ("check recipe.yaml --set teacher.model=MODEL", "that begins with a dash"),
    "plan": ("plan recipe.yaml --set teacher.model=MODEL", ""),
    "run": ("run recipe.yaml --out out --set teacher.model=MODEL", ""),
    "verify": ("verify MODEL", ""),
    "verify --against": ("verify export --against MODEL", ""),
    "predict": ("predict MODEL text", ""),
    "augment --model": ("augment data --rule tinybert --out new.jsonl --model MODEL", ""),
}
"""Command -> how it is written, with MODEL in its place."""


def quoted(value: str) -> str:
    return shlex.quote(value)


def of_models() -> list[Case]:
    cases = []
    for command, (words, _) in TAKES_A_MODEL.items():
        for name, value in MODELS.items():
            if ("--set" in words and any(character in value for character in "\n'*")) or not value:
                continue
            says = re.sub(r"\\?[\n\udcff]", ".+", re.escape(value.removeprefix("./")[:20]))
            quick = command in ("eval", "predict", "history") or name in ("that is not there", "that is data")
            cases.append(
                Case(
                    f"{command}: a model {name}",
                    words.replace("MODEL", quoted(value)),
                    says=says,
                    code=(1, 2),
                    after=None if command == "run" else nothing_made,
                    slow=not quick,
                )
            )
    return cases


DATA: dict[str, tuple[str, str]] = {
    "that is not there": ("nowhere", "nowhere"),
    "of no user": ("~nosuch/data", "~nosuch/data: no home folder is known"),
    "that is a model": ("model", "model"),
    "that is a recipe": ("recipe.yaml", "recipe.yaml: unknown format"),
    "that is a script": ("export/predict.py", "predict.py: unknown format"),
    "that is JSON of something else": ("export/export.json", "export.json: must be an object with a list 'data'"),
    "of an empty name": ("''", "."),
    "of a name of 5,000 characters": (LONG, "xxx"),
    "below a file": ("recipe.yaml/data", "recipe.yaml/data"),
    "that is an address": ("https://example.com/data.csv", "example.com"),
}
TAKES_DATA = {
    "eval": "eval model --data DATA --no-latency",
    "export": f"{EXPORT} --data DATA",
    "export --tune": f"{EXPORT} --tune latency --data DATA",
    "teach": "teach --base model --task classification --data DATA --max-steps 1 --out out",
    "check": "check recipe.yaml --set task.data=DATA",
    "plan": "plan recipe.yaml --set task.data=DATA",
    "run": "run recipe.yaml --out out --set task.data=DATA",
    "verify": "verify export --against model --data DATA",
    "augment": "augment DATA --rule bilstm --tagger data --out new.jsonl",
}
NOT_A_NUMBER = {"a word": "many", "nothing": "''", "another digit": "²", "two numbers": "'1 2'", "hexadecimal": "0x10"}
NUMBERS: dict[str, tuple[str, str, dict[str, str]]] = {
    "eval --margin": (
        EVAL,
        "margin",
        {"below zero": "-1", "not a number": "nan", "infinite": "inf", "too large": "1e999"},
    ),
    "eval --seed": (EVAL, "seed", {"below zero": "-1", "a fraction": "1.5", "of 5,000 digits": MOST_DIGITS}),
    "export --agreement": (
        EXPORT,
        "agreement",
        {"below zero": "-0.1", "above one": "1.1", "not a number": "nan", "infinite": "inf"},
    ),
    "export --least-score": (f"{EXPORT} --tune latency --data data", "least-score", {"not a number": "nan"}),
    "teach --epochs": (
        TEACH,
        "epochs",
        {"zero": "0", "below zero": "-1", "not a number": "nan", "infinite": "inf", "too many": "1e9"},
    ),
    "teach --max-steps": (
        TEACH.replace("--max-steps 1 ", ""),
        "max.steps",
        {"zero": "0", "below zero": "-1", "a fraction": "1.5"},
    ),
    "teach --learning-rate": (
        TEACH,
        "learning.rate",
        {"zero": "0", "below zero": "-1", "not a number": "nan", "infinite": "inf", "too large": "11"},
    ),
    "teach --batch-size": (TEACH, "batch.size", {"zero": "0", "below zero": "-1", "a fraction": "1.5"}),
    "teach --warmup-steps": (TEACH, "warmup.steps", {"a fraction": "1.5", "below zero": "-0.1", "not a number": "nan"}),
    "teach --patience": (TEACH, "patience", {"zero": "0", "below zero": "-1", "a fraction": "1.5"}),
    "teach --seed": (TEACH, "seed", {"below zero": "-1", "too large": "4294967296", "of 400 digits": DIGITS}),
    "augment --copies": (AUGMENT, "copies", {"below zero": "-1", "a fraction": "1.5", "of 5,000 digits": MOST_DIGITS}),
    "augment --replace": (AUGMENT, "replace", {"above one": "2", "below zero": "-1", "not a number": "nan"}),
    "augment --candidates": (AUGMENT, "candidates", {"zero": "0", "below zero": "-1", "a fraction": "1.5"}),
    "augment --mask": (AUGMENT, "mask", {"above one": "2", "below zero": "-1", "not a number": "nan"}),
    "augment --pos": (AUGMENT, "pos", {"above one": "2", "below zero": "-1", "not a number": "nan"}),
    "augment --ngram": (AUGMENT, "ngram", {"above one": "2", "below zero": "-1", "not a number": "nan"}),
    "augment --seed": (AUGMENT, "seed", {"below zero": "-1", "a fraction": "1.5"}),
    "init --layers": (
        INIT.replace("--layers 2 ", ""),
        "layers",
        {"zero": "0", "below zero": "-1", "a fraction": "1.5", "of 5,000 digits": MOST_DIGITS},
    ),
    "predict --batch-size": (
        "predict export text",
        "batch-size",
        {"zero": "0", "below zero": "-1", "a fraction": "1.5"},
    ),
    "predict --speed": (
        "predict export text",
        "speed",
        {"of a model without exits": "0.5", "above one": "2", "not a number": "nan", "infinite": "inf"},
    ),
}
"""Option -> the command without it, what the message must name, and values that it does not take."""


def of_numbers() -> list[Case]:
    return [
        Case(
            f"{option} {name}",
            f"{words} {option.split()[1]}={value}",
            says=says,
            after=nothing_made,
            slow=name in ("two numbers", "hexadecimal") or (words == TEACH and name == "nothing"),
        )
        for option, (words, says, values) in NUMBERS.items()
        for name, value in (values | NOT_A_NUMBER).items()
    ]


CHOICES: dict[str, tuple[str, str, str]] = {
    "eval --task": (EVAL, "nope", "nope"),
    "eval --task of another kind": (
        EVAL,
        "qa",
        "the fields 'id' and 'question' and 'context' and 'answers' are missing",
    ),
    "eval --metric": (EVAL, "nope", "metric.*nope"),
    "eval --metric of another kind": (EVAL, "pearson", "metric.*pearson"),
    "eval --split": (EVAL, "nope", "nope"),
    "eval --arithmetic": ("eval export --data data", "nope", "--arithmetic: got 'nope'"),
    "eval --arithmetic of a model": (EVAL, "avx2", "--arithmetic"),
    "eval --arithmetic of floats": ("eval export --data data", "avx2", "avx2|8-bit|int8"),
    "export --to": (EXPORT, "onyx", "--to: unknown target 'onyx'; did you mean 'onnx'"),
    "export --to nothing": (EXPORT, "''", "--to"),
    "export --tune": (f"{EXPORT} --data data", "nope", "--tune: got 'nope'"),
    "export --tune without data": (EXPORT, "latency", "--data"),
    "export --assets without web": (EXPORT, "data", "--assets"),
    "teach --task": ("teach --base model --data data --out out", "nope", "nope"),
    "teach --shape": (TEACH, "nope", "shape"),
    "teach --shape of broken YAML": (TEACH, "'layers: [1'", "shape|YAML"),
    "teach --shape of zero": (TEACH, "'layers: 0, hidden_size: 8, heads: 2'", "layers"),
    "teach --shape of words": (TEACH, "'layers: many'", "layers"),
    "teach --shape of heads that do not divide": (TEACH, "'layers: 1, hidden_size: 9, heads: 2'", "heads|hidden_size"),
    "teach --shape nested": (TEACH, "'{{{{{{{{}}}}}}}}'", "."),
    "teach --shape of an unknown field": (TEACH, "'nope: 1'", "nope"),
    "augment --rule": ("augment data --out new.jsonl", "nope", "rule.*nope"),
    "augment --split": (AUGMENT, "nope", "nope"),
    "augment --task": (AUGMENT, "nope", "--task: got 'nope'"),
    "augment --task of another kind": (AUGMENT, "qa", "question|'id'"),
    "augment --tagger": ("augment data --rule bilstm --out new.jsonl", "nope", "tagger|nope|spacy|spaCy"),
    "augment --mask-word": (AUGMENT, "''", "mask_word|mask-word"),
    "init --task": (INIT.replace("--task classification ", ""), "nope", "--task: got 'nope'"),
    "show": ("show", "", "TECHNIQUE"),
}
OTHER: list[Case] = [
    Case("all is well", EVAL, code=0),
    Case(
        "eval: columns of other names",
        "eval model --data odd.csv --no-latency",
        write("odd.csv", ODD),
        says="name their columns with task: .* in a recipe, or with --text and --label on the command line",
    ),
    Case(
        "eval: columns that are named", f"eval model --data odd.csv --no-latency {NAMED}", write("odd.csv", ODD), code=0
    ),
    Case(
        "eval: numbers of the labels",
        "eval model --data odd.csv --no-latency",
        write("odd.csv", "text,label\na warm film,1.0\na dull film,0.0\n"),
        says="labels: 0.0 = bad, 1.0 = good",
        code=0,
    ),
    Case(
        "eval: labels of another model",
        "eval model --data odd.csv --no-latency",
        write("odd.csv", "text,label\na warm film,warm\na dull film,dull\n"),
        says="^labels: the model answers bad, good, the data has dull, warm; rename those of the data\n$",
    ),
    Case(
        "predict: the folder of a run",
        "predict out a",
        lambda scene: shutil.copytree(scene / "export", scene / "out" / "export"),
        says="out: no export.json here; its exports are out/export",
    ),
    Case("check: nearly the name", "check recipe.yml", says=r"No such file .*; did you mean 'recipe.yaml'\?"),
    Case(
        "search: a recipe",
        "search recipe.yaml --out out",
        says=r"^recipe.yaml: is a recipe, which compress run runs; a budget has limits, .*template: recipe.yaml\}\n$",
    ),
    Case(
        "run: a budget",
        "run budget.yaml --out out",
        write("budget.yaml", "task: {kind: classification, data: data}\nlimits: [hours <= 1]\n"),
        says="^budget.yaml: is a budget; compress search budget.yaml finds a recipe within it\n$",
    ),
    Case(
        "eval: columns too many",
        f"eval model --data odd.csv --no-latency {NAMED} --text a --text b",
        write("odd.csv", ODD),
        says="reads text; name 1 column",
    ),
    Case(
        "distill: texts that are none",
        "distill artifact --data data --unlabelled none.txt --layers 1 --out out",
        write("none.txt", "\n"),
        says="unlabelled: none.txt has no text",
        after=nothing_made,
    ),
    Case("no such recipe", "check nowhere.yaml", says="nowhere.yaml"),
    Case("an empty recipe", "check recipe.yaml", write("recipe.yaml", ""), says="recipe.yaml"),
    Case("weights cut off", "eval model --data data", truncate("model/model.safetensors", 500), says="model"),
    Case("an export without its graph", "verify export", remove("export/model.onnx"), says="model.onnx"),
    *(
        Case(f"no argument: {command}", command, says="(?i)missing|must be given|Usage")
        for command in (
            "run",
            "check",
            "plan",
            "show",
            "augment",
            "eval",
            "eval model",
            "export",
            "export model",
            "verify",
            "history",
            "predict",
            "teach",
        )
    ),
    *(
        Case(f"an unknown option: {command}", f"{command} --nope", says="--nope")
        for command in (
            "run",
            "check",
            "plan",
            "list",
            "show",
            "init",
            "teach",
            "augment",
            "eval",
            "export",
            "verify",
            "history",
            "predict",
            "doctor",
        )
    ),
    *(
        Case(f"an argument too many: {command}", f"{command} toomuch", says="toomuch|got unexpected")
        for command in (
            "run recipe.yaml",
            "check recipe.yaml",
            "plan recipe.yaml",
            "list",
            "show prune.layers",
            "init",
            "teach",
            "eval model --data data",
            "export model --out out",
            "verify export",
            "history artifact",
            "doctor",
        )
    ),
    *(
        Case(f"an unknown command {name}", command, says=says)
        for name, command, says in (
            ("that is near", "evla model", "evla"),
            ("of 100,000 characters", "x" * 100_000, "characters left out"),
            ("that is empty", "''", "No such command"),
            ("in another alphabet", "überprüfe", "überprüfe"),
            ("that is an option", "--nope", "--nope"),
        )
    ),
    *(
        Case(f"show {name}", f"show {value}", says=says)
        for name, value, says in (
            ("an unknown technique", "prune.layer", "prune.layers"),
            ("nothing", "''", "technique|allowed"),
            ("a path", "../prune/layers.py", "layers.py"),
            ("a module", "os.system", "os.system"),
            ("a private name", "__class__.__name__", "__class__"),
            ("100,000 characters", "x" * 100_000, "unknown technique"),
            ("two lines", "'a\nb'", "a"),
        )
    ),
    *(
        Case(f"{command.split()[0]} --json {name}", f"{command} --json {value}", says=says, code=(1, 2))
        for command in (EVAL,)
        for name, value, says in (
            ("into no folder", "nowhere/x.json", "nowhere/x.json: its folder does not exist"),
            ("to a folder", "data", "data"),
            ("to a name of 5,000 characters", LONG, "xxx"),
            ("to nothing", "''", "."),
        )
    ),
    *(
        Case(f"{name}: --out {what}", f"{words} --out {value}", act, says=says, code=(1, 2))
        for name, words, kind in (
            ("export", "export model", "folder"),
            ("run", "run recipe.yaml", "folder"),
            ("teach", TEACH.replace(" --out out", ""), "folder"),
            ("augment", "augment data --rule bilstm --tagger data", "file"),
            ("init", INIT.replace(" --out new.yaml", ""), "file"),
        )
        for what, value, act, says, of in (
            ("over data", "data", (), "data", "folder file"),
            ("over a file", "recipe.yaml", (), "recipe.yaml", "folder file"),
            ("below a file", "recipe.yaml/out", (), "recipe.yaml", "folder file"),
            ("of 5,000 characters", LONG, (), "xxx", "folder file"),
            ("into no folder", "nowhere/x.file", (), "nowhere", "file"),
            ("over a link to itself", "loop", link("loop", "loop"), "loop", "folder file"),
        )
        if kind in of.split() and not (name == "init" and "no folder" in what)
    ),
    Case("export of an export", "export export --out out", says="is an export already"),
    Case("history of an export", "history export", says="is an export"),
    Case("verify of a model", "verify model", says="export.json"),
    Case("verify of an artifact", "verify artifact", says="export.json"),
    Case("verify against another model", "verify export --against model", says="other weights"),
    Case("verify --data alone", "verify export --data data", says="--data: is for --against"),
    Case("predict of data", "predict data text", says="export.json"),
    Case("predict of a model at a speed", "predict model text --speed 1", says="--speed: is for exports"),
    Case("predict of a column of no table", "predict export text --text a", says="--text: names a column of a table"),
    Case("predict of a file that is not there", "predict export --file nowhere.txt", says="nowhere.txt"),
    Case("predict of a folder", "predict export --file data", says="data: cannot be read"),
    Case("predict of a file of bytes", "predict export --file model/model.safetensors", says="line 1: not UTF-8"),
    Case("predict of texts and a file", "predict export text --file recipe.yaml", says="texts and --file"),
    Case("predict of a name of 5,000 characters", f"predict export --file {LONG}", code=(1, 2), says="xxx"),
    Case("predict of no user", "predict export --file ~nosuch/x", says="~nosuch"),
    Case(
        "predict of a line of 10 MB",
        "predict export",
        stdin=b"good " * 2_000_000 + b"\n",
        code=0,
        megabytes=500,
        slow=True,
    ),
    Case("predict of bytes", "predict export", stdin=b"\xff\xfe\n", says="line 1: not UTF-8"),
    Case("predict of zeros", "predict export", stdin=b"\x00\n", code=0),
    Case("predict of half a character", "predict export", stdin=b'{"text": "\\ud83d"}\n', code=0),
    Case("predict of JSON nested deeply", "predict export", stdin=b'{"text": ' + b"[" * 100_000 + b"\n", code=0),
    Case("predict of a number", "predict export", stdin=b'{"text": 7}\n', says="example 1: text must be a text"),
    Case("predict of nothing", "predict export", stdin=b"", code=0),
    Case("tune and 8 bits", f"{EXPORT} --tune latency --data data --int8", says="--tune: chooses"),
    Case(
        "tune for a target without variants", f"{EXPORT} --tune latency --data data --to web", says="--tune: measures"
    ),
    Case("least score without tune", f"{EXPORT} --least-score 0.5", says="--least-score"),
    Case("assets that are not there", "export model --to web --out out --assets nowhere", says="nowhere: lacks"),
    Case("augment over a file", "augment data --rule bilstm --tagger data --out recipe.yaml", says="is there already"),
    Case("augment with a field of the other rule", f"{AUGMENT} --model model", says="model"),
    Case("teach of a recipe and flags", "teach --recipe recipe.yaml --base model", says="--base: the recipe says this"),
    Case("teach of a recipe without a training task", "teach --recipe recipe.yaml", says="nothing to teach"),
    Case(
        "run over an earlier run of another recipe",
        "run recipe.yaml --out out --set seed=7",
        (folder("out"), write("out/recipe.yaml", "name: other\n")),
        says="out",
    ),
    Case("resume of nothing", "run recipe.yaml --out out --resume", write("out/x", "y"), code=(0, 2), says=""),
    Case("an argument file", "check @recipe.yaml", says="@recipe.yaml"),
    Case("a variable", "check '$HOME'", says="HOME"),
]

CASES = [
    *OTHER,
    *of_models(),
    *(
        Case(
            f"{command}: data {name}",
            words.replace("DATA", value),
            says=says,
            code=(1, 2),
            after=nothing_made,
            slow=command in ("run", "export --tune", "plan", "verify", "export"),
        )
        for command, words in TAKES_DATA.items()
        for name, (value, says) in DATA.items()
        if not ("--set" in words and name == "of an empty name")
    ),
    *of_numbers(),
    *(
        Case(
            option,
            f"{words} {option.split()[1]} {value}" if " " in option else f"{words} {value}",
            says=says,
            after=nothing_made,
        )
        for option, (words, value, says) in CHOICES.items()
    ),
]
test_case = table(CASES, quick=12)
