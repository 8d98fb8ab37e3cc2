"""Prints and draws the oracle's answers: `tables`, `plots` and Chrome traces (`timeline`). Pictures need matplotlib."""
