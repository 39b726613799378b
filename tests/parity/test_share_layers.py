"""Shared layers against the paper's counts, unshared networks with equal weights, and a search by hand."""

import numpy as np
import pytest
import torch

from compress import load
from compress.engine.steps import run
from compress.export import export_onnx
from compress.export.runtime.answering import Runtime
from compress.recipe import Recipe
from compress.share.embeddings import FactorisedEmbeddings
from compress.share.layers import LayerSharing, distortions, group_of, grouped, share
from compress.share.lowrank import LowRank
from compress.technique import Inputs
from eval.errors import UserError
from eval.inference import predict
from teachers.anatomy.encoder import albert_groups, embedding_parts, layer_parts, layers, word_embeddings
from teachers.training.config import Training
from teachers.training.scheduled_modules import parameter_groups
from tests.tiny import FAMILIES, tiny_spec, tiny_task, tiny_taskmodel

BERT_LIKE = ("bert", "roberta", "ernie", "distilbert", "electra")


@pytest.fixture
def task():
    return tiny_task("classification")


def plain(**fields):
    return LayerSharing(recover=False, **fields)


def changed(technique, model, **inputs):
    return technique.apply(model, Inputs(**inputs), torch.Generator()).model


def logits(model, examples):
    return np.stack(predict(model, examples).logits)


def count(network):
    return sum(parameter.numel() for parameter in network.parameters())


# ---- the paper's numbers


def test_groups_of_the_paper():
    assert [group_of(i, 12, 1) for i in range(12)] == [0] * 12
    assert [group_of(i, 12, 3) for i in range(12)] == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    assert grouped(3, 2) == [(0, 1), (2,)]
    from transformers import AlbertConfig

    for depth in (6, 12, 18, 24, 36):  # of 18 layers in 14 groups and 36 in 28 floats give some layer the group before
        for groups in range(1, depth + 1):
            config = AlbertConfig(num_hidden_layers=depth, num_hidden_groups=groups)
            assert albert_groups(config) == [group_of(i, depth, groups) for i in range(depth)]


@pytest.mark.parametrize(
    ("what", "wide", "narrow"),
    [
        ("none", 109_081_344, 89_650_176),
        ("attention", 83_078_400, 63_647_232),
        ("ffn", 57_117_696, 37_686_528),
        ("all", 31_114_752, 11_683_584),
    ],
)
def test_parameters_of_the_paper(what, wide, narrow):
    """The encoders of BERT-base with 30,000 words, and of ALBERT-base with E = 128, twelve layers each."""
    from transformers import AlbertConfig, AlbertModel, BertConfig, BertModel

    albert = AlbertConfig(
        hidden_size=768, num_attention_heads=12, intermediate_size=3072, num_hidden_layers=12, num_hidden_groups=12
    )
    with torch.device("meta"):
        networks = BertModel(BertConfig(vocab_size=30_000)), AlbertModel(albert)
    for network, expected in zip(networks, (wide, narrow), strict=True):
        every = layers(network)
        if what != "none":
            share(network, every, every[0], what)
        assert count(network) == expected


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((12, 768, 12), 11_683_584),
        ((24, 1024, 16), 17_683_968),
        ((24, 2048, 32), 58_724_864),
        ((12, 4096, 64), 222_595_584),
    ],
)
def test_albert_as_a_student_has_the_parameters_of_the_paper(shape, expected):
    from compress.student.student import Student

    depth, hidden, heads = shape
    teacher = tiny_taskmodel("bert", tiny_spec("embedding"))
    student = Student(
        family="albert",
        init="random",
        layers=depth,
        hidden_size=hidden,
        heads=heads,
        intermediate_size=4 * hidden,
        embedding_size=128,
        vocab_size=30_000,
        max_positions=512,
        options={"type_vocab_size": 2},
    )
    assert student.predict(teacher).student.parameters == expected


# ---- sharing


@pytest.mark.parametrize("what", ["all", "attention", "ffn"])
@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "albert"])
def test_shared_parts_are_the_same_tensors(family, what, task):
    model = changed(plain(share=what, groups=2), tiny_taskmodel(family, task.spec))
    first, second, third = layers(model.model)
    given = tiny_taskmodel(family, task.spec).model
    own = dict(given.named_parameters())
    same = {name for name, p in first.named_parameters() if any(p is q for q in second.parameters())}
    assert same
    if what == "all":
        lacking = {"attn_norm.weight"} if family == "modernbert" else set()
        assert {name for name, _ in second.named_parameters()} == same | lacking
    assert not any(p is q for p in third.parameters() for q in first.parameters())
    stem = next(name for name, module in model.model.named_modules() if module is first).removesuffix("0")
    for name, parameter in first.named_parameters():
        pieces = own[f"{stem}0.{name}"], own[f"{stem}1.{name}"]
        expected = (pieces[0] + pieces[1]) / 2 if name in same else pieces[0]
        assert torch.allclose(parameter, expected, atol=1e-6), name
    for name, parameter in third.named_parameters():
        assert torch.equal(parameter, own[f"{stem}2.{name}"])


def test_blocks_share_their_own_norms(task):
    model = changed(plain(share="attention"), tiny_taskmodel("bert", task.spec)).model
    parts = [layer_parts(model, layer) for layer in layers(model)]
    assert {role for role in parts[0] if parts[0][role] is parts[1][role] is parts[2][role]} == {
        *("query", "key", "value", "attention_output", "attention_norm")
    }
    model = changed(plain(share="ffn"), tiny_taskmodel("bert", task.spec)).model
    parts = [layer_parts(model, layer) for layer in layers(model)]
    assert {role for role in parts[0] if parts[0][role] is parts[2][role]} == {"ffn_in", "ffn_out", "ffn_norm"}


@pytest.mark.parametrize("what", ["all", "attention", "ffn"])
def test_the_gradient_of_a_shared_tensor_is_the_sum_over_its_places(what, task):
    """The unshared network holds equal weights in every layer."""
    tied = changed(plain(share=what), tiny_taskmodel("bert", task.spec))
    apart = changed(plain(share=what), tiny_taskmodel("bert", task.spec))
    for number, layer in enumerate(layers(apart.model)):
        for part in list(layer.modules()):
            for name, parameter in list(part._parameters.items()):
                part._parameters[name] = torch.nn.Parameter(parameter.detach().clone())
        if number:
            assert all(p is not q for p in layer.parameters() for q in layers(apart.model)[0].parameters())
        for path in [path for path, part in layer.named_modules() if part._parameters]:
            import copy

            layer.set_submodule(path, copy.deepcopy(layer.get_submodule(path)))
    assert count(apart.model) > count(tied.model)
    inputs = tied.encoder.collate(tied.encoder.encode(task.train[:4]))
    tensors = {name: torch.from_numpy(values) for name, values in inputs.items()}
    for model in (tied, apart):
        out = model.model(**tensors).logits
        out.square().sum().backward()
    pieces = [dict(layer.named_parameters()) for layer in layers(apart.model)]
    shared = 0
    for name, parameter in layers(tied.model)[0].named_parameters():
        places = [i for i, layer in enumerate(layers(tied.model)) if layer.get_parameter(name) is parameter]
        shared += len(places) == 3
        expected = sum(pieces[i][name].grad for i in places)
        assert torch.allclose(parameter.grad, expected, atol=1e-4, rtol=1e-4), name
    assert shared == {"all": 16, "attention": 10, "ffn": 6}[what]


def test_the_optimizer_counts_a_shared_tensor_once(task):
    model = changed(plain(), tiny_taskmodel("bert", task.spec)).model
    groups = parameter_groups(list(dict.fromkeys(model.parameters())), {}, Training())
    listed = [parameter for group in groups for parameter in group["params"]]
    assert len(listed) == len({id(parameter) for parameter in listed})
    assert sum(parameter.numel() for parameter in listed) == count(model)


def test_the_least_distortion_by_hand(task):
    model = tiny_taskmodel("bert", task.spec)
    found = distortions(model, [(0, 1), (2,)], "all", task.train[:20])
    assert found[2] == 0.0

    def states(network, example):
        inputs = model.encoder.collate(model.encoder.encode([example]))
        with torch.no_grad():
            tensors = {name: torch.from_numpy(values) for name, values in inputs.items()}
            return network(**tensors, output_hidden_states=True).hidden_states

    for layer in (0, 1):
        other = tiny_taskmodel("bert", task.spec)
        every = layers(other.model)
        every[1 - layer].load_state_dict(every[layer].state_dict())
        moved, length = np.zeros(2), np.zeros(2)
        for example in task.train[:20]:
            before, after = states(model.model, example), states(other.model, example)
            for place in (0, 1):
                moved[place] += float((after[place + 1] - before[place + 1]).square().sum())
                length[place] += float(before[place + 1].square().sum())
        assert found[layer] == pytest.approx((moved / length).sum(), rel=1e-4)
    before = {name: tensor.clone() for name, tensor in model.model.state_dict().items()}
    outcome = plain(init="least", groups=2).apply(model, Inputs(calibration=task.train[:20]), torch.Generator())
    best = min((0, 1), key=found.__getitem__)
    assert (outcome.facts["groups"], outcome.facts["from"]) == ([0, 0, 1], [best, 2])
    first = layers(outcome.model.model)[0].attention.self.query.weight
    assert torch.equal(first, before[f"bert.encoder.layer.{best}.attention.self.query.weight"])


def test_a_chosen_layer_runs_in_every_place(task):
    found = changed(plain(init=(2,)), tiny_taskmodel("bert", task.spec))
    other = tiny_taskmodel("bert", task.spec)
    for layer in layers(other.model)[:2]:
        layer.load_state_dict(layers(other.model)[2].state_dict())
    assert np.array_equal(logits(found, task.validation[:6]), logits(other, task.validation[:6]))


def test_equal_layers_lose_nothing(task):
    model = tiny_taskmodel("bert", task.spec)
    for layer in layers(model.model)[1:]:
        layer.load_state_dict(layers(model.model)[0].state_dict())
    expected = logits(model, task.validation[:6])
    assert np.allclose(logits(changed(plain(), model), task.validation[:6]), expected, atol=1e-6)


def test_factorised_layers_share_the_mean_of_their_products(task):
    model = changed(LowRank(rank=6, recover=False), tiny_taskmodel("bert", task.spec))
    products = torch.stack([layer_parts(model.model, layer)["query"].product() for layer in layers(model.model)])
    left, values, right = torch.linalg.svd(products.mean(dim=0))
    shared = changed(plain(), model)
    found = layer_parts(shared.model, layers(shared.model)[2])["query"]
    assert torch.allclose(found.product(), left[:, :6] @ values[:6].diag() @ right[:6], atol=1e-4)
    uneven = changed(LowRank(energy=0.6, recover=False), tiny_taskmodel("bert", task.spec))
    ranks = {layer_parts(uneven.model, layer)["query"].rank for layer in layers(uneven.model)}
    if len(ranks) > 1:
        with pytest.raises(UserError, match="differs in shape from layer to layer"):
            changed(plain(), uneven)


def test_what_is_refused():
    bert = tiny_taskmodel("bert")
    assert plain().check(bert, Inputs()) == []
    (problem,) = plain().check(tiny_taskmodel("albert"), Inputs())
    assert problem == "share.layers: albert shares its layers already; leave the step out"
    (problem,) = plain(groups=3).check(bert, Inputs())
    assert problem == "share.layers: groups 3 of 3 layers share nothing; at most 2"
    (problem,) = plain(groups=2, init=(2, 0)).check(bert, Inputs())
    assert problem == "share.layers: init [2, 0] must name one layer of each group, of [[0, 1], [2]]"
    (problem,) = plain(stock=True).check(tiny_taskmodel("mobilebert"), Inputs())
    assert problem == "share.layers: stock: mobilebert does not compute as ALBERT does; leave out stock: true"
    (problem,) = plain(stock=True, embedding_size=64).check(bert, Inputs())
    assert "embedding_size 64 is above the hidden size 32" in problem
    (problem,) = plain(stock=True, embedding_size=8).check(tiny_taskmodel("bert", tiny_spec("masked-lm")), Inputs())
    assert problem.endswith("write 32")
    (problem,) = plain(stock=True, embedding_size=8).check(tiny_taskmodel("electra"), Inputs())
    assert "has embeddings of 16 channels" in problem
    with pytest.raises(ValueError, match="an ALBERT shares whole layers"):
        plain(stock=True, share="ffn")
    with pytest.raises(ValueError, match="write stock: true beside it"):
        plain(embedding_size=8)


@pytest.mark.parametrize("family", ["bert", "xlnet", "modernbert", "mobilebert"])
def test_saved_once_and_exported(family, task, tmp_path):
    technique = LayerSharing(max_steps=2, batch_size=8)
    source = tiny_taskmodel(family, task.spec)
    artifact = run(Recipe(steps=(technique,)), source, Inputs(train=task.train), dry_run_first=False)
    artifact.save(tmp_path / "a")
    again = load(tmp_path / "a")
    expected = logits(artifact, task.validation[:6])
    assert np.array_equal(logits(again, task.validation[:6]), expected)
    assert again.size() == artifact.size()
    assert count(again.model) == count(artifact.model) < count(source.model)
    file = (tmp_path / "a" / "model.safetensors").stat().st_size
    assert file < 4 * count(artifact.model) + 40_000
    export_onnx(artifact, tmp_path / "fp32", examples=task.validation)
    assert np.allclose(np.stack(Runtime(tmp_path / "fp32").predict(task.validation[:6]).logits), expected, atol=1e-5)
    assert (tmp_path / "fp32" / "model.onnx").stat().st_size < 4 * count(artifact.model) + 400_000


# ---- a standard ALBERT


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("bert", "classification"),
        ("roberta", "classification"),
        ("ernie", "tagging"),
        ("distilbert", "tagging"),
        ("electra", "qa"),
        ("bert", "masked-lm"),
    ],
)
def test_an_albert_of_the_hidden_size_is_the_same_network(family, kind, groups):
    task = tiny_task(kind)
    shared = changed(plain(groups=groups), tiny_taskmodel(family, task.spec))
    albert = changed(plain(groups=groups, stock=True), tiny_taskmodel(family, task.spec))
    assert albert.model.config.model_type == "albert"
    assert albert.model.config.num_hidden_groups == groups
    inputs = [model.encoder.collate(model.encoder.encode(task.validation[:4])) for model in (shared, albert)]
    assert np.allclose(albert.forward(inputs[1]), shared.forward(inputs[0]), atol=2e-5)


def test_a_narrower_albert_is_the_same_network_where_the_rank_suffices(task):
    """All tables together lie in 7 directions, and 8 channels whose mean is 0 hold 7."""

    def low_rank():
        model = tiny_taskmodel("bert", task.spec)
        generator = torch.Generator().manual_seed(3)
        basis = torch.randn(7, 32, generator=generator)
        with torch.no_grad():
            for role, part in embedding_parts(model.model).items():
                if role != "norm":
                    part.weight.copy_(torch.randn(len(part.weight), 7, generator=generator) @ basis)
        return model

    shared = changed(plain(), low_rank())
    outcome = plain(stock=True, embedding_size=8).apply(low_rank(), Inputs(), torch.Generator())
    assert outcome.facts["lost_embeddings"] == pytest.approx(0, abs=1e-12)
    assert word_embeddings(outcome.model.model).weight.shape[1] == 8
    assert np.allclose(logits(outcome.model, task.validation[:6]), logits(shared, task.validation[:6]), atol=1e-4)


def test_how_far_a_narrower_albert_is_before_it_is_healed(task):
    """The variance of the first layer's input that is lost: about the part that the chosen directions leave out."""
    shared = changed(plain(), tiny_taskmodel("bert", task.spec))
    inputs = shared.encoder.collate(shared.encoder.encode(task.validation))
    tensors = {name: torch.from_numpy(values) for name, values in inputs.items()}
    mask = tensors["attention_mask"].bool()

    def embedded(model):
        with torch.no_grad():
            if model.model.config.model_type == "bert":
                return model.model.bert.embeddings(tensors["input_ids"], tensors["token_type_ids"])[mask]
            network = model.model.albert
            hidden = network.embeddings(tensors["input_ids"], tensors["token_type_ids"])
            return network.encoder.embedding_hidden_mapping_in(hidden)[mask]

    bias = shared.model.bert.embeddings.LayerNorm.bias.detach()
    expected, found = embedded(shared), {}
    for size in (4, 8, 16, 24, 31):
        outcome = plain(stock=True, embedding_size=size).apply(
            tiny_taskmodel("bert", task.spec), Inputs(), torch.Generator()
        )
        distance = (embedded(outcome.model) - expected).square().sum() / (expected - bias).square().sum()
        found[size] = (float(distance), outcome.facts["lost_embeddings"])
    distances = [distance for distance, _ in found.values()]
    assert distances == sorted(distances, reverse=True)
    # Measured with these random tables, whose directions are all alike.
    assert distances == pytest.approx([0.447, 0.326, 0.166, 0.064, 0.004], abs=0.002)
    assert all(abs(distance - lost) < 0.01 for distance, lost in found.values()), "about what the directions lose"


def test_the_albert_loads_without_this_project(task, forker, tmp_path):
    steps = (
        FactorisedEmbeddings(size=8, recover=False),
        LayerSharing(stock=True, groups=2, max_steps=2, batch_size=8),
    )
    artifact = run(
        Recipe(steps=steps), tiny_taskmodel("bert", task.spec), Inputs(train=task.train), dry_run_first=False
    )
    assert artifact.model.config.embedding_size == 8
    artifact.save(tmp_path / "a")
    again = load(tmp_path / "a")
    assert np.array_equal(logits(again, task.validation[:4]), logits(artifact, task.validation[:4]))
    texts = [example["text"] for example in task.validation[:4]]
    code = (
        "import sys, json, torch\n"
        "from transformers import AutoModelForSequenceClassification as M, AutoTokenizer as T\n"
        "model, info = M.from_pretrained(sys.argv[1], output_loading_info=True)\n"
        "assert type(model).__name__ == 'AlbertForSequenceClassification', type(model)\n"
        "assert not info['missing_keys'] and not info['unexpected_keys'], info\n"
        "batch = T.from_pretrained(sys.argv[1])(json.loads(sys.argv[2]), padding=True, return_tensors='pt')\n"
        "print(json.dumps(model.eval()(**batch).logits.tolist()))"
    )
    import json

    printed = forker.program(code, str(tmp_path / "a"), json.dumps(texts), cwd=tmp_path, stock=True)
    assert np.allclose(json.loads(printed.splitlines()[-1]), logits(artifact, task.validation[:4]), atol=1e-5)
    export_onnx(artifact, tmp_path / "fp32", examples=task.validation)
    assert not (tmp_path / "a" / "structure.json").exists()
