-- What every script that reads or writes a reservation shares.
--@include token

-- head_of(text): the head of a reservation, its token and its time in ms, of the text that held begins
-- with (MOST_HEAD bytes of it); '' and '' where nothing is held; nil for what is none.
local MOST_HEAD = 40
local function head_of(text)
  if text == '' then
    return '', ''
  end
  local head, token, time = string.match(text, '^((%d+) (%d+))')
  if head and #token >= 16 and #time >= 13 and (#text == #head or string.byte(text, #head + 1) == 10) then
    return head, token, tonumber(time)
  end
end

-- separator(head): what stands between the parts of a reservation's list, made from the end of its
-- time, which nobody knows beforehand. A member that contains it all the same is taken for one that
-- is not listed, which is as safe.
local function separator(head)
  return '\n' .. string.sub(head, -6) .. '\n'
end

-- milestone(head): what stands behind the last score of each 8 entries of a list, so that a reader
-- who comes to the middle of it knows a member from a score. It counts as a part of that score, for
-- whoever does not know it.
local MILE = 8
local function milestone(head)
  return '\n' .. string.sub(head, -6) .. ':'
end
