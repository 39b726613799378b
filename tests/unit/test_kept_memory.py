"""Memory of a training on a processor: blocks that are freed stay with the process until it ends."""

import contextlib
import gc
import os
import platform
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from compress.testing.tiny import tiny_task, tiny_taskmodel
from teachers.few_shapes import SHAPES_KEPT, SHAPES_VARIABLES
from teachers.training.config import Training
from teachers.training.kept_memory import GROWTH, KEEP, SETTINGS, USUAL, freed_memory_kept, warn_if_short
from teachers.training.loop import train

NAMES = [name for names in SHAPES_VARIABLES for name in names]
ROOT = Path(__file__).parents[2]
FAULTS = """
import ctypes, os, resource
from teachers.training.kept_memory import freed_memory_kept

def faults():
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        block = libc.malloc(64 * 2**20)
        ctypes.memset(block, 1, 64 * 2**20)
        libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with freed_memory_kept("cpu"):
    faults()
    kept = faults()
print(kept, faults())
"""
PRODUCTS = """
import torch
from teachers.training.kept_memory import freed_memory_kept

def products():
    for rows in range(1, 101):
        torch.nn.functional.linear(torch.randn(rows, 64, dtype=torch.bfloat16), weights)

with freed_memory_kept("cpu"):
    weights = torch.randn(64, 64, dtype=torch.bfloat16)
    products()
    with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON_CREATION):
        products()
"""
LENGTHS = """
import ctypes
import torch
from teachers.training.kept_memory import freed_memory_kept

class Blocks(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena o s hblks hblkhd u f uordblks fordblks keepcost".split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Blocks

def product(length):
    with torch.autocast("cpu", torch.bfloat16):
        network(torch.randn(8, length, 128)).sum().backward()

with freed_memory_kept("cpu"):
    network = torch.nn.Sequential(torch.nn.Linear(128, 512), torch.nn.GELU(), torch.nn.Linear(512, 128))
    product(120)
    before = libc.mallinfo2().uordblks
    for length in range(20, 120):
        product(length)
    print(libc.mallinfo2().uordblks - before)
"""
glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator is what is told")


@pytest.fixture
def told(monkeypatch):
    """What ``mallopt`` and ``malloc_trim`` are called with."""
    found = []

    class Library:
        def mallopt(self, parameter, value):
            found.append((parameter, value))

        def malloc_trim(self, pad):
            found.append(pad)

    monkeypatch.setattr("ctypes.CDLL", lambda _: Library())
    monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", "2.36"))
    for name in list(os.environ):
        if name.startswith(SETTINGS):
            monkeypatch.delenv(name)
    return found


@pytest.fixture(autouse=True)
def shapes(monkeypatch):
    """The variables of the process, which a test may change."""
    found = {name: value for name, value in os.environ.items() if name not in NAMES}
    monkeypatch.setattr("os.environ", found)
    return found


def test_it_is_kept_and_then_given_back_even_after_an_error(told):
    with contextlib.suppress(ZeroDivisionError), freed_memory_kept("cpu"):
        assert told == list(KEEP.items())
        raise ZeroDivisionError
    assert told[len(KEEP) :] == [*USUAL.items(), 0]


@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES", "LD_PRELOAD"])
def test_what_the_user_set_is_the_last_word(name, told, monkeypatch):
    monkeypatch.setenv(name, "2")
    with freed_memory_kept("cpu"):
        pass
    assert told == []


def test_nothing_is_said_on_a_gpu_and_without_glibc(told, monkeypatch):
    with freed_memory_kept("cuda"):
        pass
    monkeypatch.setattr("platform.libc_ver", lambda: ("", ""))
    with freed_memory_kept("cpu"):
        pass
    assert told == []


@glibc
def test_the_kernel_gives_no_page_twice():
    environment = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    run = subprocess.run(
        [sys.executable, "-c", FAULTS], cwd=ROOT, capture_output=True, text=True, check=True, env=environment
    )
    kept, usual = map(int, run.stdout.split())
    pages = 10 * 64 * 2**20 // resource.getpagesize()
    assert kept < pages / 100
    assert usual > pages / 2


@pytest.mark.parametrize(
    ("device", "given", "kept"),
    [
        ("cpu", {}, {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "LRU_CACHE_CAPACITY": "64"}),
        ("cuda", {}, {}),
    ]
    + [
        (
            "cpu",
            {name: "9"},
            {name: "9"} | {names[0]: str(SHAPES_KEPT) for names in SHAPES_VARIABLES if name not in names},
        )
        for name in NAMES
    ],
)
def test_code_for_few_shapes_is_kept_where_the_user_says_nothing(device, given, kept, told, shapes):
    shapes |= given
    with freed_memory_kept(device):
        pass
    assert {name: shapes[name] for name in NAMES if name in shapes} == kept


@pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN does not multiply in bf16 here")
@pytest.mark.parametrize(("given", "again"), [({}, "cache_miss"), ({NAMES[0]: "1024"}, "cache_hit")])
def test_a_shape_seen_long_ago_is_forgotten(given, again, shapes):
    run = subprocess.run(
        [sys.executable, "-c", PRODUCTS], cwd=ROOT, capture_output=True, text=True, check=True, env=shapes | given
    )
    created = [line.split(",")[3] for line in run.stdout.splitlines() if ",create:" in line]
    assert len(created) > SHAPES_KEPT
    assert set(created) == {f"create:{again}"}


@pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN does not multiply in bf16 here")
@glibc
def test_many_lengths_do_not_add_up(shapes):
    def held(given):
        run = subprocess.run(
            [sys.executable, "-c", LENGTHS], cwd=ROOT, capture_output=True, text=True, check=True, env=shapes | given
        )
        return float(run.stdout)

    assert held({}) < 0.5 * held(dict.fromkeys(NAMES, "1024"))


def test_the_states_of_the_optimizer_are_freed_before_memory_is_given_back(monkeypatch):
    def optimizers():
        return sum(isinstance(one, torch.optim.AdamW) for one in gc.get_objects())

    found = []

    @contextlib.contextmanager
    def watched(device):
        yield found.append((device, optimizers()))
        found.append(optimizers())

    monkeypatch.setattr("teachers.training.loop.freed_memory_kept", watched)
    before, task = optimizers(), tiny_task()
    train(tiny_taskmodel("bert", task.spec), task.train, training=Training(max_steps=1))
    assert found == [("cpu", before + 1), before]


@pytest.mark.parametrize(("left", "said"), [(4.9e9, True), (5.1e9, False), (None, False)])
def test_a_training_that_may_come_to_need_more_than_there_is(left, said, monkeypatch, caplog):
    monkeypatch.setattr("teachers.training.kept_memory.resident_bytes", lambda: 10e9)
    monkeypatch.setattr("teachers.training.kept_memory.available_bytes", lambda: left)
    assert GROWTH == 1.5
    warn_if_short("teacher", "cuda", 1)
    assert not caplog.messages
    warn_if_short("teacher", "cpu", 2)
    (warning,) = caplog.messages or [""]
    assert bool(warning) == said
    if said:
        assert "took 10.0 GB of memory, of 14.9 that" in warning
        assert "gradient_accumulation_steps: 4" in warning


def test_it_is_said_once_after_the_longest_batch(monkeypatch, caplog):
    monkeypatch.setattr("teachers.training.kept_memory.available_bytes", lambda: 0)
    student = tiny_taskmodel("bert", tiny_task("classification").spec)
    train(student, tiny_task("classification").train, training=Training(epochs=2, batch_size=4))
    assert sum("its longest batch took" in message for message in caplog.messages) == 1
