--@library
-- Numbers that stand under keys of ours: whatever has written them, they are bounded before they are believed.
--@include layout
--@include values

-- The largest whole number of which Lua knows each smaller one.
local MOST_STORED = 9007199254740991

-- The error reply about the first number that stored() could not believe, nil without any. A script returns it before it writes.
local unbelieved

-- Sets `unbelieved`, unless it is set already. expected: what should stand there.
local function disbelieve(key, field, text, expected)
  local shown = text and string.gsub(string.sub(text, 1, 60), '[^%w%p ]', '?') or 'nothing'
  if shown == '' then
    shown = 'an empty text'
  end
  unbelieved = unbelieved or layout_error(key, 'says ' .. shown .. ' as ' .. field .. ' where ' .. expected .. ' was expected')
end

-- Reads a whole number.
-- key, field: where it stands, field as a message names it; text: as the server has it, nil or false for none; least, most: its bounds;
-- absent: what none stands for, nil if it must be there. Returns the number; or else sets `unbelieved`, and returns a number within
-- the bounds, so that the script comes to its next check.
local function stored(key, field, text, least, most, absent)
  if not text and absent then
    return absent
  end
  local number = text and is_integer(text) and tonumber(text)
  if number and number >= least and number <= most then
    return number
  end
  --@include stored
  disbelieve(key, field, text, 'a whole number from ' .. whole(least) .. ' to ' .. whole(most))
  return absent or least
end
