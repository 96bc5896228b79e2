-- rules_codec: checks and parses the string of a job's rules. `schema/rules_codec.py` declares the grammar. FORMS,
-- which is generated from it, has the forms of rules by the words of their tokens, such as "key limit":
--   kind: a job has at most one rule of each kind.
--   place: rules are in the order of their places.
--   is_key: true for the rule of a key.
--   pattern: matches the rule, with a capture for each value.
--   longest: maximum length of each value.
--   excluded: patterns that the rule must not match.

local suffixes = memo.cache()

-- Returns true if the string `rule` has this form.
local function has_form(rule, form)
    local values = { string.match(rule, form.pattern) }
    for nth, longest in ipairs(form.longest) do
        if not values[nth] or #values[nth] > longest then
            return false
        end
    end
    for _, pattern in ipairs(form.excluded) do
        if string.find(rule, pattern) then
            return false
        end
    end
    return true
end

-- Returns the kinds of the rules in `text`, a non-empty string, and the number of keys. Returns nil if the rules are
-- not valid.
local function read_kinds(text)
    local kinds, keys, place = {}, 0, 0
    if not string.find(text, "^[!-~][ -~]*$") then
        return nil
    end
    local rules = string.gsub(text, " (%l+)=", rules_codec.STARTS) -- a line for each rule
    for rule in string.gmatch(rules, "[^\n]+") do
        local form = rules_codec.FORMS[string.gsub(rule, "=%S*", "")]
        if not form or kinds[form.kind] or form.place < place or not has_form(rule, form) then
            return nil
        end
        kinds[form.kind], place, keys = true, form.place, keys + (form.is_key and 1 or 0)
    end
    return kinds, keys
end

-- Returns the id suffix of a job with the rules `text`, a non-empty string, or nil if the rules are not valid.
function rules_codec.suffix(text)
    if suffixes.of[text] then
        return suffixes.of[text]
    end
    local kinds, keys = read_kinds(text)
    if not kinds then
        return nil
    end
    local of_keys = keys > 1 and protocol.MANY_KEYED or kinds.tenant and protocol.TENANTED
        or keys == 1 and protocol.KEYED or ""
    local before = (kinds.locality and protocol.HINTED or "") .. (kinds.merge and protocol.MERGES or "")
    return memo.keep(suffixes, text, before .. of_keys)
end

-- Returns the merge key, or nil. In this and the following functions, `text` comes from a job hash, and can be nil.
function rules_codec.merge_key(text)
    return string.match(text or "", "^merge=(%S+)")
end

-- Returns the hint, or nil.
function rules_codec.hint(text)
    return string.match(text or "", "near=(%S+)")
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

-- id_suffix: the characters at the end of a job id that name the job's rules. They follow each other in this order:
--   "~": a locality hint (`locality`).
--   "+": a call that merges with other calls. "*": a batch of such calls (`merge`).
--   "!": one key. "&": several keys. "$": only the key of the job's tenant (`gate`).
-- A server function can therefore select the rules from the id, and a job without rules costs one comparison. The
-- characters are defined in `schema/rules_codec.py`.
local KEY_SUFFIXES, HINT_SUFFIX = protocol.MARKS_OF_KEYS, protocol.HINT_SUFFIX

-- Returns the suffix of an id, or "".
function id_suffix.whole(id)
    return string.match(id, protocol.SUFFIX, -3)
end

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
    return string.find(id, HINT_SUFFIX, -3) ~= nil
end
