-- memo: caches values parsed from strings across invocations. A cached value may depend only on its string, so a
-- failover, a flush or another version cannot invalidate it. A full cache is cleared.

-- Returns an empty cache. `of`: string -> value. `most`: maximum number of entries; nil means MOST_KEPT.
function memo.cache(most)
    return { of = {}, number = 0, most = most }
end

-- Caches `meaning`, which must not be nil, as the value of `text`. Returns `meaning`.
function memo.keep(cache, text, meaning)
    if cache.number == (cache.most or protocol.MOST_KEPT) then
        cache.of, cache.number = {}, 0
    end
    cache.of[text], cache.number = meaning, cache.number + 1
    return meaning
end
