"""DeepSpeed's own estimators of model states, as its code computes them.

They return bytes; DeepSpeed prints them divided by 2^30 and calls that GB. Source: DeepSpeed,
runtime/zero/stage_1_and_2.py and stage3.py, `estimate_zero*_model_states_mem_needs`.
"""

from typing import Literal


def deepspeed_zero2(parameters: int, ranks: int) -> float:
    """Bytes a rank: 16-bit parameters whole, everything else sharded.

    18 = 2 + 4 + 4 + 8: a 16-bit and an fp32 gradient are counted, both.
    """
    return 2 * parameters + 18 * parameters / ranks


def deepspeed_zero3(
    parameters: int,
    largest_layer: int,
    ranks: int,
    offload: Literal["none", "optimizer", "all"] = "none",
) -> float:
    """Bytes a rank: everything sharded, plus one layer gathered.

    The gathered layer counts 4 bytes a parameter: a 16-bit parameter and a 16-bit gradient.
    `offload` names what lies in the host's memory instead.
    """
    shard = {"none": 18, "optimizer": 2, "all": 0}[offload]
    return 4 * largest_layer + shard * parameters / ranks
