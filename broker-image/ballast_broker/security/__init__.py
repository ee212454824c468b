"""Authentication and encryption: properties, credentials, certificates. Knows no connections."""
