-- of_batches: the way to what becomes of a batch, deferred: most calls of a script meet none.
-- @include jobs/ends.lua
-- @include jobs/callers.lua
-- @include jobs/spoiled.lua
local ways_of_batches -- the functions of batches.lua, once a call has met a batch

-- Does for a batch what the function `does` of batches.lua does.
local function of_batch(does, ...)
    if not ways_of_batches then
-- @deferred jobs/batches.lua
        ways_of_batches = { end_caller = batches.end_caller, meanwhile = batches.meanwhile,
            is_its_own = batches.is_its_own, bury = batches.bury, wait_again = batches.wait_again,
            forget_some = batches.forget_some, make_again = batches.make_again }
    end
    return ways_of_batches[does](...)
end
