"""The oracle: what a network gains from a machine with a strategy, and what stops it, before anything is run."""
