-- memo: what a text means, worked out once for many calls. Only what follows from the text alone is kept: so neither a
-- failover nor a flush, nor another version, can make it wrong. A cache that is full begins anew.

-- RETURNS a cache. `of`: text -> what it means. `most`: number of texts; nil for MOST_KEPT.
function memo.cache(most)
    return { of = {}, number = 0, most = most }
end

-- Keeps what `text` means, which is not nil. RETURNS the meaning.
function memo.keep(cache, text, meaning)
    if cache.number == (cache.most or protocol.MOST_KEPT) then
        cache.of, cache.number = {}, 0
    end
    cache.of[text], cache.number = meaning, cache.number + 1
    return meaning
end
