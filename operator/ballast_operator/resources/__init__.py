"""PURE builders of the Kubernetes objects of a cluster that the operator runs."""
