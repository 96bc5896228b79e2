-- fields: what a message may say of its job. It goes into names of keys, lists of words and sums that others read: what
-- is none of it is refused before anything is written. The rules of fields.py.
local fields = {}
local find = string.find

local function is_whole(number)
    return #number <= 18 and find(number, "^%-?%d+$")
end

-- Each sequence that is good counts as "?", so that no two halves of others make one.
local function is_utf8(text)
    for _, sequence in ipairs({
        "[\194-\223][\128-\191]", "\224[\160-\191][\128-\191]", "\237[\128-\159][\128-\191]",
        "[\225-\236\238\239][\128-\191][\128-\191]", "\240[\144-\191][\128-\191][\128-\191]",
        "[\241-\243][\128-\191][\128-\191][\128-\191]", "\244[\128-\143][\128-\191][\128-\191]",
    }) do
        text = string.gsub(text, sequence, "?")
    end
    return not find(text, "[\128-\255]")
end

-- RETURNS the name of a field of `job` that is not accepted, or nil.
function fields.bad(job)
    if #job.id > 255 or not find(job.id, "^[!-~]+$") then
        return "id"
    elseif not find(job.type, "^[%w_.~%%-]+$") then
        return "type"
    elseif job.mode ~= "queued" and job.mode ~= "demand" then
        return "mode"
    elseif job.priority ~= "10" and not find(job.priority, "^%d$") then
        return "priority"
    elseif not is_whole(job.delay_us) then
        return "delay_us"
    elseif find(job.task_id, "[^%w_.~%%-]") then
        return "task_id"
    elseif find(job.task_name, "[%c\128-\255]") and (find(job.task_name, "%c") or not is_utf8(job.task_name)) then
        return "task_name"
    elseif job.expires_us ~= "" and not is_whole(job.expires_us) then
        return "expires_us"
    elseif find(job.stamps, "[^%w_.~%%: -]") then
        return "stamps"
    end
    return nil
end
