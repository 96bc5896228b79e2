-- rule_texts: what the text of a job's rules says (`rules/rule_texts.py`): "merge=K most=N bytes=N wait=US/US key=K
-- limit=N", each part only of a job that has it. A `text` may be nil.

-- RETURNS the key by which calls merge; nil without one.
function rule_texts.merge_key(text)
    return string.match(text or "", "^merge=(%S+)")
end

-- RETURNS how many calls are one run at most, and how many bytes of messages.
function rule_texts.bounds(text)
    local most, most_bytes = string.match(text, " most=(%d+) bytes=(%d+)") -- nil: the usual bounds
    return tonumber(most or protocol.USUAL_MOST), tonumber(most_bytes or protocol.USUAL_MOST_BYTES)
end

-- RETURNS how long, µs, the first call and each further one has a run wait for more, and all together; nil: not at all.
function rule_texts.wait(text)
    local wait_us, at_most_us = string.match(text, " wait=(%d+)/(%d+)")
    return tonumber(wait_us), tonumber(at_most_us)
end

-- RETURNS the exclusive key; the limit or rate that it states; and "" or more words. nil without a key.
function rule_texts.key(text)
    return string.match(text or "", "key=(%S+) %l+=(%S+)(.*)$")
end

-- RETURNS all that the text says of an exclusive key; "" for nothing.
function rule_texts.of_key(text)
    return string.match(text or "", "key=.*$") or ""
end
