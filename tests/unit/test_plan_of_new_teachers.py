"""What ``compress plan`` says of a teacher that is still to be made is what it will be: words, texts, number."""

import json

import pytest

from compress.engine import cost_plan
from compress.engine.preparation import read_roles
from compress.recipe import parse_recipe
from compress.testing.tiny import tiny_task
from eval.data.sources import find_sources
from teachers.pretraining.network import network_for, save_untrained, tokenizer_for
from teachers.pretraining.settings import Pretraining
from teachers.pretraining.text import tokenizer_training
from teachers.taskmodel import load_taskmodel

RECIPE = """
task: {{kind: classification, data: {place}/data, max_length: 64}}
teacher:
  new: {{tokenizer: {{kind: {kind}}}, network: {{layers: 1, hidden_size: 16, heads: 2, max_positions: 64}}}}
  finetune: {{epochs: 1, seed: [1, 2]}}
student: {{from: teacher}}
steps: [distill.logits: {{epochs: 1}}]
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(cost_plan, "MEASURED_SECONDS", 0)
    (tmp_path / "data").mkdir()
    for name, split in tiny_task("classification", examples=60).splits.items():
        lines = "".join(json.dumps(dict(item)) + "\n" for item in split)
        (tmp_path / "data" / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("kind", ["bytes", "wordpiece"])
def test_a_new_network_is_planned_as_it_will_be(place, kind):
    recipe = parse_recipe(RECIPE.format(place=place, kind=kind))
    plan = cost_plan.make_plan(recipe)
    assert not (place / "home").exists(), "a plan keeps nothing"
    task = read_roles(recipe).task
    made = load_taskmodel(recipe.teacher.new.made(task.train, task.spec, recipe.seed), task.spec)
    assert [row.name for row in plan.sizes] == ["teacher 1", "teacher 2", "student"]
    assert {row.parameters for row in plan.sizes} == {made.size().parameters}
    tokens = [len(feature.ids) for feature in made.encoder.encode(task.train)]
    assert {row.tokens for row in plan.steps} == {sum(tokens) / len(tokens)}
    fitted = [row.name for row in plan.steps if "finetune" in row.name]
    assert fitted == ["teacher 1.finetune", "teacher 2.finetune"]


def test_words_of_the_domain_that_come_first_are_planned(place):
    text = RECIPE.format(place=place, kind="wordpiece")
    recipe = parse_recipe(text.replace("seed: [1, 2]", "in_domain: {epochs: 2, batch_size: 8}"))
    with_words, alone = cost_plan.make_plan(recipe), cost_plan.make_plan(parse_recipe(text))
    task = read_roles(recipe).task
    texts = len({example["text"] for example in (*task.train, *task.splits.get("unlabeled", ()))})
    row = with_words.steps[0]
    assert (row.name, row.rows, row.updates) == ("teacher.finetune.in_domain", texts, 2 * -(-texts // 8))
    assert row.seconds > 0
    assert "in_domain" not in {step.name.rpartition(".")[2] for step in alone.steps}


def test_of_a_long_text_the_beginning_is_read_and_the_table_is_full(place, monkeypatch):
    monkeypatch.setattr(tokenizer_training, "MOST_READ", 100)
    recipe = parse_recipe(RECIPE.format(place=place, kind="bytes"))
    own = recipe.teacher.new
    (place / "model").mkdir()
    task = recipe.task.load(1)
    own.save(place / "model", task.train, task.spec, 1, untrained=True)
    assert load_taskmodel(place / "model").model.config.vocab_size == own.tokenizer.size


def test_a_network_to_be_pretrained_is_planned_as_it_will_be(place):
    (place / "text").mkdir()
    (place / "text" / "train.txt").write_text("The film was warm and bright.\nNobody liked the dull end.\n" * 20)
    block = Pretraining.model_validate(
        {
            "text": [str(place / "text")],
            "tokenizer": {"kind": "bytes"},
            "network": {"family": "roberta", "layers": 1, "hidden_size": 16, "heads": 2, "max_positions": 64},
            "stages": [{"tasks": {"words": {"objectives": "mlm"}}}],
        }
    )
    (place / "model").mkdir()
    save_untrained(block, place / "model", 1)
    stands = load_taskmodel(place / "model")
    tokenizer = tokenizer_for(block, [find_sources(str(place / "text"), {})["train"]])
    will_be = network_for(block.network, tokenizer, "masked", 1)
    assert stands.size().parameters == will_be.size().parameters
    assert stands.tokenizer.tokenize("Nobody liked the warm film.") == tokenizer.tokenize("Nobody liked the warm film.")


def test_too_few_pieces_are_refused_before_anything_is_made(place):
    recipe = parse_recipe(RECIPE.format(place=place, kind="bytes").replace("kind: bytes", "kind: bytes, size: 150"))
    with pytest.raises(tokenizer_training.UserError, match=r"tokenizer\.size: 150 pieces are too few for bytes"):
        cost_plan.make_plan(recipe)
