-- What the scripts that maintain a shuffle queue have in common.
--@include now
--@include shuffle_queue
--@include refuse_key
--@include shuffle_queue_needed

-- Refuses a foreign queue; returns the error reply or nil, and whether there is a queue at all.
local function refuse_meta()
  local facts = redis.pcall('HMGET', meta, 'mark')
  return refuse(facts), facts[1] and true
end

-- Deletes an entry that nobody needs, and what it is tracked by. fields: its fields and values.
local function delete_entry(stream, tracking, number, id, fields)
  redis.call('XDEL', stream, id)
  for i = 1, #fields, 2 do
    if fields[i] == 'ws:tracking' and redis.call('HGET', tracking, fields[i + 1]) == number .. ':' .. id then
      redis.call('HDEL', tracking, fields[i + 1])
    end
  end
end
