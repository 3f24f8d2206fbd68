-- The index of deadlines, a sorted set: what deadline_member() returns -> its deadline in ms.

-- What a message with a deadline stands as in the index: `number:entry id`, and its tracking id behind a colon if it has one.
local function deadline_member(number, id, tracked)
  local place = number .. ':' .. id
  return tracked and tracked ~= '' and place .. ':' .. tracked or place
end
