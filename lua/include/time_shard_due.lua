-- due_at(ms, from_now): a due time as a score: whole milliseconds since the epoch, not before it.
--@include now
local function due_at(ms, from_now)
  local due = tonumber(ms)
  if from_now == '1' then
    due = due + now()
  end
  return string.format('%.0f', math.max(0, due))
end
