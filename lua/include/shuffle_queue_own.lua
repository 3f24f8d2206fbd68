-- own_of(): what the queue itself has written into a message, behind the user's fields: for which group
-- it is, if for one alone; the moment in ms from which on nobody wants it; what it is tracked by.
local function own_of(fields)
  local only, deadline, tracked
  for i = #fields - 1, math.max(1, #fields - 7), -2 do
    if fields[i] == 'ws:tenant' then
      break
    elseif fields[i] == 'ws:group' then
      only = fields[i + 1]
    elseif fields[i] == 'ws:deadline' then
      -- Others may have written anything; a NaN would be past.
      deadline = tonumber(string.match(fields[i + 1], '^%d+$'))
    elseif fields[i] == 'ws:tracking' then
      tracked = fields[i + 1]
    end
  end
  return only, deadline, tracked
end
