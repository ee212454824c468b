"""Who somebody is, and that nobody else listens: properties, passwords, certificates. Knows no connections."""
