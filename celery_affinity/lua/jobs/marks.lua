-- marks: what the end of a job's id says: "!" for a job with a key (`keyed`), "+" for a call that merges with others,
-- "*" for a batch of such calls (`merging`); "!" is last if there are two. So an arrow that has an id alone knows what
-- there is to do, and a job without rules costs a comparison.

-- RETURNS the end of an id but for "!": "+", "*", or any other character.
function marks.of(id)
    local last = string.sub(id, -1)
    return last == protocol.KEYED and string.sub(id, -2, -2) or last
end

-- RETURNS the id of the batch that begins with the call `first`.
function marks.batch_of(first)
    local mark = marks.has_key(first) and protocol.KEYED or ""
    return string.sub(first, 1, -2 - #mark) .. protocol.BATCH .. mark
end

-- RETURNS whether job `id` has a key.
function marks.has_key(id)
    return string.sub(id, -1) == protocol.KEYED
end
