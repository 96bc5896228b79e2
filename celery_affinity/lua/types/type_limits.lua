-- type_limits: blocks whole types: by a pause, or by a limit on the number of running jobs. The jobs of the type wait
-- in their lanes. A claim skips a closed type: it is paused, or its limit is reached.
-- Key `type_rules` has this data per type and for "*" (all types); its field "!" has the reserves (`reserves`). Field
-- "!" of key `heads` is set if any of these exist, so a claim, which reads heads anyway, can skip the lookup. The field
-- is also set for a worker preference (`placement`), which claims need.

local NO_LIMITS = {}

-- Returns a parsed field of key `type_rules`, as a table.
--   limit: a number, or nil.
--   is_full: true if the limit is reached.
--   is_being_counted: true while jobs older than the limit are being counted.
--   is_paused: true if the type is paused.
function type_limits.read(text)
    if not text then
        return {}
    end
    return {
        limit = tonumber(string.match(text, "limit=(%d+)")), is_full = string.find(text, "full", 1, true) ~= nil,
        is_being_counted = string.find(text, "counting", 1, true) ~= nil,
        is_paused = string.find(text, "paused", 1, true) ~= nil,
    }
end

function type_limits.is_closed(rule)
    return rule.is_full or rule.is_being_counted or rule.is_paused
end

-- Returns true if the running jobs of a type, once they are counted, reach its limit. `rule` stores this, because a
-- claim of many types cannot count the jobs of each.
local function is_full(type, rule)
    return rule.limit ~= nil and not rule.is_being_counted
        and rule.limit - redis.call("ZCARD", key.type_running(type)) <= 0 -- it can be a string
end

-- Returns `rule` as a field value, or "" if the type is not blocked.
function type_limits.in_words(rule)
    local value = (rule.limit and "limit=" .. rule.limit or "") .. (rule.is_full and " full" or "")
        .. (rule.is_being_counted and " counting" or "") .. (rule.is_paused and " paused" or "")
    return rule.limit and value or string.sub(value, 2) -- without a limit a type is neither full nor counted
end

-- Returns the value of field "!" of key `heads`, or false. A preference without other rules is stored there in full, so
-- that a claim does not read another key. HAS_SHARES at the end means that tenants have fair shares. Before it,
-- HAS_DUE_SETTINGS is followed by settings of `due_times` other than the defaults.
function type_limits.word()
    local reserve, preferred, shares, due_settings =
        unpack(redis.call("HMGET", key.type_rules, "!", placement.FIELD, fair_share.FIELD, due_times.FIELD))
    local number = redis.call("HLEN", key.type_rules) - (shares and 1 or 0) - (due_settings and 1 or 0)
    local word = reserve and protocol.HAS_RESERVES or number == 1 and preferred
        or number > 0 and protocol.HAS_TYPE_RULES
    local flags = (due_settings and protocol.HAS_DUE_SETTINGS .. due_settings or "")
        .. (shares and protocol.HAS_SHARES or "")
    return flags ~= "" and (word or "") .. flags or word
end

local meanings = memo.cache()

local function parsed(word)
    local rest, shares = string.gsub(word, "%" .. protocol.HAS_SHARES .. "$", "")
    local kinds, due_settings = string.match(rest, "^(.-)%" .. protocol.HAS_DUE_SETTINGS .. "(.*)$")
    kinds = kinds or rest
    return {
        kinds = kinds ~= "" and kinds, has_shares = shares == 1, due_settings = due_times.settings_in(due_settings),
    }
end

-- Returns `word`, field "!" of key `heads`, without what follows the rules of types, or false if nothing remains. Also
-- returns true if tenants have fair shares, and true if run times give jobs a head start, and records both.
function hooks.read_word(word)
    word = word or ""
    local meaning = meanings.of[word] or memo.keep(meanings, word, parsed(word))
    -- off: another client deleted the setting
    call.shares = meaning.has_shares and tenants.shares() and "on" or "off"
    call.due_settings = meaning.due_settings
    return meaning.kinds, call.shares == "on", meaning.due_settings.stretch > 0
end

-- Returns true if tenants have fair shares. Reads field "!" of key `heads` unless this invocation has read it.
function hooks.has_shares()
    if not call.shares then
        hooks.read_word(redis.call("HGET", key.heads, "!"))
    end
    return call.shares == "on"
end

function type_limits.write_heads_flag()
    hash.write(key.heads, "!", type_limits.word())
    call.shares, call.due_settings = false, false
end

-- Returns true if a result of `read_word` indicates pauses, limits or reserves. Otherwise it is false, or a value for
-- `placement.read`.
function type_limits.holds_back(word)
    return word == protocol.HAS_TYPE_RULES or word == protocol.HAS_RESERVES
end

-- Rewrites field "!" of key `heads` if its value can have changed.
--   were_added: true if fields of `type_rules` were added; the value changes unless it already indicates rules.
--   were_deleted: true if fields were deleted; the value can change if at most three fields remain.
local function fields_changed(were_added, were_deleted)
    local may_change = were_added and not type_limits.holds_back(hooks.read_word(redis.call("HGET", key.heads, "!")))
        or were_deleted and redis.call("HLEN", key.type_rules) < 4
    if may_change then
        type_limits.write_heads_flag()
    end
end

-- Writes the rules of types.
--   rules: type -> result of `read`.
--   was_closed: type -> true if it was closed; a type that is open again is filled (`call.to_fill`).
function type_limits.write_all(rules, was_closed)
    local fields, deleted = {}, {}
    for type, rule in pairs(rules) do
        local value = type_limits.in_words(rule)
        if value ~= "" then
            fields[#fields + 1], fields[#fields + 2] = type, value
        else
            deleted[#deleted + 1] = type
        end
        if was_closed[type] and not type_limits.is_closed(rule) then
            call.to_fill[type] = true
        end
    end
    chunked.call("HDEL", key.type_rules, deleted)
    fields_changed(chunked.call("HSET", key.type_rules, fields) > 0, #deleted > 0)
end

-- Writes a field of key `type_rules` that does not belong to a type; false deletes it.
function hooks.write_type_rule(name, value)
    if value then
        fields_changed(redis.call("HSET", key.type_rules, name, value) == 1 or name == placement.FIELD, false)
    else
        fields_changed(false, redis.call("HDEL", key.type_rules, name) == 1)
    end
end

-- Writes the field for fair shares or for settings of due times; nil or false deletes it.
function type_limits.write_flag(field, value)
    hash.write(key.type_rules, field, value)
    type_limits.write_heads_flag()
end

function type_limits.write(type, rule, was_closed)
    type_limits.write_all({ [type] = rule }, { [type] = was_closed })
end

-- Returns the open types of `types`, a table (type -> its limit), the result of `reserves.among`, the result of
-- `minimums.heads`, and the worker preference (`placement.read`). Removes closed types from `heads`.
--   word: result of `hooks.read_word`, or nil. If it has a preference, there are no other rules.
function hooks.open(types, heads, settings, is_ahead, word)
    if word and not type_limits.holds_back(word) then
        return types, NO_LIMITS, nil, nil, placement.read(word)
    end
    local open, limit_of = {}, {}
    local fields = hash.read(key.type_rules, { "*", "!", minimums.ANY, placement.FIELD, unpack(types) })
    local pause_of_all, text, has_minimum_heads, preferred = unpack(fields, 1, 4)
    for nth, type in ipairs(types) do
        local rule = type_limits.read(fields[nth + 4])
        if pause_of_all or type_limits.is_closed(rule) then
            heads[type] = nil
        else
            open[#open + 1], limit_of[type] = type, rule.limit
        end
    end
    return open, limit_of, reserves.among(open, text, settings, is_ahead), has_minimum_heads and minimums.heads(open),
        preferred and placement.read(preferred)
end

-- Counts the claim of job `id` for the limit of its type or the reserve of its class. Key `type_running` has these
-- claims with their lane numbers.
function type_limits.count(type, id, lane)
    redis.call("ZADD", key.type_running(type), lanes.number(lane), id)
    redis.call("HSET", key.job(id), "limited", 1, "more", 1)
end

-- Counts such a claim. Returns true if the type is now full.
function hooks.count(type, id, lane)
    type_limits.count(type, id, lane)
    local rule = type_limits.read(redis.call("HGET", key.type_rules, type))
    rule.is_full = is_full(type, rule)
    if rule.is_full then
        type_limits.write(type, rule, true)
    end
    return rule.is_full
end

-- Stops counting a removed claim. Jobs of the type may then start.
function type_limits.free(type, id)
    redis.call("ZREM", key.type_running(type), id)
    redis.call("HDEL", key.job(id), "limited")
    local value, text = unpack(redis.call("HMGET", key.type_rules, type, "!"))
    local rule = type_limits.read(value)
    if #reserves.concerning(text, type) > 0 then
        call.to_fill[type] = true
    end
    if rule.limit then
        local was_closed = type_limits.is_closed(rule)
        rule.is_full = is_full(type, rule)
        type_limits.write(type, rule, was_closed)
    end
end

-- type_changes: applies settings and pauses that block whole types (`type_rules`). A type with a new limit is closed
-- until its running jobs are counted. Ticks count them in steps; key `recount` has the position of the next step.

-- Sets the limit of the type with `rule`, nil for no limit. Returns true if ticks must count the claims of the type: it
-- had no limit, or this invocation cannot read its count (`may_count` is false).
local function set_limit(type, rule, limit, may_count)
    local is_new = limit and (not rule.limit or not may_count)
    -- Without a limit no claims are counted. Jobs that were counted end eventually.
    rule.is_being_counted = limit and (rule.is_being_counted or is_new) or false
    rule.limit = limit
    rule.is_full = is_full(type, rule)
    return is_new
end

-- Returns the limits of types in the setting `limits`: type -> its limit.
local function limits_in(text)
    local limit_of = {}
    for type, limit in limits.of_types(text) do
        limit_of[type] = limit
    end
    return limit_of
end

local function differing(old, new)
    local types = {}
    for type in pairs(old) do
        types[#types + 1] = not new[type] and type or nil
    end
    for type, limit in pairs(new) do
        types[#types + 1] = limit ~= old[type] and type or nil
    end
    return types
end

-- Applies a change of the setting `limits` from `before` to `now`. Returns true if the limits of keys change.
-- Cost: O(limits); there can be thousands.
function type_changes.change(before, now)
    local old, new = limits_in(before), limits_in(now)
    local types = differing(old, new)
    local rules, was_closed, is_any_new, counted = {}, {}, false, 0
    for nth, value in ipairs(hash.read(key.type_rules, types)) do
        local type, rule = types[nth], type_limits.read(value)
        rules[type], was_closed[type] = rule, type_limits.is_closed(rule)
        is_any_new = set_limit(type, rule, new[type], counted < protocol.MAX_FILLED) or is_any_new
        counted = counted + (rule.is_being_counted and 0 or 1)
    end
    type_limits.write_all(rules, was_closed)
    if is_any_new then
        redis.call("SET", key.recount, 0)
    elseif #types > 0 then
        redis.call("SET", key.recount, 0, "XX") -- restarts a count, whose position may be outdated
    end
    return limits.of_keys(before) ~= limits.of_keys(now)
end

-- Lets the caller fill all types with waiting jobs, up to MAX_RESUMED; the sync of each worker fills the others.
local function fill_all()
    local fields = redis.call("HSCAN", key.heads, 0, "COUNT", protocol.MAX_RESUMED)[2]
    for i = 1, math.min(#fields, 2 * protocol.MAX_RESUMED), 2 do -- HSCAN returns all fields of a small hash
        call.to_fill[fields[i]] = fields[i] ~= "!"
    end
end

-- Applies a change of the setting `reserve` from `before` to `now`.
function type_changes.reserve(before, now)
    if (before or "") == (now or "") then
        return
    end
    if string.find(now or "", "%S") then
        redis.call("HSET", key.type_rules, "!", now)
        type_limits.write_heads_flag()
        redis.call("SET", key.recount, 0)
    elseif redis.call("HDEL", key.type_rules, "!") == 1 then
        type_limits.write_heads_flag()
    end
    fill_all()
end

-- Pauses `type` ("*" for all types), or ends its pause.
function type_changes.pause(type, is_paused)
    local rule = type_limits.read(redis.call("HGET", key.type_rules, type))
    local was_closed = type_limits.is_closed(rule)
    rule.is_paused = is_paused
    type_limits.write(type, rule, was_closed)
    if type == "*" and not is_paused then
        fill_all()
    end
end

-- Counts a claim that is older than the limit or the reserve of its type. Returns true if the claim is newly counted.
--   rules: type -> its rule; missing rules are read and added.
--   text: the reserves.
local function count_claim(id, rules, text)
    local type, lane, is_limited = unpack(redis.call("HMGET", key.job(id), "type", "lane", "limited"))
    if not type or not lanes.is_lane(lane) or (is_limited and redis.call("ZSCORE", key.type_running(type), id)) then
        return false
    end
    rules[type] = rules[type] or type_limits.read(redis.call("HGET", key.type_rules, type))
    local is_counted = rules[type].limit or reserves.covers(reserves.concerning(text, type), lane)
    if is_counted then
        type_limits.count(type, id, lane)
    end
    return is_counted
end

-- Returns the position at which the next invocation continues: a worker, and a cursor in its claims.
local function position_of(worker, cursor)
    return redis.call("ZSCORE", key.joined, worker) .. " " .. worker .. " " .. cursor
end

-- Counts claims of up to MAX_COUNTED workers: examines about MAX_CLAIMS claims, and counts up to MAX_CLAIMS.
--   from: the start: the time at which a worker joined, or a result of `position_of`.
-- Returns the position for the next invocation, or nil if all claims are counted.
local function count_claims(from)
    local since, stopped_at, start_cursor = string.match(from, "^(%d+) ?(%S*) ?(%d*)$")
    local text, rules = redis.call("HGET", key.type_rules, "!"), {}
    local page, next_from = workers.joined(since or "0", protocol.MAX_COUNTED) -- no time: another client overwrote it
    local examined, counted, first = 0, 0, 1
    for nth, worker in ipairs(page) do
        first = worker == stopped_at and nth or first
    end
    for nth = first, #page do
        local worker, cursor = page[nth], page[nth] == stopped_at and start_cursor or "0"
        repeat
            if examined >= protocol.MAX_CLAIMS then
                return position_of(worker, cursor)
            end
            local next_cursor, claimed = unpack(redis.call("HSCAN", key.claims(worker), cursor, "COUNT",
                protocol.MAX_CLAIMS))
            for i = 1, #claimed, 2 do
                if counted == protocol.MAX_CLAIMS then -- HSCAN returns all of a small hash, to be read again
                    return position_of(worker, cursor)
                end
                examined, counted = examined + 1, counted + (count_claim(claimed[i], rules, text) and 1 or 0)
            end
            cursor = next_cursor
        until cursor == "0"
    end
    return next_from
end

-- Opens up to MAX_FILLED types that were closed while their claims were counted.
--   position: position in the setting `limits`.
-- Returns the position for the next invocation, or nil after the last type.
local function open_counted(position)
    local text, types = redis.call("HGET", key.settings, "limits") or "", {}
    while position and #types < protocol.MAX_FILLED do
        types[#types + 1], position = limits.next_type(text, position)
    end
    local rules, was_closed = {}, {}
    for nth, value in ipairs(hash.read(key.type_rules, types)) do
        local type, rule = types[nth], type_limits.read(value)
        if rule.is_being_counted then
            rule.is_being_counted = false
            rule.is_full = is_full(type, rule)
            rules[type], was_closed[type] = rule, true
        end
    end
    type_limits.write_all(rules, was_closed)
    return position
end

-- Continues to count claims, then opens the types that waited for the count. Returns true if there is more to do.
function type_changes.recount()
    local from = redis.call("GET", key.recount)
    if not from then
        return false
    end
    local position = tonumber(string.match(from, "^types (%d+)$"))
    local next_from = not position and count_claims(from)
    if not next_from then
        position = open_counted(position or 1)
        next_from = position and "types " .. position
    end
    if next_from then
        redis.call("SET", key.recount, next_from)
        return true
    end
    redis.call("UNLINK", key.recount)
    if redis.call("HEXISTS", key.type_rules, "!") == 1 then
        fill_all()
    end
    return false
end

-- limit_changes: begins and ends pauses, and does the work of ticks for keys and types.
-- A pause of a type, of a key or of all types lets no job of these start. Workers may hold unstarted jobs that were
-- claimed before the pause: control messages in their inboxes recall these jobs (`put_signs`).

-- Begins or ends the pause of `target`: "type:T", "key:K", or "*" for all types.
--   record: start, end and reason of the pause; nil ends the pause.
function limit_changes.pause(target, record)
    if record then
        redis.call("HSET", key.pauses, target, record)
        redis.call("HSET", key.settings, "has_pauses", 1)
        redis.call("ZADD", key.pause_signs, 0, target)
    else
        redis.call("HDEL", key.pauses, target)
        if redis.call("EXISTS", key.pauses) == 0 then
            redis.call("HDEL", key.settings, "has_pauses")
        end
        redis.call("ZREM", key.pause_ends, target)
        redis.call("ZREM", key.pause_signs, target)
    end
    redis.call("HINCRBY", key.settings, "revision", 1) -- workers check the revision and log the pauses
    local kind, name = string.match(target, "^(%l+):(.+)$")
    if kind == "key" then
        gate.reevaluate(name)
    else
        type_changes.pause(name or target, record ~= nil)
    end
end

-- Puts the control message of a pause into the inboxes of MAX_SIGNED workers. A worker reads it before the jobs in its
-- inbox. It returns the affected jobs that it has not started and whose fencing token is at most the message's token.
-- A claim does not name its key, so a pause of a key recalls all jobs with keys; unpaused ones are claimed again
-- immediately. Returns true if there can be more to do.
function limit_changes.put_signs()
    local target, joined_us = unpack(redis.call("ZRANGE", key.pause_signs, 0, 0, "WITHSCORES"))
    if not target then
        return false
    elseif not corrupt.is_word(target) then
        corrupt.remove(key.pause_signs, target)
        return true
    end
    local message = "\n" .. protocol.PAUSED_SIGN .. " " .. target .. " " .. (redis.call("GET", key.fence) or "0")
    local page, next_from = workers.joined(joined_us, protocol.MAX_SIGNED)
    for _, worker in ipairs(page) do
        redis.call("RPUSH", key.inbox(worker), message)
    end
    if next_from then
        redis.call("ZADD", key.pause_signs, next_from, target)
        return true
    end
    redis.call("ZREM", key.pause_signs, target)
    return redis.call("EXISTS", key.pause_signs) == 1
end

-- Does part of the work that no event triggers: admits jobs of rates, ends pauses, counts claims for new limits, and
-- sends control messages. Returns true if there can be more to do, and true if there can be any work at all.
function hooks.tick()
    local work_keys = {
        key.waiting_keys, key.rates, key.unlisted, key.recount, key.pause_ends, key.pause_signs, key.stop_orders,
    }
    if redis.call("EXISTS", unpack(work_keys)) == 0 then
        return false, false
    end
    local ended = redis.call("ZRANGEBYSCORE", key.pause_ends, "-inf", call.now, "LIMIT", 0, protocol.MAX_MOVES)
    for _, target in ipairs(ended) do
        limit_changes.pause(target)
    end
    local has_more_claims, has_more_signs = type_changes.recount(), limit_changes.put_signs()
    return hooks.recheck() or has_more_claims or has_more_signs or #ended == protocol.MAX_MOVES, true
end
