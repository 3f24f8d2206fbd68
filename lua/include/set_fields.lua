-- Setting fields and deadlines, behind the guard.
--@include schedule
--@include runs

local function set_deadline(fields, at)
  local score, members = string.format('%.0f', at), {}
  for i, field in ipairs(fields) do
    members[#members + 1] = score
    members[#members + 1] = field
    if #members == 4000 or i == #fields then
      redis.call('ZADD', deadlines, unpack(members))
      members = {}
    end
  end
end

-- Sets the fields of a list field, value, field, value, ...; returns how many are new.
local function set_values(list)
  local added = 0
  in_runs(1, #list, function(first, last)
    added = added + redis.call('HSET', hash, unpack(list, first, last))
  end)
  return added
end

local function fields_of(list)
  local fields = {}
  for i = 1, #list, 2 do
    fields[(i + 1) / 2] = list[i]
  end
  return fields
end
