"""Answers self-subject reviews: the holder of the token may do everything. PURE."""

from ballast_local.errors import Obj, not_implemented
from ballast_local.resources import Resource

USER = "ballast-local-admin"


def review(resource: Resource, body: Obj) -> Obj:
    answer: Obj = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": {"creationTimestamp": None}}
    if resource.kind == "SelfSubjectAccessReview":
        reason = "the embedded Kubernetes API allows its one user everything; RBAC objects are stored and not enforced"
        return answer | {"spec": body.get("spec") or {}, "status": {"allowed": True, "reason": reason}}
    if resource.kind == "SelfSubjectReview":
        user = {"username": USER, "groups": ["system:masters", "system:authenticated"]}
        return answer | {"status": {"userInfo": user}}
    if resource.kind == "SelfSubjectRulesReview":
        rules = [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]
        urls = [{"verbs": ["*"], "nonResourceURLs": ["*"]}]
        status = {"resourceRules": rules, "nonResourceRules": urls, "incomplete": False}
        return answer | {"spec": body.get("spec") or {}, "status": status}
    raise not_implemented(f"{resource.kind} in {resource.api_version}")
