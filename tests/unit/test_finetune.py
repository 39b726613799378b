"""Teachers that are kept: one run trains, the others wait and find it; what was changed since is never used."""

import json
import multiprocessing
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from eval.errors import UserError
from teachers.finetuning.finetune import finetune
from teachers.taskmodel import load_taskmodel, save_taskmodel
from teachers.training.config import Training
from tests.tiny import FAMILIES, in_turn, tiny_spec, tiny_task, tiny_taskmodel

FACTS = "teacher.json"
QUICK = Training(max_steps=2, learning_rate=1e-3, batch_size=8)
LACKING = (("xlnet", "masked-lm"), ("gpt2", "masked-lm"), ("gpt2", "multiple-choice"))
HEADS = ("classification", "tagging", "qa", "masked-lm", "multiple-choice")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def taught():
    return finetune(tiny_taskmodel("bert"), tiny_task(examples=16), QUICK)


def teach(home, start, found):
    import os

    os.environ["COMPRESS_HOME"] = home
    torch.set_num_threads(1)
    start.wait()
    model, _ = finetune(tiny_taskmodel("bert"), tiny_task(examples=64), Training(max_steps=20, batch_size=8))
    found.put(model.digest)


def test_two_runs_that_start_together_share_one_teacher(home):
    processes = multiprocessing.get_context("fork")
    start, found = processes.Barrier(2), processes.Queue()
    both = [processes.Process(target=teach, args=(str(home), start, found)) for _ in range(2)]
    for process in both:
        process.start()
    digests = {found.get(timeout=120) for _ in both}
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    assert len(digests) == 1
    assert [each.name for each in (home / "teachers").iterdir() if not each.name.endswith(".lock")] != []
    assert not list((home / "teachers").glob("*.working"))


def test_weights_that_were_changed_since_are_refused(home):
    _, folder = taught()
    weights = load_file(folder / "model.safetensors")
    weights["classifier.bias"] += 1
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=rf"{re.escape(str(folder))}: the weights of this kept teacher are not those"):
        taught()


def test_what_was_kept_before_digests_were_is_still_found(home, monkeypatch):
    first, folder = taught()
    facts = json.loads((folder / FACTS).read_text())
    assert facts.pop("weights") == first.digest
    (folder / FACTS).write_text(json.dumps(facts))
    monkeypatch.setattr("teachers.finetuning.finetune.train", lambda *_, **__: pytest.fail("it was trained again"))
    assert taught()[0].digest == first.digest


@pytest.mark.parametrize(
    ("before", "kind"), in_turn(("single_label_classification", "multi_label_classification", "regression"), HEADS, 3)
)
def test_the_problem_type_of_a_base_is_not_the_teachers(before, kind, tmp_path):
    base = tiny_taskmodel("bert", tiny_spec("masked-lm"))
    base.model.config.problem_type = before
    (tmp_path / "base").mkdir()
    save_taskmodel(base, tmp_path / "base")
    task = tiny_task(kind, examples=8)
    teacher, folder = finetune(load_taskmodel(tmp_path / "base", task.spec), task, QUICK)
    assert load_taskmodel(folder).digest == teacher.digest
    expected = "single_label_classification" if kind == "classification" else None
    assert json.loads((folder / "config.json").read_text()).get("problem_type") == expected


@pytest.mark.parametrize(("family", "before"), in_turn(FAMILIES, ("classification", "qa"), 2, always=("bert",)))
def test_a_head_of_another_kind_is_made_anew(family, before, tmp_path):
    """A fine-tuned network is a base for any other kind; a head of the same name and another shape is no fault."""
    (tmp_path / "base").mkdir()
    save_taskmodel(tiny_taskmodel(family, tiny_spec(before)), tmp_path / "base")
    for kind in HEADS:
        spec = tiny_spec(kind)
        if kind == before or (family, kind) in LACKING:
            continue  # the same head, or one that the family does not have
        if before == "classification" and kind == "tagging":
            continue  # its labels are others, which is refused for itself
        one, same = (load_taskmodel(tmp_path / "base", spec, seed=seed) for seed in (1, 1))
        assert one.digest == same.digest
        assert all(bool(torch.isfinite(tensor).all()) for tensor in one.model.state_dict().values())
