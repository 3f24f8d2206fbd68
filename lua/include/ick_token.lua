-- What every writer of a reservation shares.
-- next_token(previous, clock): the token of a new holder, 16 digits and greater than the one before.
-- The clock is the reply of TIME: microseconds since the epoch, which digits of one length compare.
local function next_token(previous, clock)
  local token = string.format('%d%06d', clock[1], clock[2])
  -- A clock that was set back must not repeat a token.
  if token <= previous then
    token = string.format('%.0f', tonumber(previous) + 1)
  end
  return token
end

-- separator(head): what stands between the parts of a reservation's list, made from the end of its
-- time, which nobody knows beforehand. A member that contains it all the same is taken for one that
-- is not listed, which is as safe.
local HELD_HEAD = 30
local function separator(head)
  return '\n' .. string.sub(head, HELD_HEAD - 5, HELD_HEAD) .. '\n'
end

-- milestone(head): what stands behind the last score of each 8 entries of a list, so that a reader
-- who comes to the middle of it knows a member from a score. It counts as a part of that score, for
-- whoever does not know it.
local MILE = 8
local function milestone(head)
  return '\n' .. string.sub(head, HELD_HEAD - 5, HELD_HEAD) .. ':'
end
