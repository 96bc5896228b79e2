-- due_times: the time at which a job is due to start, and its head start. A job that is due earlier than others is
-- placed in its lane as if it had been enqueued earlier: at its enqueue time minus its head start (`lanes.order`).
-- With the target wait T, the head start is max(0, min(T, enqueue time + T - due time)). A job is due
--   at most `start_within` after it becomes pending;
--   so early that it ends before its deadline, after its expected run time and the typical error of this expectation;
--   without either, `stretch` times its expected run time after it becomes pending, if this time is known;
--   otherwise T after it becomes pending, so it has no head start.
-- If several apply, the earliest counts. T and `stretch` are settings.
-- A job's field `times` has the time until it becomes pending, and then words in this order: "w" and the time in µs
-- within which it should start, "d" and the time in µs until its deadline, "s" and its size in millionths. Field "due"
-- of its hash has the due time, if there is a "w" or a "d", or "-", and then the words, with the absolute time of the
-- deadline. Settings other than the defaults are in field "!" of key `heads`, which publish reads anyway.
-- Cost: for a job with `start_within` or a deadline, one command at publish and two at its claim, and one or two more
-- where the run time is needed. Other jobs cost no command.
local PLACES = { w = 1, d = 2, s = 3 }

-- Returns a table with the numbers of the words in `text` by letter, and with `text` as `words`; nil if a word is
-- invalid. An absolute time can have one digit more than a time from now.
local function read(text, max_digits)
    local numbers, last = { words = text, w = nil, d = nil, s = nil }, 0
    for word in string.gmatch(text .. " ", "(.-) ") do
        local letter, sign, digits = string.match(word, "^(%l)(%-?)(%d+)$")
        local place = PLACES[letter]
        if not place or place <= last or sign == "-" and letter ~= "d" or #digits > max_digits then
            return nil
        end
        numbers[letter], last = tonumber(sign .. digits), place
    end
    return numbers
end

-- The jobs of a task usually have the same words.
local known_times = memo.cache()

-- Returns the words in field `times` of a new job as a table, with the time in µs until it becomes pending as
-- `delay_us`. Returns nil if it has no words, or if any part is invalid.
function due_times.read(times)
    if known_times.of[times] then
        return known_times.of[times]
    end
    local delay, words = string.match(times, "^(%-?%d+) (.*)$")
    local asked = delay and #delay <= protocol.MAX_NUMBER_LENGTH and read(words, protocol.MAX_DUE_DIGITS)
    if not asked then
        return nil
    end
    asked.delay_us = tonumber(delay)
    return memo.keep(known_times, times, asked)
end

-- Returns the time in µs until a new job becomes pending, and its words, with an absolute deadline, or nil.
-- `times`: its field.
function due_times.split(times)
    local asked = due_times.read(times)
    if not asked then
        return tonumber(times), nil
    elseif not asked.d then
        return asked.delay_us, asked
    end
    local deadline_us = math.max(0, call.now_us + asked.d)
    local words = string.gsub(asked.words, "d%-?%d+", "d" .. call.text(deadline_us))
    return asked.delay_us, { words = words, w = asked.w, d = deadline_us, s = asked.s }
end

-- Returns a setting as a number, `otherwise` if another client has written something else.
local function number_in(value, otherwise)
    local number = tonumber(value or nil)
    return number and number >= 0 and number <= protocol.MAX_RUN_US and number or otherwise
end

-- Returns the target wait in µs and `stretch` as numbers. Another client may have written or deleted either.
local function numbers_of(target_us, stretch)
    return number_in(target_us, defaults.OF.target_wait_us), number_in(stretch, defaults.OF.stretch)
end

-- The field of key `type_rules` that has these settings (`settings_words`).
due_times.FIELD = "!due"

-- Returns the settings as a string, or nil if both have their defaults.
function due_times.settings_words()
    local target_us, stretch = numbers_of(unpack(redis.call("HMGET", key.settings, "target_wait_us", "stretch")))
    if target_us ~= defaults.OF.target_wait_us or stretch ~= defaults.OF.stretch then
        return string.format("%.17g/%.17g", target_us, stretch)
    end
    return nil
end

-- Returns the settings in `words`, a result of `due_times.settings_words`, as a table.
function due_times.settings_in(words)
    local target_us, stretch = numbers_of(string.match(words or "", "^(%S+)/(%S+)$"))
    return { target_us = target_us, stretch = stretch }
end

-- Returns these settings, as publish reads them (`hooks.read_word`).
local function settings()
    if not call.due_settings then
        hooks.read_word(redis.call("HGET", key.heads, "!"))
    end
    return call.due_settings
end

-- Returns true if run times give jobs a head start.
function due_times.may_stretch()
    return settings().stretch > 0
end

-- Writes field FIELD after a change of settings.
function due_times.settings_have_changed()
    local words = due_times.settings_words()
    if words ~= (redis.call("HGET", key.type_rules, due_times.FIELD) or nil) then
        type_limits.write_flag(due_times.FIELD, words)
    end
end

-- Returns the head start in µs of a job that becomes pending at `base_us` and is due at `due_us`.
local function head_start(base_us, due_us)
    local target_us = settings().target_us
    return math.floor(math.max(0, math.min(target_us, base_us + target_us - due_us)))
end

-- Returns the due time in µs in field `due` of a job hash, as a string, or nil if there is none.
function due_times.in_field(due)
    return due and string.match(string.sub(due, 1, protocol.MAX_NUMBER_LENGTH + 1), "^(%d+) ")
end

-- Returns nil for a job without due time and head start; otherwise a table: the fields `head` and `due` of its hash,
-- nil if it does not have them, `head_us`, its head start, and `own_due`, the due time in field `due`.
--   asked: its words, with an absolute deadline, or nil.
--   base_us: when it becomes pending.
--   may_stretch: true if `stretch` can give it a head start.
function due_times.fields(type, name, asked, base_us, may_stretch)
    local due_us, own_due, size = nil, nil, asked and asked.s and asked.s / 1000000
    if asked and asked.w then
        due_us = base_us + asked.w
    end
    if asked and asked.d then
        local expected_us, typical_error = run_times.expected(type, name, size)
        due_us = math.min(due_us or math.huge, asked.d - (expected_us or 0) * (1 + typical_error))
    end
    if due_us then
        own_due = call.text(math.max(0, due_us))
    elseif may_stretch and due_times.may_stretch() then
        local expected_us = run_times.expected(type, name, size)
        due_us = expected_us and base_us + settings().stretch * expected_us
    end
    local head_us = due_us and head_start(base_us, due_us) or 0
    if not asked and head_us == 0 then
        return nil
    end
    return {
        head = head_us > 0 and call.text(head_us) or nil, due = asked and (own_due or "-") .. " " .. asked.words,
        head_us = head_us, own_due = own_due,
    }
end

-- Returns the fields of a new job's hash and their values. `early`: see `due_times.fields`.
function due_times.row(early)
    local head, due = early.head, early.due
    if head and due then
        return "claimed", "", "head", head, "due", due -- "claimed": see `claims.grant`
    end
    return "claimed", "", head and "head" or "due", head or due
end

-- Writes the fields of job `id`, which becomes pending at `base_us` and waits in no lane. `due`: its field, or nil.
-- Returns its new fields `head` and `due`, or nil.
function due_times.renew(id, type, name, due, base_us)
    local words = string.match(due or "", "^%S+ (.+)$")
    local asked = words and read(words, protocol.MAX_DUE_DIGITS + 1)
    local early = due_times.fields(type, name or "", asked, base_us, true) or {}
    if early.head or early.due then
        redis.call("HSETNX", key.job(id), "claimed", "") -- see `claims.grant`
    end
    hash.write(key.job(id), "head", early.head)
    hash.write(key.job(id), "due", early.due)
    return early.head, early.due
end

-- Called when job `id` pauses until `rank`. Returns its new field `head`. `head`, `due`: its fields, or nil.
function due_times.pause(id, rank, head, due)
    local own_due = due_times.in_field(due)
    if own_due then
        local head_us = head_start(tonumber(rank), tonumber(own_due))
        head = head_us > 0 and call.text(head_us) or nil
        hash.write(key.job(id), "head", head)
    end
    return head
end

-- Adds job `id`, which starts to wait, to the jobs with their own due time; removes it. `due`: field of its hash, or
-- nil. A batch waits instead of its calls.
function due_times.add(id, due)
    local own_due = due_times.in_field(due)
    if own_due then
        redis.call("ZADD", key.due_times, own_due, id)
    end
end
function due_times.remove(id, due)
    if due_times.in_field(due) then
        redis.call("ZREM", key.due_times, id)
    end
end
