"""Arrows of a worker's life: from its join to its leave, or to the moment when it is known to be dead."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...lua.library import arrow
from ...rules.ahead import NOTHING, Ahead
from ...rules.encoding import encode
from ...rules.rows import number_of, text_of
from .. import calls
from ..arguments import ClaimReport, End, Joining, TypeSums
from ..calls import check_kind, flat, pages
from ..connections.in_flight import InFlight
from ..recorded_claims import ClaimRow, asking
from ..replies import Claim, Joined, Synced, parsed_claims
from ..running import Runner


class Working(Runner):
    """Has a worker live, say what its slots do, and get jobs for them."""

    def join(self, joining: Joining, settings: dict[str, str]) -> Joined:
        """Enter *joining* as a live worker. *settings*: those of its app.conf, as `shared_settings.shared` has them."""
        unfilled, namesake, replaced, void_up_to, now_us = self._run(
            arrow("join"),
            worker=joining.worker,
            name=encode(joining.name),
            slots_in_all=joining.slots,
            other=joining.other,
            profile=joining.profile,
            types=" ".join(joining.encoded_types),
            app=encode(joining.app),
            stops=joining.stops,
            priority=joining.priority,
            rest=flat(settings.items()),
        )
        if self.way is self.library.by_script:  # a script of its own
            self.load()
        self._go_on(unfilled)
        return Joined(text_of(namesake) or None, [text_of(name) for name in replaced], int(void_up_to), now_us)

    def tell_ends(
        self,
        worker: str,
        *,
        acks: Sequence[tuple[str, str]],
        ends: Sequence[End],
        sequence: int,
        inline: bool,
        may_hold: Ahead = NOTHING,
        on_acked: Callable[[int], object] = lambda _: None,
    ) -> list[Claim]:
        """Ack messages, and release the slots of jobs that ended, in one round trip. Return the jobs that follow.

        *acks*: (job id, fencing number). *sequence*: a number above 0 that grows with each call; a call that is
        repeated has its number with a minus. *inline*: whether the worker's next jobs come with the reply; else they go
        to the inbox. *may_hold*: what the worker may then hold beyond its slots. *on_acked* is called with the number
        of *acks* whose claims the worker holds.
        """
        told = calls.telling(worker, acks, ends, sequence, inline, may_hold)
        replies = self._run_together(told) if told else []
        if acks:
            on_acked(int(replies[0]))
        return self._settled(replies, bool(ends))

    def send_acks(self, in_flight: InFlight, worker: str, acks: Sequence[tuple[str, str]], *, goes_on: bool) -> None:
        """Begin to ack messages, which `receive_acks` ends. *goes_on*: other calls are on their way already."""
        send = in_flight.go_on if goes_on else in_flight.send
        send(self._commands(calls.telling(worker, acks, (), 0, True, NOTHING)))

    def receive_acks(self, in_flight: InFlight, calls: int) -> list[int]:
        """End so many `send_acks`. Return the numbers of claims that the worker holds. Raises as `receive` does."""
        replies = in_flight.receive(calls)
        for reply in replies:
            check_kind(int, reply, in_flight)
        return replies

    def send_ends(
        self,
        in_flight: InFlight,
        worker: str,
        *,
        acks: Sequence[tuple[str, str]],
        ends: Sequence[End],
        sequence: int,
        may_hold: Ahead,
        goes_on: bool,
    ) -> None:
        """Begin a `tell_ends` whose jobs come inline, which `receive_ends` ends. *goes_on*: see `send_acks`."""
        send = in_flight.go_on if goes_on else in_flight.send
        send(self._commands(calls.telling(worker, acks, ends, sequence, True, may_hold)))

    def receive_ends(self, in_flight: InFlight, *, has_ends: bool) -> list[Claim]:
        """End a `send_ends`. Return the jobs that follow. An error of the server is raised as it came."""
        replies = in_flight.receive()
        check_kind(list if has_ends else int, replies[-1] if replies else None, in_flight)
        return self._settled(replies, has_ends)

    def _settled(self, replies: Sequence[Any], has_ends: bool) -> list[Claim]:
        if not has_ends:
            return []
        unfilled, *parts = replies[-1]
        self._go_on(unfilled)
        return parsed_claims(parts)

    def requeue(self, worker: str, claims: Iterable[tuple[str, str]], *, counted: bool) -> int:
        """Give *claims* (job id, fencing number) back. Return how many of their jobs are pending again.

        *counted*: whether this counts as a delivery.
        """
        returned = 0
        for page in pages(list(claims)):
            unfilled, count = self._run(arrow("requeue"), worker=worker, counted=int(counted), rest=flat(page))
            returned += int(count)
            self._go_on(unfilled)
        return returned

    def sync(self, worker: str, claims: Iterable[ClaimReport], *, slots: int, other: int, draining: bool) -> Synced:
        """Send a heartbeat, and say which *claims* the worker holds."""
        known, ticker, unfilled, asked, void, revision, now_us, returned = self._run(
            arrow("sync"),
            worker=worker,
            slots_in_all=slots,
            other=other,
            draining=int(draining),
            rest=flat(claims),
        )
        self._go_on(unfilled)
        numbers = [text_of(value) for value in asked]
        pairs = list(zip(numbers[::2], numbers[1::2], strict=True))
        void_ids = [text_of(job_id) for job_id in void]
        return Synced(bool(known), bool(ticker), pairs, void_ids, number_of(revision), now_us, int(returned))

    def count(self, worker: str, number: int, sums: Iterable[TypeSums]) -> bool:
        """Add *sums* of a worker's jobs to what the server tells observers. Return whether the worker is known.

        *number* grows with each call that is not a repetition. A call of a worker that is not known changes nothing.
        """
        return bool(self._run(arrow("count"), worker=worker, number=number, rest=flat(each.words for each in sums)))

    def record(self, recording: str, pages: Iterable[tuple[str, Sequence[ClaimRow]]]) -> bool:
        """Write *pages* into a recording: what a worker says of itself, and claims. Return whether the recording is on.

        The server adds its own times (`recorded_claims`).
        """
        return all(self._run_together([_recording(recording, *page) for page in pages]))

    def heartbeat(self, worker: str, *, loop_runs: bool) -> bool:
        """Say that a worker lives, and whether its event loop runs (*loop_runs*). Return whether the worker is known.

        While the loop does not run, the worker gets no job, and the jobs in its inbox go back.
        """
        while True:
            known, again, unfilled = self._run(arrow("heartbeat"), worker=worker, loop_runs=int(loop_runs))
            self._go_on(unfilled)
            if not again:
                return bool(known)

    def heartbeats(self, workers: Sequence[str]) -> list[bool]:
        """Tell the server in one round trip that *workers*, whose loops run, live. Return which of them it knows."""
        calls = [(arrow("heartbeat"), arrow("heartbeat").arguments(worker=each, loop_runs=1)) for each in workers]
        replies = self._run_together(calls) if calls else []
        for _, _, unfilled in replies:
            self._go_on(unfilled)
        return [bool(known) for known, _, _ in replies]

    def leave(self, worker: str) -> int:
        """Take a worker out. Return how many jobs it still held, which are pending again."""
        returned, unfinished = 0, True
        while unfinished:
            unfilled, unfinished, count = self._run(arrow("leave"), worker=worker)
            returned += int(count)
            self._go_on(unfilled)
        return returned

    def recover(self, worker: str) -> int:
        """Take back all jobs of a worker that is known to be dead. Return how many there were."""
        recovered = 0
        while True:
            again, count, unfilled = self._run(arrow("recover"), worker=worker)
            recovered += int(count)
            self._go_on(unfilled)
            if not again:
                return recovered


def _recording(recording: str, worker: str, rows: Sequence[ClaimRow]) -> calls.ArrowCall:
    record, page = arrow("record"), asking(rows)
    rest = [*page.plain, *page.others]
    return record, record.arguments(rest, recording=recording, worker=worker, rows=page.text, plain=len(page.plain))
