"""Jobs and CronJobs: pods that run to completion, with back-off, deadlines and a time to live."""

import copy
from datetime import UTC, datetime, timedelta

from ballast_local import meta
from ballast_local.errors import ApiError, Obj
from ballast_local.workloads.controller import Controller, is_active, is_ready
from ballast_local.workloads.podset import create_pod, delete_pod, pod_from, settle_ownership
from ballast_local.workloads.schedule import Schedule

LOOK_AGAIN_SECONDS = 60.0


def _since(timestamp: str) -> float:
    return (datetime.now(UTC) - meta.parse_time(timestamp)).total_seconds()


def finished(job: Obj) -> str:
    """The condition with which the job has finished: Complete, Failed, or empty if it has not."""
    conditions = job.get("status", {}).get("conditions") or []
    return next(
        (one["type"] for one in conditions if one["type"] in ("Complete", "Failed") and one["status"] == "True"), ""
    )


class JobController(Controller):
    primary = ("jobs.batch",)
    owned = ("pods.",)
    kind = "Job"

    def reconcile(self, namespace: str, name: str) -> float | None:
        job = self.client.get("jobs.batch", namespace, name)
        if job is None or meta.is_deleting(job):
            return None
        if finished(job):
            return self._expire(job)
        pods = settle_ownership(self.client, job)
        phases = [pod.get("status", {}).get("phase") for pod in pods]
        succeeded, failed = phases.count("Succeeded"), phases.count("Failed")
        active = [
            pod
            for pod in pods
            if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed") and not meta.is_deleting(pod)
        ]
        status = dict(job.get("status") or {})
        self._note_suspension(job, status)
        again: float | None = None
        verdict = self._verdict(job, status, succeeded, failed, active)
        if verdict is not None:
            for pod in active:
                delete_pod(self.client, job, pod)
            active = []
            status.setdefault("startTime", meta.now())
            status["conditions"] = [*(status.get("conditions") or []), verdict]
            if verdict["type"] == "Complete":
                status["completionTime"] = meta.now()
            self.client.event(
                job, "Normal" if verdict["type"] == "Complete" else "Warning", verdict["reason"], verdict["message"]
            )
        else:
            again = self._start_pods(job, active, succeeded, failed, status)
            active = [pod for pod in self.client.owned(job["metadata"]["uid"], "pods.") if is_active(pod)]
        ready = sum(is_ready(pod) for pod in active)
        status |= {"active": len(active), "succeeded": succeeded, "failed": failed, "ready": ready}
        self.client.set_status("jobs.batch", namespace, name, status)
        return again

    def _note_suspension(self, job: Obj, status: Obj) -> None:
        """Update startTime and the condition Suspended. startTime, and so the deadline, restarts after a suspension."""
        suspended = bool(job["spec"].get("suspend"))
        held = {one["type"]: one for one in status.get("conditions") or []}
        was = held.get("Suspended", {}).get("status") == "True"
        if suspended:
            status.pop("startTime", None)
        elif was or "startTime" not in status:
            status["startTime"] = meta.now()
        if suspended == was:
            return
        what, now = "Suspended" if suspended else "Resumed", meta.now()
        held["Suspended"] = {
            "type": "Suspended", "status": "True" if suspended else "False", "reason": f"Job{what}",
            "message": f"Job {what.lower()}", "lastProbeTime": now, "lastTransitionTime": now,
        }  # fmt: skip
        status["conditions"] = list(held.values())
        self.client.event(job, "Normal", what, f"Job {what.lower()}")

    def _verdict(self, job: Obj, status: Obj, succeeded: int, failed: int, active: list[Obj]) -> Obj | None:
        spec = job["spec"]
        deadline = spec.get("activeDeadlineSeconds")
        wanted = spec.get("completions")
        done = succeeded >= wanted if wanted is not None else succeeded > 0 and not active
        kind, reason, message = "", "", ""
        if done:
            kind, reason, message = "Complete", "CompletionsReached", "Reached expected number of succeeded pods"
        elif failed > spec["backoffLimit"] or _restarted_too_often(job, active):
            kind, reason, message = "Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        elif deadline is not None and "startTime" in status and _since(status["startTime"]) > deadline:
            kind, reason, message = "Failed", "DeadlineExceeded", "Job was active longer than specified deadline"
        if not kind:
            return None
        now = meta.now()
        return {"type": kind, "status": "True", "reason": reason, "message": message, "lastProbeTime": now,
                "lastTransitionTime": now}  # fmt: skip

    def _start_pods(self, job: Obj, active: list[Obj], succeeded: int, failed: int, status: Obj) -> float | None:
        spec = job["spec"]
        if spec.get("suspend"):
            for pod in active:
                delete_pod(self.client, job, pod)
            return None
        deadline = spec.get("activeDeadlineSeconds")
        again: float | None = max(0.1, deadline - _since(status["startTime"])) if deadline is not None else None
        left = spec["parallelism"]
        if spec.get("completions") is not None:
            left = min(left, spec["completions"] - succeeded)
        elif succeeded:
            left = len(active)
        missing = left - len(active)
        if missing > 0 and failed:
            pause: float = min(0.5 * 2**failed, 30.0) - self._quiet(job)
            if pause > 0:
                return min(pause, again) if again is not None else pause
        for pod in sorted(active, key=is_ready)[: max(0, -missing)]:
            delete_pod(self.client, job, pod)
        for _ in range(missing):
            create_pod(self.client, job, pod_from(spec["template"], job))
        return again

    def _quiet(self, job: Obj) -> float:
        """The seconds since the job's last pod ended."""
        ends = [
            one["state"]["terminated"]["finishedAt"]
            for pod in self.client.owned(job["metadata"]["uid"], "pods.")
            for one in pod.get("status", {}).get("containerStatuses") or []
            if "terminated" in (one.get("state") or {})
        ]
        return _since(max(ends)) if ends else 1e9

    def _expire(self, job: Obj) -> float | None:
        ttl = job["spec"].get("ttlSecondsAfterFinished")
        if ttl is None:
            return None
        ended = max(one["lastTransitionTime"] for one in job["status"]["conditions"])
        left = float(ttl) - _since(ended)
        if left > 0:
            return left
        self.client.delete("jobs.batch", job["metadata"]["namespace"], job["metadata"]["name"])
        return None


def _restarted_too_often(job: Obj, active: list[Obj]) -> bool:
    """With restartPolicy OnFailure, backoffLimit counts restarts of containers."""
    if job["spec"]["template"]["spec"].get("restartPolicy") != "OnFailure":
        return False
    fields = ("containerStatuses", "initContainerStatuses")
    restarts = sum(one["restartCount"] for pod in active for field in fields for one in pod["status"].get(field) or [])
    return bool(0 < restarts >= job["spec"]["backoffLimit"])


class CronJobController(Controller):
    primary = ("cronjobs.batch",)
    owned = ("jobs.batch",)
    kind = "CronJob"

    def reconcile(self, namespace: str, name: str) -> float | None:
        cron = self.client.get("cronjobs.batch", namespace, name)
        if cron is None or meta.is_deleting(cron):
            return None
        jobs = self.client.owned(cron["metadata"]["uid"], "jobs.batch")
        self._trim(cron, jobs)
        status = dict(cron.get("status") or {})
        again = None
        if not cron["spec"]["suspend"]:
            again = self._schedule(cron, [job for job in jobs if not finished(job)], status)
        active = [job for job in self.client.owned(cron["metadata"]["uid"], "jobs.batch") if not finished(job)]
        status["active"] = [
            {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "namespace": namespace,
             "uid": job["metadata"]["uid"]} for job in active
        ]  # fmt: skip
        self.client.set_status("cronjobs.batch", namespace, name, status)
        return again

    def _schedule(self, cron: Obj, active: list[Obj], status: Obj) -> float:
        schedule = Schedule.parse(cron["spec"]["schedule"], cron["spec"].get("timeZone"))
        now = datetime.now(UTC)
        last = meta.parse_time(status.get("lastScheduleTime") or cron["metadata"]["creationTimestamp"])
        deadline = cron["spec"].get("startingDeadlineSeconds")
        earliest = last if deadline is None else max(last, now - timedelta(seconds=min(deadline, 10**9)))
        due = schedule.latest_between(earliest, now)
        policy = cron["spec"]["concurrencyPolicy"]
        if due is not None and not (policy == "Forbid" and active):
            if policy == "Replace":
                for job in active:
                    self.client.delete("jobs.batch", job["metadata"]["namespace"], job["metadata"]["name"])
            self._start(cron, due)
            status["lastScheduleTime"] = due.strftime("%Y-%m-%dT%H:%M:%SZ")
        # At least every minute: timers do not follow if the machine sleeps or its clock is set.
        return max(0.1, min(LOOK_AGAIN_SECONDS, (schedule.next_after(now) - now).total_seconds()))

    def _start(self, cron: Obj, due: datetime) -> None:
        template = copy.deepcopy(cron["spec"]["jobTemplate"])
        metadata = template.get("metadata") or {}
        metadata |= {
            "name": f"{cron['metadata']['name'][:52]}-{int(due.timestamp()) // 60}",
            "ownerReferences": [meta.owner_reference(cron)],
        }
        try:
            self.client.create(
                "jobs.batch", cron["metadata"]["namespace"], {"metadata": metadata, "spec": template["spec"]}
            )
        except ApiError as refusal:
            if refusal.reason != "AlreadyExists":
                raise
        self.client.event(cron, "Normal", "SuccessfulCreate", f"Created job {metadata['name']}")

    def _trim(self, cron: Obj, jobs: list[Obj]) -> None:
        for verdict, field in (("Complete", "successfulJobsHistoryLimit"), ("Failed", "failedJobsHistoryLimit")):
            ended = sorted(
                (job for job in jobs if finished(job) == verdict), key=lambda job: job["metadata"]["creationTimestamp"]
            )
            for job in ended[: max(0, len(ended) - cron["spec"][field])]:
                self.client.delete("jobs.batch", job["metadata"]["namespace"], job["metadata"]["name"])
