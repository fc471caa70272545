"""What training costs on paper: pure Python, no torch, every figure with its unit and source.

precision, strategies   bytes for each state, and which states are sharded
memory                  bytes of training state on a rank
models, catalogue       shapes and parameter counts; configs reads a config.json
activations             what autograd keeps, under a named policy; korthikanti's formulas
moments, marks          what is alive when, and how far each line can be trusted
beside                  what a monitor shows beside the tensors: ranges
tensor_parallel         what it leaves of each unit on one rank
traffic, links          bytes and messages a step, and what carries them
gpus                    the memory of each, and how fast it multiplies
step_time, plan         how long a step takes, and what to run on given GPUs
verdict, fit            do states fit, does the peak; the least change that makes it fit
conventions, estimators, reconciliation   what others count, and why it differs
quantities, errors      reading and writing numbers; saying what is wrong with one
"""

from zerolab.accounting.activations import Batch, Keeping
from zerolab.accounting.catalogue import MODELS, model
from zerolab.accounting.configs import read_config
from zerolab.accounting.errors import InputError
from zerolab.accounting.gpus import GPU, GPUS, gpu
from zerolab.accounting.links import LINKS, Link, link
from zerolab.accounting.memory import (
    ModelStates,
    largest_model,
    model_states,
    padding,
    persistent_states,
)
from zerolab.accounting.models import Shape
from zerolab.accounting.moments import Moment, Setup, peak
from zerolab.accounting.precision import PRECISIONS, Precision, precision_policy
from zerolab.accounting.quantities import decimal_bytes, gibibytes, gigabytes, parse_count
from zerolab.accounting.strategies import SHARDING, STRATEGIES, Sharding
from zerolab.accounting.traffic import Traffic, step_traffic, unit_wire_bytes, wire_bytes

__all__ = [
    "GPU",
    "GPUS",
    "LINKS",
    "MODELS",
    "PRECISIONS",
    "SHARDING",
    "STRATEGIES",
    "Batch",
    "InputError",
    "Keeping",
    "Link",
    "ModelStates",
    "Moment",
    "Precision",
    "Setup",
    "Shape",
    "Sharding",
    "Traffic",
    "decimal_bytes",
    "gibibytes",
    "gigabytes",
    "gpu",
    "largest_model",
    "link",
    "model",
    "model_states",
    "padding",
    "parse_count",
    "peak",
    "persistent_states",
    "precision_policy",
    "read_config",
    "step_traffic",
    "unit_wire_bytes",
    "wire_bytes",
]
