-- id_suffix: what the end of a job's id says: "!" for a job with a key, "&" for one with several, "$" for one whose only
-- key is that of its tenant (`keyed`), "+" for a call that merges with others, "*" for a batch of such calls
-- (`merging`); the mark of keys is last. Before these "~" stands for a hint (`locality`). So an arrow that has
-- an id alone knows what there is to do, and a job without rules costs a comparison.
-- The marks: `schema/rules_codec.py`.
local OF_KEYS = protocol.MARKS_OF_KEYS
local HINTED = protocol.ENDS.HINTED

-- RETURNS the end of an id but for the mark of keys: "+", "*", or any other character; and the end with that mark.
function id_suffix.of(id)
    local last = string.sub(id, -1)
    return OF_KEYS[last] and string.sub(id, -2, -2) or last, last
end

-- RETURNS the id of the batch that begins with the call `first`.
function id_suffix.batch_of(first)
    local mark = id_suffix.has_key(first) and string.sub(first, -1) or ""
    return string.sub(first, 1, -2 - #mark) .. protocol.BATCH .. mark
end

-- RETURNS whether job `id` has a key.
function id_suffix.has_key(id)
    return OF_KEYS[string.sub(id, -1)] == true
end

-- RETURNS whether job `id` may have a tenant, among other keys or alone.
function id_suffix.may_have_tenant(id)
    return OF_KEYS[string.sub(id, -1)] == true and string.sub(id, -1) ~= protocol.KEYED
end

-- RETURNS whether the only key of job `id` is that of its tenant.
function id_suffix.has_only_tenant(id)
    return string.sub(id, -1) == protocol.TENANTED
end

-- RETURNS whether job `id` has more than one key.
function id_suffix.has_many_keys(id)
    return string.sub(id, -1) == protocol.MANY_KEYED
end

-- RETURNS whether job `id` has a hint.
function id_suffix.has_hint(id)
    return string.find(id, HINTED, -3) ~= nil
end
