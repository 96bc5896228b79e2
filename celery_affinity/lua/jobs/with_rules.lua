-- with_rules: where a job with a key, a batch, or a job of a type with a limit, goes another way than other jobs.

-- Has a job wait: in its lane, unless its key keeps it back. `fresh`: the job, if it was published just now; else nil.
function with_rules.wait(id, type, lane, enqueued, fresh)
    if marks.has_rules(id) then
        keyed.enter(id, type, lane, enqueued, fresh)
    else
        lanes.add(id, type, lane, enqueued)
    end
    if marks.of(id) == protocol.BATCH then
        callers.count_waiting(type, callers.beyond_one(id))
    end
end

-- Removes a job that waits from where it waits.
function with_rules.leave(id, type, lane)
    if marks.of(id) == protocol.BATCH then
        callers.count_waiting(type, -callers.beyond_one(id))
    end
    if marks.has_rules(id) then
        keyed.leave(id, type, lane)
    else
        lanes.remove(id, type, lane)
    end
end

-- Frees what a job held whose claim was removed: its key, and its part of the limit of its type. `is_limited`, `rules`,
-- `name`: what the job's row says: whether a limit or reserve counted it, its rules, the name of its task.
function with_rules.free(id, type, is_limited, rules, name)
    if is_limited and type then
        type_rules.free(type, id) -- first: else the type may be full still, and the job's retry not get the key
    end
    if marks.has_rules(id) then
        keyed.free(id, type, rules, name)
    end
end

-- RETURNS the types of which a rule has let jobs start in this call.
function with_rules.gained()
    local types = {}
    for type, has_gained in pairs(call.moved) do
        types[#types + 1] = has_gained and type or nil
    end
    return types
end

-- RETURNS `types`, and those of which a rule has let jobs start: the caller fills them, once. At most MOST_GAINED are
-- added: a second value names the others, each with a blank behind it, for `claim`.
function with_rules.and_gained(types)
    local all, left = { unpack(types) }, ""
    for nth, type in ipairs(with_rules.gained()) do
        if nth <= protocol.MOST_GAINED then
            all[#all + 1] = type
        else
            left = left .. type .. " "
        end
    end
    call.moved = {}
    return all, left
end
