-- single_keys: mends the keys of which a cohort has one each: settings, counters, indexes by time.
-- @include generated/kinds.lua
-- @include generated/settings.lua
-- @include jobs/has_rules.lua
-- @include placing/type_changes.lua
-- @include repair/jobs.lua

local WORDS = { ["higher-first"] = true, ["lower-first"] = true, ["capacity"] = true, ["free"] = true }

local function is_setting(value, name)
    if name == "limits" then -- words "pattern=number"
        return string.gsub(value, "%S+=%d+ *", "") == ""
    elseif name == "reserve" then -- words "pattern:class=reserve"
        return string.gsub(value, "[^%s:]+:[%w_-]+=%d+%%? *", "") == ""
    elseif type(default_of(name)) == "string" then
        return WORDS[value]
    end
    return is_number(value)
end

-- Gives types the limits that the setting `limits` says, if they have none.
local function mend_limits(limits)
    local types, is_any_lacking = {}, false
    for type in string.gmatch(limits, "%f[^%s%z]type%%3A(%S+)=%d+") do
        types[#types + 1] = type
    end
    for nth, words in ipairs(#types > 0 and lanes.fields(key.type_rules, types) or {}) do
        if not string.find(words or "", "limit=", 1, true) then
            is_any_lacking = true
            spoiled.record("the limit of type " .. types[nth] .. ", set to what the settings say")
        elseif string.find(words, "counting", 1, true) and redis.call("SET", key.recount, 0, "NX") then
            spoiled.record(key.recount .. ", without which the limit of type " .. types[nth] .. " was not counted")
        end
    end
    if is_any_lacking then
        type_changes.change("", limits)
    end
end

-- Mends what holds back types: the limits are those of the settings, and key `heads` says that there are any.
local function mend_type_rules()
    local reserve = redis.call("HGET", key.settings, "reserve") or ""
    keep_fields(key.type_rules, function(words, type)
        return string.find(words, "^limit=%d+[ %l]*$") or words == "paused" or (type == "!" and words == reserve)
    end)
    if string.find(reserve, "%S") and redis.call("HEXISTS", key.type_rules, "!") == 0 then
        type_changes.reserve("", reserve)
        spoiled.record("the reserves, set to what the settings say")
    end
    mend_limits(redis.call("HGET", key.settings, "limits") or "")
    if redis.call("EXISTS", key.type_rules) == 1 then
        local has_reserves = redis.call("HEXISTS", key.type_rules, "!") == 1
        redis.call("HSET", key.heads, "!", has_reserves and protocol.HAS_RESERVES or protocol.HAS_RULES)
    end
end

local function mend_single_keys()
    for _, kind in ipairs(KINDS) do
        if not kind.of_each then
            has_type(base .. kind.name, kind.kind)
        end
    end
    keep_fields(key.counters, is_whole)
    keep_fields(key.durations, is_number)
    keep_fields(key.batched, is_whole)
    keep_fields(key.waiting_calls, is_whole)
    keep_fields(key.settings, is_setting)
    for _, name in ipairs(redis.call("HKEYS", key.conf)) do
        local own = redis.call("HGET", key.conf, name)
        if is_setting(own, name) and redis.call("HSETNX", key.settings, name, own) == 1 then
            spoiled.record(name .. " of " .. key.settings .. ", set to what app.conf said last")
        end
    end
    keep_fields(key.kept_lanes, function(_, place)
        return string.find(place, "^%S+ %l+%.%d%d?$")
    end)
    mend_type_rules()
    mend_times(key.scheduled, "patient", "enqueued")
    mend_times(key.expires, "expires")
    mend_times(key.untold, "ended")
    for _, its_key in ipairs(redis.call("ZRANGEBYSCORE", key.rates, "(2e18", "+inf", "LIMIT", 0, MOST_JOBS)) do
        redis.call("ZREM", key.rates, its_key)
        spoiled.record("the time of " .. its_key .. " in " .. key.rates)
    end
    local claim_number = redis.call("GET", key.claim_number)
    if claim_number and not is_whole(claim_number) then
        set_aside(key.claim_number)
    end
end
