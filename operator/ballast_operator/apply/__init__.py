"""Carries out actions: on Kafka and on Kubernetes. Decides nothing."""
