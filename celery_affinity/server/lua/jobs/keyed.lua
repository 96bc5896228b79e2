-- keyed: jobs with keys: at most so many of one key hold it, each from its claim to its release; or so many start
-- in a period, if the key is that of a rate. The others wait in sub-lanes, one for each key, type and lane, in the
-- order of the lane. While the key has room, the first job of each of its sub-lanes stands in the lane; while the key
-- has none, none does: so claims meet only jobs that may start. What a key holds is derived from claims: a crash frees
-- it with the claim.
-- Cost: some ten commands; O(log n) for each sub-lane of which another job stands: mostly one or two. A call has jobs
-- stand in MOST_OPENED sub-lanes at most, and leave their lanes for twice as many; a tick goes on with the others.
-- A reason for the length: all that writes the keys of keys, in one place.
-- @include base/clock.lua
-- @include generated/settings.lua
-- @include fleet/workers.lua
-- @include placing/lane_names.lua
-- @include placing/lanes.lua
-- @include jobs/find_by_task.lua
local keyed = {}

local known = {} -- key -> what this call has read of it, and wrote since: see `read_key`
local left_to_open, left_to_close = protocol.MOST_OPENED, 2 * protocol.MOST_OPENED -- sub-lanes, in this call
local is_unfinished = false -- whether a key has more sub-lanes than that, so that a tick goes on with it
local rules_known, task_of = {}, {} -- job id -> what this call has read: its rules, the name of its task
local limits, patience, are_some_paused -- what the settings say, and whether any pause is in force, once read

-- Is called before heads are read or written.
local function heads_change()
    if before_heads_change then
        before_heads_change()
    end
end

-- RETURNS the key of job `id`, the limit or rate that it states, and " order=1" if its retry goes first; nil if the
-- job's row does not say: then the job is as one without rules.
local function rules_of(id)
    if not rules_known[id] then
        local rules, name = unpack(redis.call("HMGET", key.job(id), "rules", "name"))
        rules_known[id], task_of[id] = rules, name or ""
    end
    local rules = rules_known[id]
    if rules then
        return string.match(rules, "^key=(%S+) %l+=(%S+)(.*)$")
    end
end

-- Keeps what the row of job `id` says, so that `rules_of` does not read it.
local function know(id, rules, name)
    rules_known[id], task_of[id] = rules, name or ""
end

-- RETURNS the number that the longest of the patterns in the setting `limits` says that matches the key, or nil.
local function limit_set(its_key)
    local longest, limit
    for pattern, number in string.gmatch(limits, "(%S+)=(%d+)") do
        local of_lua = string.gsub(string.gsub(pattern, "[-.%%]", "%%%0"), "%*", ".*")
        if (not longest or #pattern > longest) and string.find(its_key, "^" .. of_lua .. "$") then
            longest, limit = #pattern, tonumber(number)
        end
    end
    return limit
end

-- RETURNS the slowest of the rates in `stated`: how many may start at once, a period, µs, and the time after which one
-- start is free again, µs; nil if there is none.
local function rate_of(stated)
    local most, period_us
    for _, text in pairs(stated) do
        local its_most, its_period_us = string.match(text, "^(%d+)/(%d+)$")
        its_most, its_period_us = tonumber(its_most), tonumber(its_period_us)
        if its_most and (not most or its_most / its_period_us < most / period_us
            or (its_most / its_period_us == most / period_us and its_most < most)) then
            most, period_us = its_most, its_period_us
        end
    end
    return most, period_us, most and math.max(1, math.floor(period_us / most))
end

-- RETURNS how many jobs may hold the key: what the settings say, else the least that is stated.
local function limit_of(its_key, stated)
    if not limits then -- there may be thousands of types with limits
        limits = string.gsub(redis.call("HGET", key.settings, "limits") or "", "%f[^%s%z]type%%3A%S+", "")
    end
    local limit = limit_set(its_key)
    if not limit then
        limit = math.huge
        for _, text in pairs(stated) do
            limit = math.min(limit, tonumber(text) or limit)
        end
    end
    return limit
end

-- RETURNS what is known of a key, read once in a call. sublanes: "type lane" -> a table: type, lane, id and enqueue
-- time of its first job, the id of the job that stands in the lane ("" for none), and whether that is to be written;
-- stated: task -> limit or rate; retry: the job that the key is kept for; turn: the type that it is kept for, and
-- turn_began, turn_ends: since and until when, µs; had: type -> when it got the key last, µs; is_paused; and held: how many jobs hold it.
local function read_key(its_key)
    local found = known[its_key]
    if not found then
        if are_some_paused == nil then
            are_some_paused = redis.call("EXISTS", key.pauses) == 1
        end
        found = {
            sublanes = {}, stated = {}, had = {}, held = redis.call("ZCARD", key.held(its_key)),
            is_paused = are_some_paused and redis.call("HEXISTS", key.pauses, "key:" .. its_key) == 1,
        }
        local fields = redis.call("HGETALL", key.of_key(its_key))
        for i = 1, #fields, 2 do
            local name, value = fields[i], fields[i + 1]
            local type, lane = string.match(name, "^(%S+) (%S+)$")
            if type then
                local enqueued, first, standing = string.match(value, "^(%S+) (%S+) ?(%S*)$")
                found.sublanes[name] = {
                    type = type, lane = lane, enqueued = enqueued, first = first, standing = standing,
                }
                found.waits = true
            elseif name == "retry" then
                found.retry = value
            elseif name == "turn" then
                found.turn, found.turn_began, found.turn_ends = string.match(value, "^(%S+) (%d+) (%d+)$")
            elseif string.sub(name, 1, 1) == "@" then
                found.had[string.sub(name, 2)] = tonumber(value)
            else
                found.stated[name] = value
            end
        end
        known[its_key] = found
    end
    return found
end

-- RETURNS when all starts of a rate are free again, µs; at most a period from now, if the clock was set back.
local function free_at(its_key, period_us)
    return math.min(tonumber(redis.call("ZSCORE", key.rates, its_key)) or 0, clock.now_us + period_us)
end

-- RETURNS how many jobs more may hold the key, or start; for a key of a rate also when the next one may, µs, false if
-- one may now. The retry that the key is kept for counts as a holder, and may start itself unless the room is below 0.
local function room_of(its_key, its)
    if its.is_paused then
        return -math.huge
    end
    local most, period_us, interval_us = rate_of(its.stated)
    if most then
        local free_us = free_at(its_key, period_us)
        local ahead_us = math.max(0, free_us - clock.now_us)
        local room = math.min(most, math.floor((period_us - ahead_us) / interval_us))
        return room, room <= 0 and free_us - period_us + interval_us
    end
    return limit_of(its_key, its.stated) - its.held - (its.retry and 1 or 0)
end

-- Has a job wait out of its lane.
local function keep_back(id, type, lane, enqueued)
    redis.call("ZADD", key.kept_back(type, lane), enqueued, id)
    redis.call("HSET", key.kept_lanes, type .. " " .. lane, 1)
end

-- Has a job no longer wait out of its lane. RETURNS whether it did.
local function let_go(id, type, lane)
    local did_wait = redis.call("ZREM", key.kept_back(type, lane), id) == 1
    if did_wait and redis.call("EXISTS", key.kept_back(type, lane)) == 0 then
        redis.call("HDEL", key.kept_lanes, type .. " " .. lane)
    end
    return did_wait
end

-- RETURNS the enqueue time of job `id`, which waits in `sublane`; nil if somebody else wrote that it does.
local function enqueued_of(its_key, sublane, id)
    return id == sublane.first and sublane.enqueued
        or redis.call("ZSCORE", key.sublane(its_key, sublane.type, sublane.lane), id)
end

-- Has job `wanted` stand in the lane of `sublane` instead of the one that does; "" is no job. `heads`: of its type.
-- RETURNS the heads after that, which the caller writes.
local function let_stand(its_key, sublane, wanted, heads)
    local type, lane, standing = sublane.type, sublane.lane, sublane.standing
    if standing ~= "" then
        heads = lanes.without(standing, type, lane, heads)
        local enqueued = enqueued_of(its_key, sublane, standing)
        if enqueued then
            keep_back(standing, type, lane, enqueued)
        end
    end
    if wanted ~= "" then
        let_go(wanted, type, lane)
        heads = lanes.with(wanted, type, lane, enqueued_of(its_key, sublane, wanted), heads)
    end
    sublane.standing, sublane.is_changed = wanted, true
    return heads
end

-- Forgets a key for which no job waits any more; all of it, if none holds the key either.
local function forget(its_key, its)
    if its.waits then
        redis.call("ZREM", key.waiting_keys, its_key)
        redis.call("ZREM", key.due_keys, its_key)
        its.waits = false
    end
    if its.held == 0 and not its.retry then
        for task in pairs(its.stated) do
            redis.call("HDEL", key.of_key(its_key), task) -- a producer has no right to delete keys
        end
        for type in pairs(its.had) do
            redis.call("HDEL", key.of_key(its_key), "@" .. type)
        end
        its.stated, its.had = {}, {}
    end
end

-- RETURNS whether no pause and no limit holds back a type.
local function is_open(type)
    local rule, pause_of_all = unpack(redis.call("HMGET", key.type_rules, type, "*"))
    return not pause_of_all and (not rule or string.find(rule, "^limit=%d+$") ~= nil)
end

-- RETURNS how long a type waits for a key that others get before it has its turn, µs; 0: for ever.
local function patience_us()
    patience = patience or read_settings().key_patience_us
    return patience
end

-- Records that a type has had the key, or its turn.
local function record_had(its_key, its, type)
    redis.call("HSET", key.of_key(its_key), "@" .. type, clock.now)
    its.had[type] = clock.now_us
end

local function end_turn(its_key, its)
    redis.call("HDEL", key.of_key(its_key), "turn")
    its.turn = nil
end

-- Has a turn end that is over, or in which nobody waits. Else a tick looks at the key when it is over.
local function end_turn_in_vain(its_key, its)
    local began_us, ends_us, waits = tonumber(its.turn_began), tonumber(its.turn_ends), false
    for _, sublane in pairs(its.sublanes) do
        waits = waits or sublane.type == its.turn
    end
    if not waits or ends_us <= clock.now_us or began_us > clock.now_us then -- the clock may have been set back
        record_had(its_key, its, its.turn)
        end_turn(its_key, its)
    elseif ends_us < (tonumber(redis.call("ZSCORE", key.due_keys, its_key)) or math.huge) then
        redis.call("ZADD", key.due_keys, its.turn_ends, its_key)
    end
end

-- Job `id` of `type` held the key: keeps it for the type that has waited longest while others got it, if that is too
-- long. A type that no slot serves, or that is held back, loses its turn: it waits as if it had just had the key.
local function give_turn(its_key, its, its_type)
    local longest, since_us = nil, clock.now_us
    for _, sublane in pairs(its.sublanes) do
        local type = sublane.type
        local at_us = math.max(tonumber(sublane.enqueued) or clock.now_us, its.had[type] or 0)
        if at_us < since_us or (at_us == since_us and longest and type < longest) then
            longest, since_us = type, at_us
        end
    end
    if not longest or longest == its_type or patience_us() == 0 or clock.now_us - since_us < patience_us() then
        return
    end
    if (tonumber(redis.call("HGET", key.capacity, longest)) or 0) > 0 and is_open(longest) then
        its.turn, its.turn_began, its.turn_ends = longest, clock.now, clock.text(clock.now_us + patience_us())
        redis.call("HSET", key.of_key(its_key), "turn", longest .. " " .. clock.now .. " " .. its.turn_ends)
    else
        record_had(its_key, its, longest)
    end
end

-- Has a tick look at a key when its rate lets the next job start; `due_us` false: it does now.
local function look_again(its_key, due_us)
    if not due_us then
        redis.call("ZREM", key.due_keys, its_key)
    elseif due_us < (tonumber(redis.call("ZSCORE", key.due_keys, its_key)) or math.huge) then
        redis.call("ZADD", key.due_keys, clock.text(due_us), its_key)
        local is_soon = due_us - clock.now_us < protocol.TICK_US
        if is_soon and redis.call("ZRANGE", key.due_keys, 0, 0)[1] == its_key then
            workers.have_one_tick()
        end
    end
end

-- Writes what has changed of a key: its sub-lanes.
local function write_sublanes(its_key, its)
    local fields = {}
    for name, sublane in pairs(its.sublanes) do
        if sublane.is_changed then
            local text = sublane.enqueued .. " " .. sublane.first
            fields[#fields + 1], fields[#fields + 2] = name, sublane.standing == "" and text
                or text .. " " .. sublane.standing
            sublane.is_changed = false
        end
        if #fields >= protocol.MOST_UNPACKED then
            redis.call("HSET", key.of_key(its_key), unpack(fields))
            fields = {}
        end
    end
    if #fields > 0 then
        redis.call("HSET", key.of_key(its_key), unpack(fields))
    end
end

-- RETURNS `sublanes` by the age of their first jobs, the oldest first; and again the most urgent first.
local function by_age_and_urgency(sublanes)
    local texts, of_text = {}, {}
    for nth, sublane in ipairs(sublanes) do
        texts[nth] = sublane.enqueued .. " " .. sublane.first -- times have as many digits as each other
        of_text[texts[nth]] = sublane
    end
    table.sort(texts)
    local by_age, of_lane, by_urgency, names = {}, {}, {}, lane_names()
    for nth, text in ipairs(texts) do
        local sublane = of_text[text]
        by_age[nth] = sublane
        of_lane[sublane.lane] = of_lane[sublane.lane] or {}
        table.insert(of_lane[sublane.lane], sublane)
    end
    for nth = #names, 1, -1 do
        for _, sublane in ipairs(of_lane[names[nth]] or {}) do
            by_urgency[#by_urgency + 1] = sublane
        end
    end
    return by_age, by_urgency
end

-- RETURNS those of `sublanes` that gain another job now: of more than the call may change, the oldest ones and the most
-- urgent, so that neither have to wait for a tick.
local function opened_now(sublanes)
    if #sublanes > left_to_open then
        local some, is_in = {}, {}
        local by_age, by_urgency = by_age_and_urgency(sublanes)
        for nth = 1, math.ceil(left_to_open / 2) do
            for _, sublane in ipairs({ by_age[nth], by_urgency[nth] }) do
                some[#some + 1] = not is_in[sublane] and sublane or nil
                is_in[sublane] = true
            end
        end
        sublanes = some
    end
    left_to_open = math.max(0, left_to_open - #sublanes)
    return sublanes
end

-- RETURNS those of `sublanes` whose jobs leave their lanes now.
local function closed_now(sublanes)
    local number = math.min(#sublanes, left_to_close)
    left_to_close = left_to_close - number
    return number == #sublanes and sublanes or { unpack(sublanes, 1, number) }
end

-- Has some of the sub-lanes of a key change, as many as this call may. `wanted`: sub-lane -> the job that is to stand
-- in its lane, of those where another one does. A tick goes on with the others; until then no job that stands in vain
-- starts (`may_start`). RETURNS those that change.
local function changed_now(its_key, wanted)
    local opened, closed = {}, {}
    for sublane, job in pairs(wanted) do
        local some = job == "" and closed or opened
        some[#some + 1] = sublane
    end
    local number = #opened + #closed
    local changed = closed_now(closed)
    for _, sublane in ipairs(opened_now(opened)) do
        changed[#changed + 1] = sublane
    end
    if #changed < number then
        is_unfinished = true
        if redis.call("ZADD", key.due_keys, clock.now, its_key) == 1 then
            workers.have_one_tick()
        end
    end
    return changed
end

-- RETURNS whether a key that has room for so many jobs has it for those of a type: the last place may be another's turn.
local function has_room_for_type(type, room, its)
    return room > 1 or (room == 1 and (not its.turn or its.turn == type))
end

-- Brings the lanes up to date with what the key has room for. `gains`: whether types that gain a job are to be filled.
local function settle(its_key, gains)
    local its = read_key(its_key)
    if its.turn then
        end_turn_in_vain(its_key, its)
    end
    if not next(its.sublanes) then
        forget(its_key, its)
        return
    end
    local room, due_us = room_of(its_key, its)
    if not gains and due_us ~= nil and redis.call("ZSCORE", key.due_keys, its_key) then
        room, due_us = 0, nil -- a rate that lets no job start goes on so until a tick says otherwise
    end
    if due_us ~= nil then
        look_again(its_key, due_us)
    end
    local wanted = {}
    for _, sublane in pairs(its.sublanes) do
        local job = has_room_for_type(sublane.type, room, its) and sublane.first or ""
        if its.retry then
            job = room >= 0 and enqueued_of(its_key, sublane, its.retry) and its.retry or ""
        end
        wanted[sublane] = job ~= sublane.standing and job or nil
    end
    local before, after = {}, {} -- type -> its heads
    local changed = next(wanted) and changed_now(its_key, wanted) or {}
    if #changed > 0 then
        heads_change()
    end
    for _, sublane in ipairs(changed) do
        local type = sublane.type
        before[type] = before[type] or redis.call("HGET", key.heads, type) or ""
        after[type] = let_stand(its_key, sublane, wanted[sublane], after[type] or before[type])
        moved[type] = moved[type] or (gains and wanted[sublane] ~= "")
    end
    for type, heads in pairs(after) do
        if heads ~= before[type] then
            lanes.rewrite(type, heads, before[type])
        end
    end
    write_sublanes(its_key, its)
end

-- As `settle`, of a key of which others wrote something: what was read of it counts no more.
function keyed.settle_again(its_key)
    known[its_key], limits, patience, are_some_paused = nil, nil, nil, nil
    read_key(its_key).waits = true
    settle(its_key, true)
end

-- RETURNS the number of changes that the limits have seen: the score in `waiting_keys` of a key that agrees with them.
local function revision()
    return redis.call("HGET", key.settings, "limits_revision") or "0"
end

-- Has a job wait. `fresh`: the job as it was published just now: then what it states counts for its task; else nil.
function keyed.enter(id, type, lane, enqueued, fresh)
    if fresh then
        know(id, fresh.rules, fresh.task_name)
    end
    local its_key, states = rules_of(id)
    if not its_key then
        lanes.add(id, type, lane, enqueued)
        moved[type] = true
        return
    end
    local its, name, task = read_key(its_key), type .. " " .. lane, "=" .. task_of[id]
    if its.stated[task] ~= states and (fresh or not its.stated[task]) then
        redis.call("HSET", key.of_key(its_key), task, states)
        its.stated[task] = states
    end
    redis.call("ZADD", key.sublane(its_key, type, lane), enqueued, id)
    if not its.waits then
        redis.call("ZADD", key.waiting_keys, "NX", revision(), its_key)
        its.waits = true
    end
    local sublane = its.sublanes[name] or { type = type, lane = lane, standing = "" }
    its.sublanes[name] = sublane
    local enqueued_us, first_us = tonumber(enqueued), tonumber(sublane.enqueued)
    if not first_us or enqueued_us < first_us or (enqueued_us == first_us and id < sublane.first) then
        sublane.first, sublane.enqueued, sublane.is_changed = id, enqueued, true
    end
    settle(its_key, true)
    if sublane.standing ~= id then
        keep_back(id, type, lane, enqueued)
    end
end

-- Removes a job, which is in its lane no more, from its sub-lane. The caller settles.
local function remove(its_key, its, id, type, lane)
    local name = type .. " " .. lane
    local place, sublane = key.sublane(its_key, type, lane), its.sublanes[name]
    redis.call("ZREM", place, id)
    if sublane and sublane.standing == id then
        sublane.standing, sublane.is_changed = "", true
    end
    if sublane and sublane.first == id then
        local first, enqueued = unpack(redis.call("ZRANGE", place, 0, 0, "WITHSCORES"))
        if first then
            sublane.first, sublane.enqueued, sublane.is_changed = first, enqueued, true
        else
            redis.call("HDEL", key.of_key(its_key), name)
            its.sublanes[name] = nil
        end
    end
end

-- Job `id` waits no more. If its key was kept for it, the next tick fills what others of the key gain: this script may
-- fill no slots.
function keyed.leave(id, type, lane)
    heads_change()
    if not let_go(id, type, lane) then
        lanes.remove(id, type, lane)
        moved[type] = moved[type] or false
    end
    local its_key = rules_of(id)
    if not its_key then
        return
    end
    local its = read_key(its_key)
    remove(its_key, its, id, type, lane)
    if its.retry == id then
        redis.call("HDEL", key.of_key(its_key), "retry")
        redis.call("ZADD", key.due_keys, clock.now, its_key)
        its.retry, its.waits = nil, true
    end
    settle(its_key, false)
end

-- RETURNS whether what a key has room for lets job `id`, which stands in its lane, start. Of a key with very many
-- sub-lanes jobs may stand there in vain until a tick.
local function has_room_for(id, its_key, its)
    local room, due_us = room_of(its_key, its)
    if due_us ~= nil then -- no setting changes a rate: what stands may start, but for such jobs
        return not (due_us and redis.call("ZSCORE", key.due_keys, its_key))
    elseif its.retry then
        return its.retry == id and room >= 0
    end
    return has_room_for_type(its.turn and redis.call("HGET", key.job(id), "type"), room, its)
end

-- RETURNS whether job `id`, which stands in its lane, may start. If not, since the limit was lowered just now, it does
-- not stand there any more.
function keyed.may_start(id)
    local its_key = rules_of(id)
    local its = its_key and read_key(its_key)
    if not its_key or has_room_for(id, its_key, its) then
        return true
    end
    heads_change()
    local type, lane, enqueued = unpack(redis.call("HMGET", key.job(id), "type", "lane", "enqueued"))
    local sublane = type and lane and its.sublanes[type .. " " .. lane]
    if sublane and sublane.standing == id then -- first: the call may not get to it
        local heads = redis.call("HGET", key.heads, type) or ""
        lanes.rewrite(type, let_stand(its_key, sublane, "", heads), heads)
        moved[type] = moved[type] or false
    end
    settle(its_key, false)
    if type and lane and redis.call("ZSCORE", key.lane(type, lane), id) then -- somebody deleted that it stands there
        lanes.remove(id, type, lane)
        keep_back(id, type, lane, enqueued or clock.now)
        moved[type] = moved[type] or false
    end
    return false
end

-- Job `id`, which was popped from its lane, was claimed: it holds its key, or took one of the starts of a rate.
function keyed.hold(id, type, lane, fence)
    local its_key = rules_of(id)
    if not its_key then
        return
    end
    local its = read_key(its_key)
    remove(its_key, its, id, type, lane)
    local most, period_us, interval_us = rate_of(its.stated)
    if most then
        local free_us = math.max(free_at(its_key, period_us), clock.now_us)
        redis.call("ZADD", key.rates, clock.text(free_us + interval_us), its_key)
    else
        redis.call("ZADD", key.held(its_key), fence, id)
        its.held = its.held + 1
        if its.turn == type then
            end_turn(its_key, its)
            redis.call("ZADD", key.due_keys, clock.now, its_key) -- of a higher limit, others may have room now
        end
        for _, sublane in pairs(its.sublanes) do
            if sublane.type ~= type then
                record_had(its_key, its, type)
                break
            end
        end
    end
    if its.retry then
        redis.call("HDEL", key.of_key(its_key), "retry")
        redis.call("ZADD", key.due_keys, clock.now, its_key) -- others may have room now, of any type
        its.retry = nil
    end
    settle(its_key, false)
end

-- RETURNS a job of the key that waits, and is of the same task as job `id`: its retry; nil if there is none, or its
-- type is held back.
local function retry_of(id, its_key)
    local task = redis.call("HGET", key.job(id), "task") or ""
    for _, other in ipairs((find_by_task.some(task, 0, protocol.MOST_MOVES))) do
        local state, type = unpack(redis.call("HMGET", key.job(other), "state", "type"))
        local waits = other ~= id and (state == "pending" or state == "scheduled")
        if waits and type and rules_of(other) == its_key and is_open(type) then
            return other
        end
    end
end

-- The claim of job `id` of `type` was removed, whose row says `rules` and `name`.
function keyed.free(id, type, rules, name)
    know(id, rules, name)
    local its_key, _, keeps_order = rules_of(id)
    if its_key and redis.call("ZREM", key.held(its_key), id) == 1 then
        if known[its_key] then
            known[its_key].held = known[its_key].held - 1
        end
        local its = read_key(its_key)
        local retry = keeps_order ~= "" and retry_of(id, its_key)
        if retry then
            redis.call("HSET", key.of_key(its_key), "retry", retry)
            its.retry = retry
        elseif not its.turn and not its.retry then
            give_turn(its_key, its, type)
        end
        settle(its_key, true)
    end
end

-- Has the types be filled of which a job of the key stands in a lane.
local function gain_standing(its_key)
    for _, sublane in pairs(read_key(its_key).sublanes) do
        moved[sublane.type] = moved[sublane.type] or sublane.standing ~= ""
    end
end

-- Settles keys that the limits or the time may let go on, as many as one call may. RETURNS whether there may be more.
function keyed.recheck()
    local now = revision()
    local stale = redis.call("ZRANGEBYSCORE", key.waiting_keys, "-inf", "(" .. now, "LIMIT", 0, protocol.MOST_KEYS)
    local due = redis.call("ZRANGEBYSCORE", key.due_keys, "-inf", clock.now, "LIMIT", 0, protocol.MOST_KEYS)
    for _, its_key in ipairs(due) do
        redis.call("ZREM", key.due_keys, its_key)
    end
    for _, its_key in ipairs(stale) do
        redis.call("ZADD", key.waiting_keys, now, its_key)
        keyed.settle_again(its_key)
    end
    for _, its_key in ipairs(due) do
        gain_standing(its_key) -- who publishes beside a job that stands in vain leaves its own to this call
        keyed.settle_again(its_key)
        gain_standing(its_key) -- who made the key due may have settled it, and filled no slots
    end
    local free = redis.call("ZRANGEBYSCORE", key.rates, "-inf", clock.now, "LIMIT", 0, protocol.MOST_KEYS)
    for _, its_key in ipairs(free) do -- all starts of these are free again
        redis.call("ZREM", key.rates, its_key)
    end
    return is_unfinished or math.max(#stale, #due, #free) == protocol.MOST_KEYS
end
