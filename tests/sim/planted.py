"""Bugs that tests plant into the broker by monkeypatching: the simulation has to find each of them.

Each entry breaks one rule in the real code, on every node of a run. The planted code must be called: code moves on, and
a bug that is never reached makes a test that cannot fail.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from ballast_broker.api.rejected_batches import RejectedBatches
from ballast_broker.controller.commands import brokers, features
from ballast_broker.controller.commands.context import CommandContext
from ballast_broker.coordinator import transaction_records, transaction_service
from ballast_broker.coordinator.markers import DecidedTransaction, MarkerSender
from ballast_broker.coordinator.transaction_records import key_of, value_of
from ballast_broker.coordinator.transaction_service import TransactionCoordinator
from ballast_broker.coordinator.transactions import PREPARED, TransactionMetadata, TransactionState
from ballast_broker.metadata import delta
from ballast_broker.metadata.features import BOOTSTRAP_LEVELS, ELIGIBLE_LEADER_REPLICAS
from ballast_broker.metadata.gate import RegistrationGate
from ballast_broker.metadata.image import MetadataImage, PartitionRegistration
from ballast_broker.metadata.partition_merge import merge_change
from ballast_broker.raft import driver
from ballast_broker.raft.core import RaftCore
from ballast_broker.raft.driver import RaftDriver
from ballast_broker.raft.leader import Leadership
from ballast_broker.raft.messages import AppendFetched
from ballast_broker.raft.store import MetadataStore
from ballast_broker.raft.terms import Persisted
from ballast_broker.raft.voters import VoterSet
from ballast_broker.replication import reading
from ballast_broker.replication.assignments import Assignments
from ballast_broker.replication.partition import Partition
from ballast_broker.replication.reading import FetchEntry, FetchParams, FetchResult, Reader
from ballast_broker.replication.replica import Replica
from ballast_broker.storage import cleaner, producers, truncation
from ballast_broker.storage.adoption import SegmentCopy
from ballast_broker.storage.cleaner import FOR_EVER_MS
from ballast_broker.storage.errors import UnexpectedAppendOffset
from ballast_broker.storage.producers import ProducerStates
from ballast_broker.storage.transactions import CleanedTransactions
from ballast_wire.errors import ErrorCode


class Planting:
    """Replaces attributes by planted ones; `met` names the planted functions that have been called."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.planted: set[str] = set()
        self.met: set[str] = set()

    def setattr(self, where: Any, name: str, planted: Callable[..., Any] | property) -> None:
        what = f"{where.__name__}.{name}"
        self.planted.add(what)
        if isinstance(planted, property):
            assert planted.fget is not None
            self._patch.setattr(where, name, property(self._noticed(what, planted.fget)))
        else:
            self._patch.setattr(where, name, self._noticed(what, planted))

    def setvalue(self, where: Any, name: str, planted: object) -> None:
        """Plant a value that is no function; whether it is used cannot be observed."""
        self._patch.setattr(where, name, planted)

    def _noticed(self, what: str, planted: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(planted)

        def noticed(*arguments: Any, **keywords: Any) -> Any:
            if what not in self.met:
                signature.bind(*arguments, **keywords)  # fails if callers now pass other arguments
                self.met.add(what)
            return planted(*arguments, **keywords)

        return noticed


Plant = Callable[[Planting], None]
FOUND_BY: dict[Plant, int] = {}


def found_by(seed: int) -> Callable[[Plant], Plant]:
    """For a bug that many seeds miss: the seed that found it is played first. Once the order of events has changed, it
    is a seed like any other."""

    def note(plant: Plant) -> Plant:
        FOUND_BY[plant] = seed
        return plant

    return note


def acknowledge_before_the_high_watermark(patch: Planting) -> None:
    patch.setattr(Partition, "committed", lambda self, offset: ErrorCode.NONE)


@found_by(9)
def join_the_isr_early(patch: Planting) -> None:
    def propose(self: Partition, broker_id: int) -> Any:
        if broker_id in self.isr or self.pending is not None:
            return None
        return self._propose(self.isr | {broker_id})

    patch.setattr(Partition, "propose_expand", propose)
    patch.setattr(Partition, "_about_to_join", lambda self, follower, now_ms: False)


def high_watermark_of_the_leader_alone(patch: Planting) -> None:
    def advance(self: Partition, now_ms: int) -> bool:
        moved = self.log_end_offset > self.high_watermark
        self.high_watermark = max(self.high_watermark, self.log_end_offset)
        return moved

    patch.setattr(Partition, "advance_high_watermark", advance)


def commit_alone_where_only_those_in_sync_may_lead(patch: Planting) -> None:
    """`min.insync.replicas` has no effect; without ELR that loses nothing in these runs."""
    patch.setvalue(features, "BOOTSTRAP_LEVELS", {**BOOTSTRAP_LEVELS, ELIGIBLE_LEADER_REPLICAS: 0})
    patch.setattr(Partition, "effective_min_isr", property(lambda self: 1))


def never_truncate(patch: Planting) -> None:
    patch.setattr(reading, "diverging_epoch", lambda log, last_fetched_epoch, fetch_offset: None)


def truncate_by_high_watermark(patch: Planting) -> None:
    become = Replica.become

    def become_and_cut(self: Replica, metadata: Any) -> Any:
        transition = become(self, metadata)
        if not self.state.is_leader and self.log is not None and not self.offline:
            self.truncate_to(min(self.state.high_watermark, self.log.log_end_offset))
        return transition

    patch.setattr(Replica, "become", become_and_cut)


def forget_the_vote_over_a_restart(patch: Planting) -> None:
    load = MetadataStore.load_persisted

    def forgetful(self: MetadataStore) -> Persisted:
        kept = load(self)
        return Persisted(max(0, kept.epoch - 1))

    patch.setattr(MetadataStore, "load_persisted", forgetful)
    patch.setattr(RaftCore, "_may_grant", lambda self, now, request: True)


@found_by(4)
def shrink_the_isr_alone(patch: Planting) -> None:
    """A leader that is cut off shrinks the ISR to those it still reaches, without asking the controller."""
    propose_shrink = Partition.propose_shrink

    def shrink(self: Partition, now_ms: int) -> Any:
        change = propose_shrink(self, now_ms)
        if change is not None:
            self.isr = frozenset(change.members)
            self.min_insync_replicas = 1
            self.advance_high_watermark(now_ms)
        return change

    patch.setattr(Partition, "propose_shrink", shrink)


def act_on_old_metadata(patch: Planting) -> None:
    """A broker takes the registration of an earlier incarnation for its own."""

    def of_any_life(self: RegistrationGate, image: MetadataImage) -> bool:
        return self._node_id in image.cluster.brokers

    patch.setattr(RegistrationGate, "_is_of_this_life", of_any_life)


def accept_a_stale_epoch(patch: Planting) -> None:
    patch.setattr(Replica, "check_epoch", lambda self, current_leader_epoch: None)
    patch.setattr(reading, "diverging_epoch", lambda log, last_fetched_epoch, fetch_offset: None)


@found_by(1)
def elect_anybody(patch: Planting) -> None:
    patch.setattr(CommandContext, "unclean_election_enabled", lambda self, topic: True)


def lead_without_a_majority(patch: Planting) -> None:
    def count(self: RaftCore, now: float) -> None:
        self._become_leader(now)

    patch.setattr(RaftCore, "_count_votes", count)


def keep_the_epoch_over_an_election(patch: Planting) -> None:
    def merge_without_epoch(before: PartitionRegistration, change: Any) -> PartitionRegistration:
        return dataclasses.replace(merge(before, change), leader_epoch=before.leader_epoch)

    merge = merge_change
    patch.setattr(delta, "merge_change", merge_without_epoch)


def refuse_a_batch_across_the_start(patch: Planting) -> None:
    """A new replica refuses what it gets from a leader whose log begins in the middle of a batch."""

    def refuse(log: Any, offset: int) -> None:
        raise UnexpectedAppendOffset("planted")

    patch.setattr(truncation, "hold_before_start", refuse)


@found_by(3)
def take_what_is_behind_a_refused_batch(patch: Planting) -> None:
    patch.setattr(RejectedBatches, "check", lambda self, partition, batch, log: None)


def remember_only_the_last_batch_of_a_producer(patch: Planting) -> None:
    patch.setvalue(producers, "WINDOW", 1)


@found_by(1)
def forget_at_once_what_was_deleted(patch: Planting) -> None:
    """The cleaner drops a tombstone before every replica that may still have the record has seen it."""

    def clean(batch: Any, newest: Any, job: Any, *, aborted: bool = False) -> Any:
        at_once = dataclasses.replace(job, now_ms=FOR_EVER_MS, delete_retention_ms=0)
        return clean_batch(batch, newest, at_once, aborted=aborted)

    clean_batch = cleaner.clean_batch
    patch.setattr(cleaner, "clean_batch", clean)


@found_by(6)
def stable_over_transactions_that_a_restart_finds_open(patch: Planting) -> None:
    patch.setattr(ProducerStates, "_look_at_all", lambda self: None)


@found_by(5)
def complete_before_all_partitions_have_their_markers(patch: Planting) -> None:
    def send_and_go_on(self: MarkerSender, ending: DecidedTransaction) -> None:
        if ending.left:
            send(self, dataclasses.replace(ending, done=lambda: None))
        ending.done()

    send = MarkerSender.send
    patch.setattr(MarkerSender, "send", send_and_go_on)


@found_by(41)
def abort_what_another_coordinator_was_about_to_commit(patch: Planting) -> None:
    def standing_of(value: bytes) -> TransactionMetadata:
        found = read(value)
        if found.state is TransactionState.PREPARE_COMMIT:
            return dataclasses.replace(found, state=TransactionState.PREPARE_ABORT)
        return found

    read = transaction_records.standing_of
    patch.setattr(transaction_service, "standing_of", standing_of)


@found_by(2)
def answer_an_end_before_it_is_replicated(patch: Planting) -> None:
    async def write(
        self: TransactionCoordinator, part: Any, transaction: Any, standing: TransactionMetadata
    ) -> ErrorCode:
        if standing.state not in PREPARED:
            return await in_the_log(self, part, transaction, standing)
        transaction.pending = standing
        entry = key_of(transaction.transactional_id), value_of(standing, 2)
        self._store.append(part.partition, [entry], lambda committed: None)
        transaction.settle(True)
        self._send_markers(part, transaction)
        return ErrorCode.NONE

    in_the_log = TransactionCoordinator._write
    patch.setattr(TransactionCoordinator, "_write", write)


def leave_the_aborted_behind_in_a_move(patch: Planting) -> None:
    def without(self: SegmentCopy, *arguments: Any) -> None:
        made(self, *arguments)
        self._aborted = []

    made = SegmentCopy.__init__
    patch.setattr(SegmentCopy, "__init__", without)


@found_by(2)
def take_what_was_aborted_for_newer(patch: Planting) -> None:
    """The cleaner drops a group's committed offset in favour of a newer one whose transaction was aborted."""
    patch.setattr(CleanedTransactions, "is_aborted", lambda self, batch: False)


def tell_no_controller_where_replicas_move(patch: Planting) -> None:
    def as_if_it_was_told(self: Assignments, topic_id: UUID, partition: int, directory: UUID) -> asyncio.Future[bool]:
        agreed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        agreed.set_result(True)
        return agreed

    patch.setattr(Assignments, "assign", as_if_it_was_told)


def commit_by_the_voters_of_the_election(patch: Planting) -> None:
    original = Leadership.follow_voters

    def follow(self: Leadership, voters: VoterSet) -> None:
        original(self, voters)
        vars(self).setdefault("elected_by", list(self.voters.values()))

    def advance(self: Leadership) -> bool:
        ends = sorted((each.end_offset for each in vars(self)["elected_by"]), reverse=True)
        end = ends[len(ends) // 2]
        moved = end > self.epoch_start_offset and end > self.high_watermark
        self.high_watermark = end if moved else self.high_watermark
        return bool(moved)

    patch.setattr(Leadership, "follow_voters", follow)
    patch.setattr(Leadership, "advance_high_watermark", advance)


def elect_by_committed_voters(patch: Planting) -> None:
    """A candidate asks the voters of the last voter set that it knows to be committed."""

    def voters(self: RaftCore) -> VoterSet:
        assert isinstance(self._log, MetadataStore)
        found = self._log.voters_up_to(max(self.high_watermark, 0))
        return found or self._log.voters

    patch.setattr(RaftCore, "voter_set", property(voters))
    patch.setattr(RaftCore, "voters", property(lambda self: voters(self).ids))


def two_of_five_are_enough(patch: Planting) -> None:
    def advance(self: Leadership) -> bool:
        ends = sorted((each.end_offset for each in self.voters.values()), reverse=True)
        end = ends[len(ends) // 2 - 1]
        moved = end > self.epoch_start_offset and end > self.high_watermark
        self.high_watermark = end if moved else self.high_watermark
        return bool(moved)

    patch.setattr(Leadership, "advance_high_watermark", advance)


@found_by(4)
def say_to_have_what_is_not_on_disk(patch: Planting) -> None:
    """A controller fetches on before it has flushed what it fetched."""

    def take(self: RaftDriver, effect: AppendFetched) -> None:
        append(self, effect)
        self.core.flushed(self.now(), self.store.end_offset)

    append = RaftDriver._append_fetched
    patch.setvalue(driver, "_CARRY_OUT", {**driver._CARRY_OUT, AppendFetched: take})


@found_by(1)
def eligible_without_its_memory(patch: Planting) -> None:
    """A broker in the ELR stays there even after a power loss."""
    patch.setattr(brokers, "_stopped_cleanly", lambda before, request: before is not None)


@found_by(1)
def leave_readers_to_find_out(patch: Planting) -> None:
    """A consumer is not told that its log has diverged from this leader's."""

    def read(self: Reader, replica: Replica, params: FetchParams, entry: FetchEntry, *rest: Any) -> FetchResult:
        if params.replica_id < 0:
            entry = dataclasses.replace(entry, last_fetched_epoch=-1)
        return read_and_tell(self, replica, params, entry, *rest)

    read_and_tell = Reader._read
    patch.setattr(Reader, "_read", read)


OF_CONTROLLERS_APART: list[Plant] = [
    two_of_five_are_enough,
    say_to_have_what_is_not_on_disk,
    eligible_without_its_memory,
    leave_readers_to_find_out,
]

OF_DELETING: list[Plant] = [refuse_a_batch_across_the_start]

OF_CHANGING_VOTERS: list[Plant] = [
    commit_by_the_voters_of_the_election,
    elect_by_committed_voters,
]

BUGS: list[Plant] = [
    acknowledge_before_the_high_watermark,
    join_the_isr_early,
    high_watermark_of_the_leader_alone,
    commit_alone_where_only_those_in_sync_may_lead,
    never_truncate,
    truncate_by_high_watermark,
    forget_the_vote_over_a_restart,
    shrink_the_isr_alone,
    act_on_old_metadata,
    accept_a_stale_epoch,
    elect_anybody,
    lead_without_a_majority,
    keep_the_epoch_over_an_election,
    take_what_is_behind_a_refused_batch,
    remember_only_the_last_batch_of_a_producer,
    forget_at_once_what_was_deleted,
    stable_over_transactions_that_a_restart_finds_open,
    complete_before_all_partitions_have_their_markers,
    abort_what_another_coordinator_was_about_to_commit,
    answer_an_end_before_it_is_replicated,
    leave_the_aborted_behind_in_a_move,
    take_what_was_aborted_for_newer,
    tell_no_controller_where_replicas_move,
]
