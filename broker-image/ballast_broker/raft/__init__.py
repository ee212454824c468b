"""Implements the replicated metadata log: a PURE Raft core, its file store, and the driver for time and network."""
