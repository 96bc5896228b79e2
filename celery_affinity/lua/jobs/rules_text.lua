-- rules_text: whether field `rules` of a job says rules, in the way of rules/job_fields. Most jobs have none.
-- RETURNS whether a text says how calls merge, and what follows in the text: what it says of a key; "" for nothing.
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
function rules_text.are_rules(text, id)
    local has_key = string.sub(id, -1) == protocol.MARK
    if marks.of(id) == protocol.MERGES then
        local is_good, of_key = read_merge(text)
        return is_good and (has_key and is_of_key(of_key) or not has_key and of_key == "")
    end
    return has_key and is_of_key(text)
end
