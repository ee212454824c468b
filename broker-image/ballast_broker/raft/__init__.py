"""The replicated metadata log: a PURE core, its file store, and the driver that gives it time and network."""
