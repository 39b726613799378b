"""Attributions against formulas: a linear model, the path integral as a plain sum, attention multiplied by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertConfig

from compress.architectures.bilstm_network import BiLstmConfig, BiLstmForSequenceClassification
from eval.errors import UserError
from teachers.anatomy.attention_heads import eager_attention
from teachers.attribution.attention_rollout import attention_rollout, no_attention, rolled_out
from teachers.attribution.integrated_gradients import ROUGH, integrated_gradients
from teachers.attribution.text_attributions import GRADIENTS, ROLLOUT, explain, predicted_label, usual_baseline
from teachers.taskmodel import weights_digest
from tests.tiny import tiny_spec, tiny_task, tiny_taskmodel

TEXT = {"text": "the film was good and very warm ."}
OTHERS = ("roberta", "xlnet", "mobilebert", "gpt2")


class Linear(nn.Module):
    """Adds up one number a token."""

    def __init__(self, times: int = 1) -> None:
        super().__init__()
        self.config = BertConfig()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.words, self.head, self.times = nn.Embedding(9, 4), nn.Linear(4, 1), times

    def get_input_embeddings(self) -> nn.Embedding:
        return self.words

    def forward(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": sum(self.head(self.words(input_ids).sum(dim=1)) for _ in range(self.times))}


def attributed(network, ids, replaced, steps=3):
    inputs = {"input_ids": torch.tensor([ids])}
    return integrated_gradients(network, inputs, replaced, 0, lambda outputs: outputs["logits"][:, 0], steps)


def inputs_of(model, example=TEXT):
    encoder = model.encoder
    return {name: torch.from_numpy(values) for name, values in encoder.collate(encoder.encode([example])).items()}


class TestIntegratedGradients:
    def test_of_a_linear_model_they_are_what_each_token_adds(self):
        network = Linear()
        found, missing = attributed(network, [3, 5, 5, 8], [1, 2, 3])
        with torch.no_grad():
            added = [
                float((network.words.weight[word] - network.words.weight[0]) @ network.head.weight[0])
                for word in (5, 8)
            ]
        assert found == pytest.approx([0.0, added[0], added[0], added[1]], abs=1e-6)
        assert missing == pytest.approx(0.0, abs=1e-6)

    def test_of_bert_they_are_the_path_integral(self):
        """The paper's sum over equal steps, through ``inputs_embeds`` of transformers."""
        model, steps = tiny_taskmodel("bert"), 200
        network, inputs = model.model, inputs_of(model)
        table, ids = network.get_input_embeddings(), inputs["input_ids"]
        other = ids.clone()
        other[0, 1:-1] = model.tokenizer.pad_token_id
        start, end = table(other).detach(), table(ids).detach()
        rest = {name: values.expand(steps, -1) for name, values in inputs.items() if name != "input_ids"}
        shares = (torch.arange(steps) + 0.5) / steps
        points = (start + shares[:, None, None] * (end - start)).requires_grad_()
        logits = network(inputs_embeds=points, **rest).logits
        total = torch.autograd.grad((logits[:, 1] - logits[:, 0]).sum(), points)[0].mean(dim=0)
        expected = ((end - start) * total).sum(dim=-1)[0].numpy()
        found = explain(model, TEXT, "good").methods[GRADIENTS].values
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-5)
        assert np.abs(found).max() > 1e-3
        assert explain(model, TEXT, "bad").methods[GRADIENTS].values == pytest.approx(-found, abs=1e-6)

    @pytest.mark.parametrize("family", OTHERS)
    def test_they_sum_to_what_they_explain(self, family):
        """Completeness; words are exchanged behind the look-up, for RoBERTa's positions follow the ids."""
        model = tiny_taskmodel(family)
        found = explain(model, TEXT, "good", rollout=False)
        own, inputs, table = found.methods[GRADIENTS], inputs_of(model), model.model.get_input_embeddings()
        empty = inputs["input_ids"].clone()
        empty[0, [place for place, span in enumerate(own.spans) if span is not None]] = model.tokenizer.pad_token_id
        with torch.no_grad():
            vectors = table(empty.T if family == "xlnet" else empty)
            logits = [model.model(**inputs).logits[0]]
            handle = table.register_forward_hook(lambda *_: vectors)
            logits.append(model.model(**inputs).logits[0])
            handle.remove()
        whole, nothing = (float(row[1] - row[0]) for row in logits)
        assert abs(whole - nothing) > 1e-3
        assert found.difference == pytest.approx(whole - nothing, abs=1e-5)
        assert own.values.sum() == pytest.approx(whole - nothing, rel=0.01, abs=1e-4)
        assert all(value == 0 for value, span in zip(own.values, own.spans, strict=True) if span is None)

    def test_an_uneven_way_has_as_many_points_as_it_needs(self):
        model = tiny_taskmodel("bert")
        with torch.no_grad():
            model.model.get_input_embeddings().weight.mul_(100)
        few, many = (explain(model, TEXT, "good", steps=steps, rollout=False) for steps in (20, None))
        assert abs(few.missing) > ROUGH * abs(few.difference)
        assert abs(many.missing) < abs(few.missing) / 2
        assert many.difference == pytest.approx(few.difference, rel=1e-4)

    def test_few_steps_miss_more(self):
        model = tiny_taskmodel("bert", tiny_spec(), 0, initializer_range=0.5)
        coarse, fine = (abs(explain(model, TEXT, "good", steps=steps, rollout=False).missing) for steps in (1, 20))
        assert fine < coarse / 20

    def test_the_mask_where_padding_has_no_gradient(self):
        """All vectors between DeBERTa's padding, which is 0, and a word have the same norm."""
        model = tiny_taskmodel("deberta-v2")
        with torch.no_grad():
            model.model.get_input_embeddings().weight[model.tokenizer.pad_token_id] = 0
        assert usual_baseline([tiny_taskmodel("bert"), model]) == "mask"
        assert usual_baseline([tiny_taskmodel("bert")]) == "pad"
        usual, padding = (
            explain(model, TEXT, "good", baseline=name, steps=20, rollout=False) for name in (None, "pad")
        )
        assert abs(usual.missing) < 0.02 * abs(usual.difference)
        assert abs(padding.missing) > 0.1 * abs(padding.difference)

    def test_the_network_stays_as_it_was(self):
        whole = tiny_taskmodel("bert")
        network = whole.model.train()
        before, attention = weights_digest(network), network.config._attn_implementation
        explain(whole, TEXT)
        assert weights_digest(network) == before
        assert network.training
        assert network.config._attn_implementation == attention
        assert all(parameter.grad is None for parameter in network.parameters())
        assert not network.get_input_embeddings()._forward_hooks

    def test_words_that_are_moved_and_looked_up_twice(self):
        """Whatever a network does to the ids first, the attribution is that of the token at its place in the input."""
        ids = [3, 5, 5, 8]
        once, _ = attributed(Linear(), ids, [1, 2, 3])
        twice, missing = attributed(Linear(times=2), ids, [1, 2, 3])
        assert twice == pytest.approx(2 * once, abs=1e-6)
        assert missing == pytest.approx(0.0, abs=1e-6)

    def test_a_network_that_reverses_and_drops_tokens(self):
        model = tiny_taskmodel("bert")
        config = BiLstmConfig(vocab_size=len(model.tokenizer), embedding_size=6, hidden_size=5, num_labels=2)
        with torch.random.fork_rng():
            torch.manual_seed(3)
            found = explain(replace(model, model=BiLstmForSequenceClassification(config).eval()), TEXT, rollout=False)
        assert abs(found.missing) < 0.01 * abs(found.difference)
        assert np.count_nonzero(found.methods[GRADIENTS].values) == len(TEXT["text"].split())


class TestRollout:
    def test_two_layers_by_hand(self):
        first, second = (torch.rand(2, 3, 3).softmax(dim=-1) for _ in range(2))
        mixed = [(layer.numpy().mean(axis=0) + np.eye(3)) / 2 for layer in (first, second)]
        assert rolled_out([first, second]).numpy() == pytest.approx(mixed[1] @ mixed[0], abs=1e-6)

    @pytest.mark.parametrize(("family", "place"), [("bert", 0), ("gpt2", -1), ("xlnet", -1)])
    def test_the_row_of_the_state_that_the_head_reads(self, family, place):
        model = tiny_taskmodel(family)
        inputs = inputs_of(model)
        with torch.no_grad(), eager_attention(model.model):
            maps = model.model(**inputs, output_attentions=True).attentions
        found = attention_rollout(model.model, inputs)
        assert found == pytest.approx(rolled_out([one[0] for one in maps])[place].numpy(), abs=1e-6)
        assert found.sum() == pytest.approx(1.0)
        assert explain(model, TEXT).methods[ROLLOUT].values == pytest.approx(found)

    def test_heads_may_differ_by_layer(self):
        assert rolled_out([torch.full((2, 2, 2), 0.5), torch.full((5, 2, 2), 0.5)]).sum(dim=-1).tolist() == [1.0, 1.0]


def test_the_label_that_is_explained():
    spec = tiny_spec()
    model = tiny_taskmodel("bert", spec)
    said = predicted_label(model, TEXT)
    logits = model.forward(model.encoder.collate(model.encoder.encode([TEXT])))[0]
    assert said == spec.labels[int(logits.argmax())]
    own, named = explain(model, TEXT, rollout=False), explain(model, TEXT, said, rollout=False)
    assert own.difference == named.difference
    with pytest.raises(UserError, match="has no label 'fine'; its labels are bad, good"):
        explain(model, TEXT, "fine")


def test_of_several_labels_each_stands_alone():
    task = tiny_task("multilabel")
    model = tiny_taskmodel("bert", task.spec)
    found = {label: explain(model, task.test[0], label, rollout=False).difference for label in task.spec.labels}
    assert len({round(value, 6) for value in found.values()}) == len(found)
    number = tiny_task("regression")
    assert explain(tiny_taskmodel("bert", number.spec), number.test[0], rollout=False).difference


def test_windows_of_attention_cannot_be_rolled_out_and_no_report_is_lost():
    network = tiny_taskmodel("longformer", tiny_task().spec).model
    ids = torch.arange(5, 13)[None]
    why = no_attention(network, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    assert why.endswith("returns attention probabilities of windows, not of all tokens")
