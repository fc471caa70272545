"""Training a GPT under any strategy: PyTorch's plain loop, and what it cost.

with World(4) as world:
    runs = world.run(train, Settings(steps=120, strategy="zero3"), Corpus.default())
"""

import math
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from zerolab.accounting import precision_policy
from zerolab.accounting.errors import unknown_name
from zerolab.accounting.quantities import check_whole
from zerolab.parallel import STRATEGIES, ShardedAdam
from zerolab.parallel.strategy import Strategy
from zerolab.runtime.rank import report
from zerolab.training.corpus import Corpus
from zerolab.training.gpt import GPT, GPTShape
from zerolab.training.measure import FEWEST_STEPS, Cost, Measurement

MOST_STEPS = 10**6


@dataclass(frozen=True)
class Settings:
    """One training run. Two runs that differ in `strategy` alone do the same arithmetic.

    Raises InputError for fewer steps than can be measured, an unknown strategy or precision.
    """

    steps: int
    strategy: str = "ddp"
    shape: GPTShape = field(default_factory=GPTShape)
    precision: str = "fp32"
    size: int = 1  # sequences a rank and step, each as long as the shape's context
    learning_rate: float = 2e-3  # after the warm-up; a cosine takes it down to 0
    warm_up: float = 0.2  # share of the steps
    max_norm: float = 1.0  # of the gradient
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole("--steps", self.steps, FEWEST_STEPS, MOST_STEPS)
        if self.strategy not in STRATEGIES:
            raise unknown_name("--strategy", self.strategy, STRATEGIES)
        precision_policy(self.precision)

    def schedule(self, step: int) -> float:
        """The learning rate of a step, as a share of the highest."""
        warm_up = math.ceil(self.warm_up * self.steps)
        if step < warm_up:
            return (step + 1) / warm_up
        progress = (step - warm_up) / (self.steps - warm_up)
        return (1 + math.cos(math.pi * progress)) / 2


@dataclass(frozen=True)
class Run:
    """What one rank has to say at the end. Losses are in nats a byte, and the mean of all ranks."""

    losses: list[float]  # by step
    held_out_loss: float
    unit_sizes: list[int]
    cost: Cost


def train(rank: int, settings: Settings, corpus: Corpus) -> Run:
    """Train on this rank; reports (step, this rank's loss) after every step."""
    ranks, length = dist.get_world_size(), settings.shape.context
    torch.manual_seed(settings.seed)  # the same weights whatever the strategy
    model = STRATEGIES[settings.strategy](GPT(settings.shape), precision=settings.precision)
    optimizer = ShardedAdam(model, lr=settings.learning_rate)
    scheduler = LambdaLR(optimizer, settings.schedule)
    measurement = Measurement()
    losses = []
    for step in range(settings.steps):
        batch = corpus.batch(step, rank, ranks, settings.size, length, settings.seed)
        tokens, targets = (part.to(model.device) for part in batch)
        with measurement.step():
            loss = model(tokens, targets)
            loss.backward()
            measurement.backward_ended()
            model.clip_grad_norm_(settings.max_norm)
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()
        losses.append(loss.item())
        report((step, losses[-1]))
    cost = measurement.finish()
    return Run(
        losses=_mean_over_ranks(torch.tensor(losses, device=model.device)).tolist(),
        held_out_loss=held_out_loss(model, corpus, rank, ranks, length),
        unit_sizes=model.unit_sizes,
        cost=cost,
    )


@torch.no_grad()
def held_out_loss(model: Strategy, corpus: Corpus, rank: int, ranks: int, length: int) -> float:
    """The loss on text that was never trained on, each rank taking its share of it."""
    batch = corpus.held_out_batch(rank, ranks, length)
    tokens, targets = (part.to(model.device) for part in batch)
    # One sequence at a time: the logits of all would take more memory than training does.
    losses = [model(*pair) for pair in zip(tokens.split(1), targets.split(1), strict=True)]
    return _mean_over_ranks(torch.stack(losses).mean()).item()


def _mean_over_ranks(values: Tensor) -> Tensor:
    dist.all_reduce(values)
    return values / dist.get_world_size()
