"""What training states, traffic and links cost on paper: pure Python, no torch."""

from zerolab.accounting.errors import InputError
from zerolab.accounting.links import LINKS, Link, link
from zerolab.accounting.memory import (
    ModelStates,
    largest_model,
    model_states,
    padding,
    persistent_states,
)
from zerolab.accounting.precision import PRECISIONS, Precision, precision_policy
from zerolab.accounting.quantities import decimal_bytes, gibibytes, gigabytes, parse_count
from zerolab.accounting.strategies import SHARDING, STRATEGIES, Sharding
from zerolab.accounting.traffic import unit_wire_bytes, wire_bytes

__all__ = [
    "LINKS",
    "PRECISIONS",
    "SHARDING",
    "STRATEGIES",
    "InputError",
    "Link",
    "ModelStates",
    "Precision",
    "Sharding",
    "decimal_bytes",
    "gibibytes",
    "gigabytes",
    "largest_model",
    "link",
    "model_states",
    "padding",
    "parse_count",
    "persistent_states",
    "precision_policy",
    "unit_wire_bytes",
    "wire_bytes",
]
