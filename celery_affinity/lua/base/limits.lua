-- limits: what the setting `limits` says: words "pattern=number", "rate:pattern=N/US" for keys, in the order in which
-- they count, and "type:T=number" for types, all percent-encoded (settings/limits.py). A `text` may be nil.
local OF_A_TYPE = "%f[^%s%z]type%%3A(%S+)=(%d+)"

-- RETURNS an iterator over the types that have a limit, and their limits, texts.
function limits.of_types(text)
    return string.gmatch(text or "", OF_A_TYPE)
end

-- RETURNS the first type with a limit from `place` in `text` on, and the place behind it; nil if there is none.
function limits.next_type(text, place)
    local _, last, type = string.find(text, OF_A_TYPE, place)
    return type, last and last + 1
end

-- RETURNS what the setting says of keys: its other words. There may be thousands of types.
function limits.of_keys(text)
    local words = string.gsub(text or "", "%f[^%s%z]type%%3A%S+ *", "")
    return string.match(words, "^ *(.-) *$")
end
