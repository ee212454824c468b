"""Turns committed batches into images, one per batch, and calls publishers in order. PURE.

A starting node reads a snapshot, then the log. Records between BeginTransaction and EndTransaction become visible all
at once; AbortTransaction, or a new controller epoch without an end, discards them.

Everything happens in steps, between which other tasks run. The new image becomes visible once all records are replayed
and it is built; until then everybody sees the previous one. A publisher with much to do returns steps as well: others
already see the image while this publisher and those after it do not act on it yet, as if the batch had come a little
later. All steps are finished before the next batch, so publishers see every change, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ballast_broker.metadata.delta import MetadataDelta
from ballast_broker.metadata.image import EMPTY_IMAGE, MetadataImage
from ballast_broker.metadata.persistent import Making
from ballast_broker.metadata.records import name_of

Steps = Iterator[None]
Publisher = Callable[[MetadataDelta, MetadataImage], Steps | None]

BEGIN, END, ABORT = "BeginTransactionRecord", "EndTransactionRecord", "AbortTransactionRecord"


class MetadataLoader:
    def __init__(self, publishers: Iterable[Publisher] = ()) -> None:
        self.image = EMPTY_IMAGE
        self.publishers: list[Publisher] = list(publishers)
        self._transaction: list[Any] | None = None

    @property
    def in_transaction(self) -> bool:
        return self._transaction is not None

    def load_snapshot(self, records: Iterable[Any], last_offset: int, epoch: int) -> Steps:
        """Replace the image. Publishers get a delta in which all of the snapshot is new and the rest deleted."""
        fresh = MetadataDelta(EMPTY_IMAGE)
        for each in records:
            fresh.replay(each)
            yield
        image = yield from fresh.applying(last_offset, epoch)
        delta = yield from _difference(self.image, fresh)
        self._transaction = None
        yield from self._publish(delta, image)

    def apply(self, records: Sequence[Any], last_offset: int, epoch: int) -> Steps:
        """Apply one committed batch (without records for a control batch)."""
        delta = MetadataDelta(self.image)
        if self._transaction is not None and epoch != self.image.epoch:
            self._transaction = None  # its controller died before ending it
        for each in records:
            yield from self._replay(delta, each)
            yield
        yield from self._publish(delta, (yield from delta.applying(last_offset, epoch)))

    def _replay(self, delta: MetadataDelta, record: Any) -> Steps:
        name = name_of(record)
        if name == BEGIN:
            self._transaction = []
        elif name == ABORT:
            self._transaction = None
        elif name == END:
            for held in self._transaction or ():
                delta.replay(held)
                yield
            self._transaction = None
        elif self._transaction is not None:
            self._transaction.append(record)
        else:
            delta.replay(record)

    def _publish(self, delta: MetadataDelta, image: MetadataImage) -> Steps:
        self.image = image
        yield from tell(self.publishers, delta, image) or ()


def tell(publishers: Iterable[Publisher], delta: MetadataDelta, image: MetadataImage) -> Steps | None:
    """Call the publishers in order; return the steps left to do."""
    left = iter(publishers)
    for publish in left:
        steps = publish(delta, image)
        if steps is not None:
            return _rest(steps, left, delta, image)
    return None


def _rest(steps: Steps, left: Iterator[Publisher], delta: MetadataDelta, image: MetadataImage) -> Steps:
    yield from steps
    yield from tell(left, delta, image) or ()


def _difference(before: MetadataImage, fresh: MetadataDelta) -> Making[MetadataDelta]:
    """The delta from `before` to a snapshot's content, for incremental publishers."""
    delta = MetadataDelta(before)
    delta.__dict__.update({key: value for key, value in fresh.__dict__.items() if key != "image"})
    delta.compared = True
    for topic in before.topics.topics_by_id.values():
        new = fresh.topics_changed.get(topic.id)
        if new is None:
            delta.topics_deleted[topic.id] = topic
        else:
            new.base = topic
        yield
    for broker_id in before.cluster.brokers:
        delta.brokers_changed.setdefault(broker_id, None)
    for resource, configs in before.configs.by_resource.items():
        changes = delta.configs_changed.setdefault(resource, {})
        for name in configs:
            changes.setdefault(name, None)
        yield
    for entity, quotas in before.client_quotas.by_entity.items():
        for key in quotas:
            delta.client_quotas_changed.setdefault(entity, {}).setdefault(key, None)
        yield
    for name in before.features.levels:
        delta.features_changed.setdefault(name, 0)
    for acl_id in before.security.acls:
        delta.acls_changed.setdefault(acl_id, None)
        yield
    for credential in before.security.scram_credentials:
        delta.scram_changed.setdefault(credential, None)
    for token_id in before.security.delegation_tokens:
        delta.tokens_changed.setdefault(token_id, None)
        yield
    return delta
