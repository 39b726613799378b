"""Recipes damaged at random: whatever is written, the answer is a recipe or plain messages, never a traceback."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compress.recipe import Recipe, parse_recipe, recipe_to_yaml
from eval.errors import UserError
from tests.unit.test_recipe import WHOLE

OTHER = """\
name: tagger
seed: 0
task:
  kind: tagging
  data: data/conll
  labels: [O, B-PER, I-PER]
  class_weights: {O: 0.5}
  limit: {train: 100}
teacher:
  model: base
  finetune: &how {epochs: 2, learning_rate: 5.0e-5, betas: [0.9, 0.98], freeze: [embeddings]}
student: {family: bert, layers: 2, hidden_size: 64, heads: 2, init: random}
augment: {rule: bilstm, tagger: data, copies: 5, ngram: 0.1}
training: {<<: *how, patience: 3}
steps:
- prune.layers: {keep: [0, 1]}
- distill.labels
- distill.logits: {loss: mse, training: {max_steps: 10}}
export: [onnx]
evaluate: {against: none, split: test, latency: null, baseline: true}
"""
TEXTS = (WHOLE, OTHER)
PIECES = (
    *(
        "\t",
        "\x00",
        "\x85",
        "\u2028",
        "\ufeff",
        "\ud7ff",
        "{",
        "}",
        "[",
        "]",
        "- ",
        ": ",
        ", ",
        "#",
        "|\n",
        ">\n",
        "'",
        '"',
    ),
    *(
        "&a ",
        "*a",
        "*how",
        "<<: ",
        "? ",
        "! ",
        "!!set ",
        "!!omap ",
        "!!binary ",
        "!!int ",
        "!!float ",
        "!!bool ",
        "!!map ",
    ),
    *("%YAML 9.9\n", "---\n", "...\n", '"\\U99999999"', "${", "${A}", "${A:-b}", "$${", ".nan", "-.inf", "1e999"),
    *("9" * 5000, "0x", "1:30", "2020-13-45", "null", "~", "yes", "@", "`", "=", "distill.logits", "quantize.dynamic"),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(),
    st.text(max_size=12),
    st.dates(),
    st.binary(max_size=6),
    st.sampled_from(["teacher", "none", "onnx", "linear", "balanced", "${HOME}", "prune.layers", "1e-4", "O"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def places(node: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [at, *(place for key, child in children for place in places(child, (*at, key)))]


@st.composite
def damaged_values(draw) -> str:
    """A recipe in which keys and values were deleted, renamed, repeated or replaced."""
    top = copy.deepcopy(yaml.safe_load(draw(st.sampled_from(TEXTS))))
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from(places(top)[1:] or [("name",)]))
        parent = top
        for key in way:
            parent = parent[key]
        action = draw(st.sampled_from(["delete", "rename", "repeat", "replace", "replace"]))
        if action == "delete":
            del parent[last]
        elif action == "rename" and isinstance(parent, dict):
            parent[draw(st.text(max_size=4)) + str(last)[draw(st.integers(0, 2)) :]] = parent.pop(last)
        elif action == "repeat" and isinstance(parent, list):
            parent.append(parent[last])
        else:
            parent[last] = draw(values)
        if not top:
            break
    return yaml.dump(top, sort_keys=False, allow_unicode=draw(st.booleans()))


@st.composite
def damaged_texts(draw) -> str:
    """A recipe whose text was cut, overwritten, repeated in part, or sprinkled with what YAML gives a meaning to."""
    text = draw(st.sampled_from(TEXTS))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        to = min(len(text), at + draw(st.integers(0, 30)))
        action = draw(st.sampled_from(["truncate", "delete", "repeat", "piece", "character"]))
        text = {
            "truncate": lambda at=at, text=text: text[:at],
            "delete": lambda at=at, to=to, text=text: text[:at] + text[to:],
            "repeat": lambda at=at, to=to, text=text: text[:to] + text[at:to] + text[to:],
            "piece": lambda at=at, text=text: text[:at] + draw(st.sampled_from(PIECES)) + text[at:],
            "character": lambda at=at, text=text: text[:at] + draw(st.characters()) + text[at:],
        }[action]()
    return text


damaged = damaged_values() | damaged_texts()


def read(text: str, *overrides: str) -> Recipe | tuple[str, ...]:
    """Return the recipe, or what is wrong with it; anything but a UserError fails the test."""
    try:
        return parse_recipe(text, "recipe.yaml", overrides)
    except UserError as error:
        return error.problems


def check(text: str) -> None:
    found = read(text)
    if isinstance(found, Recipe):
        assert read(recipe_to_yaml(found)) == found
        return
    assert found
    for problem in found:
        assert problem.startswith("recipe.yaml"), problem
        assert "\n" not in problem
        assert len(problem) < 1000


CHECKS = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)


def test_the_recipes_that_are_damaged_are_sound():
    for text in TEXTS:
        assert parse_recipe(text).steps


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=CHECKS)
@given(damaged)
def test_a_damaged_recipe_is_read_or_refused(text):
    check(text)


@pytest.mark.slow
@settings(max_examples=3000, deadline=None, suppress_health_check=CHECKS)
@given(damaged)
def test_thousands_of_damaged_recipes_are_read_or_refused(text):
    check(text)


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=CHECKS)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([".".join(map(str, place)) for place in places(yaml.safe_load(OTHER))[1:]])
            | st.text(max_size=9),
            scalars,
        ),
        min_size=1,
        max_size=3,
    )
)
def test_any_override_is_taken_or_refused(pairs):
    overrides = [f"{path}={value}" for path, value in pairs]
    found = read(OTHER, *overrides)
    if not isinstance(found, Recipe):
        assert found
        assert all(problem.startswith(("recipe.yaml", "--set ")) for problem in found), found
