"""The loop: order, targets, masks, checkpoints, early stopping, collapse."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from compress.distill.tinybert import TinyBertDistillation
from compress.export import export_onnx
from compress.technique import Inputs
from eval.encoding import IGNORED
from eval.errors import DivergedError, UserError
from eval.inference import predict
from eval.kinds.qa import token_span
from eval.task import Examples, TaskSpec
from teachers.anatomy.encoder import layer_parts, layers
from teachers.data.batches import LengthGroupedBatches, cut
from teachers.data.encoded_dataset import mask_tokens
from teachers.signals.model_teacher import ModelTeacher
from teachers.taskmodel import weights_digest
from teachers.training.accumulation import Accumulation
from teachers.training.checkpoint import load_checkpoint, random_states, save_checkpoint
from teachers.training.config import Training
from teachers.training.loop import train
from teachers.training.precision import bf16_speedup
from teachers.training.processes import accelerator
from teachers.training.training_task import TrainingTask
from tests.stopping import StopsAt
from tests.tiny import tiny_task, tiny_taskmodel


@pytest.fixture
def task():
    return tiny_task("classification")


def test_batches_hold_every_row_once_and_group_lengths():
    lengths = np.random.default_rng(0).integers(3, 60, 1000).tolist()
    grouped = LengthGroupedBatches(lengths, 16, seed=5)
    batches = list(grouped)
    assert sorted(row for batch in batches for row in batch) == list(range(1000))
    spread = np.mean([np.ptp([lengths[row] for row in batch]) for batch in batches])
    shuffled = np.mean(
        [np.ptp([lengths[row] for row in batch]) for batch in LengthGroupedBatches(lengths, 16, 5, group=False)]
    )
    assert spread < shuffled / 5
    assert max(lengths) in [lengths[row] for row in batches[0]], "the longest batch comes first"


def test_batches_depend_on_seed_and_epoch_alone():
    batches = LengthGroupedBatches(list(range(5, 105)), 8, seed=1)
    first = list(batches)
    assert list(batches) == first
    batches.set_epoch(1)
    assert list(batches) != first
    assert list(LengthGroupedBatches(list(range(5, 105)), 8, seed=2)) != first


def test_rows_are_cut_evenly_and_groups_stay_whole():
    rows = [5, 3, 8, 1, 9]
    assert cut(rows, 1) == [rows]
    assert cut(rows, 2) == [[5, 3, 8], [1, 9]]
    assert cut(rows, 7) == [[5], [3], [8], [1], [9], [], []]
    pairs = [row // 2 for row in range(10)]
    assert cut([4, 5, 0, 1, 8, 9], 2, pairs) == [[4, 5, 0, 1], [8, 9]]
    assert cut([4, 0, 5, 1], 3, pairs) == [[4, 5], [0, 1], []]


def test_mask_tokens_keeps_the_rates_of_bert():
    ids = np.tile(np.arange(10, 110), (700, 1))
    ids[:, 0] = 1
    changed, labels = mask_tokens(
        ids, np.array([0, 1, 2]), mask_id=2, vocab_size=5000, generator=np.random.default_rng(3)
    )
    chosen = labels != IGNORED
    total = chosen.sum()
    assert not chosen[:, 0].any(), "special tokens are never chosen"
    assert (labels[chosen] == ids[chosen]).all()
    assert total == pytest.approx(0.15 * 700 * 99, rel=0.03)
    assert (changed[chosen] == 2).sum() / total == pytest.approx(0.8, abs=0.016)
    assert (changed[chosen] == ids[chosen]).sum() / total == pytest.approx(0.1, abs=0.012)
    assert (changed[~chosen] == ids[~chosen]).all()


def test_token_span_finds_the_tokens_of_an_answer():
    offsets = [None, (0, 3), (4, 8), (8, 10), (11, 15), None]
    assert token_span(offsets, 4, 10) == (2, 3)
    assert token_span(offsets, 5, 9) == (2, 3), "an answer inside tokens takes the tokens around it"
    assert token_span(offsets, 11, 20) is None, "an answer that leaves the window is not in it"


@pytest.mark.parametrize("kind", ["classification", "regression", "tagging", "qa", "masked-lm"])
def test_training_lowers_the_loss(kind):
    task = tiny_task(kind)
    student = tiny_taskmodel("bert", task.spec)
    history = train(student, task.train, training=Training(epochs=6, learning_rate=3e-3, batch_size=8), seed=1)
    assert history[-1]["loss"] < history[0]["loss"]
    assert [entry["step"] for entry in history] == [history[0]["step"] * n for n in range(1, 7)]


def test_training_is_deterministic_and_leaves_the_global_random_state(task):
    digests = []
    for _ in range(2):
        student = tiny_taskmodel("bert", task.spec)
        before = torch.get_rng_state()
        train(student, task.train, training=Training(epochs=2, batch_size=8), seed=3)
        assert torch.equal(torch.get_rng_state(), before)
        digests.append(weights_digest(student.model))
    assert digests[0] == digests[1]


def test_accumulation_gives_the_same_update(task):
    losses = []
    for pieces in (1, 4):
        student = tiny_taskmodel("bert", task.spec)
        student.model.config.hidden_dropout_prob = 0
        for module in student.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        train(
            student, task.train, training=Training(epochs=1, batch_size=8, gradient_accumulation_steps=pieces), seed=3
        )
        losses.append(torch.cat([p.detach().flatten() for p in student.model.parameters()]))
    assert torch.allclose(losses[0], losses[1], atol=1e-5)


@pytest.mark.parametrize(
    ("asked", "precision", "moved"), [("bf16", "auto", True), ("bf16", "fp32", False), ("no", "auto", False)]
)
def test_auto_takes_the_precision_that_accelerate_was_launched_with(task, monkeypatch, asked, precision, moved):
    weights = []
    for variable in ("no", asked):
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", variable)
        student = tiny_taskmodel("bert", task.spec)
        train(student, task.train, training=Training(epochs=1, batch_size=8, precision=precision), seed=3)
        weights.append(torch.cat([p.detach().flatten() for p in student.model.parameters()]))
    assert torch.equal(*weights) is not moved
    assert torch.allclose(*weights, atol=1e-2), "the weights themselves stay in float32"


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_history_says_the_number_format(task, precision):
    student = tiny_taskmodel("bert", task.spec)
    history = train(student, task.train, training=Training(epochs=1, batch_size=8, precision=precision), seed=3)
    assert [row.get("precision") for row in history] == ["bf16" if precision == "bf16" else None]


def test_products_are_timed_where_there_are_instructions_alone(monkeypatch):
    assert bf16_speedup(["avx2", "avx512f", "avx512_vnni"]) is None
    times = iter([9.0, 1.0, 4.0, 2.0, 6.0, 2.0, 2.0, 2.0])
    shapes = []
    monkeypatch.setattr(
        "teachers.training.precision.seconds_of_product",
        lambda left, right: shapes.append((left.dtype, left.shape, right.shape)) or next(times),
    )
    assert bf16_speedup(["avx512_bf16"], rows=2, width=3, rounds=3) == 2.0
    assert shapes == [(dtype, (2, 3), (3, 12)) for dtype in (torch.float32, torch.bfloat16)] * 4
    monkeypatch.undo()
    assert bf16_speedup(["amx_bf16"], rows=2, width=3, rounds=1) > 0


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
@pytest.mark.parametrize("kind", ["classification", "qa", "masked-lm", "seq2seq"])
def test_epochs_are_scored_in_the_number_format_of_the_training(kind, precision, dtype):
    task = tiny_task(kind)
    student = tiny_taskmodel("t5" if kind == "seq2seq" else "bert", task.spec)
    query = layer_parts(student.model, layers(student.model)[0])["query"]
    seen = {True: set(), False: set()}
    hook = query.register_forward_hook(lambda part, _, output: seen[part.training].add(output.dtype))
    training = Training(epochs=1, batch_size=8, precision=precision)
    history = train(student, task.train, training=training, seed=3, validation=task.validation)
    hook.remove()
    assert seen == {True: {dtype}, False: {dtype, torch.float32}}, "a collapse is looked for in float32"
    assert math.isfinite(history[-1]["score"])


def test_processes_with_rows_and_without_exchange_one_type_of_number():
    sent = []
    every = SimpleNamespace(num_processes=2, device="cpu", reduce=lambda tensor, _: sent.append(tensor.dtype) or tensor)
    accumulation = Accumulation(every, 1)
    assert [accumulation._tokens(pieces) for pieces in ((), [SimpleNamespace(mask=torch.ones(2, 3))])] == [0, 6]
    assert set(sent) == {torch.float32}


def test_what_is_trained_beside_the_student_has_the_scale_of_float16_too(task):
    """A batch whose outputs are gathered has the gradients of a whole one, of the projections as of the student."""
    scale, found = 1024.0, []
    for pieces in (1, 2):
        student = tiny_taskmodel("bert", task.spec)
        student.model.eval()
        method = TinyBertDistillation(stages=("intermediate",), reduction="code", projection="shared")
        objective = method.make_objective(Inputs(teacher=ModelTeacher(tiny_taskmodel("bert", task.spec, seed=5))))
        torch.manual_seed(0)
        bound = TrainingTask(student, task.train, objective).bind(1)
        every = accelerator("no")
        every.backward = lambda loss: (scale * loss).backward()
        Accumulation(every, pieces).backward(bound, list(range(8)), 0, 0.0)
        trained = [*student.model.parameters(), *bound.loss.modules.parameters()]
        found.append([parameter.grad / scale for parameter in trained if parameter.grad is not None])
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize(("precision", "attention"), [("bf16", "eager"), ("fp32", "sdpa")])
@pytest.mark.parametrize("family", ["bert", "deberta-v2"])
def test_attention_is_computed_in_plain_products_in_bf16_alone(family, precision, attention):
    task = tiny_task("classification")
    student = tiny_taskmodel(family, task.spec)
    known = student.model.config._attn_implementation
    seen = set()
    hook = student.model.register_forward_pre_hook(lambda part, _: seen.add(part.config._attn_implementation))
    train(student, task.train, training=Training(epochs=1, batch_size=8, precision=precision), seed=3)
    hook.remove()
    assert seen == {attention if known == "sdpa" else known}
    assert student.model.config._attn_implementation == known


def test_a_network_trained_in_bf16_answers_and_is_exported_in_float32(task, tmp_path):
    student = tiny_taskmodel("bert", task.spec)
    train(student, task.train, training=Training(epochs=1, batch_size=8, precision="bf16"), seed=3)
    seen = []
    query = student.model.bert.encoder.layer[0].attention.self.query
    hook = query.register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    predict(student, task.validation)
    hook.remove()
    assert set(seen) == {torch.float32}
    assert export_onnx(student, tmp_path / "onnx", examples=task.validation).bytes > 0


@pytest.mark.parametrize("update", [1, 3, 5, 7, 9])
def test_a_stopped_training_goes_on_to_the_same_weights(task, tmp_path, update):
    training = Training(epochs=2, batch_size=8, checkpoint_seconds=0)
    whole = tiny_taskmodel("bert", task.spec)
    expected = train(whole, task.train, training=training, seed=3, validation=task.validation)
    stopped = tiny_taskmodel("bert", task.spec)
    with pytest.raises(KeyboardInterrupt):
        train(
            stopped,
            task.train,
            StopsAt(update),
            training,
            seed=3,
            validation=task.validation,
            folder=tmp_path,
        )
    again = tiny_taskmodel("bert", task.spec)
    history = train(again, task.train, training=training, seed=3, validation=task.validation, folder=tmp_path)
    assert weights_digest(again.model) == weights_digest(whole.model)
    assert [entry["loss"] for entry in history] == [entry["loss"] for entry in expected]
    assert [entry["losses"] for entry in history] == [entry["losses"] for entry in expected]


def test_a_resumed_training_goes_on_with_the_scale_of_float16(task, tmp_path, monkeypatch):
    made = []

    def scaled(*given):
        found = accelerator(*given)
        found.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        made.append(found.scaler)
        return found

    monkeypatch.setattr("teachers.training.loop.accelerator", scaled)
    training = Training(epochs=2, batch_size=8, checkpoint_seconds=0, max_grad_norm=0)
    whole, stopped, again = (tiny_taskmodel("bert", task.spec) for _ in range(3))
    train(whole, task.train, training=training, seed=3)
    with pytest.raises(KeyboardInterrupt):
        train(stopped, task.train, StopsAt(5), training, seed=3, folder=tmp_path)
    train(again, task.train, training=training, seed=3, folder=tmp_path)
    assert made[0].get_scale() > made[1].get_scale() > 8
    assert made[2].state_dict() == made[0].state_dict()
    assert weights_digest(again.model) == weights_digest(whole.model)


def test_a_checkpoint_of_another_run_is_refused(task, tmp_path):
    training = Training(epochs=2, batch_size=8, checkpoint_seconds=0)
    with pytest.raises(KeyboardInterrupt):
        train(tiny_taskmodel("bert", task.spec), task.train, StopsAt(3), training, seed=3, folder=tmp_path)
    with pytest.raises(UserError, match="belongs to another run"):
        train(tiny_taskmodel("bert", task.spec), task.train, training=training, seed=4, folder=tmp_path)


def test_each_process_gets_its_own_chance_back(tmp_path):
    network = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(network.parameters())
    states, drawn = [], []
    with torch.random.fork_rng():
        for seed in (1, 2):
            torch.manual_seed(seed)
            states.append(random_states()["cpu"])
            drawn.append(torch.rand(3))
        save_checkpoint(tmp_path, (network,), optimizer, {"step": 4}, {"cpu": torch.stack(states)})
        for process in (0, 1):
            assert load_checkpoint(tmp_path, (network,), optimizer, process) == {"step": 4}
            assert torch.equal(torch.rand(3), drawn[process])


def test_a_truncated_checkpoint_is_named(task, tmp_path):
    (tmp_path / "checkpoint.safetensors").write_bytes(b"\x10\x00\x00")
    with pytest.raises(UserError, match=r"checkpoint\.safetensors: this checkpoint cannot be read"):
        train(tiny_taskmodel("bert", task.spec), task.train, training=Training(max_steps=1), folder=tmp_path)


def test_a_loss_that_is_no_number_stops_with_a_message(task):
    student = tiny_taskmodel("bert", task.spec)
    with torch.no_grad():
        student.model.classifier.bias.fill_(float("nan"))
    with pytest.raises(DivergedError, match=r"step 1 of 1 is nan.*learning rate"):
        train(student, task.train, training=Training(max_steps=1))


def test_a_collapsed_student_stops_with_a_message(task):
    student = tiny_taskmodel("bert", task.spec)
    with torch.no_grad():
        student.model.classifier.weight.zero_()
    training = Training(epochs=1, learning_rate=1e-12)
    with pytest.raises(DivergedError, match="same output for every input"):
        train(student, task.train, training=training, validation=task.validation)


def test_early_stopping_keeps_the_best_epoch(task):
    student = tiny_taskmodel("bert", task.spec)
    training = Training(epochs=20, learning_rate=1e-9, patience=2, batch_size=8)
    history = train(student, task.train, training=training, validation=task.validation)
    assert len(history) == 3, "one best epoch and two that were not better"


def test_frozen_embeddings_stay(task):
    student = tiny_taskmodel("bert", task.spec)
    words = student.model.bert.embeddings.word_embeddings.weight
    before = words.detach().clone()
    train(student, task.train, training=Training(max_steps=3, learning_rate=1e-2, freeze=("embeddings",)))
    assert torch.equal(words, before)
    assert words.requires_grad


def test_class_weights_change_the_loss(task):
    weighted = TaskSpec(kind="classification", labels=task.spec.labels, class_weights=(1.0, 9.0))
    histories = [
        train(tiny_taskmodel("bert", spec), task.train, training=Training(max_steps=1), seed=1)
        for spec in (task.spec, weighted)
    ]
    assert histories[0][0]["loss"] != histories[1][0]["loss"]


def test_nothing_to_train_on_is_refused(task):
    with pytest.raises(UserError, match="train is empty"):
        train(tiny_taskmodel("bert", task.spec), Examples((), "train"))


def test_the_history_has_an_entry_after_so_many_updates_too(task):
    batches = -(-len(task.train) // 8)
    student = tiny_taskmodel("bert", task.spec)
    training = Training(epochs=2, batch_size=8, report_steps=3)
    history = train(student, task.train, training=training, validation=task.validation)
    wanted = {step for step in range(1, 2 * batches + 1) if step % 3 == 0 or step % batches == 0}
    assert [entry["step"] for entry in history] == sorted(wanted)
    plain = tiny_taskmodel("bert", task.spec)
    train(plain, task.train, training=Training(epochs=2, batch_size=8, keep="last"))
    other = tiny_taskmodel("bert", task.spec)
    train(other, task.train, training=Training(epochs=2, batch_size=8, keep="last", report_steps=3))
    assert weights_digest(plain.model) == weights_digest(other.model), "looking changes nothing"
    assert "report_steps" not in Training().model_dump_json()


def test_history_is_plain_json(task):
    student = tiny_taskmodel("bert", task.spec)
    history = train(student, task.train, training=Training(max_steps=2), validation=task.validation)
    assert json.loads(json.dumps(history)) == history
    assert {"step", "loss", "terms", "losses", "seconds", "tokens_per_second", "score", "scores"} == set(history[0])


def test_the_history_keeps_the_loss_of_steps_sparsely(task, monkeypatch):
    def losses(most):
        monkeypatch.setattr("teachers.training.loop.MOST_LOSSES", most)
        history = train(tiny_taskmodel("bert", task.spec), task.train, training=Training(max_steps=7, batch_size=16))
        return [pair for entry in history for pair in entry["losses"]]

    every, sparse = losses(200), losses(3)
    assert [step for step, _ in every] == [1, 2, 3, 4, 5, 6, 7]
    assert [step for step, _ in sparse] == [3, 6]
    assert [loss for _, loss in sparse] == pytest.approx(
        [sum(loss for _, loss in part) / 3 for part in (every[:3], every[3:6])], rel=1e-4
    )


def test_short_epochs_are_scored_now_and_then_and_at_the_end(task):
    batches = -(-len(task.train) // 8)
    training = Training(epochs=7, batch_size=8, score_epochs=3, keep="last")
    student, other = tiny_taskmodel("bert", task.spec), tiny_taskmodel("bert", task.spec)
    history = train(student, task.train, training=training, validation=task.validation)
    assert [entry["step"] for entry in history] == [3 * batches, 6 * batches, 7 * batches]
    train(other, task.train, training=training.model_copy(update={"score_epochs": 1}))
    assert weights_digest(student.model) == weights_digest(other.model), "looking changes nothing"
    assert "score_epochs" not in Training().model_dump_json()
