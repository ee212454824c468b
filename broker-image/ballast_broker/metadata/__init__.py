"""The cluster's metadata: records, the image they add up to, and where new replicas go. PURE."""
