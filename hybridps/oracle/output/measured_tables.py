"""Tables of measurements: the residuals of a calibration, a comparison, and a replayed trace."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from hybridps.oracle.hybrid import Row
from hybridps.oracle.machines import Calibration, Line
from hybridps.oracle.ssgd import Replay, Run


def residuals_table(calibration: Calibration) -> Table:
    """Every fitted line, and its residuals."""
    table = Table(title="calibration")
    for column in ("what", "start, ms", "per unit", "residual", "computation lost"):
        table.add_column(column, justify="left" if column == "what" else "right")

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
    """One row per phase, in milliseconds of one step."""
    kind = f"elastic, tau {run.tau}" if run.elastic else "sync"
    title = f"{run.workers} workers, {run.groups} groups, {kind}, batch {run.batch_size}"
    table = Table(title=title)
    table.add_column("phase of a step")
    for column in ("predicted, ms", "measured, ms", "accuracy"):
        table.add_column(column, justify="right")
    for row in rows:
        judged = "" if row.accuracy is None else f"{100 * row.accuracy:.1f} %"
        table.add_row(row.phase, f"{1e3 * row.predicted_seconds:.1f}", f"{1e3 * row.measured_seconds:.1f}", judged)
    return table


def replay_table(found: Replay) -> Table:
    """One row per way to send the gradients of an iteration."""
    table = Table(title=f"a = {found.a_us:.6g} us, b = {found.b_us_per_byte:.6g} us/byte")
    table.add_column("gradients are sent")
    table.add_column("iteration, ms", justify="right")
    table.add_row("after backward, layer by layer", f"{found.naive_ms:.3f}")
    table.add_row(f"when they are ready ({found.exposed_ms:.3f} ms exposed)", f"{found.wfbp_ms:.3f}")
    table.add_row("in one message", f"{found.single_message_ms:.3f}")
    table.add_row(f"merged into {found.merged_groups} messages", f"{found.merged_ms:.3f}")
    return table
