-- repair_keyed: what follows from the rows of jobs with keys: where they wait, and which of them hold their keys. Each
-- job that waits is in the sub-lane of its key, type and lane, and either in the lane or among the jobs that keys keep
-- out of it. A repair meets the job in any of these, and fixes the others. A tick then brings the lanes up to date.

-- RETURNS what the row of job `id` says of its keys and its place; nil if the row has no key. `waits`: whether the job
-- waits there.
local function row_of(id)
    if not id_suffix.has_key(id) then
        return nil
    end
    local rules, state, type, lane, enqueued, name, worker, rank =
        rebuild.fields(key.job(id), "rules", "state", "type", "lane", "enqueued", "name", "worker", "rank")
    local its_keys = rules_codec.keys(rules)
    return its_keys[1] and {
        keys = its_keys, state = state, type = type, lane = lane, enqueued = lanes.order(enqueued, rank),
        task = "=" .. (name or ""), worker = worker or "",
        waits = state == "pending" and type and lanes.is_one(lane) and rebuild.whole(enqueued),
    }
end

-- RETURNS a sub-lane, a table, as the hash of its key says it (`key_state.sublane_of`).
function repair_keyed.written(its_key, type, lane)
    return key_state.sublane_of(type, lane, rebuild.fields(key.of_key(its_key), type .. " " .. lane))
end

-- RETURNS how many of its keys job `id`, which waits as its `row` says, stands for: all if it is in its lane, else
-- those before the last one that it waits for.
local function stands_for(id, row)
    if rebuild.score(key.lane(row.type, row.lane), id) then
        return #row.keys
    end
    for nth = #row.keys, 2, -1 do
        if rebuild.score(key.sublane(row.keys[nth].key, row.type, row.lane), id) then
            return nth - 1
        end
    end
    return 0
end

-- RETURNS the entry that says what the task of `row` stated of a key, as arguments of `rebuild.one`.
local function stated_entry(row, stated)
    return { "hash", key.of_key(stated.key), row.task, rebuild.any_or(stated.states) }
end

-- RETURNS entries that follow from `row` of job `id`, which waits, as arguments of `rebuild.one`. `number`: how many of
-- its keys it stands for.
local function follows_waiting(id, row, number)
    local where, is_kept = row.type .. " " .. row.lane, number < #row.keys
    local entries = {
        { "zset", key.kept_back(row.type, row.lane), id, is_kept and row.enqueued },
        { "hash", key.kept_lanes, where, rebuild.any_or(is_kept and "1") },
    }
    for nth, stated in ipairs(row.keys) do
        local waits = nth <= number + 1
        entries[#entries + 1] = { "zset", key.sublane(stated.key, row.type, row.lane), id, waits and row.enqueued }
        local is_stated = key_state.is_stated(stated)
        entries[#entries + 1] = is_stated and stated_entry(row, stated) or nil
        local written = stated.tenant and number == #row.keys and repair_keyed.written(stated.key, row.type, row.lane)
        if written and written.standing == id and written.turn then
            entries[#entries + 1] = {
                "zset", key.turns(row.type, row.lane, written.turn), row.enqueued .. " " .. id, function(found)
                    return rebuild.number(found) or "0" -- none is too high
                end,
            }
        end
        if is_stated and nth > 1 then
            entries[#entries + 1] = { "zset", key.coming(stated.key), id, row.enqueued }
            entries[#entries + 1] = { "hash", key.of_key(stated.key), "coming", "1" }
        end
        entries[#entries + 1] =
            waits and { "zset", key.waiting_keys, stated.key, rebuild.any_or(gate.revision()) } or nil
    end
    return entries
end

-- RETURNS entries that follow from `row` of job `id`, as arguments of `rebuild.one`.
local function follows(id, row, number)
    if row.waits then
        return follows_waiting(id, row, number)
    end
    local entries = {}
    local fence = row.state == "claimed" and rebuild.whole(rebuild.fields(key.claims(row.worker), id))
    for _, stated in ipairs(row.state == "claimed" and row.keys or {}) do
        if not string.find(stated.states, "/", 1, true) then -- a rate is held by nobody
            local is_stated = fence and key_state.is_stated(stated)
            entries[#entries + 1] = is_stated and stated_entry(row, stated) or nil
            entries[#entries + 1] = { "zset", key.held(stated.key), id, fence }
        end
        if stated.is_preemptible then
            entries[#entries + 1] = { "zset", key.preemptible(stated.key), id, fence }
            entries[#entries + 1] = { "zset", key.giving, stated.key, function()
                return evictions.number_of(stated.key) -- once it is known whether this job is one more
            end }
        end
    end
    return entries
end

-- RETURNS whether job `id` is where a job is that stands for `its_key` in this sub-lane.
local function stands(id, its_key, type, lane)
    local row, before = row_of(id), 0
    for nth, stated in ipairs(row and row.keys or {}) do
        before = stated.key == its_key and nth or before
    end
    return before > 0 and row.waits and row.type == type and row.lane == lane and stands_for(id, row) >= before
end

-- Fixes what is written of a sub-lane: its first job, and the one that stands for the key; or that all are in the lane
-- (`unbounded`). `standing`: id of a job that does; false: there is one that does not; nil: that is not known. RETURNS
-- whether it differed.
local function fix_written(its_key, type, lane, standing)
    local sublane, name, is_bounded = key.sublane(its_key, type, lane), type .. " " .. lane, false
    if rebuild.fields(key.of_key(its_key), "+" .. name) then
        standing = nil -- others that are still to be kept back are in the lane as well
    end
    local differs = rebuild.one("hash", key.of_key(its_key), name, function(found)
        local first, enqueued
        if rebuild.exists(sublane, "zset") then
            local found_there = call.found and redis.call("ZRANGE", sublane, 0, 0, "WITHSCORES")
            first, enqueued = unpack(found_there or corrupt.first_of(sublane, 1))
        end
        if unbounded.is_one(found) and standing ~= false then
            return first and found
        end
        is_bounded = first and tenants.is_one(its_key) and (not found or unbounded.is_one(found))
        local written = key_state.sublane_of(type, lane, found)
        if standing and standing ~= written.standing then
            written = { standing = standing }
        end
        local job = written.standing
        local is_good = job and redis.call("ZSCORE", sublane, job) and stands(job, its_key, type, lane)
        return first and enqueued .. " " .. first
            .. key_state.standing_text(is_good and job or "", written.is_first, written.turn)
    end)
    if is_bounded and not call.found then
        redis.call("HSET", key.of_key(its_key), "+" .. name, redis.call("ZCARD", sublane))
    end
    return differs
end

-- Fixes the fields of a key: limits by task, times by type, a turn, a retry, and the names of sub-lanes.
local function fix_fields(its_key)
    rebuild.all("hash", key.of_key(its_key), function(value, name)
        local kind = string.sub(name, 1, 1)
        local is_good
        if kind == "=" then
            is_good = string.find(value, "^[1-9]%d*$") or string.find(value, "^[1-9]%d*/[1-9]%d*$")
        elseif kind == "@" or kind == "+" then
            is_good = rebuild.whole(value)
        elseif name == "turn" then
            local began, until_us = string.match(value, "^%S+ (%d+) (%d+)$")
            is_good = rebuild.whole(began) and rebuild.whole(until_us)
        elseif name == "coming" then
            is_good = rebuild.exists(key.coming(its_key), "zset")
        elseif name == "retry" then
            local row = row_of(value)
            is_good = row and key_state.has(value, its_key)
                and (row.state == "pending" or rebuild.score(key.scheduled, value))
        else
            is_good = lanes.is_one(string.match(name, "^%S+ (%S+)$"))
        end
        return is_good and value
    end)
end

-- Has a tick renew a key of which something has changed.
local function renew_soon(its_key)
    if not call.found then
        fix_fields(its_key)
        unbounded.doubt(its_key)
        key_state.cache().known[its_key] = nil
        redis.call("ZADD", key.due_keys, protocol.AT_ONCE_US, its_key)
    end
end

-- Fixes what follows from the row of job `id`. `place`: the sorted set in which the job was found; nil for any that is
-- right. RETURNS whether anything differed, and the row; nil if it has none.
function repair_keyed.fix_job(id, place)
    local row, belongs = row_of(id), not place
    local number = row and row.waits and stands_for(id, row) or 0
    local entries = row and follows(id, row, number) or {}
    for _, entry in ipairs(entries) do
        belongs = belongs or entry[2] == place
    end
    local differ = rebuild.each(entries)
    if not belongs then
        differ = rebuild.one("zset", place, id, nil) or differ
    end
    for nth, stated in ipairs(row and row.waits and row.keys or {}) do
        if nth <= number + 1 then
            differ = fix_written(stated.key, row.type, row.lane, nth <= number and id) or differ
        end
    end
    for _, stated in ipairs(row and differ and row.keys or {}) do
        renew_soon(stated.key)
    end
    return differ, row
end

-- Fixes jobs with keys that are in `place`: a lane, or the jobs that keys keep out of it.
function repair_keyed.fix_place(place, type, lane)
    rebuild.with_some_of(place, function(id, time)
        if place == key.lane(type, lane) then
            if repair_locality.fix_job(id, type, lane, time) then
                return true
            end
            return id_suffix.has_key(id) and (repair_keyed.fix_job(id))
        end
        local differ, row = repair_keyed.fix_job(id, place)
        if not row and not call.found and corrupt.is_word(id) then
            hooks.enters_lane(id, type, lane, rebuild.whole(time) or call.now)
            lanes.add(id, type, lane, rebuild.whole(time) or call.now) -- it goes the way of a job without rules
        end
        return differ
    end)
end

-- Brings the lanes up to date with what a key has room for, unless a tick is about to do so. `agreed`: revision of the
-- limits that was last applied to the key; another one than now's is for a tick.
local function renew(its_key, agreed)
    local due_us = tonumber(redis.call("ZSCORE", key.due_keys, its_key) or nil)
    if call.found or agreed ~= gate.revision() or (due_us and due_us <= call.now_us) then
        return
    end
    key_state.cache().known[its_key] = nil
    local its, is_awaited = key_state.read(its_key), due_us and due_us < 2e18
    for _, sublane in pairs(its.sublanes) do
        is_awaited = is_awaited or sublane.standing ~= ""
    end
    if due_us and tonumber(its.turn_began or 0) > call.now_us then
        -- The clock was set back. A tick ends such a turn; but it would come only when the turn was to be over.
        redis.call("ZADD", key.due_keys, protocol.AT_ONCE_US, its_key)
    elseif not is_awaited or string.find(its_key, protocol.RATE_PREFIX, 1, true) ~= 1 then
        gate.reevaluate(its_key) -- the time alone changes a rate: a tick renews that, if it is to come to the key
    end
end

-- Fixes the time at which a rate limit is fully available again, if no rate limit can have set it. The period of the
-- jobs that wait now is no bound: a job with another period may have started before.
local function fix_rate(its_key)
    local _, period_us = capacity.rate_of(its_key, key_state.read(its_key).stated)
    if period_us then
        rebuild.one("zset", key.rates, its_key, function(found)
            local longest_us = math.max(period_us, protocol.LONGEST_RATE_PERIOD_US)
            local is_late = found and tonumber(found) > call.now_us + longest_us
            return is_late and call.text(call.now_us + period_us) or found
        end)
    end
end

-- Fixes the last job of an unbounded sub-lane: if somebody deleted the lane, the heads alone may be there again.
local function fix_last(its_key, type, lane)
    local sublane = key.sublane(its_key, type, lane)
    local words = rebuild.fields(key.of_key(its_key), type .. " " .. lane)
    if unbounded.is_one(words) and rebuild.exists(sublane, "zset") then
        repair_keyed.fix_job(redis.call("ZRANGE", sublane, -1, -1)[1], sublane)
    end
end

-- Quarantines the hash of a key that a tick is to look at, if it is no hash.
function repair_keyed.fix_hash(its_key)
    rebuild.exists(key.of_key(its_key), "hash")
end

-- Fixes a key for which jobs wait.
function repair_keyed.fix(its_key, agreed)
    fix_fields(its_key)
    for _, name in ipairs(redis.call("HKEYS", key.of_key(its_key))) do
        local type, lane = string.match(name, "^([^+%s]%S*) (%S+)$")
        if type then
            local sublane = key.sublane(its_key, type, lane)
            rebuild.exists(key.lane(type, lane), "zset")
            rebuild.with_some_of(sublane, function(id)
                return (repair_keyed.fix_job(id, sublane))
            end)
            fix_last(its_key, type, lane)
            fix_written(its_key, type, lane)
        end
    end
    for _, place in ipairs({ key.held(its_key), key.coming(its_key), key.preemptible(its_key) }) do
        rebuild.with_some_of(place, function(id)
            return (repair_keyed.fix_job(id, place))
        end)
    end
    local is_good = rebuild.whole(agreed) and tonumber(agreed) <= tonumber(gate.revision())
    rebuild.entry("zset", key.waiting_keys, its_key, agreed, is_good and agreed or 0) -- the next tick renews it
    fix_rate(its_key)
    renew(its_key, agreed)
    if tenants.is_one(its_key) then
        rebuild.one("zset", key.giving, its_key, evictions.number_of(its_key))
        repair_minimums.fix_tenant(its_key)
    end
end
