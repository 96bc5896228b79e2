-- fields: what a message may say of its job. Its words become names of keys, parts of lists and sums that other scripts
-- read: others are refused before anything is written. rules/job_fields has each rule as a pattern; a test compares.
-- @include jobs/find_by.lua
local fields = {}

-- RETURNS whether a text that is not empty says rules, in the way of rules/job_fields.
local function are_rules(text)
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

-- RETURNS the name of a field of `job` that is not accepted, or nil.
function fields.bad(job)
    local find, delay_us, expires_us = string.find, job.delay_us, job.expires_us
    if #job.id > protocol.LONGEST_ID or not find(job.id, "^[!-~]+$") then
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
    elseif (job.rules ~= "") ~= (string.sub(job.id, -1) == protocol.MARK) then
        return "rules"
    elseif job.rules ~= "" and not are_rules(job.rules) then
        return "rules"
    elseif find(job.task_name, "[\128-\255]") then
-- @deferred base/text.lua
        return not text.is_good(job.task_name) and "task_name" or nil
    end
    return nil
end
