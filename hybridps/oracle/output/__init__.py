"""The oracle's answers for people: `tables`, `plots` and Chrome traces (`timeline`). Only pictures need matplotlib."""
