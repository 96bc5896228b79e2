-- join: registers a worker with its types and slots. A worker that joins again can change both, and keeps its claims.
--
-- Returns {unfilled, namesake, {replaced setting, ...}, void, now}.
--   unfilled: see `fill`.
--   namesake: a live worker with the same node name, or "".
--   replaced: settings whose values, set by another app or another version of this one, were replaced.
--   void: claims with this fencing token or a lower one no longer belong to the worker, even if it reads them later. 0
--     if the worker keeps its claims.
--   now: server time in µs, for jobs that expire while they wait in the worker.
-- Cost: the cost of `fill`, and O(types).
function functions.join(ARGV)
    idle_libraries.collect_in_steps()
    local worker = ARGV[1] -- one id per run of a worker process
    local name = ARGV[2] -- node name, encoded
    local slots_in_all = ARGV[3]
    local other = ARGV[4] -- slots occupied by requests without a claim, minus the slots that claims lend
    local profile = ARGV[5] -- one id per set of types
    local types = workers.split(ARGV[6]) -- encoded and separated by spaces
    local app = ARGV[7] -- encoded
    local stops = ARGV[8] -- "force", or the tasks that it can stop, encoded and separated by spaces, or ""
    local priority = ARGV[9] -- an integer, compared between equally specialised workers (`placement`)
    -- ARGV[10..]: name, value, ...: settings in its app.conf

    redis.call("SET", key.schema, protocol.SCHEMA, "NX") -- for a server that was flushed while workers ran
    local replaced = {}
    local accepting = redis.call("HGET", key.worker(worker), "accepting")
    local void = accepting == "1" and 0 or tonumber(redis.call("GET", key.fence)) or 0
    if accepting then
        workers.detach(worker)
    else
        -- Only a new worker's settings are adopted. Otherwise workers of an old app version would undo the settings of
        -- a new version.
        replaced = settings_in_force.adopt(app, ARGV, 10)
    end
    settings_in_force.keep(app)
    local namesake = redis.call("HGET", key.names, name)
    redis.call("HSET", key.names, name, worker)
    redis.call("HSET", key.worker(worker), "name", name, "profile", profile, "slots", slots_in_all, "other", other,
        "app", app)
    if stops ~= "" then
        redis.call("HSET", key.worker(worker), "stops", stops)
    end
    hash.write(key.worker(worker), "priority", priority ~= "0" and priority)
    redis.call("ZADD", key.heartbeats, call.now, worker)
    redis.call("ZADD", key.joined, "NX", call.now, worker)
    workers.say_what_is_kept(worker)
    workers.attach(worker, profile, types)

    hooks.recheck() -- the adopted settings may have changed limits
    local unfilled = fill.fill(types, "", settings_in_force.read(), slot_choice.view())[1]
    if unfilled == "" then
        prefetch.ask(worker, types, tonumber(redis.call("HGET", key.worker(worker), "free") or 0))
    end
    return { unfilled, namesake and namesake ~= worker and namesake or "", replaced, void, call.now_us }
end
