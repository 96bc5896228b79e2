"""Breaks the Lua scripts on purpose, one line at a time, and asks the conformance test to notice: `make seeded-faults`.

A fault is a text of a file and what stands there instead. A text that is not there exactly once is an error: the script
has changed, and the fault is to be written anew.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
LUA = "celery_affinity/server/lua"
STEPS = int(os.environ.get("CONFORMANCE_STEPS", "10000"))

#: A fault that shows rarely is not found from every seed.
SEEDS = 4

_TEST = (
    "-m",
    "pytest",
    "tests/conformance/test_conformance.py",
    "-k",
    "valkey",
    "-q",
    "-p",
    "no:cacheprovider",
    "-o",
    "timeout=0",
)
_FAILED_AT = re.compile(r"failed at step (\d+);")
#: Not of ack, claim, drop, ingest, purge and requeue: their own first write frees memory.
_INCLUDE_FULL = "-- @include base/full_memory.lua\n"


class Fault(NamedTuple):
    file: str
    old: str
    new: str


FAULTS = (
    # -- arrows
    Fault("jobs/enter", 'redis.call("EXISTS", key.job(id)) == 1', 'redis.call("EXISTS", key.message(id)) == 1'),
    Fault("jobs/enter", "enqueued_us + math.max(0, delay_us)", "enqueued_us + delay_us"),
    Fault("jobs/enter", "fitting = fitting + free_slots.free_for(type)", "fitting = free_slots.free_for(type)"),
    Fault("arrows/publish", "put(job, clock.now_us + nth,", "put(job, clock.now_us,"),
    Fault("arrows/publish", "is_first and job.type or nil", "#types == 0 and is_first and job.type or nil"),
    Fault("jobs/enter", "1, not heads, alone", "1, true, alone"),
    Fault("jobs/enter", "if delay_us > 0 then", "if delay_us > 1 then"),
    Fault("jobs/enter", "if heads or not is_only then", "if not is_only then"),
    Fault("jobs/enter", "if heads or not is_only then", "if heads then"),
    Fault("jobs/enter", "    if alone then\n", "    if false then\n"),
    Fault("jobs/enter", "tonumber(expires_us) <= 0", "tonumber(expires_us) < 0"),
    Fault("jobs/enter", "is_heard_of and find_by.is_revoked(job.task_id)", "false"),
    Fault("jobs/enter", 'is_revoked and "revoked" or "expired"', 'is_expired and "expired" or "revoked"'),
    Fault("jobs/enter", "find_by.add(id, job.task_id, job.stamps,", 'find_by.add(id, job.task_id, "",'),
    Fault("arrows/ingest", 'redis.call("LINDEX", list, -1) ~= job.message', "false"),
    Fault("arrows/ingest", 'redis.call("EXISTS", key.job(job.id)) == 1', "false"),
    Fault("arrows/ingest", 'redis.call("RPOP", list)', 'redis.call("LPOP", list)'),
    Fault("arrows/ingest", "if bad or not readable then", "if bad then"),
    Fault("arrows/ingest", "if bad or not readable then", "if not readable then"),
    Fault("arrows/claim", "fill(ARGV,", "fill({ ARGV[1] },"),
    Fault("arrows/claim", "free_slots.view())[1]", 'free_slots.view()) and ""'),
    Fault("placing/fill", 'waiting.heads[type] and reply[1] .. type .. " " or reply[1]', 'reply[1] .. type .. " "'),
    Fault("placing/fill", "if moves == protocol.MOST_MOVES or", "if moves > protocol.MOST_MOVES or"),
    Fault("arrows/beat", "> 0 and 1 or 0, more", "> 1 and 1 or 0, more"),
    Fault("arrows/recover", "gone and 0 or 1", "0"),
    Fault("arrows/ack", "claims.held(worker, id, ARGV[i + 1])", 'redis.call("HEXISTS", key.claims(worker), id) == 1'),
    Fault("arrows/ack", 'redis.call("HSET", key.job(id), "acked", 1)', ""),
    Fault("arrows/ack", "return acked", "return (#ARGV - 1) / 2"),
    Fault("arrows/release", "if row[7] == sequence then", "if false then"),
    Fault("arrows/release", "if claims.held(worker, id, fence) then", "if true then"),
    Fault("arrows/release", "elseif known.acked then", "elseif false then"),
    Fault("arrows/release", "known, ENDED[how], why)", 'known, "done", why)'),
    Fault("arrows/release", 'how == "unsettled"', "true"),
    Fault("arrows/release", '"rejected", settings, why)', '"rejected", settings)'),
    Fault("jobs/outcome", "string.sub(why, 1, protocol.MOST_WHY_BYTES)", "why"),
    Fault("jobs/outcome", 'expired = "expired"', 'expired = "done"'),
    Fault("jobs/finished", 'if why ~= "" then', "if false then"),
    Fault("jobs/come_back", 'if why and why ~= "" then', "if why then"),
    Fault("jobs/come_back", '"max_deliveries", settings, why)', '"max_deliveries", settings)'),
    Fault("arrows/replay", '"reason", "why",', '"reason",'),
    Fault("arrows/release", 'ARGV[3] == "1" and', 'ARGV[3] ~= "" and'),
    Fault("arrows/release", "if next(again) then -- jobs", "if false then -- jobs"),
    Fault("arrows/release", "    free_slots.recount(worker)\n", ""),
    Fault("arrows/release", "most_ahead > 0 or left > 0", "most_ahead > 0"),
    Fault("arrows/release", 'if reply[1] == "" then', "if true then"),
    Fault("arrows/release", "    if next(again) then", "    if false then"),
    Fault("arrows/release", "        types[i] = nil\n", ""),
    Fault(
        "arrows/sync",
        "    lookahead.ask(worker, workers.types_of(worker),",
        "    type(worker, workers.types_of(worker),",
    ),
    Fault("arrows/join", "    lookahead.ask(worker, types,", "    type(worker, types,"),
    Fault("fleet/lookahead", "tonumber(row[1]) + most - tonumber(row[2])", "tonumber(row[1]) + most"),
    Fault("fleet/lookahead", "math.min(most, tonumber(row[1])", "math.min(1000, tonumber(row[1])"),
    Fault("fleet/lookahead", "        view.left = view.left - 1\n", ""),
    Fault("fleet/lookahead", 'row[3] == "1" and not row[4] and tonumber', "tonumber"),
    Fault("fleet/lookahead", "if holder ~= worker and", "if"),
    Fault("fleet/lookahead", '            redis.call("HDEL", key.ahead, types[i])\n', ""),
    Fault("fleet/lookahead", "if free == 0 or #types == 0 or", "if #types == 0 or"),
    Fault("fleet/lookahead", "> tonumber(row[1]) - tonumber(row[2])", ">= tonumber(row[1]) - tonumber(row[2])"),
    Fault("jobs/enter", "delay_us < protocol.TICK_US and", ""),
    Fault("jobs/enter", "[1] == id then", "[1] then"),
    Fault("fleet/workers", 'row[1] == "1" and not row[2] then', 'row[1] == "1" then'),
    Fault("fleet/workers", 'redis.call("HDEL", key.ahead, type)', ""),
    Fault("arrows/beat", "if id and claims.held", "if claims.held"),
    Fault("arrows/release", "-- @deferred base/full_memory.lua\n", ""),
    Fault("arrows/requeue", 'ARGV[2] == "1"', 'ARGV[2] ~= ""'),
    Fault("arrows/requeue", "claims.held(worker, ARGV[i], ARGV[i + 1])", "true"),
    Fault("arrows/requeue", "free_slots.recount(worker)\n", "\n"),
    Fault("arrows/join", 'key.joined, "NX", now', "key.joined, now"),
    Fault("arrows/join", "workers.detach(worker)", "workers.close(worker)"),
    Fault("arrows/join", 'namesake and namesake ~= worker and namesake or ""', 'namesake or ""'),
    Fault("arrows/join", 'accepting == "1" and 0 or', "accepting and 0 or"),
    Fault("arrows/join", 'redis.call("SET", key.schema, SCHEMA, "NX")', ""),
    Fault("arrows/join", "key.beats, now", 'key.beats, "NX", now'),
    Fault("arrows/join", _INCLUDE_FULL, ""),
    Fault("arrows/sync", 'if not accepting or (accepting == "0" and not draining) then', "if not accepting then"),
    Fault("arrows/sync", "elseif running_us >= 0 then", "elseif running_us > 0 then"),
    Fault("arrows/sync", 'redis.call("HSETNX", key.job(id)', 'redis.call("HSET", key.job(id)'),
    Fault("arrows/sync", "if held[id] ~= claimed[i + 1] then", "if not held[id] then"),
    Fault("arrows/sync", "age_us > settings.heartbeat_interval_us", "age_us >= settings.heartbeat_interval_us"),
    Fault("arrows/sync", "= claims.is_unread(worker, id)", "= not draining and claims.is_unread(worker, id), 0"),
    Fault("arrows/sync", "looked_at == protocol.MOST_MOVES or ", ""),
    Fault("arrows/sync", " or bytes > protocol.MOST_BYTES then", " then"),
    Fault("arrows/beat", "bytes <= protocol.MOST_BYTES and ", ""),
    Fault("placing/fill", " or bytes > protocol.MOST_BYTES then", " then"),
    Fault("arrows/sync", "come_back.put(worker, id, false, settings)", "come_back.put(worker, id, true, settings)"),
    Fault("arrows/sync", "rank < protocol.TICKERS", "rank <= protocol.TICKERS"),
    Fault("arrows/sync", "ticked > protocol.TICKED_LATELY_US", "ticked >= protocol.TICKED_LATELY_US"),
    Fault("arrows/sync", _INCLUDE_FULL, ""),
    Fault(
        "arrows/leave",
        "come_back.put(worker, claimed[i], false, settings)",
        "come_back.put(worker, claimed[i], true, settings)",
    ),
    Fault("arrows/leave", "if #claimed <= protocol.MOST_MOVES then", "if #claimed < protocol.MOST_MOVES then"),
    Fault("arrows/leave", "workers.remove(worker)", "workers.detach(worker)"),
    Fault("arrows/leave", "fill(types,", "fill({},"),
    Fault("arrows/leave", _INCLUDE_FULL, ""),
    Fault("arrows/tick", "protocol.MOST_MOVES - recovered, types", "protocol.MOST_MOVES + 1 - recovered, types"),
    Fault("arrows/tick", "ticked > protocol.SILENCE_COUNTS_US", "ticked >= protocol.SILENCE_COUNTS_US"),
    Fault("arrows/tick", " and ticked <= clock.now_us", ""),
    Fault("arrows/tick", "if grace > silent_since then", "if grace >= silent_since then"),
    Fault("arrows/beat", "if not seen or tonumber(seen) == protocol.GIVEN_UP_US then", "if not seen then"),
    Fault("arrows/beat", "workers.stall(worker)", ""),
    Fault("arrows/beat", "come_back.put(worker, id, false, settings)", "come_back.put(worker, id, true, settings)"),
    Fault("arrows/beat", "elseif workers.resume(worker) then", "elseif not workers.resume(worker) then"),
    Fault("arrows/beat", _INCLUDE_FULL, ""),
    Fault("arrows/recover", "gone and 0 or 1", "gone and 1 or 0"),
    Fault("arrows/recover", "fill(types,", "fill({},"),
    Fault("arrows/recover", _INCLUDE_FULL, ""),
    Fault("arrows/tick", " or recovered == protocol.MOST_MOVES", ""),
    Fault("arrows/tick", " or due == protocol.MOST_MOVES", ""),
    Fault("arrows/tick", "math.max(0, tonumber(next_due) - clock.now_us)", "(tonumber(next_due) - clock.now_us)"),
    Fault("arrows/tick", _INCLUDE_FULL, ""),
    Fault("arrows/purge", ", key.message(id))", ")"),
    Fault("arrows/purge", "find_by.remove(id, 0)", "find_by.remove(id, 60)"),
    Fault("arrows/purge", 'heads ~= "" and of_lanes == protocol.MOST_PURGED and 1 or 0', "0"),
    Fault("arrows/purge", "heads = lanes.with_new_head(", "lanes.look("),
    Fault(
        "arrows/configure",
        "settings_in_force.change(ARGV)",
        'settings_in_force.change({ ARGV[1] or "dead_max", ARGV[2] or "" })',
    ),
    Fault("arrows/configure", _INCLUDE_FULL, ""),
    Fault("arrows/replay", 'row[1] == "dead" and ', ""),
    Fault("arrows/replay", 'and redis.call("EXISTS", key.message(id)) == 1', ""),
    Fault("arrows/replay", ', "deliveries", 0)', ")"),
    Fault("arrows/replay", "lanes.add(id, row[2], row[3], now)", "lanes.add(id, row[2], row[3], '1')"),
    Fault("arrows/replay", "fill(types,", "fill({},"),
    Fault("arrows/drop", 'if state == "dead" or', "if true or"),
    Fault("arrows/drop", "come_back.forget(id)", 'redis.call("ZREM", key.dead, id)'),
    Fault("arrows/revoke", 'ends.waiting(id, "revoked") and 1 or 0', "0"),
    Fault("arrows/revoke", 'redis.call("SET", key.revoked(ARGV[i]), 1, "EX", keep_s)', ""),
    Fault("arrows/revoke", 'redis.call("SET", key.revoked_stamp(ARGV[i]), clock.now, "EX", keep_s)', ""),
    Fault("arrows/revoke", "if goes_on then", "if false then"),
    Fault("arrows/revoke", "i == 4 and after or 0", "0"),
    Fault("arrows/revoke", "tonumber(last or 0)", "0"),
    Fault("arrows/revoke", _INCLUDE_FULL, ""),
    Fault("arrows/announce", "clock.text(clock.now_us + pause_us)", "clock.now"),
    Fault("arrows/announce", 'row[1] == "dead" and row[2] or row[1]', "row[1]"),
    Fault("arrows/announce", "since_us >= (tries > 0", "since_us > (tries > 0"),
    Fault("arrows/announce", "tries > 0 and protocol.OTHERS_WHO_TRY_HAVE_US or ", ""),
    Fault("arrows/announce", "or not is_left(row[8])", "or true"),
    Fault("arrows/announce", "not is_telling[id] and", ""),
    Fault("arrows/announce", "again_us * 2 ^ tries, protocol.LONGEST_PAUSE_US", "again_us, protocol.LONGEST_PAUSE_US"),
    Fault("arrows/announce", "math.min(again_us * 2 ^ tries, protocol.LONGEST_PAUSE_US)", "again_us * 2 ^ tries"),
    Fault("arrows/told", "come_back.forget(id) --", "--"),
    Fault("arrows/told", 'if redis.call("ZSCORE", key.untold, ARGV[i]) then', "if true then"),
    Fault("arrows/told", 'row[1] and row[1] .. " " .. app or app', "app"),
    Fault("arrows/told", '"tries", -1) == 0', '"tries", -1) == 1'),
    Fault("arrows/told", '"left", "tries")\n    if redis.call("HGET"', '"left")\n    if redis.call("HGET"'),
    Fault("arrows/tick", "expired == protocol.MOST_MOVES or ", ""),
    Fault("arrows/tick", 'ends.waiting(id, "expired")', 'ends.record(id, "expired")'),
    Fault("arrows/tick", "recovered, dead, #untold", "recovered, dead, 0"),
    Fault(
        "arrows/tick",
        'redis.pcall("EXISTS", unpack(lists, first, last)) ~= 0',
        'redis.pcall("EXISTS", lists[first]) ~= 0',
    ),
    Fault("arrows/tick", 'redis.pcall("EXISTS", lists[i]) ~= 0', "true"),
    Fault("arrows/replay", "find_by.fade(id, row[4], row[5])", ""),
    Fault("arrows/replay", '"acked", "left", "tries"', '"left", "tries"'),
    Fault("arrows/replay", '"left", "tries", "expires"', '"left", "expires"'),
    # -- what they share
    Fault("jobs/ends", "math.huge) <= clock.now_us", "math.huge) < clock.now_us"),
    Fault("jobs/ends", "lanes.remove(id, type, lane)", 'redis.call("ZREM", key.lane(type, lane), id)'),
    Fault("jobs/ends", "find_by.fade(id, unpack", "type(id, unpack"),
    Fault("jobs/ends", 'and "revoked" or nil', "and nil or nil"),
    Fault("jobs/ends", 'redis.call("UNLINK", key.message(id))', ""),
    Fault("placing/lanes", "if head_id == id then", "if head_id ~= id then"),
    Fault("jobs/come_back", 'if reason ~= "rejected" and', "if"),
    Fault("jobs/come_back", 'if redis.call("ZSCORE", key.untold, id) then', "if false then"),
    Fault("jobs/come_back", 'deliveries", 1) >= settings.max_deliveries', 'deliveries", 1) > settings.max_deliveries'),
    Fault("jobs/come_back", 'if acked == "1" then', "if false then"),
    Fault("jobs/come_back", "if over > 0 then", "if over > 1 then"),
    Fault("jobs/come_back", 'redis.call("ZRANGE", key.dead', 'redis.call("ZREVRANGE", key.dead'),
    Fault("jobs/claims", "key.claims(worker), id) == fence", "key.claims(worker), id)"),
    Fault("jobs/come_back", '"fence", "started")', '"started")'),
    Fault("jobs/ends", "key.job(id), protocol.ENDED_KEPT_S", "key.job(id), 20"),
    Fault("jobs/find_by", "at and (tonumber(at) or 0) >= (tonumber(enqueued) or 0)", "at"),
    Fault("jobs/find_by", 'if task ~= "" and redis.call("EXISTS", key.revoked(task)) == 1 then', "if false then"),
    Fault("jobs/claims", "new_fields < 3", "false"),
    Fault("jobs/finished", "math.floor((duration_us", "math.ceil((duration_us"),
    Fault(
        "jobs/finished", "math.max(0, clock.now_us - tonumber(known.claimed))", "clock.now_us - tonumber(known.claimed)"
    ),
    Fault("placing/fill", "for moves = 1, protocol.MOST_MOVES do", "for moves = 1, 9 do"),
    Fault("placing/which_job", "view.free_for(types[nth]), settings)", "view.free_for(types[nth]) + 1, settings)"),
    Fault("placing/which_job", 'settings.rarity == "free"', 'settings.rarity ~= "free"'),
    Fault("placing/which_job", "its_points + rarest >= least", "its_points >= least"),
    Fault(
        "placing/which_job",
        "places[nth], oldest[nth], is_new[nth] = nil, nil, true",
        "places[nth], is_new[nth] = nil, true",
    ),
    Fault(
        "placing/which_job",
        "places[nth], oldest[nth], is_new[nth] = nil, nil, true",
        "oldest[nth], is_new[nth] = nil, true",
    ),
    Fault("placing/which_job", "if by_age then", "if by_age and not places[nth] then"),
    Fault(
        "placing/which_job",
        "if caches[nth] then\n                caches[nth] =",
        "if caches[nth] then\n                local _ =",
    ),
    Fault("placing/best_heads", "revision == settings.revision and", ""),
    Fault("placing/best_heads", "made_us <= clock.now_us and", ""),
    Fault("placing/best_heads", " and clock.now_us <= until_us", ""),
    Fault("placing/best_heads", "    if had_one then", "    if false then"),
    Fault("placing/best_heads", "local group = is_fast and fast or slow", "local group = slow"),
    Fault("placing/best_heads", "if enqueued_us > clock.now_us then", "if false then"),
    Fault("placing/best_heads", "elseif points > group.next then", "elseif false then"),
    Fault(
        "placing/best_heads",
        "group.points, group.next, group.place = points, group.points, place",
        "group.points, group.place = points, place",
    ),
    Fault(
        "placing/best_heads",
        "fast == slow and best_heads.is_older(heads, fast_place, heads, slow_place)",
        "fast == slow",
    ),
    Fault("placing/best_heads", "next_lane == lane and", "next_lane and"),
    Fault("placing/best_heads", "place == fast_place and points > next_fast", "place == fast_place"),
    Fault("placing/best_heads", "place == slow_place and points > next_slow", "place == slow_place"),
    Fault("placing/best_heads", "slow, next_slow = slow + gained, next_slow + gained", ""),
    Fault("jobs/claims", "view.occupy(worker) --", "--"),
    Fault("jobs/claims", "math.huge) <= clock.now_us", "math.huge) < clock.now_us"),
    Fault("jobs/claims", 'redis.call("HDEL", key.job(id), "worker", "fence")', ""),
    Fault("jobs/claims", 'is_time and facts .. " " .. expires or facts', "facts"),
    Fault("jobs/find_by", 'expires, "claimed", "")', "expires)"),
    Fault("jobs/claims", '"enqueued", "expires")', '"enqueued")'),
    Fault("placing/fill", 'ends.record(id, "expired")', ""),
    Fault("placing/fill", "moves == protocol.MOST_MOVES or", "moves == protocol.MOST_MOVES and fence or"),
    Fault("arrows/sync", "settings.revision, clock.now_us,", "settings.revision, 0,"),
    Fault("arrows/join", "void, clock.now_us }", "void, 0 }"),
    Fault("placing/fill", "if worker == caller then", 'if caller ~= "" then'),
    Fault("placing/fill", '"LPUSH", key.inbox', '"RPUSH", key.inbox'),
    Fault(
        "placing/which_job", "if settings.priority_percentage ~= 100 then", "if settings.priority_percentage > 0 then"
    ),
    Fault("base/full_memory", 'redis.call("UNLINK", base .. "nothing")', ""),
    Fault("base/settings_in_force", "if own or in_force == last then", "if true then"),
    Fault("base/settings_in_force", "own and own ~= value or not own and last ~= value", "last ~= value"),
    Fault("base/settings_in_force", "order ~= own and 1 or 0", "0"),
    Fault("base/settings_in_force", "elseif own then", "elseif false then"),
    Fault("placing/lanes", "id < head_id", "id > head_id"),
    Fault("placing/lanes", "enqueued_us < head_us", "enqueued_us <= head_us"),
    Fault("placing/lanes", "lane, enqueued, id)\nend\n", 'lane, enqueued and "1", id)\nend\n'),
    Fault("placing/lanes", 'if heads == "" then', "if false then"),
    Fault("placing/lanes", 'redis.call("HDEL", key.leaders, type)\n    else', "else"),
    Fault("placing/lanes", 'if heads ~= "" and before ~= "" then', "if false then"),
    Fault("placing/lanes", "string.sub(heads, last + 2)", '""'),
    Fault("placing/lanes", "math.max(0, first - 2)", "first - 2"),
    Fault("placing/lanes", "elseif last == #heads then", "elseif false then"),
    Fault("placing/heads", "#job.id + 1", "#job.id"),
    Fault("fleet/take_back", "if recovered == max then", "if recovered > max then"),
    Fault("fleet/take_back", "come_back.put(worker, id, true, settings)", "come_back.put(worker, id, false, settings)"),
    Fault("fleet/take_back", 'redis.call("ZADD", key.beats, protocol.GIVEN_UP_US, worker)', ""),
    Fault("placing/score", "min(age_us, settings.on_demand_age_cap_us)", "age_us"),
    Fault("placing/score", "* MICRO / slots_that_fit", "* MICRO * slots_that_fit"),
    Fault("placing/score", "if age_us < 0 then", "if false then"),
    Fault("placing/score", "if settings.turned == 1 then", "if false then"),
    Fault("placing/score", ">= priority_percentage", "> priority_percentage"),
    Fault("placing/score", "enqueued_us < others_enqueued_us", "enqueued_us > others_enqueued_us"),
    Fault("placing/score", "id < others_id", "id > others_id"),
    Fault("placing/which_slot", "sum = sum + free_in(", "sum = free_in("),
    Fault(
        "placing/free_slots",
        "    elseif was > 0 then\n        redis.call",
        "    elseif was > 1 then\n        redis.call",
    ),
    Fault("placing/free_slots", "if profile and free ~= was then", "if profile then"),
    Fault("placing/which_slot", "if not changed[members[i]] then", "if true then"),
    Fault("placing/which_slot", "0, #others, ", "0, 0, "),
    Fault("placing/which_slot", "if each.left > 0\n", "if true\n"),
    Fault(
        "placing/which_slot", "since == best_since and each.worker < best", "since == best_since and each.worker > best"
    ),
    Fault("placing/free_slots", "if profile and (taken or view.left ~= was) then", "if profile and taken then"),
    Fault(
        "placing/free_slots", "return free_slots.free_for(type) + view.left - was", "return free_slots.free_for(type)"
    ),
    Fault("placing/free_slots", "        view.left, taken = view.left - 1, true", "        taken = true"),
    Fault("placing/free_slots", "sum = sum + (tonumber(free) or 0)", "sum = tonumber(free) or 0"),
    Fault("placing/which_slot", "        slot.left = slot.left - 1\n", ""),
    Fault("placing/which_slot", "        occupied[slot.profile] = (occupied[slot.profile] or 0) + 1\n", ""),
    Fault("placing/free_slots", "free = math.max(0, ", "free = math.max(-9, "),
    Fault("placing/free_slots", " - tonumber(row[OTHER])", ""),
    Fault("placing/which_slot", "if best and size > best_size or", "if best and size >= best_size or"),
    Fault(
        "placing/which_slot",
        "if not best or since < best_since or (since",
        "if not best or since > best_since or (since",
    ),
    Fault("placing/which_slot", "since == best_since and worker < best", "since == best_since and worker > best"),
    Fault("jobs/find_by_task", "~= -1 then -- the job there has ended", "== 0 then"),
    Fault("jobs/find_by_task", "last + 1", "last"),
    Fault("jobs/find_by_task", "if #left == 1 then", "if false then"),
    Fault("jobs/find_by_task", "#ids == most, last", "false, last"),
    Fault("jobs/find_by_task", 'id, "NX") then', "id) then"),
    Fault("jobs/find_by_task", "if its == id and keep_s > 0 then", "if its == id and keep_s > 60 then"),
    Fault("jobs/finished", " and fence % protocol.SAMPLED_ONE_IN ~= 0", ""),
    Fault("jobs/claims", "own_fence == fence --", "true --"),
    Fault(
        "jobs/finished", 'if not average_us and redis.call("HEXISTS", key.capacity, type) == 0 then', "if false then"
    ),
    Fault("fleet/lookahead", 'if redis.call("HEXISTS", key.capacity, type) == 1 then', "if true then"),
    Fault("base/settings_in_force", 'redis.call("EXPIRE", key.conf_of(app), protocol.CONF_KEPT_S)', ""),
    Fault("jobs/come_back", 'until cursor == "0" or #ids > most', "until #ids >= 0"),
    Fault("jobs/come_back", "math.min(over, protocol.MOST_MOVES) - 1", "math.min(over, 1) - 1"),
    Fault("jobs/claims", "local is_own = not own_fence or", "local is_own ="),
    Fault("placing/fill", "#waiting == 1 and filters", "filters"),
    Fault("placing/fill", "if has_one_lane and not choice then", "if has_one_lane then"),
    Fault("fleet/workers", '"types", table.concat(types, " ")', '"types", types[1] or ""'),
    Fault("fleet/workers", "#types, profile)", "1, profile)"),
    Fault("fleet/workers", "now_slots - was", "was - now_slots"),
    Fault("fleet/workers", 'redis.call("HDEL", key.free_slots, row[1])', ""),
    Fault("fleet/workers", 'redis.call("HDEL", key.durations, type)', ""),
    Fault("fleet/workers", 'if name and redis.call("HGET", key.names, name) == worker then', "if true then"),
    Fault("jobs/fields", 'job.priority ~= "10" and', ""),
    Fault("jobs/fields", 'expires_us ~= "" and', ""),
    Fault("jobs/fields", "#job.id > protocol.LONGEST_ID or", ""),
    Fault("arrows/publish", "    local bad = fields.bad(job)", "    local bad"),
    Fault("repair/sums", "left > 0 or nil", "true"),
    Fault("repair/made_again", 'not (may_lack and value == "0" and not found[field])', "true"),
)


def main(words):
    """Try the faults, or those with one of *words* in file or text, and print the table. Return how many got away."""
    faults = [fault for fault in FAULTS if not words or any(word in " ".join(fault) for word in words)]
    for fault in faults:
        _broken(fault)  # all are looked for before the first one takes its time
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory, "copy")
        shutil.copytree(ROOT / "celery_affinity", copy / "celery_affinity")
        shutil.copytree(ROOT / "tests", copy / "tests")
        shutil.copy(ROOT / "pyproject.toml", copy)
        if _found_at(copy) is not None:
            sys.exit("the test fails on the scripts as they are")
        not_found = sum(_try(copy, fault) is None for fault in faults)
    print(f"{len(faults) - not_found} of {len(faults)} faults were found, with {SEEDS} seeds of {STEPS} steps")
    return not_found


def _try(copy, fault):
    path = copy / LUA / f"{fault.file}.lua"
    whole = path.read_text()
    path.write_text(_broken(fault))
    steps = (_found_at(copy) for _ in range(SEEDS))
    step = next((seed * STEPS + step for seed, step in enumerate(steps) if step is not None), None)
    path.write_text(whole)
    found = "not found" if step is None else f"step {step}"
    print(f"{fault.file:12} {found:>10}  {_line(fault.old)}  ->  {_line(fault.new)}", flush=True)
    return step


def _broken(fault):
    source = (ROOT / LUA / f"{fault.file}.lua").read_text()
    if source.count(fault.old) != 1:
        sys.exit(f"{fault.file}.lua must have this text once, it has it {source.count(fault.old)} times: {fault.old}")
    return source.replace(fault.old, fault.new)


def _found_at(copy):
    """Return the step that failed in the copy; None if none did."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy),
        "PYTHONDONTWRITEBYTECODE": "1",
        "CONFORMANCE_STEPS": str(STEPS),
        "CONFORMANCE_SHRINK": "0",
    }
    run = subprocess.run(
        [sys.executable, *_TEST], cwd=copy, env=environment, capture_output=True, text=True, check=False
    )
    if run.returncode == 0:
        return None
    failed = _FAILED_AT.search(run.stdout)
    if not failed:
        sys.exit(f"the test did not come to its steps:\n{run.stdout}{run.stderr}")
    return int(failed.group(1))


def _line(text):
    return " ".join(text.split()) or "(nothing)"


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
