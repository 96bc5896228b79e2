-- marks: what the end of an id says of merging.

-- RETURNS the end of an id but for the mark of a key, which may follow: that of a call that merges, or of a batch of
-- calls that did; else any character.
function marks.of(id)
    local last = string.sub(id, -1)
    return last == protocol.MARK and string.sub(id, -2, -2) or last
end

-- RETURNS the id of the batch that begins with the call `first`.
function marks.batch_of(first)
    local mark = string.sub(first, -1) == protocol.MARK and protocol.MARK or ""
    return string.sub(first, 1, -2 - #mark) .. protocol.BATCH .. mark
end

-- RETURNS whether job `id` has a key, and so rules of it.
function marks.has_rules(id)
    return string.sub(id, -1) == protocol.MARK
end
