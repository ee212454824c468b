"""Controllers and the node, which turn stored objects into running processes."""
