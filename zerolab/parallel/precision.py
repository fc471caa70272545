"""Which dtype a strategy stores, sends and computes in, under a precision policy.

The policies and their bytes are `zerolab.accounting.precision`'s; here they become dtypes. Most
CPUs multiply 16-bit matrices a hundred times slower than 32-bit ones, so on a CPU a 16-bit policy
means 16-bit storage and communication, and 32-bit arithmetic on a copy that lives as long as the
unit computes.
"""

from dataclasses import dataclass
from functools import cache

import torch

from zerolab.accounting.precision import precision_policy
from zerolab.parallel.notices import warn


@dataclass(frozen=True)
class Dtypes:
    """The dtypes of one policy; `master` is None where no copy is kept for the optimizer."""

    parameter: torch.dtype  # stored and gathered
    gradient: torch.dtype  # stored and reduced
    compute: torch.dtype  # what the module's own arithmetic sees
    master: torch.dtype | None

    def stored(self, dtype: torch.dtype) -> torch.dtype:
        """How a module's tensor is stored: policies speak of floating-point tensors only."""
        return self.parameter if dtype.is_floating_point else dtype


def dtypes(precision: str, device: torch.device, half: torch.dtype) -> Dtypes:
    """The dtypes of a policy ("fp32", "mixed", ...) on a device; `half` is its 16-bit type."""
    policy = precision_policy(precision)
    by_bytes = {2: half, 4: torch.float32}
    parameter = by_bytes[policy.parameter]
    return Dtypes(
        parameter=parameter,
        gradient=by_bytes[policy.gradient],
        compute=torch.float32 if device.type == "cpu" else parameter,
        master=torch.float32 if policy.master else None,
    )


@cache  # once a process
def tell_of_fp32_arithmetic() -> None:
    """Warn that a 16-bit policy computes in fp32 here: it shows 16-bit bytes, not 16-bit speed."""
    warn(
        "on a CPU a 16-bit policy stores and sends 16 bits, and computes in fp32 on a copy: "
        "16-bit products are slow here"
    )
