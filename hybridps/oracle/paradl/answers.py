"""Predicts what an epoch costs with a strategy, whether it is feasible, and what limits it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod

import msgspec

from hybridps.errors import OracleError
from hybridps.oracle.paradl import paper, published
from hybridps.oracle.paradl.costs import CONGESTION, Costs
from hybridps.oracle.paradl.paper import nodes_of
from hybridps.oracle.paradl.work import Work

Equations = Mapping[str, Callable[..., Costs]]

PAPER: Equations = {
    "serial": paper.serial,
    "data": paper.data,
    "spatial": paper.spatial,
    "layer": paper.layer,
    "filter": paper.weights_split,
    "channel": paper.weights_split,
    "data+filter": paper.data_filter,
    "data+spatial": paper.data_spatial,
}
PUBLISHED: Equations = {
    "serial": paper.serial,
    "data": paper.data,
    "spatial": published.spatial,
    "filter": published.weights_split,
    "channel": published.weights_split,
    "data+filter": published.data_filter,
    "data+spatial": published.data_spatial,
}
VARIANTS = {"paper": PAPER, "code": PUBLISHED}
ALIASES = {"pipeline": "layer", "filter+data": "data+filter", "spatial+data": "data+spatial"}


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """The answer as written to JSON. `limits` says why it is infeasible; it is empty if the answer is feasible."""

    network: str
    strategy: str
    pes: int
    global_batch: int
    compute_seconds_per_epoch: float
    communication_seconds_per_epoch: float
    memory_bytes_per_pe: float
    feasible: bool
    limits: tuple[str, ...]

    @property
    def seconds_per_epoch(self) -> float:
        return self.compute_seconds_per_epoch + self.communication_seconds_per_epoch


@dataclass(frozen=True)
class Bottleneck:
    """A cost that takes a share of the epoch or of the memory: a limitation of the strategy or of the system."""

    name: str
    share: float

    @property
    def kind(self) -> str:
        return "system" if self.name == CONGESTION else "inherent"

    def __str__(self) -> str:
        return f"{self.name} ({self.kind}, {self.share:.0%})"


@dataclass(frozen=True)
class Answer:
    """A prediction and the costs behind it."""

    prediction: Prediction
    costs: Costs

    def bottlenecks(self, least_share: float = 0.05) -> tuple[Bottleneck, ...]:
        """Return the costs with at least this share of the epoch or of the memory, largest first."""
        costs, total = self.costs, self.prediction.seconds_per_epoch or 1.0
        seconds = {
            **costs.communication_seconds,
            "weight update": costs.update_seconds,
            "load balance": costs.idle_seconds,
            "computation redundancy": costs.redundant_seconds,
        }
        shares = {name: second / total for name, second in seconds.items()}
        shares["memory redundancy"] = costs.replicated_bytes / costs.memory_bytes
        found = [Bottleneck(name, share) for name, share in shares.items() if share >= least_share]
        return tuple(sorted(found, key=lambda bottleneck: -bottleneck.share))


def predict(
    work: Work, strategy: str, pes: int, batch: int, *, variant: str = "paper", segments: int | None = None
) -> Answer:
    """Predict an epoch with `pes` PEs and a global batch.

    If the strategy exceeds a limit, the answer is infeasible and says why. Raises OracleError for unknown names and
    impossible numbers.
    """
    strategy = strategy_of(strategy, variant)
    for what, value in (("pes", pes), ("batch", batch), ("segments", segments)):
        if value is not None and value < 1:
            raise OracleError(f"{what}={value}: give 1 or more")
    counted = published.as_published(work) if variant == "code" else work
    of_pipeline = {"segments": segments or min(pes, batch)} if strategy == "layer" else {}
    costs = equations_of(variant)[strategy](counted, pes, batch, **of_pipeline)
    return answer(work, strategy, pes, batch, costs, stops(work, strategy, pes, batch))


def answer(work: Work, strategy: str, pes: int, batch: int, costs: Costs, limits: list[str]) -> Answer:
    """Return the answer for known costs. The memory and the size of the machine limit every strategy."""
    machine = work.machine
    if costs.memory_bytes > machine.memory_bytes:
        limits.append(
            f"memory: {costs.memory_bytes / 1e9:,.2f} GB > {machine.memory_bytes / 1e9:,.2f} GB of {machine.name}"
        )
    if machine.max_pes is not None and pes > machine.max_pes:
        limits.append(f"pes: {pes} > {machine.max_pes} of {machine.name}")
    return Answer(
        Prediction(
            network=work.network.name,
            strategy=strategy,
            pes=pes,
            global_batch=batch,
            compute_seconds_per_epoch=costs.compute_seconds,
            communication_seconds_per_epoch=sum(costs.communication_seconds.values()),
            memory_bytes_per_pe=costs.memory_bytes,
            feasible=not limits,
            limits=tuple(limits),
        ),
        costs,
    )


def equations_of(variant: str) -> Equations:
    """Return the strategies of a variant. Raises OracleError, which lists the variants."""
    if variant not in VARIANTS:
        raise OracleError(f"unknown variant {variant!r}: use one of {', '.join(VARIANTS)}")
    return VARIANTS[variant]


def strategy_of(name: str, variant: str) -> str:
    """Return the strategy of this name in a variant. Raises OracleError, which lists the names."""
    strategy, known = ALIASES.get(name, name), equations_of(variant)
    if strategy in known:
        return strategy
    if strategy in PAPER:
        raise OracleError(f"the published program has no {strategy!r}: use variant paper, or one of {', '.join(known)}")
    raise OracleError(f"unknown strategy {name!r}: use one of {', '.join(known)}")


def strategies_of(names: Sequence[str], variant: str) -> list[str]:
    """Return the names, with `all` replaced by all strategies of the variant."""
    known = equations_of(variant)
    return list(dict.fromkeys(each for name in names for each in (known if name == "all" else (name,))))


def stops(work: Work, strategy: str, pes: int, batch: int) -> list[str]:
    """Return the limits of a strategy that `pes` PEs exceed: the last column of the paper's table."""
    is_hybrid = "+" in strategy
    inside, nodes = nodes_of(work, pes) if is_hybrid else (pes, 1)
    of_nodes = [(nodes, batch, "nodes, by the global batch")] if is_hybrid else []
    bounds = [*of_nodes, (inside, *_most(work, strategy, batch))]
    found = [f"pes: {value} > {bound}, {what}" for value, bound, what in bounds if value > bound]
    if inside * nodes != pes:
        found.append(f"pes: {pes} is not a multiple of the {inside} PEs of a node")
    return found


def _most(work: Work, strategy: str, batch: int) -> tuple[float, str]:
    """Return the largest number of PEs (in a node, for a hybrid), and what it is."""
    layers = work.network.layers
    weighted = [index for index in work.by_weights.positions if layers[index].matrix_items]
    match strategy:
        case "serial":
            return 1, "a serial run"
        case "data":
            return batch, "the global batch"
        case "layer":
            return len(layers), "the number of layers"
        case "spatial" | "data+spatial":
            split = [layers[index] for index in work.by_space.positions]
            sizes = [min(prod(layer.input[1:]), prod(layer.output[1:])) for layer in split]
            what = "the smallest width times height of a split layer"
        case "channel":
            sizes = [layers[index].input[0] for index in weighted if index > 0]
            what = "the smallest number of channels of a split layer but the first"
        case _:
            sizes = [layers[index].weight[1] for index in weighted]
            what = "the smallest number of filters of a split layer"
    return min(sizes, default=inf), what
