from __future__ import annotations

import json

from hybridps.events import Closed, EventLog, Noted


def test_lines_are_complete_at_once(tmp_path) -> None:
    log = EventLog(tmp_path / "run", 3)
    log.emit(Noted("hello"))
    lines = (tmp_path / "run" / "hybridps-3.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    assert first.pop("seconds") >= 0
    assert first == {"event": "Noted", "message": "hello", "rank": 3}
    log.emit(Closed(1, 2, 3))
    log.close()
    assert len((tmp_path / "run" / "hybridps-3.jsonl").read_text().splitlines()) == 2


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    log = EventLog(None, 0)
    log.emit(Noted("hello"))
    log.close()
    assert list(tmp_path.iterdir()) == []
