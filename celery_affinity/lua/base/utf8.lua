-- utf8: names that people read, such as those of tasks.

-- RETURNS whether `name` is UTF-8. Each good sequence becomes "?" instead of nothing: the bytes on its two sides must
-- not make another sequence.
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
