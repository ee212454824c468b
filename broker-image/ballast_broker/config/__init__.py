"""The configuration of brokers, topics and groups: properties, values and their sources."""
