-- single_keys: mends the keys of which a cohort has one each: settings, counters, indexes by time.
-- @include generated/kinds.lua
-- @include generated/settings.lua
-- @include repair/jobs.lua

local WORDS = { ["higher-first"] = true, ["lower-first"] = true, ["capacity"] = true, ["free"] = true }

local function is_setting(value, name)
    if type(default_of(name)) == "string" then
        return WORDS[value]
    end
    return is_number(value)
end

local function mend_single_keys()
    for _, kind in ipairs(KINDS) do
        if not kind.of_each then
            has_type(base .. kind.name, kind.kind)
        end
    end
    keep_fields(key.counters, is_whole)
    keep_fields(key.durations, is_number)
    keep_fields(key.settings, is_setting)
    for _, name in ipairs(redis.call("HKEYS", key.conf)) do
        local own = redis.call("HGET", key.conf, name)
        if is_setting(own, name) and redis.call("HSETNX", key.settings, name, own) == 1 then
            spoiled.record(name .. " of " .. key.settings .. ", set to what app.conf said last")
        end
    end
    mend_times(key.scheduled, "enqueued")
    mend_times(key.expires, "expires")
    mend_times(key.untold, "ended")
    local claim_number = redis.call("GET", key.claim_number)
    if claim_number and not is_whole(claim_number) then
        set_aside(key.claim_number)
    end
end
