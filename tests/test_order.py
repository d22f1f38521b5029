"""The order that a torch sampler draws: kept before it is drawn, and drawn again from what was kept."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from tensorstore_ds.errors import OptionError
from tensorstore_ds.loading.order import drawn, dump_generator, load_generator


def batches_of(generator: torch.Generator | None) -> tuple[BatchSampler, RandomSampler]:
    sampler = RandomSampler(range(50), generator=generator)
    return BatchSampler(sampler, 8, drop_last=False), sampler


def test_an_order_is_drawn_again_from_the_state_before_it() -> None:
    batches, sampler = batches_of(torch.Generator().manual_seed(3))
    expected = torch.randperm(50, generator=torch.Generator().manual_seed(3)).tolist()
    state, found = drawn(batches, sampler, None)
    assert state is not None
    assert torch.equal(state, torch.Generator().manual_seed(3).get_state())
    assert list(chain.from_iterable(found)) == expected
    assert list(chain.from_iterable(batches)) != expected  # the generator went on
    again, found = drawn(batches, sampler, load_generator(dump_generator(state)))
    assert again is not None and torch.equal(again, state)
    assert list(chain.from_iterable(found)) == expected


def test_the_global_generator_goes_on_as_if_nothing_was_drawn_again() -> None:
    batches, sampler = batches_of(None)
    torch.manual_seed(7)
    state, found = drawn(batches, sampler, None)
    expected = list(chain.from_iterable(found))
    following = torch.rand(3)
    torch.manual_seed(11)
    expected_following = torch.rand(3)
    torch.manual_seed(11)
    _, found = drawn(batches, sampler, state)
    assert list(chain.from_iterable(found)) == expected
    assert torch.equal(torch.rand(3), expected_following)
    assert not torch.equal(following, expected_following)


def test_a_fixed_order_has_no_state() -> None:
    state, found = drawn([[0, 1], [2]], SequentialSampler(range(3)), None)
    assert state is None
    assert list(found) == [[0, 1], [2]]


@pytest.mark.parametrize("text", ["", "AAAA", "?", "é", dump_generator(torch.Generator().get_state()) + "?"])
def test_other_text_is_no_state(text: str) -> None:
    with pytest.raises(OptionError, match=r"expected the state of a torch\.Generator"):
        load_generator(text)
