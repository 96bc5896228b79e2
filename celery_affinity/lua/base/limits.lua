-- limits: parses the setting `limits`. Its entries are percent-encoded and separated by spaces (settings/limits.py):
--   "pattern=number", "rate:pattern=N/US": limits of keys. The first matching entry applies.
--   "type:T=number": limit of a type.
-- In all functions, `text` can be nil.
local OF_A_TYPE = "%f[^%s%z]type%%3A(%S+)=(%d+)"

-- Returns an iterator over the limited types and their limits, as strings.
function limits.of_types(text)
    return string.gmatch(text or "", OF_A_TYPE)
end

-- Returns the first limited type at or after position `place` of `text`, and the position after its entry. Returns nil
-- if there is none.
function limits.next_type(text, place)
    local _, last, type = string.find(text, OF_A_TYPE, place)
    return type, last and last + 1
end

-- Returns the entries for keys. The entries for types are removed, because there can be thousands of types.
function limits.of_keys(text)
    local entries = string.gsub(text or "", "%f[^%s%z]type%%3A%S+ *", "")
    return string.match(entries, "^ *(.-) *$")
end
