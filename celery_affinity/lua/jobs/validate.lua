-- validate: checks the fields of a job from a message. Their tokens become parts of key names, lists and counts that
-- all server functions read. Other strings are therefore rejected before any write. schema/job_record has the same
-- rules as patterns, and a test compares the two.

-- Types, task names and key rules have few distinct values, so each value is checked only once.
local good_types, good_names, known_marks = memo.cache(), memo.cache(), memo.cache()

-- Returns true if a string is a percent-encoded type, as in messages.
function validate.is_type(type)
    return good_types.of[type]
        or string.find(type, "^[%w_.~%%-]+$") ~= nil and memo.keep(good_types, type, true)
end

local function is_name(name)
    return (not string.find(name, "[\128-\255]") or utf8.is_good(name)) and memo.keep(good_names, name, true)
end

-- Returns true if a string is not an integer, or has more digits than a time in µs can have.
local function is_invalid_number(text)
    return #text > protocol.LONGEST_NUMBER or not string.find(text, "^%-?%d+$")
end

-- Returns true if a string begins with a valid merge rule, and the rest of the string, or "".
local function read_merge(text)
    local merge_key, most, bytes, rest =
        string.match(text, "^merge=([%w_.~%%-]+) most=([1-9]%d*) bytes=([1-9]%d*)(.*)$")
    local wait, at_most, after_wait = string.match(rest or "", "^ wait=([1-9]%d*)/([1-9]%d*)(.*)$")
    if wait and #wait <= protocol.LONGEST_PATIENCE and #at_most <= protocol.LONGEST_PATIENCE then
        rest = after_wait
    end
    local is_valid = merge_key and #merge_key <= protocol.LONGEST_KEY and most ~= "1"
        and #most <= protocol.LONGEST_NUMBER and #bytes <= protocol.LONGEST_NUMBER
        and (rest == "" or string.find(rest, "^ ."))
    return is_valid, string.sub(rest or "", 2)
end

-- Returns the kind of a key rule, "rate", "exclusive" or "tenant", or nil if the string is not valid.
local function kind_of(text)
    local name, rule = string.match(text, "^key=([%w_.~%%-]+) (%S+ ?%S*)$")
    if not name or #name > protocol.LONGEST_KEY then
        return nil
    end
    local is_rate = string.sub(name, 1, #protocol.RATE_PREFIX) == protocol.RATE_PREFIX
    local limit, a_period_us = string.match(rule, "^%l+=([1-9]%d*)/?(%d*)$")
    if tenants.is_one(name) then
        local quota = "quota=" .. protocol.BY_SETTINGS
        return (rule == quota or rule == quota .. " " .. protocol.PREEMPTIBLE) and "tenant" or nil
    elseif rule == "limit=1 order=1" then
        return not is_rate and "exclusive" or nil
    elseif not limit or #limit > protocol.LONGEST_NUMBER or #a_period_us > protocol.LONGEST_NUMBER then
        return nil
    elseif is_rate then
        return string.find(a_period_us, "^[1-9]") and rule == "rate=" .. limit .. "/" .. a_period_us and "rate" or nil
    end
    return rule == "limit=" .. limit and "exclusive" or nil
end

-- Returns the id suffix for these key rules, or nil if they are not valid.
local function suffix_of(text)
    local number, kinds, rest = 0, {}, text
    while rest ~= "" do
        local first, others = string.match(rest, "^(key=.-) (key=.*)$")
        local kind = kind_of(first or rest)
        if not kind or kinds[kind] or kinds.tenant then
            return nil
        end
        number, kinds[kind], rest = number + 1, true, others or ""
    end
    local mark = number > 1 and protocol.MANY_KEYED
        or (kinds.tenant and protocol.TENANTED or number == 1 and protocol.KEYED)
    return mark and memo.keep(known_marks, text, mark)
end

-- Returns a string without its one-word rules (`schema/rules_codec.py`, `WORDS`), and true if these are valid: they
-- match the id suffix, and their order is correct.
local function without_words(text, id)
    local are_valid = true
    for nth = #protocol.WORDS, 1, -1 do
        local word = protocol.WORDS[nth]
        local is_marked = string.find(id, word.ends, -3) ~= nil
        local first, last, value = string.find(text, word.says)
        if first then
            local before, after = string.sub(text, 1, first - 1), string.sub(text, last + 2)
            are_valid = are_valid and is_marked and value ~= "" and #value <= protocol.LONGEST_KEY
                and (before == "" or string.find(before, "^%S.* $")) and not string.find(before, "key=", 1, true)
                and (last == #text or string.find(after, "^key=") and string.byte(text, last + 1) == 32)
            text = after == "" and string.sub(before, 1, -2) or before .. after
        else
            are_valid = are_valid and not is_marked
        end
    end
    return text, are_valid
end

-- Returns true if the rules in `text`, a non-empty string, match the suffix of the job's id. `mark`: suffix of the id.
local function are_rules(text, id, mark)
    local rest, is_good = without_words(text, id)
    if mark == protocol.MERGES then
        local is_merge_valid
        is_merge_valid, rest = read_merge(rest)
        is_good = is_good and is_merge_valid
    end
    text = rest
    if hooks.is_mark[mark] and not id_suffix.has_key(id) then
        return is_good and text == ""
    end
    return is_good and (known_marks.of[text] or suffix_of(text)) == string.sub(id, -1)
end

-- Returns the name of the first invalid field of `job`, in the order of the fields, or nil.
function validate.first_invalid_field(job)
    local id, priority, delay_us, expires_us, stamps = job.id, job.priority, job.delay_us, job.expires_us, job.stamps
    if #id > protocol.LONGEST_ID or not string.find(id, "^[!-~]+$") or job.mark == protocol.BATCH then
        return "id"
    elseif not (good_types.of[job.type] or validate.is_type(job.type)) then
        return "type"
    end
    local unencoded = job_fields.unencoded(job)
    if unencoded then
        return unencoded
    elseif not (good_names.of[job.task_name] or is_name(job.task_name)) then
        return "task_name"
    elseif job.mode ~= "queued" and job.mode ~= "demand" then
        return "mode"
    elseif priority ~= "0" and priority ~= "10" and not string.find(priority, "^%d$") then
        return "priority"
    elseif delay_us ~= "0" and is_invalid_number(delay_us) then
        return "delay_us"
    elseif expires_us ~= "" and is_invalid_number(expires_us) then
        return "expires_us"
    elseif stamps ~= "" and (#stamps > protocol.MOST_STAMP_BYTES or string.find(stamps, "[^%w_.~%%: -]")
        or texts.number_of_words(stamps) > protocol.MOST_STAMPS) then -- each stamp costs commands at publish and end
        return "stamps"
    elseif job.rules == "" and hooks.is_mark[job.last]
        or job.rules ~= "" and not are_rules(job.rules, id, job.mark) then
        return "rules"
    end
    return nil
end
