"""Tiny encoders of every family, their tokenizers and small learnable tasks; all seeded, none needs a network.

Three layers, hidden size 32, four heads, FFN 64 and a few hundred subword tokens: a forward pass takes about a
millisecond, yet every tokenizer is of the family's own kind (WordPiece, byte-level BPE, unigram) and class.
"""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from eval.data.loading import Task
from eval.kinds.kind_registry import kind_of
from eval.ranking.document_set import Corpus
from eval.task import Example, Examples, KindName, TaskSpec
from teachers.anatomy.families import FAMILIES as KNOWN

if TYPE_CHECKING:
    from teachers.taskmodel import TaskModel

FAMILIES: tuple[str, ...] = (
    "bert",
    "roberta",
    "mpnet",
    "ernie",
    "distilbert",
    "albert",
    "electra",
    "xlnet",
    "mobilebert",
    "deberta-v2",
    "modernbert",
    "gpt2",
)
DECODERS: tuple[str, ...] = ("opt", "gpt_neo", "gpt_neox", "llama")
"""Further decoders, with the tokenizer of GPT-2."""
ENCODER_DECODERS: tuple[str, ...] = ("bart", "marian", "t5")
"""Families with an encoder and a decoder, for tasks whose answer is a text."""
LONG: tuple[str, ...] = ("longformer",)
"""Families whose tokens see a window of the text."""
RELATIVES: tuple[str, ...] = ("xlm-roberta", "camembert")
"""Families with the network of one in ``FAMILIES`` and a tokenizer of another kind."""

LAYERS, HIDDEN, HEADS, FFN, POSITIONS = 3, 32, 4, 64, 128

GOOD = ("good", "great", "lovely", "fine", "superb", "warm", "bright", "happy")
BAD = ("bad", "awful", "dull", "poor", "sad", "cold", "weak", "boring")
THINGS = ("film", "book", "meal", "song", "room", "game", "story", "show")
PEOPLE = ("ann", "bob", "carla", "dave", "emma", "frank", "grace", "henry")
PLACES = ("paris", "rome", "oslo", "lima", "cairo", "delhi", "tokyo", "quito")
FUNCTION = ("the", "a", "is", "was", "and", "very", "in", "where", "lives", "likes", "it", "not", "of", "to", "quite")
ASPECTS = {"good": GOOD, "person": PEOPLE, "place": PLACES}
"""Labels of a text, and the words that it then has one of."""
WORDS = (*FUNCTION, *GOOD, *BAD, *THINGS, *PEOPLE, *PLACES)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,?!'-"


def tiny_config(family: str, **changes: Any) -> Any:
    """Return a transformers config of ``family``, built in or of another package.

    Args:
        family: Its model type.
        changes: Other values, by the family's own names or the common ones.
    """
    from transformers import AutoConfig

    tokenizer = tiny_tokenizer(family)
    values: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "num_hidden_layers": LAYERS,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "intermediate_size": FFN,
        "max_position_embeddings": POSITIONS,
        "initializer_range": 0.1,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    values |= _OWN.get(family, {})
    dimensions = KNOWN.get(family).config
    renamed = {common: dimensions.get(own, "") for common, own in _COMMON.items()}
    values = {renamed.get(name, name): value for name, value in values.items()}
    if family in ENCODER_DECODERS:
        known = KNOWN.get(family)
        values |= {dimensions["decoder_layers"]: LAYERS - 1, "decoder_start_token_id": tokenizer.pad_token_id}
        values |= {name: values[other] for name, other in known.follow.items()}
    values.pop("", None)  # a dimension that the family lacks
    if family in ("modernbert", *LONG):
        values |= {"cls_token_id": tokenizer.cls_token_id, "sep_token_id": tokenizer.sep_token_id}
    values |= {renamed.get(name) or name: value for name, value in changes.items()}
    return AutoConfig.for_model(family, **values)


_ROBERTA = {"max_position_embeddings": POSITIONS + 2, "type_vocab_size": 1}
_OWN: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("roberta", *RELATIVES), _ROBERTA),
    "longformer": {**_ROBERTA, "attention_window": 8},
    "mpnet": {"max_position_embeddings": POSITIONS + 2},
    "albert": {"embedding_size": 16},
    "electra": {"embedding_size": 16},
    "xlnet": {"mem_len": None},
    "mobilebert": {
        "embedding_size": 16,
        "intra_bottleneck_size": 16,
        "num_feedforward_networks": 2,
        "classifier_activation": False,
    },
    "deberta-v2": {
        "type_vocab_size": 0,
        "relative_attention": True,
        "position_buckets": 8,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
    },
    "modernbert": {"local_attention": 8},
    "opt": {"init_std": 0.1},
    "gpt_neo": {"attention_types": [[["global", "local"], 1], [["global"], 1]], "window_size": 8},
    "bart": {"init_std": 0.1, "forced_eos_token_id": None},
    "marian": {"init_std": 0.1, "forced_eos_token_id": None},
    "t5": {"d_kv": HIDDEN // HEADS, "dropout_rate": 0.0},
}

_COMMON = {
    "num_hidden_layers": "layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "heads",
    "intermediate_size": "intermediate_size",
    "max_position_embeddings": "max_positions",
}
"""The common name of a dimension in transformers -> our own, by which the table of families has the family's name."""


@functools.cache
def tiny_tokenizer(family: str) -> Any:
    """Return the family's fast tokenizer over the tiny vocabulary; shared between callers, so do not change it."""
    import transformers

    if family in LONG:
        return tiny_tokenizer("roberta")
    if family in DECODERS:
        return tiny_tokenizer("gpt2")
    if family in ("roberta", "modernbert", "gpt2", *ENCODER_DECODERS):
        return _byte_tokenizer(family)
    if family in ("albert", "xlnet", "deberta-v2", *RELATIVES):
        return _unigram_tokenizer(family)
    classes = {"distilbert": "DistilBertTokenizer", "mpnet": "MPNetTokenizer"}
    special = ["<s>", "<pad>", "</s>", "<mask>", "[UNK]"] if family == "mpnet" else SPECIAL
    pieces = [*special, *CHARACTERS, *(f"##{c}" for c in CHARACTERS[:36]), *WORDS]
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer_class = getattr(transformers, classes.get(family, "BertTokenizer"))
    return tokenizer_class(vocab=vocabulary, model_max_length=POSITIONS)


def _unigram_tokenizer(family: str) -> Any:
    import transformers

    special = {
        "albert": ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"],
        "xlnet": ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"],
        "deberta-v2": ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"],
        "xlm-roberta": ["<s>", "<pad>", "</s>", "<unk>"],
        "camembert": ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>"],
    }[family]
    pieces = [(piece, 0.0) for piece in special]
    pieces += [("▁", -4.0)]
    pieces += [(f"▁{word}", -3.0) for word in WORDS if len(word) > 1]
    pieces += [(character, -6.0) for character in CHARACTERS]
    unknown = next(index for index, piece in enumerate(special) if "unk" in piece.lower())
    names = {"albert": "Albert", "xlnet": "XLNet", "deberta-v2": "DebertaV2"}
    names |= {"xlm-roberta": "XLMRoberta", "camembert": "Camembert"}
    if family in RELATIVES:
        pieces.append(("<mask>", 0.0))  # stands last there
    own = {"unk_id": unknown} if family in ("xlnet", "deberta-v2") else {}
    return getattr(transformers, f"{names[family]}Tokenizer")(vocab=pieces, model_max_length=POSITIONS, **own)


def _byte_tokenizer(family: str) -> Any:
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    special = {
        "roberta": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        "modernbert": ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"],
        "gpt2": ["<|endoftext|>"],
    }.get(family, ["<pad>", "</s>", "<unk>", "<mask>"])
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" " + " ".join(WORDS)], trainer)
    if family in ENCODER_DECODERS:
        from teachers.pretraining.text.tokenizer_training import ended

        return ended(tokenizer)
    if family in ("roberta", "gpt2"):
        import json

        from transformers import AutoConfig

        from teachers.fitting_tokenizer import make_ready

        model = json.loads(tokenizer.to_str())["model"]
        merges = [tuple(merge) for merge in model["merges"]]
        made = transformers.RobertaTokenizer if family == "roberta" else transformers.GPT2Tokenizer
        made_tokenizer = made(vocab=model["vocab"], merges=merges, model_max_length=POSITIONS)
        make_ready(made_tokenizer, AutoConfig.for_model(family))
        return made_tokenizer
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", tokenizer.token_to_id("[CLS]")), ("[SEP]", tokenizer.token_to_id("[SEP]"))],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        unk_token="[UNK]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "attention_mask"],
        model_max_length=POSITIONS,
    )


def tiny_spec(kind: KindName = "classification", *, pair: bool = False, max_length: int = 32) -> TaskSpec:
    """Return the specification that ``tiny_task`` uses."""
    labels = {"classification": ("bad", "good"), "tagging": ("O", "B-PER", "B-LOC"), "multilabel": tuple(ASPECTS)}
    metrics = {
        "classification": "accuracy",
        "multilabel": "micro_f1",
        "regression": "pearson",
        "tagging": "entity_f1",
        "qa": "f1",
    }
    metrics |= {"multiple-choice": "accuracy", "qa-with-null": "f1"}
    metric = metrics.get(kind, kind_of(kind).metric)
    if kind == "embedding":
        metric = "spearman" if pair else "nearest"
    if kind in ("retrieval", "reranking"):
        metric, pair = "ndcg@10", kind == "reranking"
    more = {"target_length": 16} if kind_of(kind).writes else {}
    labelled = labels.get(kind, ())
    return TaskSpec(kind=kind, labels=labelled, metric=metric, pair=pair, max_length=max_length, stride=8, **more)


def tiny_task(kind: KindName = "classification", *, pair: bool = False, examples: int = 40, seed: int = 13) -> Task:
    """Return a task whose answers follow a rule that a tiny encoder can learn.

    Classification: whether good or bad words are more (of a pair: whether both texts are of one mood); multilabel:
    which of good words, people and places there are; regression:
    the share of good words; tagging: people and places; qa: where a person lives; qa-with-null: likewise,
    of every third person nothing is told; masked-lm and causal-lm: the same sentences;
    embedding: the texts of classification, as a pair with 1 for one mood and 0 for two; multiple-choice: which of three
    texts is a good one; seq2seq: the same in another order of words; retrieval: which document tells of this person in
    this place; reranking: likewise, among those that tell of the person or the place.

    Args:
        kind: What is asked.
        pair: Two texts an example (classification, regression and embedding).
        examples: How many in each of train, validation and test.
        seed: Draws the examples; splits differ.
    """
    splits = {}
    for index, name in enumerate(("train", "validation", "test")):
        chance = random.Random(f"{seed}-{index}-{kind}-{pair}")
        if kind in ("retrieval", "reranking"):
            splits[name] = Examples(_queries(kind, chance, name, examples), name)
            continue
        splits[name] = Examples([_example(kind, pair, chance, number) for number in range(examples)], name)
    return Task(tiny_spec(kind, pair=pair), splits, source="tiny")


def _queries(kind: KindName, chance: random.Random, split: str, examples: int) -> list[Example]:
    """Return queries; ``train`` ends with the documents of retrieval, and has the pairs of reranking."""
    whose = [(person, place) for person in PEOPLE for place in PLACES]
    texts = [f"{person} lives in {place} and likes the {THINGS[at % 7]} ." for at, (person, place) in enumerate(whose)]
    corpus = Corpus([f"{person}-{place}" for person, place in whose], texts)
    found: list[Example] = []
    word = {"train": "very ", "validation": "quite "}.get(split, "")  # no query stands in two splits
    for number in range(examples):
        person, place = chance.choice(whose)
        query: dict[str, Any] = {"id": f"{split}-{number}", "text": f"{person} is {word}in {place}", "corpus": corpus}
        if kind == "reranking":
            query["candidates"] = [f"{one}-{other}" for one, other in whose if one == person or other == place]
        found.append({**query, "relevant": {f"{person}-{place}": 1}})
    if split != "train":
        return found
    return (
        kind_of(kind).query_pairs(TaskSpec(kind=kind), found)
        if kind == "reranking"
        else [*found, *({"text": text} for text in texts)]
    )


def _mood(chance: random.Random, good: bool) -> str:
    words = GOOD if good else BAD
    parts = [f"the {chance.choice(THINGS)} {chance.choice(('is', 'was'))} {chance.choice(('', 'very ', 'quite '))}"]
    parts.append(" and ".join(chance.sample(words, chance.randint(1, 3))))
    return "".join(parts) + chance.choice((" .", " !", ""))


def _example(kind: KindName, pair: bool, chance: random.Random, number: int) -> dict[str, Any]:
    good = number % 2 == 1
    if kind == "embedding":
        kind = "regression" if pair else "classification"
    if kind in ("classification", "regression"):
        first = chance.random() < 0.5
        second = first if good else not first
        texts = {"text_a": _mood(chance, first), "text_b": _mood(chance, second)} if pair else {}
        if kind == "classification":
            return (texts or {"text": _mood(chance, good)}) | {"label": ("bad", "good")[good]}
        if pair:
            return texts | {"label": float(good)}
        count = chance.randint(0, 4)
        words = [*chance.sample(GOOD, count), *chance.sample(BAD, 4 - count)]
        chance.shuffle(words)
        return {"text": "it is " + " and ".join(words), "label": count / 4}
    if kind == "qa-with-null":
        known = _example("qa", pair, chance, number)
        if number % 3:
            return known
        stranger = next(person for person in PEOPLE if person not in known["context"])
        return known | {"question": f"where is {stranger} ?", "answers": []}
    if kind == "multilabel":
        there = [name for name in ASPECTS if chance.random() < 0.5]
        words = [chance.choice(ASPECTS[name]) for name in there] + chance.sample(THINGS, 2)
        chance.shuffle(words)
        texts = {"text_a": "it is", "text_b": " and ".join(words)} if pair else {"text": "it is " + " and ".join(words)}
        return texts | {"labels": there}
    people, places = chance.sample(PEOPLE, 2), chance.sample(PLACES, 2)
    if kind == "tagging":
        tokens = [people[0], "lives", "in", places[0], "and", "likes", "the", chance.choice(THINGS), "of", people[1]]
        return {"tokens": tokens, "tags": [_tag(token) for token in tokens]}
    if kind == "qa":
        context = f"{people[0]} lives in {places[0]} . {people[1]} lives in {places[1]} ."
        asked = number % 2
        answer = {"text": places[asked], "answer_start": context.index(places[asked])}
        return {"id": str(number), "question": f"where is {people[asked]} ?", "context": context, "answers": [answer]}
    if kind == "seq2seq":
        return {"source": f"{people[0]} lives in {places[0]}", "target": f"in {places[0]} lives {people[0]}"}
    if kind == "multiple-choice":
        right = chance.randrange(3)
        choices = [_mood(chance, place == right) for place in range(3)]
        return {"text": f"{people[0]} likes it .", "choices": choices, "label": right}
    return {"text": f"{people[0]} lives in {places[0]} and {_mood(chance, good)}"}


def _tag(word: str) -> str:
    return "B-PER" if word in PEOPLE else "B-LOC" if word in PLACES else "O"


_DRAWN: dict[str, TaskModel] = {}
"""Models by what they are drawn from; ``tiny_taskmodel`` gives copies, which take a fraction of the time."""
_MOST_DRAWN = 64


def tiny_taskmodel(family: str, spec: TaskSpec | None = None, seed: int = 0, **changes: Any) -> TaskModel:
    """Return a random encoder with a head for ``spec``; ``changes`` go to its config.

    Biases and gains are drawn too, so that no test passes because all of them are 0 or 1.
    """
    import torch

    spec = spec or tiny_spec()
    key = repr((family, spec.model_dump_json(), seed, sorted(changes.items()), torch.get_default_dtype()))
    if key not in _DRAWN:
        if len(_DRAWN) == _MOST_DRAWN:
            del _DRAWN[next(iter(_DRAWN))]
        _DRAWN[key] = _drawn(family, spec, seed, changes)
    return replace(_DRAWN[key], model=copy.deepcopy(_DRAWN[key].model), task=spec)


def _drawn(family: str, spec: TaskSpec, seed: int, changes: Mapping[str, Any]) -> TaskModel:
    import torch

    from teachers.seeding import seeded
    from teachers.taskmodel import build_taskmodel

    with seeded(seed):
        config = tiny_config(family, **changes)
        built = build_taskmodel(config, tiny_tokenizer(family), spec)
        with torch.no_grad():
            for parameter in built.model.parameters():
                if parameter.ndim == 1:
                    parameter.add_(0.1 * torch.randn_like(parameter))
    built.model.eval()
    return built
