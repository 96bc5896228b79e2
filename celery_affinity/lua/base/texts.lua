-- texts: strings that contain tokens separated by spaces, and patterns.

-- Returns the number of tokens in `text`; 0 if `text` is nil or false.
function texts.number_of_words(text)
    return select(2, string.gsub(text or "", "%S+", ""))
end

-- Returns true if `word` is a token of `text`, which can be nil or false.
function texts.has_word(text, word)
    return string.find(" " .. (text or "") .. " ", " " .. word .. " ", 1, true) ~= nil
end

-- Returns a counter field of a hash as a number, or 0 if the field is missing or is not a valid count.
function texts.count(value)
    return value and #value <= 9 and tonumber(string.match(value, "^%d+$")) or 0
end

-- Returns `word` percent-decoded.
function texts.decoded(word)
    return (string.gsub(word, "%%(%x%x)", function(digits)
        return string.char(tonumber(digits, 16))
    end))
end

-- Returns true if `name` matches `pattern`, where "*" matches any string.
function texts.matches(pattern, name)
    local lua_pattern = string.gsub(string.gsub(pattern, "[-.%%]", "%%%0"), "%*", ".*")
    return string.find(name, "^" .. lua_pattern .. "$") ~= nil
end
