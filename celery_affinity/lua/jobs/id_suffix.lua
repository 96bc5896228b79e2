-- id_suffix: the characters at the end of a job id that name the job's rules. They follow each other in this order:
--   "~": a locality hint (`locality`).
--   "+": a call that merges with other calls. "*": a batch of such calls (`merge`).
--   "!": one key. "&": several keys. "$": only the key of the job's tenant (`gate`).
-- A server function can therefore select the rules from the id, and a job without rules costs one comparison. The
-- characters are defined in `schema/rules_codec.py`.
local KEY_SUFFIXES = protocol.MARKS_OF_KEYS
local HINTED = protocol.ENDS.HINTED

-- Returns the last character of an id before its key suffix ("+", "*" or any other one), and the last character of the
-- id.
function id_suffix.of(id)
    local last = string.sub(id, -1)
    return KEY_SUFFIXES[last] and string.sub(id, -2, -2) or last, last
end

-- Returns the id of the batch that begins with the call `first`.
function id_suffix.batch_of(first)
    local suffix = id_suffix.has_key(first) and string.sub(first, -1) or ""
    return string.sub(first, 1, -2 - #suffix) .. protocol.BATCH .. suffix
end

-- Returns true if job `id` has a key.
function id_suffix.has_key(id)
    return KEY_SUFFIXES[string.sub(id, -1)] == true
end

-- Returns true if job `id` can have a tenant, with or without other keys.
function id_suffix.may_have_tenant(id)
    return KEY_SUFFIXES[string.sub(id, -1)] == true and string.sub(id, -1) ~= protocol.KEYED
end

-- Returns true if the tenant's key is the only key of job `id`.
function id_suffix.has_only_tenant(id)
    return string.sub(id, -1) == protocol.TENANTED
end

-- Returns true if job `id` has more than one key.
function id_suffix.has_many_keys(id)
    return string.sub(id, -1) == protocol.MANY_KEYED
end

-- Returns true if job `id` has a hint.
function id_suffix.has_hint(id)
    return string.find(id, HINTED, -3) ~= nil
end
