-- filters: rules that keep a job from starting now, such as a quota; there is none so far. A rule appends a function:
-- type, lane, id -> whether the job may start; and sets `none`, which says that there are no filters, to false. A claim
-- asks all filters about the head of a lane before it computes the head's score: a head that is kept back keeps its
-- whole lane back. While there are filters, no best heads are cached.
local filters = { none = true }

-- RETURNS whether job `id`, the head of `lane`, may start.
function filters.admit(type, lane, id)
    for _, admits in ipairs(filters) do
        if not admits(type, lane, id) then
            return false
        end
    end
    return true
end
