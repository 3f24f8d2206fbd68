-- each_listed(text, visit): calls visit(member, first byte, last byte) for the members that a held
-- reservation lists, at most 10,000, so that no slice lasts long; returns where it has stopped.
-- Those beyond are judged as if they were not listed, which takes longer and is as safe.
local HELD_HEAD, MOST_LISTED = 30, 10000
local function each_listed(text, visit)
  local at = HELD_HEAD + 1
  for _ = 1, MOST_LISTED do
    local _, colon, size = string.find(text, '^ (%d+):', at)
    if not size then
      return at
    end
    local last = colon + tonumber(size)
    visit(string.sub(text, colon + 1, last), at, last)
    at = last + 1
  end
  return at
end
