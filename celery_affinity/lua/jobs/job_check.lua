-- job_check: what a message may say of its job. Its words become names of keys, parts of lists and sums that other
-- arrows read: others are refused before anything is written. rules/job_fields has each rule as a pattern; a test
-- compares. What is few, types and names of tasks, is looked at once; what is mostly alike is tried first.

local good_types, good_names = kept.cache(), kept.cache()

local function is_type(type)
    return string.find(type, "^[%w_.~%%-]+$") ~= nil and kept.keep(good_types, type, true)
end

local function is_name(name)
    return (not string.find(name, "[\128-\255]") or utf8.is_good(name)) and kept.keep(good_names, name, true)
end

-- RETURNS whether a text is no whole number of as many digits as a time in µs may have.
local function is_no_number(text)
    return #text > protocol.LONGEST_NUMBER or not string.find(text, "^%-?%d+$")
end

-- RETURNS the name of a field of `job` that is not accepted, or nil.
function job_check.bad(job)
    local id, priority, delay_us, expires_us, stamps = job.id, job.priority, job.delay_us, job.expires_us, job.stamps
    if #id > protocol.LONGEST_ID or not string.find(id, "^[!-~]+$") or marks.of(id) == protocol.BATCH then
        return "id"
    elseif not (good_types.of[job.type] or is_type(job.type)) then
        return "type"
    elseif job.mode ~= "queued" and job.mode ~= "demand" then
        return "mode"
    elseif priority ~= "0" and priority ~= "10" and not string.find(priority, "^%d$") then
        return "priority"
    elseif delay_us ~= "0" and is_no_number(delay_us) then
        return "delay_us"
    end
    local unencoded = not string.find(job.task_id, "^%x+%-%x+%-%x+%-%x+%-%x+$") and job_fields.unencoded(job)
    if unencoded then
        return unencoded
    elseif expires_us ~= "" and is_no_number(expires_us) then
        return "expires_us"
    elseif stamps ~= "" and (string.find(stamps, "[^%w_.~%%: -]") or find_by.are_too_many(stamps)) then
        return "stamps"
    elseif job.rules == "" and (marks.has_rules(id) or marks.of(id) == protocol.MERGES) then
        return "rules"
    elseif job.rules ~= "" and not rules_text.are_rules(job.rules, id) then
        return "rules"
    elseif not (good_names.of[job.task_name] or is_name(job.task_name)) then
        return "task_name"
    end
    return nil
end
