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
-- ARGV[3..]: the fields of the job, in the order of rules/job_fields; its message is the bytes in the list
local job = job_fields.at(ARGV, 3)

if redis.call("LINDEX", list, -1) ~= job.message then
    return { protocol.IS_NOT_NEXT, "", 1 }
end
if redis.call("EXISTS", key.job(job.id)) == 1 then
    return { protocol.IS_KNOWN, "", 1 }
end
local bad = fields.bad(job)
if bad == "id" or bad == "type" then
    return { protocol.IS_REFUSED, "", bad }
end
redis.call("RPOP", list)
if bad or not readable then
    local known = job_fields.bare(job)
    write_job(known, lanes.name(known.mode, known.priority), clock.now, "pending")
    come_back.bury(job.id, "unreadable", read_settings())
    return { protocol.IS_UNREADABLE, "", 1 }
end
local state, served, is_first, alone = put(job, clock.now_us, true)
return { state, place(is_first and { job.type } or {}, { [job.id] = job.message }, alone), served }
