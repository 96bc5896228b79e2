-- repair: rebuilds keys and entries that another client deleted or overwrote, or quarantines them.
-- Dispatchers call it every now and then, and a process whose call of an arrow failed calls it at once.
-- RETURNS {next, {type, ...}, {what, ...}}; next: the `first` of the next call, -1 if that was all. types: those of
-- which pending jobs may have been found. what: what was found, by arrows since the last call as well.
-- Cost: some commands at 0, which read all profiles; then that of MOST_LOOKS keys, and those of one worker, profile,
-- type, key or recurring call. O(workers) if sums are made because an arrow failed or they do not agree.
local MOST_LOOKS = 60 -- keys that a call looks at, each with about two commands
local MOST_KEYS = 2000 -- keys of rules that one repair looks at: of very many, each call looks at others
local MOST_IN_A_PAGE = 24 -- members or fields that are read at once
-- `first` is the number of a stage times STAGE, and where the stage goes on: a position in a sorted set; or the cursor
-- of a page of a hash times PAGE, and a position in that page. All are below 2^53, up to which numbers are exact.
local STAGE, PAGE = 100000000000000, 100000

-- Errors that corrupt data cause: in Redis commands, and in Lua.
local OF_DAMAGE = { "WRONGTYPE", "attempt to ", "not an integer", "not a valid float", "spoiled " }

-- Returns true if `failure`, a value that `pcall` returned, is an error that corrupt data cause.
local function is_of_damage(failure)
    local text = type(failure) == "table" and failure.err or tostring(failure)
    for _, part in ipairs(OF_DAMAGE) do
        if string.find(text, part, 1, true) then
            return true
        end
    end
    return false
end

-- Returns what `fix` returns. If corrupt data fail it, the rest is repaired nevertheless, and the finding UNFINISHED
-- tells the caller to repair once more: the data may be those of a later stage.
local function try(fix, ...)
    local is_done, result = pcall(fix, ...)
    if is_done then
        return result
    elseif not call.found and not is_of_damage(result) then
        error(result, 0)
    end
    rebuild.found(protocol.UNFINISHED)
    return nil
end

-- Has `fix` look at members of the sorted set `name` and their scores, from position `at` on: of all, or of the `most`
-- whose part it is. RETURNS where to go on, nil if those were all.
local function fix_members(name, at, thorough, fix, most)
    local parts = most and math.ceil(redis.call("ZCARD", key[name]) / most) or 1
    local part = math.floor(call.now_us / protocol.REPAIRED_EVERY_US) % math.max(1, parts)
    local from = at + part * (most or 0)
    local page = redis.call("ZRANGE", key[name], from, from + MOST_IN_A_PAGE - 1, "WITHSCORES")
    for i = 1, #page, 2 do
        if at == most or rebuild.looks >= MOST_LOOKS then
            break
        end
        try(fix, page[i], page[i + 1], thorough)
        at = at + 1
    end
    return #page > 0 and at ~= most and at or nil
end

-- Has `fix` look at fields of the hash `name`, from `cursor` on. RETURNS where to go on, nil if those were all.
local function fix_fields(name, cursor, thorough, fix)
    local page, at = math.floor(cursor / PAGE), cursor % PAGE
    local following, fields = unpack(redis.call("HSCAN", key[name], call.text(page), "COUNT", MOST_IN_A_PAGE))
    for position = at, #fields / 2 - 1 do -- of a small hash, a page has all fields
        if rebuild.looks >= MOST_LOOKS then
            return page * PAGE + position
        end
        try(fix, fields[2 * position + 1], name, thorough)
    end
    return following ~= "0" and tonumber(following) * PAGE or nil
end

-- Does what stage 0 does. `names`: what the arrow was called with that failed.
local function fix_first(thorough, names)
    repair_single_keys.fix()
    if thorough then
        repair_jobs.fix_named(names)
    end
    repair_workers.fix_all(thorough)
end

-- RETURNS the other stages, in order: how to go through a key, its name, and what fixes what is found there.
local function stages()
    return {
        { fix_members, "joined", repair_workers.fix },
        { fix_fields, "profiles", repair_workers.fix_profile },
        { fix_fields, "heads", repair_types.fix },
        { fix_fields, "capacity", repair_types.fix },
        { fix_fields, "kept_lanes", repair_types.fix },
        { fix_fields, "waiting_calls", repair_types.fix },
        { fix_members, "due_keys", repair_keyed.fix_hash, MOST_KEYS },
        { fix_members, "rates", repair_keyed.fix_hash, MOST_KEYS },
        { fix_members, "waiting_keys", repair_keyed.fix, MOST_KEYS },
        { fix_fields, "first_heads", repair_minimums.fix },
        { fix_fields, "near_heads", repair_locality.fix },
        { fix_members, "recurring", repair_recurring.fix },
        { fix_fields, "recurs", repair_recurring.fix_place },
    }
end

-- Goes on with a stage at `at`. RETURNS where it goes on in the next call, nil if it is done.
local function fix(stage, at, thorough, names)
    if stage == 0 then
        return fix_first(thorough, names)
    end
    local go_through, name, fix_each, most = unpack(stages()[stage])
    return go_through(name, at, thorough, fix_each, most)
end

-- Goes on at `first`, a number as a call has it, as far as this is one stage. `how`: as the arrow is called. RETURNS
-- the number at which to go on, -1 if that was all.
local function go_on(first, how, names)
    local stage = math.floor(first / STAGE)
    local following = try(fix, stage, first % STAGE, how ~= "0", names)
    if following then
        return stage * STAGE + following
    end
    return stages()[stage + 1] and (stage + 1) * STAGE or -1
end

function functions.repair(ARGV)
    local first = tonumber(ARGV[1]) -- 0, or what the last call returned
    local how = ARGV[2] -- "1": an arrow failed, or a person asks; "2": the same, but nothing is to change; else "0"
    -- ARGV[3..]: what that arrow was called with
    local names, following = { unpack(ARGV, 3) }, first
    rebuild.begin()
    call.found = how == "2" and {}
    repeat
        following = go_on(following, how, names)
    until following == -1 or rebuild.looks >= MOST_LOOKS
    return { following, hooks.to_fill(), call.found or corrupt.take() }
end
