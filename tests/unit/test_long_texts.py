"""Of a text of megabytes the beginning is tokenized, and that gives the ids that the whole text gives."""

import json
import random

import pytest
from tokenizers import Tokenizer

from eval import encoding
from eval.encoding import TextEncoder
from eval.long_texts import beginning, splits_at_spaces
from tests.tiny import FAMILIES, GOOD, PEOPLE, THINGS, tiny_spec, tiny_taskmodel, tiny_tokenizer

STRANGE = (
    "café",
    "e\u0301te\u0301",
    "ΟΔΟΣ",
    "東京",
    "🙂🙂",
    "don't",
    "``x''",
    "3.14",
    "[SEP]",
    "\t",
    "\u200b",
    "a\u0300",
    "  ",
    "…",
)


def texts():
    chance = random.Random(13)
    words = (*GOOD, *PEOPLE, *THINGS, *STRANGE)
    drawn = [" ".join(chance.choice(words) for _ in range(chance.randint(300, 3000))) for _ in range(40)]
    endless = ["x" * 5_000 + " good film" * 500, "good" + " " * 5_000 + "film " * 500, "東京" * 5_000, "a b" * 2_000]
    return [*drawn, *endless, "good film"]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_ids_are_those_of_the_whole_text(family, monkeypatch):
    encoder = tiny_taskmodel(family, tiny_spec(max_length=32)).encoder
    examples = [{"text": text} for text in texts()]
    seen = []
    monkeypatch.setattr(encoding, "beginning", lambda *given: seen.append(beginning(*given)) or seen[-1])
    found = encoder.encode(examples)
    assert len(seen) == len(examples) - 1
    assert sum(len(text) < 1_200 for text in seen) >= 40, "far less than the whole was tokenized"
    monkeypatch.setattr(encoding, "is_long", lambda *_: False)
    assert [feature.ids for feature in found] == [feature.ids for feature in encoder.encode(examples)]


@pytest.mark.parametrize("changes", [{"truncation_side": "left"}, {"pair": True}])
def test_where_the_end_or_the_other_text_counts_all_is_tokenized(changes, monkeypatch):
    spec = tiny_spec(pair=changes.get("pair", False)).model_copy(update=changes)
    encoder = tiny_taskmodel("bert", spec).encoder
    monkeypatch.setattr(encoding, "beginning", lambda *_: pytest.fail("a text was cut"))
    text = "good film " * 1_000
    encoder.encode([{"text": text, "text_a": text, "text_b": text}])


@pytest.mark.parametrize(
    "part",
    [
        {"pre_tokenizer": None},
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "x$"}, "behavior": "Isolated", "invert": False}},
        {"pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": False}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": "film$"}, "content": "x"}},
        {"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "x"}},
    ],
)
def test_tokenizers_that_look_further_read_whole_texts(part, monkeypatch):
    plain = tiny_tokenizer("bert").backend_tokenizer.to_str()
    assert splits_at_spaces(plain)
    changed = json.dumps({**json.loads(plain), **part})
    assert not splits_at_spaces(changed)
    monkeypatch.setattr(encoding, "beginning", lambda *_: pytest.fail("a text was cut"))
    settings = tiny_taskmodel("bert").encoder.settings
    TextEncoder(Tokenizer.from_str(changed), settings).encode([{"text": "good film " * 1_000}])


def test_a_token_with_a_space_in_it_may_begin_before_the_cut():
    tokenizer = Tokenizer.from_str(tiny_tokenizer("bert").backend_tokenizer.to_str())
    tokenizer.add_tokens(["new york"])
    assert not splits_at_spaces(tokenizer.to_str())
