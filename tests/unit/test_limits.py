"""How large a network may be, and what is said when memory runs out."""

import pytest
import torch

from compress.student.predicted_cost import predicted_cost
from compress.terminal.failures import report
from eval.errors import UserError, did_you_mean, is_out_of_memory
from teachers.limits import MOST_PARAMETERS, parameters_about, size_problems
from teachers.loaded_part import loaded_part
from teachers.taskmodel import build_taskmodel
from tests.tiny import FAMILIES, tiny_config, tiny_spec, tiny_tokenizer


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "mobilebert"])
@pytest.mark.parametrize("size", [{}, {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8}])
def test_the_estimate_is_near_what_is_built(family, size):
    config = tiny_config(family, **(size if family == "bert" else {}))
    found = predicted_cost(config, tiny_spec()).parameters
    assert 0.3 < parameters_about(config) / found < 1.5


def test_a_network_that_is_too_large_is_refused_before_it_is_built():
    config = tiny_config("bert", hidden_size=65536, num_attention_heads=4)
    assert parameters_about(config) > MOST_PARAMETERS
    with pytest.raises(UserError, match=r"m: about \d+\.\d billion parameters, which are \d+ GB in float32"):
        build_taskmodel(config, tiny_tokenizer("bert"), tiny_spec(), name="m")


def test_layers_that_are_shared_count_once():
    config = tiny_config("albert", hidden_size=4096, intermediate_size=16384, num_hidden_layers=12)
    assert parameters_about(config) < 0.3e9
    assert size_problems(config, "x") == []


def test_memory_that_ran_out_is_no_bug_and_says_what_was_needed(capsys):
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**55)
    for error in (caught.value, MemoryError("Unable to allocate 7.45 GiB"), MemoryError()):
        assert is_out_of_memory(error)
        assert report(error) == 1
    first, second, _ = capsys.readouterr().err.splitlines()
    assert first.startswith("out of memory (144115188.1 GB were asked for); a smaller batch_size")
    assert "Unable to allocate 7.45 GiB" in second
    assert not is_out_of_memory(ValueError("wrong"))


def test_memory_that_runs_out_while_a_model_is_read_is_not_its_folders_fault():
    def load():
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes.")

    with pytest.raises(RuntimeError, match="allocate"):
        loaded_part("model", "weights", load)


def test_among_very_many_names_none_is_looked_for():
    names = [f"label {number}" for number in range(100_000)]
    assert did_you_mean("label 7x", names) == (
        "; allowed: label 0, label 1, label 10, label 100, label 1000, label 10000, label 10001, label 10002, "
        "label 10003, label 10004 and 99,990 more"
    )
