"""`hybridps top`: shows a run while it goes on (`run`), or the jobs of a server that exposes metrics (`servers`)."""
