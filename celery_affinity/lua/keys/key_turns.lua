-- key_turns: a key has room for one job, and jobs of several types wait for it. A release gives the key to a job that
-- its own worker serves, in the same call: so a type whose workers are busy at each such moment would never get the
-- key. Therefore the key is kept for the type that has waited longest, if that is longer than `key_patience`. This turn
-- of the type ends when one of its jobs has got the key, or after `key_patience`.

-- RETURNS whether jobs of `type` may take some of the `room` of a key: the last place may be kept for another type.
function key_turns.has_capacity_for_type(type, room, its)
    return room > 1 or (room == 1 and (not its.turn or its.turn == type))
end

-- RETURNS whether jobs of a type may start, which no pause and no limit of the type holds back.
function key_turns.is_open(type)
    local words, pause_of_all = unpack(redis.call("HMGET", key.type_rules, type, "*"))
    return not (pause_of_all or type_limits.is_closed(type_limits.read(words)))
end

-- Records that a type has had the key, or its turn.
local function record_had(its_key, its, type)
    redis.call("HSET", key.of_key(its_key), "@" .. type, call.now)
    its.had[type] = call.now_us
end

-- A job of `type` got the key: ends the turn of its type, and records that it had the key, if jobs of others wait.
function key_turns.end_turn(its_key, its, type)
    if its.turn == type then
        key_state.keep_for_nobody(its_key, its, "turn")
    end
    if its.tenant and fast_path.has_capacity(its.tenant, its_key, its, true) then
        return -- nobody waits for the key
    end
    for _, sublane in pairs(its.sublanes) do
        if sublane.type ~= type then
            record_had(its_key, its, type)
            break
        end
    end
end

-- RETURNS whether a job of the type waits that has the turn.
local function waits(its)
    for _, sublane in pairs(its.sublanes) do
        if sublane.type == its.turn then
            return true
        end
    end
    return false
end

-- Ends a turn in which no job got the key. `fills`: as `admission.reevaluate_all` has it.
local function end_in_vain(its_key, its, fills)
    record_had(its_key, its, its.turn)
    if fills then
        redis.call("HDEL", key.of_key(its_key), "turn")
        its.turn = nil
    else
        key_state.keep_for_nobody(its_key, its, "turn")
    end
end

-- Ends the turn of a key if its time is over. Else, if no job of the type waits, notes the key for `end_all_in_vain`,
-- which ends the turn later in this call unless such a job has come by then; and if one waits, has a tick look at the
-- key when the time is over. `fills`: as `admission.reevaluate_all` has it.
function key_turns.end_turn_unused(its_key, its, fills)
    local began_us, ends_us = tonumber(its.turn_began), tonumber(its.turn_ends)
    if ends_us <= call.now_us or began_us > call.now_us then -- the clock may have been set back
        end_in_vain(its_key, its, fills)
    elseif not waits(its) then
        local keys = key_state.cache()
        keys.in_vain = keys.in_vain or {}
        keys.in_vain[its_key] = true
    elseif ends_us < (tonumber(redis.call("ZSCORE", key.due_keys, its_key)) or math.huge) then
        redis.call("ZADD", key.due_keys, its.turn_ends, its_key)
    end
end

-- No further job comes in this call: ends the turns of types of which still no job waits, and has their keys renewed.
function key_turns.end_all_unused(fills)
    local keys = key_state.cache()
    if not keys.in_vain then
        return
    end
    for its_key in pairs(keys.in_vain) do
        local its = key_state.read(its_key)
        if its.turn and not waits(its) then
            end_in_vain(its_key, its, fills)
            admission.reevaluate_soon(its_key)
        end
    end
    keys.in_vain = false
end

-- A job of `its_type` has freed the key: gives the turn to the type that has waited longest while others got the key,
-- if that was longer than the patience. A type that no slot serves, or that a pause or limit holds back, loses its
-- turn: it waits as if it had had the key just now.
function key_turns.give_turn(its_key, its, its_type)
    local longest, since_us = nil, call.now_us
    for _, sublane in pairs(its.sublanes) do
        local type = sublane.type
        local at_us = math.max(tonumber(sublane.enqueued) or call.now_us, its.had[type] or 0)
        if at_us < since_us or (at_us == since_us and longest and type < longest) then
            longest, since_us = type, at_us
        end
    end
    if not longest or longest == its_type then
        return
    end
    local patience_us = settings_in_force.read().key_patience_us -- 0: no type ever has a turn
    if patience_us == 0 or call.now_us - since_us < patience_us then
        return
    end
    if (tonumber(redis.call("HGET", key.capacity, longest)) or 0) > 0 and key_turns.is_open(longest) then
        its.turn, its.turn_began, its.turn_ends = longest, call.now, call.text(call.now_us + patience_us)
        redis.call("HSET", key.of_key(its_key), "turn", longest .. " " .. call.now .. " " .. its.turn_ends)
    else
        record_had(its_key, its, longest)
    end
end
