-- candidates: the pending jobs among which a fill chooses, the best one first.
-- Cost: some commands for each type, once in a call; then each job that is popped costs O(log n).
-- @include placing/heads.lua
-- @include placing/lanes.lua

-- RETURNS those of the types `waiting` among which one call chooses, since of each the free slots are looked up: those
-- with jobs on demand first; and the others, each with a blank behind it. Removes the `heads` of the others.
local function some_of(waiting, heads)
    local some, left = {}, {}
    for _, has_demand in ipairs({ true, false }) do
        for _, type in ipairs(waiting) do
            if (string.find(heads[type], "demand.", 1, true) ~= nil) == has_demand then
                local list = #some < protocol.MOST_CHOSEN_FROM and some or left
                list[#list + 1] = type
            end
        end
    end
    for _, type in ipairs(left) do
        heads[type] = nil
    end
    return some, table.concat(left, " ") .. " "
end

-- RETURNS the pending jobs of `types`, among which `view` says for which a slot is free. Mostly these are jobs of one
-- lane: what chooses among several lanes is defined when there are several. `left`: types that the call does not choose
-- from, each with a blank behind it.
local function candidates(types, view, settings)
    local waiting, heads, has_type_rules = lanes.heads(types)
    local left = ""
    if not view.left and #waiting > protocol.MOST_CHOSEN_FROM then -- a view of all slots
        waiting, left = some_of(waiting, heads)
    end
    local limits = {} -- of types that have one; "closed" when as many of their jobs run
    local kept_back -- what reserves keep back; nil for nothing
    if has_type_rules then
        waiting, limits, kept_back = of_type("open", waiting, heads, settings, view.is_ahead)
        view = kept_back and view.of_all and view.of_all() or view -- jobs may wait beside any free slot
    end
    local changed = {} -- types whose heads are to be written
    local choice

    local function write_heads()
        for type in pairs(changed) do
            lanes.write(type, heads[type] or "")
        end
        changed = {}
    end

    return {
        types = waiting,
        heads = heads,
        left = left,

        -- RETURNS the job that goes first of those that a free slot fits, or nil.
        best = function()
            local one = next(heads)
            if not one then
                return nil
            end
            local has_one_lane = #waiting == 1 and string.find(heads[one], "^%l+%.%d+ %d+ %S+$")
            if has_one_lane and not choice then
                local is_open = view.any_free(one) and not (kept_back and kept_back.open(one, heads[one], view) == "")
                return is_open and lanes.job(one, heads[one], 1)
            end
            if not choice then
-- @deferred placing/which_job.lua
                choice = choice_among(waiting, heads, view, settings, kept_back)
            end
            return choice.first()
        end,

        pop = function(job)
            local type = job.type
            local before = heads[type]
            local after = lanes.pop(job, before)
            heads[type], changed[type] = after ~= "" and after or nil, true
            if choice then
                choice.popped(job, #after - #before)
            end
        end,

        write_heads = write_heads,
        view = view,
        limits = limits,

        -- `job` was claimed: a limit of its type, or a reserve for its class, counts it.
        count = function(job)
            if not (limits[job.type] or (kept_back and kept_back.covers(job.type, job.lane))) then
                return
            end
            write_heads()
            if of_type("hold", job.type, job.id, job.lane) then
                heads[job.type], limits[job.type] = nil, "closed"
            end
            if kept_back then
                kept_back.counted(job.type)
            end
        end,

        -- Reads the heads of the types that a rule has moved since.
        read_again = function()
            for nth, type in ipairs(waiting) do
                if moved[type] ~= nil and limits[type] ~= "closed" then
                    heads[type] = redis.call("HGET", key.heads, type) or nil
                    if choice then
                        choice.changed(nth)
                    end
                end
            end
        end,

        write = function()
            write_heads()
            if choice then
                choice.write()
            end
        end,
    }
end
