--@library
-- refuse_mark(): the layout that a key of ours names, against the one that the caller was written for.
--@include layout_error

-- found: what redis.pcall() has read at the key; what: what it should have been. Returns an error reply;
-- nil where nothing stands there, or what was expected.
local function refuse_mark(key, found, expected, what)
  if type(found) == 'table' then
    return refusal(found, key, 'does not hold ' .. what)
  end
  if found and found ~= expected then
    return layout_error(key, 'says ' .. found .. ' where ' .. expected .. ' was expected')
  end
end
