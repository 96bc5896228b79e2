-- filters: rules that keep a job from starting now. A claim asks all filters about the head of a lane before it
-- computes the head's score. `none`: whether there are no filters.
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
