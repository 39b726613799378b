"""Model folders that lack something, hold something else, or would run code: never used as if they were whole."""

from __future__ import annotations

import torch

from tests.hostile.case import Case, table
from tests.hostile.damage import Damage, json_drop, json_set, remove, tensors, write

WEIGHTS = "model/model.safetensors"
COMMANDS = {
    "eval": "eval model --data data --no-latency",
    "export": "export model --out out",
    "check": "check recipe.yaml",
    "run": "run recipe.yaml --out out",
}


def without(*parts: str):
    return lambda found: {name: tensor for name, tensor in found.items() if not any(part in name for part in parts)}


def renamed(before: str, after: str):
    return lambda found: {name.replace(before, after): tensor for name, tensor in found.items()}


def holding(name: str, value: float):
    def change(found):
        found[name].view(-1)[0] = value
        return found

    return change


def added(name: str):
    return lambda found: found | {name: torch.zeros(2, 2)}


def reshaped(name: str):
    return lambda found: found | {name: torch.zeros(7, 5)}


DAMAGED: dict[str, tuple[Damage | tuple[Damage, ...], str]] = {
    "a layer is missing": (tensors(WEIGHTS, without("layer.1.")), r"missing from the weights: .*layer\.1\..*more"),
    "the last layer is missing": (tensors(WEIGHTS, without("layer.2.")), r"missing from the weights: .*layer\.2\."),
    "one tensor is missing": (
        tensors(WEIGHTS, without("layer.0.attention.self.query.weight")),
        r"missing from the weights: bert\.encoder\.layer\.0\.attention\.self\.query\.weight",
    ),
    "word embeddings are missing": (tensors(WEIGHTS, without("word_embeddings")), r"missing .*word_embeddings\.weight"),
    "the head of a fine-tuned model is missing": (
        tensors(WEIGHTS, without("classifier")),
        r"missing .*classifier\.bias, classifier\.weight",
    ),
    "half of the head is missing": (tensors(WEIGHTS, without("classifier.bias")), r"missing .*: classifier\.bias"),
    "the pooler of a fine-tuned model is missing": (tensors(WEIGHTS, without("pooler")), r"missing .*bert\.pooler"),
    "no tensor at all": (tensors(WEIGHTS, lambda _: {}), r"missing from the weights: .*more"),
    "tensors of another name": (tensors(WEIGHTS, renamed("query", "queri")), r"missing .*query.*no part .*queri"),
    "an unknown prefix": (tensors(WEIGHTS, renamed("bert.", "module.bert.")), r"missing .*bert\.embeddings"),
    "one tensor too many": (tensors(WEIGHTS, added("bert.encoder.layer.0.extra")), r"no part .*layer\.0\.extra"),
    "a tensor too many beside the head": (tensors(WEIGHTS, added("verdict.weight")), r"no part .*verdict\.weight"),
    "a layer too many": (json_set("model/config.json", "num_hidden_layers", 2), r"no part .*layer\.2\."),
    "a layer too few": (json_set("model/config.json", "num_hidden_layers", 4), r"missing .*layer\.3\."),
    "another width": (json_set("model/config.json", "intermediate_size", 48), r"of another shape: .*config\.json says"),
    "a tensor of another shape": (
        tensors(WEIGHTS, reshaped("classifier.weight")),
        r"of another shape: classifier\.weight is \(7, 5\), config\.json says \(2, 32\)",
    ),
    "another model type": (json_set("model/config.json", "model_type", "roberta"), r"model: "),
    "a model type of another family": (json_set("model/config.json", "model_type", "distilbert"), r"missing"),
    "not a number": (
        tensors(WEIGHTS, holding("bert.encoder.layer.1.output.dense.weight", float("nan"))),
        r"NaN or infinite values: bert\.encoder\.layer\.1\.output\.dense\.weight",
    ),
    "an infinity": (tensors(WEIGHTS, holding("classifier.bias", float("inf"))), r"infinite values: classifier\.bias"),
    "no tokenizer": (remove("model/tokenizer.json", "model/tokenizer_config.json"), r"has no tokenizer"),
    "no weights": (remove(WEIGHTS), r"model"),
    "a pickle in the place of weights": (
        (remove(WEIGHTS), write("model/pytorch_model.bin", b"\x80\x04.")),
        r"pickle \(pytorch_model\.bin\).*convert",
    ),
    "code of its own": (
        (
            json_set("model/config.json", "model_type", "weird"),
            json_set("model/config.json", "auto_map", {"AutoConfig": "configuration_weird.WeirdConfig"}),
            write("model/configuration_weird.py", "open('RAN', 'w').close()\n"),
        ),
        r"never run; supported are the families",
    ),
    "an index that points outside": (
        (
            remove(WEIGHTS),
            write("model/model.safetensors.index.json", '{"metadata": {}, "weight_map": {"a": "../data/train.jsonl"}}'),
        ),
        r"index\.json: names \.\./data/train\.jsonl; allowed",
    ),
    "an index that names a device": (
        (
            remove(WEIGHTS),
            write("model/model.safetensors.index.json", '{"metadata": {}, "weight_map": {"a": "/dev/zero"}}'),
        ),
        r"index\.json: names /dev/zero; allowed",
    ),
}


def ran_nothing(scene, _ending):
    assert not (scene / "RAN").exists()
    assert not (scene / "model" / "RAN").exists()


CASES = [
    *(
        Case(f"{command}: {name}", words, damage, says=says, after=ran_nothing, stdin=b"y\ny\ny\n")
        for command, words in COMMANDS.items()
        for name, (damage, says) in DAMAGED.items()
    ),
    *(
        Case(f"accepted: {name}", f"{words} --accept-incomplete", damage, code=0, says=f"accepted|{says}")
        for command, words in COMMANDS.items()
        if command == "eval"
        for name, (damage, says) in DAMAGED.items()
        if name in ("a layer is missing", "half of the head is missing", "one tensor too many", "a layer too few")
    ),
    *(
        Case(
            f"{command}: code for its tokenizer, which transformers has as well",
            words,
            (
                json_set("model/tokenizer_config.json", "auto_map", {"AutoTokenizer": ["weird.WeirdTokenizer", None]}),
                write("model/weird.py", "open('RAN', 'w').close()\n"),
            ),
            code=0,
            after=ran_nothing,
            stdin=b"y\ny\n",
        )
        for command, words in COMMANDS.items()
    ),
    Case(
        "accepted in a recipe",
        "check recipe.yaml --set teacher.accept_incomplete=true",
        tensors(WEIGHTS, without("layer.1.")),
        code=0,
        says="accepted",
    ),
    Case(
        "a base without a head is fine-tuned",
        "teach --base model --task classification --data data --epochs 1 --out out",
        (
            tensors(WEIGHTS, without("classifier", "pooler")),
            json_set("model/config.json", "architectures", ["BertModel"]),
        ),
        code=0,
    ),
    Case(
        "a base whose architecture nobody wrote down",
        "check recipe.yaml",
        (tensors(WEIGHTS, without("classifier")), json_drop("model/config.json", "architectures")),
        code=0,
    ),
    Case(
        "half a head of a base",
        "check recipe.yaml",
        (tensors(WEIGHTS, without("classifier.bias")), json_drop("model/config.json", "architectures")),
        says=r"missing .*classifier\.bias",
    ),
]
test_case = table(CASES, quick=12)
