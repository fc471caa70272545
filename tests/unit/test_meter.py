"""What the peak is made of."""

import torch

from zerolab import MemoryMeter
from zerolab.runtime import memory


def test_a_storage_claimed_at_the_peak_counts_there_for_what_it_is():
    with MemoryMeter() as meter:
        made = torch.empty(1000)  # the peak is reached before anybody can have claimed it
        memory.tag(made, "gradients")
        assert meter.peak == 4000
        assert {name: size for name, size in meter.peak_parts.items() if size} == {
            "gradients": 4000
        }


def test_what_is_alive_after_the_peak_is_no_part_of_it():
    with MemoryMeter() as meter:
        made = memory.tag(torch.empty(1000), "gradients")
        del made
        memory.tag(torch.empty(10), "optimizer")
        assert meter.peak_parts.get("optimizer", 0) == 0
        assert meter.peak_parts["gradients"] == 4000
