-- ingest: a list of stock Celery -> pending, or scheduled. Moves the message that is next in a queue's list, as publish
-- does, if it is next there still: nobody else has it then, and a call that is repeated moves nothing twice.
-- RETURNS {state, more, served}: as publish does; state -1: another message is next, or none; 4: nobody can read the
-- message, or it says what is refused, and it is a dead letter. At -1, 0 and 5 (it has no id or type to be one)
-- nothing has changed.
-- @include generated/keys.lua
-- @include base/full_memory.lua
-- @include generated/settings.lua
-- @include jobs/fields.lua
-- @include jobs/come_back.lua
-- @include jobs/enter.lua

local list = ARGV[1] -- the key: kombu's own, of a queue or of one of its priority steps
local readable = ARGV[2] == "1" -- if not, only its type, its id and the bytes of the message are known
local id = ARGV[3]
local type = ARGV[4] -- encoded
local mode = ARGV[5] -- "queued" or "demand"
local priority = ARGV[6] -- 0..10, 10 highest
local delay_us = ARGV[7] -- until it is due
local task_id = ARGV[8] -- encoded; "" if it has none
local task_name = ARGV[9]
local expires_us = ARGV[10] -- until it expires; "" for never
local stamps = ARGV[11] -- "name:value", encoded, separated by blanks
local message = ARGV[12] -- the bytes in the list, which are the job's message as well

if redis.call("LINDEX", list, -1) ~= message then
    return { protocol.IS_NOT_NEXT, "", 1 }
end
if redis.call("EXISTS", key.job(id)) == 1 then
    return { protocol.IS_KNOWN, "", 1 }
end
local job = {
    id = id, type = type, mode = mode, priority = priority, delay_us = delay_us, task_id = task_id,
    task_name = task_name, expires_us = expires_us, stamps = stamps, message = message,
}
local bad = fields.bad(job)
if bad == "id" or bad == "type" then
    return { protocol.IS_REFUSED, "", bad }
end
redis.call("RPOP", list)
if bad or not readable then
    job.mode, job.priority, job.task_id, job.task_name = "queued", 0, "", ""
    write_job(job, "pending", clock.now)
    back.bury(id, "unreadable", read_settings())
    return { protocol.IS_UNREADABLE, "", 1 }
end
local state, served, is_first, alone = put(job, clock.now_us, true)
return { state, place(is_first and { type } or {}, { [id] = message }, alone), served }
