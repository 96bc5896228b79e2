-- fields: what a message may say of its job. Its words become names of keys, parts of lists and sums that other scripts
-- read: others are refused before anything is written. rules/job_fields has each rule as a pattern; a test compares.
-- @include jobs/has_rules.lua
-- @include jobs/marks.lua
-- @include jobs/find_by.lua
local fields = {}

-- RETURNS the name of a field of `job` that is not accepted, or nil.
function fields.bad(job)
    local find, delay_us, expires_us = string.find, job.delay_us, job.expires_us
    if #job.id > protocol.LONGEST_ID or not find(job.id, "^[!-~]+$") or marks.of(job.id) == protocol.BATCH then
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
    elseif job.rules == "" and (has_rules(job.id) or marks.of(job.id) == protocol.MERGES) then
        return "rules"
    elseif job.rules ~= "" then
-- @deferred jobs/rules_text.lua
        if not are_rules(job.rules, job.id) then
            return "rules"
        end
    end
    if find(job.task_name, "[\128-\255]") then
-- @deferred base/text.lua
        return not text.is_good(job.task_name) and "task_name" or nil
    end
    return nil
end
