"""Whether the API server keeps all that this operator reads and writes: the CRDs may be of a version before it."""

from __future__ import annotations

import logging

from ballast_operator.apply.kubernetes import ApiError, KubernetesApi
from ballast_operator.model.meta import GROUP, VERSION
from ballast_operator.plan.dropped import dropped_fields, outdated

log = logging.getLogger(__name__)
# The CRDs themselves belong to the whole Kubernetes, and a Role may not read them; this everybody may who logs in.
DOCUMENT = f"/openapi/v3/apis/{GROUP}/{VERSION}"


class Definitions:
    """What they were found to drop when they were looked at last."""

    def __init__(self) -> None:
        self.dropped: tuple[str, ...] = ()

    async def look(self, api: KubernetesApi) -> bool:
        """Whether that is another than before."""
        try:
            document = await api.get(DOCUMENT)
        except ApiError as error:
            log.debug("the definitions cannot be read: %s", error)
            return False
        before, self.dropped = self.dropped, dropped_fields(document)
        verdict = outdated(self.dropped)
        if self.dropped != before:
            if verdict is not None:
                log.warning("%s", verdict.message)
            else:
                log.info("the CRDs have all that this operator knows")
        return self.dropped != before
