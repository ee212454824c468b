"""What a KafkaTopic's status alone does not bring before anybody's eyes."""

from __future__ import annotations

from ballast_operator.events import WARNING, Events
from ballast_operator.model.topic import KafkaTopic, TopicStatus
from ballast_operator.status import EVENTS


def tell_made_anew(events: Events, topic: KafkaTopic, now: TopicStatus) -> None:
    """It is as the spec says again, and its status has only another id; but it is empty."""
    before = topic.status
    if None not in (before.topic_id, before.partitions, now.partitions) and now.topic_id != before.topic_id:
        said = EVENTS["TopicMadeAnew"].says(topic=topic.topic, before=before.topic_id, now=now.topic_id)
        events.send(topic, WARNING, said.reason, said.message)
