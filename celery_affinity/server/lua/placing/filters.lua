-- filters: what may not start now. Each looks at the head of a lane and says whether it may;
-- a claim asks all of them before it computes a score.
local filters = { none = true }

function filters.admit(type, lane, id)
    for _, admits in ipairs(filters) do
        if not admits(type, lane, id) then
            return false
        end
    end
    return true
end
