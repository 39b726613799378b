"""Chance from a seed within a block, as torch draws from it, which leaves the state of chance outside."""

import pytest
import torch

from teachers.seeding import seeded


def test_it_draws_as_torch_does_from_the_seed():
    with seeded(7):
        drawn = torch.rand(5)
    with seeded(8):
        other = torch.rand(5)
    assert torch.equal(drawn, torch.rand(5, generator=torch.Generator().manual_seed(7)))
    assert not torch.equal(drawn, other)


def test_the_state_outside_stays_after_an_error_too():
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="negative"), seeded(7):
        torch.rand(5) + torch.rand(-1)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_accelerator_is_seeded_with_all_that_torch_seeds(monkeypatch):
    seeds = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch, "manual_seed", seeds.append)
    with seeded(7):
        pass
    assert seeds == [7]
