"""The objective block: weighted sums of distillations, as values, in YAML, and as one training step."""

import pytest
from pydantic import ValidationError

from compress.objective import ObjectiveBlock
from compress.recipe import parse_recipe, recipe_to_yaml
from eval.errors import UserError

TERMS = {"distill.logits": {"temperature": 4.0, "alpha": 1.0, "weight": 3.0}, "distill.labels": {}, "distill.pkd": {}}


def test_it_is_written_as_it_is_read():
    block = ObjectiveBlock.model_validate(TERMS)
    assert [(term.technique.name, term.weight) for term in block.terms] == [
        ("distill.logits", 3.0),
        ("distill.labels", 1.0),
        ("distill.pkd", 1.0),
    ]
    assert ObjectiveBlock.model_validate(block.model_dump()) == block
    assert hash(block) == hash(ObjectiveBlock.model_validate(TERMS))
    assert block.model_dump(exclude_unset=True) == TERMS
    assert block.model_dump()["distill.pkd"]["beta"] == 500.0
    assert block.needed() == {"train", "teacher"}
    assert ObjectiveBlock.model_validate("distill.labels").needed() == {"train"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"distill.logit": {}}, "did you mean 'distill.logits'"),
        ({"prune.layers": {}}, "prune.layers is not a single loss"),
        ({"distill.logits": {"temprature": 2}}, "did you mean 'temperature'"),
        ({"distill.logits": {"weight": -1}}, "weight"),
        ({"distill.logits": 3}, "must be a mapping of its fields"),
        ({}, "at least 1 item"),
    ],
)
def test_mistakes_are_named(given, message):
    with pytest.raises(ValidationError, match=message):
        ObjectiveBlock.model_validate(given)


def test_a_recipe_names_the_place_of_a_mistake():
    text = "task: {kind: classification, data: d}\nteacher: {model: t}\nsteps:\n"
    with pytest.raises(UserError, match=r"recipe:4: step 1, distill\.combined: objective: .*did you mean 'alpha'"):
        parse_recipe(text + "  - distill.combined: {objective: {distill.logits: {alfa: 1}}}\n")
    recipe = parse_recipe(text + "  - distill.combined: {objective: {distill.logits: {alpha: 1.0, weight: 2.0}}}\n")
    assert parse_recipe(recipe_to_yaml(recipe)) == recipe
    assert "weight: 2.0" in recipe_to_yaml(recipe)
