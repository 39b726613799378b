"""Which step can follow which: what one takes away and another needs, for whole chains of configs."""

import pytest

from compress.registry import get, names
from compress.technique import PARTS
from compress.traits import TRAITS, UNPRUNED, Handover, order_problems


def told(*steps, model=None):
    return [(index, problem.sentence) for index, problem in order_problems(list(enumerate(steps)), model)]


def config(name, **fields):
    return get(name)(**fields).handover()


def test_a_trait_is_told_for_the_first_step_that_took_it():
    train = Handover("train", {"trainable": "", "open": ""})
    freeze = Handover("freeze", {"open": ""}, frozenset({"trainable"}))
    assert told(train, freeze, freeze, train) == [
        (3, "step 4, train: trains, but step 2, freeze, leaves weights that cannot be trained; put it before")
    ]


def test_every_step_that_lacks_something_is_told():
    cut = Handover("cut", {"linear_layers": "needs layers; put it before"})
    pack = Handover("pack", {"linear_layers": "packs layers; put it before"}, frozenset({"linear_layers"}))
    assert told(pack, cut, pack) == [
        (1, "step 2, cut: cannot follow step 1, pack: needs layers; put it before"),
        (2, "step 3, pack: cannot follow step 1, pack: packs layers; put it before"),
    ]


def test_of_two_steps_the_first_trait_is_told():
    last = Handover("last", {"open": ""}, frozenset({"open", "trainable", "standard"}))
    both = Handover("both", {"open": "", "standard": "is standard", "trainable": ""})
    assert told(last, both) == [
        (1, "step 2, both: trains, but step 1, last, leaves weights that cannot be trained; put it before")
    ]
    assert told(last, Handover("next", {"open": "", "standard": "is standard"})) == [
        (1, "step 2, next: comes after step 1, last, which must be the last step; put it before")
    ]


def test_what_the_first_model_lacks_is_told_of_every_step():
    pruned = Handover("bert", takes=frozenset({"unpruned_layers"}))
    step = config("share.lowrank")
    assert told(step, model=pruned) == [
        (
            0,
            "step 1, share.lowrank: cannot follow what has pruned bert: the factors of a matrix are new weights, "
            "without its zeros; put it before",
        )
    ]
    vectors = Handover("vectors", takes=frozenset({"transformer_layers"}))
    assert told(config("prune.layers"), config("distill.labels"), model=vectors) == [
        (0, "step 1, prune.layers: works on transformer layers, and vectors has none")
    ]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (config("prune.magnitude", stock=True), config("quantize.bitsandbytes")),
        (config("share.layers", stock=True), config("quantize.bitsandbytes")),
        (config("share.embeddings", stock=True), config("quantize.bitsandbytes")),
        (config("prune.magnitude", parts=["embeddings"]), config("share.lowrank")),
        (config("prune.movement"), config("share.layers", init="least")),
        (config("prune.layerdrop"), config("distill.mobilebert")),
        (config("share.layers"), config("distill.mobilebert", strategy="joint")),
    ],
)
def test_a_config_that_takes_nothing_away_may_be_followed(first, second):
    assert told(first, second) == []


@pytest.mark.parametrize(
    ("first", "second", "trait"),
    [
        (config("prune.layerdrop", count=2), config("distill.mobilebert"), "all_layers"),
        (config("prune.magnitude"), config("replace.theseus", start="elsewhere"), "unpruned_layers"),
        (config("prune.magnitude", parts=["pooler"]), config("share.layers", stock=True), "unpruned_pooler"),
        (config("prune.heads"), config("share.layers", init="least"), "all_heads"),
        (config("share.layers", stock=True), config("distill.mobilebert"), "unshared_layers"),
    ],
)
def test_a_config_that_takes_something_away_may_not(first, second, trait):
    assert [problem.trait for _, problem in order_problems([(0, first), (1, second)])] == [trait]


def test_every_trait_is_taken_by_one_technique_and_needed_by_another():
    usual = [get(name).usual_handover() for name in names()]
    configs = [config("share.layers", stock=True)]  # what needs a pooler without zeros, which no defaults do
    assert set().union(*(step.needs for step in [*usual, *configs])) == set(TRAITS)
    of_models = {"one_stack"}  # a network has it or not from the beginning; no step takes it
    assert frozenset().union(*(step.takes for step in usual)) == set(TRAITS) - of_models
    assert tuple(UNPRUNED) == PARTS
