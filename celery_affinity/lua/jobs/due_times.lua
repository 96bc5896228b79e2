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
-- deadline.
-- Cost: one command for a due time, and one more if it depends on the run time.
local PLACES = { w = 1, d = 2, s = 3 }

-- Returns the numbers of the words in `text` by letter, or nil if a word is invalid or there is no text.
local function read(text)
    local numbers, last = {}, 0
    if not text then
        return nil
    end
    for word in string.gmatch(text .. " ", "(.-) ") do
        local letter, sign, digits = string.match(word, "^(%l)(%-?)(%d+)$")
        local place = PLACES[letter]
        if not place or place <= last or sign == "-" and letter ~= "d" or #digits > protocol.MAX_DUE_DIGITS then
            return nil
        end
        numbers[letter], last = tonumber(sign .. digits), place
    end
    return numbers
end

-- Returns true if the words of a new job are valid.
function due_times.are_valid(words)
    return read(words) ~= nil
end

-- Returns the time in µs until a new job becomes pending, and its words, with an absolute deadline; "" for none.
-- `times`: its field.
function due_times.split(times)
    local delay, words = string.match(times, "^(%S+) ?(.*)$")
    return tonumber(delay), (string.gsub(words, "d(%-?%d+)", function(after_us)
        return "d" .. call.text(math.max(0, call.now_us + tonumber(after_us)))
    end))
end

-- Returns a setting as a number, `otherwise` if another client has written something else.
local function number_in(value, otherwise)
    local number = tonumber(value or nil)
    return number and number >= 0 and number <= protocol.MAX_RUN_US and number or otherwise
end

-- Returns the target wait in µs and `stretch`. Read once per invocation.
local function settings()
    local cache = key_state.cache()
    if not cache.due_settings then
        local target_us, stretch = unpack(redis.call("HMGET", key.settings, "target_wait_us", "stretch"))
        cache.due_settings = {
            number_in(target_us, defaults.OF.target_wait_us), number_in(stretch, defaults.OF.stretch),
        }
    end
    return unpack(cache.due_settings)
end

-- Returns true if run times give jobs a head start.
function due_times.may_stretch()
    local _, stretch = settings()
    return stretch > 0
end

-- The field of key `type_rules` that is set then.
due_times.FIELD = "!stretch"

-- Writes this field after a change of settings.
function due_times.settings_have_changed()
    key_state.cache().due_settings = nil
    if due_times.may_stretch() ~= (redis.call("HEXISTS", key.type_rules, due_times.FIELD) == 1) then
        type_limits.write_flag(due_times.FIELD, due_times.may_stretch())
    end
end

-- Returns the head start in µs, as a string, of a job that becomes pending at `base_us` and is due at `due_us`.
local function head_start(base_us, due_us)
    local target_us = settings()
    return string.format("%.0f", math.floor(math.max(0, math.min(target_us, base_us + target_us - due_us))))
end

-- Returns the due time in µs in field `due` of a job hash, as a string, or nil if there is none.
function due_times.in_field(due)
    return due and string.match(string.sub(due, 1, protocol.MAX_NUMBER_LENGTH + 1), "^(%d+) ")
end

-- Returns a table with the fields `head` and `due` of the hash of a job that becomes pending at `base_us`, without
-- fields that it does not have; nil if it has neither.
--   words: its words with an absolute deadline, or "".
--   may_stretch: true if `stretch` can give it a head start.
function due_times.fields(type, name, words, base_us, may_stretch)
    local numbers, due_us, own_due = read(words ~= "" and words) or {}, nil, nil
    local size = numbers.s and numbers.s / 1000000
    if numbers.w then
        due_us = base_us + numbers.w
    end
    if numbers.d then
        local expected_us, typical_error = run_times.expected(type, name, size)
        due_us = math.min(due_us or math.huge, numbers.d - (expected_us or 0) * (1 + typical_error))
    end
    if due_us then
        own_due = string.format("%.0f", math.max(0, due_us))
    elseif may_stretch and due_times.may_stretch() then
        local _, stretch = settings()
        local expected_us = run_times.expected(type, name, size)
        due_us = expected_us and base_us + stretch * expected_us
    end
    local head = due_us and head_start(base_us, due_us)
    local early = {
        head = head ~= "0" and head or nil, due = words ~= "" and (own_due or "-") .. " " .. words or nil,
    }
    return next(early) and early
end

-- Writes the fields of job `id`, which becomes pending at `base_us` and waits in no lane. `due`: its field, or nil.
-- Returns its new fields `head` and `due`, or nil.
function due_times.renew(id, type, name, due, base_us)
    local words = string.match(due or "", "^%S+ (.+)$") or ""
    local early = due_times.fields(type, name or "", words, base_us, true)
    if early then
        redis.call("HSETNX", key.job(id), "claimed", "") -- see `claims.grant`
    else
        early = {}
    end
    hash.write(key.job(id), "head", early.head)
    hash.write(key.job(id), "due", early.due)
    return early.head, early.due
end

-- Called when job `id` pauses until `rank`. Returns its new field `head`. `head`, `due`: its fields, or nil.
function due_times.pause(id, rank, head, due)
    local own_due = due_times.in_field(due)
    if own_due then
        head = head_start(tonumber(rank), tonumber(own_due))
        hash.write(key.job(id), "head", head ~= "0" and head)
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
