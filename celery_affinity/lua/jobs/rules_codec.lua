-- rules_codec: what the text of a job's rules says (`schema/rules_codec.py`): "merge=K most=N bytes=N wait=US/US
-- near=H key=rate%3AK rate=N/US key=K limit=N key=tenant%3AK quota=settings preemptible=1", the first two keys in any
-- order, each part, and the last word, only of a job that has it. A `text` may be nil.

-- RETURNS the key by which calls merge; nil without one.
function rules_codec.merge_key(text)
    return string.match(text or "", "^merge=(%S+)")
end

-- RETURNS the value of a rule of one word (`known_marks.WORDS`); nil without one.
function rules_codec.word(text, word)
    return string.match(text or "", word .. "=(%S+)")
end

-- RETURNS the hint; nil without one.
function rules_codec.hint(text)
    return rules_codec.word(text, "near")
end

-- RETURNS how many calls are one run at most, and how many bytes of messages.
function rules_codec.bounds(text)
    local most, most_bytes = string.match(text, " most=(%d+) bytes=(%d+)") -- nil: the usual bounds
    return tonumber(most or protocol.USUAL_MOST), tonumber(most_bytes or protocol.USUAL_MOST_BYTES)
end

-- RETURNS how long, µs, the first call and each further one has a run wait for more, and all together; nil: not at all.
function rules_codec.wait(text)
    local wait_us, at_most_us = string.match(text, " wait=(%d+)/(%d+)")
    return tonumber(wait_us), tonumber(at_most_us)
end

local meanings = memo.cache()

-- RETURNS the keys that `text` says.
local function keys_in(text)
    local list = {}
    for its_key, states, more in string.gmatch(text, "key=(%S+) %l+=(%S+) ?([op]?)") do
        local tenant = tenants.is_one(its_key) and tenants.name_of(its_key)
        list[#list + 1] = {
            key = its_key, states = states, keeps_order = more == "o", tenant = tenant, is_preemptible = more == "p",
        }
    end
    return list
end

-- RETURNS the keys in the order in which the job passes them, a list of tables, which nobody changes: the key; states:
-- the limit or rate that the job states of it, BY_SETTINGS of a tenant; keeps_order: whether the job's retry is to have
-- the key before others; tenant: the name of the tenant whose key it is, false for other keys; is_preemptible: whether
-- the job may be stopped for another tenant.
function rules_codec.keys(text)
    text = text or ""
    return meanings.of[text] or memo.keep(meanings, text, keys_in(text))
end

-- RETURNS all that the text says of keys; "" for nothing.
function rules_codec.of_keys(text)
    return string.match(text or "", "key=.*$") or ""
end
