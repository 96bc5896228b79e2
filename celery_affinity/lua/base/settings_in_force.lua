-- settings_in_force: reads and writes settings. Key `conf` has what an app.conf said last, key `settings` what counts:
-- a change at run time stands there until it is reset, or until app.conf's own value changes.
local MOST_EXACT = 2 ^ 53 -- up to this number, each whole number differs from the next

local read_when_needed = {
    __index = function(settings, name)
        local value = redis.call("HGET", key.settings, name)
        settings[name] = tonumber(value) or value or defaults.OF[name]
        return settings[name]
    end,
}

-- Returns the settings as a table: name -> value. Each value is read from Redis when it is first needed. The table is
-- reused by the next call of this function, because a new table for each release costs more.
local settings
function settings_in_force.read()
    settings = settings or setmetatable({}, read_when_needed) -- Valkey forbids this while the library is loaded
    for name in next, settings do
        settings[name] = nil
    end
    return settings
end

local meanings, by_words = memo.cache(), memo.cache() -- of texts with a time, and of texts without

-- RETURNS the settings that words say, by name; those of no text have their defaults.
local function read_words(text)
    local found, words = { standings = memo.cache() }, string.gmatch(text, "%S+")
    for _, name in ipairs(defaults.FOR_A_CLAIM) do
        local word, default = words(), defaults.OF[name]
        found[name] = type(default) == "string" and word or tonumber(word) or default
    end
    found.most_rarity = score.rarity(1, found)
    return found
end

-- RETURNS what field `for_claims` says: texts that differ in their time alone say the same.
local function meaning_of(text)
    local words = string.match(text, "^(.*) %d+$") or text
    return by_words.of[words] or memo.keep(by_words, words, read_words(words))
end

-- RETURNS the settings by which a claim chooses that has a choice of jobs: a table for many calls, which also keeps
-- what `best_heads` makes of them, and the points of a type with one slot (`most_rarity`). A change writes them as one
-- text, so that a claim reads one field. RETURNS that text as well: a change of slots makes another one, which says
-- the same settings.
function settings_in_force.for_a_claim()
    local text = redis.call("HGET", key.settings, "for_claims") or ""
    return meanings.of[text] or memo.keep(meanings, text, meaning_of(text)), text
end

-- RETURNS that text, of the settings as they are now. `last`: the text so far, false or nil for none. The last word is
-- the time, µs, and greater than in any text before: what is kept of slots and settings holds for one text.
function settings_in_force.words_for_claims(last)
    local words = {}
    for i, value in ipairs(redis.call("HMGET", key.settings, unpack(defaults.FOR_A_CLAIM))) do
        words[i] = value and corrupt.is_word(value) and value or tostring(defaults.OF[defaults.FOR_A_CLAIM[i]])
    end
    local before = tonumber(string.match(last or "", " (%d+)$")) or 0
    before = before < MOST_EXACT and before or 0
    words[#words + 1] = string.format("%.0f", math.max(before + 1, call.now_us))
    return table.concat(words, " ")
end

-- Writes a setting; nil is its default. The limits of keys have a revision of their own: with each change of these, all
-- keys for which jobs wait are renewed (`recheck` in gate.lua).
local function put(name, value)
    if hooks.setting_changes(name, value) then
        redis.call("HINCRBY", key.settings, "limits_revision", 1)
    end
    hash.write(key.settings, name, value)
end

-- Settings, or the slots of a type, have changed: what claims keep of them holds no more.
function settings_in_force.renew_for_claims()
    put("for_claims", settings_in_force.words_for_claims(redis.call("HGET", key.settings, "for_claims")))
end

-- Counts a change. Jobs carry priorities in the order of their app.conf: another order at run time reverses them all.
-- RETURNS the revision of the settings.
local function count_change()
    local order = redis.call("HGET", key.settings, "priority_order") or defaults.OF.priority_order
    local own = redis.call("HGET", key.conf, "priority_order") or defaults.OF.priority_order
    put("priority_reversed", order ~= own and 1 or 0)
    if hooks.settings_have_changed() then
        redis.call("HINCRBY", key.settings, "limits_revision", 1)
    end
    local revision = redis.call("HINCRBY", key.settings, "revision", 1)
    settings_in_force.renew_for_claims()
    return revision
end

-- Adopts what the app.conf of `app` says: `given` is name, value, ..., from `first` on.
-- RETURNS the names of settings to which another app, or another version of this one, gave other values.
function settings_in_force.adopt(app, given, first)
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
        count_change()
    end
    return replaced
end

-- Keeps what the app.conf of `app` says, since a worker of it lives.
function settings_in_force.keep(app)
    redis.call("EXPIRE", key.conf_of(app), protocol.CONF_KEPT_S)
end

-- Changes settings at run time: `given` is name, value, ...; "" resets a setting to what app.conf said last.
-- RETURNS the revision of the settings.
function settings_in_force.change(given)
    for i = 1, #given, 2 do
        local name, value = given[i], given[i + 1]
        local own = redis.call("HGET", key.conf, name)
        put(name, value ~= "" and value or own or nil)
        redis.call("HDEL", key.settings, protocol.SETTING_RESET .. name)
    end
    return count_change()
end
