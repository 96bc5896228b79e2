-- tasks: the jobs of a task id: several, if it was retried or published to several queues. One that has ended is kept
-- for a while, if it was the last.
local tasks = {}

function tasks.add(task, id)
    if task == "" then
        return
    end
    if redis.call("SET", key.task(task), id, "NX") then
        return
    end
    local has_ended = redis.call("PTTL", key.task(task)) ~= -1
    local others = has_ended and "" or redis.call("GET", key.task(task)) .. " "
    redis.call("SET", key.task(task), others .. id)
end

-- Takes `id` out; the last one of its task is kept for `keep_s` seconds, if that is above 0.
function tasks.remove(task, id, keep_s)
    local ids = redis.call("GET", key.task(task)) or ""
    if ids == id and keep_s > 0 then
        redis.call("EXPIRE", key.task(task), keep_s)
        return
    end
    local left = {}
    for each in string.gmatch(ids, "%S+") do
        if each ~= id then
            left[#left + 1] = each
        end
    end
    if #left > 0 then
        redis.call("SET", key.task(task), table.concat(left, " "))
    else
        redis.call("UNLINK", key.task(task))
    end
end
