"""Faults in quotas of tenants, and in whose turn it is."""

from .fault import Fault

_SHARES = "tests/server/test_shares.py::"
_BY_WEIGHT = _SHARES + "test_slot_seconds_go_by_weight_however_long_the_jobs_are"
_FORGOTTEN = _SHARES + "test_a_tag_that_the_clock_has_passed_is_forgotten_and_what_is_ahead_of_it_is_not"
_ALL_FORGOTTEN = _SHARES + "test_of_very_many_tenants_that_were_there_once_a_tick_forgets_all"
_WITHIN_TURNS = _SHARES + "test_each_of_some_tenants_is_served_within_as_many_turns"
_IDLE = _SHARES + "test_who_was_idle_gets_its_share_from_now_on_and_nothing_of_before"
_YOUNG = _SHARES + "test_a_reserve_keeps_back_a_young_job_whose_turn_it_is_and_the_old_one_goes"
_ELSEWHERE = _SHARES + "test_a_tenant_goes_that_has_used_least_behind_several_that_have_used_more_elsewhere"
_AT_ONCE = _SHARES + "test_a_job_that_is_placed_at_once_below_a_minimum_leaves_the_clock_alone"
_BY_AGE = _SHARES + "test_claims_by_age_take_the_oldest_job_whosever_turn_it_is"
_LEAST_GOES = _SHARES + "test_with_a_half_life_the_tenant_that_has_used_least_goes"
_LONG_AGO = _SHARES + "test_what_was_used_ten_half_lives_ago_is_forgotten"
_CHANGED = _SHARES + "test_jobs_that_wait_go_by_shares_once_the_setting_says_so_and_by_age_again"
_ERA = _SHARES + "test_a_change_begins_an_era_in_which_nothing_counts_that_was_used_before"
_ERA_IS_OVER = _SHARES + "test_a_clock_of_an_era_that_is_over_puts_nobody_back"
_NEW_ERA = _SHARES + "test_a_claim_gives_its_tenant_turns_in_all_lanes_where_no_tick_has_got_to_a_new_era"
_SPOILED_TURNS = _SHARES + "test_what_is_lost_of_turns_is_made_again"
_SPOILED_SHARES = _SHARES + "test_what_is_lost_of_the_setting_is_made_again"
_MANY_TYPES = _SHARES + "test_of_very_many_types_of_a_tenant_a_call_gives_some_a_turn_and_ticks_the_others"
_QUOTAS = "tests/server/test_tenants.py::"
_MANY_FIRST = _QUOTAS + "test_of_very_many_types_a_call_has_some_go_first_and_a_tick_the_others"
_LEFT_BEHIND = _QUOTAS + "test_a_first_place_that_somebody_left_behind_starts_no_job_twice"
_KEPT_NO_MORE = _QUOTAS + "test_a_job_that_may_start_since_its_tenant_is_kept_for_another_type_no_more_goes_first"
_TO_OTHERS = _QUOTAS + "test_a_call_that_gives_a_tenant_its_minimum_gives_the_slots_that_are_left_to_others"
_LOST = _QUOTAS + "test_what_is_lost_of_first_places_is_made_again"

_UNBOUNDED = "tests/server/test_unbounded.py::"
_HELD_UP = "tests/server/test_two_keys.py::test_who_was_held_up_by_one_that_is_revoked_gets_the_free_slot"
_MANY = _UNBOUNDED + "test_of_very_many_jobs_a_call_keeps_back_some_and_ticks_the_others"
_AS_FEW = _UNBOUNDED + "test_of_very_many_lanes_and_tenants_a_call_keeps_back_as_few"
_GOES_ON = _UNBOUNDED + "test_a_tick_alone_goes_on_with_what_a_call_has_left_and_then_nothing_is_left"
_TOGETHER = _UNBOUNDED + "test_several_older_jobs_that_come_in_one_call_hide_none_of_them"
_OLDER = _UNBOUNDED + "test_an_older_job_that_comes_meanwhile_hides_none_of_them"
_AS_MANY = _UNBOUNDED + "test_as_many_jobs_as_the_maximum_are_in_their_lane_and_one_more_keeps_back_all_but_the_first"
_ANOTHER = _UNBOUNDED + "test_another_maximum_counts_at_once"
_MANY_LANES = _UNBOUNDED + "test_in_more_lanes_than_are_counted_all_but_the_first_are_kept_back"
_NO_DOUBT = _UNBOUNDED + "test_a_job_that_comes_has_a_count_that_was_in_doubt_be_none_any_more"
_OVER = _UNBOUNDED + "test_a_job_that_comes_ends_a_turn_whose_time_is_over"
_TURN_ENDS = _UNBOUNDED + "test_a_claim_ends_the_turn_of_its_type"
_IN_FORCE = _UNBOUNDED + "test_a_claim_goes_by_the_maximum_that_is_in_force_where_no_tick_has_got_to_yet"
_MINIMUM_GONE = _UNBOUNDED + "test_a_claim_ends_that_its_job_goes_first_where_no_call_has_got_to_a_minimum_that_is_gone"
_IS_PAUSED = _UNBOUNDED + "test_a_claim_goes_by_a_pause_that_no_call_has_got_to_yet"
_TURN_IS_OVER = _UNBOUNDED + "test_a_job_that_comes_ends_a_turn_whose_time_is_over"
_IN_DOUBT = _UNBOUNDED + "test_who_was_deleted_from_the_holders_counts_again"
_LAST_LOST = _UNBOUNDED + "test_a_lost_lane_of_which_only_the_first_job_is_there_again_is_made_again"
_LOST_AGAIN = _UNBOUNDED + "test_what_is_lost_is_made_again"

FAULTS = (
    # What the setting says.
    Fault("keyed/tenants", 'or quotas["*"] or NONE', "or NONE"),
    Fault("keyed/key_room", "tenants.quota_of(its.tenant).max", "math.huge"),
    Fault("keyed/tenants", 'string.match(rest, "weight:(%d+)") or 1', "1", _BY_WEIGHT),
    Fault("keyed/key_room", "    if its.tenant then\n", "    if false then\n"),
    Fault("jobs/hooks", '        return (redis.call("HGET", key.settings, name) or "") ~= (value or "")\n', ""),
    # A tenant that nothing bounds.
    Fault("keyed/tenants", "and quota.max or 0", "and math.huge or 0"),
    Fault("keyed/tenants", "return quota.min == 0 and not call", "return not call"),
    Fault("keyed/tenants", "quota.min == 0 and not call.tenants.era and", "quota.min == 0 and"),
    Fault("keyed/key_rows", "        if its.unbounded then\n", "        if false then\n"),
    Fault("keyed/key_rows", "if its.tenant and (is_new or its.unbounded) then", "if its.tenant and is_new then"),
    Fault("keyed/key_rows", "its.unkept[name] = its.unkept[name] + 1", "", _OLDER),
    Fault("keyed/key_rows", "    if sublane and sublane.is_unbounded then\n", "    if false then\n"),
    Fault("keyed/key_steps", "not (sublane.is_unbounded or sublane.standing == id)", "sublane.standing ~= id"),
    Fault("keyed/key_steps", "    return sublane.is_unbounded\n        or id", "    return id", _HELD_UP),
    Fault("keyed/key_steps", "        if not belongs_into_lane then\n", "        if true then\n"),
    Fault("keyed/unbounded", 'redis.call("ZADD", key.sublane(stated.key, type, lane), enqueued, id)', ""),
    Fault("keyed/unbounded", "lanes.add(id, type, lane, enqueued, heads)", ""),
    Fault("keyed/unbounded", "text == text_of(most) and not turn", "text == text_of(most)", _TURN_IS_OVER),
    Fault("keyed/unbounded", "if text == text_of(most) and", "if text ~= text_of(most) and"),
    Fault("keyed/unbounded", "return its.is_paused and 0 or", "return"),
    Fault("keyed/unbounded", "more + key_rows.held(its_key, its)", "more"),
    Fault("keyed/unbounded", 'number = number + redis.call("ZCARD", place)', "number = number + 0"),
    Fault("keyed/unbounded", "if #places > protocol.MOST_SUBLANES then", "if false then", _MANY_LANES),
    Fault(
        "keyed/unbounded", "local is_another = is_free and its.unbounded ~= text_of(most)", "local is_another = false"
    ),
    Fault("keyed/unbounded", "keep_to(its_key, its, most, 0)", "keep_to(its_key, its, most, -1)", _ANOTHER),
    Fault("keyed/unbounded", "keep_to(its_key, its, most_of(its), 1)", "keep_to(its_key, its, most_of(its), 0)"),
    Fault(
        "keyed/unbounded",
        "are_few(stated.key, its, most_of(its), 1)",
        "are_few(stated.key, its, most_of(its), 0)",
        _AS_MANY,
    ),
    Fault("keyed/unbounded", 'its.sublanes[type .. " " .. lane].is_changed --', "false --", _NO_DOUBT),
    Fault("keyed/unbounded", 'redis.call("HSET", key.of_key(its_key), fields[i], IN_DOUBT)', "", _IN_DOUBT),
    Fault("keyed/unbounded", "sublane.is_unbounded and not its.turn", "sublane.is_unbounded", _OVER),
    Fault("keyed/unbounded", "key_steps.keep_back(id, sublane.type, sublane.lane, enqueued)", ""),
    Fault("keyed/unbounded", "heads = lanes.without(id, sublane.type, sublane.lane, heads)", ""),
    Fault("keyed/unbounded", "        if id ~= sublane.standing then\n", "        if true then\n"),
    Fault("keyed/unbounded", "left.to_keep_back - (number - from)", "left.to_keep_back", _AS_FEW),
    Fault("keyed/unbounded", "its.unkept[name] = left\n", "its.unkept[name] = nil\n", _TOGETHER),
    Fault("keyed/unbounded", 'redis.call("HSET", key.of_key(its_key), "+" .. name, left)', "", _MANY),
    Fault("keyed/unbounded", "            key_standing.go_on_later(its_key)\n", "", _GOES_ON),
    Fault("keyed/unbounded", 'redis.call("HDEL", key.of_key(its_key), "+" .. name)', "", _GOES_ON),
    Fault("repair/repair_keyed", "and standing ~= false then", "then", _LAST_LOST),
    Fault("repair/repair_keyed", "            fix_last(its_key, type, lane)\n", "", _LAST_LOST),
    Fault("repair/repair_keyed", "    if is_bounded and not call.found then\n", "    if false then\n", _LOST_AGAIN),
    # A tenant that has room for several more.
    Fault("keyed/roomy", "return quota.min == 0 and", "return"),
    Fault("keyed/roomy", "key.held(its_key))) >= ROOM -", "key.held(its_key))) >= ROOM - 1 -"),
    Fault("keyed/roomy", "(was_claimed and 1 or 0)", "0"),
    Fault("keyed/roomy", "return not sublane.is_first and", "return", _MINIMUM_GONE),
    Fault("keyed/roomy", "and sublane.turn == (tenants.shares()) and", "and", _NEW_ERA),
    Fault("keyed/roomy", "    if turn or not text then\n", "    if not text then\n", _TURN_ENDS),
    Fault("keyed/roomy", "local is_so = unbounded.says(text, stated.tenant)", "local is_so = true", _IN_FORCE),
    Fault("keyed/roomy", "not key_rows.is_paused(stated.key) and", "", _IS_PAUSED),
    Fault("keyed/roomy", "is_unbounded and not its.turn", "is_unbounded", _TURN_ENDS),
    Fault("keyed/roomy", "    shares.stand_no_more(sublane, id, sublane.enqueued)\n", ""),
    Fault("keyed/roomy", '    redis.call("ZREM", place, id)\n    local first', "    local first"),
    Fault("keyed/roomy", "    key_steps.keep_back_no_more(first, type, lane, second ~= nil)\n", ""),
    Fault(
        "keyed/roomy",
        "key_steps.keep_back_no_more(first, type, lane, second ~= nil)",
        "key_steps.keep_back_no_more(first, type, lane, true)",
    ),
    Fault("keyed/roomy", "    hooks.enters_lane(first, type, lane, enqueued)\n", ""),
    Fault("keyed/roomy", "    lanes.add(first, type, lane, enqueued)\n", ""),
    Fault("keyed/roomy", "    shares.give_turn(its_key, sublane, first, enqueued)\n", ""),
    Fault("keyed/roomy", "    key_rows.hold(passing.stated, id, fence)\n", ""),
    Fault("keyed/roomy", "shares.charge(its_key, id, type, not is_out_of_turn)", ""),
    Fault("keyed/roomy", '        redis.call("ZREM", place, id)\n        has_more', "        has_more"),
    Fault("keyed/roomy", 'redis.call("EXISTS", place) == 1', "true"),
    Fault("keyed/key_turns", "if its.tenant and roomy.has_room(its.tenant, its_key, its, true) then", "if false then"),
    Fault("keyed/keyed", "return not roomy.has_room(stated.tenant, its_key, known)", "return false"),
    Fault("keyed/keyed", "            pass_on(stated, id, type)\n", ""),
    Fault("keyed/tenants", "has_pauses = words[3] ~= false", "has_pauses = false"),
    Fault("keyed/tenants", "        if text_of_shares or words[3] then", "        if text_of_shares then"),
    Fault("keyed/tenants", "        if text_of_shares or words[3] then", "        if words[3] then"),
    Fault("types/rule_changes", '            redis.call("HDEL", key.settings, "has_pauses")\n', ""),
    Fault(
        "keyed/shares",
        "if is_of_one and not tenant_of(job.id) then",
        "if false then",
        "tests/server/test_shares.py::test_a_replayed_job_whose_rules_nobody_could_read_goes_when_it_is_the_oldest",
    ),
    # The account of a tenant.
    Fault("keyed/shares", "tag_after(its_key, start, usual_us - used_us)", "tag_after(its_key, start, usual_us)"),
    Fault("keyed/shares", "tag_after(its_key, start, usual_us", "tag_after(its_key, tag_of(its_key), usual_us", _IDLE),
    Fault(
        "keyed/shares", "math.max(tag_of(CLOCK), is_its_turn and start or 0)", "is_its_turn and start or tag_of(CLOCK)"
    ),
    Fault("keyed/shares", "is_its_turn and start or 0", "start", _BY_AGE),
    Fault("keyed/shares", 'redis.call("HSET", key.job(id), "charged", call.text(usual_us))', ""),
    Fault("keyed/shares", 'redis.call("HSET", key.credits, its_key, call.text(credit_us - used_us))', ""),
    Fault("keyed/shares", "math.max(0, call.now_us - time_in(claimed or call.now))", "0"),
    Fault("keyed/shares", "took_us - time_in(charged)", "took_us"),
    Fault("keyed/shares", "math.floor(us / tenants.quota_of(tenants.name_of(its_key)).weight)", "us", _BY_WEIGHT),
    Fault("keyed/shares", "call.text(credit_us - more_us)", "call.text(-more_us)"),
    Fault("keyed/keyed", "shares.charge(its_key, id, type, not is_out_of_turn)", ""),
    Fault("keyed/keyed", "shares.correct(its_key, id)", ""),
    Fault("keyed/keyed", "key.waiting_keys, key.rates, key.tags) == 0", "key.waiting_keys, key.rates) == 0"),
    Fault("types/rule_changes", "key.rates, key.tags, key.recount", "key.rates, key.recount", _FORGOTTEN),
    Fault("keyed/shares", 'redis.call("ZREM", key.tags, its_key)', "", _FORGOTTEN),
    Fault("keyed/shares", 'its_key ~= CLOCK and redis.call("EXISTS"', 'its_key ~= CLOCK and 0 * redis.call("EXISTS"'),
    Fault("keyed/shares", 'redis.call("HDEL", key.credits, its_key)', ""),
    Fault("keyed/shares", "number > 0 and #some == protocol.MOST_KEYS", "false", _ALL_FORGOTTEN),
    Fault("keyed/shares", "        tags_of_call()[its_key] = tag\n", ""),
    # Use that is forgotten.
    Fault(
        "keyed/half_life", "exp2(math.min(tag, added) - greater)", "exp2(greater - math.min(tag, added))", _LEAST_GOES
    ),
    Fault("keyed/half_life", "log2(us) + call.now_us / half_life_us", "log2(us)", _LEAST_GOES),
    Fault("keyed/half_life", " - FORGOTTEN_AFTER", "", _LONG_AGO),
    Fault(
        "keyed/shares",
        "    if half_life_us > 0 then\n        return added",
        "    if false then\n        return added",
        _LEAST_GOES,
    ),
    Fault("keyed/shares", "    if era and half_life_us > 0 then\n", "    if false then\n", _LONG_AGO),
    # Whose turn it is.
    Fault("keyed/shares", "math.max(tag, its_era", "math.max(0, its_era"),
    Fault("keyed/shares", "its_era == era and tonumber(since) or 0", "0", _IDLE),
    Fault("keyed/shares", "its_era == era and tonumber(since)", "tonumber(since)", _ERA_IS_OVER),
    Fault("keyed/shares", "read(CLOCK) and tag >= read(CLOCK)", "true", _IDLE),
    Fault("keyed/shares", 'redis.call("ZREM", key.turns(sublane.type', "tostring(key.turns(sublane.type"),
    Fault("keyed/shares", "        sublane.turn, sublane.is_changed = nil, true\n", ""),
    Fault("keyed/shares", "sublane.turn, sublane.is_changed = era, true", ""),
    Fault("keyed/shares", "if start > least and left", "if false and left", _BY_WEIGHT),
    Fault("keyed/shares", "best_start == least and best < turn", "best_start == least", _WITHIN_TURNS),
    Fault("keyed/shares", "start == best_start and turn < best", "start == best_start"),
    Fault("keyed/shares", "#some < 2 * AT_ONCE", "true", _ELSEWHERE),
    Fault("keyed/shares", "    if not tenants.shares() or not (is_of_one", "    if true or not (is_of_one", _BY_WEIGHT),
    Fault("keyed/shares", "if not is_of_now and half_life_us == 0", "if half_life_us == 0"),
    Fault("keyed/shares", 'redis.call("HSET", key.job(id), "since", since)', ""),
    Fault("keyed/keyed", "    shares.come(id, fresh)\n", ""),
    Fault("keyed/key_standing", "    shares.renew(its_key, its)\n", ""),
    Fault("keyed/key_steps", "shares.stand_no_more(sublane, id, enqueued)", ""),
    Fault("keyed/key_rows", "shares.stand_no_more(sublane, id, key_rows", "tostring(sublane, id, key_rows"),
    Fault("keyed/key_rows", 'task = name or "", since = since }', 'task = name or "", since = false }'),
    Fault("keyed/keyed", "    return not tenants.shares() and tonumber(", "    return tonumber("),
    Fault("keyed/keyed", "tonumber(due_us or nil) ~= protocol.AT_ONCE_US", "true"),
    # Eras of shares.
    Fault("base/settings_in_force", "    if hooks.settings_have_changed() then\n", "    if false then\n", _CHANGED),
    Fault(
        "base/settings_in_force",
        'have_changed() then\n        redis.call("HINCRBY"',
        'have_changed() then\n        tostring("HINCRBY"',
        _CHANGED,
    ),
    Fault("keyed/tenants", 'redis.call("HINCRBY", key.settings, "shares_era", 1)', "", _ERA),
    Fault("keyed/tenants", 'redis.call("UNLINK", key.tags, key.credits)', "", _ERA),
    Fault(
        "keyed/shares",
        "            if number == protocol.MOST_OPENED then\n",
        "            if false then\n",
        _MANY_TYPES,
    ),
    Fault("placing/candidates", "    if not job.place then", "    if false then"),
    Fault("placing/fill", "            job, is_out_of_turn = in_turn(waiting, job, view)\n", ""),
    Fault("placing/fill", "if is_ruled and not is_out_of_turn then", "if is_ruled then"),
    Fault("placing/fill", "    if other ~= job and kept_back\n", "    if false and kept_back\n", _YOUNG),
    # Who has less than the minimum.
    Fault("keyed/tenants", 'string.match(rest, "min:(%d+)") or 0', "0"),
    Fault("keyed/minimums", '        if redis.call("EXISTS", key.first_heads) == 0 then\n', "        if false then\n"),
    Fault("keyed/minimums", "            hooks.say_to_claims(ANY, false)\n", ""),
    Fault("keyed/minimums", "        hooks.say_to_claims(ANY, 1)\n", ""),
    Fault("keyed/minimums", "    if sublane.is_first then\n", "    if false then\n"),
    Fault("keyed/minimums", "key_rows.held(its_key, its) < min", "key_rows.held(its_key, its) <= min"),
    Fault("keyed/minimums", 'goes_first and sublane.standing ~= ""', "goes_first", _KEPT_NO_MORE),
    Fault("keyed/minimums", "            key_standing.go_on_later(its_key)\n", "", _MANY_FIRST),
    Fault("keyed/minimums", "            number = number + 1\n", "", _MANY_FIRST),
    Fault(
        "keyed/minimums",
        '    if redis.call("ZSCORE", key.lane(type, lane), id) then\n',
        "    if true then\n",
        _LEFT_BEHIND,
    ),
    Fault(
        "keyed/minimums",
        "    move(id, type, lane)\n",
        "",
        _LEFT_BEHIND,
    ),
    Fault("keyed/key_rows", "        minimums.stand_no_more(its_key, sublane)\n", ""),
    Fault("keyed/key_steps", "    minimums.stand_no_more(its_key, sublane)\n", ""),
    Fault("keyed/key_standing", "    minimums.renew(its_key, its)\n", ""),
    Fault("keyed/key_rows", '(is_first and "!" or "")', '""'),
    Fault("keyed/keyed", "type, not is_out_of_turn)", "type, true)", _BY_AGE),
    Fault("keyed/keyed", "type, not is_out_of_turn)", "type, not false)", _AT_ONCE),
    Fault("placing/which_job", "return job, by_age\n", "return job\n", _BY_AGE),
    Fault("placing/which_job", "first_type(choice, false)", "first_type(choice, true)"),
    Fault("placing/candidates", "waiting.first_heads and best_below_minimum(waiting)", "nil"),
    Fault("placing/candidates", "== job.id and place or nil", "== job.id and nil"),
    Fault(
        "placing/candidates",
        "heads[type] and waiting.first_heads[type] and type",
        "waiting.first_heads[type] and type",
        _QUOTAS + "test_a_limit_of_a_type_holds_back_a_tenant_below_its_minimum",
    ),
    Fault("placing/fill", "    candidates.read_first_heads(waiting)\n", ""),
    Fault("keyed/minimums", "return minimums.heads(types) or {}", "return minimums.heads(types)", _TO_OTHERS),
    Fault("types/type_rules", "are_some_first and minimums.heads(open)", "nil"),
    # What a repair finds.
    Fault("repair/repair_minimums", "return goes_first(id, type, lane)", "return false", _LOST),
    Fault("repair/repair_minimums", "        if differ or", "        if false and", _LOST),
    Fault("repair/repair_keyed", "        repair_minimums.fix_tenant(its_key)\n", "", _LOST),
    Fault("repair/repair_keyed", "written.is_first, written.turn)", "false, written.turn)"),
    Fault("repair/repair_keyed", "written.is_first, written.turn)", "written.is_first)"),
    Fault("arrows/repair", '        { fix_fields, "first_heads", repair_minimums.fix },\n', "", _LOST),
    Fault("repair/repair_keyed", 'derived.number(found) or "0"', "found", _SPOILED_TURNS),
    Fault(
        "repair/repair_single_keys", 'derived.one("hash", key.settings, "shares"', 'tostring("shares"', _SPOILED_SHARES
    ),
)
