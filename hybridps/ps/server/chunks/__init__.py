"""One chunk of a table at a server: its rounds, its memory, and the journal by which both outlive the process.

The loop calls `Chunk` of `rounds.py`. The worker thread that owns the chunk calls `ChunkMemory` of `memory.py`.
"""
