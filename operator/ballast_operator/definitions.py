"""Finds out which fields that this operator uses the API server drops, because its CRDs are of an older version."""

from __future__ import annotations

import logging

from ballast_operator.apply.kubernetes import ApiError, KubernetesApi
from ballast_operator.model.meta import GROUP, VERSION
from ballast_operator.plan.dropped import dropped_fields, outdated

log = logging.getLogger(__name__)
# CRDs are cluster-scoped, so a Role cannot grant access to them; any authenticated client may read this document.
DOCUMENT = f"/openapi/v3/apis/{GROUP}/{VERSION}"


class Definitions:
    """The fields that the CRDs were last seen to drop."""

    def __init__(self) -> None:
        self.dropped: tuple[str, ...] = ()

    async def look(self, api: KubernetesApi) -> bool:
        """Read the schemas again; whether the dropped fields have changed."""
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
