"""The parameter service: tables that the groups of a job share, and the servers that hold them.

A caller opens a `client.Client`, which is a `store.ParameterStore`. `server.Server` serves in this process.
`rules`, `clocks` and `model` have the records that both sides agree on.
"""
