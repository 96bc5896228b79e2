-- marks: what the end of an id says of merging. A mark that the job has a key may follow.
local marks = {}

local function mark_of(id)
    local last = string.sub(id, -1)
    return last == protocol.MARK and string.sub(id, -2, -2) or last
end

-- RETURNS whether job `id` is one call that merges with others, or several that did.
function marks.is_mergeable(id)
    local mark = mark_of(id)
    return mark == protocol.MERGES or mark == protocol.BATCH
end

-- RETURNS whether job `id` is several calls that merged.
function marks.is_batch(id)
    return mark_of(id) == protocol.BATCH
end
