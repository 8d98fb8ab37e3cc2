"""The oracle's answers for people and programs: tables, JSON, plots and Chrome traces.

A caller passes answers, plans, schedules or measurements to one function for each form of output. Only the plots need
matplotlib.
"""

from hybridps.oracle.output.measured_tables import comparison_table, replay_table, residuals_table
from hybridps.oracle.output.plots import plot
from hybridps.oracle.output.tables import plan_json, plan_table, predictions_json, predictions_table
from hybridps.oracle.output.timeline import chrome_trace, plot_schedules

__all__ = [
    "chrome_trace",
    "comparison_table",
    "plan_json",
    "plan_table",
    "plot",
    "plot_schedules",
    "predictions_json",
    "predictions_table",
    "replay_table",
    "residuals_table",
]
