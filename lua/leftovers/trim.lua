--@library
-- trim(): removes the first entries of a stream, a bounded number of them.

-- Removes at most so many entries, up to `last`, the end of a range as XRANGE has it. All before the id `before`
-- are among them. Whole nodes of the stream go first, which the server does by the thousand; then the entries
-- that share a node with others. Returns how many entries were removed: fewer than `most`, and than a hundred,
-- only if no more are left.
local function trim(stream, before, last, most)
  local removed = redis.call('XTRIM', stream, 'MINID', '~', before, 'LIMIT', most)
  local rest = math.min(100, most - removed)
  if rest > 0 then
    rest = #redis.call('XRANGE', stream, '-', last, 'COUNT', rest)
    if rest > 0 then
      redis.call('XTRIM', stream, 'MAXLEN', redis.call('XLEN', stream) - rest)
      removed = removed + rest
    end
  end
  return removed
end
