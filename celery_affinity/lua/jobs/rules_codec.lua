-- rules_codec: parses the string of a job's rules (`schema/rules_codec.py`): "merge=K most=N bytes=N wait=US/US near=H
-- key=rate%3AK rate=N/US key=K limit=N key=tenant%3AK quota=settings preemptible=1". The first two keys can have any
-- order. Each part, and the last word, is present only if the job has it. In all functions, `text` can be nil.

-- Returns the merge key, or nil.
function rules_codec.merge_key(text)
    return string.match(text or "", "^merge=(%S+)")
end

-- Returns the value of a one-word rule (`schema/rules_codec.py`, `WORDS`), or nil.
function rules_codec.word(text, word)
    return string.match(text or "", word .. "=(%S+)")
end

-- Returns the hint, or nil.
function rules_codec.hint(text)
    return rules_codec.word(text, "near")
end

-- Returns the maximum number of calls and of message bytes per run.
function rules_codec.bounds(text)
    local most, most_bytes = string.match(text, " most=(%d+) bytes=(%d+)") -- nil: the usual limits
    return tonumber(most or protocol.USUAL_MOST), tonumber(most_bytes or protocol.USUAL_MOST_BYTES)
end

-- Returns the merge window in µs, which restarts with each call, and its maximum total length. Returns nil without a
-- merge window.
function rules_codec.wait(text)
    local wait_us, at_most_us = string.match(text, " wait=(%d+)/(%d+)")
    return tonumber(wait_us), tonumber(at_most_us)
end

local meanings = memo.cache()

-- Returns the parsed keys of `text`.
local function keys_in(text)
    local list = {}
    for name, states, option in string.gmatch(text, "key=(%S+) %l+=(%S+) ?([op]?)") do
        local tenant = tenants.is_one(name) and tenants.name_of(name)
        list[#list + 1] = {
            key = name, states = states, keeps_order = option == "o", tenant = tenant, is_preemptible = option == "p",
        }
    end
    return list
end

-- Returns the keys in the order in which the job passes them: a shared list of tables that must not be changed.
--   key: name of the key.
--   states: limit or rate that the job sets for it; BY_SETTINGS for a tenant.
--   keeps_order: true if the job's retry should get the key before other jobs.
--   tenant: name of the key's tenant; false for other keys.
--   is_preemptible: true if the job can be stopped for another tenant.
function rules_codec.keys(text)
    text = text or ""
    return meanings.of[text] or memo.keep(meanings, text, keys_in(text))
end

-- Returns the part of the string about keys, or "".
function rules_codec.of_keys(text)
    return string.match(text or "", "key=.*$") or ""
end
