"""`hybridps top`: shows a run in progress (`run`), or the jobs of a server that exposes metrics (`servers`)."""
