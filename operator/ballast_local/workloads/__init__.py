"""Controllers and the node: what turns stored objects into running processes."""
