"""Counting what autograd saves."""

import torch

from zerolab.runtime.saved import SavedTensors


def test_each_storage_counts_once_and_excluded_ones_do_not():
    weight = torch.ones(8, 8, requires_grad=True)
    x = torch.ones(4, 8)
    with SavedTensors([weight]) as saved:
        y = x @ weight  # keeps x, and the weight
        y.view(2, 16).square().sum()  # keeps y, through a view
        y.square()  # and once more
    assert saved.bytes == (x.numel() + y.numel()) * 4


def test_a_view_keeps_all_of_its_storage():
    whole = torch.ones(100, requires_grad=True) * 1
    with SavedTensors() as saved:
        whole[:3].square()
    assert saved.bytes == 100 * 4


def test_what_takes_the_place_of_a_dropped_buffer_is_counted():
    buffer = [torch.empty(64)]
    with SavedTensors(buffer) as saved:
        buffer.clear()
        # One of these would be given the buffer's identity, were it not held.
        values = [(torch.ones(64, requires_grad=True) * 1).square() for _ in range(50)]
    assert saved.bytes == len(values) * 64 * 4


def test_nothing_is_counted_outside():
    x = torch.ones(4, requires_grad=True)
    with SavedTensors() as saved:
        pass
    (x * 1).square()
    assert saved.bytes == 0
