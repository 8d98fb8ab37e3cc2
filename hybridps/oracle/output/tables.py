"""Renders answers as tables for people, and as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from rich.table import Table

from hybridps.oracle.hybrid import Plan
from hybridps.oracle.paradl import Answer


def predictions_json(answers: Iterable[Answer]) -> str:
    """A list of `Prediction` objects."""
    return msgspec.json.format(msgspec.json.encode([one.prediction for one in answers]), indent=1).decode()


def plan_json(plan: Plan) -> str:
    """JSON with `best`, all `choices`, the `infeasible` numbers of PEs, and the number of `configurations` compared."""
    infeasible = [{"pes": pes, "limits": limits} for pes, limits in plan.infeasible.items()]
    content = {
        "best": plan.best,
        "choices": plan.choices,
        "infeasible": infeasible,
        "configurations": plan.configurations,
    }
    return msgspec.json.format(msgspec.json.encode(content), indent=1).decode()


def predictions_table(answers: Sequence[Answer]) -> Table:
    """One row per answer, with its limits or, if it is feasible, its largest cost."""
    table = Table(title=answers[0].prediction.network if answers else None, title_justify="left")
    for name in ("strategy", "PEs", "batch", "compute s", "communication s", "epoch s", "memory GB"):
        table.add_column(name, justify="left" if name == "strategy" else "right", no_wrap=True)
    table.add_column("feasible")
    table.add_column("limits and bottlenecks", overflow="fold")
    for one in answers:
        prediction = one.prediction
        reasons = prediction.limits or tuple(map(str, one.bottlenecks()))
        table.add_row(
            prediction.strategy,
            str(prediction.pes),
            str(prediction.global_batch),
            *map(_seconds, (prediction.compute_seconds_per_epoch, prediction.communication_seconds_per_epoch)),
            _seconds(prediction.seconds_per_epoch),
            f"{prediction.memory_bytes_per_pe / 1e9:.2f}",
            "yes" if prediction.feasible else "no",
            "; ".join(reasons),
        )
    return table


def plan_table(plan: Plan) -> Table:
    """One row per number of PEs."""
    table = Table(title=f"best of {plan.configurations} configurations", title_justify="left")
    for name in ("PEs", "strategy", "groups", "servers", "tau", "chunk KB", "epoch s", "efficiency", "doubling"):
        table.add_column(name, justify="left" if name == "strategy" else "right", no_wrap=True)
    table.add_column("what stops the next doubling", overflow="fold")
    for choice in plan.choices:
        table.add_row(
            str(choice.pes),
            choice.strategy,
            str(choice.groups),
            str(choice.servers),
            str(choice.tau),
            str(choice.chunk_bytes // 1024) if choice.chunk_bytes else "-",
            _seconds(choice.seconds_per_epoch),
            f"{choice.efficiency:.0%}",
            f"{choice.doubling_speedup:.2f}x" if choice.doubling_speedup else "-",
            "; ".join(choice.stopped_by),
        )
    for pes, limits in plan.infeasible.items():
        table.add_row(str(pes), "none", *["-"] * 7, "; ".join(limits))
    return table


def _seconds(value: float) -> str:
    return f"{value:,.2f}" if value < 1000 else f"{value:,.0f}"
