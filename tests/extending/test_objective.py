"""An objective of pretraining from another package: one module and one entry point."""

import json

import pytest

TEACHER = """\
teacher:
  pretrain:
    text: {text}
    tokenizer: {{size: 120}}
    network: {{layers: 2, hidden_size: 16, heads: 2, max_positions: 64}}
    stages:
      - length: 32
        tasks: {{words: {{objectives: {objectives}}}}}
        training: {{max_steps: 3, batch_size: 4, learning_rate: 1.0e-3}}
"""


@pytest.fixture
def world(outside, tmp_path):
    """A process that knows the package, and what writes a recipe."""
    text = tmp_path / "text"
    text.mkdir()
    (text / "train.txt").write_text("the film was good . it was a good film .\n\n" * 40, encoding="utf-8")

    def recipe(objectives):
        file = tmp_path / "teacher.yaml"
        file.write_text(TEACHER.format(text=text, objectives=objectives), encoding="utf-8")
        return file

    return outside("acme_echo", "compress.objectives", {"acme_echo": "Echo"}), recipe


def test_it_is_trained_beside_a_built_in_one(world, tmp_path):
    process, recipe = world
    file = recipe("{masked_words: {}, acme_echo: {reach: 3, weight: 0.5}}")
    process.cli("teach", "--recipe", file, "--out", tmp_path / "teacher")
    record = json.loads((tmp_path / "teacher" / "pretraining.json").read_text(encoding="utf-8"))
    assert "acme_echo" in json.dumps(record)
    assert '"reach": 3' in json.dumps(record)


def test_its_errors_are_those_of_its_own_fields(world):
    process, recipe = world
    place = "teacher: pretrain.stages[0].tasks.words.objectives"
    said = process.cli("check", recipe("{acme_echo: {reach: 0}}"), code=2)
    assert f"{place}.acme_echo.reach: got 0, must be a whole number above 0" in said
    said = process.cli("check", recipe("{acme_echo: {rech: 3}}"), code=2)
    assert f"{place}.acme_echo: unknown field 'rech'; did you mean 'reach'?" in said
    said = process.cli("check", recipe("{acme_eco: {}}"), code=2)
    assert f"{place}.acme_eco: unknown objective 'acme_eco'; did you mean 'acme_echo'?" in said
