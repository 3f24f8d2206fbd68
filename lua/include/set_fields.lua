-- Setting fields and deadlines, behind the guard.
--@include guard
--@include runs

-- Makes the due index find this hash at that moment or before. The first write of a script that sets
-- deadlines, so that a full server refuses it before anything is changed. Returns an error or nil.
local function schedule(at)
  local reply = redis.pcall('ZADD', due, 'LT', string.format('%.0f', at), hash)
  if type(reply) == 'table' then
    return string.find(reply.err, 'WRONGTYPE', 1, true) and foreign_due() or reply
  end
end

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
