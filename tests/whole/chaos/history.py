"""The parsed ledger: jobs with their runs, and the faults of processes, links and servers with their times."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from math import inf

from celery_affinity.settings import tenants
from celery_affinity.settings.limits import typed_limits

from .app import BLOCK_S, HEARTBEAT_S, REPLY_TIMEOUT_S, WORKER_TIMEOUT_S
from .facts import Change, Job, MergedCall, Pause, Run, Unstored, Window
from .ledger import Event
from .reserves import highest

#: Max seconds from the end of a run until the worker has released the slot, on a busy machine.
REPORTS_S = 1.5

#: Max seconds until a disconnected worker reaches the server again.
RECONNECTS_S = REPLY_TIMEOUT_S + HEARTBEAT_S + REPORTS_S

#: Kind of window -> max seconds from its end until the worker's next heartbeat.
_HEARD_S = {"stop": HEARTBEAT_S + REPORTS_S, "silence": RECONNECTS_S}

#: Name in the ledger of the server for results that are not on the broker's server.
RESULTS = "results"

#: Number of pending jobs below which a full server is not checked for progress.
_IN_PASSING = 30


class History:
    """All events read so far."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.touched: set[str] = set()
        self.chords: dict[str, list[str]] = {}
        self.calls: dict[str, MergedCall] = {}
        self.touched_calls: set[str] = set()
        self.merged_runs: list[Run] = []
        self.merged_chords: dict[str, list[str]] = {}
        self.recurring: dict[str, list[Run]] = defaultdict(list)
        self.fired_before = 0
        self.judged_at = 0.0
        self.jobs_of_task: dict[str, list[Job]] = defaultdict(list)
        self.deaths: dict[int, float] = {}
        self.left: dict[int, float] = {}
        self.kills: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.fences: dict[int, list[Window]] = defaultdict(list)
        self.amnesias: list[Window] = []
        self.troubles: list[Window] = []
        self.results_amnesias: list[Window] = []
        self.results_away: list[Window] = []
        self.is_full: list[Window] = []
        self.pauses: list[Pause] = []
        self.changes: list[Change] = []
        self.turnover: list[float] = []
        self.members: dict[int, str] = {}
        self.retries_results: set[int] = set()
        self.unstored: dict[str, list[Unstored]] = defaultdict(list)
        self.got: dict[str, str] = {}
        self.waited: dict[str, Window] = {}
        self.complaints: list[str] = []
        self._runs: dict[str, Run] = {}
        self._open: dict[tuple[str, str], Event] = {}
        self._silences: dict[int, list[Window]] = defaultdict(list)
        self._born: dict[str, list[int]] = defaultdict(list)

    def read(self, events: Iterable[Event]) -> None:
        for event in events:
            read = getattr(self, f"_on_{event.kind}", None)
            if read is not None:
                read(event)

    def job(self, id: str) -> Job:
        self.touched.add(id)
        if id not in self.jobs:
            self.jobs[id] = Job(id)
        return self.jobs[id]

    # -- publishes and runs

    def _on_intended(self, event: Event) -> None:
        job = self.job(event.subject)
        job.task, job.name, job.intended = event.facts["task"], event.facts["name"], event.at
        job.type, job.tenant = event.facts.get("type", ""), event.facts.get("tenant", "")
        job.redis_id = event.facts.get("redis", event.subject)
        job.due = float(event.facts.get("due", 0))
        job.expires = float(event.facts.get("expires", inf))
        self.jobs_of_task[job.task].append(job)
        if "token" in event.facts:
            self.call(event.facts["token"]).steps.append(job.id)

    def _on_accepted(self, event: Event) -> None:
        self.job(event.subject).accepted = event.at

    def _on_refused(self, event: Event) -> None:
        job = self.job(event.subject)
        job.refused, job.refused_at = f"{event.facts['error']}: {event.facts['text']}", event.at

    def _on_start(self, event: Event) -> None:
        self.job(event.subject).runs.append(self._run(event))

    def _run(self, event: Event) -> Run:
        run = Run(event.facts["run"], event.pid, int(event.facts["worker"]), event.at)
        run.keys, run.fence = event.facts.get("keys", "").split(), int(event.facts.get("fence", 0))
        run.priority, run.mode = int(event.facts.get("priority", 0)), event.facts.get("mode", "queued")
        run.preemptible = "preemptible" in event.facts
        self._runs[run.id] = run
        return run

    def _on_asked(self, event: Event) -> None:
        self._runs[event.subject].asked = event.at

    def _on_end(self, event: Event) -> None:
        run = self._runs[event.facts["run"]]
        run.end, run.outcome = event.at, event.facts["outcome"]
        if event.subject != "-":
            self.job(event.subject)

    def _on_recurs(self, event: Event) -> None:
        run = self._run(event)
        run.calls = tuple(event.facts["calls"].split(","))
        self.recurring[event.facts["since"]].append(run)

    # -- merging calls

    def call(self, token: str) -> MergedCall:
        self.touched_calls.add(token)
        return self.calls.setdefault(token, MergedCall(token))

    def _on_call(self, event: Event) -> None:
        call = self.call(event.subject)
        call.task, call.name, call.type = event.facts["task"], event.facts["name"], event.facts["type"]
        call.intended = min(call.intended, event.at)
        call.tries += 1

    def _on_call_accepted(self, event: Event) -> None:
        call = self.call(event.subject)
        call.accepted = min(call.accepted, event.at)

    def _on_call_refused(self, event: Event) -> None:
        self.call(event.subject).refused = f"{event.facts['error']}: {event.facts['text']}"

    def _on_follows(self, event: Event) -> None:
        self.call(event.subject).follows = event.facts["what"]

    def _on_merged_chord(self, event: Event) -> None:
        self.merged_chords[event.subject] = event.facts["calls"].split(",")

    def _on_merged(self, event: Event) -> None:
        run = self._run(event)
        run.calls, run.given = tuple(event.facts["calls"].split(",")), tuple(event.facts["given"].split(","))
        run.task = event.facts["task"]
        self.merged_runs.append(run)
        for token in dict.fromkeys(run.calls):
            self.call(token).runs.append(run)

    def _on_stepped(self, event: Event) -> None:
        self.call(event.subject).has_own.append(event.facts["has"] == "True")

    def _on_failed(self, event: Event) -> None:
        self.job(event.subject).failed = event.facts["error"]

    def _on_chord(self, event: Event) -> None:
        self.chords[event.subject] = event.facts["parts"].split(",")

    def _on_unstored(self, event: Event) -> None:
        unstored = Unstored(event.at, int(event.facts["worker"]), event.facts["state"])
        self.unstored[event.subject].append(unstored)

    def _on_got(self, event: Event) -> None:
        self.got[event.subject] = event.facts["state"]

    def _on_waited(self, event: Event) -> None:
        self.waited[event.subject] = Window(event.facts["error"], 0, float(event.facts["asked"]), event.at)

    # -- faults

    def _on_kill(self, event: Event) -> None:
        self.deaths[int(event.facts["target"])] = event.at
        self.kills[event.subject] += 1
        if event.subject == "worker":
            self.turnover.append(event.at)

    def _on_whole(self, event: Event) -> None:
        self.turnover.clear()

    def _on_term(self, event: Event) -> None:
        self.left[int(event.facts["target"])] = event.at
        self.faults["restart"] += 1
        self.turnover.append(event.at)

    def _on_born(self, event: Event) -> None:
        pid = int(event.facts["target"])
        self._born[event.subject].append(pid)
        self.members[pid] = event.subject
        self.turnover.append(event.at)
        if event.facts["retries_results"] == "True":
            self.retries_results.add(pid)

    def _on_stop(self, event: Event) -> None:
        self._begin(event, "stop")

    def _on_resume(self, event: Event) -> None:
        self._end_of(event, "stop", [int(event.facts["target"])])

    def _on_block(self, event: Event) -> None:
        pid = int(event.facts["target"])
        self.faults["block"] += 1
        self.troubles.append(Window("block", pid, event.at, event.at + BLOCK_S + REPORTS_S))

    def _on_silence(self, event: Event) -> None:
        self._begin(event, "silence")

    def _on_slow(self, event: Event) -> None:
        self._begin(event, "slow")

    def _on_healed(self, event: Event) -> None:
        for what in ("silence", "slow"):
            self._end_of(event, what, self._born[event.subject])

    def _on_cut(self, event: Event) -> None:
        self.faults["cut"] += 1
        self.troubles.append(Window("cut", 0, event.at, event.at + RECONNECTS_S))

    def _on_down(self, event: Event) -> None:
        how = event.facts["how"]
        self._begin(event, f"results {how}" if event.subject == RESULTS else how, as_what="down")

    def _on_up(self, event: Event) -> None:
        began = self._open[("down", event.subject)]
        forgets_s = float(began.facts["forgets_s"])
        if forgets_s:
            amnesias = self.results_amnesias if event.subject == RESULTS else self.amnesias
            amnesias.append(Window(began.facts["how"], 0, began.at - forgets_s, event.at))
        if event.subject == RESULTS:
            del self._open["down", RESULTS]
            self.results_away.append(Window("results", 0, began.at, event.at + RECONNECTS_S))
            return
        self._end_of(event, "down", [0])

    def _on_full(self, event: Event) -> None:
        self._begin(event, "full")

    def _on_relief(self, event: Event) -> None:
        began = self._open.pop(("full", event.subject), None)
        if began is not None:
            self.is_full.append(Window("full", 0, float(began.facts["began"]), event.at))
            before, after = int(began.facts["pending"]), int(event.facts["pending"])
            if before > _IN_PASSING and after >= before:
                self.complaints.append(f"a full server's jobs were not worked off: {before} pending, then {after}")
            if float(event.facts["silent_s"]) > _HEARD_S["stop"]:
                self.complaints.append(f"a worker was silent for {event.facts['silent_s']} s while the server was full")

    # -- an operator

    def _on_paused(self, event: Event) -> None:
        self.faults["pause"] += 1
        self.pauses.append(Pause(event.subject, event.at, int(event.facts["fence"])))

    def _on_resuming(self, event: Event) -> None:
        pause = next(each for each in reversed(self.pauses) if each.what == event.subject)
        pause.until, pause.up_to = event.at, int(event.facts["fence"])

    def _on_limits(self, event: Event) -> None:
        self.faults["limit"] += 1
        quotas = tenants.typed_tenants(event.facts.get("tenants", "none")) or {}
        limits = {**(typed_limits(event.subject) or {}), **highest(event.facts.get("reserve", "none"))}
        limits |= {f"tenant:{name}": quota.max for name, quota in quotas.items() if quota.max is not None}
        began, before, after = float(event.facts["began"]), int(event.facts["before"]), int(event.facts["fence"])
        minima = {name: quota.min for name, quota in quotas.items()}
        self.changes.append(Change(began, before, after, limits, minima, event.at))

    # -- windows

    def _begin(self, event: Event, what: str, as_what: str | None = None) -> None:
        self.faults[what] += 1
        self._open.setdefault((as_what or what, event.subject), event)

    def _end_of(self, event: Event, what: str, pids: list[int]) -> None:
        began = self._open.pop((what, event.subject), None)
        if began is None:
            return
        for pid in pids:
            window = Window(what, pid, began.at, event.at + RECONNECTS_S)
            self.troubles.append(window)
            if what in ("stop", "silence"):
                self._fence(pid, window)

    def _fence(self, pid: int, window: Window) -> None:
        """Note that a worker may have been reported dead. To the server, silences in quick succession are one."""
        windows = self._silences[pid]
        latest = window.since
        if windows and window.since <= windows[-1].until - RECONNECTS_S + _HEARD_S[window.what]:
            window = Window(window.what, pid, windows.pop().since, window.until, latest)
        windows.append(window)
        if window.until - RECONNECTS_S + _HEARD_S[window.what] - window.since >= WORKER_TIMEOUT_S:
            self.fences[pid].append(window)
