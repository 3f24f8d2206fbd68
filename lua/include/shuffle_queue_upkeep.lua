-- What the scripts that maintain a shuffle queue have in common.
--@include now
--@include shuffle_queue
--@include refuse_key
--@include shuffle_queue_needed
--@include shuffle_queue_own
--@include shuffle_queue_deadlines

-- Refuses a foreign queue; returns the error reply or nil, and whether there is a queue at all.
local function refuse_meta()
  local facts = redis.pcall('HMGET', meta, 'mark')
  return refuse(facts), facts[1] and true
end

-- Deletes an entry that nobody needs, and what it is tracked and timed by. fields: its fields and values.
local function delete_entry(stream, tracking, deadlines, number, id, fields)
  redis.call('XDEL', stream, id)
  local _, deadline, tracked = own_of(fields)
  if tracked and redis.call('HGET', tracking, tracked) == number .. ':' .. id then
    redis.call('HDEL', tracking, tracked)
  end
  if deadline then
    redis.call('ZREM', deadlines, deadline_member(number, id, tracked))
  end
end
