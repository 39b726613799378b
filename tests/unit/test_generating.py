"""Text that decoders write: sampling, the cache, and the export whose text is that of torch."""

import json
import shlex
import shutil
import subprocess
import sys

import numpy as np
import onnx
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from compress import Inputs, Recipe, run
from compress.cli import main
from compress.distill.labels import LabelTraining
from compress.export import export
from compress.export.check import gate
from compress.export.check.verification import verify
from compress.export.runtime import ExportError, Runtime
from compress.onnx_graph.cached_decoder import trace_with_cache
from compress.prune.heads import HeadPruning
from compress.quantize.weights import WeightQuantization
from eval.errors import CompressError, UserError
from eval.generation.generating import Generating, continued, shares
from eval.measurement import measure
from teachers.taskmodel import save_taskmodel
from teachers.training.config import Training
from tests.tiny import DECODERS, tiny_task, tiny_taskmodel

PROMPTS = ("ann lives in", "", "the film was very")


@pytest.fixture(scope="module")
def trained():
    task = tiny_task("causal-lm")
    training = Training(epochs=8, learning_rate=3e-3, batch_size=8)
    model = tiny_taskmodel("gpt2", task.spec)
    return task, run(Recipe(steps=(LabelTraining(training=training),)), model, Inputs(train=task.train))


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    task, model = trained
    root = tmp_path_factory.mktemp("exports")
    for to, int8 in (("onnx", False), ("generator", False), ("generator", True)):
        export(model, root / f"{to}-{int8}", to, int8=int8, examples=task.validation)
    return root


def torch_text(model, prompt, new_tokens):
    """Return what transformers' own greedy ``generate`` adds."""
    end = model.tokenizer.eos_token_id
    ids = torch.tensor([[end, *model.tokenizer(prompt, add_special_tokens=False).input_ids]])
    settings = {"do_sample": False, "max_new_tokens": new_tokens, "pad_token_id": end, "eos_token_id": end}
    found = model.model.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0, ids.shape[1] :]
    return model.tokenizer.decode([token for token in found.tolist() if token != end])


def test_the_next_command_of_a_generator_writes(trained, tmp_path, capsys):
    (tmp_path / "model").mkdir()
    save_taskmodel(trained[1], tmp_path / "model")
    out = tmp_path / "export"
    assert main(["export", str(tmp_path / "model"), "--to", "generator", "--out", str(out)]) == 0
    *_, told = capsys.readouterr().err.splitlines()
    assert told == f"next: python {out}/predict.py --generate 40 'a text to predict'"
    _, *words = shlex.split(told.removeprefix("next: "))
    ran = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
    assert "text" in json.loads(ran.stdout)


@pytest.mark.parametrize("folder", ["onnx-False", "generator-False"])
def test_greedy_text_is_that_of_torch(trained, exported, folder):
    runtime = Runtime(exported / folder)
    for prompt in PROMPTS:
        assert runtime.generate(prompt, 24) == torch_text(trained[1], prompt, 24)


@pytest.mark.parametrize("number_format", ["int8", "int4"])
def test_greedy_text_of_packed_weights_is_that_of_torch(number_format, trained, tmp_path):
    task, model = trained
    packed = run(Recipe(steps=(WeightQuantization(format=number_format),)), model, Inputs(train=task.train))
    export(packed, tmp_path / "out", "generator", examples=task.validation)
    runtime = Runtime(tmp_path / "out")
    assert [runtime.generate(one, 24) for one in PROMPTS] == [torch_text(packed, one, 24) for one in PROMPTS]


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        pytest.param("llama", {"num_key_value_heads": 2}),
        *(pytest.param(family, {}, marks=pytest.mark.slow) for family in DECODERS),
    ],
)
def test_greedy_text_of_further_decoders_is_that_of_torch(family, changes, tmp_path):
    task = tiny_task("causal-lm")
    model = tiny_taskmodel(family, task.spec, **changes)
    for to in ("onnx", "generator"):
        export(model, tmp_path / to, to, examples=task.validation[:8])
        runtime = Runtime(tmp_path / to)
        assert [runtime.generate(one, 24) for one in PROMPTS] == [torch_text(model, one, 24) for one in PROMPTS]


@pytest.mark.slow
@pytest.mark.parametrize("family", DECODERS)
def test_an_8_bit_export_of_further_decoders(family, tmp_path):
    task = tiny_task("causal-lm")
    steps = (LabelTraining(training=Training(epochs=8, learning_rate=3e-3, batch_size=8)),)
    model = run(Recipe(steps=steps), tiny_taskmodel(family, task.spec), Inputs(train=task.train))
    export(model, tmp_path / "out", "generator", int8=True, examples=task.validation)
    own, found = (measure(one, task).scores["perplexity"] for one in (model, Runtime(tmp_path / "out")))
    assert found == pytest.approx(own, rel=0.01)


def test_an_8_bit_export_writes_and_scores(trained, exported):
    task, model = trained
    runtime = Runtime(exported / "generator-True")
    assert runtime.generate("ann lives in", 8)
    own, found = (measure(one, task).scores["perplexity"] for one in (model, runtime))
    assert found == pytest.approx(own, rel=0.01)


def test_a_seed_draws_the_same_text_and_settings_choose_from_what(exported):
    runtime = Runtime(exported / "generator-False")
    texts = [runtime.generate("ann", 16, seed=seed) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert runtime.generate("ann", 16, seed=1, top_k=1) == runtime.generate("ann", 16)
    assert runtime.generate("ann", 16, seed=1, top_p=1e-6) == runtime.generate("ann", 16)
    plain = Runtime(exported / "onnx-False")
    assert plain.generate("ann", 16, seed=5, top_k=9, top_p=0.8, temperature=0.7) == runtime.generate(
        "ann", 16, seed=5, top_k=9, top_p=0.8, temperature=0.7
    )


def test_a_prompt_that_is_too_long_keeps_its_end_and_no_text_outgrows_the_network(exported):
    runtime = Runtime(exported / "generator-False")
    long = "the film was very good and " * 60
    assert runtime.max_tokens == 128
    assert runtime.generate(long, 8) == runtime.generate(f"quite {long}", 8)
    assert len(runtime.encoder.tokenizer.encode(runtime.generate("a", 1000, seed=3), add_special_tokens=False)) <= 130


def test_values_that_are_not_allowed_are_all_named(exported):
    runtime = Runtime(exported / "generator-False")
    with pytest.raises(
        ExportError, match=r"new_tokens: got 0, must be 1 or more; top_k: got -1.*top_p: got 0.*temperature"
    ):
        runtime.generate("a", 0, top_k=-1, top_p=0, temperature=0)


def test_what_predicts_no_next_token_writes_nothing(tmp_path):
    model = tiny_taskmodel("gpt2")
    with pytest.raises(UserError, match="generator writes text, and a classification model writes none"):
        export(model, tmp_path / "a", "generator")
    export(model, tmp_path / "b")
    with pytest.raises(ExportError, match="a classification export writes no text"):
        Runtime(tmp_path / "b").generate("a")


def test_the_program_of_the_folder_writes_the_same_text_without_the_toolkit(exported, tmp_path):
    shutil.copytree(exported / "generator-False", tmp_path / "out")
    command = [sys.executable, "-I", str(tmp_path / "out" / "predict.py")]
    found = subprocess.run([*command, "--generate", "12", *PROMPTS[::2]], capture_output=True, text=True, check=True)
    expected = [Runtime(exported / "generator-False").generate(prompt, 12) for prompt in PROMPTS[::2]]
    assert [json.loads(line)["text"] for line in found.stdout.splitlines()] == expected
    scored = subprocess.run([*command, "ann lives in"], capture_output=True, text=True, check=True)
    assert json.loads(scored.stdout)["words"] == 3


def test_golden_vectors_are_checked_by_the_runtime_that_knows_the_cache(exported):
    (found,) = verify(exported / "generator-False")
    assert (found.runtime, found.problems) == ("ONNX Runtime", ())
    assert found.largest < 1e-4


def test_layers_may_have_different_numbers_of_heads(trained, tmp_path):
    task, model = trained
    pruned = run(Recipe(steps=(HeadPruning(heads={0: (1,), 2: (0, 3)}),)), model, Inputs())
    export(pruned, tmp_path / "out", "generator", examples=task.validation[:8])
    graph = onnx.load(tmp_path / "out" / "model.onnx").graph
    widths = {one.name: one.type.tensor_type.shape.dim[2].dim_value for one in graph.input if "key" in one.name}
    assert widths == {"past.0.key": 24, "past.1.key": 32, "past.2.key": 16}
    assert Runtime(tmp_path / "out").generate("ann", 12) == torch_text(pruned, "ann", 12)


def test_the_gate_sees_a_cache_that_is_wrong(trained, exported):
    task, model = trained
    runtime = Runtime(exported / "generator-False")
    assert gate.compare(runtime, model, task.validation[:8]).passed
    step = runtime.engine.step

    def forgets(inputs, past):
        return step(inputs, {name: array[:, 1:] for name, array in past.items()})

    runtime.engine.step = lambda inputs, past: forgets(inputs, past) if past else step(inputs, past)
    report = gate.compare(runtime, model, task.validation[:8])
    assert any("read in two parts" in problem for problem in report.problems)


def test_a_graph_that_cannot_be_traced_is_an_error_with_a_reason(trained):
    _, model = trained

    class Broken(type(model.model)):
        def forward(self, **_):
            raise ValueError("no")

    broken = tiny_taskmodel("gpt2", model.task)
    broken.model.__class__ = Broken
    with pytest.raises(CompressError, match="cannot be exported to ONNX"):
        trace_with_cache(broken)


def test_shares_are_those_of_slow_loops():
    chance = np.random.default_rng(0)
    scores = chance.normal(size=12) * 2
    order = sorted(range(12), key=lambda token: -scores[token])
    for top_k, top_p, temperature in ((0, 1.0, 1.0), (5, 1.0, 0.7), (0, 0.6, 1.3), (6, 0.8, 1.0)):
        kept = order[:top_k] if top_k else order
        weights = {token: np.exp(scores[token] / temperature) for token in kept}
        total, inside, reached = sum(weights.values()), [], 0.0
        for token in kept:
            if reached >= top_p:
                break
            inside.append(token)
            reached += weights[token] / total
        expected = np.zeros(12)
        for token in inside:
            expected[token] = weights[token] / sum(weights[one] for one in inside)
        assert np.allclose(shares(scores, top_k, top_p, temperature), expected)


def test_drawing_follows_the_probabilities_and_an_end_of_text_ends_it():
    scores = np.log([0.25, 0.75])
    counts = [len(continued(lambda ids, past: (scores, past), [1], 0, 3, seed=seed)) for seed in range(2000)]
    assert np.mean([count == 3 for count in counts]) == pytest.approx(0.75**3, abs=0.04)
    assert np.mean([count == 0 for count in counts]) == pytest.approx(0.25, abs=0.04)


@pytest.mark.parametrize("asked", [100, 127, 5000])
def test_a_prompt_that_fits_is_read_whole_however_many_tokens_are_allowed(asked, exported):
    runtime = Runtime(exported / "generator-False")
    prompt = "the film was very good and the book was dull and"
    read = []

    def step(ids, past):
        read.append(list(ids))
        return np.eye(len(runtime.encoder.tokenizer.get_vocab()))[7], past

    runtime.encoder.kind.generate(runtime.encoder.tokenizer, 0, 0, step, prompt, asked, runtime.max_tokens)
    whole = [0, *runtime.encoder.tokenizer.encode(prompt, add_special_tokens=False).ids]
    assert read[0] == whole
    assert len(whole) + len(read) == min(len(whole) + asked, runtime.max_tokens)


def test_the_space_before_the_first_new_word_stays():
    tokenizer = Tokenizer(models.WordLevel({"<s>": 0, "▁hello": 1, "▁world": 2, "[UNK]": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    scores = iter([2, 0])
    step = lambda ids, past: (np.eye(4)[next(scores)], past)  # noqa: E731
    assert Generating().generate(tokenizer, 0, 0, step, "hello", 5, None) == " world"
