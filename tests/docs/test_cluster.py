"""Run on a cluster: the commands of the page move the slot with the fleet's keys."""

import re
from pathlib import Path

from celery_affinity.schema.keys import Keys

from ..support.pages import commands
from ..support.processes import wait_until

PAGE = Path(__file__).parents[2] / "docs/how-to/cluster.md"


def test_the_commands_of_the_page_move_the_slot_of_the_fleet(cluster):
    (block,) = re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL)
    source, target = cluster.owner, cluster.other
    replies = []
    for _, *words in commands(block):
        assert words[:2] == ["-p", "7001"]
        said = [target.id if len(word) == 40 else word for word in words[2:]]
        replies.append(str(source.ask(*said)))
    shown = [line.removeprefix("(integer) ") for line in block.splitlines() if not line.startswith("$")]
    assert replies == shown
    wait_until(lambda: cluster.owner_of(Keys().base) is target, 30, "the slot has moved")
