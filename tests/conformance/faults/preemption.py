"""Faults in stops of running jobs for tenants below their minimum."""

from .fault import Fault

_TESTS = "tests/server/test_preemption.py::test_"
_STOPPED = _TESTS + "a_job_is_stopped_after_the_delay_and_its_slot_goes_to_the_tenant_below_its_minimum"
_AS_IT_WAS = _TESTS + "a_job_that_was_stopped_waits_again_as_it_was_and_its_row_says_what_happened"
_NOT_ORDERED = _TESTS + "a_stop_that_nobody_ordered_counts_as_a_requeue"
_NO_SENSE = _TESTS + "a_time_that_makes_no_sense_spoils_no_count"
_WHO_NOT = (
    _TESTS + "no_job_is_stopped_that_did_not_say_so_or_was_acked_or_has_not_started_or_runs_where_nothing_can_stop_it"
)
_ENCODED = _TESTS + "a_name_of_a_task_that_can_be_stopped_is_percent_encoded"
_ORDER = _TESTS + "the_lowest_priority_is_stopped_first_then_queued_jobs_then_the_one_that_started_last"
_OWN_MINIMUM = _TESTS + "no_tenant_comes_below_its_own_minimum_also_by_stops_that_are_under_way"
_AS_MANY = _TESTS + "as_many_jobs_are_stopped_as_wait_and_as_slots_are_missing"
_OF_TWO_TYPES = _TESTS + "one_job_is_stopped_for_one_missing_slot_whatever_types_wait"
_WITHDRAWN = _TESTS + "an_order_is_withdrawn_that_nobody_has_read_when_the_tenant_needs_no_slot_any_more"
_READ = _TESTS + "an_order_that_was_read_stands_although_nobody_needs_the_slot"
_NO_ANSWER = _TESTS + "of_a_worker_that_does_not_answer_no_job_is_waited_for_longer_than_grace_and_five_seconds"
_LEFT = _TESTS + "nothing_is_left_of_an_order_however_the_claim_ends"
_THREE_TIMES = _TESTS + "a_job_is_stopped_three_times_at_most_and_a_minute_after_its_start_at_the_earliest"
_IN_A_SLOT = _TESTS + "another_job_in_a_slot_that_was_vacated_is_not_stopped_for_a_minute_either"
_RESERVE = _TESTS + "a_job_that_a_reserve_keeps_back_in_any_case_stops_no_other"
_FEWER_SLOTS = _TESTS + "a_worker_with_fewer_slots_than_running_jobs_frees_none"
_AHEAD = _TESTS + "jobs_ahead_of_the_slots_are_asked_back_where_a_job_is_stopped"
_AHEAD_ONCE = _TESTS + "jobs_ahead_are_asked_back_once_for_all_that_are_stopped_there"
_OLDEST = _TESTS + "a_tick_begins_with_the_tenants_that_have_waited_longest"
_SO_MANY = _TESTS + "so_many_stops_are_under_way_together_and_no_more"
_SPOILED = _TESTS + "an_order_that_somebody_spoiled_goes_and_stops_nobody"
_LOST = _TESTS + "what_is_lost_of_the_jobs_that_may_be_stopped_is_made_again"
_SO_LONG = _TESTS + "no_more_jobs_are_stopped_than_have_waited_so_long"
_BEFORE = _TESTS + "a_worker_reads_the_sign_before_the_jobs_in_its_inbox"
_LATER = _TESTS + "of_a_later_claim_nobody_has_ordered_the_stop"
_NEVER_READ = _TESTS + "a_job_that_was_stopped_and_that_its_worker_never_read_waits_again"
_ELSEWHERE = _TESTS + "a_job_that_was_stopped_is_not_stopped_elsewhere_for_a_minute"
_REVERSED = _TESTS + "the_lowest_priority_is_that_of_the_fleet_s_order"

FAULTS = (
    # What is kept of jobs that may be stopped.
    Fault("keyed/key_rows", "        preemption.hold(id, its_key, fence)\n", "", _STOPPED),
    Fault("keyed/keyed", "        preemption.free(id, its_key)\n", "", _LEFT),
    Fault("preemption/preemption", '        redis.call("ZREM", key.giving, its_key)\n', "", _LEFT),
    Fault("preemption/preemption", '        redis.call("HDEL", key.vacating, id)\n', "", _LEFT),
    Fault("repair/repair_keyed", '{ "zset", key.preemptible(stated.key), id, fence }', "nil", _LOST),
    Fault("repair/repair_keyed", "key.coming(its_key), key.preemptible(its_key)", "key.coming(its_key)", _LOST),
    # The end.
    Fault(
        "arrows/release", "how, why = hooks.stopped(worker, id, fence, known, why)", "how, why = why, how", _AS_IT_WAS
    ),
    Fault("preemption/preemption", "    if ordered ~= fence then\n", "    if not ordered then\n", _LATER),
    Fault("preemption/preemption", 'return "requeued", ""', 'return "returned", ""', _NOT_ORDERED),
    Fault("preemption/preemption", "math.min(tonumber(ran), protocol.LONGEST_RUN_US)", "tonumber(ran)", _NO_SENSE),
    Fault("preemption/preemption", '    redis.call("HINCRBY", key.job(id), "preemptions", 1)\n', "", _AS_IT_WAS),
    Fault("jobs/claims", "    if preemptions and string", "    if false and string", _AS_IT_WAS),
    Fault(
        "jobs/claims",
        '"expires", "moved", "preemptions", "rank"))\n',
        '"expires", "moved", "tries", "rank"))\n',
        _AS_IT_WAS,
    ),
    Fault("jobs/claims", '"moved", "lane", "preemptions",', '"moved", "lane", "tries",', _NEVER_READ),
    Fault("preemption/preemption", '"preempted_us", call.text(ran_us)', '"preempted_us", 1', _AS_IT_WAS),
    # For whom.
    Fault("types/rule_changes", "key.pause_signs, key.vacating,\n", "key.pause_signs,\n", _WITHDRAWN),
    Fault("preemption/preemption", "    missing = missing - stops:number_for(its_key)\n", "", _OF_TWO_TYPES),
    Fault("preemption/preemption", "each.number - stops:number_for(its_key, each.type)", "each.number", _AS_MANY),
    Fault("preemption/preemption", "            missing = missing - 1\n", "", _OF_TWO_TYPES),
    Fault(
        "preemption/preemption",
        "            if stops.number >= protocol.MOST_VACATING then\n",
        "            if false then\n",
        _SO_MANY,
    ),
    Fault("preemption/preemptors", "return found and not (kept_back and", "return found and not (false and", _RESERVE),
    Fault("preemption/preemptors", '"-inf", since)\n', '"-inf", "+inf")\n', _SO_LONG),
    Fault("preemption/preemptors", "    table.sort(jobs, is_older)\n", "", _OLDEST),
    Fault("preemption/preemptors", "#found == protocol.MOST_PREEMPTORS or", "", _OLDEST),
    # The orders.
    Fault("preemption/vacating", 'redis.call("RPUSH", key.inbox', 'redis.call("LPUSH", key.inbox', _BEFORE),
    Fault("preemption/vacating", '"stop", stop.fence .. " " .. its_key)', '"stop", its_key)', _AS_IT_WAS),
    Fault("preemption/vacating", 'HDEL", key.vacating, all[i])', 'HGET", key.vacating, all[i])', _SPOILED),
    Fault("preemption/vacating", "if fence and claims.held(worker, all[i], fence) then", "if fence then", _SPOILED),
    Fault(
        "preemption/vacating",
        'if is_needed or redis.call("LREM", key.inbox(stop.worker), 1, sign_of(stop)) == 0 then',
        "if is_needed then",
        _READ,
    ),
    Fault("preemption/vacating", "local is_needed = not is_late and", "local is_needed =", _NO_ANSWER),
    Fault("preemption/vacating", "            if not is_late then\n", "            if true then\n", _NO_ANSWER),
    Fault("preemption/vacating", "            note(stops, victims.key_of(stop.id))\n", "", _OWN_MINIMUM),
    # Which job.
    Fault("preemption/victims", "- (stops.lost[its_key] or 0)\n", "\n", _OWN_MINIMUM),
    Fault("preemption/victims", "- tenants.quota_of(tenants.name_of(its_key)).min", "", _OWN_MINIMUM),
    Fault("preemption/victims", "if not (worker and started_us and", "if not (worker and", _WHO_NOT),
    Fault("preemption/victims", " or acked or", " or", _WHO_NOT),
    Fault("preemption/victims", "times >= settings.preemption_max or", "", _THREE_TIMES),
    Fault("preemption/victims", 'or string.match(stop or "", "^%d+") == fence then', "then", _NO_ANSWER),
    Fault("preemption/victims", "started_us < settings.preemption_exempt_us", "started_us < 0", _ELSEWHERE),
    Fault("preemption/victims", "each.started_us < its.exempt_since_us and", "", _IN_A_SLOT),
    Fault("preemption/victims", "one.started_us > other.started_us", "one.started_us < other.started_us", _ORDER),
    Fault("preemption/victims", "one.on_demand < other.on_demand", "one.on_demand > other.on_demand", _ORDER),
    Fault("preemption/victims", "one.priority < other.priority", "one.priority > other.priority", _ORDER),
    Fault("preemption/victims", "settings.priority_reversed == 1 and", "false and", _REVERSED),
    Fault("preemption/victims", "    return found >= number\n", "    return true\n", _FEWER_SLOTS),
    Fault("preemption/victims", "    return found >= number\n", "    return false\n", _AHEAD),
    Fault("preemption/victims", "its.types, its.number_ahead, 0", "its.types, its.number_ahead, 1", _AHEAD_ONCE),
    Fault("preemption/vacating", "if victim.number_ahead > 0 then", "if false then", _AHEAD),
    Fault("preemption/victims", "texts.decoded(word) == name", "word == name", _ENCODED),
    Fault("base/texts", "string.char(tonumber(digits, 16))", '""', _ENCODED),
    Fault("preemption/victims", "and can_stop(its.stops, each.id)", "", _WHO_NOT),
)
