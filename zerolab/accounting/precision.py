"""Precision policies: how many bytes each state takes for one parameter.

Adam keeps two moments, 4 bytes each; mixed precision adds a 4-byte master copy of the parameter,
because an update is often too small to change a 16-bit number. The ZeRO paper counts 2 + 2 + 12
(arXiv 1910.02054, section 3.1).
"""

from dataclasses import dataclass

from zerolab.accounting.errors import unknown_name


@dataclass(frozen=True)
class Precision:
    """Bytes for one parameter, by state, on one device that shards nothing."""

    name: str
    parameter: int  # the copy that forward and backward compute with
    gradient: int
    master: int  # the fp32 copy that the optimizer updates; 0 where the parameter itself is it
    moments: int  # Adam's two

    @property
    def optimizer(self) -> int:
        """The ZeRO paper's K: everything that only the optimizer touches."""
        return self.master + self.moments

    @property
    def total(self) -> int:
        """Bytes for one parameter, all states together."""
        return self.parameter + self.gradient + self.optimizer


PRECISIONS = {
    policy.name: policy
    for policy in (
        Precision("fp32", parameter=4, gradient=4, master=0, moments=8),
        Precision("mixed", parameter=2, gradient=2, master=4, moments=8),
        Precision("mixed_fp32_grads", parameter=2, gradient=4, master=4, moments=8),
        Precision("no_master", parameter=2, gradient=2, master=0, moments=8),
    )
}


def precision_policy(precision: str | Precision) -> Precision:
    """The policy of that name; a Precision passes through. Raises InputError for other names."""
    if isinstance(precision, Precision):
        return precision
    if precision not in PRECISIONS:
        raise unknown_name("--precision", precision, PRECISIONS)
    return PRECISIONS[precision]
