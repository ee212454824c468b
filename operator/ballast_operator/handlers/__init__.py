"""Reconciles the kinds: observe, plan, apply, write the status. Called by the worker of a cluster, never by Kopf."""
