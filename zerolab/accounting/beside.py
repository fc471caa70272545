"""What a monitor shows beside the tensors: ranges, never part of a total.

`nvidia-smi` shows more than a program's tensors, and how much more is the driver's, the
communication library's and the allocator's business. So these are ranges, rules of thumb, and
`explain` reports what is left over instead of hiding it in a fudge factor.
"""

from dataclasses import dataclass

MIB = 2**20


@dataclass(frozen=True)
class Allowance:
    """A range of bytes."""

    name: str
    low: int
    high: int
    source: str


def beside(tensors: int, ranks: int) -> list[Allowance]:
    """What to expect on a GPU beside `tensors` bytes of live tensors, with `ranks` in the group."""
    found = [
        Allowance(
            "CUDA context",
            250 * MIB,
            750 * MIB,
            "rule of thumb: kernels of torch and its libraries; depends on driver and GPU",
        ),
        Allowance(
            "fragmentation",
            0,
            tensors // 10,
            "rule of thumb: reserved by torch's allocator and not allocated, 0 to 10 %",
        ),
    ]
    if ranks > 1:
        found.append(
            Allowance(
                "communicator buffers",
                64 * MIB,
                1024 * MIB,
                "rule of thumb: NCCL keeps 4 MiB (NCCL_BUFFSIZE) a channel and peer",
            )
        )
    return found


@dataclass(frozen=True)
class Explanation:
    """A monitor's figure taken apart. All in bytes."""

    shown: int
    tensors: int
    allowances: list[Allowance]

    @property
    def remainder(self) -> int:
        """What the monitor shows beyond the tensors; negative where the prediction was too high."""
        return self.shown - self.tensors

    @property
    def named(self) -> int:
        """As much of the remainder as the allowances can account for; their least at least."""
        low = sum(allowance.low for allowance in self.allowances)
        high = sum(allowance.high for allowance in self.allowances)
        return min(max(self.remainder, low), high)

    @property
    def unexplained(self) -> int:
        """What lies outside the allowances' range: above it positive, below it negative."""
        return self.remainder - self.named


def explain(shown: int, tensors: int, ranks: int) -> Explanation:
    """Hold a monitor's bytes against the bytes of the predicted moment."""
    return Explanation(shown, tensors, beside(tensors, ranks))
