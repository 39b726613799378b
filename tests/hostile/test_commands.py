"""Commands whose inputs are not there, or are something else."""

from __future__ import annotations

from tests.hostile.case import Case, table
from tests.hostile.damage import remove, truncate, write

CASES = [
    Case("all is well", "eval model --data data --no-latency", code=0),
    Case("no such model", "eval nowhere --data data", says="nowhere"),
    Case("no such data", "eval model --data nowhere", says="nowhere"),
    Case("no such recipe", "check nowhere.yaml", says="nowhere.yaml"),
    Case("an empty recipe", "check recipe.yaml", write("recipe.yaml", ""), says="recipe.yaml"),
    Case("weights cut off", "eval model --data data", truncate("model/model.safetensors", 500), says="model"),
    Case("an export without its graph", "verify export", remove("export/model.onnx"), says="model.onnx"),
]
test_case = table(CASES)
