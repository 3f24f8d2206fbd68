--@library
-- trim(): removes the first entries of a stream, a bounded number of them.

-- Removes entries up to `last`, the end of a range as XRANGE has it. All before the id `before` are among
-- them. Whole nodes of the stream go first, which the server does by the thousand; then the entries that
-- share a node with others. Returns how many entries were removed: fewer than a hundred only if no more
-- are left.
local function trim(stream, before, last)
  local removed = redis.call('XTRIM', stream, 'MINID', '~', before, 'LIMIT', 1000)
  if removed < 100 then
    local rest = #redis.call('XRANGE', stream, '-', last, 'COUNT', 100)
    if rest > 0 then
      redis.call('XTRIM', stream, 'MAXLEN', redis.call('XLEN', stream) - rest)
      removed = removed + rest
    end
  end
  return removed
end
