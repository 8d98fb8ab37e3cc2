"""Renders answers and measurements as tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Column, Table

from hybridps.oracle.hybrid import Plan
from hybridps.oracle.hybrid.traffic import Traffic
from hybridps.oracle.machines import Line
from hybridps.oracle.machines.calibration import Calibration
from hybridps.oracle.paradl import Answer
from hybridps.oracle.ssgd.live import Row, Run
from hybridps.oracle.ssgd.trace import Replay


def predictions_table(answers: Sequence[Answer]) -> Table:
    """Make a table with one row per answer: its limits or, if it is feasible, its bottlenecks."""
    numbers = _numbers("PEs", "batch", "compute s", "communication s", "epoch s", "memory GB")
    reasons = Column("limits and bottlenecks", overflow="fold")
    title = answers[0].prediction.network if answers else None
    table = Table("strategy", *numbers, "feasible", reasons, title=title, title_justify="left")
    for one in answers:
        prediction = one.prediction
        table.add_row(
            prediction.strategy,
            str(prediction.pes),
            str(prediction.global_batch),
            _seconds(prediction.compute_seconds_per_epoch),
            _seconds(prediction.communication_seconds_per_epoch),
            _seconds(prediction.seconds_per_epoch),
            f"{prediction.memory_bytes_per_pe / 1e9:.2f}",
            "yes" if prediction.feasible else "no",
            "; ".join(prediction.limits or map(str, one.bottlenecks())),
        )
    return table


def plan_table(plan: Plan) -> Table:
    """Make a table with one row per number of PEs."""
    numbers = _numbers("groups", "servers", "tau", "chunk KB", "epoch s", "efficiency", "doubling")
    reasons = Column("what stops the next doubling", overflow="fold")
    title = f"best of {plan.configurations} configurations"
    table = Table(*_numbers("PEs"), "strategy", *numbers, reasons, title=title, title_justify="left")
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
    for each in plan.infeasible:
        table.add_row(str(each.pes), "none", *["-"] * 7, "; ".join(each.limits))
    return table


def residuals_table(calibration: Calibration) -> Table:
    """Make a table of all fitted lines with their residuals, and of the measured speeds."""
    numbers = _numbers("start, ms", "per unit", "residual", "computation lost")
    table = Table("what", *numbers, title="calibration")

    def add(what: str, line: Line, unit: str, scale: float, loss: float | None = None) -> None:
        each = f"{scale * line.seconds_per_unit:.4g} {unit}"
        part = "" if loss is None else f"{100 * loss:.0f} %"
        table.add_row(what, f"{1e3 * line.start_seconds:.4g}", each, f"{100 * line.residual:.1f} %", part)

    for steps in calibration.steps:
        add(f"step, {steps.copies} at once", steps.step, "ms/image", 1e3)
        add(f"loader, {steps.copies} at once", steps.loader, "ms/image", 1e3)
    for each in calibration.communications:
        what = f"{each.workers} workers in {each.groups} groups"
        for name, operation in (("sum", each.sum), ("average", each.average)):
            if operation is not None:
                add(f"{name}, {what}", operation.cost, "ms/MB", 1e9, operation.loss)
    layers = calibration.layers
    table.add_row("layers one by one, against the whole", "", "", f"{100 * layers.residual:+.1f} %", "")
    table.add_row("copy", "", f"{calibration.copy_bytes_per_second / 1e9:.3g} GB/s", "", "")
    table.add_row("add", "", f"{calibration.add_bytes_per_second / 1e9:.3g} GB/s", "", "")
    table.add_row("matrix product", "", f"{calibration.matrix_flops / 1e9:.3g} GFLOP/s", "", "")
    return table


def comparison_table(rows: Sequence[Row], run: Run) -> Table:
    """Make a table with one row per phase, in milliseconds of one step."""
    kind = f"elastic, tau {run.tau}" if run.elastic else "sync"
    title = f"{run.workers} workers, {run.groups} groups, {kind}, batch {run.batch_size}"
    numbers = _numbers("predicted, ms", "measured, ms", "accuracy")
    table = Table("phase of a step", *numbers, title=title)
    for row in rows:
        judged = "" if row.accuracy is None else f"{100 * row.accuracy:.1f} %"
        table.add_row(row.phase, f"{1e3 * row.predicted_seconds:.1f}", f"{1e3 * row.measured_seconds:.1f}", judged)
    return table


def replay_table(found: Replay) -> Table:
    """Make a table with one row for each way to send the gradients of an iteration."""
    title = f"a = {found.a_us:.6g} us, b = {found.b_us_per_byte:.6g} us/byte"
    table = Table("gradients are sent", *_numbers("iteration, ms"), title=title)
    table.add_row("after backward, layer by layer", f"{found.naive_ms:.3f}")
    table.add_row(f"when they are ready ({found.exposed_ms:.3f} ms exposed)", f"{found.wfbp_ms:.3f}")
    table.add_row("in one message", f"{found.single_message_ms:.3f}")
    table.add_row(f"merged into {found.merged_groups} messages", f"{found.merged_ms:.3f}")
    return table


def traffic_table(found: Traffic) -> Table:
    """Make a table with one row per threshold."""
    title = f"recorded: {found.recorded_messages} exchanges, {found.recorded_bytes / 1e6:.1f} MB in {found.looks} steps"
    table = Table("threshold", *_numbers("silence", "exchanges", "MB", "saved"), title=title, title_justify="left")
    for one in found.forecasts:
        threshold = "inf" if one.threshold is None else f"{one.threshold:g}"
        silence = "none" if one.silence is None else str(one.silence)
        table.add_row(threshold, silence, str(one.messages), f"{one.nbytes / 1e6:.1f}", f"{100 * one.saved:.1f} %")
    return table


def _numbers(*names: str) -> list[Column]:
    return [Column(name, justify="right", no_wrap=True) for name in names]


def _seconds(value: float) -> str:
    return f"{value:,.2f}" if value < 1000 else f"{value:,.0f}"
