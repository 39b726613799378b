"""The gradients of an optimizer step of every objective, whichever way its batch is cut.

``cases()`` finds the objectives by themselves: techniques that train, losses that a fine-tuning can name, objectives of
pretraining. Run as a script, by one process or by several, it writes the gradients of all of them into a file.
"""

import contextlib
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from pydantic import ValidationError

from compress.engine.steps import problems
from compress.registry import get, names
from eval.errors import UserError
from eval.kinds.kind_registry import kind_of
from eval.task import Examples
from teachers.finetuning.auxiliary_lm import WithLanguageModel
from teachers.losses.catalogue import InBatchNegatives, LossBlock
from teachers.pretraining import pretrain
from teachers.pretraining.objectives import Objectives
from teachers.pretraining.settings import Pretraining
from teachers.pretraining.text.sentence_pairs import PAIRS
from teachers.training import loop
from teachers.training.config import Training
from teachers.training.processes import is_first
from tests.conformance.battery import inputs_for, instance
from tests.parity.test_ranking import ranked
from tests.tiny import PLACES, tiny_task, tiny_taskmodel

KINDS = (
    "classification",
    "multilabel",
    "pairs",
    "regression",
    "tagging",
    "qa",
    "qa-with-null",
    "multiple-choice",
    "masked-lm",
    "embedding",
    "pairs of vectors",
    "ranked",
    "seq2seq",
)
FEW = ("classification", "tagging", "masked-lm", "seq2seq")
"""Kinds of task for techniques whose own loss is none, or whose result stands for itself."""

WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MARIAN_WITHOUT_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
GPT2_DROPOUT = ("resid_pdrop", "embd_pdrop", "attn_pdrop")

FIELDS = {
    "prune.layerdrop": {"rate": 0.0},
    "replace.theseus": {"schedule": "constant", "rate": 1.0},
    "distill.bilstm": {"dropout": 0.0},
    "distill.static": {"dropout": 0.0},
    "quantize.qbert": {"activation_bits": None},
    "distill.dual": {"hidden_size": 16, "vocab_size": 120},
}
"""Fields with which a forward pass draws nothing and measures no ranges, as the network has no dropout here."""

BY_FORWARD_PASS = {"quantize.q8bert": "its ranges of activations are averages over forward passes"}
"""Techniques whose update depends on the pieces of a batch, and why."""

VARIANTS = {
    "distill.tinybert": [{"reduction": "code"}],
    "distill.mobilebert": [{"reduction": "code", "strategy": "auxiliary"}, {"feature_maps": "normalised"}],
    "distill.embedding": [{"similarity": 1.0}, {"similarity": 1.0, "relation": "kl"}, {"dimensions": (32, 8)}],
    "distill.pkd": [{"tokens": "all"}],
    "distill.logits": [{"loss": "mse", "alpha": 0.7}, {"loss": "soft_cross_entropy", "alpha": 1.0}],
    "distill.distilbert": [{"only_predicted": True}],
    "distill.contrastive": [{"negatives": 2, "margin": 1.0}],
    "distill.margin_mse": [{"pairs": "all", "alpha": 0.5}],
    "distill.combined": [
        {
            "objective": {
                "distill.logits": {},
                "distill.labels": {"weight": 0.5},
                "distill.minilm": {"relation_heads": 4},
            }
        }
    ],
    "prune.magnitude": [{"objective": {"distill.tinybert": {"reduction": "code"}, "distill.labels": {}}}],
}
"""Further settings in which a technique is another loss."""


class Recorder(torch.optim.SGD):
    """Keeps the gradients of the steps and changes nothing."""

    def __init__(self, groups, found):
        super().__init__(groups, lr=0.0)
        self.found = found

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                self.found.append(gradient.detach().flatten().clone())


@contextlib.contextmanager
def recorded():
    """Collect the gradients of all steps that are trained inside; in float64, so that rounding hides nothing."""
    found, own, single = [], loop._optimizer, torch.Tensor.float
    loop._optimizer = lambda groups, training: Recorder(groups, found)
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(7)
            yield found
    finally:
        loop._optimizer, torch.Tensor.float = own, single
        torch.set_default_dtype(torch.float32)


def network(task, seed=0):
    """Return a tiny model in float64 without dropout."""
    writes = kind_of(task.spec.kind).writes
    family, without = ("marian", MARIAN_WITHOUT_DROPOUT) if writes else ("bert", WITHOUT_DROPOUT)
    built = tiny_taskmodel(family, task.spec, seed=seed, **without)
    built.model.double()
    return built


def uneven(kind):
    """Return a task whose texts have 1 to about 20 words, some without a label where they may be."""
    if kind == "ranked":
        return ranked("classification", queries=6)
    if kind == "pairs of vectors":
        return tiny_task("embedding", pair=True, examples=24)
    task = tiny_task("classification" if kind == "pairs" else kind, pair=kind == "pairs", examples=24)
    examples = Examples([stretched(*numbered) for numbered in enumerate(task.train)], "train")
    return type(task)(task.spec, {**task.splits, "train": examples})


def stretched(number, example):
    """Return an example with more words, a number that differs from neighbour to neighbour."""
    found, more = dict(example), (5 * number) % 13
    filler = " ".join(["and", "very", "warm"][: more % 4] * (1 + more // 4))
    for name in ("text", "text_b", "context"):
        if name in found:
            found[name] = f"{found[name]} {filler}".strip()
    if "tokens" in found:
        keep = 1 + number % 10
        found["tokens"] = [*found["tokens"][:keep], *filler.split()]
        found["tags"] = [*found["tags"][:keep], *["O"] * len(filler.split())]
    if "choices" in found:
        found["choices"] = [f"{one} {filler}" for one in found["choices"]][
            : 3 if found["label"] == 2 else 2 + number % 2
        ]
    if "label" in found and number % 5 == 3 and "text_a" not in found:
        del found["label"]
    return found


def techniques():
    """Yield every technique that trains, with the tasks that it is for, as a function of the training block."""
    for name in names():
        if not get(name).trains or name in BY_FORWARD_PASS:
            continue
        settings = [{}, *VARIANTS.get(name, [])] if name != "distill.combined" else VARIANTS[name]
        for number, fields in enumerate(settings):
            for kind in KINDS if get(name).is_objective else FEW:
                yield f"{name}{number or ''} on {kind}", trained(name, {**FIELDS.get(name, {}), **fields}, kind)


def trained(name, fields, kind):
    def gradients(training):
        task = uneven(kind)
        technique = instance(name, **fields)
        blocks = {key: block for key, block in technique if isinstance(block, Training)}
        changes = {key: block.model_copy(update=training) for key, block in blocks.items()}
        technique = technique.model_copy(update=changes)
        student, inputs = network(task), inputs_for(task, network(task, seed=1), None)
        if found := problems([technique], student, inputs):
            raise UserError(*found)
        with recorded() as found:
            technique.apply(student, inputs, torch.Generator().manual_seed(7))
        return found

    return gradients


def fine_tuned(objective, kind):
    def gradients(training):
        task = uneven(kind)
        with recorded() as found:
            loop.train(network(task), task.train, objective, Training(**training))
        return found

    return gradients


def losses():
    """Yield the losses that a fine-tuning can name, and the language model beside the labels."""
    for name in LossBlock.model_fields:
        for kind in ("pairs of vectors", "ranked"):
            yield f"loss: {name} on {kind}", fine_tuned(LossBlock(**{name: {}}).objective, kind)
    for kind in KINDS:
        yield f"auxiliary_lm on {kind}", fine_tuned(WithLanguageModel(), kind)
    yield "auxiliary_lm on pairs of vectors", fine_tuned(WithLanguageModel(InBatchNegatives()), "pairs of vectors")


def pretrained(task):
    def gradients(training):
        objectives = task.get("objectives", {})
        with tempfile.TemporaryDirectory() as folder:
            text = Path(folder) / "train.txt"
            sentences = [
                f"The film in {place} was good. {other} is a warm room.\n" for place in PLACES for other in PLACES
            ]
            text.write_text("\n".join(sentences))
            shape = {"layers": 2, "hidden_size": 16, "heads": 2, "max_positions": 64, "options": WITHOUT_DROPOUT}
            words = {"kind": "gpt2", "size": 300} if "next_word" in objectives else {"size": 120}
            shape |= {"family": "electra", "embedding_size": 16} if "rtd" in objectives else {"family": "bert"}
            if "next_word" in objectives:
                shape |= {"family": "gpt2", "options": dict.fromkeys(GPT2_DROPOUT, 0.0)}
            if "plm" in objectives:
                words, shape = words | {"kind": "xlnet"}, shape | {"family": "xlnet", "options": {"dropout": 0.0}}
            if {"span_corruption", "denoising", "masked_segment"} & set(objectives):
                words = {"kind": "t5", "size": 420}
                shape |= {"family": "t5", "decoder_layers": 1, "options": {"dropout_rate": 0.0}}
            stage = {"tasks": {"one": task}, "length": 32, "training": training}
            block = Pretraining(text=folder, tokenizer=words, network=shape, stages=[stage])
            with recorded() as found:
                run = pretrain._Run(block, 3)
                run.student.model.double()  # XLNet's own tensors are float32 whatever the default is
                run.train(Path(folder) / "working")
        return found

    return gradients


def pretext_tasks():
    """Yield every objective of pretraining, with the one that it goes with if it cannot stand alone."""
    spans = {"mlm": {"units": "span"}}
    for name in Objectives.model_fields:
        for objectives in ({name: {}}, {**spans, name: {}}):
            with contextlib.suppress(ValidationError):
                Objectives.model_validate(objectives)
                yield f"pretraining: {name}", pretrained({"objectives": objectives})
                break
    for name in PAIRS:
        yield f"pretraining: {name}", pretrained({"pair": name})
    yield "pretraining: reorder", pretrained({"reorder": 3})
    both = {"objectives": {"mlm": {}, "word_structural": {"size": 4}}, "pair": "next_sentence"}
    yield "pretraining: several", pretrained(both)


def cases():
    """Return every case by its name."""
    return {**dict(techniques()), **dict(losses()), **dict(pretext_tasks())}


def by_objective():
    """Return the cases of each objective; they begin at another kind of task from objective to objective."""
    grouped = {}
    for name, case in cases().items():
        grouped.setdefault(name.partition(" on ")[0], []).append((name, case))
    shifts = [(own, number % len(own)) for number, own in enumerate(grouped.values())]
    return [[*own[shift:], *own[:shift]] for own, shift in shifts]


def gradients(pieces, only="", few=0):
    """Return the gradients of cases by their names, ``[parameters]`` each; those that do not exist are left out.

    Args:
        pieces: Of a batch.
        only: What stands in their names.
        few: How many cases of each objective are enough; 0 takes all.
    """
    found = {}
    training = {"max_steps": 1, "batch_size": 12, "gradient_accumulation_steps": pieces, "max_grad_norm": 0}
    for own in by_objective():
        enough = len(found) + (few or len(own))
        for name, case in own:
            if only in name and len(found) < enough:
                with contextlib.suppress(UserError, ValidationError):
                    found[name] = torch.cat(case(training)).double().numpy()
    return found


if __name__ == "__main__":
    path, only, few = sys.argv[1:]
    arrays = gradients(2, only, int(few))
    if is_first():
        np.savez(path, **arrays)
