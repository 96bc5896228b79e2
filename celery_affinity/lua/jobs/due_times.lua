-- due_times: the time at which a job is due to start, and its head start. A job that is due earlier than others is
-- placed in its lane as if it had been enqueued earlier: at its enqueue time minus its head start (`lanes.order`).
-- With the target wait T, the head start is max(0, min(T, enqueue time + T - due time)). A job is due
--   at most `start_within` after it becomes pending;
--   so early that it ends before its deadline, after its expected run time and the typical error of this expectation;
--   without either, `stretch` times its expected run time after it becomes pending, if this time is known;
--   otherwise T after it becomes pending, so it has no head start.
-- If several apply, the earliest counts. T and `stretch` are settings.
-- A job's field `due` has words in this order: "w" and the time in µs within which it should start, "d" and the time
-- in µs until its deadline, "s" and its size in millionths. Field "due" of its hash has the due time, if there is a
-- "w" or a "d", or "-", and then the words, with the absolute time of the deadline.
-- Cost: one command for a due time, and one more if it depends on the run time.
local PLACES = { w = 1, d = 2, s = 3 }

-- Returns the numbers of the words in `text` by letter, or nil if a word is invalid.
local function read(text)
    local numbers, last = {}, 0
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

-- Returns true if field `due` of a job is valid.
function due_times.is_valid(text)
    return text == "" or read(text) ~= nil
end

-- Returns the head start in µs of a job that becomes pending at `base_us` and is due at `due_us`.
function due_times.head_start(base_us, due_us, settings)
    return math.max(0, math.min(settings.target_wait_us, base_us + settings.target_wait_us - due_us))
end

-- Returns the head start of `job` in µs, 0 if it has none, and field "due" of its hash, nil if it has none.
--   base_us: the time at which it becomes pending.
--   words: its words; "" for none.
function due_times.of_job(type, name, words, base_us)
    local numbers, settings = words ~= "" and read(words) or {}, settings_in_force.read()
    local within_us, deadline_us, due_us = numbers.w, numbers.d and call.now_us + numbers.d, nil
    local size = numbers.s and numbers.s / 1000000
    if within_us then
        due_us = base_us + within_us
    end
    if deadline_us then
        local expected_us, typical_error = run_times.expected(type, name, size)
        due_us = math.min(due_us or math.huge, deadline_us - (expected_us or 0) * (1 + (typical_error or 0)))
    end
    local kept = words ~= "" and (due_us and call.text(math.max(0, due_us)) or "-") .. " "
        .. (numbers.d and string.gsub(words, "d%S+", "d" .. call.text(math.max(0, deadline_us))) or words)
    if not due_us and settings.stretch > 0 then
        local expected_us = run_times.expected(type, name, size)
        due_us = expected_us and base_us + settings.stretch * expected_us
    end
    return due_us and math.floor(due_times.head_start(base_us, due_us, settings)) or 0, kept or nil
end
