-- outcomes: reads what a worker says of the end of a job that did not end well.
outcomes.ENDED = { acked = "done", ignored = "done", failed = "failed", revoked = "revoked", expired = "expired" }

-- RETURNS how the job ended, and why, in words; "" if nothing is said.
function outcomes.read(outcome)
    local how, why = string.match(outcome, "^(%S*) ?(.*)$")
    return how, string.sub(why, 1, protocol.MOST_WHY_BYTES)
end
