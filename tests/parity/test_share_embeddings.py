"""Factorised embeddings against the best approximation of their rank, counts by hand, and the untouched model."""

import numpy as np
import pytest
import torch

from compress import load
from compress.artifact.artifact import Artifact
from compress.artifact.structure import structure_of
from compress.distill.labels import LabelTraining
from compress.engine.steps import run
from compress.export import export_onnx
from compress.export.runtime.answering import Runtime
from compress.modules.factorised import FactorisedDecoder, FactorisedEmbedding
from compress.modules.packed import PackedEmbedding
from compress.prune.magnitude import MagnitudePruning
from compress.quantize.weights import WeightQuantization
from compress.recipe import Recipe
from compress.share.embedding_directions import moment_of_sum, principal, second_moment, token_shares
from compress.share.embeddings import FactorisedEmbeddings
from compress.technique import Inputs
from eval.inference import predict
from teachers.anatomy.encoder import embedding_parts, embedding_projection, word_embeddings
from teachers.anatomy.padding import silence
from tests.tiny import FAMILIES, tiny_spec, tiny_task, tiny_taskmodel


@pytest.fixture
def task():
    return tiny_task("classification")


def matrix(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def plain(size, **fields):
    return FactorisedEmbeddings(size=size, recover=False, **fields)


def low_rank_tables(model, rank):
    """Make the tables that share a width with the words of one low rank together."""
    tables = [part.weight for part in embedding_parts(model.model).values() if part.weight.ndim == 2]
    width = word_embeddings(model.model).weight.shape[1]
    basis = matrix(rank, width, seed=5)
    with torch.no_grad():
        for seed, table in enumerate(tables):
            if table.shape[1] == width:
                table.copy_(matrix(len(table), rank, seed=seed) @ basis / rank)
    silence(model.model, model.tokenizer)
    return model


def test_the_table_is_the_nearest_of_its_rank(task):
    model = tiny_taskmodel("bert", task.spec)
    weight = word_embeddings(model.model).weight.detach().clone()
    values = np.linalg.svd(weight.numpy(), compute_uv=False) ** 2
    outcome = plain(8).apply(model, Inputs(), torch.Generator())
    table = outcome.model.model.get_input_embeddings()
    assert float((table.product() - weight).detach().square().sum()) == pytest.approx(float(values[8:].sum()), rel=1e-4)
    assert outcome.facts["lost"] == pytest.approx(float(values[8:].sum() / values.sum()), rel=1e-4)
    assert torch.allclose(table.project.weight.T @ table.project.weight, torch.eye(8), atol=1e-5)
    assert word_embeddings(outcome.model.model) is table.table, "the rows of words are found through the factors"


def test_the_counts_of_the_paper():
    """BERT-base with a vocabulary of 30,000: 23,040,000 numbers become 30,000 · 128 + 128 · 768."""
    from transformers import BertConfig, BertModel

    with torch.device("meta"):
        before = BertModel(BertConfig(vocab_size=30_000))
        before.set_input_embeddings(FactorisedEmbedding(30_000, 768, 128))
    assert sum(p.numel() for p in before.parameters()) == 109_081_344 - 23_040_000 + 3_840_000 + 98_304


def test_frequent_words_are_kept_best(task):
    model = tiny_taskmodel("bert", task.spec)
    weight = word_embeddings(model.model).weight.detach().clone()
    shares = token_shares(model, task.train)
    counts = torch.ones(len(weight), dtype=torch.float64)
    for feature in model.encoder.encode(task.train):
        for number in feature.ids:
            counts[number] += 1
    assert torch.equal(shares, counts / counts.sum())

    def error(technique):
        outcome = technique.apply(tiny_taskmodel("bert", task.spec), Inputs(calibration=task.train), torch.Generator())
        found = outcome.model.model.get_input_embeddings().product().detach()
        return float(shares @ (found - weight).double().square().sum(dim=1))

    values = torch.linalg.svdvals(shares.sqrt()[:, None] * weight.double())
    assert error(plain(8, weighting="frequency")) == pytest.approx(float(values[8:].square().sum()), rel=1e-4)
    assert error(plain(8)) > error(plain(8, weighting="frequency"))


def test_moments_by_slow_loops():
    first, second = matrix(5, 3), matrix(2, 3, seed=1)
    p = torch.tensor([0.5, 0.2, 0.1, 0.1, 0.1], dtype=torch.float64)
    slow = torch.zeros(3, 3, dtype=torch.float64)
    for i in range(5):
        for j in range(2):
            x = (first[i] + second[j]).double()
            slow += p[i] / 2 * torch.outer(x, x)
    assert torch.allclose(moment_of_sum([first, second], [p, None]), slow, atol=1e-8)
    assert torch.allclose(second_moment(first, p), moment_of_sum([first], [p]), atol=1e-8)
    directions, lost = principal(slow, 2)
    values = torch.linalg.eigvalsh(slow)
    assert lost == pytest.approx(float(values[0] / values.sum()))
    assert torch.allclose(directions.T @ slow @ directions, torch.diag(values.flip(0)[:2]), atol=1e-8)


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_lost_where_the_rank_suffices(family, task):
    model = low_rank_tables(tiny_taskmodel(family, task.spec), 6)
    expected = np.stack(predict(model, task.validation[:6]).logits)
    outcome = plain(8).apply(model, Inputs(), torch.Generator())
    assert np.allclose(np.stack(predict(outcome.model, task.validation[:6]).logits), expected, atol=1e-4)
    assert outcome.facts["lost"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("deberta-v2", {}),
        ("deberta-v2", {"embedding_size": 16}),
        ("deberta-v2", {"position_biased_input": True, "type_vocab_size": 2}),
        ("mobilebert", {}),
        ("mobilebert", {"embedding_size": 32, "trigram_input": False}),
    ],
)
def test_stock_is_exact_where_the_rank_suffices(family, changes, task, tmp_path):
    from transformers import AutoModelForSequenceClassification

    model = low_rank_tables(tiny_taskmodel(family, task.spec, **changes), 6)
    expected = np.stack(predict(model, task.validation[:6]).logits)
    outcome = plain(8, stock=True).apply(model, Inputs(), torch.Generator())
    small = outcome.model
    assert structure_of(small.model) == {}
    assert small.model.config.embedding_size == 8
    assert word_embeddings(small.model).weight.shape[1] == 8
    assert np.allclose(np.stack(predict(small, task.validation[:6]).logits), expected, atol=1e-4)
    Artifact.from_model(small).save(tmp_path / "a")
    network, info = AutoModelForSequenceClassification.from_pretrained(tmp_path / "a", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert embedding_projection(network) is not None


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in ("xlnet", "mobilebert")])
def test_the_decoder_stays_tied_through_both_factors(family, tmp_path):
    task = tiny_task("causal-lm" if family == "gpt2" else "masked-lm")
    model = low_rank_tables(tiny_taskmodel(family, task.spec), 6)
    inputs = model.encoder.collate(model.encoder.encode(task.validation[:4]))
    expected = model.forward(inputs)
    small = plain(8).apply(model, Inputs(), torch.Generator()).model
    assert np.allclose(small.forward(inputs), expected, atol=1e-4)
    table = small.model.get_input_embeddings()
    (decoder,) = [part for part in small.model.modules() if isinstance(part, FactorisedDecoder)]
    assert decoder.table.weight is table.table.weight
    assert decoder.project is table.project.weight
    result = Artifact.from_model(small)
    result.save(tmp_path / "a")
    again = load(tmp_path / "a")
    assert np.array_equal(again.forward(inputs), small.forward(inputs))
    (decoder,) = [part for part in again.model.modules() if isinstance(part, FactorisedDecoder)]
    assert decoder.table.weight is again.model.get_input_embeddings().table.weight
    assert again.size() == result.size()


def test_the_gradient_of_a_tied_factor_is_the_sum_of_both_places():
    task = tiny_task("masked-lm")
    ids = torch.from_numpy(
        tiny_taskmodel("bert", task.spec).encoder.collate(
            tiny_taskmodel("bert", task.spec).encoder.encode(task.validation[:2])
        )["input_ids"]
    )
    tied = plain(8).apply(tiny_taskmodel("bert", task.spec), Inputs(), torch.Generator()).model.model
    apart = plain(8).apply(tiny_taskmodel("bert", task.spec), Inputs(), torch.Generator()).model.model
    decoder = apart.cls.predictions.decoder
    decoder.table.weight = torch.nn.Parameter(decoder.table.weight.detach().clone())
    decoder.project = torch.nn.Parameter(decoder.project.detach().clone())
    for network in (tied, apart):
        network(input_ids=ids).logits.square().mean().backward()
    table = apart.get_input_embeddings()
    total = table.table.weight.grad + decoder.table.weight.grad
    assert torch.allclose(tied.get_input_embeddings().table.weight.grad, total, atol=1e-6)
    total = table.project.weight.grad + decoder.project.grad
    assert torch.allclose(tied.get_input_embeddings().project.weight.grad, total, atol=1e-6)


@pytest.mark.parametrize("later", [LabelTraining(max_steps=3), WeightQuantization()])
def test_zeros_of_the_table_stay_in_the_decoder_and_it_is_packed_with_the_table(later):
    task = tiny_task("masked-lm")
    pruned = MagnitudePruning(recover=False, schedule="once", sparsity=0.5, parts=("embeddings",))
    model, inputs = tiny_taskmodel("bert", task.spec), Inputs(train=task.train)
    result = run(Recipe(steps=(plain(16), pruned, later)), model, inputs, dry_run_first=False).model
    (decoder,) = [part for part in result.modules() if isinstance(part, FactorisedDecoder)]
    table = result.get_input_embeddings().table
    if later.name == "quantize.weights":
        assert isinstance(table, PackedEmbedding)
        assert decoder.table.codes is table.codes
    else:
        assert decoder.table.weight is table.weight
        assert (table.weight == 0).float().mean() == pytest.approx(0.5, abs=0.01)


def test_what_is_refused():
    model = tiny_taskmodel("bert")
    words = word_embeddings(model.model).num_embeddings
    most = (words * 32 - 1) // (words + 32)
    (problem,) = plain(128).check(model, Inputs())
    assert problem == (
        f"share.embeddings: size 128 does not make the table of {words} x 32 numbers smaller; at most {most}"
    )
    (problem,) = plain(8, stock=True).check(tiny_taskmodel("electra"), Inputs())
    assert "no standard electra can hold it" in problem
    assert "share.layers with stock: true" in problem
    (problem,) = plain(8).check(tiny_taskmodel("mobilebert", tiny_spec("masked-lm")), Inputs())
    assert "the masked-language head of mobilebert" in problem
    (problem,) = plain(8, stock=True).check(tiny_taskmodel("deberta-v2", tiny_spec("masked-lm")), Inputs())
    assert problem.endswith("leave out stock: true")
    assert plain(8, weighting="frequency").needed() == {"calibration"}


def test_twice_is_narrower_and_then_nothing(task):
    model = tiny_taskmodel("bert", task.spec)
    once = plain(10).apply(model, Inputs(), torch.Generator()).model
    twice = plain(4).apply(once, Inputs(), torch.Generator()).model
    direct = plain(4).apply(tiny_taskmodel("bert", task.spec), Inputs(), torch.Generator()).model
    products = [m.model.get_input_embeddings().product() for m in (twice, direct)]
    assert torch.allclose(*products, atol=1e-4)
    digest = twice.model.get_input_embeddings().table.weight.clone()
    outcome = plain(8).apply(twice, Inputs(), torch.Generator())
    assert outcome.facts == {"size": 4}
    assert torch.equal(outcome.model.model.get_input_embeddings().table.weight, digest)


@pytest.mark.parametrize("family", ["bert", "xlnet", "mobilebert"])
def test_healed_saved_and_exported(family, task, tmp_path):
    technique = FactorisedEmbeddings(size=8, max_steps=2, batch_size=8)
    source = tiny_taskmodel(family, task.spec)
    artifact = run(Recipe(steps=(technique,)), source, Inputs(train=task.train), dry_run_first=False)
    record = artifact.lineage[-1]
    words, width = word_embeddings(source.model).weight.shape
    assert record.size_before["parameters"] - record.size_after["parameters"] == words * width - 8 * (words + width)
    assert record.size_after["macs"] - record.size_before["macs"] == 8 * width * record.size_after["macs_length"]
    artifact.save(tmp_path / "a")
    expected = np.stack(predict(artifact, task.validation[:6]).logits)
    assert np.array_equal(np.stack(predict(load(tmp_path / "a"), task.validation[:6]).logits), expected)
    report = export_onnx(artifact, tmp_path / "fp32", examples=task.validation)
    assert np.allclose(np.stack(Runtime(tmp_path / "fp32").predict(task.validation[:6]).logits), expected, atol=1e-5)
    assert report.bytes < record.size_before["bytes"] + 100_000
