"""The parameter service: tables that the groups of a job share, and the servers that hold them.

A caller opens a `client.Client`, which is a `store.ParameterStore`. `server.Server` runs a server in this process.
`rules`, `clocks` and `model` define the records that both sides use.
"""
