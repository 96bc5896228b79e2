-- says_only: a repair that changes nothing, and says what it would do. Commands that write are not run, and get the
-- reply that they would get, as far as anybody reads it; a key that would be gone is read as if it were.

-- Has this call of `repair` change nothing: `redis` answers in place of the server. `call.found`: what is recorded.
function says_only.begin()
    local server, gone, found = redis, {}, {}
    call.found = found
    local reads = {
        EXISTS = true, GET = true, HEXISTS = true, HGET = true, HGETALL = true, HKEYS = true, HLEN = true,
        HMGET = true, HSCAN = true, HVALS = true, LRANGE = true, PTTL = true, TIME = true, TYPE = true, ZCARD = true,
        ZRANGE = true, ZRANGEBYSCORE = true, ZRANK = true, ZSCORE = true,
    }

    -- RETURNS the name of a key that says what key `name` would.
    local function now(name)
        return gone[name] and key.base .. "nothing" or name
    end

    -- RETURNS the reply of a command that reads. A key of another type than it is to have would be gone by now.
    local function read(command, name, ...)
        local reply = server.pcall(command, now(name), ...)
        if type(reply) == "table" and string.find(reply.err or "", "WRONGTYPE", 1, true) then
            gone[name] = true
            return server.call(command, now(name), ...)
        end
        return reply
    end

    -- The replies of commands that write, of those that are looked at.
    local writes = {
        HSETNX = function(name, field)
            return 1 - read("HEXISTS", name, field)
        end,
        HDEL = function(name, field)
            return read("HEXISTS", name, field)
        end,
        LPUSH = function(name, value)
            if string.sub(name, -8) == ":spoiled" then
                found[#found + 1] = value
            end
            return 1
        end,
        RENAME = function(name)
            gone[name] = true
            return { ok = "OK" }
        end,
        SET = function(name, _, option)
            local is_there = server.call("EXISTS", now(name)) == 1
            if (option == "NX" and is_there) or (option == "XX" and not is_there) then
                return false
            end
            return { ok = "OK" }
        end,
        UNLINK = function(name)
            local is_there = server.call("EXISTS", now(name))
            gone[name] = true
            return is_there
        end,
        ZPOPMIN = function(name)
            return read("ZRANGE", name, 0, 0, "WITHSCORES")
        end,
        ZREM = function(name, member)
            return read("ZSCORE", name, member) and 1 or 0
        end,
    }
    local function answer(command, name, ...)
        if command == "TIME" then
            return server.call(command)
        elseif reads[command] then
            return read(command, name, ...)
        end
        if writes[command] then
            return writes[command](name, ...)
        end
        return 0
    end
    redis = { call = answer, pcall = answer }
end
