-- with_rules: where a job with rules goes another way than others. The end of its id says so (`protocol.MARK`): who has
-- an id alone knows that there is more to do, and a job without rules costs one comparison.

-- Has a job wait: in its lane, unless a rule keeps it back. `fresh`: the job as it was published just now; nil for one
-- that was known before.
function with_rules.wait(id, type, lane, enqueued, fresh)
    if marks.has_rules(id) then
        keyed.enter(id, type, lane, enqueued, fresh)
    else
        lanes.add(id, type, lane, enqueued)
    end
    if marks.of(id) == protocol.BATCH then
        waiting_calls.add(type, waiting_calls.of(id))
    end
end

-- Removes a job that waits from where it waits.
function with_rules.leave(id, type, lane)
    if marks.of(id) == protocol.BATCH then
        waiting_calls.add(type, -waiting_calls.of(id))
    end
    if marks.has_rules(id) then
        keyed.leave(id, type, lane)
    else
        lanes.remove(id, type, lane)
    end
end

-- The claim of a job was removed: what the job held is free. `is_limited`: whether a limit of its type counted it.
-- `rules`, `name`: what the job's row says of its rules, and of its task.
function with_rules.free(id, type, is_limited, rules, name)
    if is_limited and type then
        type_rules.free(type, id) -- first: the retry of a job is not to be kept back by that job
    end
    if marks.has_rules(id) then
        keyed.free(id, type, rules, name)
    end
end

-- RETURNS the types of which a rule has let a job go on since.
function with_rules.gained()
    local types = {}
    for type, has_gained in pairs(call.moved) do
        types[#types + 1] = has_gained and type or nil
    end
    return types
end

-- RETURNS `types`, and those of which a rule has let a job go on since: these are for a script to fill, once. There may
-- be very many: a second value names those that are left, each with a blank behind it, for the caller to `claim`.
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
