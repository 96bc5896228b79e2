-- join: a worker enters with its types and slots, or comes back with others and keeps the jobs that it holds.
-- RETURNS {unfilled, namesake, {replaced setting, ...}, void, now}; unfilled: as `fill` returns it. namesake: a live
-- worker with the same node name, or "". replaced: settings to which another app, or another version of this one, gave
-- other values. void: a claim with this fencing number, or a smaller one, is not the worker's own, even if it reads it
-- later; 0: the worker keeps its claims. now: the server's time, µs, by which jobs expire that wait in the worker.
-- Cost: that of `fill`, and O(types).
function functions.join(ARGV)
    idle_libraries.collect_in_steps()
    local worker = ARGV[1] -- id, one for each run of a worker process
    local name = ARGV[2] -- node name, encoded
    local slots_in_all = ARGV[3]
    local other = ARGV[4] -- slots occupied by requests without a claim, less the slots that claims lend
    local profile = ARGV[5] -- id, one for each set of types
    local types = workers.split(ARGV[6]) -- encoded and separated by blanks
    local app = ARGV[7] -- encoded
    local stops = ARGV[8] -- "force", or the tasks that it can stop, encoded and separated by blanks; "" for none
    local priority = ARGV[9] -- among equally specialised workers (`placement`): a whole number
    -- ARGV[10..]: name, value of each setting in its app.conf

    redis.call("SET", key.schema, protocol.SCHEMA, "NX") -- on a server that was emptied under a running fleet
    local replaced = {}
    local accepting = redis.call("HGET", key.worker(worker), "accepting")
    local void = accepting == "1" and 0 or tonumber(redis.call("GET", key.fence)) or 0
    if accepting then
        workers.detach(worker)
    else
        -- Only a new worker's settings are adopted: else an old version of an app would undo what a new one said.
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
