-- texts: texts that are words, separated by blanks, and patterns.

-- RETURNS how many words there are in `text`; nil and false have none.
function texts.number_of_words(text)
    return select(2, string.gsub(text or "", "%S+", ""))
end

-- RETURNS whether `word` is one of the words in `text`; nil and false have none.
function texts.has_word(text, word)
    return string.find(" " .. (text or "") .. " ", " " .. word .. " ", 1, true) ~= nil
end

-- RETURNS the number that a field of a hash counts; 0 if the field is missing, or has no such number.
function texts.count(value)
    return value and #value <= 9 and tonumber(string.match(value, "^%d+$")) or 0
end

-- RETURNS the name that was percent-encoded as `word`.
function texts.decoded(word)
    return (string.gsub(word, "%%(%x%x)", function(digits)
        return string.char(tonumber(digits, 16))
    end))
end

-- RETURNS whether `name` matches `pattern`, in which "*" stands for any text.
function texts.matches(pattern, name)
    local of_lua = string.gsub(string.gsub(pattern, "[-.%%]", "%%%0"), "%*", ".*")
    return string.find(name, "^" .. of_lua .. "$") ~= nil
end
