-- repair_single_keys: fixes the keys of which a cohort has one each: settings, counters, indexes by time.

local WORDS = { ["higher-first"] = true, ["lower-first"] = true, ["capacity"] = true, ["free"] = true }

local function is_setting(value, name)
    if name == "for_claims" then
        return true -- made again once the others are sound
    elseif name == "limits" then -- words "pattern=number"
        return string.gsub(value, "%S+=%d+ *", "") == ""
    elseif name == "reserve" then -- words "pattern:class=reserve"
        return string.gsub(value, "[^%s:]+:[%w_-]+=%d+%%? *", "") == ""
    elseif type(settings_in_force.default_of(name)) == "string" then
        return WORDS[value]
    end
    return sound.is_number(value)
end

-- Has the text by which claims go say what the settings say. Its last word is the revision at their last change.
local function fix_words_for_claims()
    local found = redis.call("HGET", key.settings, "for_claims")
    local words = settings_in_force.words_for_claims()
    local has_changed = found or redis.call("HEXISTS", key.settings, "priority_reversed") == 1
    if has_changed and string.match(found or "", "^(.*) %d+$") ~= string.match(words, "^(.*) %d+$") then
        redis.call("HSET", key.settings, "for_claims", words)
        spoiled.record("for_claims of " .. key.settings .. ", made again of the settings")
    end
end

-- Gives types the limits that the setting `limits` says, if they have none.
local function fix_limits(limits)
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

-- Fixes what holds back types: the limits are those of the settings, and key `heads` says that there are any.
local function fix_type_rules()
    local reserve = redis.call("HGET", key.settings, "reserve") or ""
    sound.keep_fields(key.type_rules, function(words, type)
        return string.find(words, "^limit=%d+[ %l]*$") or words == "paused" or (type == "!" and words == reserve)
    end)
    if string.find(reserve, "%S") and redis.call("HEXISTS", key.type_rules, "!") == 0 then
        type_changes.reserve("", reserve)
        spoiled.record("the reserves, set to what the settings say")
    end
    fix_limits(redis.call("HGET", key.settings, "limits") or "")
    if redis.call("EXISTS", key.type_rules) == 1 then
        local has_reserves = redis.call("HEXISTS", key.type_rules, "!") == 1
        redis.call("HSET", key.heads, "!", has_reserves and protocol.HAS_RESERVES or protocol.HAS_RULES)
    end
end

function repair_single_keys.fix()
    for _, kind in ipairs(protocol.KINDS) do
        if not kind.of_each then
            sound.has_type(key.base .. kind.name, kind.kind)
        end
    end
    sound.keep_fields(key.counters, sound.is_whole)
    sound.keep_fields(key.durations, sound.is_number)
    sound.keep_fields(key.batched, sound.is_whole)
    sound.keep_fields(key.waiting_calls, sound.is_whole)
    sound.keep_fields(key.settings, is_setting)
    for _, name in ipairs(redis.call("HKEYS", key.conf)) do
        local own = redis.call("HGET", key.conf, name)
        if is_setting(own, name) and redis.call("HSETNX", key.settings, name, own) == 1 then
            spoiled.record(name .. " of " .. key.settings .. ", set to what app.conf said last")
        end
    end
    fix_words_for_claims()
    sound.keep_fields(key.kept_lanes, function(_, place)
        return string.find(place, "^%S+ %l+%.%d%d?$")
    end)
    fix_type_rules()
    repair_jobs.fix_times(key.scheduled, "patient", "enqueued")
    repair_jobs.fix_times(key.expires, "expires")
    repair_jobs.fix_times(key.untold, "ended")
    local spoilt = redis.call("ZRANGEBYSCORE", key.rates, "(2e18", "+inf", "LIMIT", 0, repair_jobs.MOST_JOBS)
    for _, its_key in ipairs(spoilt) do
        redis.call("ZREM", key.rates, its_key)
        spoiled.record("the time of " .. its_key .. " in " .. key.rates)
    end
    local claim_number = redis.call("GET", key.claim_number)
    if claim_number and not sound.is_whole(claim_number) then
        sound.set_aside(key.claim_number)
    end
end
