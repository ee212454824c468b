"""What to do, from the spec and one snapshot of what was observed. PURE: no I/O, no clock, no randomness."""
