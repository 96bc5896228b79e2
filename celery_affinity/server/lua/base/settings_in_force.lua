-- knobs: the settings in force. `conf` has what an app.conf said last, `settings` what counts: a change at run time
-- stands there until it is reset, or until app.conf's own value changes.
local knobs = {}

local function put(name, value)
    redis.call("HSET", key.settings, name, value)
end

-- Jobs carry priorities as their app's own order has them: another order at run time turns them all.
local function note_change()
    local order = redis.call("HGET", key.settings, "priority_order") or default_of("priority_order")
    local own = redis.call("HGET", key.conf, "priority_order") or default_of("priority_order")
    put("turned", order ~= own and 1 or 0)
    return redis.call("HINCRBY", key.settings, "revision", 1)
end

-- Takes what the app.conf of `app` says: `given` is name, value, ..., from `first` on.
-- RETURNS the names of settings that another app, or another version of this one, had otherwise.
function knobs.take(app, given, first)
    local replaced, changed = {}, false
    for i = first, #given, 2 do
        local name, value = given[i], given[i + 1]
        local own = redis.call("HGET", key.conf_of(app), name)
        local last = redis.call("HGET", key.conf, name)
        local in_force = redis.call("HGET", key.settings, name)
        local is_news = own and own ~= value or not own and last ~= value
        if is_news then
            redis.call("HSET", key.conf, name, value)
            if own or in_force == last then
                put(name, value)
            end
            if last and last ~= value then
                replaced[#replaced + 1] = name
            end
            changed = true
        end
        if own ~= value then
            redis.call("HSET", key.conf_of(app), name, value)
        end
    end
    if changed then
        note_change()
    end
    return replaced
end

-- A worker of `app` lives.
function knobs.keep(app)
    redis.call("EXPIRE", key.conf_of(app), protocol.CONF_KEPT_S)
end

-- Changes settings at run time: `given` is name, value, ...; "" resets one to what app.conf said last.
-- RETURNS the revision of the settings.
function knobs.change(given)
    for i = 1, #given, 2 do
        local name, value = given[i], given[i + 1]
        local own = redis.call("HGET", key.conf, name)
        if value ~= "" then
            put(name, value)
        elseif own then
            put(name, own)
        else
            redis.call("HDEL", key.settings, name)
        end
    end
    return note_change()
end
