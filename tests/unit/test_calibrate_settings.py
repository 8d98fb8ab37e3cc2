"""What calibration measures does not depend on when a job would average."""

from __future__ import annotations

import pytest

from hybridps.calibrate.communication import read_settings


def test_every_averaging_happens_whatever_the_trigger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRIDPS_TRIGGER", "change:inf")
    monkeypatch.setenv("HYBRIDPS_CHUNK_BYTES", "65536")
    settings = read_settings()
    assert (settings.trigger, settings.tau) == (None, 1)
    assert settings.chunk_bytes == 65536
