-- utf8: checks human-readable names, such as task names.

-- Returns true if `name` is valid UTF-8. Each valid sequence is replaced by "?", not removed: the bytes before and
-- after it must not form another sequence.
function utf8.is_good(name)
    for _, sequence in ipairs({
        "[\194-\223][\128-\191]", "\224[\160-\191][\128-\191]", "\237[\128-\159][\128-\191]",
        "[\225-\236\238\239][\128-\191][\128-\191]", "\240[\144-\191][\128-\191][\128-\191]",
        "[\241-\243][\128-\191][\128-\191][\128-\191]", "\244[\128-\143][\128-\191][\128-\191]",
    }) do
        name = string.gsub(name, sequence, "?")
    end
    return not string.find(name, "[\128-\255]")
end
