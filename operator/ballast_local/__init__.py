"""The Kubernetes API in one process, for laptops and tests: `LocalCluster`, or `python -m ballast_local`.

It is a real implementation of what it serves: objects survive restarts and kills, and kubectl, Kopf and the Python
client run unchanged. Pods are processes of the same user, and so differ from those on a real node:
- The image is ignored. `command` is required; `python...` runs this interpreter, `ballast` this project.
- There are no mounts: mount paths in command, args, env and mounted texts are replaced by real directories; a process
  also finds each in BALLAST_MOUNT_<VOLUME>. A claim's directory is `DATA/volumes/NAMESPACE/CLAIM`.
- There is no DNS: `POD.SERVICE.NAMESPACE.svc` and `SERVICE.NAMESPACE.svc` (with or without `.cluster.local`) in those
  places are replaced by addresses. A pod's loopback address belongs to its name and survives restarts.
- Limits, security contexts, affinity and RBAC are stored but not enforced.
- What is not implemented is refused: 501 for requests, 422 for fields of pods that cannot safely be ignored.
"""
