"""The Kubernetes API in one process, for laptops and tests: `LocalCluster`, or `python -m ballast_local`.

What it serves, it means: objects survive restarts and kills, and kubectl, Kopf and the Python client run unchanged.
How pods differ from those of a real node, since they are processes of the same user:
- The image is ignored. `command` is needed; `python...` is this interpreter, `ballast` this project.
- There are no mounts: mount paths in command, args, env and mounted texts become real directories; a process also
  finds each in BALLAST_MOUNT_<VOLUME>. A claim's directory is `DATA/volumes/NAMESPACE/CLAIM`.
- There is no DNS: `POD.SERVICE.NAMESPACE.svc` and `SERVICE.NAMESPACE.svc` (with or without `.cluster.local`) in those
  places become addresses. A pod's loopback address belongs to its name and stays over restarts.
- Limits, security contexts, affinity and RBAC are stored and not enforced.
- What is not there is refused: 501 for requests, 422 for fields of pods that would be ignored at a cost.
"""
