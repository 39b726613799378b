"""The checks of ``compress.testing`` find what is wrong with a technique, and say which check found it."""

from typing import ClassVar

import numpy as np
import pytest
import torch

from compress.technique import Outcome, Technique
from compress.testing import check_technique
from compress.testing.case import Case
from compress.testing.technique_checks import (
    answers_soundly,
    found_by_its_name,
    has_the_sizes_it_claims,
    is_refused,
    repeats_itself,
    says_what_it_does,
)


class Wrong(Technique):
    """Base of techniques that keep a rule too few."""

    name: ClassVar[str] = "acme.wrong"

    def apply(self, student, inputs, generator):
        with torch.no_grad():
            self.change(student.model)
        return Outcome(student)

    def change(self, network):
        pass


class Chance(Wrong):
    def change(self, network):
        network.classifier.bias.add_(float(np.random.default_rng().normal()))


class Nothing(Wrong):
    reduces: ClassVar[frozenset[str]] = frozenset({"parameters"})


class Larger(Wrong):
    def change(self, network):
        network.resize_token_embeddings(network.config.vocab_size + 64)


class Unmasked(Wrong):
    def change(self, network):
        network.bert.register_forward_pre_hook(
            lambda _, args, kwargs: (args, {**kwargs, "attention_mask": None}), with_kwargs=True
        )


def case(technique, tmp_path, **more):
    return Case(technique(), tmp_path, **more)


@pytest.mark.parametrize(
    ("technique", "check", "sentence"),
    [
        (Wrong, found_by_its_name, r'write \[project.entry-points."compress.techniques"\] "acme.wrong" = "tests.ext'),
        (Wrong, says_what_it_does, r"its docstring lacks \['Attributes:', 'Needs:', 'Reduces:', 'Limits:', 'Source:'"),
        (Chance, repeats_itself, "the same seed gives other weights; draw from the generator alone"),
        (Nothing, has_the_sizes_it_claims, r"it claims to reduce parameters, which went from (\d+) to \1$"),
        (Larger, has_the_sizes_it_claims, r"it raises parameters from \d+ to \d+ and does not say so"),
        (Unmasked, answers_soundly, "its outputs depend on the other examples of a batch: they differ by"),
        (Wrong, is_refused, "it runs on a family that it is said to refuse"),
    ],
)
def test_a_rule_that_is_not_kept(technique, check, sentence, tmp_path):
    with pytest.raises(AssertionError, match=sentence):
        check(case(technique, tmp_path))


def test_it_says_which_check_failed():
    with pytest.raises(AssertionError, match=r"acme.wrong: check 'found_by_its_name' failed: no installed package"):
        check_technique(Wrong)
