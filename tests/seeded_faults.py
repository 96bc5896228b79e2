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

ROOT = Path(__file__).resolve().parents[1]
LUA = "celery_affinity/lua"
STEPS = int(os.environ.get("CONFORMANCE_STEPS", "10000"))

#: A fault that shows rarely is not found from every seed.
SEEDS = 4

_TEST = ("-m", "pytest", "tests/test_conformance.py", "-k", "valkey", "-q", "-p", "no:cacheprovider", "-o", "timeout=0")
_FAILED_AT = re.compile(r"failed at step (\d+);")
#: Not of ack, claim, drop, ingest, purge and requeue: their own first write frees memory.
_INCLUDE_FULL = "-- @include lib/full.lua\n"


class Fault(NamedTuple):
    file: str
    old: str
    new: str


FAULTS = (
    # -- arrows
    Fault("lib/publish", 'redis.call("EXISTS", key.job(id)) == 1', 'redis.call("EXISTS", key.message(id)) == 1'),
    Fault("lib/publish", "enqueued_us + math.max(0, delay_us)", "enqueued_us + delay_us"),
    Fault("lib/publish", "fitting = fitting + slots.free_for(type)", "fitting = slots.free_for(type)"),
    Fault("publish", "put(job, clock.now_us + nth,", "put(job, clock.now_us,"),
    Fault("publish", "is_first and job.type or nil", "#types == 0 and is_first and job.type or nil"),
    Fault("lib/publish", "return 1, 1, not heads, alone", "return 1, 1, true, alone"),
    Fault("lib/publish", "if delay_us > 0 then", "if delay_us > 1 then"),
    Fault("lib/publish", "if heads or not is_only then", "if not is_only then"),
    Fault("lib/publish", "if heads or not is_only then", "if heads then"),
    Fault("lib/publish", "    if alone then\n", "    if false then\n"),
    Fault("lib/publish", "tonumber(expires_us) <= 0", "tonumber(expires_us) < 0"),
    Fault("lib/publish", "is_heard_of and traces.is_revoked(job.task_id)", "false"),
    Fault("lib/publish", 'is_revoked and "revoked" or "expired"', 'is_expired and "expired" or "revoked"'),
    Fault("lib/publish", "traces.add(id, job.task_id, job.stamps,", 'traces.add(id, job.task_id, "",'),
    Fault("ingest", 'redis.call("LINDEX", list, -1) ~= message', "false"),
    Fault("ingest", 'redis.call("EXISTS", key.job(id)) == 1', "false"),
    Fault("ingest", 'redis.call("RPOP", list)', 'redis.call("LPOP", list)'),
    Fault("ingest", "if bad or not readable then", "if bad then"),
    Fault("ingest", "if bad or not readable then", "if not readable then"),
    Fault("claim", "fill(ARGV,", "fill({ ARGV[1] },"),
    Fault("claim", "slots.view())[1]", 'slots.view()) and ""'),
    Fault("lib/fill", 'waiting.heads[type] and reply[1] .. type .. " " or reply[1]', 'reply[1] .. type .. " "'),
    Fault("lib/fill", "if moves == MAX_MOVES or", "if moves > MAX_MOVES or"),
    Fault("beat", "> 0 and 1 or 0, more", "> 1 and 1 or 0, more"),
    Fault("recover", "gone and 0 or 1", "0"),
    Fault("ack", "claims.held(worker, id, ARGV[i + 1])", 'redis.call("HEXISTS", key.claims(worker), id) == 1'),
    Fault("ack", 'redis.call("HSET", key.job(id), "acked", 1)', ""),
    Fault("ack", "return acked", "return (#ARGV - 1) / 2"),
    Fault("release", "if row[7] == sequence then", "if false then"),
    Fault("release", "if claims.held(worker, id, fence) then", "if true then"),
    Fault("release", "elseif known.acked then", "elseif false then"),
    Fault("release", "known, ENDED[how], why)", 'known, "done", why)'),
    Fault("release", 'how == "unsettled"', "true"),
    Fault("release", '"rejected", settings, why)', '"rejected", settings)'),
    Fault("lib/outcome", "string.sub(why, 1, MOST_WHY)", "why"),
    Fault("lib/outcome", 'expired = "expired"', 'expired = "done"'),
    Fault("lib/claims", 'if why ~= "" then', "if false then"),
    Fault("lib/back", 'if why and why ~= "" then', "if why then"),
    Fault("lib/back", '"max_deliveries", settings, why)', '"max_deliveries", settings)'),
    Fault("replay", '"reason", "why",', '"reason",'),
    Fault("release", 'ARGV[3] == "1" and', 'ARGV[3] ~= "" and'),
    Fault("release", "if next(again) then -- jobs", "if false then -- jobs"),
    Fault("release", "    slots.settle(worker)\n", ""),
    Fault("release", "most_ahead > 0 or left > 0", "most_ahead > 0"),
    Fault("release", 'if reply[1] == "" then', "if true then"),
    Fault("release", "    if next(again) then", "    if false then"),
    Fault("release", "        types[i] = nil\n", ""),
    Fault("sync", "    ahead.ask(worker, workers.types_of(worker),", "    type(worker, workers.types_of(worker),"),
    Fault("join", "    ahead.ask(worker, types,", "    type(worker, types,"),
    Fault("lib/ahead", "tonumber(row[1]) + most - tonumber(row[2])", "tonumber(row[1]) + most"),
    Fault("lib/ahead", "math.min(most, tonumber(row[1])", "math.min(1000, tonumber(row[1])"),
    Fault("lib/ahead", "        view.left = view.left - 1\n", ""),
    Fault("lib/ahead", 'row[3] == "1" and not row[4] and tonumber', "tonumber"),
    Fault("lib/ahead", "if holder ~= worker and", "if"),
    Fault("lib/ahead", '            redis.call("HDEL", key.ahead, types[i])\n', ""),
    Fault("lib/ahead", "if free == 0 or #types == 0 or", "if #types == 0 or"),
    Fault("lib/ahead", "> tonumber(row[1]) - tonumber(row[2])", ">= tonumber(row[1]) - tonumber(row[2])"),
    Fault("lib/publish", "delay_us < TICK_US and", ""),
    Fault("lib/publish", "[1] == id then", "[1] then"),
    Fault("lib/workers", 'row[1] == "1" and not row[2] and row[3]', 'row[1] == "1" and row[3]'),
    Fault("lib/workers", 'redis.call("HDEL", key.ahead, type)', ""),
    Fault("beat", "if id and claims.held", "if claims.held"),
    Fault("release", _INCLUDE_FULL, ""),
    Fault("requeue", 'ARGV[2] == "1"', 'ARGV[2] ~= ""'),
    Fault("requeue", "claims.held(worker, ARGV[i], ARGV[i + 1])", "true"),
    Fault("requeue", "slots.settle(worker)\n", "\n"),
    Fault("join", 'key.joined, "NX", now', "key.joined, now"),
    Fault("join", "workers.detach(worker)", "workers.close(worker)"),
    Fault("join", 'namesake and namesake ~= worker and namesake or ""', 'namesake or ""'),
    Fault("join", 'accepting == "1" and 0 or', "accepting and 0 or"),
    Fault("join", 'redis.call("SET", key.schema, SCHEMA, "NX")', ""),
    Fault("join", "key.beats, now", 'key.beats, "NX", now'),
    Fault("join", _INCLUDE_FULL, ""),
    Fault("sync", 'if not accepting or (accepting == "0" and not draining) then', "if not accepting then"),
    Fault("sync", "elseif running_us >= 0 then", "elseif running_us > 0 then"),
    Fault("sync", 'redis.call("HSETNX", key.job(id)', 'redis.call("HSET", key.job(id)'),
    Fault("sync", "if held[id] ~= claimed[i + 1] then", "if not held[id] then"),
    Fault("sync", "age_us > settings.heartbeat_interval_us", "age_us >= settings.heartbeat_interval_us"),
    Fault("sync", "= claims.is_unread(worker, id)", "= not draining and claims.is_unread(worker, id), 0"),
    Fault("sync", "looked_at == MAX or ", ""),
    Fault("sync", " or bytes > MAX_BYTES then", " then"),
    Fault("beat", "bytes <= MAX_BYTES and ", ""),
    Fault("lib/fill", " or bytes > MAX_BYTES then", " then"),
    Fault("sync", "back.put(worker, id, false, settings)", "back.put(worker, id, true, settings)"),
    Fault("sync", "rank < workers.TICKERS", "rank <= workers.TICKERS"),
    Fault("sync", "clock.now_us - ticked > TICKED_LATELY_US", "clock.now_us - ticked >= TICKED_LATELY_US"),
    Fault("sync", _INCLUDE_FULL, ""),
    Fault("leave", "back.put(worker, claimed[i], false, settings)", "back.put(worker, claimed[i], true, settings)"),
    Fault("leave", "if #claimed <= MAX then", "if #claimed < MAX then"),
    Fault("leave", "workers.remove(worker)", "workers.detach(worker)"),
    Fault("leave", "fill(types,", "fill({},"),
    Fault("leave", _INCLUDE_FULL, ""),
    Fault("tick", "local MAX = 10", "local MAX = 11"),
    Fault("tick", "clock.now_us - ticked > SILENCE_COUNTS_US", "clock.now_us - ticked >= SILENCE_COUNTS_US"),
    Fault("tick", " and ticked <= clock.now_us", ""),
    Fault("tick", "if grace > silent_since then", "if grace >= silent_since then"),
    Fault("beat", "if not seen or tonumber(seen) == 0 then", "if not seen then"),
    Fault("beat", "workers.stall(worker)", ""),
    Fault("beat", "back.put(worker, id, false, settings)", "back.put(worker, id, true, settings)"),
    Fault("beat", "elseif workers.resume(worker) then", "elseif not workers.resume(worker) then"),
    Fault("beat", _INCLUDE_FULL, ""),
    Fault("recover", "gone and 0 or 1", "gone and 1 or 0"),
    Fault("recover", "fill(types,", "fill({},"),
    Fault("recover", _INCLUDE_FULL, ""),
    Fault("tick", "due == MAX or recovered == MAX", "due == MAX"),
    Fault("tick", "due == MAX or recovered == MAX", "recovered == MAX"),
    Fault("tick", "math.max(0, tonumber(next_due) - clock.now_us)", "(tonumber(next_due) - clock.now_us)"),
    Fault("tick", _INCLUDE_FULL, ""),
    Fault("purge", ", key.message(id))", ")"),
    Fault("purge", "traces.remove(id, 0)", "traces.remove(id, 60)"),
    Fault("purge", 'heads ~= "" and of_lanes == MAX and 1 or 0', "0"),
    Fault("purge", "heads = lanes.look(", "lanes.look("),
    Fault("configure", "knobs.change(ARGV)", 'knobs.change({ ARGV[1] or "dead_max", ARGV[2] or "" })'),
    Fault("configure", _INCLUDE_FULL, ""),
    Fault("replay", 'row[1] == "dead" and ', ""),
    Fault("replay", 'and redis.call("EXISTS", key.message(id)) == 1', ""),
    Fault("replay", ', "deliveries", 0)', ")"),
    Fault("replay", "lanes.add(id, row[2], row[3], now)", "lanes.add(id, row[2], row[3], '1')"),
    Fault("replay", "fill(types,", "fill({},"),
    Fault("drop", 'if state == "dead" or', "if true or"),
    Fault("drop", "back.forget(id)", 'redis.call("ZREM", key.dead, id)'),
    Fault("revoke", 'ends.waiting(id, "revoked") and 1 or 0', "0"),
    Fault("revoke", 'redis.call("SET", key.revoked(ARGV[i]), 1, "EX", keep_s)', ""),
    Fault("revoke", 'redis.call("SET", key.revoked_stamp(ARGV[i]), clock.now, "EX", keep_s)', ""),
    Fault("revoke", "if goes_on then", "if false then"),
    Fault("revoke", "i == 4 and after or 0", "0"),
    Fault("revoke", "tonumber(last or 0)", "0"),
    Fault("revoke", _INCLUDE_FULL, ""),
    Fault("announce", "clock.text(clock.now_us + pause_us)", "clock.now"),
    Fault("announce", 'row[1] == "dead" and row[2] or row[1]', "row[1]"),
    Fault("announce", "since_us >= (tries > 0", "since_us > (tries > 0"),
    Fault("announce", "tries > 0 and OTHERS_WHO_TRY_HAVE_US or OTHERS_HAVE_US", "OTHERS_HAVE_US"),
    Fault("announce", "or not is_left(row[8])", "or true"),
    Fault("announce", "not is_telling[id] and", ""),
    Fault("announce", "again_us * 2 ^ tries, LONGEST_PAUSE_US", "again_us, LONGEST_PAUSE_US"),
    Fault("announce", "math.min(again_us * 2 ^ tries, LONGEST_PAUSE_US)", "again_us * 2 ^ tries"),
    Fault("told", "back.forget(id) --", "--"),
    Fault("told", 'if redis.call("ZSCORE", key.untold, ARGV[i]) then', "if true then"),
    Fault("told", 'row[1] and row[1] .. " " .. app or app', "app"),
    Fault("told", '"tries", -1) == 0', '"tries", -1) == 1'),
    Fault("told", '"left", "tries")\n    if redis.call("HGET"', '"left")\n    if redis.call("HGET"'),
    Fault("tick", "expired == MAX or ", ""),
    Fault("tick", 'ends.waiting(id, "expired")', 'ends.note(id, "expired")'),
    Fault("tick", "recovered, dead, #untold", "recovered, dead, 0"),
    Fault("tick", 'redis.pcall("EXISTS", unpack(lists, first, last)) ~= 0', 'redis.pcall("EXISTS", lists[first]) ~= 0'),
    Fault("tick", 'redis.pcall("EXISTS", lists[i]) ~= 0', "true"),
    Fault("replay", "traces.fade(id, row[4], row[5])", ""),
    Fault("replay", '"acked", "left", "tries"', '"left", "tries"'),
    Fault("replay", '"left", "tries", "expires"', '"left", "expires"'),
    # -- what they share
    Fault("lib/ends", "math.huge) <= clock.now_us", "math.huge) < clock.now_us"),
    Fault("lib/ends", "lanes.remove(id, row[2], row[3])", 'redis.call("ZREM", key.lane(row[2], row[3]), id)'),
    Fault("lib/ends", "    traces.fade(id, row[1], row[2])\nend\n\n-- Takes", "end\n\n-- Takes"),
    Fault("lib/ends", 'and "revoked" or nil', "and nil or nil"),
    Fault("lib/ends", 'redis.call("UNLINK", key.message(id))', ""),
    Fault("lib/lanes", "if head_id == id then", "if head_id ~= id then"),
    Fault("lib/back", 'if reason ~= "rejected" and', "if"),
    Fault("lib/back", 'if redis.call("ZSCORE", key.untold, id) then', "if false then"),
    Fault("lib/back", 'deliveries", 1) >= settings.max_deliveries', 'deliveries", 1) > settings.max_deliveries'),
    Fault("lib/back", 'if row[4] == "1" then', "if false then"),
    Fault("lib/back", "if over > 0 then", "if over > 1 then"),
    Fault("lib/back", 'redis.call("ZRANGE", key.dead', 'redis.call("ZREVRANGE", key.dead'),
    Fault("lib/held", "key.claims(worker), id) == fence", "key.claims(worker), id)"),
    Fault("lib/back", '"fence", "started")', '"started")'),
    Fault("lib/traces", "KEEP_S = 60", "KEEP_S = 20"),
    Fault("lib/traces", "at and (tonumber(at) or 0) >= (tonumber(enqueued) or 0)", "at"),
    Fault("lib/traces", 'if task ~= "" and redis.call("EXISTS", key.revoked(task)) == 1 then', "if false then"),
    Fault("lib/claims", "new_fields < 3", "false"),
    Fault("lib/claims", "math.floor((duration_us", "math.ceil((duration_us"),
    Fault(
        "lib/claims", "math.max(0, clock.now_us - tonumber(known.claimed))", "clock.now_us - tonumber(known.claimed)"
    ),
    Fault("lib/fill", "local MAX_MOVES = 10", "local MAX_MOVES = 9"),
    Fault("lib/choice", "view.free_for(types[nth]), settings)", "view.free_for(types[nth]) + 1, settings)"),
    Fault("lib/choice", 'settings.rarity == "free"', 'settings.rarity ~= "free"'),
    Fault("lib/choice", "its_points + rarest >= least", "its_points >= least"),
    Fault(
        "lib/choice", "places[nth], oldest[nth], is_new[nth] = nil, nil, true", "places[nth], is_new[nth] = nil, true"
    ),
    Fault(
        "lib/choice", "places[nth], oldest[nth], is_new[nth] = nil, nil, true", "oldest[nth], is_new[nth] = nil, true"
    ),
    Fault("lib/choice", "if by_age then", "if by_age and not places[nth] then"),
    Fault(
        "lib/choice",
        "if notes[nth] then\n                notes[nth] =",
        "if notes[nth] then\n                local _ =",
    ),
    Fault("lib/leaders", "revision == settings.revision and", ""),
    Fault("lib/leaders", "made_us <= clock.now_us and", ""),
    Fault("lib/leaders", " and clock.now_us <= until_us", ""),
    Fault("lib/leaders", "    if had_one then", "    if false then"),
    Fault("lib/leaders", "local kind = is_fast and fast or slow", "local kind = slow"),
    Fault("lib/leaders", "if enqueued_us > clock.now_us then", "if false then"),
    Fault("lib/leaders", "elseif points > kind.next then", "elseif false then"),
    Fault(
        "lib/leaders",
        "kind.points, kind.next, kind.place = points, kind.points, place",
        "kind.points, kind.place = points, place",
    ),
    Fault("lib/leaders", "fast == slow and leaders.is_older(heads, fast_place, heads, slow_place)", "fast == slow"),
    Fault("lib/leaders", "next_lane == lane and", "next_lane and"),
    Fault("lib/leaders", "place == fast_place and points > next_fast", "place == fast_place"),
    Fault("lib/leaders", "place == slow_place and points > next_slow", "place == slow_place"),
    Fault("lib/leaders", "slow, next_slow = slow + gained, next_slow + gained", ""),
    Fault("lib/claims", "view.take(worker) --", "--"),
    Fault("lib/claims", "math.huge) <= clock.now_us", "math.huge) < clock.now_us"),
    Fault("lib/claims", 'redis.call("HDEL", key.job(id), "worker", "fence")', ""),
    Fault("lib/claims", 'is_time and facts .. " " .. expires or facts', "facts"),
    Fault("lib/traces", 'expires, "claimed", "")', "expires)"),
    Fault("lib/held", ', "expires")', ")"),
    Fault("lib/fill", 'ends.note(id, "expired")', ""),
    Fault("lib/fill", "moves == MAX_MOVES or", "moves == MAX_MOVES and fence or"),
    Fault("sync", "settings.revision, clock.now_us }", "settings.revision, 0 }"),
    Fault("join", "void, clock.now_us }", "void, 0 }"),
    Fault("lib/fill", "if worker == caller then", 'if caller ~= "" then'),
    Fault("lib/fill", '"LPUSH", key.inbox', '"RPUSH", key.inbox'),
    Fault("lib/choice", "if settings.priority_percentage ~= 100 then", "if settings.priority_percentage > 0 then"),
    Fault("lib/full", 'redis.call("UNLINK", base .. "nothing")', ""),
    Fault("lib/knobs", "if own or in_force == last then", "if true then"),
    Fault("lib/knobs", "own and own ~= value or not own and last ~= value", "last ~= value"),
    Fault("lib/knobs", "order ~= own and 1 or 0", "0"),
    Fault("lib/knobs", "elseif own then", "elseif false then"),
    Fault("lib/lanes", "id < head_id", "id > head_id"),
    Fault("lib/lanes", "enqueued_us < head_us", "enqueued_us <= head_us"),
    Fault("lib/lanes", "lane, next_one[2], next_one[1])", 'lane, next_one[2] and "1", next_one[1])'),
    Fault("lib/lanes", 'if heads == "" then', "if false then"),
    Fault("lib/lanes", 'redis.call("HDEL", key.leaders, type)\n    else', "else"),
    Fault("lib/lanes", 'if heads ~= "" and before ~= "" then', "if false then"),
    Fault("lib/lanes", "string.sub(heads, last + 2)", '""'),
    Fault("lib/lanes", "math.max(0, first - 2)", "first - 2"),
    Fault("lib/lanes", "elseif last == #heads then", "elseif false then"),
    Fault("lib/heads", "#job.id + 1", "#job.id"),
    Fault("lib/recover", "if recovered == max then", "if recovered > max then"),
    Fault("lib/recover", "back.put(worker, id, true, settings)", "back.put(worker, id, false, settings)"),
    Fault("lib/recover", 'redis.call("ZADD", key.beats, 0, worker)', ""),
    Fault("lib/score", "min(age_us, settings.on_demand_age_cap_us)", "age_us"),
    Fault("lib/score", "* MICRO / slots_that_fit", "* MICRO * slots_that_fit"),
    Fault("lib/score", "if age_us < 0 then", "if false then"),
    Fault("lib/score", "if settings.turned == 1 then", "if false then"),
    Fault("lib/score", ">= priority_percentage", "> priority_percentage"),
    Fault("lib/score", "enqueued_us < others_enqueued_us", "enqueued_us > others_enqueued_us"),
    Fault("lib/score", "id < others_id", "id > others_id"),
    Fault("lib/view", "sum = sum + free_slots(", "sum = free_slots("),
    Fault("lib/slots", "    elseif was > 0 then\n        redis.call", "    elseif was > 1 then\n        redis.call"),
    Fault("lib/slots", "if profile and free ~= was then", "if profile then"),
    Fault("lib/view", "if not changed[members[i]] then", "if true then"),
    Fault("lib/view", "0, #others, ", "0, 0, "),
    Fault("lib/view", "if each.left > 0\n", "if true\n"),
    Fault("lib/view", "since == best_since and each.worker < best", "since == best_since and each.worker > best"),
    Fault("lib/slots", "if profile and (taken or view.left ~= was) then", "if profile and taken then"),
    Fault("lib/slots", "return slots.free_for(type) + view.left - was", "return slots.free_for(type)"),
    Fault("lib/slots", "        view.left, taken = view.left - 1, true", "        taken = true"),
    Fault("lib/slots", "sum = sum + (tonumber(free) or 0)", "sum = tonumber(free) or 0"),
    Fault("lib/view", "        slot.left = slot.left - 1\n", ""),
    Fault("lib/view", "        taken[slot.profile] = (taken[slot.profile] or 0) + 1\n", ""),
    Fault("lib/slots", "free = math.max(0, ", "free = math.max(-9, "),
    Fault("lib/slots", " - tonumber(row[3])", ""),
    Fault("lib/view", "if best and size > best_size or", "if best and size >= best_size or"),
    Fault("lib/view", "if not best or since < best_since or (since", "if not best or since > best_since or (since"),
    Fault("lib/view", "since == best_since and worker < best", "since == best_since and worker > best"),
    Fault("lib/tasks", "~= -1 then -- what is there has ended", "== 0 then"),
    Fault("lib/tasks", "last + 1", "last"),
    Fault("lib/tasks", "if #left == 1 then", "if false then"),
    Fault("lib/tasks", "#ids == most, last", "false, last"),
    Fault("lib/tasks", 'id, "NX") then', "id) then"),
    Fault("lib/tasks", "if its == id and keep_s > 0 then", "if its == id and keep_s > 60 then"),
    Fault("lib/claims", "if duration_us < SHORT_US and fence % 8 ~= 0 then", "if duration_us < SHORT_US then"),
    Fault("lib/claims", "row[1] == fence --", "true --"),
    Fault("lib/claims", 'if not average_us and redis.call("HEXISTS", key.capacity, type) == 0 then', "if false then"),
    Fault("lib/ahead", 'if redis.call("HEXISTS", key.capacity, type) == 1 then', "if true then"),
    Fault("lib/knobs", 'redis.call("EXPIRE", key.conf_of(app), knobs.KEEP_S)', ""),
    Fault("lib/back", 'until cursor == "0" or #ids > most', "until #ids >= 0"),
    Fault("lib/back", "math.min(over, 10) - 1", "math.min(over, 1) - 1"),
    Fault("lib/claims", "local is_own = not row[1] or", "local is_own ="),
    Fault("lib/fill", "#waiting == 1 and filters", "filters"),
    Fault("lib/fill", "if is_alone and not choice then", "if is_alone then"),
    Fault("lib/workers", '"types", table.concat(types, " ")', '"types", types[1] or ""'),
    Fault("lib/workers", "#types, profile)", "1, profile)"),
    Fault("lib/workers", "now_slots - was", "was - now_slots"),
    Fault("lib/workers", 'redis.call("HDEL", key.free_slots, row[1])', ""),
    Fault("lib/workers", 'redis.call("HDEL", key.durations, type)', ""),
    Fault("lib/workers", 'if name and redis.call("HGET", key.names, name) == worker then', "if true then"),
    Fault("lib/fields", 'job.priority ~= "10" and', ""),
    Fault("lib/fields", 'expires_us ~= "" and', ""),
    Fault("lib/fields", "#job.id > 255 or", ""),
    Fault("publish", "    local bad = fields.bad(job)", "    local bad"),
    Fault("repair", "left > 0 or nil", "true"),
    Fault("repair", 'not (may_lack and value == "0" and not found[field])', "true"),
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
