-- validate: which fields of a job are accepted from a message. Their words become names of keys, parts of lists and
-- sums that all arrows read; so other texts are refused before anything is written. rules/job_fields has the same rules
-- as patterns, and a test compares the two.

-- Types, names of tasks and what texts say of keys, which are few, are looked at once.
local good_types, good_names, known_marks = memo.cache(), memo.cache(), memo.cache()

-- Returns true if a string is a percent-encoded type, as in messages.
function validate.is_type(type)
    return good_types.of[type]
        or string.find(type, "^[%w_.~%%-]+$") ~= nil and memo.keep(good_types, type, true)
end

local function is_name(name)
    return (not string.find(name, "[\128-\255]") or utf8.is_good(name)) and memo.keep(good_names, name, true)
end

-- RETURNS whether a text is no whole number, or has more digits than a time in µs may have.
local function is_no_number(text)
    return #text > protocol.LONGEST_NUMBER or not string.find(text, "^%-?%d+$")
end

-- RETURNS whether a text begins with how calls merge, and what follows: what it says of keys, "" for nothing.
local function read_merge(text)
    local merge_key, most, bytes, rest =
        string.match(text, "^merge=([%w_.~%%-]+) most=([1-9]%d*) bytes=([1-9]%d*)(.*)$")
    local wait, at_most, after_wait = string.match(rest or "", "^ wait=([1-9]%d*)/([1-9]%d*)(.*)$")
    if wait and #wait <= protocol.LONGEST_PATIENCE and #at_most <= protocol.LONGEST_PATIENCE then
        rest = after_wait
    end
    local is_good = merge_key and #merge_key <= protocol.LONGEST_KEY and most ~= "1"
        and #most <= protocol.LONGEST_NUMBER and #bytes <= protocol.LONGEST_NUMBER
        and (rest == "" or string.find(rest, "^ ."))
    return is_good, string.sub(rest or "", 2)
end

-- RETURNS the kind of key that a text says: "rate", "exclusive" or "tenant"; nil if it says none.
local function kind_of(text)
    local its_key, rule = string.match(text, "^key=([%w_.~%%-]+) (%S+ ?%S*)$")
    if not its_key or #its_key > protocol.LONGEST_KEY then
        return nil
    end
    local of_rate = string.sub(its_key, 1, #protocol.RATE_PREFIX) == protocol.RATE_PREFIX
    local most, a_period_us = string.match(rule, "^%l+=([1-9]%d*)/?(%d*)$")
    if tenants.is_one(its_key) then
        local quota = "quota=" .. protocol.BY_SETTINGS
        return (rule == quota or rule == quota .. " " .. protocol.PREEMPTIBLE) and "tenant" or nil
    elseif rule == "limit=1 order=1" then
        return not of_rate and "exclusive" or nil
    elseif not most or #most > protocol.LONGEST_NUMBER or #a_period_us > protocol.LONGEST_NUMBER then
        return nil
    elseif of_rate then
        return string.find(a_period_us, "^[1-9]") and rule == "rate=" .. most .. "/" .. a_period_us and "rate" or nil
    end
    return rule == "limit=" .. most and "exclusive" or nil
end

-- RETURNS the mark of a job of whose keys this text tells; nil if it is not accepted.
local function mark_of(text)
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

-- RETURNS a text without the rules of one word that it says (`known_marks.WORDS`), and whether these are accepted:
-- those that the end of the id tells, in their order.
local function without_words(text, id)
    local are_good = true
    for nth = #protocol.WORDS, 1, -1 do
        local word = protocol.WORDS[nth]
        local is_marked = string.find(id, word.ends, -3) ~= nil
        local first, last, value = string.find(text, word.says)
        if first then
            local before, after = string.sub(text, 1, first - 1), string.sub(text, last + 2)
            are_good = are_good and is_marked and value ~= "" and #value <= protocol.LONGEST_KEY
                and (before == "" or string.find(before, "^%S.* $")) and not string.find(before, "key=", 1, true)
                and (last == #text or string.find(after, "^key=") and string.byte(text, last + 1) == 32)
            text = after == "" and string.sub(before, 1, -2) or before .. after
        else
            are_good = are_good and not is_marked
        end
    end
    return text, are_good
end

-- RETURNS whether the rules in `text`, which is not empty, are those that the end of the job's id tells (`marks`).
-- `mark`: that of the id.
local function are_rules(text, id, mark)
    local rest, is_good = without_words(text, id)
    if mark == protocol.MERGES then
        local merges_well
        merges_well, rest = read_merge(rest)
        is_good = is_good and merges_well
    end
    text = rest
    if hooks.is_mark[mark] and not id_suffix.has_key(id) then
        return is_good and text == ""
    end
    return is_good and (known_marks.of[text] or mark_of(text)) == string.sub(id, -1)
end

-- RETURNS the name of the first field of `job`, in their order, that is not accepted, or nil.
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
    elseif delay_us ~= "0" and is_no_number(delay_us) then
        return "delay_us"
    elseif expires_us ~= "" and is_no_number(expires_us) then
        return "expires_us"
    elseif stamps ~= "" and (#stamps > protocol.MOST_STAMP_BYTES or string.find(stamps, "[^%w_.~%%: -]")
        or texts.number_of_words(stamps) > protocol.MOST_STAMPS) then -- each costs commands when the job comes and ends
        return "stamps"
    elseif job.rules == "" and hooks.is_mark[job.last]
        or job.rules ~= "" and not are_rules(job.rules, id, job.mark) then
        return "rules"
    end
    return nil
end
