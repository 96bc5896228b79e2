-- validate: checks the fields of a job from a message. Their tokens become parts of key names, lists and counts that
-- all server functions read. Other strings are therefore rejected before any write. schema/job_record has the same
-- rules as patterns, and a test compares the two.

-- Types and task names have few distinct values, so each value is checked only once.
local good_types, good_names = memo.cache(), memo.cache()

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
    return #text > protocol.MAX_NUMBER_LENGTH or not string.find(text, "^%-?%d+$")
end

-- Returns the name of the first invalid field of `job`, in the order of the fields, or nil.
function validate.first_invalid_field(job)
    local id, priority, times, expires_us, stamps = job.id, job.priority, job.times, job.expires_us, job.stamps
    if #id > protocol.MAX_ID_LENGTH or not string.find(id, "^[!-~]+$") or job.mark == protocol.BATCH then
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
    elseif times ~= "0" and not due_times.read(times) and is_invalid_number(times) then
        return "times"
    elseif expires_us ~= "" and is_invalid_number(expires_us) then
        return "expires_us"
    elseif stamps ~= "" and (#stamps > protocol.MAX_STAMP_BYTES or string.find(stamps, "[^%w_.~%%: -]")
        or texts.number_of_words(stamps) > protocol.MAX_STAMPS) then -- each stamp costs commands at publish and end
        return "stamps"
    elseif job.rules == "" and hooks.is_mark[job.last]
        or job.rules ~= "" and rules_codec.suffix(job.rules) ~= id_suffix.whole(id) then
        return "rules"
    end
    return nil
end
