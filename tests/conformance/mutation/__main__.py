"""Run mutation tests of the Lua library: `make mutants N=60 SEED=7`; without N all mutants; `ARGS=lanes` a part.

Verdicts are stored in build/mutants, by the text of the whole library with the mutant. An interrupted run continues
until the Lua changes. `--again` in ARGS repeats the survivors, for example after new tests.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from time import monotonic

from celery_affinity.embedded import EmbeddedServer
from celery_affinity.lua.library import assemble

from ...support.pages import RESULTS, write_block
from ...support.processes import ROOT
from .judge import KILLED, OTHERS, SURVIVED, UNJUDGED, Verdict, begin, judged, texts
from .operators import OPERATORS, Mutant, mutants_of
from .replay import recorded
from .survivors import reason_for

VERDICTS = ROOT / "build" / "mutants" / "verdicts.jsonl"

#: Random steps per mutant.
STEPS = 10_000

_BLOCK = "mutants"


@cache
def all_mutants() -> list[Mutant]:
    """Return the mutants of all Lua files, in an order independent of file names."""
    found = [mutant for file, text in texts().items() for mutant in mutants_of(file, text)]
    return sorted(found, key=lambda mutant: (mutant.key, mutant.start))


def sample(mutants: Sequence[Mutant], number: int, seed: str) -> list[Mutant]:
    """Return *number* of *mutants*, equally many per operator, and the same for an equal *seed*."""
    of_operator = defaultdict(list)
    for mutant in mutants:
        of_operator[mutant.operator].append(mutant)
    ranked = []
    for name, each in of_operator.items():
        random.Random(f"{seed} {name}").shuffle(each)
        ranked += [(place, name, mutant) for place, mutant in enumerate(each)]
    return [mutant for *_, mutant in sorted(ranked, key=lambda row: row[:2])[:number]]


def digest_of(mutant: Mutant) -> str:
    """Return a digest of the library with *mutant*, which ignores spaces and comments elsewhere."""
    text = " ".join(assemble({mutant.file: mutant.applied(texts()[mutant.file])}).split())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def kept_verdicts(path: Path, *, again: bool) -> dict[str, Verdict]:
    """Return the verdicts in the file *path* by digest. *again*: without the survivors."""
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    found = {row["digest"]: Verdict(row["verdict"], row["by"]) for row in rows}
    left_out = {UNJUDGED, SURVIVED} if again else {UNJUDGED}
    return {digest: verdict for digest, verdict in found.items() if verdict.verdict not in left_out}


# -- the program


def main(words: Sequence[str]) -> int:
    """Judge mutants and print the survivors. Return the number of survivors that are not accepted."""
    options = _options(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended: the next run goes on from here"))
    mutants = [mutant for mutant in all_mutants() if _is_of(mutant, options.words)]
    picked = sample(mutants, options.number or len(mutants), options.seed)
    print(f"{len(picked)} of {len(mutants)} mutants, SEED={options.seed}", flush=True)
    verdicts = {}
    judged = {mutant: digest_of(mutant) for mutant in picked if not reason_for(mutant.key)}
    kept = kept_verdicts(VERDICTS, again=options.again)
    to_judge = [mutant for mutant, digest in judged.items() if digest not in kept]
    verdicts = {mutant: kept[digest] for mutant, digest in judged.items() if digest in kept}
    began_s = monotonic()
    VERDICTS.parent.mkdir(parents=True, exist_ok=True)
    for mutant, verdict, took_s in judge_all(to_judge, options):
        verdicts[mutant] = verdict
        row = {"digest": judged[mutant], **verdict._asdict(), "seconds": round(took_s, 1)}
        row |= {"operator": mutant.operator, "file": mutant.file, "key": mutant.key}
        with VERDICTS.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{verdict.verdict:13} {verdict.by or '-':40} {mutant.file}: {mutant.key}", flush=True)
    if to_judge:
        print(f"{(monotonic() - began_s) / len(to_judge):.1f} s per mutant")
    how = f"seed {options.seed}, {options.steps:,} steps{', without the third judge' if options.quick else ''}"
    table = as_markdown(mutants, picked, verdicts, how)
    print(table)
    if options.write_docs:
        write_block(RESULTS / "mutants.md", _BLOCK, table)
    survivors = [mutant for mutant in picked if mutant in verdicts and verdicts[mutant].verdict == SURVIVED]
    for mutant in survivors:
        print(f"survived: {mutant.file}: {mutant.key}")
    return len(survivors)


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants", description="Judge mutants of the Lua library.")
    parser.add_argument("words", nargs="*", help="only mutants with one of these words in their file or key")
    parser.add_argument("--number", type=int, default=0, help="how many are sampled; 0: all of them")
    parser.add_argument("--seed", default="", help="of the sample; without one, a new one that is printed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many are judged at the same time")
    parser.add_argument("--steps", type=int, default=STEPS, help="random steps for each mutant")
    parser.add_argument("--quick", action="store_true", help="leave out tests that do not judge the mutant's file")
    parser.add_argument("--again", action="store_true", help="judge survivors of earlier runs again")
    parser.add_argument("--write-docs", action="store_true", help="write the table into benchmarks/results/mutants.md")
    options = parser.parse_args(words)
    options.seed = options.seed or str(random.randrange(100_000))
    return options


def _is_of(mutant: Mutant, words: Iterable[str]) -> bool:
    return not words or any(word in f"{mutant.file}: {mutant.key}" for word in words)


def judge_all(mutants: Sequence[Mutant], options: argparse.Namespace) -> Iterable[tuple[Mutant, Verdict, float]]:
    """Yield each of *mutants* with its verdict and duration in seconds, as they complete."""
    if not mutants:
        return
    with EmbeddedServer() as server:
        runs = recorded(server, options.steps, random.Random(options.seed).randrange(2**32))
    others = () if options.quick else OTHERS
    with (
        tempfile.TemporaryDirectory() as directory,
        ProcessPoolExecutor(options.jobs, get_context("spawn"), begin, (directory, runs, others)) as pool,
    ):
        try:
            tasks = {pool.submit(judged, mutant): mutant for mutant in mutants}
            for task in as_completed(tasks):
                yield tasks[task], *task.result()
        finally:
            pool.shutdown(cancel_futures=True)


def as_markdown(
    mutants: Sequence[Mutant], picked: Sequence[Mutant], verdicts: Mapping[Mutant, Verdict], how: str
) -> str:
    """Return a Markdown table with the mutants and verdicts per operator. *how*: a note for the reader."""
    there = Counter(mutant.operator for mutant in mutants)
    ends = Counter((mutant.operator, verdicts[mutant].verdict) for mutant in picked if mutant in verdicts)
    excused = Counter(mutant.operator for mutant in picked if mutant not in verdicts)
    rows = [
        (name, there[name], *(ends[name, verdict] for verdict in (KILLED, SURVIVED)), excused[name])
        for name in OPERATORS
    ]
    rows.append(("all", *(sum(column) for column in zip(*(row[1:] for row in rows), strict=True))))
    lines = [
        f"{len(picked)} of {len(mutants):,} mutants, {how}:\n\n",
        "| operator | mutants | killed | survived | accepted | kill rate |\n",
        "| --- | ---: | ---: | ---: | ---: | ---: |\n",
    ]
    for name, number, killed, survived, others in rows:
        rate = f"{killed / (killed + survived):.0%}" if killed + survived else ""
        lines.append(f"| {name} | {number:,} | {killed} | {survived} | {others} | {rate} |\n")
    return "".join(lines)


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
