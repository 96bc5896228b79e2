-- repair: rebuilds keys and entries that another client deleted or overwrote, or quarantines them. Dispatchers invoke
-- it periodically. A process also invokes it immediately after one of its server functions failed.
--
-- Returns {next, {type, ...}, {finding, ...}}.
--   next: argument `first` of the next invocation, or -1 when finished.
--   types: types that may have gained pending jobs.
--   findings: includes findings that other functions recorded since the last invocation.
-- Cost: some commands at 0, which read all profiles. Later invocations check MAX_LOOKS keys, plus the keys of one
-- worker, profile, type, job key or recurring call. O(workers) if counts are recomputed, after a failed function or an
-- inconsistency.
local MAX_LOOKS = 60 -- keys checked per invocation, with about two commands each
local MAX_KEYS = 2000 -- keys of rules checked per repair; each repair checks another part of a larger set
local MAX_IN_A_PAGE = 24 -- members or fields per read
-- `first` is the number of a stage times STAGE, plus a position in that stage. The position is a rank in a sorted set,
-- or the cursor of a hash page times PAGE plus a position in the page. All values are below 2^53, so they are exact.
local STAGE, PAGE = 100000000000000, 100000

-- Parts of the errors that corrupt data cause, in Redis commands and in Lua.
local CORRUPTION_ERRORS = { "WRONGTYPE", "attempt to ", "not an integer", "not a valid float", "spoiled " }

-- Returns true if `failure`, a value that `pcall` returned, is an error that corrupt data cause.
local function is_corruption_error(failure)
    local text = type(failure) == "table" and failure.err or tostring(failure)
    for _, part in ipairs(CORRUPTION_ERRORS) do
        if string.find(text, part, 1, true) then
            return true
        end
    end
    return false
end

-- Returns the result of `fix`. If corrupt data fail it, the repair continues. The finding UNFINISHED makes the caller
-- repair again, because the corrupt data may belong to a later stage.
local function try(fix, ...)
    local is_done, result = pcall(fix, ...)
    if is_done then
        return result
    elseif not call.found and not is_corruption_error(result) then
        error(result, 0)
    end
    rebuild.record_finding(protocol.UNFINISHED)
    return nil
end

-- Applies `fix` to members of the sorted set `name` and their scores, from position `at`. With `max_members`, only the
-- current part of the set is checked, of up to `max_members` members. Returns the next position, or nil when finished.
local function fix_members(name, at, thorough, fix, max_members)
    local parts = max_members and math.ceil(redis.call("ZCARD", key[name]) / max_members) or 1
    local part = math.floor(call.now_us / protocol.REPAIRED_EVERY_US) % math.max(1, parts)
    local from = at + part * (max_members or 0)
    local page = redis.call("ZRANGE", key[name], from, from + MAX_IN_A_PAGE - 1, "WITHSCORES")
    for i = 1, #page, 2 do
        if at == max_members or rebuild.looks >= MAX_LOOKS then
            break
        end
        try(fix, page[i], page[i + 1], thorough)
        at = at + 1
    end
    return #page > 0 and at ~= max_members and at or nil
end

-- Applies `fix` to fields of the hash `name`, from `cursor`. Returns the next cursor, or nil when finished.
local function fix_fields(name, cursor, thorough, fix)
    local page, at = math.floor(cursor / PAGE), cursor % PAGE
    local following, fields = unpack(redis.call("HSCAN", key[name], call.text(page), "COUNT", MAX_IN_A_PAGE))
    for position = at, #fields / 2 - 1 do -- a page of a small hash has all fields
        if rebuild.looks >= MAX_LOOKS then
            return page * PAGE + position
        end
        try(fix, fields[2 * position + 1], name, thorough)
    end
    return following ~= "0" and tonumber(following) * PAGE or nil
end

-- Runs stage 0. `names`: arguments of the failed function.
local function fix_first(thorough, names)
    repair_single_keys.fix()
    if thorough then
        repair_jobs.fix_named(names)
    end
    repair_workers.fix_all(thorough)
end

-- Returns the other stages in order: how to iterate over a key, the key's name, and the fix for its entries.
local function stages()
    return {
        { fix_members, "joined", repair_workers.fix },
        { fix_fields, "profiles", repair_workers.fix_profile },
        { fix_fields, "heads", repair_types.fix },
        { fix_fields, "capacity", repair_types.fix },
        { fix_fields, "kept_lanes", repair_types.fix },
        { fix_fields, "waiting_calls", repair_types.fix },
        { fix_members, "due_keys", repair_keyed.fix_hash, MAX_KEYS },
        { fix_members, "rates", repair_keyed.fix_hash, MAX_KEYS },
        { fix_members, "waiting_keys", repair_keyed.fix, MAX_KEYS },
        { fix_fields, "minimum_heads", repair_keyed.fix_minimums },
        { fix_fields, "hint_heads", repair_locality.fix },
        { fix_members, "recurring", repair_recurring.fix },
        { fix_fields, "recurring_matches", repair_recurring.fix_place },
        { fix_members, "due_times", function(id) projections.fix(id, key.due_times) end, MAX_KEYS },
    }
end

-- Continues at `first`, an argument of the function, within one stage. `how`: argument of the function. Returns the
-- next value of `first`, or -1 when finished.
local function run_stage(first, how, names)
    local stage, following = math.floor(first / STAGE), nil
    if stage == 0 then
        try(fix_first, how ~= "0", names)
    else
        local iterate, name, fix_entry, max_members = unpack(stages()[stage], 1, 4)
        following = try(iterate, name, first % STAGE, how ~= "0", fix_entry, max_members)
    end
    if following then
        return stage * STAGE + following
    end
    return stages()[stage + 1] and (stage + 1) * STAGE or -1
end

function functions.repair(ARGV)
    local first = tonumber(ARGV[1]) -- 0, or the last returned `next`
    local how = ARGV[2] -- "1": a function failed, or an operator's request; "2": the same as a dry run; otherwise "0"
    -- ARGV[3..]: arguments of the failed function
    local names, following = { unpack(ARGV, 3) }, first
    rebuild.begin()
    call.found = how == "2" and {}
    repeat
        following = run_stage(following, how, names)
    until following == -1 or rebuild.looks >= MAX_LOOKS
    return { following, hooks.types_to_fill(), call.found or corrupt.take() }
end
