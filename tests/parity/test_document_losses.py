"""Transformer-XL's evaluation: segments with memory against one pass over the whole text, and the standard class."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from eval.errors import UserError
from eval.inference import predict
from teachers.document_losses import document_losses
from teachers.taskmodel import save_taskmodel
from tests.tiny import tiny_task, tiny_taskmodel

TEXTS = ["ann likes the film and bob lives in rome where carla was happy", "the room was warm", ""]


@pytest.fixture(scope="module")
def model():
    task = tiny_task("causal-lm")
    made = tiny_taskmodel("xlnet", task.spec, attn_type="uni", initializer_range=0.3)
    assert all(len(made.encoder.tokenizer.encode(text).ids) < task.spec.max_length for text in TEXTS)
    return made


@pytest.mark.parametrize("segment", [1, 3, 100])
def test_with_a_memory_of_all_that_came_before_segments_are_one_pass(model, segment):
    found = document_losses(model, TEXTS, segment, memory=100)
    whole = predict(model, [{"text": text} for text in TEXTS])
    expected = np.concatenate([one[:, 0] for one in whole.logits])
    assert len(found) == len(expected) > 15
    assert np.allclose(found, expected, atol=1e-4)


def test_a_short_memory_is_that_of_the_standard_class(model, tmp_path):
    save_taskmodel(model, tmp_path)
    standard = transformers.XLNetLMHeadModel.from_pretrained(tmp_path, mem_len=4).eval()
    ids = torch.tensor([[2, *model.encoder.tokenizer.encode(TEXTS[0], add_special_tokens=False).ids]])
    mems, expected = None, []
    for start in range(0, ids.shape[1] - 1, 3):
        own = ids[:, start : min(start + 3, ids.shape[1] - 1)]
        with torch.no_grad():
            output = standard(own, mems=mems, use_mems=True)
        mems = output.mems
        scores = output.logits[0].log_softmax(-1)
        expected += [-scores[i, ids[0, start + i + 1]].item() for i in range(own.shape[1])]
    found = document_losses(model, TEXTS[:1], 3, memory=4)
    assert np.allclose(found, expected, atol=1e-5)
    assert not np.allclose(found, document_losses(model, TEXTS[:1], 3, memory=0), atol=1e-3)


def test_the_program_of_the_page_runs(model, tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs" / "teachers.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    folder = tmp_path / "runs" / "pretrain-transformer-xl"
    folder.mkdir(parents=True)
    save_taskmodel(model, folder)
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "docs/teachers.md", "exec"), {"texts": TEXTS})
    expected = np.exp(document_losses(model, TEXTS, 32, 32).mean())
    assert float(capsys.readouterr().out) == pytest.approx(expected)


def test_what_has_no_memory_is_refused():
    with pytest.raises(UserError, match="gpt2 keeps no memory") as said:
        document_losses(tiny_taskmodel("gpt2", tiny_task("causal-lm").spec), TEXTS, 0, -1)
    assert len(said.value.problems) == 3
