"""Every shipped recipe, run whole at tiny size through the command line."""

import json
from pathlib import Path

import pytest

from compress.artifact.artifact import load, load_model
from compress.cli import main
from compress.recipe import parse_recipe, read_recipe, recipe_to_yaml
from compress.recipe.head_block import HeadBlock
from eval.kinds.kind_registry import kind_of
from eval.task import Examples
from teachers.taskmodel import save_taskmodel
from teachers.training.config import Training
from tests.tiny import at_first, tiny_spec, tiny_task, tiny_taskmodel

ROOT = Path(__file__).parents[2]
RECIPES = sorted(path for path in (ROOT / "compress" / "recipes").glob("*.yaml") if "pretrain:" not in path.read_text())
"""All but those that begin with text alone, which tests/recipes/test_pretraining.py runs."""
QUICK = (
    "banking77-predictions",
    "conll2003",
    "glue-mtdnn",
    "goemotions",
    "squad2",
    "sst2-few-labels",
    "sst2-to-albert",
    "swag",
    "translate-de-en",
    "wiki-distilbert",
    "wiki-distilgpt2",
)
"""Those that the default tests run, one of each kind of task, teacher, student and export; slow tests run the others,
whose techniques the conformance battery runs by default."""


def write_data(task, folder):
    folder.mkdir(parents=True)
    if kind_of(task.spec.kind).searches:
        write_beir(task, folder)
        return
    for name, examples in task.splits.items():
        if task.spec.kind == "qa":
            paragraphs = [
                {"context": e["context"], "qas": [{k: e[k] for k in ("id", "question", "answers")}]} for e in examples
            ]
            (folder / f"{name}.json").write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
        else:
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(dict(e)) + "\n" for e in examples))


def write_beir(task, folder):
    """Write the queries of a task, their documents and judgements in the layout of BEIR."""
    corpus = task.splits["test"][0]["corpus"]
    names = {text: one for one, text in zip(corpus.ids, corpus.texts, strict=True)}

    def asked(example):
        if "id" in example:
            return example
        return {  # a pair that a reranker learns from
            "id": example["group"],
            "text": example["text_a"],
            "relevant": {names[example["text_b"]]: example["label"]},
        }

    queries = {name: [asked(e) for e in split if "id" in e or e.get("label")] for name, split in task.splits.items()}
    documents = [{"_id": one, "text": text} for one, text in zip(corpus.ids, corpus.texts, strict=True)]
    texts = [{"_id": e["id"], "text": e["text"]} for examples in queries.values() for e in examples]
    for name, rows in (("corpus", documents), ("queries", texts)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "qrels").mkdir()
    for name, examples in queries.items():
        lines = [f"{e['id']}\t{document}\t{grade}\n" for e in examples for document, grade in e["relevant"].items()]
        (folder / "qrels" / f"{name}.tsv").write_text("".join(["query-id\tcorpus-id\tscore\n", *lines]))


def task_for(recipe):
    """Return a tiny task of the recipe's form; of a reranker, with four passages for each query."""
    kind, metric = recipe.task.kind, recipe.task.metric
    taught = recipe.teacher.finetune
    ranks = any(step.name in ("distill.margin_mse", "distill.listwise") for step in recipe.steps)
    ranks = ranks or bool(taught and taught.loss and taught.loss.ranking)
    paired = ranks or bool(taught and taught.head)
    task = tiny_task(kind, pair=paired or kind == "regression" or (kind == "embedding" and metric == "spearman"))
    for name, examples in task.splits.items() if ranks else ():
        lines = [{**example, "text_a": examples[i // 4 * 4]["text_a"]} for i, example in enumerate(examples)]
        task.splits[name] = Examples(lines, name)
    return task


def several_tasks(recipe, folder):
    """Return what makes the tasks of a recipe tiny; those with a number or of a ranker are pairs."""
    values = []
    for name, block in recipe.tasks.items():
        paired = block.kind in ("regression", "embedding") or block.loss is not None or block.head is not None
        task = tiny_task(block.kind, pair=paired)
        write_data(task, folder / "data" / name)
        values += [f"tasks.{name}.data={folder / 'data' / name}"]
    base = folder / "base"
    base.mkdir()
    save_taskmodel(tiny_taskmodel("bert", tiny_spec("masked-lm")), base)
    values += [f"teacher.model={base}", "teacher.finetune.max_steps=6", "teacher.finetune.batch_size=8"]
    again = recipe.teacher.finetune.per_task is not None
    return values + [f"teacher.finetune.per_task.{least}" for least in ("max_steps=2", "batch_size=8") if again]


def tiny_step(number, step, own_training):
    """Return what makes a step short, in all of its stages, and fit the tiny width."""
    blocks = [f"steps.{number}.{field}" for field, value in step if isinstance(value, Training) and own_training]
    fitting = [f"steps.{number}.relation_heads=8"] if hasattr(step, "relation_heads") else []
    if step.name == "distill.dual":
        fitting += [f"steps.{number}.hidden_size=16", f"steps.{number}.vocab_size=80"]
    if getattr(step, "dimensions", ()):
        fitting.append(f"steps.{number}.dimensions=[32, 8]")
    if step.name == "share.embeddings":
        fitting.append(f"steps.{number}.size=8")
    return fitting + [f"{block}.{least}" for block in blocks for least in ("max_steps=3", "batch_size=8")]


def tiny_augmentation(block, kind, folder):
    """Return what makes augmentation quick: few copies, two texts, of words for a tagger, words of a tiny network."""
    values = [] if block is None or block.rule is None else ["augment.copies=2"]
    if block is not None and block.unlabelled is not None:
        file, lines = ("unlabelled.txt", "some text\nmore text\n")
        if kind == "tagging":
            file, lines = "unlabelled.jsonl", '{"tokens": ["some", "text"]}\n{"tokens": ["more", "text", "."]}\n'
        (folder / file).write_text(lines)
        values.append(f"augment.unlabelled={folder / file}")
    if block is not None and block.model is not None:
        (folder / "words").mkdir()
        save_taskmodel(tiny_taskmodel("bert", tiny_spec("masked-lm")), folder / "words")
        values.append(f"augment.model={folder / 'words'}")
    return values


def tiny_teacher(block, task, folder):
    """Return what makes the teacher a tiny network, or a file with the labels of all examples as predictions."""
    if block.predictions is not None:
        lines = [json.dumps(dict(example)) + "\n" for split in task.splits.values() for example in split]
        (folder / "predictions.jsonl").write_text("".join(lines))
        return [f"teacher.predictions.file={folder / 'predictions.jsonl'}"]
    if block.new is not None:
        shape = ("layers=2", "decoder_layers=2", "hidden_size=32", "heads=4", "intermediate_size=64")
        return ["teacher.new.tokenizer.size=330", *(f"teacher.new.network.{value}" for value in shape)]
    (folder / "teacher").mkdir()
    family = "t5" if kind_of(task.spec.kind).writes else "gpt2" if "gpt2" in str(block.model) else "bert"
    save_taskmodel(tiny_taskmodel(family, task.spec, num_hidden_layers=6), folder / "teacher")
    return [f"teacher.model={folder / 'teacher'}"]


def tiny_adapters(block, task, base, folder):
    """Return what names knowledge adapters over a tiny base, if the recipe's head stands on some."""
    head = block.finetune.head if block.finetune is not None else None
    if head is None or head.k_adapter is None or not head.k_adapter.adapters:
        return []
    made = HeadBlock.model_validate("k_adapter").on(load_model(base, task.spec), task.spec, seed=1)
    (folder / "adapter").mkdir()
    save_taskmodel(made, folder / "adapter")
    count = len(head.k_adapter.adapters)
    return [f"teacher.finetune.head.k_adapter.adapters=[{', '.join([str(folder / 'adapter')] * count)}]"]


def tiny_facts(block, folder):
    """Return what names a file of facts about words of the tiny tasks, if the recipe's head reads facts."""
    head = block.finetune.head if block.finetune is not None else None
    if head is None or head.k_bert is None:
        return []
    (folder / "facts.tsv").write_text("paris\tis\ta place\nann\tis\ta person\n")
    return [f"teacher.finetune.head.k_bert.triples={folder / 'facts.tsv'}"]


def tiny_lengths(block):
    """Return what makes texts short, those that are read and those that are written."""
    values = [] if block.max_length is None else ["task.max_length=64"]
    return values if block.target_length is None else [*values, "task.target_length=12"]


@pytest.fixture
def tiny_overrides(tmp_path, monkeypatch):
    """Return what makes a recipe tiny: its data, its teacher, and a few optimizer steps."""
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("COMPRESS_BASE", raising=False)  # a recipe's own default says of which family its teacher is

    def overrides(path):
        recipe = read_recipe(path)
        if recipe.tasks:
            return several_tasks(recipe, tmp_path)
        task = task_for(recipe)
        write_data(task, tmp_path / "data")
        values = [f"task.data={tmp_path / 'data'}", "task.columns={}", *tiny_teacher(recipe.teacher, task, tmp_path)]
        values += tiny_adapters(recipe.teacher, task, tmp_path / "teacher", tmp_path)
        values += tiny_facts(recipe.teacher, tmp_path)
        if recipe.teacher.finetune is not None:
            blocks = ["teacher.finetune"] + ["teacher.finetune.in_domain"] * (
                recipe.teacher.finetune.in_domain is not None
            )
            values += [f"{block}.{least}" for block in blocks for least in ("max_steps=3", "batch_size=8")]
        if recipe.student is not None and recipe.student.from_ != "teacher":
            (tmp_path / "student").mkdir()
            save_taskmodel(tiny_taskmodel("mobilebert", tiny_spec("masked-lm")), tmp_path / "student")
            values.append(f"student.from={tmp_path / 'student'}")
        if recipe.training is not None:
            values += ["training.max_steps=3", "training.batch_size=8"]
        for number, step in enumerate(recipe.steps):
            values += tiny_step(number, step, recipe.training is None)
            if getattr(step, "cross_encoder", None):
                (tmp_path / "cross").mkdir()
                save_taskmodel(tiny_taskmodel("bert", tiny_spec("regression", pair=True)), tmp_path / "cross")
                values.append(f"steps.{number}.cross_encoder={tmp_path / 'cross'}")
        for split in recipe.task.files or ():
            (tmp_path / "more.txt").write_text("some text\nmore text\n")
            values.append(f"task.files.{split}={tmp_path / 'more.txt'}")
        values += tiny_augmentation(recipe.augment, task.spec.kind, tmp_path)
        for number, block in enumerate(recipe.export):  # after three steps predictions are near ties; int8 turns some
            values.append(f"export.{number}.{block.target}.agreement=0.5")
        if recipe.evaluate is not None:
            values.append("evaluate.latency=null")
        return values + tiny_lengths(recipe.task)

    return overrides


@pytest.mark.parametrize("name", [path.stem for path in RECIPES])
def test_a_recipe_is_read_and_written_alike(name):
    recipe = read_recipe(ROOT / "compress" / "recipes" / f"{name}.yaml")
    assert parse_recipe(recipe_to_yaml(recipe)) == recipe


@pytest.mark.parametrize("name", at_first([path.stem for path in RECIPES], *QUICK))
def test_a_recipe_runs_whole(name, tiny_overrides, tmp_path, capsys):
    path = ROOT / "compress" / "recipes" / f"{name}.yaml"
    sets = [word for value in tiny_overrides(path) for word in ("--set", value)]
    recipe = read_recipe(path, sets[1::2])
    assert main(["check", str(path), *sets]) == 0, capsys.readouterr().err
    if recipe.tasks:
        assert main(["teach", "--recipe", str(path), *sets, "--out", str(tmp_path / "out")]) == 0, (
            capsys.readouterr().err
        )
        for name, block in recipe.tasks.items():
            assert load(tmp_path / "out" / name).task.kind == block.kind
        return
    if not recipe.steps:
        assert main(["teach", "--recipe", str(path), *sets, "--out", str(tmp_path / "out")]) == 0, (
            capsys.readouterr().err
        )
        assert load(tmp_path / "out").task.kind == recipe.task.kind
        return
    out = tmp_path / "out"
    assert main(["run", str(path), *sets, "--out", str(out)]) == 0, capsys.readouterr().err
    artifact = load(out / "model")
    techniques = [record.technique for record in artifact.lineage]
    assert techniques[-len(recipe.steps) :] == [step.name for step in recipe.steps]
    for block in recipe.export:
        assert (out / block.target / "model.onnx").is_file()
        wanted = block.settings.int8 or bool(
            {"quantize.dynamic", "quantize.static", "quantize.q8bert"} & set(techniques)
        )
        assert (out / f"{block.target}-int8" / "model.onnx").is_file() == wanted
    if recipe.evaluate is not None:
        check_report(out, recipe)
    capsys.readouterr()
    assert main(["history", str(out / "model")]) == 0
    assert all(step.name in capsys.readouterr().out for step in recipe.steps[:1])


def check_report(out, recipe):
    figures = json.loads((out / "results.json").read_text())
    named = {result["name"] for result in figures}
    assert {"teacher", recipe.name} <= named
    assert ("no teacher" in named) == recipe.evaluate.baseline
    assert "<html" in (out / "report.html").read_text()
    assert recipe.name in (out / "model" / "README.md").read_text()
    assert all(result["examples"] == figures[0]["examples"] for result in figures)


def test_a_finished_run_resumes_to_the_same_thing(tiny_overrides, tmp_path, capsys):
    path = ROOT / "compress" / "recipes" / "demo.yaml"
    sets = [word for value in tiny_overrides(path) for word in ("--set", value)]
    out = tmp_path / "out"
    assert main(["run", str(path), *sets, "--out", str(out)]) == 0
    digest = load(out / "model").digest
    assert main(["run", str(path), *sets, "--out", str(out)]) == 2
    assert "add --resume to go on" in capsys.readouterr().err
    assert main(["run", str(path), *sets, "--out", str(out), "--resume"]) == 0
    assert load(out / "model").digest == digest
    assert main(["run", str(path), *sets, "--set", "seed=77", "--out", str(out), "--resume"]) == 2
    assert "holds a run of another recipe" in capsys.readouterr().err
