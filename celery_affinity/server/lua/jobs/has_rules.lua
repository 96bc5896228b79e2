-- has_rules: which jobs have rules, as the end of their ids says, and what rules have moved in this call.
local moved -- types whose lanes a rule has changed -> whether one of their jobs may start now; nil for none
local before_heads_change = false -- what a claim that is under way does before a rule reads or writes heads

-- RETURNS whether job `id` has a key, and so rules of it
local function has_rules(id)
    return string.sub(id, -1) == protocol.MARK
end
