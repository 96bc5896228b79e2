"""Faults in quotas of tenants, and in whose turn it is."""

from .fault import Fault

_SHARES = "tests/server/test_shares.py::"
_BY_WEIGHT = _SHARES + "test_slot_seconds_go_by_weight_however_long_the_jobs_are"
_FORGOTTEN = _SHARES + "test_a_tag_that_the_clock_has_passed_is_forgotten_and_what_is_ahead_of_it_is_not"
_ALL_FORGOTTEN = _SHARES + "test_of_very_many_tenants_that_were_there_once_a_tick_forgets_all"
_IDLE = _SHARES + "test_who_was_idle_gets_its_share_from_now_on_and_nothing_of_before"
_DELETED = "tests/server/test_spoiled.py::test_whatever_is_spoiled_the_rest_goes_on"

FAULTS = (
    # What the setting says.
    Fault("keyed/tenants", 'or quotas["*"] or NONE', "or NONE"),
    Fault("keyed/tenants", "quota_of(its_key).max or math.huge", "math.huge"),
    Fault("keyed/tenants", 'string.match(rest, "weight:(%d+)") or 1', "1"),
    Fault("keyed/key_room", "    if tenants.is_one(its_key) then\n", "    if false then\n"),
    Fault("jobs/hooks", '        return (redis.call("HGET", key.settings, name) or "") ~= (value or "")\n', ""),
    # The account of a tenant.
    Fault("keyed/shares", "start + math.floor((usual_us - used_us)", "start + math.floor((usual_us)"),
    Fault("keyed/shares", "local after = start +", "local after = tag_of(its_key) +", _IDLE),
    Fault("keyed/shares", "math.max(start, clock), CLOCK", "start, CLOCK"),
    Fault("keyed/shares", 'redis.call("HSET", key.job(id), "charged", call.text(usual_us))', ""),
    Fault("keyed/shares", 'redis.call("HSET", key.credits, its_key, call.text(credit_us - used_us))', ""),
    Fault("keyed/shares", "math.max(0, call.now_us - time_in(claimed or call.now))", "0"),
    Fault("keyed/shares", "took_us - time_in(charged)", "took_us"),
    Fault("keyed/shares", "tag_of(its_key) + math.floor(more_us / tenants.weight_of(its_key))", "more_us", _BY_WEIGHT),
    Fault("keyed/shares", "call.text(credit_us - more_us)", "call.text(-more_us)"),
    Fault("keyed/keyed", "shares.charge(its_key, id, type)", ""),
    Fault("keyed/keyed", "shares.settle(its_key, id)", ""),
    Fault("keyed/keyed", "key.waiting_keys, key.rates, key.tags) == 0", "key.waiting_keys, key.rates) == 0"),
    Fault("types/rule_changes", "key.rates, key.tags, key.recount", "key.rates, key.recount", _FORGOTTEN),
    Fault("keyed/shares", 'redis.call("ZREM", key.tags, its_key)', "", _FORGOTTEN),
    Fault("keyed/shares", 'its_key ~= CLOCK and redis.call("EXISTS"', 'its_key ~= CLOCK and 0 * redis.call("EXISTS"'),
    Fault("keyed/shares", 'redis.call("HDEL", key.credits, its_key)', ""),
    Fault("keyed/shares", "number > 0 and #some == protocol.MOST_KEYS", "false", _ALL_FORGOTTEN),
    # Whose turn it is.
    Fault("keyed/shares", "math.max(tag_of(stated.key), since_of(id))", "since_of(id)", ""),
    Fault("keyed/shares", "math.max(tag_of(stated.key), since_of(id))", "tag_of(stated.key)"),
    Fault("keyed/shares", 'redis.call("ZADD", key.turns(type, lane), start, turn_of(enqueued, id))', ""),
    Fault("keyed/shares", 'redis.call("ZREM", key.turns(type, lane), turn_of(enqueued, id))', ""),
    Fault("keyed/shares", "elseif tag > tonumber(start) and", "elseif false and"),
    Fault("keyed/shares", "if not marks.may_have_tenant(job.id) or", "if true or"),
    Fault("keyed/shares", 'not is_fresh and redis.call("HGET", key.job(id), "since") or', ""),
    Fault("keyed/shares", 'redis.call("HSET", key.job(id), "since", keys.since[id])', ""),
    Fault("keyed/keyed", "    shares.come(id, fresh)\n", ""),
    Fault("keyed/key_steps", "shares.stand(wanted, type, lane, enqueued)", ""),
    Fault("keyed/key_steps", "shares.stand_no_more(id, type, lane, enqueued)", ""),
    Fault("keyed/keyed", "shares.stand_no_more(id, type, lane, key_rows", "tostring(id, type, lane, key_rows"),
    Fault("keyed/key_rows", "keys.since[id] = since or nil", ""),
    Fault("jobs/hooks", "marks.has_tenant_alone(id) and not shares.has_one(id)", "marks.has_tenant_alone(id)"),
    Fault("placing/candidates", "    if not job.place then", "    if false then"),
    Fault("placing/fill", "job = is_ruled and hooks.turn(job) or job", ""),
    # What a repair finds.
    Fault("repair/repair_keyed", 'number == #row.keys and (derived.number(found) or "0") or nil', "found"),
)
