"""Simulates N Raft cores in virtual time: messages are lost, duplicated, delayed or reordered, nodes crash and restart.

Pure: no loop, no clock, no disk. One seed is one history. A crash loses unflushed log entries, but nothing persisted.
Invariants are checked after every step:
  * at most one leader per epoch;
  * an offset and an epoch name one entry, and by the epoch before it also all entries before it (log matching);
  * committed entries stay: every node's log agrees with them below the node's high watermark;
  * any majority of a committed voter set has a node in common with any majority of the one before it.
If voters change (`Faults.change_every_s`), nodes are added and removed all the time, by whoever believes that it leads;
nodes that are in no log's voter set may lose their disk.
"""

from __future__ import annotations

import bisect
import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from tests.broker.raft.memory import static_voters
from tests.broker.seams import DrawnRandom

from ballast_broker.raft import voter_changes
from ballast_broker.raft.core import RaftCore
from ballast_broker.raft.leader import Leadership
from ballast_broker.raft.messages import (
    AnswerFetch,
    AppendFetched,
    AppendLeaderChange,
    AppendVoters,
    BeginEpoch,
    EndEpoch,
    Fetch,
    FetchReply,
    HighWatermark,
    LeaderChanged,
    LoadSnapshot,
    Persist,
    Reply,
    Send,
    SnapshotId,
    Truncate,
    Vote,
)
from ballast_broker.raft.terms import NOWHERE, LogView, Persisted, Position, Timeouts
from ballast_broker.raft.voters import DYNAMIC, Voter, VoterHistory, VoterSet, voter_set
from ballast_wire.errors import ApiError

Entry = tuple[int, str | VoterSet]  # epoch, value


class Violation(AssertionError):
    """An invariant is violated; the message has the seed and the last events."""


class SimLog:
    """Entries with their epochs, from `start_offset` on; everything before that is in a snapshot."""

    def __init__(self, voters: VoterSet) -> None:
        self.start_offset = 0
        self.entries: list[Entry] = []
        self.flushed = 0
        self.latest_snapshot: SnapshotId | None = None
        self.history = VoterHistory(voters)
        self.had = NOWHERE
        self.lacks: Position | None = None

    @property
    def voters(self) -> VoterSet:
        return self.history.latest

    @property
    def voters_before(self) -> VoterSet:
        return self.history.previous

    @property
    def voters_offset(self) -> int:
        return self.history.offset

    def append(self, *entries: Entry) -> None:
        for entry in entries:
            if isinstance(entry[1], VoterSet):
                self.history.add(self.end_offset, entry[1])
            self.entries.append(entry)

    def begin_after(self, snapshot: SnapshotId, voters: VoterSet | None) -> None:
        self._about_to_end_at(Position(snapshot.epoch, snapshot.offset))
        self.entries = []
        self.start_offset = snapshot.offset
        self.latest_snapshot = snapshot
        self.flushed = snapshot.offset
        self.flushed_to(snapshot.offset)
        self.history.begin_after(snapshot.offset, voters)

    @property
    def end_offset(self) -> int:
        return self.start_offset + len(self.entries)

    @property
    def last_epoch(self) -> int:
        return self.position(self.end_offset).epoch

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        best = (-1, -1)
        if self.latest_snapshot is not None and self.start_offset and self.latest_snapshot.epoch <= epoch:
            best = (self.latest_snapshot.epoch, self.start_offset)
        index = bisect.bisect_right(self.entries, epoch, key=lambda entry: entry[0])
        return (self.entries[index - 1][0], self.start_offset + index) if index else best

    def at(self, offset: int) -> Entry:
        return self.entries[offset - self.start_offset]

    def position(self, end_offset: int) -> Position:
        inside = end_offset - self.start_offset
        return Position(self.entries[inside - 1][0] if inside > 0 else self._first_epoch, end_offset)

    @property
    def _first_epoch(self) -> int:
        return self.latest_snapshot.epoch if self.latest_snapshot is not None and self.start_offset else 0

    def flushed_to(self, end_offset: int) -> None:
        self.flushed = max(self.flushed, end_offset)
        end = self.position(end_offset)
        if self.lacks is None or end >= self.lacks:
            self.lacks, self.had = None, end

    def _about_to_end_at(self, end: Position) -> None:
        if self.lacks is None:
            self.had = min(self.had, end)

    def truncate(self, offset: int) -> None:
        self._about_to_end_at(self.position(max(offset, self.start_offset)))
        self._cut(offset)

    def _cut(self, offset: int) -> None:
        del self.entries[max(0, offset - self.start_offset) :]
        self.flushed = min(self.flushed, self.end_offset)
        self.history.cut(offset)

    def spoil(self, offset: int) -> None:
        """Corrupt the log: the next start finds nothing from `offset` on."""
        self._cut(offset)
        self.lacks = self.had if self.position(self.end_offset) < self.had else None


@dataclass
class SimNode:
    id: int
    log: SimLog
    directory: UUID
    bootstrap: tuple[int, ...] = ()
    persisted: Persisted = field(default_factory=Persisted)
    core: RaftCore | None = None
    incarnation: int = 0
    generation: int = 0
    flushing: bool = False
    tick_at: float = float("inf")
    compared: int = 0


class Event(NamedTuple):
    at: float
    order: int  # unique, so that ties never compare what follows
    what: str
    data: tuple[Any, ...]


@dataclass(frozen=True)
class Faults:
    loss: float = 0.05
    duplicate: float = 0.02
    slow: float = 0.05
    delay_s: float = 0.01
    write_gap_s: float = 0.3
    flush_s: float = 0.01
    crash_after_vote: float = 0.02
    power_failure: float = 0.1
    process_only: float = 0.7
    crash_every_s: float = 6.0
    partition_every_s: float = 8.0
    snapshot_every_s: float = 5.0
    lose_unflushed: bool = True
    change_every_s: float = 0.0
    """How often, on average, a voter is added or removed."""
    new_disk: float = 0.3
    """The probability that a removed voter that crashes returns with an empty disk."""
    spoilt: float = 0.0
    """The probability that a voter that crashes finds the end of its log corrupt, while all others are intact."""


class World:
    def __init__(self, seed: int, nodes: int = 3, observers: int = 1, faults: Faults | None = None) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.faults = faults or Faults()
        self.now = 0.0
        self.voters = tuple(range(nodes))
        names = range(nodes + observers)
        self.dynamic = self.faults.change_every_s > 0
        first = static_voters(self.voters)
        if self.dynamic:
            first = voter_set(DYNAMIC, [Voter(each, directory_of(each)) for each in self.voters])
        nobody = VoterSet(DYNAMIC, ())
        self.nodes = {
            each: SimNode(each, SimLog(first if each in self.voters else nobody), directory_of(each), tuple(names))
            for each in names
        }
        if not self.dynamic:
            for node in self.nodes.values():
                node.log.history = VoterHistory(first)
                node.bootstrap = ()
        self.voter_sets: list[VoterSet] = [first]
        self.changes = 0
        self.disks = len(names)
        self.queue: list[Event] = []
        self.order = 0
        self.trace: list[str] = []
        self.leaders: dict[int, int] = {}
        self.placed: dict[tuple[int, int], Entry] = {}  # (offset, epoch) -> the epoch before, the value
        self.committed: list[Entry] = []
        self.cut: set[tuple[int, int]] = set()
        self.tokens: dict[tuple[int, int, int], tuple[int, int, Fetch]] = {}
        self.next_token = 0
        self.written = self.times_spoilt = 0
        self.elections = 0
        for node_id in self.nodes:
            self.at(self.rng.random() * 0.2, "start", node_id)
        self.at(1.0, "write")
        self.at(self._gap(self.faults.crash_every_s), "crash")
        self.at(self._gap(self.faults.partition_every_s), "partition")
        self.at(self._gap(self.faults.snapshot_every_s), "snapshot")
        self.at(self._gap(self.faults.change_every_s), "change")

    def _gap(self, mean: float) -> float:
        return self.rng.expovariate(1 / mean) if mean > 0 else float("inf")

    # ------------------------------------------------------------------ running

    def at(self, delay: float, what: str, *data: Any) -> None:
        if delay == float("inf"):
            return
        self.order += 1
        heapq.heappush(self.queue, Event(self.now + delay, self.order, what, data))

    def run(self, seconds: float) -> None:
        while self.queue and self.queue[0].at <= seconds:
            event = heapq.heappop(self.queue)
            self.now = event.at
            try:
                getattr(self, f"_{event.what}")(*event.data)
            except Violation:
                raise
            except Exception as error:
                raise self.violation(f"{event.what}{event.data}: {error!r}") from error

    def quiet(self, seconds: float) -> None:
        """All faults end, all nodes restart; then the cluster must recover."""
        self.faults = Faults(0, 0, 0, crash_after_vote=0, crash_every_s=0, partition_every_s=0, snapshot_every_s=0)
        self.cut.clear()
        over = ("crash", "partition", "heal", "snapshot", "change")
        self.queue = [event for event in self.queue if event.what not in over]
        heapq.heapify(self.queue)
        for node in self.nodes.values():
            if node.core is None:
                self.at(0.01, "start", node.id)
        before = self.written
        self.run(self.now + seconds)
        ends = {node.log.end_offset for node in self.nodes.values()}
        marks = {node.core.high_watermark for node in self.nodes.values() if node.core is not None}
        if self.written == before or max(ends) - min(ends) > 5 or max(marks) - min(marks) > 5:
            raise self.violation(f"no progress in quiet: ends {ends}, high watermarks {marks}")

    def note(self, text: str) -> None:
        self.trace.append(f"{self.now:9.3f} {text}")
        if len(self.trace) > 400:
            del self.trace[:200]

    def violation(self, text: str) -> Violation:
        return Violation(f"seed {self.seed}: {text}\n" + "\n".join(self.trace[-60:]))

    # ------------------------------------------------------------------ events

    def _start(self, node_id: int) -> None:
        node = self.nodes[node_id]
        if node.core is not None:
            return
        node.incarnation += 1
        node.log.flushed_to(node.log.end_offset)
        timeouts = Timeouts()
        node.core = RaftCore(
            node_id, node.persisted, node.log, DrawnRandom(self.rng), timeouts,
            directory=node.directory, bootstrap=node.bootstrap,
        )  # fmt: skip
        span = f"{node.log.start_offset}..{node.log.end_offset}"
        self.note(f"{node_id} starts in epoch {node.persisted.epoch}, log {span}")
        node.core.start(self.now)
        self._settle(node)

    def _crash(self) -> None:
        self.at(self._gap(self.faults.crash_every_s), "crash")
        away = self.rng.choice((0.05, 0.5, 4.0)) * self.rng.random()
        victims = [self.rng.choice(list(self.nodes.values()))]
        if self.rng.random() < self.faults.power_failure:
            victims = list(self.nodes.values())  # everybody at once
        for victim in victims:
            self._kill(victim, away)

    def _kill(self, node: SimNode, away_s: float) -> None:
        """The process or its machine dies; only if the process dies do its connections end at once."""
        if node.core is None:
            return
        process_only = self.rng.random() < self.faults.process_only
        for key in [key for key in self.tokens if key[:2] == (node.id, node.incarnation)]:
            sender, incarnation, request = self.tokens.pop(key)
            if process_only:
                self.at(0.001, "failed", sender, incarnation, node.id, request, False)
        lost = 0
        if self.faults.lose_unflushed and self.rng.random() < 0.7:
            keep = self.rng.randint(node.log.flushed, node.log.end_offset)
            lost = node.log.end_offset - keep
            node.log.truncate(keep)
        self.note(f"{node.id} crashes, loses {lost} entries that were not flushed")
        if self.faults.spoilt and self.rng.random() < self.faults.spoilt:
            self._spoil(node)
        node.core = None
        node.flushing = False
        node.generation += 1
        node.compared = 0
        node.tick_at = float("inf")
        if self.dynamic and self.rng.random() < self.faults.new_disk and not self._votes_anywhere(node):
            self._new_disk(node)
        self.at(away_s, "start", node.id)

    def _spoil(self, node: SimNode) -> None:
        log = node.log
        if node.id in self.voters and not any(each.log.lacks for each in self.nodes.values()):
            log.spoil(self.rng.randint(max(log.start_offset, log.end_offset - 30), log.end_offset))
            self.times_spoilt += log.lacks is not None
            self.note(f"{node.id} has its log up to {log.end_offset} alone, and lacks {log.lacks}")

    def _votes_anywhere(self, node: SimNode) -> bool:
        """Whether it is a voter in any log: the quorum may depend on what such a node would forget."""
        return any(each.log.voters.has(node.id, node.directory) for each in self.nodes.values())

    def _new_disk(self, node: SimNode) -> None:
        self.disks += 1
        node.directory = directory_of(self.disks)
        node.log = SimLog(VoterSet(DYNAMIC, ()))
        node.persisted = Persisted()
        self.note(f"{node.id} has a new disk")

    def _change(self) -> None:
        """Ask each node that leads, or believes that it does, to add or to remove a voter."""
        self.at(self._gap(self.faults.change_every_s), "change")
        for leader in self.nodes.values():
            if leader.core is None or not leader.core.is_leader:
                continue
            node = self.nodes[self.rng.choice(list(self.nodes))]
            removes = node.id in leader.log.voters.ids
            if removes and self.rng.random() < 0.3:
                return  # so that larger voter sets occur too

            try:
                leader.core.change_voters(self.now, self._removal(node) if removes else self._addition(node))
            except ApiError:
                continue
            self.changes += 1
            self.note(f"{leader.id} {'removes' if removes else 'adds'} {node.id}")
            self._settle(leader)

    def _addition(self, node: SimNode) -> Callable[[Leadership, LogView], VoterSet]:
        voter = Voter(node.id, node.directory)
        return lambda leadership, log: voter_changes.added(leadership, log, voter, self.now)

    def _removal(self, node: SimNode) -> Callable[[Leadership, LogView], VoterSet]:
        """The removal of the voter with this node's id."""

        def change(leadership: Leadership, log: LogView) -> VoterSet:
            voter = log.voters.find(node.id)
            assert voter is not None
            assert voter.directory is not None
            return voter_changes.removed(leadership, log, voter.id, voter.directory)

        return change

    def _partition(self) -> None:
        self.at(self._gap(self.faults.partition_every_s), "partition")
        names = list(self.nodes)
        self.rng.shuffle(names)
        one = set(names[: self.rng.randrange(1, len(names))])
        one_way = self.rng.random() < 0.3
        self.cut = {(a, b) for a in one for b in self.nodes if b not in one}
        if not one_way:
            self.cut |= {(b, a) for a, b in self.cut}
        self.note(f"cut {'one way ' if one_way else ''}between {sorted(one)} and the others")
        self.at(self.rng.random() * 6, "heal")

    def _heal(self) -> None:
        self.cut.clear()

    def _snapshot(self) -> None:
        self.at(self._gap(self.faults.snapshot_every_s), "snapshot")
        node = self.nodes[self.rng.choice(list(self.nodes))]
        if node.core is None or node.core.high_watermark <= node.log.start_offset:
            return
        offset = node.core.high_watermark
        snapshot = SnapshotId(offset, node.log.at(offset - 1)[0])
        node.log.latest_snapshot = snapshot
        del node.log.entries[: offset - node.log.start_offset]
        node.log.start_offset = offset
        self.note(f"{node.id} snapshots at {offset}")

    def _write(self) -> None:
        self.at(self.rng.random() * self.faults.write_gap_s, "write")
        for node in self.nodes.values():
            if node.core is not None and node.core.is_leader:
                self.written += 1
                self._append(node, (node.core.epoch, f"w{self.written}"))
                node.core.appended(self.now)
                self._flush_later(node)
                self._settle(node)

    def _tick(self, node_id: int, incarnation: int) -> None:
        node = self.nodes[node_id]
        if node.core is None or node.incarnation != incarnation or self.now < node.tick_at:
            return
        node.tick_at = float("inf")
        node.core.tick(self.now)
        self._settle(node)

    def _flush_later(self, node: SimNode) -> None:
        if not node.flushing:
            node.flushing = True
            self.at(
                self.rng.random() * self.faults.flush_s,
                "flush",
                node.id,
                node.incarnation,
                node.generation,
                node.log.end_offset,
            )

    def _flush(self, node_id: int, incarnation: int, generation: int, end_offset: int) -> None:
        node = self.nodes[node_id]
        if node.core is None or node.incarnation != incarnation:
            return
        node.flushing = False
        if generation == node.generation:
            node.log.flushed_to(end_offset)
            node.core.flushed(self.now, end_offset)
            if end_offset < node.log.end_offset:
                self._flush_later(node)
        else:
            self._flush_later(node)
        self._settle(node)

    # ------------------------------------------------------------------ messages

    def _deliver(self, sender: int, incarnation: int, receiver: int, request: Any) -> None:
        node = self.nodes[receiver]
        if (sender, receiver) in self.cut:
            return
        if node.core is None:
            self.at(0.001, "failed", sender, incarnation, receiver, request, True)
            return
        core = node.core
        if isinstance(request, Fetch):
            self.next_token += 1
            self.tokens[receiver, node.incarnation, self.next_token] = (sender, incarnation, request)
            core.handle_fetch(self.now, self.next_token, request)
            self._settle(node)
            return
        reply: Reply
        if isinstance(request, Vote):
            reply = core.handle_vote(self.now, request)
        elif isinstance(request, BeginEpoch):
            reply = core.handle_begin_epoch(self.now, request)
        else:
            assert isinstance(request, EndEpoch)
            reply = core.handle_end_epoch(self.now, request)
        self._settle(node)
        self._reply(receiver, sender, incarnation, request, reply)
        if isinstance(request, Vote) and reply.granted and self.rng.random() < self.faults.crash_after_vote:
            self._kill(node, 0.02 * self.rng.random())

    def _reply(self, sender: int, receiver: int, incarnation: int, request: Any, reply: Any) -> None:
        self._transmit("replied", sender, receiver, receiver, incarnation, sender, request, reply)

    def _replied(self, node_id: int, incarnation: int, sender: int, request: Any, reply: Any) -> None:
        node = self.nodes[node_id]
        if (sender, node_id) in self.cut or node.core is None or node.incarnation != incarnation:
            return
        node.core.replied(self.now, sender, request, reply)
        self._settle(node)

    def _failed(self, node_id: int, incarnation: int, receiver: int, request: Any, refused: bool) -> None:
        node = self.nodes[node_id]
        if node.core is None or node.incarnation != incarnation:
            return
        node.core.failed(self.now, receiver, request, refused=refused)
        self._settle(node)

    def _transmit(self, what: str, sender: int, receiver: int, *data: Any) -> None:
        if self.rng.random() < self.faults.loss:
            return
        copies = 2 if self.rng.random() < self.faults.duplicate else 1
        for _ in range(copies):
            delay = self.rng.random() * (2.0 if self.rng.random() < self.faults.slow else self.faults.delay_s)
            self.at(delay, what, *data)

    # ------------------------------------------------------------------ effects

    def _settle(self, node: SimNode) -> None:
        core = node.core
        assert core is not None
        while effects := core.take_effects():
            for effect in effects:
                self._carry_out(node, core, effect)
        if core.deadline < node.tick_at:
            node.tick_at = core.deadline
            # Slightly late rather than early: rounding must not lose a tick.
            self.at(max(0.0, core.deadline - self.now) + 1e-6, "tick", node.id, node.incarnation)
        self._check(node)

    def _carry_out(self, node: SimNode, core: RaftCore, effect: Any) -> None:
        if isinstance(effect, Persist):
            node.persisted = Persisted(effect.epoch, effect.voted_for, effect.leader, effect.voted_directory)
        elif isinstance(effect, Send):
            self._transmit("deliver", node.id, effect.to, node.id, node.incarnation, effect.to, effect.request)
            if isinstance(effect.request, Fetch | Vote):
                patience = core.patience_for(effect.request)
                self.at(2.0 * patience, "failed", node.id, node.incarnation, effect.to, effect.request, False)
        elif isinstance(effect, AnswerFetch):
            self._answer(node, effect)
        elif isinstance(effect, AppendLeaderChange):
            self._append(node, (effect.epoch, f"L{node.id}"))
            if effect.founds:
                self._append(node, (effect.epoch, effect.voters))
            core.appended(self.now)
            self._flush_later(node)
        elif isinstance(effect, AppendVoters):
            self._append(node, (effect.epoch, effect.voters))
            core.appended(self.now)
            self._flush_later(node)
        elif isinstance(effect, AppendFetched):
            self._append(node, *effect.records)
            self._flush_later(node)
        elif isinstance(effect, Truncate):
            self.note(f"{node.id} cuts its log at {effect.offset}")
            node.generation += 1
            node.log.truncate(effect.offset)
            node.compared = 0
        elif isinstance(effect, LoadSnapshot):
            self._load_snapshot(node, core, effect)
        elif isinstance(effect, LeaderChanged):
            self._leader_changed(node, effect)
        else:
            assert isinstance(effect, HighWatermark)

    def _answer(self, node: SimNode, effect: AnswerFetch) -> None:
        where = self.tokens.pop((node.id, node.incarnation, effect.token), None)
        if where is None:
            return
        sender, incarnation, request = where
        records: Any = ()
        if effect.from_offset >= 0:
            first = effect.from_offset - node.log.start_offset
            records = tuple(node.log.entries[first : first + self.rng.randint(1, 20)])
        reply = effect.reply
        answer = FetchReply(
            reply.epoch, reply.leader, reply.error, reply.high_watermark, reply.diverging, reply.snapshot, records
        )
        self._reply(node.id, sender, incarnation, request, answer)

    def _load_snapshot(self, node: SimNode, core: RaftCore, effect: LoadSnapshot) -> None:
        leader = self.nodes[effect.leader]
        available = leader.core is not None and leader.log.latest_snapshot == effect.snapshot
        if not available or self.rng.random() < self.faults.loss * 3:
            core.snapshot_loaded(self.now, effect, complete=False)
            return
        node.generation += 1
        node.log.begin_after(effect.snapshot, leader.log.history.before(effect.snapshot.offset))
        core.log_begins_at(effect.snapshot.offset)
        self.note(f"{node.id} loads snapshot {tuple(effect.snapshot)}")
        core.snapshot_loaded(self.now, effect, complete=True)

    def _leader_changed(self, node: SimNode, effect: LeaderChanged) -> None:
        if effect.leader != node.id:
            return
        self.elections += 1
        self.note(f"{node.id} leads epoch {effect.epoch}")
        other = self.leaders.setdefault(effect.epoch, node.id)
        if other != node.id:
            raise self.violation(f"epoch {effect.epoch} has two leaders, {other} and {node.id}")

    # ------------------------------------------------------------------ invariants

    def _append(self, node: SimNode, *entries: Entry) -> None:
        for entry in entries:
            place = node.log.end_offset, entry[0]
            found = node.log.last_epoch, entry[1]
            known = self.placed.setdefault(place, found)
            if known != found:
                raise self.violation(f"{node.id} has {found} at (offset, epoch) {place}, where {known} was written")
            node.log.append(entry)

    def _check(self, node: SimNode) -> None:
        core, log = node.core, node.log
        assert core is not None
        mark = core.high_watermark
        if mark > log.end_offset:
            raise self.violation(f"{node.id}: high watermark {mark} beyond its log's end {log.end_offset}")
        # Entries below `compared` need no new check until the log is truncated or a snapshot is loaded.
        node.compared = max(log.start_offset, min(node.compared, mark))
        first, node.compared = node.compared, max(node.compared, mark)
        for offset in range(first, mark):
            if offset < len(self.committed):
                if self.committed[offset] != log.at(offset):
                    raise self.violation(
                        f"{node.id} has {log.at(offset)} at {offset}, but {self.committed[offset]} is committed"
                    )
            elif offset == len(self.committed):
                self.committed.append(log.at(offset))
                self._voters_overlap(log.at(offset)[1])
            else:
                raise self.violation(f"{node.id}: offset {offset} is committed before {len(self.committed)}")

    def _voters_overlap(self, committed: str | VoterSet) -> None:
        if not isinstance(committed, VoterSet):
            return
        before = {(voter.id, voter.directory) for voter in self.voter_sets[-1].voters}
        after = {(voter.id, voter.directory) for voter in committed.voters}
        was_static = self.voter_sets[-1].is_static
        self.voter_sets.append(committed)
        least = len(before) // 2 + 1 + len(after) // 2 + 1 - len(before | after)
        if least < 1 and not was_static:
            raise self.violation(f"majorities of {before} and {after} need not have a node in common")


def directory_of(number: int) -> UUID:
    return UUID(int=1000 + number)


def run_seed(seed: int, *, nodes: int = 3, observers: int = 1, seconds: float = 30.0) -> World:
    world = World(seed, nodes, observers)
    world.run(seconds)
    world.quiet(20.0)
    return world
