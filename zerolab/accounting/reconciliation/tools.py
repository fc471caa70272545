"""The nine tools, by name."""

from collections.abc import Callable
from dataclasses import dataclass

from zerolab.accounting.reconciliation.accelerate import accelerate
from zerolab.accounting.reconciliation.case import Case, Cell
from zerolab.accounting.reconciliation.deepspeed import deepspeed
from zerolab.accounting.reconciliation.eleuther import eleuther
from zerolab.accounting.reconciliation.gpu_poor import gpu_poor
from zerolab.accounting.reconciliation.llm_analysis import llm_analysis
from zerolab.accounting.reconciliation.megatron import megatron
from zerolab.accounting.reconciliation.playbook import playbook
from zerolab.accounting.reconciliation.simumax import simumax
from zerolab.accounting.reconciliation.xtuner import xtuner


@dataclass(frozen=True)
class Tool:
    """A public calculator: the figures that it prints for a set-up, and what is wrong with them."""

    cells: Callable[[Case], dict[str, Cell]]
    differs: str


TOOLS = {
    "accelerate estimate-memory": Tool(
        accelerate, "takes the largest part instead of the sum; divides by nothing"
    ),
    "DeepSpeed estimators": Tool(
        deepspeed, "its largest layer is the embedding, not the gathered block with the next one"
    ),
    "EleutherAI calculator": Tool(
        eleuther, "gradients and activations are not divided by TP; attention stores its scores"
    ),
    "Megatron theoretical memory": Tool(
        megatron, "SwiGLU keeps 6 bytes a feed-forward element, not 4; 5 % are added"
    ),
    "llm-analysis": Tool(
        llm_analysis, "no output head; gradients and activations are taken never to meet"
    ),
    "SimuMax": Tool(simumax, "GELU counts as SwiGLU; gathered units are left out"),
    "xtuner": Tool(
        xtuner, "under TP a dense feed-forward's optimizer state is divided by all GPUs"
    ),
    "Ultra-Scale Playbook widget": Tool(
        playbook, "no state is divided by TP; no gate, feed-forward width or grouped queries"
    ),
    "gpu_poor": Tool(
        gpu_poor, "divides by nothing; no master copy, moments in 16 bits; the scores three times"
    ),
}
