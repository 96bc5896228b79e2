-- settings: the settings in force, and the limits among them.

-- settings_in_force: reads and writes settings. Hash `conf_last` has the values of the last app.conf. Hash `settings`
-- has the effective values. A change at run time is effective until it is reset, or until app.conf's own value changes.
local MAX_EXACT = 2 ^ 53 -- all integers up to this number are exact

local read_when_needed = {
    __index = function(settings, name)
        local value = redis.call("HGET", key.settings, name)
        settings[name] = tonumber(value) or value or defaults.OF[name]
        return settings[name]
    end,
}

-- Returns the settings as a table: name -> value. Each value is read from Redis when it is first needed. The table is
-- reused by the next invocation, because a new table per release costs more.
local settings
function settings_in_force.read()
    settings = settings or setmetatable({}, read_when_needed) -- Valkey forbids this while the library is loaded
    for name in next, settings do
        settings[name] = nil
    end
    return settings
end

local meanings, by_words = memo.cache(), memo.cache() -- by the string with its time, and by the string without

-- Returns the settings in `text`, by name. A missing or invalid value is replaced by its default.
local function read_words(text)
    local values, tokens = { standings = memo.cache() }, string.gmatch(text, "%S+")
    for _, name in ipairs(defaults.FOR_A_CLAIM) do
        local word, default = tokens(), defaults.OF[name]
        values[name] = type(default) == "string" and word or tonumber(word) or default
    end
    values.max_rarity = score.rarity(1, values)
    return values
end

-- Returns the settings in field `for_claims`. Strings that differ only in their time have the same settings.
local function meaning_of(text)
    local without_time = string.match(text, "^(.*) %d+$") or text
    return by_words.of[without_time] or memo.keep(by_words, without_time, read_words(without_time))
end

-- Returns the settings for a claim that must choose between jobs, and the string that contains them. A change of
-- settings writes them as one string, so that a claim reads only one field. A change of slots also writes a new string,
-- with the same settings. The table is shared by many invocations. It also caches the constant points of lanes,
-- and the points of a type with one slot (`max_rarity`).
function settings_in_force.read_for_claim()
    local text = redis.call("HGET", key.settings, "for_claims") or ""
    return meanings.of[text] or memo.keep(meanings, text, meaning_of(text)), text
end

-- Returns the string of the current settings. `last`: the previous string, or false or nil. The last token is the time
-- in µs, and is greater than in all earlier strings: values cached per string become invalid when slots or settings
-- change.
function settings_in_force.text_for_claims(last)
    local tokens = {}
    for i, value in ipairs(redis.call("HMGET", key.settings, unpack(defaults.FOR_A_CLAIM))) do
        tokens[i] = value and corrupt.is_word(value) and value or tostring(defaults.OF[defaults.FOR_A_CLAIM[i]])
    end
    local before = tonumber(string.match(last or "", " (%d+)$")) or 0
    before = before < MAX_EXACT and before or 0
    tokens[#tokens + 1] = string.format("%.0f", math.max(before + 1, call.now_us))
    return table.concat(tokens, " ")
end

-- Sets a setting; nil means its default. The limits of keys have a separate revision: after each change, all keys with
-- waiting jobs are re-evaluated (`recheck` in gate.lua).
local function put(name, value)
    if hooks.setting_changes(name, value) then
        redis.call("HINCRBY", key.settings, "limits_revision", 1)
    end
    hash.write(key.settings, name, value)
    call.tenants = false -- it may have been read before
end

-- Invalidates the values cached by claims, after a change of settings or of a type's slots.
function settings_in_force.renew_for_claims()
    put("for_claims", settings_in_force.text_for_claims(redis.call("HGET", key.settings, "for_claims")))
end

-- Increments the revision of the settings. Returns the revision. Jobs carry priorities in the order that their app.conf
-- sets. Another order at run time therefore reverses all priorities.
local function count_change()
    local order = redis.call("HGET", key.settings, "priority_order") or defaults.OF.priority_order
    local own = redis.call("HGET", key.conf_last, "priority_order") or defaults.OF.priority_order
    put("priority_reversed", order ~= own and 1 or 0)
    if hooks.settings_have_changed() then
        redis.call("HINCRBY", key.settings, "limits_revision", 1)
    end
    local revision = redis.call("HINCRBY", key.settings, "revision", 1)
    settings_in_force.renew_for_claims()
    return revision
end

-- Adopts settings from the app.conf of `app`. `given`: name, value, ..., from position `first`. Returns the names of
-- settings whose values, set by another app or another version of `app`, were replaced.
function settings_in_force.adopt(app, given, first)
    local replaced, changed = {}, false
    for i = first, #given, 2 do
        local name, value = given[i], given[i + 1]
        local own = redis.call("HGET", key.conf_by_app(app), name)
        local last = redis.call("HGET", key.conf_last, name)
        local in_force = redis.call("HGET", key.settings, name)
        local is_new = own and own ~= value or not own and last ~= value
        if is_new then
            redis.call("HSET", key.conf_last, name, value)
            if own or in_force == last then
                put(name, value)
            end
            if last and last ~= value then
                replaced[#replaced + 1] = name
            end
            changed = true
        end
        if own ~= value then
            redis.call("HSET", key.conf_by_app(app), name, value)
        end
    end
    if changed then
        count_change()
    end
    return replaced
end

-- Extends the expiry of the app.conf of `app`. Invoked while a worker of the app is alive.
function settings_in_force.keep(app)
    redis.call("EXPIRE", key.conf_by_app(app), protocol.CONF_KEPT_S)
end

-- Changes settings at run time. `given`: name, value, ...; "" resets a setting to its last value in app.conf. Returns
-- the revision of the settings.
function settings_in_force.change(given)
    for i = 1, #given, 2 do
        local name, value = given[i], given[i + 1]
        local own = redis.call("HGET", key.conf_last, name)
        put(name, value ~= "" and value or own or nil)
        redis.call("HDEL", key.settings, protocol.SETTING_RESET .. name)
    end
    return count_change()
end

-- limits: parses the setting `limits`. Its entries are percent-encoded and separated by spaces (settings/limits.py):
--   "pattern=number", "rate:pattern=N/US": limits of keys. The first matching entry applies.
--   "type:T=number": limit of a type.
-- In all functions, `text` can be nil.
local OF_A_TYPE = "%f[^%s%z]type%%3A(%S+)=(%d+)"

-- Returns an iterator over the limited types and their limits, as strings.
function limits.of_types(text)
    return string.gmatch(text or "", OF_A_TYPE)
end

-- Returns the first limited type at or after position `place` of `text`, and the position after its entry. Returns nil
-- if there is none.
function limits.next_type(text, place)
    local _, last, type = string.find(text, OF_A_TYPE, place)
    return type, last and last + 1
end

-- Returns the entries for keys. The entries for types are removed, because there can be thousands of types.
function limits.of_keys(text)
    local entries = string.gsub(text or "", "%f[^%s%z]type%%3A%S+ *", "")
    return string.match(entries, "^ *(.-) *$")
end
