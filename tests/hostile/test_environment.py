"""Variables, streams and the terminal: what a command finds around it, and what of it can be missing or broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.forking import Ending
from tests.hostile.case import Case, table
from tests.hostile.damage import Damage, device, json_set, write

FULL = device("full", 7)
EVAL = "eval model --data data --no-latency"
ANSWERING = {
    "list": "list",
    "list as JSON": "list --json",
    "pairs": "list --pairs",
    "show": "show distill.logits",
    "show as JSON": "show distill.logits --json",
    "check": "check recipe.yaml",
    "check as JSON": "check recipe.yaml --json",
    "plan": "plan recipe.yaml",
    "plan as JSON": "plan recipe.yaml --json",
    "history": "history artifact",
    "history as JSON": "history artifact --json",
    "doctor": "doctor",
    "doctor as JSON": "doctor --json",
    "predict": "predict export good bad",
    "predict.py": "export/predict.py good bad",
    "eval": EVAL,
    "eval as JSON": f"{EVAL} --json -",
    "verify": "verify export",
    "export": "export model --out out",
    "version": "--version",
    "help": "--help",
    "help of a command": "eval --help",
}
SLOW = ("verify", "export", "plan as JSON", "history as JSON", "check as JSON", "pairs", "show as JSON", "doctor")


def fifo(name: str) -> Damage:
    def act(scene: Path) -> None:
        import os

        os.mkfifo(scene / name)

    return act


def named_in_umlauts(scene: Path) -> None:
    """Rename the labels of the model and of the data to words that are not ASCII."""
    for file in ("train", "validation", "test"):
        path = scene / "data" / f"{file}.jsonl"
        path.write_text(path.read_text("utf-8").replace('"good"', '"schön 🙂"').replace('"bad"', '"übel"'), "utf-8")
    json_set("model/task.json", "labels", ["übel", "schön 🙂"])(scene)
    json_set("model/config.json", "id2label", {"0": "übel", "1": "schön 🙂"})(scene)
    json_set("model/config.json", "label2id", {"übel": 0, "schön 🙂": 1})(scene)


def json_lines(*labels: str) -> Callable[[Path, Ending], None]:
    def look(_: Path, ending: Ending) -> None:
        assert [json.loads(line)["label"] for line in ending.out.splitlines()] == list(labels)

    return look


def prints_json(_: Path, ending: Ending) -> None:
    assert json.loads(ending.out)


def made(name: str) -> Callable[[Path, Ending], None]:
    def look(scene: Path, _: Ending) -> None:
        assert (scene / name).exists()

    return look


def not_made(name: str) -> Callable[[Path, Ending], None]:
    def look(scene: Path, _: Ending) -> None:
        assert not (scene / name).exists()

    return look


def of_streams() -> list[Case]:
    cases = []
    for name, command in ANSWERING.items():
        slow = name in SLOW
        cases += [
            Case(
                f"standard output is full: {name}",
                command,
                FULL,
                streams={"stdout": "full"},
                code=1,
                says="the disk is full.*standard output",
                slow=slow,
            ),
            Case(
                f"standard output is closed: {name}",
                command,
                streams={"stdout": "closed"},
                code=1,
                says="standard output is closed.*/dev/null",
                slow=slow,
            ),
            Case(f"nobody reads standard output: {name}", command, streams={"stdout": "broken"}, code=1, slow=slow),
            Case(f"standard error is full: {name}", command, FULL, streams={"stderr": "full"}, code=0, slow=slow),
            Case(f"standard error is closed: {name}", command, streams={"stderr": "closed"}, code=0, slow=slow),
            Case(f"nobody reads standard error: {name}", command, streams={"stderr": "broken"}, code=0, slow=True),
            Case(f"standard input is closed: {name}", command, streams={"stdin": "closed"}, code=0, slow=slow),
            Case(f"ASCII output: {name}", command, env={"PYTHONIOENCODING": "ascii"}, code=0, slow=slow),
        ]
    return cases


CASES = [
    *of_streams(),
    *(
        Case(f"an error to a standard error that is {name}: {words}", words, FULL, streams={"stderr": what}, code=2)
        for name, what in {"full": "full", "closed": "closed", "broken": "broken"}.items()
        for words in ("check nowhere.yaml", "eval --nope", "predict nowhere text", "export/predict.py --nope")
    ),
    *(
        Case(
            f"all streams are {what}: {command}",
            command,
            FULL,
            code=code,
            slow=True,
            streams={"stdin": "closed", "stdout": what, "stderr": what},
        )
        for what, code in (("closed", 1), ("full", 1), ("broken", 1))
        for command in ("list", EVAL, "predict export good", "export/predict.py good")
    ),
    *(
        Case(
            f"a process of its own: {command}: {name} {what}",
            command,
            FULL,
            fresh=True,
            slow=True,
            code=code,
            streams={name: what},
            env={"PYTHONPATH": str(Path(__file__).parents[2])},
        )
        for command in ("list", "export/predict.py good")
        for name, what, code in (
            ("stdout", "full", 1),
            ("stdout", "closed", 1),
            ("stdout", "broken", 1),
            ("stderr", "full", 0),
            ("stderr", "closed", 0),
            ("stdin", "closed", 0),
        )
    ),
    Case(
        "Ctrl-C: predict",
        "predict export",
        fifo("endless"),
        streams={"stdin": "endless"},
        interrupt=2,
        code=130,
        says="stopped",
    ),
    Case(
        "Ctrl-C: predict.py",
        "export/predict.py",
        fifo("endless"),
        streams={"stdin": "endless"},
        interrupt=2,
        code=130,
        says="stopped",
    ),
    Case(
        "Ctrl-C: init",
        "init --out out.yaml",
        fifo("endless"),
        streams={"stdin": "endless"},
        interrupt=1,
        code=130,
        says="stopped",
    ),
    Case("Ctrl-C: eval", EVAL.replace("--no-latency", "--latency"), interrupt=0.3, code=130, says="stopped"),
    *(
        Case(f"RANK={value}", "check recipe.yaml", env={"RANK": value}, says=f"RANK: got '{value}', must be a whole")
        for value in ("nope", "-1", "²", "")
    ),
    Case("no input: predict", "predict export", streams={"stdin": "closed"}, code=0),
    Case("no input: predict.py", "export/predict.py", streams={"stdin": "closed"}, code=0),
    Case("no input: init", "init --out out.yaml", streams={"stdin": "closed"}, says="--task, --data"),
    Case("no input: teach", "teach", streams={"stdin": "closed"}, says="--base, --task, --data"),
    Case(
        "ASCII: labels of other alphabets",
        "predict exported good",
        named_in_umlauts,
        env={"PYTHONIOENCODING": "ascii"},
        says="exported",
    ),
    Case(
        "ASCII: a report of labels of other alphabets",
        EVAL,
        named_in_umlauts,
        code=0,
        env={"PYTHONIOENCODING": "ascii"},
    ),
    Case(
        "ASCII: an error in another alphabet",
        "check möglich.yaml",
        says=r"m\\xf6glich|möglich",
        env={"PYTHONIOENCODING": "ascii"},
    ),
    Case(
        "ASCII: JSON of labels of other alphabets",
        f"{EVAL} --json -",
        named_in_umlauts,
        code=0,
        env={"PYTHONIOENCODING": "ascii"},
        after=prints_json,
    ),
    Case(
        "latin-1: JSON of labels of other alphabets",
        "check recipe.yaml --json",
        named_in_umlauts,
        code=0,
        env={"PYTHONIOENCODING": "latin-1"},
        after=prints_json,
    ),
    *(
        Case(
            f"ASCII: words that are not: {command}",
            f"{command} 'schön 🙂' good",
            code=0,
            env={"PYTHONIOENCODING": "ascii"},
        )
        for command in ("predict export", "export/predict.py")
    ),
    *(
        Case(
            f"OMP_NUM_THREADS={value}: {name}",
            command,
            env={"OMP_NUM_THREADS": value},
            code=0,
            slow=name == "eval of the export",
        )
        for value in ("²", "", "0", "-1", "many", "1.5", "٣", "99999999999999999999", "1,2")
        for name, command in {
            "predict": "predict export good",
            "predict.py": "export/predict.py good",
            "eval of the export": "eval export --data data --no-latency",
        }.items()
    ),
    *(
        Case(f"--threads {value}", f"export/predict.py good --threads {value}", says="threads")
        for value in ("100000", "0", "-3", "many", "1.5", "²", "9" * 400)
    ),
    *(
        Case(f"--batch-size {value}: {command}", f"{command} good --batch-size {value}", says="batch-size")
        for value in ("0", "-3", "many", "1.5", "²", "9" * 5000)
        for command in ("predict export", "export/predict.py")
    ),
    *(
        Case(
            f"MPLBACKEND={value}",
            f"{EVAL} --html out.html",
            env={"MPLBACKEND": value},
            code=0,
            changes=("out.html",),
            after=made("out.html"),
            fresh=True,
            slow=True,
        )
        for value in ("nope", "module://matplotlib_inline.backend_inline", "", "TkAgg")
    ),
    *(
        Case(
            f"ACCELERATE_MIXED_PRECISION={value}: {name}",
            command,
            env={"ACCELERATE_MIXED_PRECISION": value},
            says=f"ACCELERATE_MIXED_PRECISION.*{value}.*no, bf16.*fp16",
            after=not_made("out") if name == "teach" else None,
        )
        for value in ("nope", "BF16", "fp8", "float16", "1")
        for name, command in {
            "run": "run recipe.yaml --out out",
            "teach": "teach --base model --task classification --data data --epochs 1 --out out",
        }.items()
    ),
    *(
        Case(
            f"ACCELERATE_MIXED_PRECISION={value} is allowed",
            "run recipe.yaml --out out",
            env={"ACCELERATE_MIXED_PRECISION": value},
            code=0,
            slow=True,
        )
        for value in ("no", "bf16", "")
    ),
    *(
        Case(
            f"COMPRESS_HOME={value!r}",
            "run recipe.yaml --out out",
            env={"COMPRESS_HOME": value},
            code=code,
            says=says,
            changes=(value,) if code == 0 else (),
            slow=code == 0,
        )
        for value, code, says in (
            ("~nosuch", 2, "~nosuch"),
            ("~nosuch/below", 2, "~nosuch"),
            ("home\x7f", 0, ""),
        )
    ),
    *(
        Case(f"{variable}={value!r}: {name}", command, env={variable: value}, code=(0, 2))
        for variable, value in (("COMPRESS_HOME", "~nosuch"), ("COMPRESS_HOME", "recipe.yaml/below"))
        for name, command in {
            "doctor": "doctor",
            "check": "check recipe.yaml",
            "plan": "plan recipe.yaml",
            "eval": EVAL,
        }.items()
    ),
    *(
        Case(
            f"a recipe's variable: {name}",
            "check recipe.yaml",
            write("recipe.yaml", f"name: {text}\n"),
            env=env,
            says=says,
        )
        for name, text, env, says in (
            ("not set", "${NOT_SET_ANYWHERE}", {}, r"recipe\.yaml:1: .*NOT_SET_ANYWHERE is not set"),
            ("no name", "${}", {}, r"recipe\.yaml:1: .*\$\{\}"),
            ("not closed", "'${OPEN'", {}, r"recipe\.yaml:1: .*OPEN"),
            ("of a megabyte", "${LONG}", {"LONG": "x" * 100_000}, r"recipe\.yaml:1: .*name"),
            ("of several lines", "${LINES}", {"LINES": "a\nb"}, r"recipe\.yaml:1: .*name"),
            ("of half a character", "${HALF}", {"HALF": "a\udcff"}, r"recipe\.yaml:1: .*name"),
            ("a number in the name", "${1}", {}, r"recipe\.yaml:1: .*\$\{1\}"),
            ("nested", "${A:-${B}}", {}, r"recipe\.yaml:1: "),
        )
    ),
    Case(
        "a variable with a secret stays out of messages",
        "check recipe.yaml",
        write("recipe.yaml", "seed: $SECRET\n"),
        env={"SECRET": "hunter2"},
        says="seed",
    ),
    *(
        Case(f"{variable}={value!r} does no harm", "check recipe.yaml", env={variable: value}, code=0)
        for variable, value in (
            ("COLUMNS", "nope"),
            ("COLUMNS", "1"),
            ("COLUMNS", "-5"),
            ("TERM", "nope"),
            ("HF_HUB_OFFLINE", "maybe"),
            ("TOKENIZERS_PARALLELISM", "nope"),
            ("NO_COLOR", "1"),
            ("FORCE_COLOR", "1"),
            ("TMPDIR", "/nowhere"),
            ("HOME", "/nowhere"),
            ("HOME", ""),
            ("LANG", "nope"),
            ("LC_ALL", "xx_YY"),
            ("XDG_CACHE_HOME", "~nosuch"),
        )
    ),
    *(
        Case(f"{name}=² is refused", "check recipe.yaml", env={name: "²"}, says=f"{name}: got .*a whole number")
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    ),
    *(
        Case(f"COMPRESS_DEBUG={value}", "list", env={"COMPRESS_DEBUG": value}, code=code, says=says)
        for value, code, says in (("maybe", 2, "COMPRESS_DEBUG"), ("²", 2, "COMPRESS_DEBUG"), ("0", 0, ""))
    ),
]
test_case = table(CASES, quick=10)
