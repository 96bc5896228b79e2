-- fields: what a message may say of its job. Its words become names of keys, parts of lists and sums that other scripts
-- read: others are refused before anything is written. rules/job_fields has each rule as a pattern; a test compares.
-- @include jobs/has_rules.lua
-- @include jobs/marks.lua
-- @include jobs/find_by.lua
local fields = {}

-- RETURNS whether a text says how calls merge, and what follows in the text: what it says of a key; "" for nothing.
local function read_merge(text)
    local merge_key, most, bytes, rest =
        string.match(text, "^merge=([%w_.~%%-]+) most=([1-9]%d*) bytes=([1-9]%d*)(.*)$")
    local is_good = merge_key and #merge_key <= protocol.LONGEST_KEY and most ~= "1"
        and #most <= protocol.LONGEST_NUMBER and #bytes <= protocol.LONGEST_NUMBER
        and (rest == "" or string.find(rest, "^ ."))
    return is_good, string.sub(rest or "", 2)
end

-- RETURNS whether a text says a key, in the way of rules/job_fields.
local function is_of_key(text)
    local rule_key, rule = string.match(text, "^key=([%w_.~%%-]+) (%S+ ?%S*)$")
    if not rule_key or #rule_key > protocol.LONGEST_KEY then
        return false
    end
    local most, a_period_us = string.match(rule, "^%l+=([1-9]%d*)/?(%d*)$")
    return rule == "limit=1 order=1"
        or (most and #most <= protocol.LONGEST_NUMBER and rule == "limit=" .. most)
        or (most and #most <= protocol.LONGEST_NUMBER and #a_period_us <= protocol.LONGEST_NUMBER
            and string.find(a_period_us, "^[1-9]") and rule == "rate=" .. most .. "/" .. a_period_us)
end

-- RETURNS whether a text that is not empty says rules of the job `id`, whose end says which there are.
local function are_rules(text, id)
    local has_key = string.sub(id, -1) == protocol.MARK
    if marks.is_mergeable(id) then
        local is_good, of_key = read_merge(text)
        return is_good and (has_key and is_of_key(of_key) or not has_key and of_key == "")
    end
    return has_key and is_of_key(text)
end

-- RETURNS the name of a field of `job` that is not accepted, or nil.
function fields.bad(job)
    local find, delay_us, expires_us = string.find, job.delay_us, job.expires_us
    if #job.id > protocol.LONGEST_ID or not find(job.id, "^[!-~]+$") or marks.is_batch(job.id) then
        return "id"
    elseif not find(job.type, "^[%w_.~%%-]+$") then
        return "type"
    elseif job.mode ~= "queued" and job.mode ~= "demand" then
        return "mode"
    elseif job.priority ~= "10" and not find(job.priority, "^%d$") then
        return "priority"
    elseif #delay_us > protocol.LONGEST_NUMBER or not find(delay_us, "^%-?%d+$") then
        return "delay_us"
    elseif job_fields.unencoded(job) then
        return job_fields.unencoded(job)
    elseif expires_us ~= "" and (#expires_us > protocol.LONGEST_NUMBER or not find(expires_us, "^%-?%d+$")) then
        return "expires_us"
    elseif job.stamps ~= "" and (find(job.stamps, "[^%w_.~%%: -]") or find_by.are_too_many(job.stamps)) then
        return "stamps"
    elseif job.rules == "" and (has_rules(job.id) or marks.is_mergeable(job.id)) then
        return "rules"
    elseif job.rules ~= "" and not are_rules(job.rules, job.id) then
        return "rules"
    elseif find(job.task_name, "[\128-\255]") then
-- @deferred base/text.lua
        return not text.is_good(job.task_name) and "task_name" or nil
    end
    return nil
end
