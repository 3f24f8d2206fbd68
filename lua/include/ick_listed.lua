-- each_listed(text, visit): calls visit(member, first byte, last byte) for the members that a held
-- reservation lists, at most 10,000, so that no slice lasts long; returns where it has stopped.
-- Those beyond are judged as if they were not listed, which takes longer and is as safe.
--@include ick_token
local MOST_LISTED = 10000
local function each_listed(text, visit)
  local between, at = separator(text), HELD_HEAD + 1
  for _ = 1, MOST_LISTED do
    -- An entry: separator, member, separator, score.
    local middle = string.find(text, between, at + #between, true)
    if not middle then
      break
    end
    local after = string.find(text, between, middle + #between, true) or #text + 1
    visit(string.sub(text, at + #between, middle - 1), at, after - 1)
    at = after
  end
  return at
end
