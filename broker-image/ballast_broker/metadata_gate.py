"""Holds a broker's rooms back until the metadata they would act on is true of this life of the broker.

A broker that starts reads old metadata first: in it, it may lead partitions that others lead by now. Acting on that
would be wrong (it could acknowledge writes by an in-sync set of long ago). So nothing is published before the broker
has applied its own registration; then everything is, at once, as one difference from nothing. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ballast_broker.metadata.delta import MetadataDelta
from ballast_broker.metadata.image import EMPTY_IMAGE, MetadataImage
from ballast_broker.metadata.loader import Publisher
from ballast_broker.metadata.snapshot import image_records

NO_EPOCH = -1


class MetadataGate:
    def __init__(self, broker_epoch: Callable[[], int], publishers: list[Publisher]) -> None:
        self._broker_epoch = broker_epoch
        self._publishers = publishers
        self.opened = asyncio.Event()

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if self.opened.is_set():
            self._tell(delta, image)
        else:
            self.look(image)

    def look(self, image: MetadataImage) -> None:
        """Open if it is time; to be called when the registration is answered, too: its record may be here already."""
        epoch = self._broker_epoch()
        if self.opened.is_set() or epoch == NO_EPOCH or image.offset < epoch:
            return
        everything = MetadataDelta(EMPTY_IMAGE)
        for record in image_records(image):
            everything.replay(record)
        self.opened.set()
        self._tell(everything, image)

    def _tell(self, delta: MetadataDelta, image: MetadataImage) -> None:
        for publish in self._publishers:
            publish(delta, image)
