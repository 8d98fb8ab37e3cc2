"""The trace of a run: what each process did in each step, and when; all of it on one clock.

Workers write it with a `Recorder`. `read_trace` reads a run folder, `on_one_clock` puts all times on one clock,
`write_chrome_trace` makes a Chrome trace of it, and `diagnose` finds where the time of the steps went.
"""

from hybridps.tracing.chrome import chrome_events, write_chrome_trace
from hybridps.tracing.clocks import OneClock, on_one_clock
from hybridps.tracing.diagnosis import Diagnosis, diagnose
from hybridps.tracing.files import TraceFile
from hybridps.tracing.parts import WORDS
from hybridps.tracing.reading import Trace, TracedStep, read_trace
from hybridps.tracing.recorder import Recorder
from hybridps.tracing.records import Keys, Probe, Process, Served, Span, Step

__all__ = [
    "WORDS",
    "Diagnosis",
    "Keys",
    "OneClock",
    "Probe",
    "Process",
    "Recorder",
    "Served",
    "Span",
    "Step",
    "Trace",
    "TraceFile",
    "TracedStep",
    "chrome_events",
    "diagnose",
    "on_one_clock",
    "read_trace",
    "write_chrome_trace",
]
