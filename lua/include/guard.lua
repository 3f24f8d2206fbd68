-- What every script that may change a volatile hash begins with.
--   KEYS[3] the due index of the hash's index shard, a sorted set: key of the hash -> the earliest
--           moment at which it may have garbage (never later than its earliest deadline)
--   KEYS[4] the layout mark of that index shard, a string
--   ARGV[1] the mark that the caller was written for
--@include one_hash
--@include refuse_mark
local due, mark = KEYS[3], KEYS[4]

local function foreign_due()
  return layout_error(due, 'does not hold a due index')
end

local function refuse_due()
  return type(redis.pcall('ZCARD', due)) == 'table' and foreign_due() or nil
end

-- Refuses a foreign layout and wrong types before anything is written, and drops the deadlines of a
-- hash that is gone. Returns an error reply, or nil when the script may go on.
-- schedules: the script's next write is schedule(), which refuses a foreign due index by itself.
local function refuse(schedules)
  local found = redis.pcall('GET', mark)
  local problem = refuse_mark(mark, found, ARGV[1], 'a layout mark')
  if problem then
    return problem
  end
  local size = redis.pcall('HLEN', hash)
  if type(size) == 'table' then
    return size
  end
  local held = redis.pcall('ZCARD', deadlines)
  if type(held) == 'table' then
    return layout_error(deadlines, 'does not hold the deadlines of a volatile hash')
  end
  local is_orphaned = size == 0 and held > 0
  if not (schedules and found) or is_orphaned then
    problem = refuse_due()
    if problem then
      return problem
    end
  end
  if not found then
    local reply = redis.pcall('SET', mark, ARGV[1])
    if reply.err then
      return reply
    end
  end
  if is_orphaned then
    redis.call('UNLINK', deadlines)
  elseif size > 0 and held >= size and redis.call('PTTL', hash) >= 0 then
    -- A hash without a live field is gone: what is written now must not inherit its time to live.
    local past = redis.call('ZRANGEBYSCORE', deadlines, '-inf', string.format('%.0f', now()))
    local live = size
    for i = 1, #past >= size and #past or 0 do
      live = live - redis.call('HEXISTS', hash, past[i])
    end
    if live == 0 then
      redis.call('UNLINK', hash, deadlines)
    end
  end
end
