"""The trace of a run: what each process did, step by step, and when; all of it on one clock.

Workers write it with a `Recorder`. `read_trace` reads a run folder, `chrome_trace` makes one Chrome trace of all
processes, and `diagnose` says where the time of the steps went.
"""

from hybridps.tracing.files import TraceFile
from hybridps.tracing.recorder import Recorder
from hybridps.tracing.records import Keys, Probe, Process, Served, Span, Step

__all__ = [
    "Keys",
    "Probe",
    "Process",
    "Recorder",
    "Served",
    "Span",
    "Step",
    "TraceFile",
]
